"""How often is an honest worker accused?  Units and audits by runner processes, started and asked as a node does.

    python -m benchmarks.honest_audits --fast       # 144 audits, two minutes on one core; prints Markdown
    python -m benchmarks.honest_audits --write      # 1,080 audits, and benchmarks/results/honest_audits.md

Every machine (a runner with its own threads, instruction set and memory) trains its unit of each kind (program, inner
optimizer, bits of the update), and audits its own units and those of the machines before it.  Rounds follow each other
by the real outcome of the one before.  Verdicts are the contracts', on the steps that a beacon draws; beside them
stands the largest distance over all steps.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.honest_report import RESULTS, Measured, report
from benchmarks.honest_world import JOB, MACHINES, Kind, Machine, kinds
from contracts.draws import compute_opened_steps
from contracts.evidence import check_openings, compute_distance_ppb, compute_sketch_distance_ppb
from contracts.parameters import OPENED_STEPS, verdict
from contracts.records import Unit
from gdf_market.node.journal import Journal, UnitNote
from gdf_market.node.runner_process import RunnerProcess
from gdf_market.node.trainer import COMMAND
from gdf_market.train import protocol
from verifier.sketch import openings, sketch_tree

SILENCE_S = 600.0
INTERRUPTED_AFTER = 7  # steps of a unit that is then begun again
POLL_S = 0.002
DEVICE_CLASS = "cpu-fp32"

Sketches = tuple[tuple[int, ...], ...]


class Claim(msgspec.Struct, frozen=True):
    """One machine's unit of one kind, as its worker would reveal it."""

    kind: Kind
    round: int
    worker: int  # place in MACHINES, and the unit's shard
    update: Path
    sketches: Sketches


class Bench:
    """The rounds of all kinds, in a folder."""

    def __init__(self, folder: Path, chosen: Sequence[Kind], machines: Sequence[Machine]) -> None:
        self.folder, self.kinds, self.machines = folder, chosen, machines
        self.checkpoints = {kind: kind.checkpoint for kind in chosen}
        self.repeated: Counter[bool] = Counter()  # units that a rejoined worker ran twice: were they the same bytes?
        self.flags = 0

    async def train(self, machine: int, index: int, runner: RunnerProcess) -> list[Claim]:
        """Let a machine train its unit of every kind."""
        return [await self._unit(kind, machine, index, runner) for kind in self.kinds]

    async def _unit(self, kind: Kind, machine: int, index: int, runner: RunnerProcess) -> Claim:
        out = self.folder / f"{kind.name}-{index}-{machine}".replace(" ", "-")
        request = protocol.TrainRequest(**self._fields(kind, machine, machine, index), out=str(out))
        if self.machines[machine].rejoins and kind.bits == 4:
            await interrupt(runner, request)
        reply = await runner.ask(request, protocol.TrainReply)
        sketches = reply.sketches
        if self.machines[machine].rejoins:
            before = out.read_bytes()
            sketches = _through_journal(self.folder / "journal", index, machine, sketches)
            again = await runner.ask(request, protocol.TrainReply)
            self.repeated[out.read_bytes() == before and again.sketches == sketches] += 1
        return Claim(kind, index, machine, out, sketches)

    async def audit(self, machine: int, claims: Sequence[Claim], runner: RunnerProcess) -> list[Measured]:
        """Let a machine audit units, one kind after another: a runner keeps the last program."""
        order = sorted(claims, key=lambda claim: self.kinds.index(claim.kind))
        return [await self._audit(machine, claim, runner) for claim in order]

    async def _audit(self, machine: int, claim: Claim, runner: RunnerProcess) -> Measured:
        fields = self._fields(claim.kind, machine, claim.worker, claim.round)
        reply = await runner.ask(protocol.AuditRequest(**fields, claim=str(claim.update)), protocol.AuditReply)
        steps = claim.kind.recipe.steps
        drawn = compute_opened_steps(_beacon(claim.round), _unit_of(claim), str(machine), steps, OPENED_STEPS)
        sides = [_opened(sketches, drawn) for sketches in (reply.sketches, claim.sketches)]
        distance = compute_sketch_distance_ppb(*sides)
        return Measured(
            kind=claim.kind.name,
            bits=claim.kind.bits,
            worker=self.machines[claim.worker].name,
            auditor=self.machines[machine].name,
            excess_ppb=reply.excess_ppb,
            decoded_ppb=reply.distance_ppb,
            sketch_ppb=distance,
            any_step_ppb=max(map(compute_distance_ppb, reply.sketches, claim.sketches)),
            verdict=verdict(DEVICE_CLASS, reply.excess_ppb, distance),
        )

    async def finish(self, index: int, claims: Sequence[Claim], runner: RunnerProcess) -> None:
        """Compute the outcome of a round of every kind; it gives the next checkpoint."""
        for kind in self.kinds:
            mine = {claim.worker: claim for claim in claims if claim.kind is kind}
            out = self.folder / f"{kind.name}-checkpoint-{index + 1}".replace(" ", "-")
            request = protocol.OutcomeRequest(
                program=str(kind.program),
                checkpoint=str(self.checkpoints[kind]),
                recipe=kind.recipe,
                updates={worker: str(claim.update) for worker, claim in mine.items()},
                shards={worker: worker for worker in mine},
                out=str(out),
            )
            reply = await runner.ask(request, protocol.OutcomeReply)
            assert len(reply.included) == len(mine), f"the form check rejects honest updates: {reply.rejected}"
            self.flags += len(reply.flags)
            self.checkpoints[kind] = out

    def _fields(self, kind: Kind, machine: int, shard: int, index: int) -> dict[str, Any]:
        # audits of a round run when the next one has a checkpoint already
        name = f"{kind.name}-checkpoint-{index}".replace(" ", "-")
        return {
            "program": str(kind.program),
            "data": str(kind.data),
            "content": str(kind.content),
            "checkpoint": str(self.folder / name if index else kind.checkpoint),
            "recipe": kind.recipe,
            "job": JOB,
            "round": index,
            "done": index,
            "shard": shard,
            "shards": len(MACHINES),
            "threads": self.machines[machine].threads,
            "memory_bytes": kind.memory_bytes[self.machines[machine].rows],
        }


