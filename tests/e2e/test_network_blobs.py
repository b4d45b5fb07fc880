"""Blobs between bulk hosts: bad sources, interrupted downloads, slow readers, and the process itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import trio
from libp2p.stream_muxer.yamux import yamux
from net_helpers import NETWORK, stranger, until

from gdf_market.blobs.disk import Disk
from gdf_market.blobs.manifest import CHUNK_BYTES, ContentMismatchError
from gdf_market.blobs.pins import Pins
from gdf_market.blobs.store import BlobStore
from gdf_market.codec import decode, encode
from gdf_market.errors import OversizedError, StorageError, UnreachableError, UserError
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.blob_client import BlobClient
from gdf_market.node.blob_server import ABSENT, FOUND, MAX_ANSWER_BYTES, PROTOCOL, REQUEST, BlobRequest, BlobServer
from gdf_market.node.bulk import BulkHost
from gdf_market.node.frames import BulkAddress, StreamEndedError, StreamReader, frame, write
from gdf_market.node.p2p import Host, open_host

pytestmark = pytest.mark.e2e

DATA = b"".join(bytes([number]) * CHUNK_BYTES for number in range(6)) + b"the rest"
ABSENT_ROOT = "00" * 32
Answer = Callable[[Any, bytes, int], Awaitable[bytes | None]]  # (request, honest payload, how many so far) -> payload


@asynccontextmanager
async def honest(folder: Path) -> AsyncIterator[tuple[Host, BlobServer, str]]:
    """Serve DATA from a store under ``folder``; yields (host, server, root)."""
    store = BlobStore(folder)
    root = store.put_bytes(DATA)
    box: list[BlobServer] = []

    def prepare(host: Host) -> None:
        box.append(BlobServer(store, NETWORK, host.counters))
        host.handle(PROTOCOL, box[0].handle, box[0].blame)

    async with open_host(None, ("127.0.0.1", 0), prepare=prepare) as host:
        yield host, box[0], root


@asynccontextmanager
async def crooked(folder: Path, answer: Answer) -> AsyncIterator[Host]:
    """Serve DATA, each payload as ``answer`` changes it (None: no answer)."""
    store = BlobStore(folder)
    store.put_bytes(DATA)
    answered = 0

    async def handle(stream: Any) -> None:
        nonlocal answered
        reader = StreamReader(stream, limits.Bucket(1e9, 1e9))
        while True:
            _, raw = await reader.frame()
            request = decode(raw, BlobRequest)
            if request.op == "has":
                await write(stream, frame(FOUND, b""))
                continue
            manifest = store.manifest(request.root)
            payload = encode(manifest) if request.op == "manifest" else store.read_chunk(request.root, request.index)
            changed = await answer(request, payload, answered)
            answered += 1
            if changed is None:
                await trio.sleep_forever()
            await write(stream, frame(FOUND, changed, max_payload=MAX_ANSWER_BYTES))

    async with open_host(
        None, ("127.0.0.1", 0), prepare=lambda host: host.handle(PROTOCOL, handle, lambda peer, error: None)
    ) as host:
        yield host


@asynccontextmanager
async def client(folder: Path, **sources: Host) -> AsyncIterator[BlobClient]:
    """Run a downloading host that knows ``sources``."""
    async with open_host(None, ("127.0.0.1", 0)) as host:
        one = BlobClient(host, BlobStore(folder), NETWORK)
        for name, source in sources.items():
            one.add_source(name, source.account, source.addresses)
        yield one


async def test_a_blob_comes_from_several_sources_and_absent_ones_are_told(tmp_path: Path) -> None:
    async with (
        honest(tmp_path / "a") as (a, server_a, root),
        honest(tmp_path / "b") as (b, server_b, _),
        client(tmp_path / "c", a=a, b=b) as one,
    ):
        assert await one.holders(root) == 2
        assert (await one.fetch(root, len(DATA))).read_bytes() == DATA
        assert await one.fetch(root, len(DATA)) == one._store.path(root)
        assert len(DATA) <= server_a.sent_bytes + server_b.sent_bytes <= len(DATA) + 3 * CHUNK_BYTES
        assert await one.holders(ABSENT_ROOT) == 0
        with pytest.raises(UnreachableError, match="none of 2 connected peers holds blob 0000"):
            await one.fetch(ABSENT_ROOT, 1_000)


async def test_callers_that_want_the_same_blob_at_once_share_one_download(tmp_path: Path) -> None:
    """Hidden twins have one update between them: both units' updates are fetched in the same moment."""
    async with honest(tmp_path / "a") as (source, server, root), client(tmp_path / "c", a=source) as fetcher:
        paths: list[Path] = []

        async def fetch() -> None:
            paths.append(await fetcher.fetch(root, len(DATA)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(fetch)
        async with trio.open_nursery() as nursery:  # and once more, now that it is held
            for _ in range(5):
                nursery.start_soon(fetch)
        assert len(paths) == 10
        assert len(set(paths)) == 1
        assert paths[0].read_bytes() == DATA
        assert server.sent_bytes < 2 * len(DATA)


async def test_a_blob_larger_than_wanted_is_refused_before_its_first_byte(tmp_path: Path) -> None:
    async with honest(tmp_path / "a") as (a, server, root), client(tmp_path / "c", a=a) as one:
        with pytest.raises(OversizedError):
            await one.fetch(root, len(DATA) - 1)
        assert server.sent_bytes < 1_000
        await one.fetch(root, len(DATA))
        with pytest.raises(OversizedError):
            await one.fetch(root, len(DATA) - 1)


async def _altered(request: Any, payload: bytes, number: int) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1]) if request.op == "chunk" else payload


