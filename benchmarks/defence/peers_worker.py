"""Runs in the peers' own environment, and imports nothing of ours: aggregates arrays that come through a pipe.

A request is a line of JSON, {"rules": [...], "f": bad ones, "repeat": times, "limit_s": CPU time that a rule may take
or 0, "shape": [rules or 1 for all, w, n]}, then the float32 of that array.  The reply is a line of JSON, {"seconds":
[[CPU s of each repetition], ...], "errors": [...], "shape": [rules, n]}, then the float32 of the aggregates.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import unittest.mock
from collections.abc import Callable
from typing import Any

import numpy as np

Rows = Any  # f32[w, n]
Rule = Callable[[Rows, int], Any]

# what ByzFL imports for its own benchmark and plots; nothing of it is used to aggregate
_UNUSED = (
    "torchvision", "torchvision.datasets", "torchvision.transforms", "seaborn",
    "matplotlib", "matplotlib.pyplot", "matplotlib.colors", "matplotlib.ticker",
)  # fmt: skip
_TIGHT = 1e-6  # Weiszfeld's smoothing: far below an update's norm, which the default of 0.1 is not
_ITERATIONS = 32
_CLIPPINGS = 10


def rules() -> dict[str, Rule]:
    """Return every rule by name; those of a package that is not installed are left out."""
    return _byzfl() | _byzpy()


def _byzfl() -> dict[str, Rule]:
    for name in _UNUSED:
        sys.modules.setdefault(name, unittest.mock.MagicMock())
    try:
        import byzfl  # type: ignore[import-not-found]
    except ImportError:
        return {}

    def mixed(rows: Rows, f: int) -> Any:
        return byzfl.TrMean(f=f)(byzfl.NNM(f=f)(rows))

    def clipped(rows: Rows) -> Any:
        rule = byzfl.CenteredClipping(L=_CLIPPINGS, tau=_radius(rows))
        rule.m = np.median(rows, 0)  # its constructor refuses every centre, array or not
        return rule(rows)

    return {
        "ByzFL Median": lambda rows, f: byzfl.Median()(rows),
        "ByzFL TrMean": lambda rows, f: byzfl.TrMean(f=f)(rows),
        "ByzFL MultiKrum": lambda rows, f: byzfl.MultiKrum(f=f)(rows),
        "ByzFL Meamed": lambda rows, f: byzfl.Meamed(f=f)(rows),
        "ByzFL GeometricMedian": lambda rows, f: byzfl.GeometricMedian()(rows),
        "ByzFL GeometricMedian, tuned": _guarded(lambda rows, f: byzfl.GeometricMedian(nu=_TIGHT, T=_ITERATIONS)(rows)),
        "ByzFL CenteredClipping": lambda rows, f: byzfl.CenteredClipping()(rows),
        "ByzFL CenteredClipping, tuned": _guarded(lambda rows, f: clipped(rows)),
        "ByzFL NNM + TrMean": mixed,
        "ByzFL ARC + NNM + TrMean, tuned": _guarded(lambda rows, f: mixed(byzfl.ARC(f=f)(rows), f)),
    }


def _byzpy() -> dict[str, Rule]:
    try:
        import torch
        from byzpy.aggregators.coordinate_wise.median import CoordinateWiseMedian  # type: ignore[import-not-found]
        from byzpy.aggregators.coordinate_wise.trimmed_mean import CoordinateWiseTrimmedMean  # type: ignore[import-not-found]
        from byzpy.aggregators.geometric_wise.geometric_median import GeometricMedian  # type: ignore[import-not-found]
        from byzpy.aggregators.geometric_wise.krum import MultiKrum  # type: ignore[import-not-found]
        from byzpy.aggregators.norm_wise.caf import CAF  # type: ignore[import-not-found]
        from byzpy.aggregators.norm_wise.center_clipping import CenteredClipping  # type: ignore[import-not-found]
        from byzpy.aggregators.norm_wise.comparative_gradient_elimination import ComparativeGradientElimination  # type: ignore[import-not-found]
        from byzpy.pre_aggregators.nnm import NearestNeighborMixing  # type: ignore[import-not-found]
    except ImportError:
        return {}

    def tensors(rows: Rows) -> list[Any]:
        return list(torch.from_numpy(np.array(rows)))

    return {
        "ByzPy median": lambda rows, f: CoordinateWiseMedian().aggregate(tensors(rows)),
        "ByzPy trimmed mean": lambda rows, f: CoordinateWiseTrimmedMean(f=f).aggregate(tensors(rows)),
        "ByzPy MultiKrum": lambda rows, f: MultiKrum(f=f, q=len(rows) - f).aggregate(tensors(rows)),
        "ByzPy MultiKrum, tuned": _guarded(
            lambda rows, f: MultiKrum(f=f, q=max(1, len(rows) - 2 * f)).aggregate(tensors(rows))
        ),
        "ByzPy GeometricMedian": lambda rows, f: GeometricMedian().aggregate(tensors(rows)),
        "ByzPy CenteredClipping, tuned": _guarded(
            lambda rows, f: CenteredClipping(c_tau=_radius(rows), M=_CLIPPINGS, init="median").aggregate(tensors(rows))
        ),
        "ByzPy CGE": lambda rows, f: ComparativeGradientElimination(f=f).aggregate(tensors(rows)),
        "ByzPy CAF": lambda rows, f: CAF(f=f).aggregate(tensors(rows)),
        "ByzPy NNM + trimmed mean": lambda rows, f: CoordinateWiseTrimmedMean(f=f).aggregate(
            list(NearestNeighborMixing(f=f).pre_aggregate(tensors(rows)))
        ),
    }


def _radius(rows: Rows) -> float:
    """Return the median distance from the coordinate-wise median: what is clipped to, in place of a fixed size."""
    return float(np.median(np.linalg.norm(rows - np.median(rows, 0), axis=1)))


def _guarded(rule: Rule) -> Rule:
    """Return the rule without rows that are not finite, each of them one bad one less."""

    def run(rows: Rows, f: int) -> Any:
        finite = np.isfinite(rows).all(axis=1)
        return rule(rows[finite], max(0, f - int((~finite).sum())))

    return run


def main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever a peer prints must not get into the replies
    known = rules()
    _flush_denormals()
    sink.write(json.dumps(sorted(known)).encode() + b"\n")
    sink.flush()
    while line := source.readline():
        request = json.loads(line)
        shape = request["shape"]
        stacks = np.frombuffer(source.read(4 * int(np.prod(shape))), np.float32).reshape(shape)
        answers = [
            _limited(
                request["limit_s"], known[name], stacks[i if len(stacks) > 1 else 0], request["f"], request["repeat"]
            )
            for i, name in enumerate(request["rules"])
        ]
        found = np.stack([each[0] for each in answers])
        head = {"seconds": [e[1] for e in answers], "errors": [e[2] for e in answers], "shape": found.shape}
        sink.write(json.dumps(head).encode() + b"\n" + found.tobytes())
        sink.flush()


def _flush_denormals() -> None:
    """Treat numbers below float32's normal range as 0, which spares models that were driven away much time."""
    try:
        import torch
    except ImportError:
        return
    torch.set_flush_denormal(True)


