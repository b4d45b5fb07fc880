"""Signed proposals above the last finalized block, until they are executed, certified or passed over.

A leader may sign any number of blocks for its slot: the first one seen is kept, and one more only if a certificate
names it, so that what a peer can make us hold is bounded by the slot window.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.block import Block
from ledger.effects import Executed


class Proposals:
    """Blocks by slot and hash; ``bad`` ones failed execution and only keep their slot taken."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, Block]] = {}
        self._arrived_ms: dict[int, int] = {}
        self._bad: dict[int, set[str]] = {}

    def wants(self, slot: int, hash_: str, certified: str | None) -> bool:
        """Say whether a block is new and either the slot's first or the certified one."""
        held = self._slots.get(slot, {})
        if hash_ in held or hash_ in self._bad.get(slot, ()):
            return False
        return hash_ == certified or (not held and slot not in self._bad)

    def add(self, block: Block, now_ms: int) -> None:
        """Keep a block that ``wants`` accepted."""
        self._slots.setdefault(block.header.slot, {})[block.hash] = block
        self._arrived_ms.setdefault(block.header.slot, now_ms)

    def reject(self, block: Block) -> None:
        """Drop a block that is invalid on its parent; its slot stays taken."""
        del self._slots[block.header.slot][block.hash]
        self._bad.setdefault(block.header.slot, set()).add(block.hash)

    def get(self, slot: int, hash_: str) -> Block | None:
        """Return a kept block."""
        return self._slots.get(slot, {}).get(hash_)

    def at(self, slot: int) -> list[Block]:
        """Return the blocks kept in a slot."""
        return list(self._slots.get(slot, {}).values())

    def arrived_ms(self, slot: int) -> int | None:
        """Return when the slot's first block came, unless it proved bad."""
        return self._arrived_ms.get(slot) if self._slots.get(slot) else None

    def waiting(self, executed: dict[str, Executed]) -> Iterator[Block]:
        """Yield blocks not executed yet, by slot."""
        for slot in sorted(self._slots):
            yield from [block for hash_, block in self._slots[slot].items() if hash_ not in executed]

    def __iter__(self) -> Iterator[Block]:
        for slot in sorted(self._slots):
            yield from self._slots[slot].values()

    def prune(self, root_slot: int) -> None:
        """Forget slots up to the last finalized one."""
        for mapping in (self._slots, self._arrived_ms, self._bad):
            for slot in [slot for slot in mapping if slot <= root_slot]:
                del mapping[slot]
