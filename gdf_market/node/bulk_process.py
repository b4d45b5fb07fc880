"""The bulk process: `python -m gdf_market.node.bulk_process`, a libp2p host that only moves blobs.

One JSON request per line on stdin; ``fetch``, ``holders`` and ``stats`` get one JSON
reply per line on stdout, matched by ``id``.  The first request is ``start``.  When
stdin closes, whatever happened to the node, the process ends: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog
import trio

from gdf_market.blobs.store import BlobStore
from gdf_market.errors import GdfError, LocalError, PeerError, StorageError, UnreachableError, UserError
from gdf_market.node.blob_client import BlobClient
from gdf_market.node.blob_server import PROTOCOL, BlobServer
from gdf_market.node.collapse import collapsing
from gdf_market.node.counters import Counters
from gdf_market.node.frames import OtherNetworkError
from gdf_market.node.p2p import Host, open_host

MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 65_536


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of stdin; file descriptors, because a thread that waits in a Python stream blocks the exit."""
    buffer = bytearray()
    while data := await trio.to_thread.run_sync(os.read, 0, _READ_BYTES, abandon_on_cancel=True):  # type: ignore[call-arg]  # stubs older than trio
        buffer += data
        *complete, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        for line in complete:
            yield line
        if len(buffer) > MAX_LINE_BYTES:
            return


def _write(line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the node was killed: stdin has ended, too, and so will this process
        while line:
            line = line[os.write(1, line) :]


class _Service:
    def __init__(self, host: Host, client: BlobClient, server: BlobServer, nursery: trio.Nursery) -> None:
        self._host, self._client, self._server, self._nursery = host, client, server, nursery
        self._writing = trio.Lock()
        self._calls: dict[int, trio.CancelScope] = {}
        self._members: dict[str, str] = {}  # bulk hosts of linked accounts, by account
        self._relays = False
        self._candidates: list[tuple[str, list[str]]] = []
        self._relayed = host.use_circuits(lambda peer: self._relays and peer in self._members.values(), server.blame)
        self._seen: list[str] = []
        self._relayed.want(lambda: self._candidates)
        self._relayed.seen = lambda: self._seen
        nursery.start_soon(self._relayed.run)

    async def reply(self, message: dict[str, Any]) -> None:
        """Write one reply."""
        async with self._writing:
            await trio.to_thread.run_sync(_write, json.dumps(message).encode() + b"\n")

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Carry out requests until ``stop`` or the end of stdin."""
        async for line in lines:
            request = json.loads(line)
            match request["op"]:
                case "stop":
                    return
                case "cancel":
                    scope = self._calls.get(request["target"])
                    if scope is not None:
                        scope.cancel()
                # these three take effect in order with the requests around them, and get no reply
                case "add_source":
                    self._members[request["account"]] = request["peer"]
                    self._client.add_source(request["account"], request["peer"], request["addresses"])
                case "remove_source":
                    self._members.pop(request["account"], None)
                    self._client.remove_source(request["account"])
                case "limits":
                    self._server.limit_upload(request["upload_bytes_per_s"])
                    self._client.limit_download(request["download_bytes_per_s"])
                case _:
                    self._nursery.start_soon(self._call, request)

    async def _call(self, request: dict[str, Any]) -> None:
        number = request["id"]
        with trio.CancelScope() as scope:
            self._calls[number] = scope
            try:
                answer = {"id": number, "ok": await self._do(request)}
            except Exception as error:  # goes to the node, which raises it again
                answer = failure(number, error)
            finally:
                del self._calls[number]
            await self.reply(answer)

    async def _do(self, request: dict[str, Any]) -> Any:
        match request["op"]:
            case "fetch":
                return str(await self._client.fetch(request["root"], request["max_bytes"]))
            case "holders":
                return await self._client.holders(request["root"])
            case "stats":
                return {
                    "counters": self._host.counters.snapshot(),
                    "sent_bytes": self._server.sent_bytes,
                    "received_bytes": self._client.meter.total_bytes,
                    "sources": self._client.measured(),
                }
            case "relays":
                wanted = [(peer, addresses) for peer, addresses in request["candidates"]]
                self._relays, changed = request["relay"], wanted != self._candidates
                self._candidates, self._seen = wanted, request["seen"]
                if changed:
                    self._relayed.look()
                return list(self._relayed.addresses)
            case other:
                raise LocalError(f"unknown operation {other!r}")


def failure(number: int, error: Exception) -> dict[str, Any]:
    """Return the reply that tells ``error``; bulk.py makes the same class of it again."""
    if isinstance(error, PeerError):
        kind = f"peer-{error.reason}"
    else:
        names = {UnreachableError: "unreachable", StorageError: "storage", UserError: "user"}
        kind = next((name for cls, name in names.items() if isinstance(error, cls)), "local")
    text = str(error) if isinstance(error, GdfError) else repr(error)
    return {"id": number, "error": text, "kind": kind}


def _prepare(host: Host, server: BlobServer) -> None:
    """Serve blobs; who breaks the protocol or floods is refused for a while, and its address answers for it."""

    async def close(peer: str) -> None:
        with contextlib.suppress(Exception):  # the library raises many kinds for a connection that is over
            await host.close_peer(peer)

    def blame(peer: str, error: PeerError) -> None:
        server.blame(peer, error)
        if not isinstance(error, OtherNetworkError):
            for conn in host.connections(peer)[:1]:
                host.blame_address(conn.muxed_conn)
                trio.lowlevel.spawn_system_task(close, peer)

    def flooded(peer: str, error: PeerError) -> None:
        host.counters.add(error.reason, peer=peer, error=str(error))
        blame(peer, error)

    host.handle(PROTOCOL, server.handle, blame)
    host.on_flood(flooded)


async def _main() -> None:
    lines = _lines()
    first = await anext(lines, None)
    if first is None:
        return  # the node was killed before it asked for anything
    start = json.loads(first)
    counters = Counters()
    try:
        with collapsing():
            store = BlobStore(Path(start["store"]), quota_bytes=start["quota_bytes"] or None)
            server = BlobServer(store, start["network"], counters)
            async with (
                open_host(
                    bytes.fromhex(start["seed"]),
                    (start["host"], start["port"]),
                    announce=start["announce"],
                    counters=counters,
                    prepare=lambda host: _prepare(host, server),
                ) as host,
                trio.open_nursery() as nursery,
            ):
                client = BlobClient(host, store, start["network"], ranked=start["ranked"])
                service = _Service(host, client, server, nursery)
                started = {"peer": host.account, "addresses": list(host.addresses), "port": host.port}
                await service.reply({"id": start["id"], "ok": started})
                await service.serve(lines)
                nursery.cancel_scope.cancel()
    except GdfError as error:
        _write(json.dumps(failure(start["id"], error)).encode() + b"\n")


def main() -> None:
    """Run until stdin closes."""
    sys.stdout = sys.stderr  # stdout carries replies only
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the node decides when to end
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    trio.run(_main)


if __name__ == "__main__":
    main()
