"""A home router between a LAN and the test internet: rewrites the addresses of IPv4 packets as RFC 4787 describes.

Outbound, a mapping of the inner endpoint to an outer port is made; inbound, only
what answers a packet that went out comes in ("address and port-dependent
filtering"), so nobody outside can open a connection unless both sides do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TCP, UDP = 6, 17
CHECKSUM_AT = {TCP: 16, UDP: 6}  # offset in the header of the protocol
FIRST_PORT, LAST_PORT = 20_000, 60_000  # given out where the inner port is taken, or never kept

Endpoint = tuple[bytes, int]


@dataclass(frozen=True)
class Flow:
    """Where a packet comes from and goes to; ``start`` is where its ports are."""

    protocol: int
    source: Endpoint
    target: Endpoint
    start: int

    @classmethod
    def of(cls, packet: bytes) -> Flow | None:
        """Return the flow of an IPv4 packet; None for what has no ports (ICMP, fragments after the first)."""
        start = (packet[0] & 15) * 4
        fragment = int.from_bytes(packet[6:8], "big") & 0x1FFF
        if packet[9] not in CHECKSUM_AT or fragment or len(packet) < start + 8:
            return None
        from_port, to_port = struct.unpack_from("!HH", packet, start)
        return cls(packet[9], (packet[12:16], from_port), (packet[16:20], to_port), start)


@dataclass
class Nat:
    """``symmetric`` takes another outer port for every target, which defeats hole punching."""

    address: bytes
    symmetric: bool = False
    ports: dict[tuple[int, Endpoint, Endpoint | None], int] = field(default_factory=dict)
    inner: dict[tuple[int, int], Endpoint] = field(default_factory=dict)
    asked: set[tuple[int, int, Endpoint]] = field(default_factory=set)
    refused: int = 0

    def outbound(self, packet: bytes) -> bytes | None:
        """Return the packet as the internet sees it; None for what is not translated."""
        flow = Flow.of(packet)
        if flow is None:
            return None
        key = (flow.protocol, flow.source, flow.target if self.symmetric else None)
        port = self.ports.get(key)
        if port is None:
            port = self.ports[key] = self._free_port(flow)
            self.inner[flow.protocol, port] = flow.source
        self.asked.add((flow.protocol, port, flow.target))
        return rewrite(packet, flow, 12, (self.address, port))

    def inbound(self, packet: bytes) -> bytes | None:
        """Return the packet as the LAN sees it; None for what nobody inside asked for."""
        flow = Flow.of(packet)
        if flow is None or (flow.protocol, flow.target[1], flow.source) not in self.asked:
            self.refused += 1
            return None
        return rewrite(packet, flow, 16, self.inner[flow.protocol, flow.target[1]])

    def _free_port(self, flow: Flow) -> int:
        port = flow.source[1]
        if self.symmetric or (flow.protocol, port) in self.inner:
            port = next(one for one in range(FIRST_PORT, LAST_PORT) if (flow.protocol, one) not in self.inner)
        return port


def rewrite(packet: bytes, flow: Flow, at: int, endpoint: Endpoint) -> bytes:
    """Return the packet with another source (``at`` = 12) or target (16), its checksums set right."""
    changed = bytearray(packet)
    port_at = flow.start + (0 if at == 12 else 2)
    sum_at = flow.start + CHECKSUM_AT[flow.protocol]
    old_address, old_port = packet[at : at + 4], packet[port_at : port_at + 2]
    new_port = endpoint[1].to_bytes(2, "big")
    changed[at : at + 4] = endpoint[0]
    changed[port_at : port_at + 2] = new_port
    changed[10:12] = adjusted(packet[10:12], old_address, endpoint[0])
    if packet[sum_at : sum_at + 2] != b"\0\0" or flow.protocol == TCP:  # UDP may go without
        changed[sum_at : sum_at + 2] = adjusted(
            packet[sum_at : sum_at + 2], old_address + old_port, endpoint[0] + new_port
        )
    return bytes(changed)


def adjusted(checksum: bytes, old: bytes, new: bytes) -> bytes:
    """Return the internet checksum after ``old`` became ``new`` in what it covers (RFC 1624, equation 3)."""
    total = ~int.from_bytes(checksum, "big") & 0xFFFF
    for at in range(0, len(old), 2):
        total += (~int.from_bytes(old[at : at + 2], "big") & 0xFFFF) + int.from_bytes(new[at : at + 2], "big")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")