async def interrupt(runner: RunnerProcess, request: protocol.TrainRequest) -> None:
    """Begin a unit and end it, with its process, before it is done: what a power cut leaves is nothing."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.ask, request, protocol.TrainReply)
        while runner.progress is None or runner.progress[0] < INTERRUPTED_AFTER:  # noqa: ASYNC110  (nothing to await)
            await trio.sleep(POLL_S)
        nursery.cancel_scope.cancel()
    assert runner.pid is None


def _through_journal(folder: Path, index: int, slot: int, sketches: Sketches) -> Sketches:
    """Return the sketches as a worker that restarted after its commit finds them."""
    folder.mkdir(exist_ok=True)
    root = sketch_tree(sketches).root().hex()
    zero = "0" * 64
    note = UnitNote(
        job=JOB,
        round=index,
        slot=slot,
        update=zero,
        proof="0" * 160,
        salt=zero,
        sketch_root=root,
        sketches=sketches,
    )
    Journal(folder).save(note)
    found = Journal(folder).unit(JOB, index, slot)
    assert found is not None
    assert found.sketch_root == sketch_tree(found.sketches).root().hex()
    return found.sketches


def _opened(sketches: Sketches, steps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Open steps as an entry does, and read them as the contracts do."""
    root = sketch_tree(sketches).root().hex()
    found = check_openings(openings(sketches, steps), root, len(sketches))
    return [found[step] for step in steps]


def _beacon(index: int) -> str:
    return hashlib.sha256(b"honest audits" + index.to_bytes(8, "big")).hexdigest()


def _unit_of(claim: Claim) -> Unit:
    return Unit(job=JOB, round=claim.round, slot=claim.worker, worker=str(claim.worker), status="accepted")


async def measure(bench: Bench, rounds: int, auditors: int, say: Callable[[str], None]) -> list[Measured]:
    """Return every audit of ``rounds`` rounds; each unit is audited by so many machines, its own first."""
    runners = [RunnerProcess(COMMAND, setting.variables(), SILENCE_S) for setting in bench.machines]
    try:
        return await _rounds(bench, runners, rounds, auditors, say)
    finally:
        for runner in runners:
            await runner.stop()


async def _rounds(
    bench: Bench, runners: Sequence[RunnerProcess], rounds: int, auditors: int, say: Callable[[str], None]
) -> list[Measured]:
    found: list[Measured] = []
    claims: list[Claim] = []
    count = len(bench.machines)
    for index in range(rounds + 1):
        trained: list[Claim] = []
        for machine, runner in enumerate(runners):
            mine = [claim for claim in claims if (machine - claim.worker) % count < auditors]
            found += await bench.audit(machine, mine, runner)
            if index < rounds:
                trained += await bench.train(machine, index, runner)
            say(f"round {index}, {bench.machines[machine].name}: {len(found)} audits so far")
        claims = trained
        if claims:
            await bench.finish(index, claims, runners[0])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="4 bits, one round, four auditors a unit")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    rounds, auditors = (1, 4) if arguments.fast else (2, 5)
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="gdf-honest-") as name:
        folder = Path(name)
        chosen = [kind for kind in kinds(folder) if kind.bits == 4 or not arguments.fast]
        bench = Bench(folder, chosen, MACHINES)
        found = trio.run(measure, bench, rounds, auditors, say)
        text = report(found, bench.repeated, bench.flags, rounds, time.perf_counter() - started, arguments.fast)
    print(text)
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
