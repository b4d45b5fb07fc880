"""Attacks before and at log-in: sockets that say nothing, little, or nonsense, from one address and from many."""

from __future__ import annotations

import struct
from contextlib import suppress

import trio

from tests.hostile.kit import Ground

HELD = 300  # sockets that a flood holds open
MULTISTREAM = b"\x13/multistream/1.0.0\n"
NOISE = b"\x07/noise\n"


async def _hold(ground: Ground, source: str, first: bytes = b"") -> None:
    """Open a socket, say ``first`` and nothing more, until the victim closes it."""
    socket = await ground.socket(source)
    if socket is None:
        await trio.sleep(0.1)
        return
    with suppress(trio.BrokenResourceError):
        async with socket:
            if first:
                await socket.send_all(first)
            while await socket.receive_some(4_096):
                pass
    ground.tally.cut()


async def _flood(ground: Ground, *, many: bool, first: bytes = b"") -> None:
    async def act() -> None:
        await _hold(ground, ground.loopback() if many else ground.address, first)

    await ground.together(act, HELD, pause_s=0.5)


async def flood_one(ground: Ground) -> None:
    """Sockets without a word from one address."""
    await _flood(ground, many=False)


async def flood_many(ground: Ground) -> None:
    """Sockets without a word, each from another address."""
    await _flood(ground, many=True)


async def half_open(ground: Ground) -> None:
    """Log-ins that stop in the middle: Noise is agreed on, and begins with a message that never ends."""
    await _flood(ground, many=True, first=MULTISTREAM + NOISE + b"\xff\xff" + bytes(32))


async def slow_writer(ground: Ground) -> None:
    """One byte a second, at log-in and inside a frame of a link."""

    async def at_login() -> None:
        socket = await ground.socket(ground.loopback())
        if socket is not None:
            async with socket:
                for byte in MULTISTREAM + NOISE:
                    await socket.send_all(bytes((byte,)))
                    ground.tally.add("bytes")
                    await trio.sleep(1)

    async def in_link() -> None:
        async with ground.stranger() as one:
            stream = await one.link()
            await stream.write(struct.pack("!I", 60_000))
            while one.is_connected():
                await stream.write(b"\x01")
                ground.tally.add("bytes")
                await trio.sleep(1)
            ground.tally.cut()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ground.together(at_login, 60))
        nursery.start_soon(lambda: ground.together(in_link, 6))


async def garbage(ground: Ground) -> None:
    """What no log-in looks like: lengths up to 2^63, another protocol, noise."""

    async def act() -> None:
        socket = await ground.socket(ground.loopback())
        if socket is None:
            return
        data = ground.random.choice(
            (
                b"\xff" * 8 + b"\x7f" + b"a" * 1_000,
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                ground.random.randbytes(5_000),
                MULTISTREAM + b"\xff\xff\xff\xff\x0f" + bytes(60_000),
                MULTISTREAM + NOISE + ground.random.randbytes(60_000),
                MULTISTREAM + b"\x11/plaintext/2.0.0\n",
            )
        )
        ground.tally.add("messages")
        async with socket:
            with trio.move_on_after(8):
                await socket.send_all(data)
                while await socket.receive_some(4_096):
                    pass
        ground.tally.cut()

    await ground.together(act, 20)


async def login_churn(ground: Ground) -> None:
    """New identities that log in and leave at once: the dearest thing that a stranger can ask for."""

    async def act() -> None:
        async with ground.stranger() as one:
            await one.connect()
            ground.tally.add("log-ins")

    await ground.together(act, 4, pause_s=0.05)
