"""The state root: independent of order and of history."""

from __future__ import annotations

import hashlib

import numpy
import pytest

from contracts.records import Account
from gdf_market.codec import encode
from ledger.state_hash import SUM_BYTES, StateHash

A, B, C = Account(balance=1), Account(balance=2), Account(balance=3)


def test_order_does_not_matter_but_keys_and_values_do() -> None:
    root = StateHash.of([("a", A), ("b", B)]).root()
    assert root == StateHash.of([("b", B), ("a", A)]).root()
    assert (
        len({root, StateHash.of([("a", B), ("b", A)]).root(), StateHash.of([("a", A)]).root(), StateHash().root()}) == 4
    )


def test_changes_give_the_same_as_starting_over() -> None:
    total = StateHash.of([("a", A), ("b", B)])
    changed = total.changed({"a": (A, C), "b": (B, None), "c": (None, B)})
    assert changed.root() == StateHash.of([("a", C), ("c", B)]).root()
    assert total.root() == StateHash.of([("a", A), ("b", B)]).root()  # immutable
    assert changed.changed({"a": (C, None), "c": (B, None)}).root() == StateHash().root()


def test_the_sum_survives_bytes() -> None:
    total = StateHash.of([("a", A)])
    assert StateHash.from_bytes(total.to_bytes()).root() == total.root()
    with pytest.raises(ValueError, match="2048"):
        StateHash.from_bytes(bytes(SUM_BYTES - 1))


def test_key_and_value_cannot_flow_into_each_other() -> None:
    value = encode(A)
    assert StateHash.of([("a" + value.decode(), A)]).root() != StateHash.of([("a", A)]).root()


def test_against_an_independent_computation() -> None:
    lanes = [0] * 1024
    for name, record in (("account/x", A), ("account/y", B)):
        stream = hashlib.shake_128(
            b"gdf/state\0" + len(name).to_bytes(8, "big") + name.encode() + encode(record)
        ).digest(2048)
        for lane in range(1024):
            lanes[lane] = (lanes[lane] + int.from_bytes(stream[2 * lane : 2 * lane + 2], "little")) % 65_536
    expected = b"".join(lane.to_bytes(2, "little") for lane in lanes)
    total = StateHash.of([("account/x", A), ("account/y", B)])
    assert total.to_bytes() == expected
    assert total.root() == hashlib.sha256(b"gdf/state-root\0" + expected).hexdigest()
    assert numpy.frombuffer(total.to_bytes(), dtype="<u2").shape == (1024,)