async def _truncated(request: Any, payload: bytes, number: int) -> bytes:
    return payload[: len(payload) // 2] if request.op == "chunk" else payload


async def _silent(request: Any, payload: bytes, number: int) -> bytes | None:
    return None if request.op == "chunk" else payload


@pytest.mark.parametrize("answer", [_altered, _truncated], ids=["altered", "truncated"])
async def test_a_source_of_wrong_bytes_is_banned_and_the_rest_comes_from_another(
    tmp_path: Path, answer: Answer
) -> None:
    async with crooked(tmp_path / "a", answer) as bad, client(tmp_path / "c", bad=bad) as one:
        root = BlobStore(tmp_path / "a").roots()[0]
        with pytest.raises(ContentMismatchError, match="every source"):
            await one.fetch(root, len(DATA))
        assert one._host.counters["content"] >= limits.BAD_CHUNKS
        assert one._host.counters["source-banned"] >= 1
        async with honest(tmp_path / "b") as (good, _, _root):
            one.add_source("good", good.account, good.addresses)
            assert (await one.fetch(root, len(DATA))).read_bytes() == DATA


async def test_a_source_that_lies_about_the_manifest_is_passed_over(tmp_path: Path) -> None:
    async def lie(request: Any, payload: bytes, number: int) -> bytes:
        return payload.replace(b'"size":', b'"size":1')

    async with (
        crooked(tmp_path / "a", lie) as bad,
        honest(tmp_path / "b") as (good, _, root),
        client(tmp_path / "c", bad=bad) as one,
    ):
        with pytest.raises(UnreachableError):
            await one.fetch(root, len(DATA))
        one.add_source("good", good.account, good.addresses)
        assert (await one.fetch(root, len(DATA))).read_bytes() == DATA


async def test_a_stalling_source_is_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENDGAME_S", 0.3)
    async with (
        crooked(tmp_path / "a", _silent) as stalls,
        honest(tmp_path / "b") as (good, _, root),
        client(tmp_path / "c", stalls=stalls, good=good) as one,
    ):
        with trio.fail_after(limits.CHUNK_S / 2):
            assert (await one.fetch(root, len(DATA))).read_bytes() == DATA


async def test_without_progress_the_download_ends_and_what_arrived_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NO_PROGRESS_S", 1.0)

    async def three_then_nothing(request: Any, payload: bytes, number: int) -> bytes | None:
        return payload if request.op == "manifest" or number < 4 else None

    async with (
        crooked(tmp_path / "a", three_then_nothing) as stalls,
        honest(tmp_path / "b") as (good, server, root),
        client(tmp_path / "c", stalls=stalls) as one,
    ):
        with pytest.raises(UnreachableError, match="made no progress"):
            await one.fetch(root, len(DATA))
        one.remove_source("stalls")
        one.add_source("good", good.account, good.addresses)
        assert (await one.fetch(root, len(DATA))).read_bytes() == DATA
        assert server.sent_bytes <= len(DATA) - 3 * CHUNK_BYTES, "only what was missing is asked for"


async def test_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def write(self, file: BinaryIO, data: bytes) -> None:
            if len(data) == CHUNK_BYTES:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(file, data)

    async with honest(tmp_path / "a") as (a, _, root), client(tmp_path / "c", a=a) as one:
        one._store = BlobStore(tmp_path / "c", disk=FullDisk())
        with pytest.raises(StorageError, match="disk is full"):
            await one.fetch(root, len(DATA))


async def test_other_networks_and_broken_requests_get_nothing(tmp_path: Path) -> None:
    async with honest(tmp_path / "a") as (host, server, root):
        requests = [
            encode(BlobRequest(op="has", root=root, network="cd" * 32)),
            b"{}",
            encode(BlobRequest(op="has", root=root, network=NETWORK))[:-1],
        ]
        for number, request in enumerate(requests):
            async with stranger(60 + number) as asker:
                await asker.connect(host.addresses[0])
                stream = await asker.stream(PROTOCOL)
                await stream.write(frame(REQUEST, request))
                reader = StreamReader(stream, limits.Bucket(1e9, 1e9))
                with pytest.raises(StreamEndedError):
                    await reader.frame()
        assert server.sent_bytes == 0
        assert host.counters["network"] == 1
        assert host.counters["malformed"] == 2


async def test_an_absent_chunk_is_told_as_absent(tmp_path: Path) -> None:
    async with honest(tmp_path / "a") as (host, _, root), stranger() as asker:
        await asker.connect(host.addresses[0])
        stream = await asker.stream(PROTOCOL)
        await stream.write(frame(REQUEST, encode(BlobRequest(op="chunk", root=root, index=99, network=NETWORK))))
        reader = StreamReader(stream, limits.Bucket(1e9, 1e9))
        assert await reader.frame() == (ABSENT, b"")


async def test_readers_that_stop_reading_do_not_keep_the_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SERVING_SLOTS", 2)
    monkeypatch.setattr(limits, "CHUNK_S", 1.0)
    monkeypatch.setattr(yamux, "MAX_WINDOW_SIZE", yamux.DEFAULT_WINDOW_SIZE)  # else it may take a chunk unread
    async with honest(tmp_path / "a") as (host, server, root), stranger() as greedy:
        await greedy.connect(host.addresses[0])
        request = frame(REQUEST, encode(BlobRequest(op="chunk", root=root, network=NETWORK)))
        for _ in range(3):
            stream = await greedy.stream(PROTOCOL)
            await stream.write(request)
        await until(lambda: server._slots.borrowed_tokens == 2)
        async with client(tmp_path / "c", a=host) as one:
            with trio.fail_after(25):
                assert (await one.fetch(root, len(DATA))).read_bytes() == DATA


async def test_the_upload_limit_holds(tmp_path: Path) -> None:
    async with honest(tmp_path / "a") as (host, server, root), client(tmp_path / "c", a=host) as one:
        server.limit_upload(4 * CHUNK_BYTES)
        began = trio.current_time()
        await one.fetch(root, len(DATA))
        assert trio.current_time() - began > (len(DATA) / CHUNK_BYTES - 3) / 4 / 2


async def test_the_download_limit_holds_for_all_sources_together(tmp_path: Path) -> None:
    async with (
        honest(tmp_path / "a") as (a, _, root),
        honest(tmp_path / "b") as (b, _, _),
        client(tmp_path / "c", a=a, b=b) as one,
    ):
        one.limit_download(4 * CHUNK_BYTES)
        began = trio.current_time()
        await one.fetch(root, len(DATA))
        saved_s = limits.RATE_BURST_S
        assert trio.current_time() - began > len(DATA) / CHUNK_BYTES / 4 - saved_s - 0.1
        assert one.meter.total_bytes > len(DATA)


async def test_a_source_that_was_slow_is_hardly_asked_beside_a_fast_one(tmp_path: Path) -> None:
    async with (
        honest(tmp_path / "a") as (a, server_a, root),
        honest(tmp_path / "b") as (b, server_b, _),
        client(tmp_path / "c", a=a, b=b) as one,
    ):
        server_b.limit_upload(100_000)
        await one.fetch(root, len(DATA))
        one._store.delete(root)
        before = server_a.sent_bytes
        assert (await one.fetch(root, len(DATA))).read_bytes() == DATA
        assert server_a.sent_bytes - before >= len(DATA) - CHUNK_BYTES
        assert server_b.sent_bytes <= 2 * CHUNK_BYTES, "one chunk to see how fast it is"
        measured = {entry["account"]: entry for entry in one.measured()}
        assert measured["a"]["rate_bytes_per_s"] > 1_000_000
        assert measured["a"]["rtt_ms"] is not None


# The process


async def test_a_full_store_makes_room_for_a_download_and_says_so_if_it_cannot(tmp_path: Path) -> None:
    keys = [Identity(bytes([number]) * 32) for number in (1, 2)]
    source = BlobStore(tmp_path / "a")
    roots = [source.put_bytes(bytes([number]) * 600_000) for number in (1, 2, 3)]
    store = BlobStore(tmp_path / "b")
    store.room.set_pins(Pins())
    async with (
        BulkHost(keys[0], NETWORK, tmp_path / "a") as a,
        BulkHost(keys[1], NETWORK, tmp_path / "b", quota_bytes=1_500_000) as b,
    ):
        b.add_source(keys[0].account, _source(a))
        for root in roots[:2]:
            path = await b.fetch(root, max_bytes=600_000)
            os.utime(path, (1_000, 1_000))  # used long ago
        store.room.set_pins(Pins(frozenset(roots[:2])))
        with pytest.raises(StorageError, match="exceed its quota of 1500000"):
            await b.fetch(roots[2], max_bytes=600_000)
        assert store.roots() == sorted(roots[:2])
        store.room.set_pins(Pins(frozenset(roots[1:2])))
        await b.fetch(roots[2], max_bytes=600_000)
        assert store.roots() == sorted(roots[1:])


def _source(bulk: BulkHost) -> BulkAddress:
    return BulkAddress(bulk.peer, bulk.addresses, 2**52)


async def test_a_killed_process_comes_back_with_its_key_and_port_and_goes_on(tmp_path: Path) -> None:
    keys = [Identity(bytes([number]) * 32) for number in (1, 2)]
    root = BlobStore(tmp_path / "a").put_bytes(DATA)
    async with (
        BulkHost(keys[0], NETWORK, tmp_path / "a") as a,
        BulkHost(keys[1], NETWORK, tmp_path / "b") as b,
        trio.open_nursery() as nursery,
    ):
        before = (b.peer, b.addresses)
        b.add_source(keys[0].account, _source(a))
        assert await b.holders(root) == 1
        a.limit_upload(2 * CHUNK_BYTES)
        got: list[Path] = []

        async def fetch() -> None:
            got.append(await b.fetch(root, max_bytes=len(DATA)))

        nursery.start_soon(fetch)
        partial = tmp_path / "b" / "partial" / f"{root}.have"
        await until(lambda: partial.exists() and sum(partial.read_bytes()) >= 1)
        assert b.process is not None
        b.process.kill()
        await until(lambda: bool(got), 60)
        assert got[0].read_bytes() == DATA
        assert b.restarts == 1
        assert (b.peer, b.addresses) == before
        assert len(DATA) <= (await a.stats())["sent_bytes"] < 2 * len(DATA)
        with pytest.raises(UnreachableError):
            await b.fetch(ABSENT_ROOT, max_bytes=1_000)


async def test_a_taken_port_is_told_by_the_process_too(tmp_path: Path) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    with pytest.raises(UserError, match=f"port {port}"):
        async with BulkHost(Identity(bytes([1]) * 32), NETWORK, tmp_path, port=port):
            pass
    await listener.aclose()


async def test_the_process_ends_when_the_node_vanishes(tmp_path: Path) -> None:
    """A node killed with -9 runs no cleanup; the closed pipe is what the process notices."""
    script = (
        "import sys, trio\n"
        "from pathlib import Path\n"
        "from gdf_market.identity import Identity\n"
        "from gdf_market.node.bulk import BulkHost\n"
        "async def main():\n"
        f"    async with BulkHost(Identity(bytes(range(32))), {NETWORK!r}, Path(sys.argv[1])) as bulk:\n"
        "        print(bulk.process.pid, bulk.addresses[0], flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    node = await trio.lowlevel.open_process(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert node.stdout is not None
    with trio.fail_after(60):
        line = b""
        while b"\n" not in line:
            line += await node.stdout.receive_some()
    port = int(line.split()[1].split(b"/")[4])
    node.kill()
    await node.wait()

    async def gone() -> bool:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return True
        await stream.aclose()
        return False

    with trio.fail_after(20):
        while not await gone():  # noqa: ASYNC110  # another process's state
            await trio.sleep(0.05)
    await node.stdout.aclose()


async def test_who_asks_and_does_not_read_is_refused_after_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLOW_BURST", 1.0)
    monkeypatch.setattr(yamux, "MAX_WINDOW_SIZE", yamux.DEFAULT_WINDOW_SIZE)
    async with honest(tmp_path / "a") as (source, server, root), stranger() as attacker:
        ask = frame(REQUEST, encode(BlobRequest(op="chunk", root=root, index=0, network=NETWORK)))
        await attacker.connect(source.addresses[0])
        for _ in range(2):
            stream = await attacker.stream(PROTOCOL)
            await stream.write(ask * 3)
        await until(lambda: source.counters["slow"] >= 1, 60)
        assert source.counters["slow-reader"] >= 2
        assert server._unwelcome
        async with client(tmp_path / "c", a=source) as one:
            assert (await one.fetch(root, len(DATA))).read_bytes() == DATA
