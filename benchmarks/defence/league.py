"""The peers' trajectories: every rule trains its own model against the same attack, all of them at once.

They get what the market's aggregate gets: updates as decoded from 4 bits, shards drawn anew in each round, and the
outer step.  Unlike the market, each rule is told how many are bad, and bad workers stay to the end.  Values that are
not finite, which the market's codec cannot express, reach the rules as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.defence import baselines
from benchmarks.defence.adversary import Attack, Round
from benchmarks.defence.images import Floats
from benchmarks.defence.market import LAST, WORKERS
from benchmarks.defence.peers import Peers
from benchmarks.defence.world import BATCH, STEPS, Work, World
from gdf_market.train.codec import GRID_BITS, Codec
from gdf_market.units import PPM

LIMIT_S = 0.5  # CPU time that a rule has for a round; usual are some milliseconds
ROOT_SAMPLES = 100  # clean ones that FLTrust's server has
_OWN: dict[str, Callable[[Floats], Floats]] = {
    "mean": baselines.mean,
    "similarity-reject": baselines.similarity_reject,
}
FLTRUST = "FLTrust"
PEERS = (
    "ByzFL Median", "ByzFL TrMean", "ByzFL MultiKrum", "ByzFL Meamed", "ByzFL GeometricMedian",
    "ByzFL GeometricMedian, tuned", "ByzFL CenteredClipping", "ByzFL CenteredClipping, tuned", "ByzFL NNM + TrMean",
    "ByzFL ARC + NNM + TrMean, tuned", "ByzPy MultiKrum, tuned", "ByzPy CGE", "ByzPy CAF",
)  # fmt: skip
# the same numbers as one above, within 1e-6; so they need no trajectory of their own
REPEATED = {
    "ByzPy trimmed mean": "ByzFL TrMean",
    "ByzPy NNM + trimmed mean": "ByzFL NNM + TrMean",
    "ByzPy MultiKrum": "ByzFL MultiKrum",
    "ByzPy CenteredClipping, tuned": "ByzFL CenteredClipping, tuned",
    "ByzPy GeometricMedian": "ByzFL GeometricMedian, tuned",
    "ByzPy median": "ByzFL Median (of an even number the lower middle one)",
}
RULES = ("mean", FLTRUST, "similarity-reject", *PEERS)


@dataclass(frozen=True)
class Score:
    """What a rule's model was worth in the last rounds, and how often the rule failed with an error."""

    rule: str
    accuracy: float
    backdoor: float
    errors: int
    error: str


def compete(world: World, attack: Attack, bad: int, rounds: int, peers: Peers, rules: Sequence[str]) -> list[Score]:
    """Train one model per rule for ``rounds`` rounds against ``bad`` of 20 workers."""
    return _League(world, attack, bad, peers, rules).play(rounds)


class _League:
    def __init__(self, world: World, attack: Attack, bad: int, peers: Peers, rules: Sequence[str]) -> None:
        self._world, self._attack, self._bad, self._peers = world, attack, bad, peers
        self._rules = list(rules)
        self._codec = Codec.of(world.recipe)
        self._parameters = np.repeat(world.first[None], len(rules), axis=0)
        self._momentum = np.zeros_like(self._parameters)
        self._history: list[Floats] = []
        self._errors: list[list[str]] = [[] for _ in rules]
        root = np.random.default_rng([world.seed, 11])
        self._root = root.choice(len(world.images.y), ROOT_SAMPLES, replace=False)

    def play(self, rounds: int) -> list[Score]:
        scores = []
        for index in range(rounds):
            with np.errstate(all="ignore"):  # a model that has left float32 stays in the race as it is
                self._round(index)
            if index >= rounds - LAST:
                scores.append((self._world.accuracy(self._parameters), self._world.backdoor_success(self._parameters)))
        means = np.mean(scores, axis=0)  # [2, rules]
        return [
            Score(rule, float(right), float(backdoor), len(errors), errors[0] if errors else "")
            for rule, right, backdoor, errors in zip(self._rules, *means, self._errors, strict=True)
        ]

    def _round(self, index: int) -> None:
        self._history.append(self._parameters)
        stacks = self._updates(index)
        servers = self._server(index)
        aggregates = np.empty_like(self._parameters)
        asked = [i for i, rule in enumerate(self._rules) if rule in PEERS]
        for i, rule in enumerate(self._rules):
            if rule == FLTRUST:
                aggregates[i] = baselines.fltrust(stacks[i], servers[i])
            elif rule in _OWN:
                aggregates[i] = _OWN[rule](stacks[i])
        if asked:
            names = [self._rules[i] for i in asked]
            answer = self._peers.aggregate(names, stacks[asked], self._bad, limit_s=LIMIT_S)
            for i, aggregate, error in zip(asked, answer.aggregates, answer.errors, strict=True):
                aggregates[i] = 0.0 if error else aggregate  # a rule that fails has a round without a step
                self._errors[i] += [error] if error else []
        mu = np.float32(self._world.recipe.outer_momentum_ppm / PPM)
        self._momentum = mu * self._momentum + aggregates
        step = aggregates + mu * self._momentum  # Nesterov, as gdf_market.train.outer has it
        self._parameters = (self._parameters - np.float32(self._world.recipe.outer_lr_ppm / PPM) * step).astype(
            np.float32
        )

    def _updates(self, index: int) -> Floats:
        """Return f32[rules, w, n]: what the workers of every rule hand in, the bad ones last."""
        world, attack, seed = self._world, self._attack, self._world.seed
        draws = np.random.default_rng([seed, index, 13]).integers(len(world.shards), size=WORKERS)
        first_bad = WORKERS - self._bad
        cheating = [w >= first_bad and attack.cheats(w, first_bad, index, seed) for w in range(WORKERS)]
        works: list[Work] = []
        for rule in range(len(self._rules)):
            history = [parameters[rule] for parameters in self._history[-4:]]
            for worker, shard in enumerate(draws):
                work = world.unit(history[-1], index, int(shard))
                if cheating[worker] and attack.prepare is not None:
                    work = attack.prepare(work, np.random.default_rng([seed, index, worker, 5]), history)
                works.append(work)
        stacks = world.train(works).deltas.reshape(len(self._rules), WORKERS, world.size)
        chosen = np.flatnonzero(cheating)
        if attack.forge is not None and len(chosen):
            others = np.flatnonzero(~np.array(cheating))
            friend = int(np.argmax(others >= first_bad))
            for stack in stacks:
                seen = Round(index, seed, stack[others], stack[chosen], tuple(chosen.tolist()), friend)
                stack[chosen] = attack.forge(seen)
        for row in stacks.reshape(-1, world.size):
            if np.isfinite(row).all() and np.abs(row).max() < 3.9:
                made = self._codec.quantise(row)
                row[:] = made.values() * np.float32(2.0**-GRID_BITS)
        return stacks

    def _server(self, index: int) -> Floats:
        """Return f32[rules, n]: FLTrust's own update on its clean samples, zeros for the other rules."""
        found = np.zeros_like(self._parameters)
        wanted = [i for i, rule in enumerate(self._rules) if rule == FLTRUST]
        samples = self._root[
            np.random.default_rng([self._world.seed, index, 17]).integers(ROOT_SAMPLES, size=(STEPS, BATCH))
        ]
        labels, trigger = self._world.images.y[samples], np.zeros(samples.shape, np.bool_)
        works = [Work(self._parameters[i], samples, labels, trigger, index) for i in wanted]
        found[wanted] = self._world.train(works).deltas
        return found
