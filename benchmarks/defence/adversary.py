"""What the bad workers of one round do: which units they train, and what they hand in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.defence import attacks
from benchmarks.defence.images import Floats
from benchmarks.defence.world import STEPS, TARGET, Work

INTERMITTENT = 0.25  # of the rounds
POISONED = 0.5  # of a backdoor's samples
_STALE = 2  # rounds that the checkpoint is behind


@dataclass(frozen=True)
class Round:
    """One round of one trajectory, as those who cheat in it see it: ``workers`` are their numbers.

    ``honest`` has the updates of all others; row ``friend`` is that of the first bad worker, if that one is among them.
    """

    index: int
    seed: int
    honest: Floats  # f32[h, n]
    bad: Floats  # f32[m, n]: what the cheats trained
    workers: tuple[int, ...]
    friend: int

    def generator(self, worker: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.index, worker, 7])


@dataclass(frozen=True)
class Attack:
    """``prepare`` changes a bad worker's unit; ``forge`` replaces its update, None: handed in as trained.

    ``cheats`` says whether a worker cheats in a round at all; ``lies``: its audits of honest units say fail.
    ``twice``: two workers take part, whatever the share of bad ones.
    """

    name: str
    prepare: Callable[[Work, np.random.Generator, Sequence[Floats]], Work] | None = None
    forge: Callable[[Round], Floats] | None = None
    sometimes: bool = False
    lies: bool = False
    backdoor: bool = False

    def cheats(self, worker: int, first_bad: int, index: int, seed: int) -> bool:
        """Say whether a bad worker cheats in round ``index``; ``first_bad`` is the lowest bad worker's number."""
        if self.name == "none" or self.lies:
            return False
        if self.name == "two colluders":
            return worker == first_bad + 1  # the other one's work is honest
        if self.sometimes:
            return bool(np.random.default_rng([seed, index, worker, 3]).random() < INTERMITTENT)
        return True


def _flip(share: float) -> Callable[[Work, np.random.Generator, Sequence[Floats]], Work]:
    def prepare(work: Work, generator: np.random.Generator, _: Sequence[Floats]) -> Work:
        return dataclasses.replace(work, labels=attacks.flip_labels(work.labels, share, generator))

    return prepare


def _backdoor(work: Work, generator: np.random.Generator, _: Sequence[Floats]) -> Work:
    trigger = generator.random(work.labels.shape) < POISONED
    return dataclasses.replace(work, trigger=trigger, labels=np.where(trigger, TARGET, work.labels))


def _lazy(skipped: int) -> Callable[[Work, np.random.Generator, Sequence[Floats]], Work]:
    def prepare(work: Work, _: np.random.Generator, __: Sequence[Floats]) -> Work:
        return dataclasses.replace(work, steps=STEPS - skipped)

    return prepare


def _stale(work: Work, _: np.random.Generator, earlier: Sequence[Floats]) -> Work:
    """Train from an earlier checkpoint; ``earlier`` ends with the present one."""
    return dataclasses.replace(work, start=earlier[max(0, len(earlier) - 1 - _STALE)])


def _everyone(make: Callable[[Round], Floats]) -> Callable[[Round], Floats]:
    def forge(round_: Round) -> Floats:
        return np.broadcast_to(make(round_), round_.bad.shape)

    return forge


def _mimic(round_: Round) -> Floats:
    return np.stack([attacks.mimic(round_.honest, round_.generator(worker)) for worker in round_.workers])


def _copies(round_: Round) -> Floats:
    originals = [round_.honest[worker % len(round_.honest)] for worker in round_.workers]
    return np.stack(
        [
            attacks.copy_with_noise(original, round_.generator(worker))
            for original, worker in zip(originals, round_.workers, strict=True)
        ]
    )


def _colluders(round_: Round) -> Floats:
    """The second bad worker hands in the first one's work."""
    friend = round_.honest[round_.friend]
    return np.stack([attacks.copy_with_noise(friend, round_.generator(worker)) for worker in round_.workers])


def _not_finite(round_: Round) -> Floats:
    found = round_.bad.copy()
    found[:, ::7], found[:, 3::7] = np.nan, np.inf
    return found


ATTACKS = (
    Attack("none"),
    Attack("sign flip", forge=lambda r: attacks.sign_flip(r.bad)),
    Attack("IPM 0.5", forge=_everyone(lambda r: attacks.inner_product(r.honest, 0.5))),
    Attack("IPM 5", forge=_everyone(lambda r: attacks.inner_product(r.honest, 5.0))),
    Attack("ALIE", forge=_everyone(lambda r: attacks.little_is_enough(r.honest, len(r.workers)))),
    Attack("min-max", forge=_everyone(lambda r: attacks.min_max(r.honest))),
    Attack("min-sum", forge=_everyone(lambda r: attacks.min_sum(r.honest))),
    Attack("mimic", forge=_mimic),
    Attack("label flip 1%", prepare=_flip(0.01)),
    Attack("label flip 10%", prepare=_flip(0.1)),
    Attack("label flip 100%", prepare=_flip(1.0)),
    Attack("backdoor", prepare=_backdoor, backdoor=True),
    Attack("lazy 1 of 20", prepare=_lazy(1)),
    Attack("lazy 2 of 20", prepare=_lazy(2)),
    Attack("lazy 10 of 20", prepare=_lazy(10)),
    Attack("stale checkpoint", prepare=_stale),
    Attack("copy with noise", forge=_copies),
    Attack("NaN and Inf", forge=_not_finite),
    Attack("intermittent 25%", forge=lambda r: attacks.sign_flip(r.bad), sometimes=True),
    Attack("lying auditor", lies=True),
    Attack("two colluders", forge=_colluders),
    Attack("within the similarity band", forge=lambda r: attacks.within_band(r.bad, r.honest)),
)
BY_NAME = {attack.name: attack for attack in ATTACKS}
