"""Every attack on one node of a small honest market, one after the other, and a table of what came of each.

``make hostile SECONDS=60``, or ``python -m tests.hostile --seconds 60 --only NAME``.  Exits with 1 if a bound that
docs/hostile.md states does not hold: the node lives, its memory is bounded, the market goes on.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.attackers import attack
from tests.hostile.market import Market
from tests.hostile.registry import ATTACKS
from tests.hostile.watch import MIB, Sample, Watch, sample

WORKERS = ("ben", "cleo")
VALIDATORS = ("ann", "ben")  # no block without the vote of the one that is attacked
VICTIM = "ben"
MAX_GROWTH = 150 * MIB  # of resident memory over what it was before the attack
ROUNDS = 10_000
QUIET_S = 6.0  # after an attack, before memory is looked at again


@dataclass(frozen=True)
class Result:
    """What one attack came to."""

    name: str
    sent: Counter[str]
    first_cut_s: float | None
    before: Sample
    peak: Sample
    after: Sample
    refused: Counter[str]
    rounds: int
    blocks: int
    latency_ms: tuple[int, int]
    silent: int
    alive: bool

    def failures(self) -> list[str]:
        """Return which of the bounds did not hold."""
        found = []
        if not self.alive:
            found.append("the node ended")
        if self.peak.rss - self.before.rss > MAX_GROWTH:
            found.append(f"memory grew by {(self.peak.rss - self.before.rss) // MIB} MiB")
        if self.blocks < 1 or self.rounds < 1:
            found.append(f"the market stood still: {self.rounds} rounds, {self.blocks} blocks")
        return found

    def row(self) -> str:
        """Return a line of the table."""
        sent = ", ".join(f"{count:,} {what}" for what, count in sorted(self.sent.items()))
        refused = ", ".join(f"{reason} {count:,}" for reason, count in self.refused.most_common(5))
        memory = " / ".join(str(one.rss // MIB) for one in (self.before, self.peak, self.after))
        cut = "never" if self.first_cut_s is None else f"{self.first_cut_s:.0f}"
        median, most = self.latency_ms
        cells = (
            self.name, sent, cut, memory, f"{self.peak.files} / {self.peak.sockets}", refused or "–", str(self.rounds),
            str(self.blocks), f"{median} / {most}" + (f" ({self.silent} without)" if self.silent else ""),
        )  # fmt: skip
        return "| " + " | ".join(cells) + " |"


HEAD = (
    "| attack | done | first cut off after, s | memory before / peak / after, MiB | files / sockets, peak | "
    "refused most | rounds | blocks | API median / max, ms |\n|---|---|---|---|---|---|---|---|---|"
)


def measure(market: Market, name: str, seconds: float, seed: int, root: str) -> Result:
    """Attack the victim for some seconds and look at it meanwhile."""
    victim = market[VICTIM]
    before = sample(victim)
    watch = Watch(victim)
    attacker = attack(market, VICTIM, name, seconds=seconds, seed=seed, root=root)
    watch.start()
    try:
        attacker.wait_begun()
        rounds, blocks = market.rounds_finished(), _height(market)
        tally = attacker.tally()
        finished, grown = market.rounds_finished() - rounds, _height(market) - blocks
    finally:
        attacker.stop()
        watch.end()
    time.sleep(QUIET_S)
    return Result(
        name=name,
        sent=tally["sent"],
        first_cut_s=tally["first_cut_s"],
        before=before,
        peak=watch.peak,
        after=sample(victim),
        refused=watch.refusals(),
        rounds=finished,
        blocks=grown,
        latency_ms=watch.latency_ms(),
        silent=watch.silent,
        alive=victim.alive,
    )


def _height(market: Market) -> int:
    with market.store() as store:
        head = store.head()
    return head.height if head is not None else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", action="append", choices=sorted(ATTACKS), help="repeat for several")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left behind
    root = Path(tempfile.mkdtemp(prefix="gdf-hostile-"))
    market = Market(root, validators=VALIDATORS, workers=WORKERS)
    failures: list[str] = []
    try:
        market.found()
        job = market.post(ROUNDS, minutes=600)
        market.until("the first rounds are done", lambda: market.rounds_finished() >= 2)
        blob = market.job(job).spec.data
        print(HEAD, flush=True)
        for number, name in enumerate(options.only or ATTACKS):  # each from an address of its own
            result = measure(market, name, options.seconds, options.seed + number, blob)
            print(result.row(), flush=True)
            failures += [f"{name}: {failure}" for failure in result.failures()]
            if not result.alive:
                break
    finally:
        market.close()
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        print(f"the nodes' logs are in {root}", file=sys.stderr)
        return 1
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
