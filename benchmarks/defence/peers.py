"""The peers' environment under artifacts/: made by pip when it is first needed, and a process of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from benchmarks.defence.images import Floats, Images, digits
from gdf_market.errors import UsageError

VERSIONS = {"byzfl": "0.0.11", "byzpy": "0.1.4"}
_HELPERS = ("scipy", "cloudpickle", "scikit-learn", "joblib", "threadpoolctl", "narwhals")
_WORKER = Path(__file__).with_name("peers_worker.py")
_INSTALLED = "installed.json"  # what pip said, so that an install is tried once


@dataclass(frozen=True)
class Environment:
    """``missing``: package by package, why it could not be installed."""

    python: Path
    missing: dict[str, str]


def prepare(folder: Path) -> Environment:
    """Return the peers' environment in ``folder``, installed if it is not yet; our torch and numpy are used in it."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    noted = folder / _INSTALLED
    if noted.exists():
        return Environment(python, json.loads(noted.read_text(encoding="utf-8")))
    print(f"installing the peers into {folder}", file=sys.stderr, flush=True)
    venv.EnvBuilder(with_pip=False, clear=True).create(folder)
    own = Path(sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})["purelib"])
    (own / "marketplace.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    missing = {}
    for wanted in ([f"{name}=={version}"] for name, version in VERSIONS.items()):
        if reason := _install(python, wanted):
            missing[wanted[0]] = reason
    if reason := _install(python, _HELPERS):
        missing["helpers"] = reason
    noted.write_text(json.dumps(missing), encoding="utf-8")
    return Environment(python, missing)


def _install(python: Path, wanted: Sequence[str]) -> str:
    """Install packages without what they depend on; return why that failed, or ""."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    done = subprocess.run([*command, "--quiet", "--no-deps", *wanted], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1][:200]


def load_digits(environment: Environment) -> Images:
    """Return scikit-learn's digits, read in the peers' environment.  Raises UsageError where it has none."""
    done = subprocess.run([environment.python, _WORKER, "digits"], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UsageError(f"scikit-learn's digits cannot be read ({said}); delete {environment.python.parents[1]}")
    rows = np.frombuffer(done.stdout, np.float32).reshape(-1, 65)
    return digits(rows[:, :64], rows[:, 64].astype(np.int64))


@dataclass(frozen=True)
class Answer:
    """Aggregates f32[rules, n], the CPU seconds of each rule's repetitions, and errors ("" for none)."""

    aggregates: Floats
    seconds: list[list[float]]
    errors: list[str]


class Peers:
    """A process of the peers' environment, one thread; use as a context manager."""

    def __init__(self, environment: Environment) -> None:
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [environment.python, _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | single,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.rules: list[str] = json.loads(self._line())

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        self._process.wait()

    def aggregate(
        self, rules: Sequence[str], stacks: Floats, f: int, *, repeat: int = 1, limit_s: float = 0.0
    ) -> Answer:
        """Return what each rule makes of its own ``stacks`` f32[rules, w, n] (or of one for all).

        ``limit_s``: CPU time after which a rule is stopped, which is an error (POSIX only; 0: none).
        """
        assert stacks.dtype == np.float32
        request = {"rules": list(rules), "f": f, "repeat": repeat, "limit_s": limit_s, "shape": stacks.shape}
        self._in.write(json.dumps(request).encode() + b"\n" + np.ascontiguousarray(stacks).tobytes())
        self._in.flush()
        head = json.loads(self._line())
        aggregates = np.frombuffer(self._out.read(4 * int(np.prod(head["shape"]))), np.float32).reshape(head["shape"])
        return Answer(aggregates, head["seconds"], head["errors"])

    def _line(self) -> bytes:
        line = self._out.readline()
        if not line:
            raise UsageError(f"the peers' process ended with {self._process.wait()}; its own words are above")
        return line
