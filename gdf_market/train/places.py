"""Where in the owner's code something is: the submodule, the file and line, and the line itself."""

from __future__ import annotations

import inspect
import linecache
import re
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import nn

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+')
_HERE = Path(__file__).parent
_LIBRARIES = ("site-packages", "dist-packages", "<")


def own_name(name: str) -> str:
    """Return a name as the owner's module knows it."""
    return name.removeprefix("model.")


def place_of_node(node: torch.fx.Node) -> str:
    """Return " in module x at file:line (source)" of a node of an exported graph, or an empty text."""
    return _module_of(node) + _line_of(node)


def _module_of(node: torch.fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    names = [(own_name(name), kind) for name, kind in stack if own_name(name) not in ("", "model")]
    if not names:
        return ""
    name, kind = names[-1]
    return f" in module {name} ({kind if isinstance(kind, str) else kind.__name__})".replace("torch.nn.modules.", "")


def _line_of(node: torch.fx.Node) -> str:
    trace = (node.meta.get("stack_trace") or "").splitlines()
    for position in range(len(trace) - 1, -1, -1):
        found = _FRAME.search(trace[position])
        if found and _is_own(found[1]):
            source = trace[position + 1].strip() if position + 1 < len(trace) else ""
            return f" at {found[1]}:{found[2]} ({source})"
    return ""


def place_of_error(error: BaseException, wrapped: nn.Module) -> str:
    """Return the place of the innermost frame of the owner's, and of the submodule that was running."""
    names = {id(module): own_name(name) for name, module in wrapped.named_modules()}
    where, inside = "", ""
    for frame, line in _frames(error.__traceback__):
        running = names.get(id(frame.f_locals.get("self")), "")
        if running and running != "model":
            inside = f" in module {running}"
        path = frame.f_code.co_filename
        if _is_own(path):
            where = f" at {path}:{line} ({linecache.getline(path, line).strip()})"
    return inside + where


def place_of_caller() -> str:
    """Return the place of the innermost frame of the owner's that is running now."""
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_own(path):
            return f" at {path}:{frame.f_lineno} ({linecache.getline(path, frame.f_lineno).strip()})"
        frame = frame.f_back
    return ""


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _is_own(path: str) -> bool:
    return not any(library in path for library in _LIBRARIES) and Path(path).parent != _HERE
