"""What a bare py-libp2p stream carries between two processes: the measure of blob throughput.

`python -m benchmarks.network_bare` serves bytes on a stream and prints its address; `measure` starts that and reads.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import trio

from gdf_market.node.frames import write
from gdf_market.node.p2p import Host, open_host

PROTOCOL = "/bench/bytes/1"
_READ_BYTES = 65_536
_READY_S = 120.0


async def _serve() -> None:
    async def handle(stream: Any) -> None:
        size = int.from_bytes(await stream.read(8), "big")
        await write(stream, bytes(size))
        await stream.read(1)  # until the reader is done

    def prepare(host: Host) -> None:
        host.handle(PROTOCOL, handle, lambda peer, error: None)

    async with open_host(None, ("127.0.0.1", 0), prepare=prepare) as host:
        print(host.account, host.addresses[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def measure(size: int) -> float:
    """Return the seconds that ``size`` bytes take on one stream from another process."""
    server = await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.network_bare"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    line = b""
    with trio.fail_after(_READY_S):
        while b"\n" not in line:
            line += await server.stdout.receive_some()
    peer, address = line.decode().split()
    async with open_host(None, ("127.0.0.1", 0)) as host:
        assert await host.dial(peer, [address])
        stream: Any = await host.open_stream(peer, PROTOCOL)
        began, got = trio.current_time(), 0
        await stream.write(size.to_bytes(8, "big"))
        while got < size:
            got += len(await stream.read(_READ_BYTES))
        seconds = trio.current_time() - began
        await stream.reset()
    server.kill()
    await server.wait()
    await server.stdin.aclose()
    await server.stdout.aclose()
    return seconds


if __name__ == "__main__":
    trio.run(_serve)
