"""The node's side of the bulk process: start it, keep it running, ask it for blobs.

The process has a key of its own, made for one run of the node, and keeps key
and port over its restarts, so that what peers were told stays true.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog
import trio

import gdf_market
from gdf_market.blobs.manifest import ContentMismatchError, check_root
from gdf_market.errors import (
    GdfError,
    LocalError,
    MalformedError,
    OversizedError,
    PeerError,
    StorageError,
    UnreachableError,
    UserError,
)
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.collapse import collapsing
from gdf_market.node.frames import BulkAddress

log = structlog.get_logger("gdf.bulk")

_MAX_CALLS = 256
_ATTEMPTS = 3  # of a request, when the process dies under it
_START_S = 60.0
_STOP_S = 5.0
_RESTART_FIRST_S, _RESTART_MAX_S = 0.2, 10.0
_MAX_LINE_BYTES = 1 << 20

_KINDS: dict[str, type[GdfError]] = {
    "unreachable": UnreachableError,
    "storage": StorageError,
    "user": UserError,
    "peer-malformed": MalformedError,
    "peer-oversized": OversizedError,
    "peer-content": ContentMismatchError,
}


class _EndedError(LocalError):
    """The process ended before it replied."""


@dataclass
class _Call:
    done: trio.Event = field(default_factory=trio.Event)
    value: Any = None
    error: GdfError | None = None


class BulkHost:
    """``async with BulkHost(…) as bulk`` runs the bulk process for the length of the block.

    ``store`` is the folder of the node's BlobStore.  ``host``, ``port`` are what
    to listen on (0: any free port), ``announce`` extra multiaddrs, ``quota_bytes``
    what the store may hold (0: no limit).  ``ranked`` asks the nearest and fastest
    sources first (False: all alike, for comparison).  Entering raises UserError
    when the port is taken, and LocalError if nothing starts.
    """

    def __init__(
        self,
        identity: Identity,
        network: str,
        store: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        announce: Sequence[str] = (),
        quota_bytes: int = 0,
        ranked: bool = True,
    ) -> None:
        self._account, self._network, self._store = identity.account, network, store
        self._host, self._port, self._announce = host, port, list(announce)
        self._seed = secrets.token_bytes(32)
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._sources: dict[str, BulkAddress] = {}
        self._quota_bytes, self._ranked = quota_bytes, ranked
        self.upload_bytes_per_s = self.download_bytes_per_s = 0  # limits; 0: none
        self._replies: AsyncIterator[dict[str, Any]]
        self._ready = trio.Event()
        self._queue_in, self._queue_out = trio.open_memory_channel[bytes](_MAX_CALLS)
        self._context: contextlib.AbstractAsyncContextManager[None] | None = None
        self.peer = ""
        self.addresses: tuple[str, ...] = ()
        self.restarts = 0
        self.process: trio.Process | None = None

    async def __aenter__(self) -> BulkHost:
        self._context = self._run()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)

    # what the node calls

    async def fetch(self, root: str, *, max_bytes: int) -> Path:
        """Return the path of the complete blob ``root`` in the store, downloaded from peers if need be.

        Raises UnreachableError (nobody has it, or progress stopped), PeerError (wrong
        bytes from every source, or more than ``max_bytes``), StorageError, or LocalError.
        """
        return Path(await self._call("fetch", root=check_root(root), max_bytes=max_bytes))

    async def holders(self, root: str) -> int:
        """Return how many known peers say that they hold the blob."""
        count: int = await self._call("holders", root=check_root(root))
        return count

    def add_source(self, account: str, address: BulkAddress) -> None:
        """Fetch from this account's bulk host too, from now on."""
        if account == self._account:
            return
        self._sources.pop(account, None)
        self._sources[account] = address
        if len(self._sources) > limits.MAX_SOURCES:
            del self._sources[next(iter(self._sources))]
        self._tell(_add_source(account, address))

    def remove_source(self, account: str) -> None:
        """Do not fetch from this account any more."""
        if self._sources.pop(account, None) is not None:
            self._tell({"op": "remove_source", "account": account})

    def limit_upload(self, bytes_per_s: int) -> None:
        """Send at most this much a second to all peers together (0: no limit)."""
        self.upload_bytes_per_s = bytes_per_s
        self._tell_limits()

    def limit_download(self, bytes_per_s: int) -> None:
        """Take at most this much a second from all peers together (0: no limit)."""
        self.download_bytes_per_s = bytes_per_s
        self._tell_limits()

    def _tell_limits(self) -> None:
        up, down = self.upload_bytes_per_s, self.download_bytes_per_s
        self._tell({"op": "limits", "upload_bytes_per_s": up, "download_bytes_per_s": down})

    async def use_relays(
        self, candidates: Sequence[tuple[str, Sequence[str]]], *, relay: bool = True, seen: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Be reached through some of these bulk hosts (peer, transport addresses) from now on; ``relay``: be one.

        ``seen`` are the IP addresses at which peers see this node.  Returns the multiaddrs that work already.
        """
        wanted = [[peer, list(addresses)] for peer, addresses in candidates]
        return tuple(await self._call("relays", candidates=wanted, relay=relay, seen=list(seen)))

    async def stats(self) -> dict[str, Any]:
        """Return the process's counters, the bytes it sent and received, and what it measured of its sources."""
        value: dict[str, Any] = await self._call("stats")
        return value

    # calls

    async def _call(self, op: str, **arguments: Any) -> Any:
        for _ in range(_ATTEMPTS):
            await self._ready.wait()
            try:
                return await self._request({"op": op, **arguments})
            except _EndedError:
                continue
        raise LocalError(f"the bulk process ended {_ATTEMPTS} times during {op}; see the log for why")

    async def _request(self, request: dict[str, Any]) -> Any:
        if len(self._calls) >= _MAX_CALLS:
            raise LocalError(f"more than {_MAX_CALLS} requests to the bulk process at once")
        number = next(self._numbers)
        call = self._calls[number] = _Call()
        try:
            await self._queue_in.send(_line({"id": number, **request}))
            await call.done.wait()
        finally:
            del self._calls[number]
            if not call.done.is_set():
                self._tell({"op": "cancel", "target": number})
        if call.error is not None:
            raise call.error
        return call.value

    def _tell(self, request: dict[str, Any]) -> None:
        """Send what needs no reply; dropped while no process runs (a new one is told everything)."""
        if self._ready.is_set():
            with contextlib.suppress(trio.WouldBlock):
                self._queue_in.send_nowait(_line({"id": next(self._numbers), **request}))

    # the process

    @contextlib.asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        process = await self._start()
        with collapsing():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._supervise, process)
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()

    async def _supervise(self, process: trio.Process) -> None:
        pause = _RESTART_FIRST_S
        while True:
            try:
                await self._serve(process)
            finally:
                self._lost()
                await _end(process)
            self.restarts += 1
            log.warning("the bulk process ended; starting it again", code=process.returncode)
            while True:
                await trio.sleep(pause)
                pause = min(pause * 2, _RESTART_MAX_S)
                try:
                    process = await self._start()
                    break
                except GdfError as error:
                    log.warning("the bulk process did not start", error=str(error))

    async def _start(self) -> trio.Process:
        """Start a process and wait until it listens."""
        paths = [
            str(Path(gdf_market.__file__).parents[1]),
            *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        ]
        process: trio.Process = await trio.lowlevel.open_process(
            # -P: what lies in the current folder must not be imported
            [sys.executable, "-P", "-m", "gdf_market.node.bulk_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            with trio.fail_after(_START_S):
                await self._introduce(process)
        except BaseException as error:
            await _end(process, kill=True)
            if isinstance(error, trio.TooSlowError):
                raise LocalError(f"the bulk process did not start in {_START_S:.0f} s") from None
            raise
        return process

    async def _introduce(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        start = {
            "id": next(self._numbers),
            "op": "start",
            "seed": self._seed.hex(),
            "store": str(self._store),
            "network": self._network,
            "host": self._host,
            "port": self._port,
            "announce": self._announce,
            "quota_bytes": self._quota_bytes,
            "ranked": self._ranked,
        }
        try:
            await process.stdin.send_all(_line(start))
            self._replies = _read_lines(process.stdout)
            reply = await anext(self._replies)
        except (trio.BrokenResourceError, StopAsyncIteration):
            raise LocalError(f"the bulk process ended at once with code {await process.wait()}") from None
        if "error" in reply:
            raise _error_of(reply)
        self.peer, self.addresses = reply["ok"]["peer"], tuple(reply["ok"]["addresses"])
        self._port = reply["ok"]["port"]  # a restart takes the same one
        while True:  # what was queued for an earlier process belongs to calls that failed
            try:
                self._queue_out.receive_nowait()
            except trio.WouldBlock:
                break
        self.process = process
        self._ready.set()
        for account, address in self._sources.items():
            self._tell(_add_source(account, address))
        self._tell_limits()

    async def _serve(self, process: trio.Process) -> None:
        """Pass requests and replies until the process ends."""
        assert process.stdin is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_requests, process.stdin)
            async for reply in self._replies:
                call = self._calls.get(reply["id"])
                if call is not None:
                    call.value = reply.get("ok")
                    call.error = _error_of(reply) if "error" in reply else None
                    call.done.set()
            nursery.cancel_scope.cancel()

    async def _pass_requests(self, stdin: trio.abc.SendStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for line in self._queue_out:
                await stdin.send_all(line)

    def _lost(self) -> None:
        self._ready = trio.Event()
        for call in self._calls.values():
            call.error = _EndedError("the bulk process ended")
            call.done.set()


def _add_source(account: str, address: BulkAddress) -> dict[str, Any]:
    return {"op": "add_source", "account": account, "peer": address.peer, "addresses": list(address.addresses)}


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def _read_lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[dict[str, Any]]:
    buffer = bytearray()
    while True:
        data = await stream.receive_some(65_536)
        if not data:
            return
        buffer += data
        *complete, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        assert len(buffer) <= _MAX_LINE_BYTES
        for line in complete:
            yield json.loads(line)


def _error_of(reply: dict[str, Any]) -> GdfError:
    kind, text = reply["kind"], reply["error"]
    return _KINDS.get(kind, PeerError if kind.startswith("peer-") else LocalError)(text)


async def _end(process: trio.Process, *, kill: bool = False) -> None:
    """Close the process's stdin, which ends it; kill it if it does not end soon."""
    with trio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()
        if not kill:
            with trio.move_on_after(_STOP_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdout is not None:
            await process.stdout.aclose()
