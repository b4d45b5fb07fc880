"""Starting from a snapshot: what is offered, what is believed, and what is left when blocks are pruned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from contracts.records import Account, Staking
from gdf_market.codec import decode, encode
from gdf_market.errors import LocalError, UsageError
from ledger import limits, wire
from ledger.effects import (
    Effect,
    Misbehaved,
    PeerUp,
    Received,
    Save,
    SaveSnapshot,
    Send,
    Serve,
    ServeLinks,
    ServeSnapshot,
    Started,
    Timer,
)
from ledger.export import export
from ledger.replica import TICK, Replica
from ledger.serving import links_message, signed_links, snapshot_message
from ledger.snapshot import SnapshotSync
from ledger.store import LedgerStore
from tests.ledger_kit import Maker
from tests.simulator import START_MS, key, make_genesis

GENESIS = msgspec.structs.replace(make_genesis(4), staking=Staking(epoch_blocks=3))
ARCHIVE, NEWCOMER = key(60).account, key(61).account
Answer = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Eleven blocks in epochs of three, so that two are beyond the last boundary block; some entries in each."""
    made = Maker(tmp_path_factory.mktemp("archive") / "archive.sqlite", GENESIS)
    for height in range(1, 12):
        made.block(made.transfers(height % 4))
    yield made
    made.store.close()


class Pair:
    """An archive and a new node, each with its real file, and the messages between them."""

    def __init__(
        self, archive: LedgerStore, path: Path, *, alter: Answer = lambda data: data, from_snapshot: bool = True
    ) -> None:
        self.now_ms = START_MS + 20_000
        self.stores = {ARCHIVE: archive, NEWCOMER: LedgerStore(path)}
        self.stores[NEWCOMER].create(GENESIS)
        self.nodes = {
            ARCHIVE: Replica(GENESIS, None, archive.restored()),
            NEWCOMER: Replica(GENESIS, None, self.stores[NEWCOMER].restored(), from_snapshot=from_snapshot),
        }
        self.blamed: list[Misbehaved] = []
        self.saved: list[Save] = []
        self.asked: list[Effect] = []
        self._alter = alter
        for name in self.nodes:
            self.step(name, Started())

    def meet(self) -> None:
        self.step(NEWCOMER, PeerUp(ARCHIVE))
        self.step(ARCHIVE, PeerUp(NEWCOMER))

    def wait(self, time_ms: int) -> None:
        self.now_ms += time_ms
        for name in self.nodes:
            self.step(name, Timer(TICK))

    def step(self, name: str, event: object) -> None:
        for effect in self.nodes[name].step(event, self.now_ms):  # type: ignore[arg-type]
            self._carry_out(name, effect)

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case Save():
                self.saved.append(effect)
                self.stores[name].save(effect.writes)
            case Send(peer, data):
                self.step(peer, Received(name, data))
            case Serve(peer, height):
                self._answer(name, peer, effect, self.stores[name].sync_messages(height))
            case ServeLinks(peer, epoch):
                self._answer(name, peer, effect, [links_message(self.stores[name], epoch)])
            case ServeSnapshot(peer, record, part):
                self._answer(name, peer, effect, [snapshot_message(self.stores[name], record, part)])
            case Misbehaved():
                self.blamed.append(effect)

    def _answer(self, name: str, peer: str, effect: Effect, messages: list[bytes]) -> None:
        self.asked.append(effect)
        for message in messages:
            self.step(peer, Received(name, self._alter(message)))

    @property
    def newcomer(self) -> Replica:
        return self.nodes[NEWCOMER]


def test_a_new_node_starts_from_the_boundary_and_fetches_the_rest(maker: Maker, tmp_path: Path) -> None:
    pair = Pair(maker.store, tmp_path / "new.sqlite")
    pair.meet()
    pair.wait(1_000)
    assert pair.blamed == []
    installed = [write for save in pair.saved for write in save.writes if isinstance(write, SaveSnapshot)]
    assert [write.tip.height for write in installed] == [9]
    assert (pair.newcomer.height, pair.newcomer.head) == (11, pair.nodes[ARCHIVE].head)
    assert pair.newcomer.state_root == pair.nodes[ARCHIVE].state_root
    assert not any(isinstance(effect, Serve) and effect.height < 10 for effect in pair.asked)
    again = pair.stores[NEWCOMER].restored()  # what is on disk says the same
    assert again is not None
    assert (again.tip.height, again.tip.sum.root(), again.oldest) == (11, pair.newcomer.state_root, 10)
    assert Replica(GENESIS, None, again).epoch == pair.newcomer.epoch


