"""The wires of the test internet: a program that passes IP packets between network namespaces that it makes.

Each host is a namespace with one TUN device; what its kernel sends is read here, delayed, lost, held up by a
partition or translated by a router, and written to the device of the receiver.  So delay, loss and NAT meet real TCP
of the kernel, and need neither netem nor netfilter.  Orders come as JSON lines on stdin, each gets one line on stdout;
when stdin ends, so do the namespaces and every process in them.  Linux only: ``tests/e2e/netns.py`` starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.nat import Nat

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1_400
MAX_WAITING_BYTES = 4 << 20  # per receiver; more is lost, as in any router
READS = 64  # packets of one host before the others get their turn


@dataclass
class Way:
    """One direction between two hosts."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    last: float = 0.0  # packets do not overtake each other


@dataclass
class Port:
    """One host, as the wire sees it."""

    name: str
    address: bytes
    nat: Nat | None
    device: int
    holder: int
    plugged: bool = True
    rate_bytes_per_s: float = 0.0  # of what it sends; 0: no limit
    free_at: float = 0.0
    waiting_bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class Wire:
    """All hosts, and the packets under way between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # which packets are lost is no secret
        self.selector = selectors.DefaultSelector()
        self.ports: dict[str, Port] = {}
        self.public: dict[bytes, Port | Nat] = {}
        self.lans: dict[str, Nat] = {}
        self.paths: dict[tuple[str, str], Way] = {}
        self.default = Way()
        self.parts: list[frozenset[str]] = []
        self.flying: list[tuple[float, int, Port, bytes]] = []
        self.sent = 0
        self.life = os.pipe()  # holders see its end

    # orders -------------------------------------------------------------------

    def router(self, name: str, address: str, symmetric: bool) -> None:
        nat = self.lans[name] = Nat(socket.inet_aton(address), symmetric)
        self.public[nat.address] = nat

    def host(self, name: str, address: str, prefix: int, router: str | None) -> int:
        device, holder = make_host(f"{address}/{prefix}", self.life)
        port = Port(name, socket.inet_aton(address), self.lans[router] if router else None, device, holder)
        self.ports[name] = port
        if router is None:
            self.public[port.address] = port
        self.selector.register(device, selectors.EVENT_READ, port)
        return holder

    def path(self, a: str | None, b: str | None, delay_ms: float, jitter_ms: float, loss: float) -> None:
        for pair in ((a, b), (b, a)):
            made = Way(delay_ms / 1_000, jitter_ms / 1_000, loss)
            if pair[0] is None or pair[1] is None:
                self.default, self.paths = made, {}
            else:
                self.paths[pair[0], pair[1]] = made

    def split(self, parts: list[list[str]]) -> None:
        self.parts = [frozenset(part) for part in parts]

    def plug(self, name: str, plugged: bool) -> None:
        self.ports[name].plugged = plugged

    def rate(self, name: str, bytes_per_s: float) -> None:
        self.ports[name].rate_bytes_per_s = bytes_per_s

    def stats(self) -> dict[str, Any]:
        refused = {name: nat.refused for name, nat in self.lans.items()}
        return {"hosts": {name: dict(port.counts) for name, port in self.ports.items()}, "refused": refused}

    # packets ------------------------------------------------------------------

    def read(self, port: Port) -> None:
        for _ in range(READS):
            try:
                packet = os.read(port.device, 65_535)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:
                self.pass_on(port, packet)

    def pass_on(self, source: Port, packet: bytes) -> None:
        target = packet[16:20]
        if 224 <= target[0] < 240:  # multicast stays in the LAN
            for port in self.ports.values():
                if source.nat is not None and port.nat is source.nat and port is not source:
                    self.send(source, port, packet)
            return
        routed = self.find(source, target, packet)
        if routed is None:
            source.counts["unrouted"] += 1
        else:
            self.send(source, *routed)

    def find(self, source: Port, target: bytes, packet: bytes) -> tuple[Port, bytes] | None:
        """Return who gets the packet, and what it looks like there."""
        if source.nat is not None:
            neighbour = self.inside(source.nat, target)
            if neighbour is not None:
                return neighbour, packet
            translated = source.nat.outbound(packet)
            if translated is None:
                return None
            packet = translated
        found = self.public.get(target)
        if not isinstance(found, Nat):
            return (found, packet) if found is not None else None
        entered = found.inbound(packet)
        receiver = self.inside(found, entered[16:20]) if entered is not None else None
        return (receiver, entered) if receiver is not None and entered is not None else None

    def inside(self, nat: Nat, address: bytes) -> Port | None:
        return next((one for one in self.ports.values() if one.nat is nat and one.address == address), None)

    def send(self, source: Port, target: Port, packet: bytes) -> None:
        path = self.paths.get((source.name, target.name))
        if path is None:
            path = self.paths[source.name, target.name] = Way(
                self.default.delay_s, self.default.jitter_s, self.default.loss
            )
        if not (source.plugged and target.plugged) or self.apart(source.name, target.name):
            source.counts["cut"] += 1
            return
        if target.waiting_bytes > MAX_WAITING_BYTES or self.random.random() < path.loss:
            source.counts["lost"] += 1
            return
        now = time.monotonic()
        if source.rate_bytes_per_s:
            now = source.free_at = max(now, source.free_at) + len(packet) / source.rate_bytes_per_s
        path.last = max(path.last, now + path.delay_s + self.random.random() * path.jitter_s)
        source.counts["sent"] += 1
        source.counts["bytes"] += len(packet)
        target.waiting_bytes += len(packet)
        self.sent += 1
        heapq.heappush(self.flying, (path.last, self.sent, target, packet))

    def apart(self, a: str, b: str) -> bool:
        """Say whether a partition lies between two hosts; who is in no part reaches all."""
        of_a = next((part for part in self.parts if a in part), None)
        of_b = next((part for part in self.parts if b in part), None)
        return of_a is not None and of_b is not None and of_a is not of_b

    def deliver(self) -> float | None:
        """Write what is due; return the seconds until the next is."""
        while self.flying:
            wait = self.flying[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, target, packet = heapq.heappop(self.flying)
            target.waiting_bytes -= len(packet)
            if target.plugged:
                try:
                    os.write(target.device, packet)
                except OSError:  # the receiver's queue is full
                    target.counts["overrun"] += 1
        return None

    def run(self) -> None:
        """Serve until stdin ends."""
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        orders: dict[str, Callable[..., Any]] = {
            "router": self.router, "host": self.host, "path": self.path, "split": self.split,
            "plug": self.plug, "rate": self.rate, "stats": self.stats,
        }  # fmt: skip
        rest = b""
        while True:
            for key, _ in self.selector.select(self.deliver()):
                if key.data is not None:
                    self.read(key.data)
                    continue
                data = os.read(sys.stdin.fileno(), 65_536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    reply(orders, json.loads(line))


def reply(orders: dict[str, Callable[..., Any]], order: dict[str, Any]) -> None:
    try:
        answer = {"ok": orders[order.pop("op")](**order)}
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


def make_host(network: str, life: tuple[int, int]) -> tuple[int, int]:
    """Make a namespace with a TUN device of this address; return the device and the process that holds them."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            hold(network, theirs, life)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    with ours:
        message, devices, _, _ = socket.recv_fds(ours, 4_096, 1)
    if not devices:
        raise RuntimeError(message.decode() or "the holder of a namespace ended at once")
    os.set_blocking(devices[0], False)
    return devices[0], pid


