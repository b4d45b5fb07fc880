"""The test internet does what the tests on it rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.netns import CHECKOUT, Host, Internet, internet

pytestmark = pytest.mark.e2e

PORT = 7_000
LIMIT_S = 60.0
SERVE = f"""
import socket
server = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    one, peer = server.accept()
    with one:
        one.sendall(peer[0].encode())
"""
CALL = f"""
import socket, sys, time
start = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[2])) as one:
        print(one.recv(99).decode(), time.monotonic() - start)
except TimeoutError:
    print("timeout 0")
"""
PUNCH = f"""
import socket, sys, time
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("0.0.0.0", {PORT}))
    one.settimeout(2)
    try:
        one.connect((sys.argv[1], {PORT}))
    except OSError:
        one.close()
        continue
    one.sendall(b"hello")
    print(one.recv(5).decode())
    break
"""
SAVE = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
one.sendall(bytes(1_000_000))
one.shutdown(socket.SHUT_WR)
print(one.recv(9).decode())
"""
COUNT = """
import socket
server = socket.create_server(("0.0.0.0", 7001))
print("ready", flush=True)
one, _ = server.accept()
total = 0
while data := one.recv(65536):
    total += len(data)
one.sendall(str(total).encode())
"""


@pytest.fixture
def net() -> Iterator[Internet]:
    with internet(seed=7) as made:
        yield made


def start(host: Host, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = host.inside([sys.executable, "-I", "-S", "-c", program, *arguments])
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def serve(host: Host, program: str = SERVE) -> None:
    """Start a server; it ends with the internet."""
    server = start(host, program)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"


def call(host: Host, address: str, timeout_s: float = 30.0) -> tuple[str, float]:
    """Return who the server saw ("timeout": nobody answered), and how long it took."""
    out, _ = start(host, CALL, address, str(timeout_s)).communicate(timeout=LIMIT_S)
    peer, seconds = out.split()
    return peer, float(seconds)


def test_delay_loss_partition_and_unplugged_hosts(net: Internet) -> None:
    a, b = net.host("a"), net.host("b")
    net.path("a", "b", delay_ms=60)
    serve(b)
    peer, seconds = call(a, b.address)
    assert peer == a.address
    assert seconds >= 0.18  # three packets: there, back, and the answer with the second one's acknowledgement

    net.split(["a"], ["b"])
    assert call(a, b.address, 0.5)[0] == "timeout"
    net.heal()
    assert call(a, b.address)[0] == a.address

    net.unplug("b")
    assert call(a, b.address, 0.5)[0] == "timeout"
    net.plug("b")
    net.path("a", "b", delay_ms=5, loss=0.05)
    serve(b, COUNT)
    out, _ = start(a, SAVE, b.address, "7001").communicate(timeout=LIMIT_S)
    assert out == "1000000\n"
    counts = net.stats()["hosts"]["a"]
    assert counts["lost"] > 0
    assert counts["cut"] > 0


def test_behind_a_router_out_works_and_in_does_not(net: Internet) -> None:
    outside = net.router("home")
    a, inner, neighbour = net.host("a"), net.host("inner", router="home"), net.host("neighbour", router="home")
    for host in (a, inner):
        serve(host)
    assert call(inner, a.address)[0] == outside  # what a sees is the router
    assert call(a, outside, 0.5)[0] == "timeout"
    assert call(a, inner.address, 0.5)[0] == "timeout"
    assert call(neighbour, inner.address)[0] == neighbour.address
    assert net.stats()["refused"]["home"] > 0


@pytest.mark.parametrize(("symmetric", "met"), [(False, True), (True, False)])
def test_holes_are_punched_through_ordinary_routers_only(net: Internet, symmetric: bool, met: bool) -> None:
    left, right = net.router("left", symmetric=symmetric), net.router("right", symmetric=symmetric)
    a, b = net.host("a", router="left"), net.host("b", router="right")
    net.path("a", "b", delay_ms=30)
    seconds = "20" if met else "4"
    runs = [start(a, PUNCH, right, seconds), start(b, PUNCH, left, seconds)]
    assert [run.communicate(timeout=LIMIT_S)[0] == "hello\n" for run in runs] == [met, met]


def test_what_one_host_sends_is_bounded(net: Internet) -> None:
    a, b = net.host("a"), net.host("b")
    net.rate("a", 500_000)
    serve(b, COUNT)
    start_s = time.monotonic()
    out, _ = start(a, SAVE, b.address, "7001").communicate(timeout=LIMIT_S)
    assert out == "1000000\n"
    assert time.monotonic() - start_s > 1.9


def test_a_killed_test_leaves_no_process(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "from tests.e2e.netns import internet\n"
        "with internet() as net:\n"
        "    host = net.host('a')\n"
        f"    node = subprocess.Popen(host.inside(['sleep', '1000']), cwd={str(tmp_path)!r})\n"
        "    print(host.pid, node.pid, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with internet():  # or it is skipped here
        pass
    run = subprocess.Popen([sys.executable, "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    left = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    _, alive = psutil.wait_procs(left, timeout=LIMIT_S)
    assert alive == []
