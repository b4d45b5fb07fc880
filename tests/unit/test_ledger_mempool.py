"""Waiting entries: bounds, fairness, deferral, relaying."""

from __future__ import annotations

import pytest

from gdf_market.errors import FloodError, RuleError, SignatureError
from gdf_market.messages import Entry
from ledger import limits
from ledger.admission import Admission
from ledger.chain import SeenEntries, genesis_tip
from ledger.effects import Broadcast, Refused
from ledger.mempool import Deferred, Mempool, MempoolFullError
from ledger.wire import Entries, batches, read
from tests.simulator import START_MS, TRANSFERS, key, make_genesis, transfer

GENESIS = make_genesis(1, users=100)
TIP = genesis_tip(GENESIS, TRANSFERS)
NETWORK = TIP.hash
NOW = START_MS + 1_000


def entry(author: int = 101, nonce: int = 0, amount: int = 5) -> Entry:
    return transfer(NETWORK, key(author), key(1).account, nonce, START_MS, amount)


def make_admission() -> Admission:
    return Admission(NETWORK, TRANSFERS, SeenEntries(limits.MAX_RAW_SEEN))


def ids(effects: list[object]) -> list[str]:
    return [effect.entry_id for effect in effects if isinstance(effect, Refused)]


def test_authors_take_turns_in_their_own_order() -> None:
    pool = Mempool()
    mine = [entry(101, nonce) for nonce in range(5)]
    yours = [entry(102, nonce) for nonce in range(2)]
    for each in (*mine, *yours):
        pool.add(each, NOW)
    expected = [mine[0], yours[0], mine[1], yours[1], mine[2]]
    assert pool.candidates((), 10**6, 5) == expected
    assert pool.candidates({mine[0].id}, 10**6, 3) == [mine[1], yours[0], mine[2]]
    size = len(mine[0].raw) + len(yours[0].raw) + 2
    assert pool.candidates((), size, 9) == [mine[0], yours[0]]


def test_an_author_has_a_limit() -> None:
    pool = Mempool()
    for nonce in range(limits.MEMPOOL_PER_AUTHOR):
        pool.add(entry(nonce=nonce), NOW)
    with pytest.raises(MempoolFullError, match="at most"):
        pool.add(entry(nonce=10**6), NOW)
    assert len(pool) == limits.MEMPOOL_PER_AUTHOR


def test_a_full_pool_makes_room_from_whoever_has_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMPOOL_ENTRIES", 4)
    pool = Mempool()
    big = [entry(101, nonce) for nonce in range(3)]
    for each in (*big, entry(102)):
        pool.add(each, NOW)
    newcomer = entry(103)
    assert pool.add(newcomer, NOW) == big[2]
    assert newcomer.id in pool
    with pytest.raises(MempoolFullError, match="wait on this node"):
        pool.add(entry(101, 9), NOW)
    assert len(pool) == 4


def test_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    first = entry(101)
    monkeypatch.setattr(limits, "MEMPOOL_BYTES", len(first.raw) + 10)
    pool = Mempool()
    pool.add(first, NOW)
    with pytest.raises(MempoolFullError):
        pool.add(entry(102), NOW)
    assert pool.discard(first.id) == first
    assert pool.discard(first.id) is None
    assert pool.total_bytes == 0
    pool.add(entry(102), NOW)


