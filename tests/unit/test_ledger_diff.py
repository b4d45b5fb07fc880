"""Two ledgers side by side: equal, a prefix, or the first height at which they part and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from gdf_market.errors import StorageError, UsageError, VerificationFailedError
from ledger.compare import DIFFERENT, EQUAL, PREFIX, Comparison, compare
from ledger.export import export
from tests.ledger_kit import Cli, Maker, make_folder, make_ledger


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
    assert one_reason(compare(exchanged, exported), 3) == "a does not hold: the certificate is of another block"


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
