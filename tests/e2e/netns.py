"""A small internet for tests: hosts with addresses of their own, delay, loss, partitions and home routers.

Linux only, as root or where user namespaces are allowed; elsewhere ``internet()`` skips the test and says why.
Namespaces have no names, so runs never collide, and end with the test's process however it ends (``wire.py``).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdf_market.demo.processes import Member

CHECKOUT = Path(__file__).resolve().parents[2]
ANSWER_S = 30.0
# asks a node's API from inside its namespace; the standard library alone, so that it starts fast
ASK = """
import sys, urllib.request as web
url, token, *body = sys.argv[1:]
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
request = web.Request(url, headers=headers, data=body[0].encode() if body else None)
print(web.urlopen(request, timeout=60).read().decode())
"""


class WireError(Exception):
    """The wire could not do what it was told; the message is its own."""


@dataclass(frozen=True)
class Host:
    """One namespace: what runs ``inside`` it has this address and nothing else but its loopback."""

    name: str
    address: str
    pid: int

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` on this host; its process id is the command's own."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.pid), *user, "--net", "--", *command]


class Internet:
    """Hosts and routers at 10.77.0.0/16; LANs behind routers are 192.168.<n>.0/24.  Make it with ``internet()``."""

    def __init__(self, seed: int = 0) -> None:
        user = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
        self._process = subprocess.Popen(
            [*user, sys.executable, "-m", "tests.e2e.wire", str(seed)],
            cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._random = random.Random(seed)  # delays
        self._public = itertools.count(1)
        self._lans: dict[str, tuple[int, Iterator[int]]] = {}
        self.hosts: dict[str, Host] = {}

    def router(self, name: str, *, symmetric: bool = False) -> str:
        """Add a home router (NAT) and return its public address; hosts behind it reach out, nobody reaches in."""
        address = self._address()
        self._lans[name] = (len(self._lans) + 1, itertools.count(2))
        self._order("router", name=name, address=address, symmetric=symmetric)
        return address

    def host(self, name: str, *, router: str | None = None) -> Host:
        """Add a host with a public address, or one in the LAN of ``router``.  Multicast works within a LAN."""
        if router is None:
            address, prefix = self._address(), 16
        else:
            number, numbers = self._lans[router]
            address, prefix = f"192.168.{number}.{next(numbers)}", 24
        pid = self._order("host", name=name, address=address, prefix=prefix, router=router)
        self.hosts[name] = Host(name, address, pid)
        return self.hosts[name]

    def path(self, a: str, b: str, *, delay_ms: float, jitter_ms: float = 0.0, loss: float = 0.0) -> None:
        """Set one-way delay, jitter and the share of lost packets between two hosts, in both directions."""
        self._order("path", a=a, b=b, delay_ms=delay_ms, jitter_ms=jitter_ms, loss=loss)

    def paths(self, *, delay_ms: tuple[float, float], jitter_ms: float = 0.0, loss: float = 0.0) -> None:
        """Give every pair of the hosts so far a one-way delay between the two bounds."""
        for a, b in itertools.combinations(self.hosts, 2):
            self.path(a, b, delay_ms=self._random.uniform(*delay_ms), jitter_ms=jitter_ms, loss=loss)

    def split(self, *parts: Sequence[str]) -> None:
        """Let packets pass within each part only; a host that is in none reaches all."""
        self._order("split", parts=[list(part) for part in parts])

    def heal(self) -> None:
        """End the partition."""
        self._order("split", parts=[])

    def unplug(self, name: str) -> None:
        """Cut a host off without a word to its peers."""
        self._order("plug", name=name, plugged=False)

    def plug(self, name: str) -> None:
        """Connect it again."""
        self._order("plug", name=name, plugged=True)

    def rate(self, name: str, bytes_per_s: float) -> None:
        """Bound what a host sends (0: no bound)."""
        self._order("rate", name=name, bytes_per_s=bytes_per_s)

    def stats(self) -> dict[str, Any]:
        """Return packets sent, lost and cut by host, and what each router refused."""
        found: dict[str, Any] = self._order("stats")
        return found

    def close(self) -> None:
        """End all hosts and whatever runs on them."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _address(self) -> str:
        number = next(self._public)
        return f"10.77.{number // 250}.{number % 250 + 1}"

    def _order(self, op: str, **fields: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError as error:
            raise WireError(f"the wire has ended: {error}") from None
        if not line:
            raise WireError("the wire ended at once: are user namespaces allowed here?")
        answer = json.loads(line)
        if "error" in answer:
            raise WireError(answer["error"])
        return answer["ok"]


@functools.cache
def unavailable() -> str:
    """Return why there can be no test internet here; "" if there can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's; this is {sys.platform}"
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing (iproute2, util-linux)"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    trial = Internet()
    try:
        trial.host("trial")
    except WireError as error:
        return f"no network namespace can be made here: {error}"
    finally:
        trial.close()
    return ""


@contextlib.contextmanager
def internet(seed: int = 0) -> Iterator[Internet]:
    """Give a test internet for the length of the context; skips the test where there can be none."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    made = Internet(seed)
    try:
        yield made
    finally:
        made.close()


class Machine(Member):
    """A member whose processes run on a host of the test internet."""

    def __init__(self, host: Host, root: Path) -> None:
        super().__init__(host.name, root)
        self.host = host

    @property
    def listen(self) -> tuple[str, str]:
        """The options that let its node be reached at the host's address."""
        return ("--listen", f"{self.host.address}:4001")

    def command(self, *arguments: str) -> list[str]:
        return self.host.inside(super().command(*arguments))

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return what the node's API answers to a GET, or to a POST of ``body``; None while it does not."""
        found = self.data.running()
        if found is None:
            return None
        call = [sys.executable, "-I", "-S", "-c", ASK, found[0] + path, found[1]]
        call += [json.dumps(body)] if body is not None else []
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            run = subprocess.run(self.host.inside(call), stdout=subprocess.PIPE, timeout=2 * ANSWER_S, check=False)
            answer = json.loads(run.stdout)
            return answer if isinstance(answer, dict) else None
        return None

    def status(self) -> dict[str, Any] | None:
        return self.ask("/status")
