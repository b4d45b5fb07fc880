"""What a dispute about one altered step costs by bisection, against a committee that runs the whole unit again.

    python -m benchmarks.sketches --cost        # a second; prints Markdown

Every step of the unit in turn is the altered one, with many draws of the two steps that an audit opens beside the last.
Entries are sealed as nodes seal them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.parameters import ARBITERS, COMMITTEE_SIZE, OPENED_STEPS
from gdf_market.identity import Identity
from gdf_market.messages import (
    SKETCH_DIM,
    ArbiterCommit,
    ArbiterOpen,
    AuditCommit,
    AuditOpen,
    BisectOpen,
    EntryBody,
    Opening,
    StateOffer,
    seal,
)
from gdf_market.train.unit_state import most_state_bytes
from verifier.sketch import openings

DRAWS = 200  # of the opened steps, for each altered step
NETWORK, JOB, HASH = "0" * 64, "a" * 64, "b" * 64
PARAMETERS = (160_768, 10_000_000)


@dataclass(frozen=True)
class Search:
    """One bisection: its turns, and the last step (0-based) on which both sides agree, -1 for the checkpoint."""

    turns: int
    low: int


def search(altered: int, opened: list[int]) -> Search:
    """Return the bisection for an altered step; ``opened`` holds the last step."""
    low = max((step for step in opened if step < altered), default=-1)
    high = min(step for step in opened if step >= altered)
    turns = 0
    while high > low + 1:
        turns += 1
        middle = (low + high) // 2
        low, high = (middle, high) if middle < altered else (low, middle)
    return Search(turns, low)


def searches(steps: int) -> Iterator[Search]:
    """Yield a bisection for each altered step and draw of the opened ones."""
    random = np.random.default_rng(0)
    for altered in range(steps):
        for _ in range(DRAWS):
            drawn = random.choice(steps - 1, OPENED_STEPS - 1, replace=False).tolist()
            yield search(altered, [steps - 1, *drawn])


def opening(steps: int) -> Opening:
    """Return an opening as large as those of the example: sketches of about ten digits a bucket."""
    sketch = tuple((-1) ** i * (10**8 + i) for i in range(SKETCH_DIM))
    return openings([sketch] * steps, (steps // 2,))[0]


def sizes(steps: int) -> dict[str, int]:
    """Return the bytes of each kind of entry of a dispute."""
    key = Identity(b"\1" * 32)
    head: dict[str, Any] = {"author": key.account, "nonce": 2**40, "expires_ms": 2**41, "job": JOB}
    head |= {"round": 7, "slot": 3}
    one = opening(steps)
    distances: dict[str, Any] = {"excess_ppb": 10**5, "salt": HASH}
    bodies: dict[str, EntryBody] = {
        "bisect_open": BisectOpen(**head, opening=one),
        "state_offer": StateOffer(**head, state=HASH),
        "arbiter_commit": ArbiterCommit(**head, digest=HASH),
        "arbiter_open": ArbiterOpen(
            **head, **distances, state_distance_ppb=10**4, sketch=one.sketch, seeded=one.sketch
        ),
        "audit_commit": AuditCommit(**head, role="committee", proof="", digest=HASH),
        "audit_open": AuditOpen(
            **head, **distances, distance_ppb=10**5, sketch_root=HASH, openings=(one,) * OPENED_STEPS
        ),
    }
    return {name: len(seal(key, NETWORK, body).raw) for name, body in bodies.items()}


def row(steps: int) -> str:
    """Return a Markdown row: what both ways take for a unit of so many steps."""
    found, size = list(searches(steps)), sizes(steps)
    turns = [each.turns for each in found]
    with_states = np.mean([each.low >= 0 for each in found])
    sides = [2 * (each.low + 1) for each in found]
    entries = 2 * np.mean(turns) + 2 * with_states + 2 * ARBITERS
    arbiters = ARBITERS * (size["arbiter_commit"] + size["arbiter_open"])
    volume = 2 * np.mean(turns) * size["bisect_open"] + 2 * with_states * size["state_offer"] + arbiters
    committee = COMMITTEE_SIZE * (size["audit_commit"] + size["audit_open"])
    cells = [
        str(steps),
        f"{np.mean(turns):.1f} / {max(turns)}",
        f"{ARBITERS} + {np.mean(sides):.0f} / {ARBITERS + max(sides)}",
        str(COMMITTEE_SIZE * steps),
        f"{entries:.1f}",
        str(2 * COMMITTEE_SIZE),
        f"{volume / 1_000:.1f} kB",
        f"{committee / 1_000:.1f} kB",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    columns = [
        "H",
        "turns, mean / most",
        "steps by bisection: arbiters + both sides, mean / most",
        "steps by committee",
    ]
    columns += ["entries by bisection", "by committee", "bytes by bisection", "by committee"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for steps in (20, 100, 1_000):
        print(row(steps))
    states = ", ".join(f"{most_state_bytes(n) / 1e6:.1f} MB for {n:,} parameters" for n in PARAMETERS)
    print(f"\nBlobs: each arbiter fetches two states of at most {states}; a member of a committee fetches none.")