def hold(network: str, wire: socket.socket, life: tuple[int, int]) -> None:
    """Hold a namespace until the wire ends, then end whatever runs in it."""
    close_all_but(2, wire.fileno(), life[0])  # the other hosts' devices are the wire's alone
    try:
        device = make_device()
        for command in (
            "link set lo up",
            f"addr add {network} dev net0",
            f"link set net0 mtu {MTU} txqueuelen 5000 multicast on up",
            "route add default dev net0",
        ):
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", b"") or b""
        wire.sendall(f"{error} {detail.decode(errors='replace')}".encode())
        return
    socket.send_fds(wire, [b"ok"], [device])
    wire.close()
    os.close(device)  # the wire has it: it vanishes with the wire
    os.read(life[0], 1)
    end_all_here()


def close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)  # becomes 0
    os.dup2(null, 1)


def make_device() -> int:
    """Move this process to a new namespace and return its only device, net0.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no new network namespace: {os.strerror(code)}")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN | IFF_NO_PI))
    return device


def end_all_here() -> None:
    """Kill the other processes of this namespace: nodes that a killed test left behind."""
    here = os.readlink("/proc/self/ns/net")
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                if os.readlink(entry / "ns" / "net") == here:
                    os.kill(int(entry.name), signal.SIGKILL)


if __name__ == "__main__":
    Wire(int(sys.argv[1])).run()
