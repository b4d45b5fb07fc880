"""Two ledgers side by side: equal, a prefix, or the first height at which they part and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import trio

from gdf_market.codec import encode
from gdf_market.errors import StorageError, UnreachableError, UsageError, VerificationFailedError
from gdf_market.identity import Identity
from gdf_market.messages import ValidatorJoin
from gdf_market.node import remote_ledger
from gdf_market.node.control import ControlHost
from gdf_market.node.invite import make_invite
from gdf_market.node.remote_ledger import Reach, bisect, compare_with_peer
from ledger import limits, wire
from ledger.compare import DIFFERENT, EQUAL, PREFIX, Attested, Comparison, attested, compare
from ledger.effects import Prune
from ledger.export import export
from tests.ledger_kit import Cli, Maker, epochs_genesis, make_epochs, make_folder, make_ledger
from tests.simulator import key


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.fixture(scope="module")
def exported(maker: Maker) -> Path:
    target = maker.path.with_name("chain.gdfl")
    export(maker.store, target)
    return target


def edited(exported: Path, target: Path, line: int, old: bytes, new: bytes) -> Path:
    lines = exported.read_bytes().splitlines(keepends=True)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    target.write_bytes(b"".join(lines))
    return target


def one_reason(found: Comparison, height: int) -> str:
    assert (found.relation, found.height) == (DIFFERENT, height)
    assert len(found.reasons) == 1
    return found.reasons[0]


def test_the_three_forms_of_one_ledger_are_equal(maker: Maker, exported: Path) -> None:
    forms = (maker.path, exported, maker.path.parent)
    for a in forms:
        for b in forms:
            assert compare(a, b) == Comparison(EQUAL, 12)


def test_the_longer_one_continues_the_other(exported: Path, tmp_path: Path) -> None:
    longer = make_ledger(tmp_path / "longer.sqlite")
    for _ in range(3):
        longer.block(longer.transfers(1))
    assert compare(longer.path, exported) == Comparison(PREFIX, 12, longer="a", beyond=3)
    assert compare(exported, longer.path) == Comparison(PREFIX, 12, longer="b", beyond=3)
    empty = Maker(tmp_path / "empty.sqlite")
    assert compare(empty.path, longer.path) == Comparison(PREFIX, 0, longer="b", beyond=15)
    assert compare(empty.path, empty.path) == Comparison(EQUAL, 0)


def test_another_quorum_is_no_difference_but_a_false_one_is(maker: Maker, exported: Path, tmp_path: Path) -> None:
    other = Maker(tmp_path / "other.sqlite")
    for height in range(1, 4):
        other.block(other.transfers({1: 1, 2: 5}.get(height, 0)), signers=-3 if height == 2 else 0)
    assert compare(other.path, exported) == Comparison(PREFIX, 3, longer="b", beyond=9, attested_otherwise=1)
    signature = msgspec.json.decode(exported.read_bytes().splitlines()[3])["certificate"]["sigs"][1].encode()
    false = edited(exported, tmp_path / "false.gdfl", 3, signature, signature[:-1] + b"%d" % (signature[-1:] == b"0"))
    assert one_reason(compare(maker.path, false), 3).startswith("b does not hold: signature of ")
    lines = exported.read_bytes().splitlines()
    certificates = [msgspec.json.decode(line)["certificate"] for line in (lines[3], lines[4])]
    exchanged = edited(
        exported, tmp_path / "exchanged.gdfl", 3, encode_json(certificates[0]), encode_json(certificates[1])
    )
    assert one_reason(compare(exchanged, exported), 3).startswith("a does not hold: the certificate is of block ")


def encode_json(value: object) -> bytes:
    return msgspec.json.Encoder(order="sorted").encode(value)


def test_another_signature_of_the_proposer_is_noticed_if_false(exported: Path, tmp_path: Path) -> None:
    lines = exported.read_bytes().splitlines()
    signature = msgspec.json.decode(lines[6])["block"]["sig"].encode()
    false = edited(exported, tmp_path / "false.gdfl", 6, signature, b"0" * 128)
    assert one_reason(compare(false, exported), 6).startswith("a does not hold: signature of ")


def test_other_entries_are_named(maker: Maker, exported: Path, tmp_path: Path) -> None:
    ids = [row.id for row in maker.store.block_entries(7)]
    edit = edited(exported, tmp_path / "edit.gdfl", 7, b'"amount":5', b'"amount":6')
    found = compare(edit, exported)
    assert (found.relation, found.height, len(found.reasons)) == (DIFFERENT, 7, 2)
    assert found.reasons[0].startswith("entry 0: a invalid (signature of ")
    assert found.reasons[0].endswith(f", b {ids[0]}")
    assert found.reasons[1] == "a does not hold: entries of block 7 do not match its header"
    raws = [row.raw for row in maker.store.block_entries(7)]
    shorter = edited(exported, tmp_path / "shorter.gdfl", 7, b"," + raws[1], b"")
    assert compare(exported, shorter).reasons[0] == f"entry 1: a {ids[1]}, b none"


def test_a_fork_names_the_fields_that_differ(exported: Path, tmp_path: Path) -> None:
    fork = Maker(tmp_path / "fork.sqlite")
    for height in range(1, 7):
        fork.block(fork.transfers({1: 1, 2: 5, 4: 2}.get(height, 0)), skipped=1 if height == 4 else 0)
    found = compare(fork.path, exported)
    assert (found.relation, found.height) == (DIFFERENT, 4)
    names = [reason.split(":")[0] for reason in found.reasons]
    assert names == ["header.entries_root", "header.entry_count", "header.state_root", "entry 0", "entry 1"]
    assert found.reasons[1] == "header.entry_count: a 2, b 0"
    swapped = compare(exported, fork.path)
    assert (swapped.height, swapped.reasons[1]) == (4, "header.entry_count: a 0, b 2")


def test_reasons_are_bounded(tmp_path: Path) -> None:
    small, large = Maker(tmp_path / "small.sqlite"), Maker(tmp_path / "large.sqlite")
    small.block(), large.block(large.transfers(40))
    assert len(compare(small.path, large.path).reasons) == 20


def test_other_networks_differ_at_the_genesis(maker: Maker, tmp_path: Path) -> None:
    fewer = maker.genesis.validators[:3]
    renamed = Maker(tmp_path / "other.sqlite", msgspec.structs.replace(maker.genesis, name="other", validators=fewer))
    found = compare(maker.path, renamed.path)
    assert (found.relation, found.height) == (DIFFERENT, 0)
    assert found.reasons == ("genesis.name: a sim, b other", "genesis.validators: a has 4 items, b has 3 items")


def test_what_is_no_ledger_is_named(maker: Maker, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger at"):
        compare(exported, tmp_path)
    with pytest.raises(UsageError, match="no ledger at"):
        compare(tmp_path / "none", exported)
    junk = tmp_path / "junk"
    for content in (b"", b"\x00" * 100, b"{}\n", b"[" * 300_000):
        junk.write_bytes(content)
        with pytest.raises(VerificationFailedError, match="junk, height 0"):
            compare(junk, exported)
    data = exported.read_bytes()
    lines = data.splitlines(keepends=True)
    for kept, height in ((lines[:-1], 12), (lines[:3], 2), (lines[:1], 1), ([*lines[:4], *lines[5:]], 4)):
        junk.write_bytes(b"".join(kept))
        with pytest.raises(VerificationFailedError, match=f"junk, height {height}:"):
            compare(exported, junk)
    junk.write_bytes(b"SQLite format 3\0" + b"\x00" * 5_000)
    with pytest.raises(StorageError):
        compare(junk, exported)


def test_a_block_missing_in_a_file_is_named(tmp_path: Path, exported: Path) -> None:
    maker = make_ledger(tmp_path / "ledger.sqlite")
    with maker.store._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM block WHERE height = 6")
    with pytest.raises(VerificationFailedError, match="height 6: block 7 is in this place"):
        compare(exported, maker.path)


def test_a_copy_without_its_folder_compares(maker: Maker, tmp_path: Path) -> None:
    alone = make_ledger(tmp_path / "here.sqlite")
    alone.store.close()
    shutil.move(alone.path, tmp_path / "there.sqlite")
    assert compare(tmp_path / "there.sqlite", maker.path).relation == EQUAL


# ---- validator sets that change


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_epochs(tmp_path_factory.mktemp("epochs") / "ledger.sqlite")


@pytest.fixture(scope="module")
def epochs_exported(epochs: Maker) -> Path:
    target = epochs.path.with_name("chain.gdfl")
    export(epochs.store, target)
    return target


def signed_otherwise(path: Path, closing: int, signers: int) -> Maker:
    """Return the epochs' ledger up to block 9, of which block 8 is finalized otherwise."""
    maker = Maker(path, epochs_genesis())
    maker.block([maker.entry(ValidatorJoin, key(101))])
    for _ in range(2, 8):
        maker.block()
    maker.block(final=not closing, signers=0 if closing else signers)
    for left in range(closing, 0, -1):
        maker.block(final=left == 1, signers=signers)
    maker.block(maker.transfers(1), signers=-4 if signers else 0)
    return maker


