"""Attacks on the ledger's frames: votes and entries that are wrong, requests without end, claims of great height."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.messages import Transfer, seal
from gdf_market.node.frames import DATA, frame
from gdf_market.statements import Vote
from ledger.wire import LinksRequest, SnapshotRequest, Status, SyncRequest, batches
from tests.hostile.kit import Ground, Stranger

HIGH = 2**53 - 1


async def _send(
    ground: Ground,
    make: Callable[[Stranger], bytes],
    *,
    at_once: int,
    pause_s: float,
    reads: bool = True,
    peers: int = 4,
) -> None:
    async def act() -> None:
        async with ground.stranger() as one:
            stream = await one.link(reads=reads)
            while one.is_connected():
                await one.write(stream, b"".join(frame(DATA, make(one)) for _ in range(at_once)))
                ground.tally.add("frames", at_once)
                await trio.sleep(pause_s)
            ground.tally.cut()

    await ground.together(act, peers)


async def votes(ground: Ground) -> None:
    """Votes of the future, of other epochs and of nobody, in validators' names with signatures that are none."""

    def make(one: Stranger) -> bytes:
        draw = ground.random
        return encode(
            Vote(
                epoch=draw.choice((0, 1, 2, HIGH)),
                kind=draw.choice(("notar", "skip", "final")),
                slot=draw.choice((draw.randrange(1_000), HIGH)),
                hash=draw.choice(("", draw.randbytes(32).hex())),
                voter=draw.choice((one.target.account, one.key.account)),
                sig=draw.randbytes(64).hex(),
            )
        )

    await _send(ground, make, at_once=20, pause_s=0.03)


async def entries(ground: Ground) -> None:
    """Transfers of accounts that have nothing, each well signed: they cost the ledger a signature check."""

    def make(one: Stranger) -> bytes:
        key = Identity(ground.random.randbytes(32))
        expires_ms = time.time_ns() // 1_000_000 + 600_000
        raws = [
            seal(
                key,
                one.target.network,
                Transfer(author=key.account, nonce=nonce, expires_ms=expires_ms, to=one.key.account, amount=1, memo=""),
            ).raw
            for nonce in range(20)
        ]
        return batches(raws)[0]

    await _send(ground, make, at_once=1, pause_s=0.1)


async def bad_signatures(ground: Ground) -> None:
    """Entries whose signature is of something else: the sender is thrown out and comes back under another name."""

    def make(one: Stranger) -> bytes:
        expires_ms = time.time_ns() // 1_000_000 + 600_000
        body = Transfer(
            author=one.key.account, nonce=1, expires_ms=expires_ms, to=one.target.account, amount=1, memo=""
        )
        raw = seal(one.key, one.target.network, body).raw
        return batches([raw[:-130] + ground.random.randbytes(64).hex().encode() + raw[-2:]])[0]

    await _send(ground, make, at_once=5, pause_s=0.05)


def _request(ground: Ground) -> bytes:
    kind = ground.random.randrange(4)
    if kind == 0:
        return encode(SnapshotRequest(height=ground.random.choice((0, HIGH)), key="", part=0))
    if kind == 1:
        return encode(LinksRequest(epoch=ground.random.choice((0, HIGH))))
    return encode(SyncRequest(height=1))


async def requests(ground: Ground) -> None:
    """Ranges, links and snapshots, asked for as fast as frames are taken."""
    await _send(ground, lambda one: _request(ground), at_once=20, pause_s=0.05)


async def slow_readers(ground: Ground) -> None:
    """The same by many that read nothing of the answers."""
    await _send(ground, lambda one: _request(ground), at_once=20, pause_s=0.2, reads=False, peers=20)


async def heights(ground: Ground) -> None:
    """Statuses that claim blocks which nobody has, from ever new peers."""

    def make(one: Stranger) -> bytes:
        height = ground.random.randrange(10**6, 10**12)
        return encode(
            Status(
                network=one.target.network, epoch=height, height=height, slot=height, oldest=1, snapshot=height,
                frontier=height, notarized=(), skipped=(), blocks=(), votes=(),
            )
        )  # fmt: skip

    await _send(ground, make, at_once=10, pause_s=0.1, peers=8)
