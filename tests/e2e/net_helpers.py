"""Nodes on loopback and the peers that attack them, for the network tests."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.node.control import ControlHost
from gdf_market.node.frames import HELLO, PROTOCOL, VERSION, BulkAddress, Hello, frame

NETWORK = "ab" * 32
TOPIC = f"/gdf/{NETWORK[:16]}/orders/1"
MESHSUB = "/meshsub/1.1.0"


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return once ``condition()`` holds; fail after ``seconds``."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # the condition is another process's or a library's state
            await trio.sleep(0.01)


@dataclass
class Node:
    """A control host and everything it was told."""

    control: ControlHost
    key: Identity
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    orders: list[bytes] = field(default_factory=list)
    bulk: list[tuple[str, BulkAddress]] = field(default_factory=list)

    @property
    def account(self) -> str:
        return self.key.account

    @property
    def address(self) -> str:
        return self.control.addresses[0]

    @property
    def port(self) -> int:
        return int(self.address.split("/")[4])

    def count(self, reason: str) -> int:
        return self.control.counters.get(reason, 0)


@asynccontextmanager
async def node(
    seed: int, bootstrap: Sequence[Node | str] = (), *, network: str = NETWORK, port: int = 0, **callbacks: Any
) -> AsyncIterator[Node]:
    """Run one control host with the key of ``seed``."""
    key = Identity(bytes([seed]) * 32)
    box: list[Node] = []
    values: dict[str, Any] = {
        "on_frame": lambda peer, data: box[0].frames.append((peer, data)),
        "on_peer_up": lambda peer: box[0].events.append(("up", peer)),
        "on_peer_down": lambda peer: box[0].events.append(("down", peer)),
        "on_order": lambda raw, peer: box[0].orders.append(raw) or True,
        "on_bulk": lambda peer, address: box[0].bulk.append((peer, address)),
        **callbacks,
    }
    addresses = [one if isinstance(one, str) else one.address for one in bootstrap]
    control = ControlHost(key, network, listen=("127.0.0.1", port), bootstrap=addresses, **values)
    box.append(Node(control, key))
    async with control.run():
        yield box[0]


async def check_serves(victim: Node, seed: int = 200) -> None:
    """Fail unless a newcomer gets a link with ``victim`` and frames pass both ways."""
    async with node(seed, [victim]) as honest:
        await until(lambda: honest.account in victim.control.peers and victim.account in honest.control.peers)
        assert victim.control.send(honest.account, b"to you")
        assert honest.control.send(victim.account, b"to me")
        await until(lambda: (victim.account, b"to you") in honest.frames)
        await until(lambda: (honest.account, b"to me") in victim.frames)


class Stranger:
    """A stock libp2p host that does what it likes."""

    def __init__(self, seed: int) -> None:
        pair = create_new_key_pair(bytes([seed]) * 32)
        self.host = new_host(
            key_pair=pair,
            sec_opt={NOISE: NoiseTransport(pair, noise_privkey=create_noise_key().private_key)},
            muxer_opt={YAMUX: Yamux},
        )
        self.account = str(self.host.get_id())

    async def connect(self, address: str) -> None:
        transport, _, account = address.rpartition("/p2p/")
        self.peer = ID.from_string(account)
        network: Any = self.host.get_network()
        await network.dial_addr(Multiaddr(transport), self.peer)

    @property
    def muxer(self) -> Any:
        network: Any = self.host.get_network()
        return network.connections[self.peer][0].muxed_conn

    def is_connected(self) -> bool:
        network: Any = self.host.get_network()
        return any(not conn.is_closed for conn in network.connections.get(self.peer, []))

    async def stream(self, protocol: str) -> Any:
        return await self.host.new_stream(self.peer, [protocol])  # type: ignore[list-item]

    async def raw_frame(self, kind: int, flags: int, stream: int, length: int) -> None:
        """Send a bare Yamux header."""
        await self.muxer._write_frame(struct.pack("!BBHII", 0, kind, flags, stream, length))

    def hello(self, **changes: Any) -> bytes:
        """Return the frame of a hello that is right but for ``changes``."""
        values = {
            "version": VERSION,
            "network": NETWORK,
            "account": self.account,
            "session": "00" * 16,
            "addresses": (),
            "peers": (),
            "bulk": None,
            **changes,
        }
        return frame(HELLO, encode(Hello(**values)))

    async def link(self, victim: Node, *, reads: bool = True) -> Any:
        """Connect, say hello both ways, and return the stream that frames go out on."""

        async def serve(stream: Any) -> None:
            while reads:
                if not await stream.read(65_536):
                    return
            await trio.sleep_forever()

        self.host.set_stream_handler(PROTOCOL, serve)  # type: ignore[arg-type]
        await self.connect(victim.address)
        stream = await self.stream(PROTOCOL)
        await stream.write(self.hello())
        await until(lambda: self.account in victim.control.peers)
        return stream


@asynccontextmanager
async def stranger(seed: int = 99) -> AsyncIterator[Stranger]:
    """Run a stranger; what its own tasks raise when it is thrown out is of no interest."""
    one = Stranger(seed)
    try:
        async with one.host.run(listen_addrs=[]):
            yield one
            await one.host.close()
    except* (OSError, RuntimeError):
        pass
