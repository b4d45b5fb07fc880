"""What attackers are made of: strangers on stock libp2p that do as they like, raw sockets, and a tally of it all."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from gdf_market.codec import decode, encode
from gdf_market.identity import Identity
from gdf_market.node import limits
from gdf_market.node.frames import HELLO, PROTOCOL, VERSION, Hello, StreamReader, frame

STEP_S = 20.0  # one step of an attack: a dial, an answer; then it begins anew
EVERYWHERE = 1e12  # rate of what attackers read


@dataclass(frozen=True)
class Target:
    """The node under attack: the multiaddr of its control host, its network, and what the attack may need besides."""

    address: str
    network: str
    root: str = ""  # a blob that it holds
    funded: tuple[str, ...] = ()  # hex seeds of accounts with credits

    @property
    def account(self) -> str:
        return self.address.rpartition("/p2p/")[2]

    @property
    def where(self) -> tuple[str, int]:
        parts = self.address.split("/")
        return parts[2], int(parts[4])

    @property
    def topic(self) -> str:
        return f"/gdf/{self.network[:16]}/orders/1"


@dataclass
class Tally:
    """What an attacker did and what came of it."""

    sent: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=trio.current_time)
    first_cut_s: float | None = None  # after the attack began

    def add(self, what: str, count: int = 1) -> None:
        self.sent[what] += count

    def cut(self) -> None:
        """The victim ended a connection, or refused one."""
        self.sent["cut off"] += 1
        if self.first_cut_s is None:
            self.first_cut_s = round(trio.current_time() - self.began, 1)

    def text(self) -> str:
        return json.dumps({"sent": dict(self.sent), "first_cut_s": self.first_cut_s})


class _From(TCP):  # type: ignore[misc]
    """TCP that dials from a chosen address of this machine."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    async def dial(self, maddr: Any) -> Any:
        parts = str(maddr).split("/")
        stream = await trio.open_tcp_stream(parts[2], int(parts[4]), local_address=self._source)
        return RawConnection(TrioTCPStream(stream), True)


