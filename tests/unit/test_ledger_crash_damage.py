"""Files that a disk damaged: cut and flipped write-ahead logs, flipped bytes in the database.

A cut log is what a power cut leaves; it must open to exactly the last transaction that is in it completely.  Flipped
bytes are a broken disk; they must give the right answer or one clear error, and never a state that looks right.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdf_market.errors import StorageError, UsageError, VerificationFailedError
from ledger.effects import Restored
from ledger.export import export, verify
from ledger.prove import prove_entry, prove_heads
from ledger.serving import links_message
from ledger.store import LedgerStore
from tests.crash_net import Net, QuickStore
from tests.simulator import cached_crypto
from tests.unit.test_ledger_crash_statements import content

WAL_HEADER, FRAME_HEADER = 32, 24  # bytes; https://www.sqlite.org/fileformat2.html#the_write_ahead_log
FLIPS = 40  # damaged files per seed


Facts = tuple[object, ...] | None


@dataclass(frozen=True)
class Moment:
    """What a file held after a Save, and how much of its log that takes."""

    log_bytes: int
    content: dict[str, list[tuple[object, ...]]]
    facts: Facts


@dataclass
class Life:
    """A node's file while its writer has it open, and what it held from its last checkpoint on."""

    path: Path
    moments: list[Moment]
    earlier: list[Facts]

    @property
    def log(self) -> bytes:
        return self.path.with_name(self.path.name + "-wal").read_bytes()

    def before(self, log_bytes: int) -> Moment:
        """Return the last moment of which that much of the log is enough."""
        return [moment for moment in self.moments if moment.log_bytes <= log_bytes][-1]


def valid_bytes(log: bytes) -> int:
    """Return how much of a log is of its current run: frames with the header's salts."""
    page, salts = struct.unpack(">I", log[8:12])[0], log[16:24]
    end = WAL_HEADER
    while log[end + 8 : end + 16] == salts:
        end += FRAME_HEADER + page
    return end


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with cached_crypto():
        net = Net(tmp_path_factory.mktemp("net"), record=True)
        net.live()
        net.close()
        yield net


def relive(net: Net, path: Path, *checkpoints: int) -> tuple[Life, LedgerStore]:
    """Save what the first node saved once more; after some Saves the log is copied into the file."""
    store = QuickStore(path)
    store.create(net.genesis)
    life = Life(path, [], [facts(store.restored())])
    saves = [writes for number, writes in net.recorded if number == 1]
    for index, writes in enumerate(saves):
        store.save(writes)
        if index in {each % len(saves) for each in checkpoints}:
            with store._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            life.earlier += [moment.facts for moment in life.moments]
            life.moments = [Moment(0, content(path), facts(store.restored()))]
        elif life.moments:
            life.moments.append(Moment(valid_bytes(life.log), content(path), facts(store.restored())))
        else:
            life.earlier.append(facts(store.restored()))
    return life, store


def facts(restored: Restored | None) -> Facts:
    """Return all that a node would go on with."""
    if restored is None:
        return None
    tip = restored.tip
    where = (tip.height, tip.slot, tip.hash, tip.time_ms, tip.beacon, tip.sum.root(), dict(tip.state.records.items()))
    return (*where, restored.votes, restored.candidates, restored.evidence, restored.oldest)


