"""Where one validator set hands over to the next: boundary blocks, closing blocks, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from contracts.records import Staking
from gdf_market.codec import decode, encode
from gdf_market.errors import MalformedError, PeerError
from gdf_market.identity import Identity
from gdf_market.messages import Entry, ValidatorJoin, ValidatorLeave, seal
from gdf_market.statements import set_hash
from ledger import wire
from ledger.block import seal_block
from ledger.chain import execute
from ledger.effects import PeerUp, Received, Restored, Save, Send, Started
from ledger.epochs import Epoch, epoch_after
from ledger.export import export, verify
from ledger.importing import build, publish
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.store import LedgerStore
from tests.ledger_kit import Maker
from tests.simulator import START_MS, key, make_genesis

STAKING = Staking(epoch_blocks=3, bond=1_000)
GENESIS = msgspec.structs.replace(make_genesis(4), staking=STAKING)
PEER = key(60).account


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Maker]:
    made = Maker(tmp_path / "ledger.sqlite", GENESIS)
    yield made
    made.store.close()


def to_boundary(maker: Maker, *, final: bool) -> None:
    """Make the three blocks of the first epoch; unless ``final`` the last one lacks its certificate."""
    for height in (1, 2, 3):
        maker.block(maker.transfers(1), final=final or height < 3)


def closed(maker: Maker, count: int = 2) -> None:
    """Let closing blocks finalize the boundary block."""
    to_boundary(maker, final=False)
    for index in range(count):
        maker.block(final=index == count - 1)


def entry(maker: Maker, author: Identity, kind: type[ValidatorJoin] | type[ValidatorLeave], nonce: int) -> Entry:
    expires_ms = maker.chain.head.time_ms + 600_000
    return seal(author, maker.network, kind(author=author.account, nonce=nonce, expires_ms=expires_ms))


def test_heights_belong_to_epochs() -> None:
    state = MARKET.genesis_state(GENESIS)
    found = [epoch_after(GENESIS, height, state, MARKET) for height in range(7)]
    assert [(epoch.number, epoch.first, epoch.last) for epoch in found] == [
        *[(0, 1, 3)] * 3,
        *[(1, 4, 6)] * 3,
        (2, 7, 9),
    ]
    assert found[0].leader(5) == GENESIS.validators[1]


def test_a_boundary_block_ends_its_epoch(maker: Maker) -> None:
    to_boundary(maker, final=True)
    assert maker.chain.epoch.number == 1
    assert maker.store.boundary() == 3
    following = maker.block(maker.transfers(2))
    assert following.block.header.epoch == 1
    assert [maker.store.epoch_at(height)[0] for height in (1, 3, 4)] == [0, 0, 1]


def test_beyond_the_boundary_blocks_are_empty_and_change_nothing(maker: Maker) -> None:
    to_boundary(maker, final=False)
    boundary = maker.pending[-1].tip
    leader = maker.validator((boundary.slot + 1) % 4)
    executed, refused = maker.chain.propose(
        leader, boundary, boundary.slot + 1, boundary.time_ms + 9, maker.transfers(1)
    )
    header = executed.block.header
    assert (header.height, header.epoch, header.entry_count) == (4, 0, 0)
    assert (header.state_root, header.validators) == (
        boundary.sum.root(),
        set_hash(boundary.state.network().validators),
    )
    assert (refused, executed.transition.changes, executed.transition.events) == ([], {}, ())


@pytest.mark.parametrize("change", ["entries", "epoch", "validators", "state_root", "height"])
def test_other_blocks_beyond_the_boundary_are_refused(maker: Maker, change: str) -> None:
    to_boundary(maker, final=False)
    boundary = maker.pending[-1].tip
    leader = maker.validator((boundary.slot + 1) % 4)
    executed, _ = maker.chain.propose(leader, boundary, boundary.slot + 1, boundary.time_ms + 9, [])
    header = executed.block.header
    changes: dict[str, object] = {
        "entries": {"entry_count": 1},
        "epoch": {"epoch": 1},
        "validators": {"validators": "00" * 32},
        "state_root": {"state_root": "00" * 32},
        "height": {"height": 5},
    }[change]  # type: ignore[assignment]
    forged = seal_block(leader, msgspec.structs.replace(header, **changes), [])  # type: ignore[arg-type]
    with pytest.raises(MalformedError):
        execute(forged, boundary, maker.chain.epoch, MARKET, lambda block: ())


def test_a_header_must_name_the_set_after_it(maker: Maker) -> None:
    executed = maker.block(final=False)
    header = msgspec.structs.replace(executed.block.header, validators=set_hash(GENESIS.validators[:3]))
    forged = seal_block(maker.validator(header.slot % 4), header, [])
    with pytest.raises(MalformedError, match="other validators"):
        execute(forged, maker.chain.head, maker.chain.epoch, MARKET, lambda block: ())


def test_closing_blocks_prove_the_boundary_and_are_no_part_of_the_ledger(maker: Maker, tmp_path: Path) -> None:
    closed(maker)
    after = maker.block(maker.transfers(1))
    assert (after.block.header.height, after.block.header.epoch) == (4, 1)
    assert after.block.header.parent == maker.store.block(3).hash  # type: ignore[union-attr]
    items = maker.store.sync_blocks(maker.store.block(3))  # type: ignore[arg-type]
    assert [item.certificate is not None for item in items] == [False, False, True]
    assert export(maker.store, tmp_path / "out.jsonl") == 4
    report = verify(tmp_path / "out.jsonl")
    assert (report.height, report.head) == (4, after.block.hash)
    build(tmp_path / "out.jsonl", tmp_path / "imported.sqlite", maker.network)
    publish(tmp_path / "imported.sqlite")
    imported = LedgerStore(tmp_path / "imported.sqlite", read_only=True)
    assert [each.header for each in imported.closing(3)] == [each.header for each in maker.store.closing(3)]
    imported.close()


def test_an_export_without_its_closing_blocks_is_refused(maker: Maker, tmp_path: Path) -> None:
    closed(maker, count=1)
    maker.block()
    export(maker.store, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    del lines[4]
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(Exception, match="height 4"):
        verify(tmp_path / "cut.jsonl")


@pytest.mark.parametrize("closing", [0, 1, 2])
def test_a_range_that_crosses_an_epoch_is_taken_in_one_go(maker: Maker, closing: int) -> None:
    if closing:
        closed(maker, closing)
    else:
        to_boundary(maker, final=True)
    for _ in range(4):
        maker.block(maker.transfers(1))
    node = Replica(GENESIS, None, None)
    now_ms = maker.chain.head.time_ms + 1_000
    node.step(Started(), now_ms)
    node.step(PeerUp(PEER), now_ms)
    archive = Replica(GENESIS, None, maker.store.restored())
    effects = node.step(Received(PEER, encode(archive._status())), now_ms)
    asked = [effect for effect in effects if isinstance(effect, Send) and b"sync_request" in effect.data]
    assert len(asked) == 1
    messages = maker.store.sync_messages(1)
    assert len(messages) == 1
    node.step(Received(PEER, messages[0]), now_ms)
    assert (node.height, node.head, node.epoch.number) == (7, maker.chain.head.hash, 2)


def test_a_crash_at_the_boundary_leaves_the_new_epoch(maker: Maker) -> None:
    closed(maker)
    restored = maker.store.restored()
    assert restored is not None
    node = Replica(GENESIS, key(1), restored)
    assert (node.height, node.epoch) == (3, maker.chain.epoch)
    assert (restored.votes, restored.candidates) == ((), ())


def test_validators_join_and_leave_at_the_boundary(maker: Maker) -> None:
    newcomer = key(101)
    maker.block([entry(maker, newcomer, ValidatorJoin, 1), entry(maker, key(2), ValidatorLeave, 2)])
    node = Replica(GENESIS, newcomer, maker.store.restored())
    assert not node.is_validator
    maker.block()
    maker.block()
    assert maker.chain.epoch.validators != GENESIS.validators
    joined = Replica(GENESIS, newcomer, maker.store.restored())
    left = Replica(GENESIS, key(2), maker.store.restored())
    assert joined.epoch.number == 1
    assert (joined.is_validator, left.is_validator) == (
        newcomer.account in joined.epoch.validators,
        key(2).account in joined.epoch.validators,
    )
    assert joined.is_validator or not left.is_validator  # at least one of the two changes fits into a third of four


def test_votes_of_an_earlier_epoch_do_not_bind(maker: Maker) -> None:
    """A slot number is used again after the boundary: what was voted in it before is of another epoch."""
    to_boundary(maker, final=True)
    slot = maker.chain.head.slot + 1
    leader = maker.validator(slot % 4)
    restored = maker.store.restored()
    assert restored is not None
    node = Replica(GENESIS, leader, Restored(restored.genesis, restored.tip))
    effects = node.step(Started(), maker.chain.head.time_ms + 10_000)
    votes = [write for effect in effects if isinstance(effect, Save) for write in effect.writes]
    assert votes != []
    assert all(b'"epoch":1' in encode(write.vote) for write in votes if hasattr(write, "vote"))


def test_blocks_of_the_next_epoch_are_not_taken_before_its_time(maker: Maker) -> None:
    to_boundary(maker, final=True)
    maker.block()
    items = [item for row in maker.store.blocks_from(1, 10) for item in maker.store.sync_blocks(row)]
    node = Replica(GENESIS, None, None)
    node.step(Started(), START_MS + 60_000)
    node.step(PeerUp(PEER), START_MS + 60_000)
    archive = Replica(GENESIS, None, maker.store.restored())
    node.step(Received(PEER, encode(archive._status())), START_MS + 60_000)
    without = [msgspec.structs.replace(items[2], certificate=None), items[3]]
    response = wire.SyncResponse(blocks=(*items[:2], *without), more=False)
    effects = node.step(Received(PEER, encode(response)), START_MS + 60_000)
    assert any("epoch 1" in str(getattr(effect, "error", "")) for effect in effects)
    assert node.height == 0
    assert decode(encode(response), wire.SyncResponse) == response


def test_the_set_of_a_height_is_read_from_disk(maker: Maker) -> None:
    to_boundary(maker, final=True)
    assert maker.store.validators_at(2) == GENESIS.validators
    epoch = maker.chain.epoch
    assert maker.store.epoch_at(4) == (1, epoch.validators)
    assert isinstance(epoch, Epoch)
    with pytest.raises(PeerError):
        execute(
            maker.block(final=False).block, maker.chain.head, Epoch(0, 1, 3, epoch.validators), MARKET, lambda b: ()
        )