def test_ledgers_across_epochs_are_equal_in_all_forms(epochs: Maker, epochs_exported: Path) -> None:
    for a in (epochs.path, epochs_exported):
        for b in (epochs.path, epochs_exported):
            assert compare(a, b) == Comparison(EQUAL, 19)
    assert len(epochs_exported.read_bytes().splitlines()) == 1 + 19 + 3 + 1  # three closing blocks


def test_who_closed_an_epoch_is_no_difference(tmp_path: Path) -> None:
    """Each form of the end of epoch 1, by itself or by closing blocks, and another quorum of its five validators."""
    forms = [(0, 0), (0, -4), (1, 0), (2, 0), (2, -4)]
    makers = [signed_otherwise(tmp_path / f"{place}.sqlite", *form) for place, form in enumerate(forms)]
    exports = []
    for maker in makers:
        assert len(maker.store.closing(8)) in (0, 1, 2)
        exports.append(maker.path.with_suffix(".gdfl"))
        export(maker.store, exports[-1])
    for a, b in [(makers[0].path, makers[3].path), (exports[3], makers[2].path), (exports[0], exports[4])]:
        found = compare(a, b)
        assert (found.relation, found.height, found.reasons) == (EQUAL, 9, ())
        assert found.attested_otherwise in (1, 2)
    assert compare(exports[1], exports[4]).attested_otherwise == 1


