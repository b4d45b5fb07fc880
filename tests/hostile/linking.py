"""Attacks on links: bad lengths, bad hellos, hellos without end, links that are opened again and again."""

from __future__ import annotations

import struct
from collections.abc import Callable

import trio

from gdf_market.codec import encode
from gdf_market.node.frames import DATA, HELLO, PROTOCOL, frame
from tests.hostile.kit import Ground, Stranger

FIRST: tuple[Callable[[Stranger], bytes], ...] = (  # instead of a hello
    lambda one: b"\0\0\0\0",
    lambda one: b"\xff\xff\xff\xff" + bytes(1_000),
    lambda one: struct.pack("!Q", 1 << 63),
    lambda one: struct.pack("!I", 1 << 20) + bytes(60_000),
    lambda one: one.hello()[:-10],
    lambda one: one.hello().replace(b'"version":1', b'"version": 1'),  # not canonical, and the length is wrong, too
    lambda one: one.hello(network="cd" * 32),
    lambda one: one.hello(account=one.target.account),
    lambda one: one.hello(version=2**53 - 1),
    lambda one: frame(HELLO, b'{"a":' * 3_000 + b"1" + b"}" * 3_000),
    lambda one: frame(DATA, encode({"height": 1, "type": "sync_request"})),
    lambda one: frame(200, b"?"),
)
LATER: tuple[bytes, ...] = (  # on a link that is up
    b"\0\0\0\0",
    struct.pack("!I", 65_538),
    struct.pack("!I", (1 << 32) - 1),
    frame(DATA, b""),
    frame(DATA, b"\xff" * 65_536),
    frame(DATA, b"[" * 65_000),
    frame(DATA, b'{"height":1,"type":"sync_request"} '),
    frame(DATA, b'{"height":1e3,"type":"sync_request"}'),
    frame(DATA, b'{"height":99999999999999999999,"type":"sync_request"}'),
    frame(9, b"x"),
)


async def bad_frames(ground: Ground) -> None:
    """One bad frame per identity, before and after the hello."""

    async def act() -> None:
        async with ground.stranger() as one:
            if ground.random.random() < 0.5:
                await one.connect()
                await one.write(await one.stream(PROTOCOL), ground.random.choice(FIRST)(one))
            else:
                await one.write(await one.link(), ground.random.choice(LATER))
            ground.tally.add("frames")
            with trio.move_on_after(12):
                await one.until_gone()
                ground.tally.cut()

    await ground.together(act, 4)


async def hellos(ground: Ground) -> None:
    """The same hello as fast as it goes."""

    async def act() -> None:
        async with ground.stranger() as one:
            stream = await one.link()
            while one.is_connected():
                await one.write(stream, one.hello() * 20)
                ground.tally.add("hellos", 20)
                await trio.sleep(0.01)
            ground.tally.cut()

    await ground.together(act, 4)


async def replaced(ground: Ground) -> None:
    """A new stream and hello again and again: each ends the link before it and begins another."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.link()
            while one.is_connected():
                stream = await one.stream(PROTOCOL)
                await one.write(stream, one.hello())
                ground.tally.add("links")
            ground.tally.cut()

    await ground.together(act, 4)
