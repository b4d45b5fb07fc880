"""One of several processes that compute a unit together: each has its rows of a batch, gradients are added up.

All take the same steps from the same sums, so their weights stay the same; the first one writes the result.
"""

from __future__ import annotations

import datetime
import os
import queue
import socket
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import psutil
import torch
import torch.distributed as dist

from gdf_market.train.protocol import MAX_LINE_BYTES

MEETING_TIMEOUT = datetime.timedelta(seconds=300)  # importing torch on a busy machine
_LOOPBACK = "127.0.0.1"


class ProcessTeam:
    """A Team (see unit.py) over torch.distributed: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def meet(cls, rank: int, size: int, meeting: Path, device: str) -> ProcessTeam:
        """Wait for the others at the file ``meeting``, which is new.  Raises what torch raises when they stay away."""
        backend = "gloo"
        if device.startswith("cuda"):
            backend = "nccl"
            torch.cuda.set_device(device)
        elif name := loopback():
            os.environ["GLOO_SOCKET_IFNAME"] = name
        store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=MEETING_TIMEOUT)
        return cls(rank, size)

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""
        dist.all_reduce(tensor)


def loopback() -> str:
    """Return the name of the loopback interface where gloo takes one, else "": nobody else may connect."""
    if sys.platform == "win32":
        return ""  # gloo finds the address by the machine's name there
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == _LOOPBACK for address in addresses):
            return str(name)
    return ""


class WatchedInput:
    """Lines of a stream, read by a thread that ends the process with the stream: no process outlives its parent.

    A process in the middle of a unit, waiting for others that are gone, would not look at its input.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._lines: queue.Queue[bytes] = queue.Queue(maxsize=1)
        threading.Thread(target=self._watch, daemon=True).start()

    def readline(self, _limit: int) -> bytes:
        """Return the next line."""
        return self._lines.get()

    def _watch(self) -> None:
        while line := self._source.readline(MAX_LINE_BYTES + 1):
            self._lines.put(line)
        os._exit(0)
