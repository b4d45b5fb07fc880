"""Attacks on the orders' topic: malformed, forged, replayed and repeated messages, control without end, spam."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.utils import encode_varint_prefixed

from gdf_market.identity import Identity
from gdf_market.messages import Entry, JobPost, Recipe, seal
from tests.hostile.kit import Ground, Stranger, Target

MESHSUB = "/meshsub/1.1.0"
PREFIX = b"libp2p-pubsub:"  # of what a message's signature covers
Message = rpc_pb2.Message


def packed(*messages: Any, **fields: Any) -> bytes:
    return encode_varint_prefixed(rpc_pb2.RPC(publish=messages, **fields).SerializeToString())


def signed(key: Identity, topic: str, data: bytes, number: int) -> Any:
    """Return a message that is right in all but what its data may be."""
    one = Message(
        data=data, topicIDs=[topic], from_id=ID.from_string(key.account).to_bytes(), seqno=number.to_bytes(8, "big")
    )
    one.signature = create_new_key_pair(key.seed).private_key.sign(PREFIX + one.SerializeToString())
    return one


def order(key: Identity, target: Target, nonce: int, **changes: Any) -> Entry:
    """Return an order of ``key``: a job that could be, if its author had the credits."""
    now_ms = time.time_ns() // 1_000_000
    recipe = Recipe(
        inner="adamw", steps=20, batch=8, lr_e9=1_000_000, beta1_ppm=900_000, beta2_ppm=950_000, weight_decay_ppm=0,
        clip_ppm=0, rewarm_steps=0, outer_lr_ppm=700_000, outer_momentum_ppm=900_000, codec_bits=4, codec_block=64,
    )  # fmt: skip
    body = JobPost(
        author=key.account, nonce=nonce, expires_ms=now_ms + 300_000, title="spam", program="00" * 32, data="11" * 32,
        checkpoint="22" * 32, parameters=1_000, tokens_per_unit=0, recipe=recipe, device_class="cpu-fp32", rounds=1,
        units_per_round=1, shards=1, min_workers=1, reserve_price=1, unit_bond=0, merit_ppm=0, audit_fee=0,
        audit_budget=0, audit_floor_ppm=0, bid_ms=1_000, work_ms=1_000, reveal_ms=1_000, receipt_ms=1_000,
        result_ms=1_000, audit_ms=60_000, hold_ms=1_000, deadline_ms=now_ms + 600_000,
    )  # fmt: skip
    return seal(key, target.network, msgspec.structs.replace(body, **changes))


async def _subscribe(one: Stranger, hear: Callable[[Any], Awaitable[None]]) -> Any:
    """Log in and subscribe; return the stream to gossip on."""
    one.host.set_stream_handler(MESHSUB, hear)  # type: ignore[arg-type]
    await one.connect()
    stream = await one.stream(MESHSUB)
    await one.write(stream, packed(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=one.target.topic)]))
    return stream


async def _drop(stream: Any) -> None:
    while await stream.read(65_536):
        pass


async def _never(stream: Any) -> None:
    await trio.sleep_forever()


async def _talk(ground: Ground, make: Callable[[Stranger], bytes], *, pause_s: float) -> None:
    """Gossip what ``make`` makes until cut off, and read what comes."""
    async with ground.stranger() as one:
        stream = await _subscribe(one, _drop)
        while one.is_connected():
            await one.write(stream, make(one))
            ground.tally.add("messages")
            await trio.sleep(pause_s)
        ground.tally.cut()


async def malformed(ground: Ground) -> None:
    """Bytes that are no message: six bytes that end a stock node, lengths beyond all bounds, cut-off fields."""
    things = (
        b"\x05\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x80\x80\x80\x80\x08" + b"x" * 1_000,
        encode_varint_prefixed(b"\x12\xff\xff\xff\x7f"),
        encode_varint_prefixed(ground.random.randbytes(5_000)),
    )
    await ground.together(lambda: _talk(ground, lambda one: ground.random.choice(things), pause_s=0.02), 4)


async def forged(ground: Ground) -> None:
    """Orders in others' names, with keys that are none, with signatures of something else."""

    def make(one: Stranger) -> bytes:
        topic, number = one.target.topic, ground.random.randrange(2**60)
        other = Identity(ground.random.randbytes(32))
        good = signed(one.key, topic, b"x", number)
        kind = ground.random.randrange(4)
        if kind == 0:
            good.from_id = ID.from_string(other.account).to_bytes()
        elif kind == 1:
            good.key = b"\x08\x07junk"
        elif kind == 2:
            good.signature = ground.random.randbytes(64)
        else:
            good.data = order(other, one.target, number).raw[:-5] + b'00"}'
        return packed(good)

    await ground.together(lambda: _talk(ground, make, pause_s=0.01), 4)


