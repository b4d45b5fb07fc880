"""Every limit that a stranger on the network can reach, in one place, and the token bucket that meters them."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Connections
MAX_CONNECTIONS = 160  # of one host, both directions
MAX_INBOUND = 128  # sockets accepted at once, finished log-ins or not
MAX_PER_ADDRESS = 8  # inbound sockets from one IPv4 address or IPv6 /64
MAX_PER_LOOPBACK = 64  # nodes of one machine share 127.0.0.1 (and ::1); other addresses of it count as any
MAX_PER_GROUP = 32  # inbound sockets from one IPv4 /24 or IPv6 /48
MAX_HALF_OPEN = 48  # of the inbound sockets, those that are not logged in yet
MAX_HALF_OPEN_PER_ADDRESS = 6
HALF_OPEN_SAFE_S = 1.0  # so long nobody else takes the place of one that is logging in
DIALS_PER_S, DIALS_BURST = 1.0, 30.0  # connections accepted from one address
FAULTS_PER_S, FAULTS_BURST = 1 / 60, 4.0  # peers thrown out that one address may have
LOOPBACK_TIMES = 16  # ... of which 127.0.0.1 has so many times as many, and a group GROUP_TIMES
GROUP_TIMES = 4
ADDRESS_BAN_S = 300.0
MAX_SOURCES_KNOWN = 4_096  # addresses and groups whose past is remembered
HANDSHAKE_S = 5.0  # log-in (Noise, Yamux) must be over by then
DIAL_S = 8.0
MAX_STREAMS_PER_PEER = 32  # inbound streams alive at once on one connection
STREAMS_PER_S, STREAMS_BURST = 20.0, 300.0  # opened by a peer on one connection
SMALL_FRAMES_PER_S, SMALL_FRAMES_BURST = 1_000.0, 10_000.0  # of the muxer, with less than SMALL_FRAME bytes
SMALL_FRAME = 512
MAX_UNREAD_ALL = 64 << 20  # received on all connections of a host and not yet read
FAIR_UNREAD = 2 << 20  # of one connection; only above it the rest is counted
MAX_WINDOW_BYTES = 2 << 20  # receive window of one stream; enough for 25 MB/s over 80 ms
MAX_UNREAD_BYTES = 16 << 20  # received on one connection and not yet read; LANES x MAX_FETCHES chunks are honest
MAX_YAMUX_FRAME = 1 << 20
PING_EVERY_S = 3.0
GOODBYE_S = 2.0
PING_TIMEOUT_S = 7.0  # a silent peer is gone after at most PING_EVERY_S + PING_TIMEOUT_S
IDLE_PEER_S = 60.0  # a connection that neither links nor gossips is closed

# Links: the pair of frame streams between two nodes
MESH_PEERS = 12  # links a node tries to have
MAX_LINKS = 64  # links a node accepts
MAX_FRAME_BYTES = 65_536  # payload of one frame
MAX_HELLO_BYTES = 16_384
HELLO_S = 10.0  # after the stream is open
DISPLACE_S = PING_EVERY_S + PING_TIMEOUT_S  # a younger link of an account is not displaced by a new process of it
HELLOS_PER_S, HELLOS_BURST = 1.0, 20.0  # repeated hellos (news of peers and of the bulk host)
FRAMES_PER_S, FRAMES_BURST = 1_000.0, 4_000.0  # accepted from one peer
BYTES_PER_S, BYTES_BURST = float(16 << 20), float(32 << 20)
PACE = 0.5  # share of the two rates above that this node itself sends at most
QUEUE_FRAMES = 4_096  # waiting for one peer
QUEUE_BYTES = 16 << 20
QUEUE_ALL_BYTES = 48 << 20  # waiting for all peers; beyond it whoever has most waiting is dropped
FAIR_QUEUE = 512 << 10  # of one peer; only above it the rest is counted
SERVE_WAITING = 1 << 20  # a peer with so much waiting gets no more blocks, links or pages until it read some
LINKS_PER_S, LINKS_BURST = 0.5, 10.0  # begun by one peer: streams that replace the one before
WRITE_S = 10.0  # one write that hangs longer closes the connection
PIECE_BYTES = 65_524  # largest write that is one Yamux frame

# Who is known and who is not wanted
MAX_HELLO_PEERS = 16
MAX_ADDRESSES = 4  # per peer
MAX_ADDRESS_TEXT = 200
MAX_KNOWN_PEERS = 1_024
MAX_BANNED = 1_024
BAN_S = 60.0
OTHER_NETWORK_S = 600.0
HEARSAY_PER_S, HEARSAY_BURST = 1 / 10, 8.0  # dials of one IP address for peers that only others told of
REDIAL_FIRST_S, REDIAL_MAX_S = 0.5, 60.0

# Gossip
MAX_ORDER_BYTES = 65_536
MAX_RPC_BYTES = 1 << 20  # the protocol's default: peers may batch
RPCS_PER_S, RPCS_BURST = 400.0, 4_000.0
RPC_BYTES_PER_S, RPC_BYTES_BURST = float(4 << 20), float(16 << 20)
BAD_MESSAGES_PER_S, BAD_MESSAGES_BURST = 1.0, 32.0  # badly signed, or refused by the order book
ANNOUNCE_EVERY_S = 30.0
MAX_MESSAGE_ID = 128  # bytes; ours have 46
MAX_IDS = 2_048  # message ids of one IHAVE that are looked at, and that are remembered of one peer's IWANTs
MAX_RESENT = 3  # times that one message is sent again to one peer
MAX_BACKOFF_S = 3_600
CONTROL_IDS_PER_S, CONTROL_IDS_BURST = 1_000.0, 10_000.0  # message ids and parts of control
IWANT_BYTES_PER_S, IWANT_BYTES_BURST = float(256 << 10), float(2 << 20)  # of answers to one peer
SUBSCRIPTIONS_PER_S, SUBSCRIPTIONS_BURST = 0.5, 20.0  # to the orders' topic, of one peer
GOSSIP_QUEUE_BYTES = 1 << 20  # waiting for one peer; who has more waiting is dropped

# Blobs
SERVING_SLOTS = 16  # requests answered at once
SLOTS_PER_PEER = 4
SLOW_PER_S, SLOW_BURST = 1 / 30, 4.0  # answers that a peer asks for and does not read
REQUEST_BYTES = 1_024
CHUNK_S = 20.0  # so long may a transfer pass without a byte
ANSWER_S = 60.0  # and so long may all of a chunk take
IDLE_STREAM_S = 60.0
LANES = 3  # streams to one source
MAX_SOURCES = 64
MAX_FETCHES = 4  # at once
BAD_CHUNKS = 3  # then the source is banned
ENDGAME_S = 3.0  # a chunk awaited longer is asked from another source too
NO_PROGRESS_S = 60.0
MIN_RATE_BYTES_PER_S = 64_000  # least rate that can be set: a chunk would not arrive in time below
SHARE_BYTES_PER_S = 64_000  # a transfer that shares a set rate with others gets at least this
RATE_BURST_S = 0.5  # so much of a set rate may be saved up: a busy machine wakes late
SOURCE_BAN_S = 600.0


@dataclass
class Bucket:
    """Token bucket: ``per_s`` tokens a second, at most ``burst`` saved up; the clock is an argument."""

    per_s: float
    burst: float
    tokens: float = math.inf  # full at first use
    at: float = 0.0

    def take(self, amount: float, now: float) -> bool:
        """Take ``amount`` tokens, or none and return False."""
        self._fill(now)
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True

    def spend(self, amount: float, now: float) -> float:
        """Take ``amount`` tokens, on credit if need be; return the seconds to wait before the next."""
        self._fill(now)
        self.tokens -= amount
        return max(0.0, -self.tokens / self.per_s)

    def _fill(self, now: float) -> None:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_s)
        self.at = now
