"""Attacks on blobs: readers that do not read, requests without end, and a source that serves poison."""

from __future__ import annotations

import time
from typing import Any

import trio

from gdf_market.blobs.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES
from gdf_market.codec import encode
from gdf_market.node import limits
from gdf_market.node.blob_server import FOUND, MAX_ANSWER_BYTES, PROTOCOL, REQUEST, BlobRequest
from gdf_market.node.frames import BulkAddress, StreamReader, frame, sign_voucher
from tests.hostile.kit import EVERYWHERE, Ground, Stranger

POISON_MS = 600_000


def _ask(one: Stranger, op: str, root: str, index: int = 0) -> bytes:
    return frame(REQUEST, encode(BlobRequest(op=op, root=root, index=index, network=one.target.network)))


async def slow_readers(ground: Ground) -> None:
    """Ask for the largest chunks on every stream and read nothing."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.link()
            await one.connect(await one.bulk_address())
            streams = [await one.stream(PROTOCOL) for _ in range(20)]
            while one.is_connected():
                for stream in streams:
                    await one.write(stream, _ask(one, "chunk", ground.target.root) * 5)
                    ground.tally.add("requests", 5)
                await trio.sleep(1)
            ground.tally.cut()

    await ground.together(act, 10)


async def flood(ground: Ground) -> None:
    """Requests for what is there and what is not, as fast as they are taken, and some that are none."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.link()
            await one.connect(await one.bulk_address())
            stream = await one.stream(PROTOCOL)
            while one.is_connected():
                draw = ground.random
                op = draw.choice(("has", "manifest", "chunk"))
                root = draw.choice((ground.target.root, draw.randbytes(32).hex()))
                asked = _ask(one, op, root, draw.choice((0, 1, 2**53 - 1)))
                if draw.random() < 0.001:
                    asked = (60_000).to_bytes(4, "big")
                await one.write(stream, asked)
                ground.tally.add("requests")
                await stream.read(65_536)
            ground.tally.cut()

    await ground.together(act, 8)


async def poison(ground: Ground) -> None:
    """Vouched-for sources that have everything: manifests as large as may be, and chunks of something else."""

    async def act() -> None:
        async with ground.stranger() as one:

            async def serve(stream: Any) -> None:
                reader = StreamReader(stream, limits.Bucket(EVERYWHERE, EVERYWHERE))
                while True:
                    await reader.frame()
                    size = ground.random.choice((10, CHUNK_BYTES, MAX_MANIFEST_BYTES))
                    answer = frame(FOUND, ground.random.randbytes(1) * size, max_payload=MAX_ANSWER_BYTES)
                    for start in range(0, len(answer), limits.PIECE_BYTES):
                        await stream.write(answer[start : start + limits.PIECE_BYTES])
                    ground.tally.add("poisoned answers")

            one.host.set_stream_handler(PROTOCOL, serve)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                port = await _listen(one, nursery)
                where = BulkAddress(
                    one.key.account, (f"/ip4/127.0.0.1/tcp/{port}",), time.time_ns() // 1_000_000 + POISON_MS
                )
                await one.link(bulk=sign_voucher(one.key, one.target.network, where))
                ground.tally.add("sources")
                await one.until_gone()
                ground.tally.cut()
                nursery.cancel_scope.cancel()

    await ground.together(act, 8)


async def _listen(one: Stranger, nursery: trio.Nursery) -> int:
    from multiaddr import Multiaddr

    await one._network.listen(Multiaddr("/ip4/127.0.0.1/tcp/0"))
    return int(str(one.host.get_addrs()[0]).split("/")[4])