async def replayed(ground: Ground) -> None:
    """Real orders, again and again as new messages, and the same message from several peers."""
    key = Identity(ground.random.randbytes(32))
    old = [order(key, ground.target, number).raw for number in range(16)]

    def make(one: Stranger) -> bytes:
        return packed(signed(one.key, one.target.topic, ground.random.choice(old), ground.random.randrange(2**60)))

    await ground.together(lambda: _talk(ground, make, pause_s=0.01), 4)


async def control(ground: Ground) -> None:
    """IWANT of one message ten thousand times, IHAVE of nothing, PRUNE and GRAFT of topics that nobody has."""
    funded = [Identity(bytes.fromhex(seed)) for seed in ground.target.funded]
    big = order(funded[0] if funded else Identity(ground.random.randbytes(32)), ground.target, 1, title="x" * 80).raw

    def make(one: Stranger) -> bytes:
        topic = one.target.topic
        rpc = rpc_pb2.RPC()
        kind = ground.random.randrange(5)
        if kind == 0:
            number = ground.random.randrange(2**60)
            rpc.publish.append(signed(one.key, topic, big, number))
            known = ID.from_string(one.key.account).to_bytes() + number.to_bytes(8, "big")
            rpc.control.iwant.add(messageIDs=[known] * 8_000)
        elif kind == 1:
            rpc.control.ihave.add(topicID=topic, messageIDs=[ground.random.randbytes(46) for _ in range(5_000)])
        elif kind == 2:
            for _ in range(2_000):
                rpc.control.prune.add(topicID=ground.random.randbytes(20).hex(), backoff=2**60)
        elif kind == 3:
            for _ in range(2_000):
                rpc.control.graft.add(topicID=ground.random.choice((topic, ground.random.randbytes(20).hex())))
        else:
            for _ in range(500):
                rpc.subscriptions.add(subscribe=bool(ground.random.randrange(2)), topicid=topic)
        return encode_varint_prefixed(rpc.SerializeToString())

    await ground.together(lambda: _talk(ground, make, pause_s=0.05), 4)


async def deaf(ground: Ground) -> None:
    """Ask for messages all the time and read none of the answers."""

    async def act() -> None:
        async with ground.stranger() as one:
            stream = await _subscribe(one, _never)
            number = 0
            while one.is_connected():
                number += 1
                message = signed(one.key, one.target.topic, order(one.key, one.target, number).raw, number)
                rpc = rpc_pb2.RPC(publish=[message])
                known = ID.from_string(one.key.account).to_bytes() + number.to_bytes(8, "big")
                rpc.control.iwant.add(messageIDs=[known] * 4_000)
                await one.write(stream, encode_varint_prefixed(rpc.SerializeToString()))
                ground.tally.add("messages")
                await trio.sleep(0.05)
            ground.tally.cut()

    await ground.together(act, 4)


async def spam(ground: Ground) -> None:
    """Orders without end: of identities without a credit, and of some that have enough for a few."""
    funded = [Identity(bytes.fromhex(seed)) for seed in ground.target.funded]

    def make(one: Stranger) -> bytes:
        number = ground.random.randrange(2**50)
        rich = funded and ground.random.random() < 0.3
        author = ground.random.choice(funded) if rich else Identity(ground.random.randbytes(32))
        return packed(signed(one.key, one.target.topic, order(author, one.target, number).raw, number))

    await ground.together(lambda: _talk(ground, make, pause_s=0.02), 6)
