"""The file that ``jobs fetch`` writes: a state dict as safetensors, and how to load it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from gdf_market.commands.session import run_async
from gdf_market.errors import LocalError, UsageError

if TYPE_CHECKING:
    from gdf_market.train.program import Program, Tensors

EVALUATE_S = 600.0


def check_target(target: Path) -> None:
    """Raise UsageError unless a file can be written at ``target``."""
    folder = target.absolute().parent
    if target.is_dir():
        raise UsageError(f"-o {target} is a folder; give the name of a file, such as {target / 'model.safetensors'}")
    if not folder.is_dir():
        raise UsageError(f"-o {target}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"-o {target}: the folder {folder} cannot be written to; choose another one")


def model_bytes(
    program: Program, checkpoint: bytes, *, statistics: Tensors | None = None, trained_only: bool = False
) -> bytes:
    """Return a checkpoint as safetensors: the whole state dict, or only the tensors that were trained (adapters).

    ``statistics`` are the running statistics that belong to it.  Raises MalformedError if the checkpoint is not one of
    this program.
    """
    import safetensors.torch

    from gdf_market.train.program import to_safetensors

    whole = to_safetensors(program, checkpoint, statistics)
    if not trained_only:
        return whole
    trained = {parameter.name for parameter in program.graph.parameters}
    tensors = safetensors.torch.load(whole)
    kept = {key: tensors[key] for key, name in program.graph.state.items() if name in trained}
    stored: bytes = safetensors.torch.save(kept)
    return stored


def snippet(target: Path, *, trained_only: bool = False) -> str:
    """Return the Python lines that load the file into the owner's module."""
    name = json.dumps(str(target.absolute()), ensure_ascii=False)  # a Python literal, too
    strict = ", strict=False" if trained_only else ""
    return f"from safetensors.torch import load_file; model.load_state_dict(load_file({name}){strict})"


def write_model(paths: Mapping[str, str], target: Path, *, trained_only: bool = False) -> None:
    """Write a job's checkpoint as safetensors, with running statistics gathered anew where the model has some.

    ``paths`` are those of the blobs, as ``fetch_blobs`` names them.
    """
    from gdf_market.node.datadir import write_atomic
    from gdf_market.train.program import Program

    program = Program.from_bytes(Path(paths["program"]).read_bytes())
    checkpoint = Path(paths["checkpoint_file"]).read_bytes()
    statistics = run_async(lambda: _statistics(paths)) if program.graph.train.updates and not trained_only else None
    data = model_bytes(program, checkpoint, statistics=statistics, trained_only=trained_only)
    write_atomic(target.absolute(), data)


async def _statistics(paths: Mapping[str, str]) -> Tensors:
    import safetensors.torch

    from gdf_market.node.trainer import Trainer

    files = [Path(paths[name]) for name in ("program", "data", "content", "checkpoint_file")]
    with tempfile.TemporaryDirectory(prefix="gdf-market-") as folder:
        out = Path(folder) / "statistics.safetensors"
        with trio.move_on_after(EVALUATE_S) as scope:
            async with Trainer(threads=0) as trainer:
                await trainer.statistics(*files, out=out)
        if scope.cancelled_caught:
            raise LocalError(
                f"the running statistics of batch norm were not gathered within {EVALUATE_S:.0f} s; use a machine "
                "that is less busy, or write the trained tensors alone with --trained-only"
            )
        found: Tensors = safetensors.torch.load(out.read_bytes())
        return found
