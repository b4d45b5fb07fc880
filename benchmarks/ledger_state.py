"""What a changed record costs in the state root and in the state's map, by the number of accounts.

The contract rules read and write a bounded number of records per entry whatever the state holds; what could grow with
it is the map of the records and their hash, so those two are measured, on blocks of random payments.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import immutables

from benchmarks.ledger_table import Figure
from benchmarks.ledger_world import BLOCK_ENTRIES
from contracts.records import Account, StateRecord
from ledger.state_hash import StateHash

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BLOCKS = 20
REPEATS = 5
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

Records = immutables.Map[str, StateRecord]


def _key(number: int) -> str:
    """Return a record key of the usual length; the account in it is nobody's."""
    digits = ""
    for _ in range(8):
        number, digit = divmod(number, len(_ALPHABET))
        digits += _ALPHABET[digit]
    return "account/12D3KooW" + digits.ljust(44, "x")


class _World:
    """A state of some size under random payments."""

    def __init__(self, accounts: int) -> None:
        self.accounts = accounts
        with immutables.Map[str, StateRecord]().mutate() as draft:
            for number in range(accounts):
                draft[_key(number)] = Account(balance=1_000_000 + number)
            self.records: Records = draft.finish()
        self.sum = StateHash()  # what an update costs does not depend on what is in it
        self.map_s: list[float] = []  # seconds of a block
        self.hash_s: list[float] = []
        self._random = random.Random(accounts)

    def block(self) -> None:
        """Apply one block: two accounts change per entry, all of them different, so that every size does the same."""
        keys = [_key(number) for number in self._random.sample(range(self.accounts), 2 * BLOCK_ENTRIES)]
        begin = time.process_time()
        records = self.records
        for key in keys:
            account = records[key]
            assert isinstance(account, Account)
            records = records.set(key, Account(balance=account.balance + 1))
        changes = {key: (self.records[key], records[key]) for key in keys}
        middle = time.process_time()
        self.sum = self.sum.changed(changes)
        self.sum.root()
        end = time.process_time()
        self.records = records
        self.map_s.append(middle - begin)
        self.hash_s.append(end - middle)


def measure(say: Callable[[str], None], *, quick: bool = False) -> list[Figure]:
    """Return the figures of each size; the sizes take turns, so that they meet the same machine."""
    worlds = []
    for size in SIZES[: 2 if quick else None]:
        say(f"a state of {size:,} accounts")
        worlds.append(_World(size))
    for _ in range(REPEATS * BLOCKS):
        for world in worlds:
            world.block()
    figures = [_hash_figure(world, worlds[0]) for world in worlds]
    return figures + [_map_figure(world, worlds[0]) for world in worlds]


def _hash_figure(world: _World, smallest: _World) -> Figure:
    cost_us = _per_entry_us(world.hash_s)
    growth = cost_us / _per_entry_us(smallest.hash_s)
    numbers = {"accounts": world.accounts, "us": cost_us, "growth": growth}
    measured = f"{cost_us:.1f} µs an entry; {growth:.2f} × the smallest"
    met = growth <= 1.3 if world is not smallest else None
    return Figure(f"state root update, {world.accounts:,} accounts", measured, "≤ 1.3 ×", met, numbers)


def _map_figure(world: _World, smallest: _World) -> Figure:
    cost_us, hash_us = _per_entry_us(world.map_s), _per_entry_us(world.hash_s)
    growth = (cost_us + hash_us) / (_per_entry_us(smallest.map_s) + _per_entry_us(smallest.hash_s))
    numbers = {"accounts": world.accounts, "us": cost_us, "growth_with_root": growth}
    measured = f"{cost_us:.1f} µs an entry; root and map together {growth:.2f} × the smallest"
    return Figure(f"map of the state, {world.accounts:,} accounts", measured, numbers=numbers)


def _per_entry_us(block_s: Sequence[float]) -> float:
    """Return the median of the best group of blocks: the machine may be busy for a while."""
    groups = [block_s[start : start + BLOCKS] for start in range(0, len(block_s), BLOCKS)]
    return min(map(statistics.median, groups)) / BLOCK_ENTRIES * 1e6
