"""Attacks by many identities: all places taken, all addresses told, and other people's machines dialled."""

from __future__ import annotations

import trio

from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.node import reach
from gdf_market.node.frames import frame
from tests.hostile.kit import Ground

SYBILS = 100


async def _stay(ground: Ground, source: str) -> None:
    names = [Identity(ground.random.randbytes(32)).account for _ in range(32)]
    peers = tuple(f"/ip4/127.0.0.1/tcp/{ground.random.randrange(1_024, 65_536)}/p2p/{name}" for name in names)
    async with ground.stranger(source) as one:
        ground.tally.add("identities")
        await one.link(peers=peers)
        ground.tally.add("links")
        await one.until_gone()
    ground.tally.cut()


async def eclipse(ground: Ground) -> None:
    """A hundred identities on one address that keep the protocol, take every place, and know only one another."""
    await ground.together(lambda: _stay(ground, ground.address), SYBILS, pause_s=3)


async def eclipse_many(ground: Ground) -> None:
    """The same from many addresses."""
    await ground.together(lambda: _stay(ground, ground.loopback()), SYBILS, pause_s=3)


async def dial_abuse(ground: Ground) -> None:
    """Hellos that name a third party's address again and again, under ever new identities: it counts who comes."""

    async def caught(stream: trio.SocketStream) -> None:
        ground.tally.add("dials of a third party")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        trap = (await nursery.start(trio.serve_tcp, caught, 0))[0].socket.getsockname()[1]

        async def act() -> None:
            async with ground.stranger() as one:
                stream = await one.link()
                while one.is_connected():
                    names = [Identity(ground.random.randbytes(32)).account for _ in range(32)]
                    peers = tuple(f"/ip4/127.0.0.1/tcp/{trap}/p2p/{name}" for name in names)
                    await one.write(stream, one.hello(peers=peers))
                    ground.tally.add("addresses told", 32)
                    await trio.sleep(1.1)
                ground.tally.cut()

        nursery.start_soon(lambda: ground.together(act, 6))


async def dialled_back(ground: Ground) -> None:
    """Requests to be dialled back at a port of somebody else's, on ever new links: it counts who comes."""

    async def caught(stream: trio.SocketStream) -> None:
        ground.tally.add("dials of a third party")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        trap = (await nursery.start(trio.serve_tcp, caught, 0))[0].socket.getsockname()[1]

        async def act() -> None:
            async with ground.stranger() as one:
                await one.link()
                target = reach.Target(peer=one.target.account, port=trap)
                request = encode(reach.Request(network=one.target.network, targets=(target, target)))
                while one.is_connected():
                    stream = await one.stream(reach.PROTOCOL)
                    await one.write(stream, frame(reach.REQUEST, request))
                    ground.tally.add("requests")
                    await stream.reset()
                ground.tally.cut()

        nursery.start_soon(lambda: ground.together(act, 4))