@pytest.mark.parametrize("stored", [True, False])
def test_a_false_attestation_of_a_later_epoch_is_a_difference(tmp_path: Path, stored: bool) -> None:
    """The set of the block's epoch decides, whether a store knows it or an export has to be replayed for it."""
    first, second = (signed_otherwise(tmp_path / f"{n}.sqlite", 2, n) for n in (0, -4))
    files = []
    for maker in (first, second):
        files.append(maker.path.with_suffix(".gdfl"))
        export(maker.store, files[-1])
    other = first.path if stored else files[0]
    assert compare(files[1], other).relation == EQUAL
    lines = files[1].read_bytes().splitlines()
    certificate = msgspec.json.decode(lines[10])["certificate"]  # of the last closing block of epoch 1
    assert (certificate["epoch"], certificate["signers"]) == (1, [1, 2, 3, 4])
    for old, new, why in (
        (certificate["sigs"][3].encode(), b"0" * 128, "a does not hold: signature of "),
        (b'"signers":[1,2,3,4]', b'"signers":[1,2,3]', "a does not hold: signers of a certificate are not"),
        (b'"epoch":1,"hash"', b'"epoch":0,"hash"', "a does not hold: certificate of epoch 0, now 1"),
        (b'"kind":"final"', b'"kind":"notar"', "a does not hold: a notar certificate finalizes nothing"),
    ):
        false = edited(files[1], tmp_path / "false.gdfl", 10, old, new)
        assert one_reason(compare(false, other), 8).startswith(why)
    closing = msgspec.json.decode(lines[9])
    for old, new, why in (
        (closing["block"]["sig"].encode(), b"0" * 128, "a does not hold: signature of "),
        (b'"entry_count":0', b'"entry_count":1', "a does not hold: "),
        (b'"epoch":1,', b'"epoch":2,', "a does not hold: no certificate ends epoch 1"),  # then it is block 9
    ):
        false = edited(files[1], tmp_path / "false.gdfl", 9, old, new)
        assert one_reason(compare(false, other), 8).startswith(why)


