"""Orders on GossipSub v1.1, hardened: one peer's bytes or one callback's bug never end the service.

The stock library dies on a six-byte message; here its reading loop and its
acceptance of messages are replaced, its router (mesh, heartbeat, IHAVE/IWANT)
is kept.  Settings: those that delivered everything where the defaults lost most.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import INetStream
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.utils import safe_bytes_from_hex
from libp2p.pubsub.validators import signature_validator

from gdf_market.errors import FloodError, MalformedError, OversizedError, PeerError, SignatureError, SlowError, ensure
from gdf_market.node import limits
from gdf_market.node.collapse import collapsing
from gdf_market.node.counters import Counters
from gdf_market.node.frames import StreamReader
from gdf_market.node.gossip_control import ControlMeter
from gdf_market.node.p2p import Blame, Host, run_service, safe_handler

OnOrder = Callable[[bytes, str], bool]
_MAX_ID_BYTES = 64
_QUEUE_RPCS = 1_024  # per peer; the stock 32 loses messages in every burst
_PUBLISH_QUEUE = 256
_MESSAGE_OVERHEAD = 256


class _Router(GossipSub):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(
            [PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=1,
            spam_protection_enabled=False,  # drops honest messages above 10 a second; our limits disconnect instead
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,
        )

    async def heartbeat(self) -> None:
        """Beat for ever; a beat that trips over a peer which just left is skipped."""
        while True:
            try:
                await super().heartbeat()
            except Exception as error:
                self.pubsub.counters.add("heartbeat", error=repr(error))
                await trio.sleep(self.heartbeat_interval)

    def _check_equivocation(self, msg: rpc_pb2.Message) -> bool:
        return True  # keeps 1,000 whole messages in memory to find what our message ids exclude already


class _Pubsub(Pubsub):  # type: ignore[misc]
    """Reading and acceptance of messages on one topic."""

    def __init__(self, host: Host, router: _Router, topic: str, on_order: OnOrder, blame: Blame) -> None:
        self.counters = host.counters
        self._topic = topic
        self._on_order = on_order
        self._bad: dict[str, limits.Bucket] = {}
        self._blame = blame
        self._safe = safe_handler(self._read, host.counters, blame)
        super().__init__(host.raw, router, allowed_topics={topic})
        self.counter = time.time_ns()  # seconds, the stock value, make a restarted node's messages look old

    async def stream_handler(self, stream: INetStream) -> None:
        """Serve one inbound stream of a peer."""
        await self._safe(stream)

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Nothing: messages were handed to the callback when they were accepted."""

    async def _handle_new_peer(self, peer_id: ID) -> None:
        await super()._handle_new_peer(peer_id)
        queue = self.peer_queues.get(peer_id)
        if queue is not None:
            queue._queue.max_size = _QUEUE_RPCS
            self._bound(queue, str(peer_id))

    def _bound(self, queue: Any, peer: str) -> None:
        """Bound a queue in bytes as well: whoever asks and does not read could fill the memory with answers."""
        push, pop, waiting = queue.push, queue.pop, 0

        def bounded_push(rpc: rpc_pb2.RPC, priority: bool = False) -> bool:
            nonlocal waiting
            size = rpc.ByteSize()
            if waiting + size > limits.GOSSIP_QUEUE_BYTES:
                error = SlowError(f"{waiting} bytes of gossip wait for {peer}")
                self.counters.add("gossip-slow", peer=peer)
                self._blame(peer, error)
                return False
            pushed = bool(push(rpc, priority))
            waiting += size if pushed else 0
            return pushed

        async def bounded_pop() -> rpc_pb2.RPC | None:
            nonlocal waiting
            rpc: rpc_pb2.RPC | None = await pop()
            waiting -= rpc.ByteSize() if rpc is not None else 0
            return rpc

        queue.push, queue.pop = bounded_push, bounded_pop

    def _size_held(self, message_id: bytes) -> int:
        decoded = safe_bytes_from_hex(message_id)
        held = self.router.mcache.get(decoded) if decoded is not None else None
        return len(held.data) + _MESSAGE_OVERHEAD if held is not None else 0

    async def _read(self, stream: INetStream) -> None:
        peer_id = stream.muxed_conn.peer_id
        reader = StreamReader(stream, limits.Bucket(limits.RPC_BYTES_PER_S, limits.RPC_BYTES_BURST))
        rate = limits.Bucket(limits.RPCS_PER_S, limits.RPCS_BURST)
        meter = ControlMeter(self._topic, self._size_held)
        while True:
            data = await reader.exactly(await reader.varint(limits.MAX_RPC_BYTES))
            try:
                rpc = rpc_pb2.RPC.FromString(data)
            except DecodeError as error:
                raise MalformedError(f"not a pubsub message: {error}") from None
            ensure(
                rate.take(1 + len(rpc.publish) + len(rpc.subscriptions), trio.current_time()),
                FloodError(f"more than {rate.per_s:.0f} pubsub messages a second"),
            )
            meter.trim(rpc, trio.current_time())
            await self._handle(peer_id, rpc)

    async def _handle(self, peer_id: ID, rpc: rpc_pb2.RPC) -> None:
        for subscription in rpc.subscriptions:
            self.handle_subscription(peer_id, subscription)
        for message in rpc.publish:
            if self._is_subscribed_to_msg(message):
                await self.push_msg(peer_id, message)
        if rpc.HasField("control"):
            try:
                await self.router.handle_rpc(rpc, peer_id)
            except Exception as error:
                raise MalformedError(f"a pubsub control message that cannot be followed: {error!r}") from None

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Accept and relay a message, or count it against the peer that forwarded it."""
        own = msg_forwarder == self.my_id
        if self._is_msg_seen(msg) or (not own and msg.from_id == self.my_id.to_bytes()):
            return
        if not own:
            peer = str(msg_forwarder)
            try:
                _check(msg, self._topic)
            except PeerError as error:
                self._count_bad(peer, error)
                return
            self._mark_msg_seen(msg)  # after the signature: else anybody could use up another's message id
            if not self._wanted(msg.data, peer):
                self._count_bad(peer, MalformedError("an order that the order book refused"), weight=0.25)
                return
        else:
            self._mark_msg_seen(msg)
        await self.router.publish(msg_forwarder, msg)

    def _wanted(self, data: bytes, peer: str) -> bool:
        try:
            return self._on_order(data, peer)
        except Exception as error:  # our bug, not the peer's
            self.counters.add("callback", error=repr(error))
            return False

    def _count_bad(self, peer: str, error: PeerError, *, weight: float = 1.0) -> None:
        self.counters.add(f"order-{error.reason}", peer=peer)
        bucket = self._bad.setdefault(peer, limits.Bucket(limits.BAD_MESSAGES_PER_S, limits.BAD_MESSAGES_BURST))
        if not bucket.take(weight, trio.current_time()):
            raise FloodError(f"too many orders that were refused; the last one: {error}")

    def forget(self, peer: str) -> None:
        """Drop what is remembered about a peer that left."""
        self._bad.pop(peer, None)

    def reopen(self, peer_id: ID) -> None:
        """Replace the stream to a peer; what it subscribed to stays (its new process may have said so already)."""
        subscribed = peer_id in self.peer_topics.get(self._topic, ())
        self._handle_dead_peer(peer_id)
        if subscribed:
            self.handle_subscription(peer_id, rpc_pb2.RPC.SubOpts(subscribe=True, topicid=self._topic))

    async def announce(self) -> None:
        """Tell all peers again what this node subscribed to (heals what a restart of either side left half-dead)."""
        packet, subscription = self._build_announce_rpc(self._topic, subscribe=True)
        await self.message_all_peers(packet.SerializeToString(), announce=subscription)


def _check(msg: rpc_pb2.Message, topic: str) -> None:
    ensure(len(msg.data) <= limits.MAX_ORDER_BYTES, OversizedError(f"an order of {len(msg.data)} bytes"))
    ensure(
        list(msg.topicIDs) == [topic] and len(msg.seqno) == 8 and 0 < len(msg.from_id) <= _MAX_ID_BYTES,
        MalformedError("a pubsub message without one topic, a sequence number or a sender"),
    )
    try:
        valid = bool(signature_validator(msg))
    except Exception:  # the library raises many kinds for a key it cannot read
        valid = False
    ensure(valid, SignatureError("a pubsub message whose signature does not verify"))


class OrderGossip:
    """The orders topic of one network."""

    def __init__(self, network: str, on_order: OnOrder) -> None:
        self.topic = f"/gdf/{network[:16]}/orders/1"
        self._on_order = on_order
        self._router = _Router()
        self._counters: Counters
        self._pubsub: _Pubsub
        self._orders_in, self._orders_out = trio.open_memory_channel[bytes](_PUBLISH_QUEUE)

    def attach(self, host: Host, blame: Blame) -> None:
        """Install the protocol on a host that does not listen yet."""
        self._counters = host.counters
        self._pubsub = _Pubsub(host, self._router, self.topic, self._on_order, blame)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Take part in the topic while the block runs (inside that of the host)."""
        async with run_service(self._pubsub, self._counters), run_service(self._router, self._counters):
            await self._pubsub.wait_until_ready()
            await self._pubsub.subscribe(self.topic)
            with collapsing():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._publish_queued)
                    nursery.start_soon(self._announce)
                    yield
                    nursery.cancel_scope.cancel()

    def publish(self, raw: bytes) -> bool:
        """Queue an order for all peers; False when too many wait already.  OversizedError above the limit."""
        ensure(len(raw) <= limits.MAX_ORDER_BYTES, OversizedError(f"an order of {len(raw)} bytes"))
        try:
            self._orders_in.send_nowait(raw)
        except trio.WouldBlock:
            self._counters.add("publish-queue")
            return False
        return True

    def subscribers(self) -> set[str]:
        """Return the peers that told us they read the topic."""
        return {str(peer) for peer in self._pubsub.peer_topics.get(self.topic, ())}

    def gossiping(self) -> set[str]:
        """Return the peers that a gossip stream is open to."""
        return {str(peer) for peer in self._pubsub.peers}

    def forget(self, peer: str) -> None:
        """A peer left: its count of bad messages starts anew."""
        self._pubsub.forget(peer)

    def reopen(self, peer: str) -> None:
        """The peer started anew: open our gossip stream again."""
        self._pubsub.reopen(ID.from_string(peer))

    async def _publish_queued(self) -> None:
        async for raw in self._orders_out:
            try:
                await self._pubsub.publish(self.topic, raw)
            except Exception as error:
                self._counters.add("publish", error=repr(error))

    async def _announce(self) -> None:
        while True:
            await trio.sleep(limits.ANNOUNCE_EVERY_S)
            try:
                await self._pubsub.announce()
            except Exception as error:
                self._counters.add("announce", error=repr(error))