class Stranger:
    """A stock libp2p host with one connection to the victim."""

    def __init__(self, target: Target, seed: bytes, source: str) -> None:
        pair = create_new_key_pair(seed)
        self.target, self.key = target, Identity(seed)
        self.host = new_host(
            key_pair=pair,
            sec_opt={NOISE: NoiseTransport(pair, noise_privkey=create_noise_key().private_key)},
            muxer_opt={YAMUX: Yamux},
            transports=[_From(source)],
        )
        self.peer = ID.from_string(target.account)
        self.heard: list[Hello] = []  # hellos of the victim

    @property
    def _network(self) -> Any:
        return self.host.get_network()

    async def connect(self, address: str = "") -> None:
        """Log in at the victim, or at another host."""
        transport, _, account = (address or self.target.address).rpartition("/p2p/")
        self.peer = ID.from_string(account)
        with trio.fail_after(STEP_S):
            await self._network.dial_addr(Multiaddr(transport), self.peer)

    def is_connected(self) -> bool:
        return any(not conn.is_closed for conn in self._network.connections.get(self.peer, []))

    async def until_gone(self) -> None:
        """Return when the victim ended the connection."""
        while self.is_connected():  # noqa: ASYNC110  # the library tells nobody
            await trio.sleep(0.1)

    @property
    def muxer(self) -> Any:
        return self._network.connections[self.peer][0].muxed_conn

    async def stream(self, protocol: str) -> Any:
        with trio.fail_after(STEP_S):
            return await self.host.new_stream(self.peer, [protocol])  # type: ignore[list-item]

    async def muxer_frames(self, *frames: tuple[int, int, int, int]) -> None:
        """Send bare Yamux headers (kind, flags, stream, length) in one write."""
        packed = b"".join(struct.pack("!BBHII", 0, *one) for one in frames)
        with trio.fail_after(STEP_S):
            await self.muxer._write_frame(packed)

    def hello(self, **changes: Any) -> bytes:
        """Return the frame of a hello that is right but for ``changes``."""
        values: dict[str, Any] = {
            "version": VERSION,
            "network": self.target.network,
            "account": self.key.account,
            "session": self.key.seed.hex()[:32],
            "addresses": (),
            "peers": (),
            "bulk": None,
            **changes,
        }
        return frame(HELLO, encode(Hello(**values)))

    async def link(self, *, reads: bool = True, **changes: Any) -> Any:
        """Log in, say hello, wait for the victim's, and return the stream that frames go out on."""
        came = trio.Event()

        async def serve(stream: Any) -> None:
            reader = StreamReader(stream, limits.Bucket(EVERYWHERE, EVERYWHERE))
            while True:
                kind, payload = await reader.frame()
                if kind == HELLO:
                    self.heard.append(decode(payload, Hello))
                    came.set()
                if not reads:
                    await trio.sleep_forever()

        self.host.set_stream_handler(PROTOCOL, serve)  # type: ignore[arg-type]
        await self.connect()
        stream = await self.stream(PROTOCOL)
        await self.write(stream, self.hello(**changes))
        with trio.fail_after(STEP_S):
            await came.wait()
        return stream

    async def write(self, stream: Any, data: bytes) -> None:
        """Write all of ``data``, however long it takes the victim to make room, up to STEP_S."""
        with trio.fail_after(STEP_S):
            for start in range(0, len(data), limits.PIECE_BYTES):
                await stream.write(data[start : start + limits.PIECE_BYTES])

    async def bulk_address(self) -> str:
        """Return where the victim serves blobs, as its hellos tell."""
        with trio.fail_after(STEP_S):
            while not (self.heard and self.heard[-1].bulk):  # noqa: ASYNC110  # hellos come when they come
                await trio.sleep(0.1)
        bulk = self.heard[-1].bulk
        assert bulk is not None
        return f"{bulk.addresses[0].partition('/p2p/')[0]}/p2p/{bulk.peer}"


class Ground:
    """Where an attack happens: the target, chance from a seed, and the tally."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.random, self.tally = target, random.Random(seed), Tally()
        self.address = f"127.66.{seed % 250}.1"  # the attacker's own, as honest nodes share 127.0.0.1

    def loopback(self) -> str:
        """Return one of the 16 million addresses of this machine."""
        return f"127.{self.random.randrange(1, 255)}.{self.random.randrange(256)}.{self.random.randrange(1, 255)}"

    @asynccontextmanager
    async def stranger(self, source: str = "") -> AsyncIterator[Stranger]:
        """Run a stranger with a new identity; what its own tasks raise when it is thrown out is of no interest."""
        one = Stranger(self.target, self.random.randbytes(32), source or self.address)
        async with one.host.run(listen_addrs=[]):
            yield one
            with trio.move_on_after(2):
                await one.host.close()

    async def socket(self, source: str) -> trio.SocketStream | None:
        """Open a TCP connection; None when it is refused."""
        self.tally.add("connections")
        with suppress(OSError), trio.move_on_after(STEP_S):
            return await trio.open_tcp_stream(*self.target.where, local_address=source)
        self.tally.cut()
        return None

    async def again(self, act: Callable[[], Awaitable[None]], *, pause_s: float = 0.2) -> None:
        """Act for ever: whenever the victim ends it, begin anew."""
        while True:
            try:
                await act()
            except* Exception as error:  # thrown out: the library raises a dozen kinds
                self.tally.cut()
                print(repr(error.exceptions[0])[:200], file=sys.stderr)
            await trio.sleep(pause_s)

    async def together(self, act: Callable[[], Awaitable[None]], count: int, *, pause_s: float = 0.2) -> None:
        """So many at once, each for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(lambda: self.again(act, pause_s=pause_s))


Attack = Callable[[Ground], Awaitable[None]]
