"""Starting and ending attackers' processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdf_market.demo.processes import _environment as environment
from tests.hostile.market import Market, funded_seeds

END_S = 60.0  # beyond its time an attacker gets so long to print what it did


@dataclass
class Attacker:
    """A process that attacks a node for some seconds."""

    name: str
    process: subprocess.Popen[str]
    seconds: float

    def wait_begun(self) -> None:
        """Return when the attack begins: on a busy machine that takes a while."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n", f"attacker {self.name} did not start; see its log"

    def tally(self) -> dict[str, Any]:
        """Wait for the end; return what it did."""
        try:
            out, _ = self.process.communicate(timeout=self.seconds + END_S)
            found: dict[str, Any] = json.loads(out.removeprefix("begun\n") or "{}")
        except (subprocess.TimeoutExpired, ValueError):
            self.stop()
            found = {}
        return {"sent": Counter(found.get("sent", {})), "first_cut_s": found.get("first_cut_s")}

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def attack(market: Market, victim: str, name: str, *, seconds: float, seed: int = 1, root: str = "") -> Attacker:
    """Start an attacker; ``root`` is a blob that the victim holds."""
    status = market[victim].status()
    assert status is not None, f"{victim} does not answer"
    log = (market.root / f"attack-{name}.log").open("a", encoding="utf-8")
    with log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.attacker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment(),
            cwd=Path(__file__).resolve().parents[2],
        )
    given = {
        "address": status["addresses"][0],
        "network": status["network"],
        "root": root or "00" * 32,
        "funded": funded_seeds(),
        "seconds": seconds,
        "seed": seed,
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(given) + "\n")
    process.stdin.flush()
    return Attacker(name, process, seconds)
