"""One attacker: ``python -m tests.hostile.attacker NAME``; JSON in on stdin, a tally out on stdout."""

from __future__ import annotations

import json
import os
import sys

import trio

from tests.hostile.kit import Ground, Target
from tests.hostile.registry import ATTACKS


async def _main(name: str, seconds: float, seed: int, target: Target) -> None:
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    ground = Ground(target, seed)
    with trio.move_on_after(seconds):
        await ATTACKS[name].run(ground)
    sys.stdout.write(ground.tally.text() + "\n")
    sys.stdout.flush()
    os._exit(0)  # connections that the victim does not serve would hold up a polite end


def main() -> None:
    """Attack for the given seconds."""
    given = json.loads(sys.stdin.readline())
    if hasattr(os, "nice"):
        os.nice(5)  # the machine of a real attacker is another one
    target = Target(given["address"], given["network"], given["root"], tuple(given["funded"]))
    trio.run(_main, sys.argv[1], float(given["seconds"]), int(given["seed"]), target)


if __name__ == "__main__":
    main()
