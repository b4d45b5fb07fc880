"""Properties of the ledger's parts over generated input."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.records import Account, StateRecord
from gdf_market.codec import encode
from ledger import limits, wire
from ledger.block import NOTAR, SKIP, cast
from ledger.effects import Broadcast, Misbehaved, PeerUp, Received, Save, Send, Started
from ledger.mempool import Mempool, MempoolFullError
from ledger.replica import Replica
from ledger.state_hash import StateHash
from ledger.wire import bitmap, in_bitmap
from tests.simulator import START_MS, TRANSFERS, key, make_genesis, transfer

GENESIS = make_genesis(4)
NETWORK = TRANSFERS.network_id(GENESIS)
NOW = START_MS + 10_000
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

keys = st.sampled_from(["account/a", "account/b", "job/c", "x"])
steps = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 3))), max_size=12)


@QUICK
@given(steps)
def test_incremental_state_hash_equals_from_scratch(changes: list[tuple[str, int | None]]) -> None:
    total = StateHash()
    records: dict[str, StateRecord] = {}
    for name, balance in changes:
        new = None if balance is None else Account(balance=balance)
        total = total.changed({name: (records.get(name), new)})
        if new is None:
            records.pop(name, None)
        else:
            records[name] = new
    assert total.root() == StateHash.of(reversed(records.items())).root()


@QUICK
@given(st.sets(st.integers(0, limits.MAX_VALIDATORS - 1)))
def test_bitmaps_hold_exactly_their_positions(positions: set[int]) -> None:
    text = bitmap(positions)
    assert {seat for seat in range(limits.MAX_VALIDATORS) if in_bitmap(text, seat)} == positions
    assert len(text) <= 25


ENTRIES = [transfer(NETWORK, key(101 + n % 5), key(1).account, n, NOW, amount=10 ** (n % 7)) for n in range(30)]


@QUICK
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 29)), max_size=60))
def test_the_pool_keeps_its_books(operations: list[tuple[bool, int]]) -> None:
    pool = Mempool()
    held: dict[str, int] = {}
    for add, index in operations:
        entry = ENTRIES[index]
        if add and entry.id not in pool:
            try:
                evicted = pool.add(entry, NOW)
            except MempoolFullError:
                continue
            held[entry.id] = len(entry.raw)
            if evicted is not None:
                del held[evicted.id]
        elif not add:
            assert (pool.discard(entry.id) is None) == (held.pop(entry.id, None) is None)
    assert pool.total_bytes == sum(held.values())
    assert [entry.id for entry in pool] == list(held)
    assert {entry.id for entry in pool.candidates((), 10**6, 100)} == set(held)


def real_messages() -> list[bytes]:
    leader = Replica(GENESIS, key(2), None, rules=TRANSFERS)
    effects = [*leader.step(Started(), NOW), *leader.step(PeerUp(key(9).account), NOW)]
    data = [effect.data for effect in effects if isinstance(effect, (Broadcast, Send))]
    data += [encode(cast(key(3), NETWORK, 0, kind, 1, hash_)) for kind, hash_ in ((SKIP, ""), (NOTAR, "11" * 32))]
    return [*data, *wire.batches(entry.raw for entry in ENTRIES[:3]), encode(wire.SyncRequest(height=1))]


MESSAGES = real_messages()


@QUICK
@given(
    st.sampled_from(MESSAGES), st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_damaged_messages_are_blamed_or_ignored_and_never_raise(data: bytes, damage: list[tuple[int, int]]) -> None:
    altered = bytearray(data)
    for position, byte in damage:
        altered[position % len(altered)] = byte
    replica = Replica(GENESIS, key(1), None, rules=TRANSFERS)
    replica.step(Started(), NOW)
    replica.step(PeerUp(key(9).account), NOW)
    effects = replica.step(Received(key(9).account, bytes(altered)), NOW)
    if any(isinstance(effect, Misbehaved) for effect in effects):
        assert not any(isinstance(effect, (Save, Broadcast)) for effect in effects)


@QUICK
@given(st.binary(max_size=300))
def test_any_bytes_are_blamed(data: bytes) -> None:
    replica = Replica(GENESIS, None, None, rules=TRANSFERS)
    replica.step(Started(), NOW)
    assert any(isinstance(effect, Misbehaved) for effect in replica.step(Received(key(9).account, data), NOW))
