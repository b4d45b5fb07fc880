"""A posted job, from Python: following it and fetching its model, as the commands do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from gdf_market.commands.common import App
from gdf_market.commands.jobs import fetch_blobs
from gdf_market.commands.metrics import Sinks
from gdf_market.commands.model_file import check_target, write_model
from gdf_market.commands.progress import RoundMetrics, metrics_of, require_job, rounds_of
from gdf_market.commands.reading import open_ledger
from gdf_market.commands.session import with_client
from gdf_market.commands.watch import look
from gdf_market.errors import UnreachableError, UsageError, ensure
from gdf_market.node.datadir import DataDir
from gdf_market.node.settings import default_data_dir

MAX_WAIT_S = 10 * 365 * 86_400
_START_S = 60.0  # a node of our own is up by then
_STOP_S = 20.0


@dataclass(frozen=True)
class PostedJob:
    """A job on the ledger.  ``summary`` is what ``gdf-market post --json`` prints: escrow, fee, prices, estimate."""

    id: str
    model: nn.Module = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    app: App = field(repr=False)

    def watch(self) -> Iterator[RoundMetrics]:
        """Yield every settled round (its ``round``, ``loss``, ``units``, ``credits``, …) until the job has ended.

        Where no node runs on the data folder, one runs until then.
        """
        seen = 0
        with ExitStack() as stack, Sinks(self.id) as sinks:
            for sight in look(self.app, self.id, sinks):
                settled = self._settled()
                yield from settled[seen:]
                seen = len(settled)
                if not sight.progress.ended and not sight.node_runs:
                    stack.enter_context(running_beside(self.app))

    def checkpoint(self, path: str | Path | None = None, *, wait: bool = False) -> dict[str, torch.Tensor]:
        """Fetch the latest checkpoint as a state dict of the owner's module, and write it to ``path`` as safetensors.

        ``wait``: until the job has ended.  Running statistics of batch norm are gathered anew on this machine.
        """
        if path is not None:
            check_target(Path(path))
        value = with_client(self.app, lambda client: fetch_blobs(self.app, client, self.id, MAX_WAIT_S if wait else 0))
        with tempfile.TemporaryDirectory(prefix="gdf-market-") as folder:
            target = Path(path) if path is not None else Path(folder) / "model.safetensors"
            write_model(value["paths"], target)
            tensors: dict[str, torch.Tensor] = safetensors.torch.load(target.read_bytes())
        return tensors

    def load(self, *, wait: bool = False) -> nn.Module:
        """Load the latest checkpoint into the owner's module and return it."""
        found = self.checkpoint(wait=wait)
        own = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        ensure(
            own == {name: tensor.shape for name, tensor in found.items()},
            UsageError(f"job {self.id[:12]} trained another model; name the job of this one"),
        )
        self.model.load_state_dict(found)
        return self.model

    def _settled(self) -> list[RoundMetrics]:
        with open_ledger(self.app) as store:
            return metrics_of(require_job(store, self.id), rounds_of(store, self.id))


def open_app(data_dir: str | Path | None, *, quiet: bool = False) -> App:
    """Return what the commands share, for this data folder."""
    chosen = Path(data_dir or os.environ.get("GDF_DATA_DIR") or default_data_dir())
    return App(data=DataDir(chosen.expanduser().absolute()), quiet=quiet)


@contextmanager
def running_beside(app: App) -> Iterator[None]:
    """Run a node on the data folder in a process of its own.  Raises UnreachableError when it does not start."""
    command = [sys.executable, "-m", "gdf_market", "--data-dir", str(app.data.root), "--quiet", "node", "run"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_S
        while app.data.running() is None:
            if process.poll() is not None or time.monotonic() > end:
                raise UnreachableError(f"no node could be started on {app.data.root}; try `gdf-market node run`")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