def _limited(limit_s: float, rule: Rule, rows: Rows, f: int, repeat: int) -> tuple[Any, list[float], str]:
    """Return the answer, ending a rule that takes too long (CAF, for one, can all but loop for ever), on POSIX."""
    if not limit_s or not hasattr(signal, "setitimer"):
        return _answer(rule, rows, f, repeat)

    def stop(*_: object) -> None:
        raise TimeoutError(f"no result after {limit_s:g} s of CPU time")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        return _answer(rule, rows, f, repeat)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _answer(rule: Rule, rows: Rows, f: int, repeat: int) -> tuple[Any, list[float], str]:
    """Return (aggregate f32[n], CPU seconds of each repetition, error); a rule that fails has nan."""
    seconds = []
    try:
        for _ in range(repeat):
            began = time.process_time()
            found = np.asarray(rule(rows, f), np.float32)
            seconds.append(time.process_time() - began)
    except Exception as error:  # a peer's failure is a result of this benchmark, not its end
        return np.full(rows.shape[1], np.nan, np.float32), seconds, f"{type(error).__name__}: {error}"
    return found, seconds, ""


def digits() -> None:
    """Write scikit-learn's digits to standard output: f32[1797, 65], the labels last."""
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    found = load_digits()
    rows = np.concatenate([found.data, found.target[:, None]], axis=1)  # [1797, 65]
    sys.stdout.buffer.write(rows.astype(np.float32).tobytes())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["digits"]:
        digits()
    else:
        import warnings

        warnings.simplefilter("ignore")
        main()