def test_the_snapshot_is_that_of_the_boundary_and_not_of_the_head(maker: Maker) -> None:
    page = decode(snapshot_message(maker.store, "", 0), wire.SnapshotPage)
    assert (page.height, page.done) == (9, True)
    found = {record.key: decode(record.value.encode(), Account) for record in page.records if record.kind == "account"}
    head = {key.account: maker.store.state().account(key.account) for key in (key(1), key(101), key(102), key(103))}
    assert any(found[f"account/{name}"] != account for name, account in head.items())
    assert [record.key for record in page.records] == sorted(record.key for record in page.records)


def test_a_node_that_began_with_a_snapshot_can_offer_one(maker: Maker, tmp_path: Path) -> None:
    first = Pair(maker.store, tmp_path / "first.sqlite")
    first.meet()
    first.wait(1_000)
    second = Pair(first.stores[NEWCOMER], tmp_path / "second.sqlite")
    second.meet()
    second.wait(1_000)
    assert (second.newcomer.height, second.newcomer.head) == (11, maker.chain.head.hash)
    assert list(signed_links(second.stores[NEWCOMER], 0)) == list(signed_links(maker.store, 0))


def test_records_that_do_not_fit_travel_in_parts(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RECORD_PART_CHARS", 40), ("PAGE_RECORDS", 3)):
        monkeypatch.setattr(f"ledger.serving.{name}", value)
    pair = Pair(maker.store, tmp_path / "new.sqlite")
    pair.meet()
    for _ in range(20):
        pair.wait(1_000)
    assert pair.blamed == []
    assert pair.newcomer.head == maker.chain.head.hash
    assert sum(isinstance(effect, ServeSnapshot) for effect in pair.asked) > 20


@pytest.mark.parametrize("epoch_blocks", [100, 11])
def test_without_an_offer_every_block_is_fetched(tmp_path: Path, epoch_blocks: int) -> None:
    genesis = msgspec.structs.replace(GENESIS, staking=Staking(epoch_blocks=epoch_blocks))
    made = Maker(tmp_path / "archive.sqlite", genesis)
    for _ in range(4):
        made.block(made.transfers(1))
    archive = Replica(genesis, None, made.store.restored())
    newcomer = Replica(genesis, None, None, from_snapshot=True)
    newcomer.step(Started(), START_MS + 20_000)
    archive.step(Started(), START_MS + 20_000)
    archive.step(PeerUp(NEWCOMER), START_MS + 20_000)
    newcomer.step(PeerUp(ARCHIVE), START_MS + 20_000)
    status = archive._status()
    effects = newcomer.step(Received(ARCHIVE, encode(status)), START_MS + 20_000)
    assert not any(isinstance(effect, Send) and b"sync_request" in effect.data for effect in effects)
    effects = newcomer.step(Timer(TICK), START_MS + 20_000 + limits.SNAPSHOT_WAIT_MS)
    assert any(isinstance(effect, Send) and b"sync_request" in effect.data for effect in effects)
    made.store.close()


def _change_balance(data: bytes) -> bytes:
    page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    if not isinstance(page, wire.SnapshotPage):
        return data
    records = list(page.records)
    place = next(index for index, record in enumerate(records) if record.kind == "account")
    account = decode(records[place].value.encode(), Account)
    richer = encode(msgspec.structs.replace(account, balance=account.balance + 1)).decode()
    records[place] = msgspec.structs.replace(records[place], value=richer)
    return encode(msgspec.structs.replace(page, records=tuple(records)))


def _drop_record(data: bytes) -> bytes:
    page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    return (
        encode(msgspec.structs.replace(page, records=page.records[1:])) if isinstance(page, wire.SnapshotPage) else data
    )


def _repeat_record(data: bytes) -> bytes:
    page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    if not isinstance(page, wire.SnapshotPage):
        return data
    return encode(msgspec.structs.replace(page, records=(page.records[0], *page.records)))


def _other_kind(data: bytes) -> bytes:
    return data.replace(b'"kind":"account"', b'"kind":"acount"')


def _cut_off(data: bytes) -> bytes:
    return data.replace(b'"more":false', b'"more":true')


def _other_height(data: bytes) -> bytes:
    page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    return encode(msgspec.structs.replace(page, height=6)) if isinstance(page, wire.SnapshotPage) else data


def _other_signature(data: bytes) -> bytes:
    links = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    if not isinstance(links, wire.Links) or not links.links:
        return data
    forged = msgspec.structs.replace(links.links[0], sigs=("00" * 64,))
    return encode(msgspec.structs.replace(links, links=(forged, *links.links[1:])))


def _other_certificate(data: bytes) -> bytes:
    links = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
    if not isinstance(links, wire.Links) or len(links.links) < 2:
        return data
    first, second, *rest = links.links
    link = msgspec.structs.replace(first.link, certificate=second.link.certificate)
    return encode(msgspec.structs.replace(links, links=(msgspec.structs.replace(first, link=link), second, *rest)))


@pytest.mark.parametrize(
    "alter",
    [
        *(_change_balance, _drop_record, _repeat_record, _other_kind, _cut_off, _other_height),
        *(_other_signature, _other_certificate),
    ],
)
def test_a_false_snapshot_is_blamed_and_nothing_of_it_stays(maker: Maker, tmp_path: Path, alter: Answer) -> None:
    pair = Pair(maker.store, tmp_path / "new.sqlite", alter=alter)
    pair.meet()
    assert [effect.peer for effect in pair.blamed] == [ARCHIVE]
    assert pair.newcomer.height == 0
    assert pair.saved == []
    for _ in range(8):  # after some attempts it verifies every block instead
        pair.wait(limits.SNAPSHOT_WAIT_MS)
    assert len(pair.blamed) == 1
    assert pair.newcomer.head == maker.chain.head.hash


def test_a_snapshot_that_keeps_moving_away_is_not_chased_for_ever(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where epochs end faster than the records of one arrive, blocks are fetched instead."""
    monkeypatch.setattr("ledger.serving.PAGE_RECORDS", 2)
    moving = Maker(tmp_path / "made.sqlite", GENESIS)
    pages: list[int] = []

    def end_an_epoch(data: bytes) -> bytes:
        page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
        if isinstance(page, wire.SnapshotPage):
            pages.append(page.height)
            for _ in range(3):
                moving.block(moving.transfers(1))
        return data

    for _ in range(6):
        moving.block(moving.transfers(1))
    pair = Pair(moving.store, tmp_path / "new.sqlite", alter=end_an_epoch)
    pair.meet()
    for _ in range(4):
        pair.wait(limits.SYNC_TIMEOUT_MS)
    assert len(pages) == 2 * limits.SNAPSHOT_RESTARTS, "the first part of every second epoch, and none of the next"
    assert pair.newcomer.head == moving.chain.head.hash
    assert pair.stores[NEWCOMER].block(1) is not None, "from blocks"
    assert pair.blamed == []


def test_a_peer_that_promises_epochs_without_end_is_passed_over(maker: Maker, tmp_path: Path) -> None:
    def further(data: bytes) -> bytes:
        page = decode(data, wire.AnyMessage)  # type: ignore[arg-type]
        return (
            encode(msgspec.structs.replace(page, height=page.height + 300))
            if isinstance(page, wire.SnapshotPage)
            else data
        )

    pair = Pair(maker.store, tmp_path / "new.sqlite", alter=further)
    pair.meet()
    for _ in range(8):
        pair.wait(limits.SNAPSHOT_WAIT_MS)
    assert len([each for each in pair.asked if isinstance(each, ServeSnapshot)]) <= limits.SNAPSHOT_RESTARTS
    assert pair.newcomer.head == maker.chain.head.hash


def test_memory_for_a_snapshot_is_bounded(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SNAPSHOT_BYTES", 300)
    pair = Pair(maker.store, tmp_path / "new.sqlite")
    pair.meet()
    assert "more than" in str(pair.blamed[0].error)


def test_a_silent_peer_is_passed_over() -> None:
    sync = SnapshotSync(GENESIS, "ab" * 32, Replica(GENESIS, None, None)._rules)
    sync.offer("silent", 9, 0)
    sync.offer("other", 6, 0)
    first = sync.request(0)
    assert first is not None
    assert first[0] == "silent"
    assert sync.request(limits.SYNC_TIMEOUT_MS - 1) is None
    second = sync.request(limits.SYNC_TIMEOUT_MS)
    assert second is not None
    assert second[0] == "other"
    sync.leave("other")
    for attempt in range(2, 8):
        sync.request(attempt * limits.SYNC_TIMEOUT_MS)
    assert sync.given_up


# ---- pruning


def pruned(store: LedgerStore, keep_epochs: int, maker: Maker) -> Replica:
    """Return an observer that deletes old blocks while the maker's next blocks come in."""
    node = Replica(GENESIS, None, store.restored(), keep_epochs=keep_epochs)
    node.step(Started(), START_MS + 60_000)
    node.step(PeerUp(ARCHIVE), START_MS + 60_000)
    archive = Replica(GENESIS, None, maker.store.restored())
    effects = node.step(Received(ARCHIVE, encode(archive._status())), START_MS + 60_000)
    for effect in [*effects, *node.step(Timer(TICK), START_MS + 61_000)]:
        if isinstance(effect, Send) and b"sync_request" in effect.data:
            asked = decode(effect.data, wire.AnyMessage)  # type: ignore[arg-type]
            assert isinstance(asked, wire.SyncRequest)
            for message in maker.store.sync_messages(asked.height):
                for follow in node.step(Received(ARCHIVE, message), START_MS + 61_000):
                    if isinstance(follow, Save):
                        store.save(follow.writes)
            break
    return node


def test_old_epochs_are_deleted_but_for_their_boundary_blocks(maker: Maker, tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "pruned.sqlite")
    store.create(GENESIS)
    node = pruned(store, 1, maker)
    assert (node.height, store.oldest()) == (11, 7)
    assert [row.height for row in store.blocks(50)] == [11, 10, 9, 8, 7, 6, 3]
    assert store.entries(before=7) == []
    assert store.events(height=5) == []
    assert list(signed_links(store, 0)) == list(signed_links(maker.store, 0))
    restored = store.restored()
    assert restored is not None
    assert (restored.tip.sum.root(), restored.oldest) == (node.state_root, 7)
    with pytest.raises(UsageError, match="no blocks before 7"):
        export(store, tmp_path / "out.jsonl")
    store.close()


def test_a_pruned_node_is_not_asked_for_what_it_lacks(maker: Maker, tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "pruned.sqlite")
    store.create(GENESIS)
    node = pruned(store, 1, maker)
    full = Replica(GENESIS, None, None)
    for each in (node, full):
        each.step(Started(), START_MS + 70_000)
    full.step(PeerUp(ARCHIVE), START_MS + 70_000)
    full.step(Received(ARCHIVE, encode(node._status())), START_MS + 70_000)
    effects = full.step(Timer(TICK), START_MS + 75_000)
    assert not any(isinstance(effect, Send) and b"sync_request" in effect.data for effect in effects)
    asked = node.step(Received(NEWCOMER, encode(wire.SyncRequest(height=2))), START_MS + 75_000)
    assert not any(isinstance(effect, Serve) for effect in asked)
    store.close()


def test_where_everybody_has_pruned_a_snapshot_is_the_only_way(maker: Maker, tmp_path: Path) -> None:
    """A node that gave up, or never asked for one, would else wait for ever, and with it perhaps a whole network."""
    store = LedgerStore(tmp_path / "pruned.sqlite")
    store.create(GENESIS)
    pruned(store, 1, maker)
    pair = Pair(store, tmp_path / "new.sqlite", from_snapshot=False)
    pair.meet()
    pair.wait(limits.CUT_OFF_MS - 1_000)
    assert (pair.newcomer.height, pair.asked) == (0, [])
    pair.wait(1_000)
    pair.wait(1_000)
    assert (pair.newcomer.height, pair.newcomer.head) == (11, maker.chain.head.hash)
    assert pair.blamed == []
    store.close()


def test_a_node_that_lacks_blocks_drops_its_snapshot_once_somebody_has_them(maker: Maker, tmp_path: Path) -> None:
    """Else one peer that only claims to be ahead would hold a node back."""
    full, store = Replica(GENESIS, None, maker.store.restored()), LedgerStore(tmp_path / "new.sqlite")
    store.create(GENESIS)
    node = Replica(GENESIS, None, store.restored())
    now_ms = START_MS + 20_000
    node.step(Started(), now_ms)
    node.step(PeerUp("liar"), now_ms)
    claim = msgspec.structs.replace(full._status(), height=10_000, oldest=10_000, snapshot=0)
    node.step(Received("liar", encode(claim)), now_ms)
    node.step(Timer(TICK), now_ms + limits.CUT_OFF_MS)
    assert node._snapshots is not None
    node.step(PeerUp(ARCHIVE), now_ms + limits.CUT_OFF_MS)
    effects = node.step(Received(ARCHIVE, encode(full._status())), now_ms + limits.CUT_OFF_MS)
    assert [effect.peer for effect in effects if isinstance(effect, Send) and b"sync_request" in effect.data] == [
        ARCHIVE
    ]
    store.close()


def test_a_store_refuses_a_state_that_is_not_its_heads(maker: Maker, tmp_path: Path) -> None:
    pair = Pair(maker.store, tmp_path / "new.sqlite")
    pair.meet()
    store = pair.stores[NEWCOMER]
    with store._engine.begin() as connection:
        connection.exec_driver_sql(
            "DELETE FROM record WHERE key = (SELECT key FROM record WHERE kind='account' LIMIT 1)"
        )
    with pytest.raises(LocalError, match="damaged"):
        store.restored()
