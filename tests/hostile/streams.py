"""Attacks on the muxer: streams without end, streams born dead, frames of nothing, senders without a window."""

from __future__ import annotations

from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import FLAG_RST, FLAG_SYN, TYPE_DATA, TYPE_PING, TYPE_WINDOW_UPDATE

from gdf_market.node import limits
from gdf_market.node.blob_server import PROTOCOL as BLOBS
from tests.hostile.kit import Ground, Stranger

BURST = 50  # frames in one write
FIRST = 10_001  # stream ids of the attack, beyond those of the library


async def _flood(ground: Ground, *frames: tuple[int, int, int], count: int = 3) -> None:
    """Send these (kind, flags, length) for ever, each burst on new streams; nobody waits for answers."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.connect()
            stream = FIRST
            while one.is_connected():
                burst: list[tuple[int, int, int, int]] = []
                for _ in range(BURST):
                    stream += 2
                    burst += [(kind, flags, stream, length) for kind, flags, length in frames]
                await one.muxer_frames(*burst)
                ground.tally.add("frames", len(burst))
                await trio.sleep(0.01)
            ground.tally.cut()

    await ground.together(act, count)


async def flood(ground: Ground) -> None:
    """Streams that are opened and never used."""
    await _flood(ground, (TYPE_WINDOW_UPDATE, FLAG_SYN, 0))


async def churn(ground: Ground) -> None:
    """Streams that are reset as they are opened."""
    await _flood(ground, (TYPE_WINDOW_UPDATE, FLAG_SYN | FLAG_RST, 0))


async def nothing(ground: Ground) -> None:
    """Pings and window updates: each frame is twelve bytes and needs an answer or a look-up."""
    await _flood(ground, (TYPE_PING, FLAG_SYN, 7), (TYPE_WINDOW_UPDATE, 0, 1))


async def giants(ground: Ground) -> None:
    """Data frames of 15 MiB that are announced and never sent."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.connect()
            await one.muxer_frames((TYPE_DATA, FLAG_SYN, FIRST, 15 << 20))
            ground.tally.add("frames")
            await one.until_gone()
            ground.tally.cut()

    await ground.together(act, 8)


async def without_window(ground: Ground) -> None:
    """Data on streams whose handler has other things to do, whatever window it gave."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.link()
            bulk = await one.bulk_address()
            await one.connect(bulk)
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(_push, ground, one, await one.stream(BLOBS))

    await ground.together(act, 8)


async def _push(ground: Ground, one: Stranger, stream: Any) -> None:
    request = (60_000).to_bytes(4, "big")  # within a frame that is too large anyway, or in a body that nobody wants
    while one.is_connected():
        stream.muxed_stream.send_window = 1 << 30
        await one.write(stream, request + bytes(limits.PIECE_BYTES - 4))
        ground.tally.add("bytes", limits.PIECE_BYTES)
    ground.tally.cut()
