"""Runs an owner's file, on the owner's machine, and returns the ``job`` it declares."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gdf_market.errors import UsageError, ensure

if TYPE_CHECKING:
    from gdf_market.train.job import Job

_ENDING = "end it with `job = Job(model=..., data=...)`"


def load_job(path: Path) -> Job:
    """Return the module variable ``job`` of the Python file at ``path``.

    Raises UsageError, in one sentence with file and line, when the file cannot
    be run or declares no job.
    """
    from gdf_market.train.job import Job

    path = path.absolute()
    ensure(not path.is_dir(), UsageError(f"{path} is a folder; give the path of a Python file that declares a job"))
    ensure(path.is_file(), UsageError(f"{path} does not exist; give the path of a Python file that declares a job"))
    ensure(path.suffix == ".py", UsageError(f"{path} is not a Python file (.py); give one that declares a job"))
    module = _run(path)
    job = getattr(module, "job", None)
    ensure(job is not None, UsageError(f"{path} declares no job; {_ENDING}"))
    if not isinstance(job, Job):
        raise UsageError(f"{path} declares a job of type {type(job).__name__}; {_ENDING}")
    return job


def _run(path: Path) -> ModuleType:
    name = "gdf_market_job_file"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with _importable(name, module, path.parent):
        try:
            specification.loader.exec_module(module)
        except SyntaxError as error:
            place = f"{error.filename or path}:{error.lineno or 1}"
            raise UsageError(f"{place}: {error.msg}; correct the line and try again") from error
        # the owner's code may raise anything; SystemExit ends a script, not this program
        except (Exception, SystemExit) as error:
            raise UsageError(f"{_place(path, error)}: {_reason(error)}; correct the line and try again") from error
    return module


@contextlib.contextmanager
def _importable(name: str, module: ModuleType, folder: Path) -> Iterator[None]:
    """Let the file import its neighbours, and classes in it find their module, while it runs."""
    sys.modules[name] = module  # stays: torch.export looks up the classes' module
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _place(path: Path, error: BaseException) -> str:
    """Return file:line of the innermost frame that is in the owner's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300].rstrip(".")
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}".rstrip(": ")