def test_a_set_that_no_side_knows_is_said(tmp_path: Path) -> None:
    makers = [signed_otherwise(tmp_path / f"{n}.sqlite", 2, n) for n in (0, -4)]
    files = [maker.path.with_suffix(".gdfl") for maker in makers]
    for maker, file in zip(makers, files, strict=True):
        export(maker.store, file)
    signature = msgspec.json.decode(files[0].read_bytes().splitlines()[2])["block"]["sig"].encode()
    bad = []
    for place, file in enumerate(files):
        bad.append(edited(file, tmp_path / f"bad{place}.gdfl", 2, signature, b"0" * 128))
    reason = one_reason(compare(*bad), 8)  # both lack the same signature of block 2, so no replay gets to epoch 1
    assert reason.startswith("nobody here knows the validators of block 8: height 2: signature of ")


def test_closing_blocks_are_bounded(
    epochs: Maker, epochs_exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SYNC_BUFFER_BLOCKS", 2)
    with pytest.raises(VerificationFailedError, match="height 9: more than 1 closing blocks"):
        compare(epochs_exported, epochs.path)


def test_a_pruned_ledger_is_compared_from_where_it_begins(epochs: Maker, epochs_exported: Path, tmp_path: Path) -> None:
    for before in (9, 10, 19):
        pruned = make_epochs(tmp_path / f"{before}.sqlite")
        pruned.store.save([Prune(before)])
        pruned.store.close()
        for other in (epochs.path, epochs_exported):
            assert compare(pruned.path, other) == Comparison(EQUAL, 19, first=before)
            assert compare(other, pruned.path) == Comparison(EQUAL, 19, first=before)
    edit = edited(epochs_exported, tmp_path / "edit.gdfl", 21, b'"amount":5', b'"amount":6')  # block 18
    found = compare(edit, tmp_path / "10.sqlite")
    assert (found.relation, found.height, found.first) == (DIFFERENT, 18, 10)


# ---- a peer's ledger


class Served:
    """A peer's ledger as its blocks are asked for, without a network."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.asked: list[int] = []

    @property
    def reach(self) -> Reach:
        return Reach(self.maker.store.head().height if self.maker.store.head() else 0, self.maker.store.oldest())

    async def fetch(self, height: int) -> Attested:
        self.asked.append(height)
        return attested(self.maker.store.sync_blocks(self.maker.store.block(height)))


async def test_a_peers_ledger_is_compared_by_few_of_its_blocks(epochs: Maker, tmp_path: Path) -> None:
    same = Served(make_epochs(tmp_path / "same.sqlite"))
    assert await bisect(epochs.store, same.reach, same.fetch) == Comparison(EQUAL, 19)
    assert same.asked == [19]
    same.maker.block()
    assert await bisect(epochs.store, same.reach, same.fetch) == Comparison(PREFIX, 19, longer="b", beyond=1)
    short = Served(Maker(tmp_path / "short.sqlite", epochs.genesis))
    assert await bisect(epochs.store, short.reach, short.fetch) == Comparison(PREFIX, 0, longer="a", beyond=19)
    assert short.asked == []


@pytest.mark.parametrize("common", [0, 3, 6, 12, 16])
async def test_the_first_differing_block_of_a_peer_is_found(epochs: Maker, tmp_path: Path, common: int) -> None:
    fork = Served(make_epochs(tmp_path / "fork.sqlite", common))
    for _ in range(4):
        fork.maker.block(fork.maker.transfers(1, amount=9))
    found = await bisect(epochs.store, fork.reach, fork.fetch)
    assert (found.relation, found.height) == (DIFFERENT, common + 1)
    assert any(reason.startswith("header.entries_root: a ") for reason in found.reasons)
    assert not any("does not hold" in reason for reason in found.reasons)  # a fork: quorums signed both
    assert len(fork.asked) <= 6
    assert compare(epochs.path, fork.maker.path).reasons == found.reasons


async def test_a_peer_that_lies_about_a_block_is_named(epochs: Maker, tmp_path: Path) -> None:
    fork = Served(make_epochs(tmp_path / "fork.sqlite", 13))
    fork.maker.block(fork.maker.transfers(1))

    async def forged(height: int) -> Attested:
        item = await fork.fetch(height)
        if item.certificate is None:
            return item
        certificate = msgspec.structs.replace(item.certificate, sigs=("0" * 128,) * 3)
        return msgspec.structs.replace(item, certificate=certificate)

    found = await bisect(epochs.store, fork.reach, forged)
    assert (found.relation, found.height) == (DIFFERENT, 14)
    assert found.reasons[-1].startswith("b does not hold: signature of ")


async def test_a_pruned_peer_is_compared_from_where_it_begins(epochs: Maker, tmp_path: Path) -> None:
    pruned = Served(make_epochs(tmp_path / "pruned.sqlite"))
    pruned.maker.store.save([Prune(15)])
    assert await bisect(epochs.store, pruned.reach, pruned.fetch) == Comparison(EQUAL, 19, first=15)
    fork = Served(make_epochs(tmp_path / "fork.sqlite", 12))
    for _ in range(7):
        fork.maker.block()
    fork.maker.store.save([Prune(15)])
    found = await bisect(epochs.store, fork.reach, fork.fetch)
    assert (found.relation, found.height, found.first) == (DIFFERENT, 15, 15)
    short = make_epochs(tmp_path / "short.sqlite", 9)
    with pytest.raises(UsageError, match="this ledger holds blocks 1 to 9, the peer 15 to 19; no block can be"):
        await bisect(short.store, pruned.reach, pruned.fetch)


def serving(maker: Maker, number: int) -> ControlHost:
    """Return a host on loopback that answers from a ledger file, as a node's shell does."""

    def status() -> bytes:
        head = maker.store.head()
        return encode(
            wire.Status(
                network=maker.network,
                epoch=maker.chain.epoch.number,
                height=head.height,
                slot=head.slot,
                oldest=1,
                snapshot=0,
                frontier=head.slot + 1,
                notarized=(),
                skipped=(),
                blocks=(),
                votes=(),
            )
        )

    def on_frame(peer: str, data: bytes) -> None:
        message = wire.read(data)
        assert isinstance(message, wire.SyncRequest)
        for answer in maker.store.sync_messages(message.height):
            host.send(peer, answer)

    host = ControlHost(
        Identity(bytes([number]) * 32),
        maker.network,
        listen=("127.0.0.1", 0),
        on_frame=on_frame,
        on_peer_up=lambda peer: host.send(peer, status()) and None,
        on_peer_down=lambda peer: None,
    )
    return host


async def test_a_running_peer_is_compared_over_the_network(epochs: Maker, tmp_path: Path) -> None:
    fork = make_epochs(tmp_path / "fork.sqlite", 9)
    fork.block(fork.transfers(3))
    async with serving(fork, 201).run() as host:
        found = await compare_with_peer(epochs.store, host.addresses)
    assert (found.relation, found.height) == (DIFFERENT, 10)


async def test_nobody_at_the_address_is_unreachable(epochs: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "CONNECT_S", 0.3)
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{key(9).account}"
    with pytest.raises(UnreachableError, match="no peer of network"):
        await compare_with_peer(epochs.store, [nobody])
    with pytest.raises(UsageError, match="is not an address like"):
        await compare_with_peer(epochs.store, ["/ip4/127.0.0.1/tcp/9"])


async def test_what_a_peer_sends_is_checked(epochs: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "ANSWER_S", 0.05)
    asked: list[int] = []

    class Control:
        def send(self, peer: str, data: bytes) -> bool:
            asked.append(wire.read(data).height)
            for message in answers:
                send.send_nowait((sender, message))
            return True

    def response(height: int, *, spoil: bool = False) -> wire.SyncResponse:
        message = wire.read(epochs.store.sync_messages(height)[0])
        if spoil:
            proposal = msgspec.structs.replace(message.blocks[0].block, sig="0" * 128)
            first = msgspec.structs.replace(message.blocks[0], block=proposal)
            message = msgspec.structs.replace(message, blocks=(first,))
        return message

    peer = key(1).account
    send, receive = trio.open_memory_channel[tuple[str, wire.AnyMessage]](64)
    visit = remote_ledger._Visit(Control(), receive, epochs.store, {peer})  # type: ignore[arg-type]
    visit._peer = sender = peer
    answers: list[wire.AnyMessage] = [response(12), response(7), response(8)]
    found = await visit.fetch(8)  # others than the one asked for, late answers of before, are passed over
    assert len(found.closing) == 2
    answers = [response(7)]
    assert (await visit.fetch(7)).closing == ()
    answers = [response(8, spoil=True)]
    with pytest.raises(VerificationFailedError, match="sent something else than block 8: signature of"):
        await visit.fetch(8)
    asked.clear()
    sender, answers = key(2).account, [response(8)]
    with pytest.raises(UnreachableError, match="does not send its block 8"):
        await visit.fetch(8)
    assert asked == [8, 8, 8]


def test_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, exported: Path, tmp_path: Path
) -> None:
    cli = Cli(capsys, monkeypatch)
    maker = make_folder(tmp_path / "node")
    assert cli("ledger", "diff", tmp_path / "node", exported).out == "equal: 12 blocks\n"
    maker.block()
    longer = cli("ledger", "diff", tmp_path / "node", exported)
    assert (longer.code, longer.out.strip()) == (
        0,
        f"{exported} is a prefix of {tmp_path / 'node'}: 12 common blocks, then 1 more",
    )
    value = cli("ledger", "diff", tmp_path / "node", exported, "--json").value
    assert (value["relation"], value["height"], value["longer"], value["beyond"]) == ("prefix", 12, "a", 1)
    edit = edited(exported, tmp_path / "edit.gdfl", 2, b'"amount":5', b'"amount":6')
    different = cli("ledger", "diff", exported, edit)
    assert different.code == 5
    assert different.out.startswith("height 2 differs\n  entry 0: a ")
    assert "differ at height 2" in different.err
    assert cli("ledger", "diff", exported, edit, "--json").value["relation"] == "different"
    assert cli("ledger", "diff", exported, tmp_path / "none").code == 2
    assert cli("ledger", "diff", exported, exported, exported).code == 2
    assert cli("ledger", "diff").code == 2


def test_command_with_this_folder_and_with_a_peer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, exported: Path, tmp_path: Path
) -> None:
    cli = Cli(capsys, monkeypatch)
    maker = make_folder(tmp_path / "node")
    here = ("--data-dir", tmp_path / "node", "ledger", "diff")
    assert cli(*here, exported).out == "equal: 12 blocks\n"
    monkeypatch.setattr(remote_ledger, "CONNECT_S", 0.3)
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{key(9).account}"
    invite, other = make_invite(maker.genesis, [nobody]), make_invite(epochs_genesis(), [nobody])
    for peer in (nobody, invite):
        assert cli(*here, peer).code == 4
        assert cli(*here, peer, tmp_path / "node" / "ledger.sqlite").code == 4
    for wrong in (
        (nobody, nobody),
        (nobody, exported.with_name("none")),
        ("/ip4/127.0.0.1/tcp/9/p2p/nobody",),
        ("gdf1-nonsense",),
        (other,),
        (make_invite(maker.genesis, []),),
    ):
        assert cli(*here, *wrong).code == 2
