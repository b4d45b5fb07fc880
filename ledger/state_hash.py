"""State root: a homomorphic lattice hash over the records of the state (adr/0002).

LtHash of Bellare and Micciancio's AdHash family with the parameters of Lewi et
al., ePrint 2019/227: each (key, record bytes) is expanded to 1024 lanes of 16
bits, lanes are added modulo 2**16, and the root is the SHA-256 of the sum.
Adding and removing cost the same for any number of records, in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy
import numpy.typing

from contracts.records import StateRecord
from gdf_market.codec import encode

LANES = 1024
SUM_BYTES = 2 * LANES
FOLDED = 256  # records expanded (512 KiB) before their lanes are added in one go

Lanes = numpy.typing.NDArray[numpy.uint16]
Changes = Mapping[str, tuple[StateRecord | None, StateRecord | None]]


def _expand(key: str, value: bytes) -> bytes:
    name = key.encode()
    return hashlib.shake_128(b"gdf/state\0" + len(name).to_bytes(8, "big") + name + value).digest(SUM_BYTES)


def _fold(streams: list[bytes]) -> Lanes:
    """Return the sum of expanded records: one pass over many costs a tenth of adding one by one."""
    if not streams:
        return numpy.zeros(LANES, dtype="<u2")
    lanes: Lanes = numpy.frombuffer(b"".join(streams), dtype="<u2").reshape(-1, LANES).sum(axis=0, dtype="<u2")
    return lanes


class StateHash:
    """An immutable accumulator; ``StateHash()`` is the hash of no records."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: Lanes | None = None) -> None:
        self._lanes: Lanes = numpy.zeros(LANES, dtype="<u2") if lanes is None else lanes

    @classmethod
    def of(cls, records: Iterable[tuple[str, StateRecord]]) -> StateHash:
        """Return the hash of all given (key, record) pairs."""
        return cls().changed({key: (None, record) for key, record in records})

    @classmethod
    def from_bytes(cls, data: bytes) -> StateHash:
        """Return the accumulator that ``to_bytes`` wrote; ValueError for another length."""
        if len(data) != SUM_BYTES:
            raise ValueError(f"a state sum has {SUM_BYTES} bytes, not {len(data)}")
        return cls(numpy.frombuffer(data, dtype="<u2"))

    def to_bytes(self) -> bytes:
        """Return the 2048 bytes of the lanes, little-endian."""
        return self._lanes.tobytes()

    def changed(self, changes: Changes) -> StateHash:
        """Return the accumulator after replacing each (old, new) pair; None means absent."""
        lanes = self._lanes.copy()
        gone: list[bytes] = []
        come: list[bytes] = []
        for key, (old, new) in changes.items():
            if old is not None:
                gone.append(_expand(key, encode(old)))
            if new is not None:
                come.append(_expand(key, encode(new)))
            if len(gone) + len(come) >= FOLDED:
                lanes += _fold(come) - _fold(gone)
                gone, come = [], []
        lanes += _fold(come) - _fold(gone)
        return StateHash(lanes)

    def root(self) -> str:
        """Return the state root (hex)."""
        return hashlib.sha256(b"gdf/state-root\0" + self._lanes.tobytes()).hexdigest()
