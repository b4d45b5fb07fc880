"""Equivocation: which pairs of statements convict, what is noticed in passing, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from contracts.records import Staking
from gdf_market import merkle, vrf
from gdf_market.codec import encode
from gdf_market.messages import Evidence, open_entry
from gdf_market.statements import SignedHeader, Statement, Vote, is_equivocation
from ledger import limits
from ledger.block import FINAL, NOTAR, SKIP, Header, beacon_alpha, cast, genesis_beacon, next_beacon, seal_block
from ledger.effects import (
    Broadcast,
    DropEvidence,
    Effect,
    Misbehaved,
    PeerUp,
    Received,
    Restored,
    Save,
    SaveEvidence,
    Started,
)
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.store import LedgerStore
from ledger.watch import Watch
from tests.ledger_kit import Maker
from tests.simulator import START_MS, key, make_genesis

GENESIS = msgspec.structs.replace(make_genesis(4), staking=Staking(epoch_blocks=3, bond=1_000))
NETWORK = MARKET.network_id(GENESIS)
PEER = key(60).account
NOW = START_MS + 1_000
A, B = "aa" * 32, "bb" * 32


def vote(kind: str, hash_: str = "", *, slot: int = 1, epoch: int = 0, voter: int = 2) -> Vote:
    return cast(key(voter), NETWORK, epoch, kind, slot, hash_)


def header(*, time_ms: int = NOW, slot: int = 1, proposer: int = 2) -> SignedHeader:
    proof = vrf.prove(key(proposer).seed, beacon_alpha(NETWORK, genesis_beacon(NETWORK), slot))
    made = Header(
        network=NETWORK,
        height=1,
        slot=slot,
        epoch=0,
        parent=NETWORK,
        parent_slot=0,
        proposer=key(proposer).account,
        time_ms=time_ms,
        entries_root=merkle.root(()).hex(),
        entry_count=0,
        state_root=A,
        validators=A,
        beacon=next_beacon(genesis_beacon(NETWORK), vrf.output(proof)),
        vrf_proof=proof.hex(),
    )
    return SignedHeader(header=made, sig=seal_block(key(proposer), made, ()).signature)


# ---- what convicts

HONEST: list[tuple[Statement, Statement]] = [
    (vote(NOTAR, A), vote(NOTAR, A)),
    (vote(NOTAR, A), vote(SKIP)),  # notarized, and then the slot took too long
    (vote(NOTAR, A), vote(FINAL, A)),
    (vote(SKIP), vote(SKIP)),
    (vote(NOTAR, A), vote(NOTAR, B, slot=2)),
    (vote(NOTAR, A), vote(NOTAR, B, epoch=1)),  # a slot number returns in the next epoch
    (vote(FINAL, A), vote(SKIP, epoch=1)),
    (vote(NOTAR, A), vote(NOTAR, B, voter=3)),
    (header(), header()),
    (header(), header(time_ms=NOW + 1, slot=5)),
    (header(), vote(NOTAR, B)),  # a leader may find a block of another leader in the slot notarized: not its own
]
GUILTY: list[tuple[Statement, Statement]] = [
    (vote(NOTAR, A), vote(NOTAR, B)),
    (vote(FINAL, A), vote(FINAL, B)),
    (vote(FINAL, A), vote(NOTAR, B)),
    (vote(FINAL, A), vote(SKIP)),
    (header(), header(time_ms=NOW + 1)),
]


@pytest.mark.parametrize(("first", "second"), HONEST)
def test_what_an_honest_validator_may_sign(first: Statement, second: Statement) -> None:
    assert not is_equivocation(first, second)
    assert not is_equivocation(second, first)


@pytest.mark.parametrize(("first", "second"), GUILTY)
def test_what_convicts(first: Statement, second: Statement) -> None:
    assert is_equivocation(first, second)
    assert is_equivocation(second, first)


# ---- the watch


@pytest.mark.parametrize(("first", "second"), [*GUILTY, *((b, a) for a, b in GUILTY)])
def test_the_second_statement_is_caught_once(first: Statement, second: Statement) -> None:
    watch = Watch(NETWORK, key(1).account)
    assert watch.catch(first) is None
    watch.note(first)
    found = watch.catch(second)
    assert found is not None
    assert (found.accused, found.epoch, {found.first, found.second}) == (key(2).account, 0, {first, second})
    assert watch.catch(second) is None


def test_forged_statements_convict_nobody() -> None:
    watch = Watch(NETWORK, None)
    watch.note(vote(NOTAR, A))
    forged = msgspec.structs.replace(vote(NOTAR, B), sig=vote(NOTAR, B, slot=2).sig)
    assert watch.catch(forged) is None
    assert watch.catch(vote(NOTAR, B)) is not None  # the forgery did not use the chance up


def test_our_own_key_is_not_reported() -> None:
    watch = Watch(NETWORK, key(2).account)
    watch.note(vote(NOTAR, A))
    assert watch.catch(vote(NOTAR, B)) is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(NETWORK, None)
    for slot in range(1, 100):
        watch.note(vote(NOTAR, A, slot=slot))
        watch.note(vote(NOTAR, B, slot=slot))  # a second of its kind is not kept
        watch.prune(0, slot)
    assert len(watch) == limits.SLOT_WINDOW
    watch.prune(2, 99)
    assert len(watch) == 0
    monkeypatch.setattr(limits, "MAX_EVIDENCE", 2)
    monkeypatch.setattr(limits, "MAX_CAUGHT", 3)
    for voter in range(2, 8):
        watch.note(vote(NOTAR, A, voter=voter))
        assert watch.catch(vote(NOTAR, B, voter=voter)) is not None
    assert (len(watch.pending), len(watch._caught)) == (2, 3)


# ---- the replica


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = LedgerStore(tmp_path / "ledger.sqlite")
    opened.create(GENESIS)
    yield opened
    opened.close()


def started(restored: Restored | None = None, *, me: int = 1, now_ms: int = NOW) -> tuple[Replica, list[Effect]]:
    replica = Replica(GENESIS, key(me), restored)
    effects = replica.step(Started(), now_ms)
    replica.step(PeerUp(PEER), now_ms)
    return replica, effects


def give(replica: Replica, message: msgspec.Struct, now_ms: int = NOW) -> list[Effect]:
    return replica.step(Received(PEER, encode(message)), now_ms)


def kept(effects: list[Effect]) -> list[SaveEvidence]:
    writes = [write for effect in effects if isinstance(effect, Save) for write in effect.writes]
    return [write for write in writes if isinstance(write, SaveEvidence)]


def flooded(effects: list[Effect]) -> list[bytes]:
    return [each.data for each in effects if isinstance(each, Broadcast) and b'"kind":"evidence"' in each.data]


def test_a_second_vote_becomes_an_entry_that_is_saved_before_it_is_sent() -> None:
    replica, _ = started()
    give(replica, vote(NOTAR, A))
    effects = give(replica, vote(NOTAR, B))
    assert [(each.accused, each.epoch) for each in kept(effects)] == [(key(2).account, 0)]
    body = open_entry(kept(effects)[0].raw, NETWORK).body
    assert isinstance(body, Evidence)
    assert {body.first, body.second} == {vote(NOTAR, A), vote(NOTAR, B)}
    assert isinstance(effects[0], Save)
    assert len(flooded(effects)) == 1
    assert not any(isinstance(effect, Misbehaved) for effect in effects)  # whoever passed it on did nothing wrong
    assert kept(give(replica, vote(NOTAR, "cc" * 32))) == []


def test_a_vote_to_skip_after_one_to_finalize_is_noticed_though_both_count() -> None:
    replica, _ = started()
    give(replica, vote(FINAL, A))
    assert len(kept(give(replica, vote(SKIP)))) == 1


def test_a_late_statement_about_a_slot_that_is_past_still_convicts() -> None:
    replica, _ = started()
    give(replica, vote(NOTAR, A))
    for voter in (2, 3, 4):
        give(replica, vote(SKIP, voter=voter))
    assert replica._quorum.frontier == 2
    assert len(kept(give(replica, vote(NOTAR, B)))) == 1


def test_the_ledger_takes_the_bond_and_the_node_forgets(tmp_path: Path) -> None:
    staked = tuple(msgspec.structs.replace(each, stake=1_000) for each in GENESIS.allocations)
    genesis = msgspec.structs.replace(GENESIS, allocations=staked)
    maker = Maker(tmp_path / "maker.sqlite", genesis)
    network = maker.network
    replica = Replica(genesis, key(1), maker.store.restored())
    replica.step(Started(), NOW)
    replica.step(PeerUp(PEER), NOW)
    pair = [cast(key(2), network, 0, NOTAR, 1, hash_) for hash_ in (A, B)]
    effects = [effect for each in pair for effect in give(replica, each)]
    entry = open_entry(kept(effects)[0].raw, network)
    maker.store.save([write for effect in effects if isinstance(effect, Save) for write in effect.writes])
    maker.block([entry])
    assert maker.chain.head.state.account(key(2).account).stake == 0
    again = Replica(genesis, key(1), maker.store.restored())
    assert list(again._watch.pending) == [(key(2).account, 0)]
    effects = again.step(Started(), maker.chain.head.time_ms + 1_000)
    writes = [write for effect in effects if isinstance(effect, Save) for write in effect.writes]
    assert DropEvidence(key(2).account, 0) in writes
    maker.store.save([write for write in writes if isinstance(write, DropEvidence)])
    restored = maker.store.restored()
    assert restored is not None
    assert restored.evidence == ()
    maker.store.close()


def test_evidence_that_no_block_took_is_signed_anew_after_a_restart(store: LedgerStore) -> None:
    replica, _ = started(store.restored())
    effects = [effect for each in (vote(NOTAR, A), vote(NOTAR, B)) for effect in give(replica, each)]
    store.save([write for effect in effects if isinstance(effect, Save) for write in effect.writes])
    later_ms = NOW + 3_600_000
    _, effects = started(store.restored(), now_ms=later_ms)
    renewed = [open_entry(each.raw, NETWORK).body for each in kept(effects)]
    assert [body.expires_ms > later_ms for body in renewed] == [True]
    assert len(flooded(effects)) == 1
    store.save([write for effect in effects if isinstance(effect, Save) for write in effect.writes])
    restored = store.restored()
    assert restored is not None
    assert len(restored.evidence) == 1


def test_an_observer_without_a_key_reports_nothing() -> None:
    replica = Replica(GENESIS, None, None)
    replica.step(Started(), NOW)
    replica.step(PeerUp(PEER), NOW)
    give(replica, vote(NOTAR, A))
    assert kept(give(replica, vote(NOTAR, B))) == []