def test_deferred_entries_are_few_and_for_a_while() -> None:
    deferred = Deferred()
    for author in range(101, 101 + limits.DEFERRED_ENTRIES // limits.DEFERRED_PER_AUTHOR + 1):
        for nonce in range(limits.DEFERRED_PER_AUTHOR + 1):
            deferred.add(entry(author, nonce), NOW + nonce)
    assert len(deferred) == limits.DEFERRED_ENTRIES
    assert entry(101, 0).id not in deferred  # the oldest made room
    taken = deferred.take(limits.DEFERRED_ENTRIES, NOW + 1)
    assert len(deferred) == 0
    assert all(until_ms > NOW + 1 for _, until_ms in taken)


def test_a_submitted_entry_is_relayed_at_once_or_refused() -> None:
    admission = make_admission()
    good, bad = entry(), entry(nonce=1, amount=2_000_000_000)
    assert admission.submit(good, TIP, NOW) == []
    (relayed,) = admission.relay(NOW)
    assert isinstance(relayed, Broadcast)
    assert isinstance(message := read(relayed.data), Entries)
    assert [bytes(raw) for raw in message.entries] == [good.raw]
    (refusal,) = admission.submit(bad, TIP, NOW)
    assert isinstance(refusal, Refused)
    assert "balance" in str(refusal.error)
    assert admission.submit(good, TIP, NOW) == []  # the same again is the same
    assert admission.relay(NOW + limits.RELAY_MS) == []


def test_bursts_are_relayed_together_and_not_to_their_source() -> None:
    admission = make_admission()
    admission.receive("peer", [entry(101).raw], TIP, NOW)
    assert admission.relay(NOW)[0].exclude == "peer"
    admission.receive("peer", [entry(102).raw, entry(103).raw], TIP, NOW + 1)
    admission.receive("other", [entry(104).raw], TIP, NOW + 2)
    assert admission.relay(NOW + 2) == []
    assert admission.relay_deadline() == NOW + limits.RELAY_MS
    (burst,) = admission.relay(NOW + limits.RELAY_MS)
    assert burst.exclude is None
    assert len(read(burst.data).entries) == 3
    assert admission.relay_deadline() is None


def test_one_bad_signature_changes_nothing() -> None:
    admission = make_admission()
    forged = transfer("00" * 32, key(102), key(1).account, 0, START_MS).raw
    with pytest.raises(SignatureError):
        admission.receive("peer", [entry().raw, forged], TIP, NOW)
    assert len(admission.pool) == 0
    assert admission.relay(NOW) == []
    admission.receive("peer", [entry().raw], TIP, NOW)
    assert len(admission.pool) == 1


def test_what_is_refused_now_is_tried_on_the_next_tip() -> None:
    admission = make_admission()
    poor = transfer(NETWORK, key(500), key(1).account, 0, START_MS)
    admission.receive("peer", [poor.raw], TIP, NOW)
    assert (poor.id in admission.deferred, len(admission.pool), admission.relay(NOW)) == (True, 0, [])
    paid = TIP.state.records.set(f"account/{key(500).account}", TIP.state.account(key(101).account))
    richer = type(TIP)(1, 1, "11" * 32, NOW, TIP.beacon, type(TIP.state)(paid), TIP.sum)
    admission.on_tip(richer, set(), NOW)
    assert poor.id in admission.pool
    assert len(admission.relay(NOW)) == 1
    assert admission.work_since_ms == NOW
    admission.on_tip(TIP, set(), NOW + 1)  # and back: it waits again, without being relayed
    assert poor.id in admission.deferred
    assert admission.work_since_ms is None


def test_a_peer_that_floods_refused_entries_is_blamed() -> None:
    admission = make_admission()
    poor = [transfer(NETWORK, key(500), key(1).account, nonce, START_MS).raw for nonce in range(limits.MAX_REFUSED + 1)]
    admission.receive("peer", poor, TIP, NOW)
    with pytest.raises(FloodError, match="sent 201 entries"):
        admission.receive("peer", [entry().raw], TIP, NOW)
    with pytest.raises(RuleError, match="sent 201 entries"):  # who lacks blocks cannot tell
        admission.receive("peer", [entry().raw], TIP, NOW, behind=True)
    admission.receive("other", [entry().raw], TIP, NOW)
    admission.receive("peer", [entry(nonce=1).raw], TIP, NOW + limits.REFUSED_WINDOW_MS)
    assert len(admission.pool) == 2


def test_deferral_ends() -> None:
    admission = make_admission()
    admission.receive("peer", [transfer(NETWORK, key(500), key(1).account, 0, START_MS).raw], TIP, NOW)
    admission.on_tip(TIP, set(), NOW + limits.DEFERRED_MS - 1)
    assert len(admission.deferred) == 1
    admission.on_tip(TIP, set(), NOW + limits.DEFERRED_MS)
    assert len(admission.deferred) == 0


def test_own_entries_that_become_invalid_are_reported() -> None:
    admission = make_admission()
    mine = entry()
    admission.submit(mine, TIP, NOW)
    assert ids(admission.on_tip(TIP, set(), mine.body.expires_ms)) == [mine.id]
    assert len(admission.pool) == 0


def test_included_entries_are_no_work_and_finalized_ones_are_gone() -> None:
    admission = make_admission()
    mine = entry()
    admission.submit(mine, TIP, NOW)
    admission.note_work(set(), NOW)
    assert admission.work_since_ms == NOW
    admission.on_tip(TIP, {mine.id}, NOW + 5)
    assert admission.work_since_ms is None
    admission.finalized([mine])
    assert len(admission.pool) == 0
    admission.receive("peer", [mine.raw], TIP, NOW)
    admission.submit(mine, TIP, NOW)
    assert len(admission.pool) == 0


def test_entries_that_no_block_takes_are_sent_again() -> None:
    admission = make_admission()
    admission.submit(entry(), TIP, NOW)
    assert admission.flood_again(NOW + limits.REFLOOD_MS - 1) == []
    assert len(admission.flood_again(NOW + limits.REFLOOD_MS)) == 1
    assert admission.flood_again(NOW + limits.REFLOOD_MS + 1) == []


def test_a_new_peer_is_greeted_with_what_waits() -> None:
    admission = make_admission()
    for nonce in range(limits.MEMPOOL_PER_AUTHOR):
        for author in (101, 102, 103, 104, 105):
            admission.submit(entry(author, nonce), TIP, NOW)
    messages = admission.greeting()
    assert sum(len(message) for message in messages) <= 2 * limits.REFLOOD_BYTES + 1_000
    assert len(messages) >= 1


def test_batches_respect_both_limits() -> None:
    raws = [entry(nonce=nonce).raw for nonce in range(limits.MAX_BATCH_ENTRIES + 1)]
    assert sum(len(read(message).entries) for message in batches(raws)) == len(raws)
    assert all(len(message) <= 65_536 for message in batches(raws))
    tiny = [b"1"] * (limits.MAX_BATCH_ENTRIES + 1)
    assert [len(read(message).entries) for message in batches(tiny)] == [limits.MAX_BATCH_ENTRIES, 1]
    assert batches([]) == []


def test_seen_entries_forget_the_oldest() -> None:
    seen = SeenEntries(2)
    for raw in (b"a", b"b", b"c"):
        seen.add(raw)
    assert (b"a" in seen, b"b" in seen, b"c" in seen, len(seen)) == (False, True, True, 2)
