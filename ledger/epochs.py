"""Epochs: which validators agree on a block, and where one set hands over to the next.

Rules kept here:
1. Block h belongs to epoch (h - 1) // epoch_blocks.  The set of an epoch is in the state after the last block of the
   epoch before it (its boundary block), and the first set is the genesis's.
2. Blocks of an epoch beyond its boundary block ("closing" blocks) are empty and change nothing: a finalize certificate
   of one makes the boundary block final, and they are then forgotten but for the proof of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.records import Genesis
from contracts.state import State
from ledger.rules import Rules


@dataclass(frozen=True)
class Epoch:
    """One validator set and the heights on which it agrees."""

    number: int
    first: int  # height
    last: int  # height of the boundary block
    validators: tuple[str, ...]

    def leader(self, slot: int) -> str:
        """Return who may propose in a slot."""
        return self.validators[slot % len(self.validators)]


def epoch_of(genesis: Genesis, number: int, validators: tuple[str, ...]) -> Epoch:
    """Return the epoch of a number, on which ``validators`` agree."""
    blocks = genesis.staking.epoch_blocks
    return Epoch(number, number * blocks + 1, (number + 1) * blocks, validators)


def epoch_after(genesis: Genesis, height: int, state: State, rules: Rules) -> Epoch:
    """Return the epoch of the block that follows the ledger's block of a height, given the state after that one."""
    return epoch_of(genesis, height // genesis.staking.epoch_blocks, rules.validators(state))