@pytest.fixture(scope="module")
def life(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """A file whose log began anew over an older, longer one."""
    lived, store = relive(net, tmp_path_factory.mktemp("life") / "ledger.sqlite", 19)
    yield lived
    store.close()


def copy(source: Path, folder: Path, log: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    shutil.copy(source, folder / "ledger.sqlite")
    (folder / "ledger.sqlite-wal").write_bytes(log)
    return folder / "ledger.sqlite"


def opened(path: Path) -> Facts:
    with contextlib.closing(QuickStore(path)) as store:
        return facts(store.restored())


def test_a_log_that_is_cut_anywhere_opens_to_its_last_whole_transaction(life: Life, net: Net, tmp_path: Path) -> None:
    log, rng = life.log, random.Random(1)
    assert len(log) > valid_bytes(log) > WAL_HEADER  # frames of the earlier run follow
    ends = [moment.log_bytes for moment in life.moments]
    frame = FRAME_HEADER + struct.unpack(">I", log[8:12])[0]
    bounds = range(WAL_HEADER, valid_bytes(log), frame)
    cuts = {0, 1, WAL_HEADER - 1, WAL_HEADER, len(log), *ends, *(end - 1 for end in ends[1:])}
    cuts |= {bound + FRAME_HEADER for bound in rng.sample(bounds, 8)} | set(rng.sample(bounds, 8))
    cuts |= {rng.randrange(len(log)) for _ in range(20)}
    for cut in sorted(cuts):
        path = copy(life.path, tmp_path / "copy", log[:cut])
        expected = life.before(cut if cut >= WAL_HEADER else 0)
        assert content(path) == expected.content, cut
        path = copy(life.path, tmp_path / "copy", log[:cut])
        assert opened(path) == expected.facts, cut


def test_a_log_with_a_flipped_byte_opens_to_the_last_transaction_before_it(life: Life, tmp_path: Path) -> None:
    log, rng = life.log, random.Random(2)
    end = valid_bytes(log)
    for place in [*range(0, WAL_HEADER, 3), *(rng.randrange(end) for _ in range(30))]:
        altered = bytearray(log)
        altered[place] ^= 1 << rng.randrange(8)
        path = copy(life.path, tmp_path / "copy", bytes(altered))
        assert opened(path) == life.before(place if place >= WAL_HEADER else 0).facts, place


def test_a_damaged_log_over_a_newer_file_is_noticed(net: Net, tmp_path: Path) -> None:
    """After a checkpoint the log's pages are in the file as well: what is left of the log must not be mixed in.

    If every page that is newer in the file is in what is left, the file is of that moment, and nobody can tell.
    """
    folder = tmp_path / "life"
    folder.mkdir()
    lived, store = relive(net, folder / "ledger.sqlite", 19, -1)
    (newest,), log, rng = lived.moments, lived.log, random.Random(3)
    possible, noticed = [newest.facts, None, *lived.earlier], 0
    for _ in range(60):
        place = rng.randrange(WAL_HEADER, valid_bytes(log))
        altered = bytearray(log)
        altered[place] ^= 0xFF
        path = copy(lived.path, tmp_path / "copy", bytes(altered) if rng.random() < 0.5 else log[:place])
        try:
            assert opened(path) in possible, place
        except StorageError:
            noticed += 1
    assert noticed >= 10
    store.close()


# ---- a damaged database file


@pytest.fixture(scope="module")
def midway(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with everything that a restart reads: a head, own votes, candidates and evidence."""
    path = tmp_path_factory.mktemp("midway") / "ledger.sqlite"
    with contextlib.closing(QuickStore(path)) as store:
        store.create(net.genesis)
        for writes in (writes for number, writes in net.recorded if number == 1):
            store.save(writes)
            restored = store.restored()
            assert restored is not None
            if restored.tip.height and restored.evidence and len(restored.votes) > 1 and len(restored.candidates) > 1:
                return path
    raise AssertionError("the run has no such moment")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("DELETE FROM vote WHERE rowid = (SELECT max(rowid) FROM vote)", "not of one moment"),
        ("DELETE FROM vote", "not of one moment"),
        ("UPDATE vote SET raw = (SELECT raw FROM vote ORDER BY slot LIMIT 1)", "not of one moment"),
        ("DELETE FROM meta WHERE key = 'seal'", "not of one moment"),
        ("INSERT INTO meta VALUES ('oldest', x'32')", "not of one moment"),
        ("UPDATE candidate SET raw = replace(raw, '\"sig\":\"', '\"sig\":\"00') WHERE kind = 'block'", "damaged"),
        ("UPDATE candidate SET raw = CAST(replace(raw, 'signers\":[0', 'signers\":[3') AS BLOB)", "damaged"),
        ("UPDATE evidence SET raw = CAST(replace(raw, 'nonce\":', 'nonce\":1') AS BLOB)", "damaged"),
        ("UPDATE block SET slot = slot + 1", "does not say what its header says"),
        ("UPDATE block SET time_ms = time_ms + 1", "does not say what its header says"),
        ("UPDATE block SET certificate = (SELECT raw FROM candidate WHERE kind = 'certificate')", "the certificate of"),
        ("UPDATE block SET header = CAST(header AS TEXT)", "damaged"),
        ("UPDATE block SET proposer = 7, height = height + 1", "does not say what its header says"),
        ("UPDATE epoch SET validators = x'5b5d'", "damaged"),
        ("UPDATE record SET kind = 'nonce' WHERE kind = 'account'", "damaged"),
        ("DELETE FROM record WHERE kind = 'account'", "state is damaged"),
    ],
)
def test_a_row_that_is_gone_or_altered_is_noticed(midway: Path, change: str, word: str, tmp_path: Path) -> None:
    path = shutil.copy(midway, tmp_path / "ledger.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(change).rowcount > 0
    with contextlib.closing(LedgerStore(path, read_only=True)) as store, pytest.raises(StorageError, match=word):
        store.restored()


@pytest.fixture(scope="module")
def whole(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first node's ledger in one file."""
    folder = tmp_path_factory.mktemp("whole")
    lived, store = relive(net, folder / "ledger.sqlite", -1)
    store.close()
    assert not lived.path.with_name("ledger.sqlite-wal").exists()
    return lived.path


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_file_gives_the_right_answer_or_one_clear_error(whole: Path, seed: int, tmp_path: Path) -> None:
    rng, data = random.Random(seed), whole.read_bytes()
    path, answers, errors = tmp_path / "ledger.sqlite", 0, 0
    with contextlib.closing(LedgerStore(whole, read_only=True)) as store:
        expected = everything(store, tmp_path)
    for _ in range(FLIPS):
        altered = bytearray(data)
        place = rng.randrange(len(data))
        for offset in range(rng.choice((1, 1, 4, 64))):
            altered[min(place + offset, len(data) - 1)] ^= rng.choice((1, 2, 0x80, rng.randrange(1, 256)))
        path.write_bytes(altered)
        try:
            with contextlib.closing(LedgerStore(path, read_only=True)) as store:
                found = everything(store, tmp_path)
                ask(lambda: links_message(store, 0))  # whoever receives them checks them
        except StorageError:
            errors += len(expected)
            continue
        for name, answer in expected.items():
            assert found[name] in (answer, None), (name, place)
            answers += found[name] is not None
            errors += found[name] is None
    assert answers > FLIPS
    assert errors > FLIPS // 4


def everything(store: LedgerStore, folder: Path) -> dict[str, object]:
    """Return what a store answers to each question; None for a clear error."""
    target = folder / "export.gdfl"

    def exported() -> tuple[object, ...]:
        export(store, target)
        report = verify(target)
        return report.height, report.head, report.state_root, report.entries, report.supply

    return {
        "restored": ask(lambda: facts(store.restored())),
        "export": ask(exported),
        "entry": ask(lambda: prove_entry(store, store.block_entries(2)[0].id)),
        "heads": ask(lambda: prove_heads(store, 2, 8)),
    }


def ask(question: Callable[[], object]) -> object:
    try:
        return question()
    except (StorageError, VerificationFailedError, UsageError):
        return None
