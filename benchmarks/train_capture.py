"""Which models become programs, whether they train the same, and how fast: ``python -m benchmarks.train_capture``.

Each architecture is captured as it is, sent through bytes, and trained three steps next to the eager module from the
same weights, with dropout off on both sides (two masks of dropout cannot be compared) and batch norm on.  The largest
difference between the two losses, relative to the eager one, is printed; then the ratio of step times, eager over
program, so that more than 1 means that the program is faster.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.architectures import Case, all_cases
from gdf_market.errors import UsageError
from gdf_market.train.capture import capture_module, initial_parameters
from gdf_market.train.interpreter import ProgramModule
from gdf_market.train.noise import IDENTITY
from gdf_market.train.program import Program
from gdf_market.train.wrapping import WithLoss

ROWS, STEPS, TARGET = 6, 3, 1e-5


@dataclass
class Row:
    """One line of the table; ``refusal`` is empty where the model was captured."""

    name: str
    parameters: int = 0
    operators: int = 0
    difference: float = math.nan
    dynamic: bool = False
    separable: bool = False
    modes: bool = False
    seconds: float = 0.0
    ratio: float = math.nan
    refusal: str = ""

    def line(self) -> str:
        """Return the row of a Markdown table."""
        if self.refusal:
            return f"| {self.name} | **no** | | | | | | | |"
        flags = " | ".join("yes" if each else "no" for each in (self.dynamic, self.separable, self.modes))
        ratio = "" if math.isnan(self.ratio) else f"{self.ratio:.2f}"
        sizes = f"{self.parameters:,} | {self.operators} | {self.difference:.1e}"
        return f"| {self.name} | yes | {sizes} | {flags} | {ratio} |"


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every probability of dropout to zero, wherever modules keep it."""
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "attn_dropout", "dropout_prob", "dropout_rate", "_attn_p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def step(forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = forward()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def measure(name: str, made: Case, timed: bool) -> Row:
    """Capture a model as it is; compare and time with dropout off on both sides."""
    row = Row(name)
    started = time.perf_counter()
    try:
        captured = capture_module(made.model, made.batch(ROWS), made.loss, names=made.names)
    except UsageError as error:
        row.refusal = str(error)
        return row
    row.seconds = time.perf_counter() - started
    program, model = Program.from_bytes(captured.to_bytes()), without_dropout(made.model)
    graph = program.graph
    row.parameters, row.operators = program.size, len({node.op for node in graph.train.nodes})
    row.dynamic, row.separable, row.modes = graph.batch == 0, graph.separable, graph.evaluate is not None
    rows = graph.batch or ROWS + 2
    row.difference = compare(made, model, program, rows)
    if timed:
        row.ratio = speed(made, model, program, rows)
    return row


def load(model: nn.Module, program: Program) -> ProgramModule:
    module = ProgramModule(program, program.unflatten(initial_parameters(model, program)))
    module.noise = IDENTITY
    return module


def compare(made: Case, model: nn.Module, program: Program, rows: int) -> float:
    """Return the largest relative difference of the loss over a few steps of SGD and of AdamW."""
    worst = 0.0
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        eager = WithLoss(copy.deepcopy(model), made.loss, made.names)
        module = load(model, program)
        trained = [parameter for parameter in eager.parameters() if parameter.requires_grad]
        # 1e-6: see gdf_market/train/optimizers.py; at 1e-8 Adam makes whole steps of rounding noise
        options = {"lr": 0.01} if kind is torch.optim.SGD else {"lr": 1e-3, "eps": 1e-6}
        optimizers = kind(trained, **options), kind(module.parameters(), **options)
        for _ in range(STEPS):
            batch = made.batch(rows)
            expected = step(lambda e=eager, b=batch: e(*b), optimizers[0])  # type: ignore[misc]
            found = step(lambda m=module, b=batch: m(*b), optimizers[1])  # type: ignore[misc]
            worst = max(worst, abs(found - expected) / max(abs(expected), 1e-12))
    return worst


def speed(made: Case, model: nn.Module, program: Program, rows: int, runs: int = 15) -> float:
    """Return time of an eager step over that of a program's, medians of interleaved runs."""
    eager = WithLoss(model, made.loss, made.names)
    module = load(model, program)
    batch = made.batch(rows)
    pairs = [
        (each, torch.optim.SGD([p for p in each.parameters() if p.requires_grad], 1e-4)) for each in (eager, module)
    ]
    times: list[list[float]] = [[], []]
    for run in range(runs + 2):
        for place in (0, 1) if run % 2 else (1, 0):
            forward, optimizer = pairs[place]
            started = time.perf_counter()
            step(lambda f=forward: f(*batch), optimizer)  # type: ignore[misc]
            if run >= 2:
                times[place].append(time.perf_counter() - started)
    return statistics.median(times[0]) / statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--first", type=int, default=0, help="number of the first architecture (default: 0)")
    parser.add_argument("--every", type=int, default=1, help="take each of so many (default: 1)")
    parser.add_argument("--no-speed", action="store_true", help="leave the timing out")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    rows = []
    for name, make in list(all_cases())[options.first :: options.every]:
        if options.only.lower() in name.lower():
            torch.manual_seed(1)
            rows.append(measure(name, make(), not options.no_speed))
            print(rows[-1].line(), *([f"    {rows[-1].refusal}"] if rows[-1].refusal else []), sep="\n", flush=True)
    table = report(rows)
    print("\n" + "\n".join(table[-12:]))
    if options.out:
        options.out.write_text("\n".join(table) + "\n", encoding="utf-8")


def report(rows: list[Row]) -> list[str]:
    """Return the table, the refusals, and the totals."""
    captured = [row for row in rows if not row.refusal]
    same = [row for row in captured if row.difference <= TARGET]
    ratios = [row.ratio for row in captured if not math.isnan(row.ratio)]
    head = (
        "| model | captured | parameters | operators | loss difference | any batch | separable | two passes | speed |"
    )
    lines = [head, "|---|---|---:|---:|---:|---|---|---|---:|", *(row.line() for row in rows), ""]
    lines += [f"- {row.name}: {row.refusal}" for row in rows if row.refusal]
    lines += [
        "",
        f"{len(captured)} of {len(rows)} captured; {len(same)} with losses within {TARGET:g} over 2 x {STEPS} steps.",
    ]
    if ratios:
        lines.append(
            f"Speed (eager time / program time): median {statistics.median(ratios):.2f}, least {min(ratios):.2f}."
        )
    return lines


if __name__ == "__main__":
    main()
