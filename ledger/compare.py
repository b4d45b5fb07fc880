"""Where two ledgers part: files of nodes, exports and data folders, read side by side from the genesis on.

Compared is what is agreed: the genesis, and every block's header and entries.  Proposer's signatures and certificates
may differ between honest nodes (each keeps the quorum that it saw first); where they do, both are verified.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.records import Genesis
from gdf_market.codec import decode
from gdf_market.errors import MalformedError, PeerError, UsageError, VerificationFailedError, ensure
from gdf_market.messages import open_entry
from ledger.block import FINAL, Certificate, Header, block_hash, open_block, open_header, verify_certificate
from ledger.export import Last, lines_of, open_first, open_item
from ledger.rules import MARKET, Rules
from ledger.store import LedgerStore
from ledger.wire import SyncBlock

EQUAL, PREFIX, DIFFERENT = "equal", "prefix", "different"
_PAGE = 256
_SQLITE = b"SQLite format 3\0"
_MAX_REASONS = 20


@dataclass(frozen=True)
class Comparison:
    """``height`` is the last common one, or the first that differs (0: the genesis) if ``relation`` says different."""

    relation: str
    height: int
    reasons: tuple[str, ...] = ()
    longer: str = ""  # "a" or "b" if the other is a prefix of it
    beyond: int = 0  # blocks of the longer one after the common ones
    attested_otherwise: int = 0  # common blocks with another valid signature or certificate


@dataclass(frozen=True)
class _Side:
    genesis: Genesis
    blocks: Iterator[SyncBlock]


def compare(a: Path, b: Path, *, rules: Rules = MARKET) -> Comparison:
    """Say whether two ledgers are equal, one is a prefix of the other, or where and why they differ.

    Raises UsageError for a path without a ledger, StorageError or VerificationFailedError when one cannot be read.
    """
    with _open(a, rules) as left, _open(b, rules) as right:
        if left.genesis != right.genesis:
            return Comparison(DIFFERENT, 0, _fields("genesis", left.genesis, right.genesis))
        return _Pair(left, right, rules.network_id(left.genesis)).run()


class _Pair:
    """Two ledgers of one network."""

    def __init__(self, a: _Side, b: _Side, network: str) -> None:
        self._a, self._b = a, b
        self._network = network
        self._validators = a.genesis.validators

    def run(self) -> Comparison:
        height = otherwise = 0
        pairs = itertools.zip_longest(self._a.blocks, self._b.blocks)
        for ours, theirs in pairs:
            if ours is None or theirs is None:
                beyond = 1 + sum(1 for _ in pairs)
                return Comparison(PREFIX, height, (), "b" if ours is None else "a", beyond, otherwise)
            height += 1
            if ours != theirs:
                reasons = [*self._agreed(ours, theirs), *self._attestations(ours, theirs)]
                if reasons:
                    return Comparison(DIFFERENT, height, tuple(reasons[:_MAX_REASONS]), attested_otherwise=otherwise)
                otherwise += 1
        return Comparison(EQUAL, height, attested_otherwise=otherwise)

    def _agreed(self, ours: SyncBlock, theirs: SyncBlock) -> list[str]:
        """Return how the headers and entries of two blocks differ."""
        headers = [open_header(bytes(item.block.header), self._network) for item in (ours, theirs)]
        reasons = list(_fields("header", *headers))
        lists = [[bytes(raw) for raw in item.block.entries] for item in (ours, theirs)]
        for position, (left, right) in enumerate(itertools.zip_longest(*lists)):
            if left != right:
                reasons.append(f"entry {position}: a {self._entry_name(left)}, b {self._entry_name(right)}")
        return reasons

    def _entry_name(self, raw: bytes | None) -> str:
        if raw is None:
            return "none"
        try:
            return open_entry(raw, self._network).id
        except PeerError as error:
            return f"invalid ({error})"

    def _attestations(self, ours: SyncBlock, theirs: SyncBlock) -> list[str]:
        """Return what of two differing blocks does not hold by itself; nothing if only the signers differ."""
        reasons = []
        for name, item in zip("ab", (ours, theirs), strict=True):
            header = bytes(item.block.header)
            slot = open_header(header, self._network).slot
            try:
                open_block(item.block, self._network, self._validators[slot % len(self._validators)])
                if item.certificate is not None:
                    self._check_certificate(item.certificate, slot, block_hash(header))
            except PeerError as error:
                reasons.append(f"{name} does not hold: {error}")
        return reasons

    def _check_certificate(self, certificate: Certificate, slot: int, hash_: str) -> None:
        named = (certificate.kind, certificate.slot, certificate.hash)
        ensure(named == (FINAL, slot, hash_), MalformedError("the certificate is of another block"))
        verify_certificate(certificate, self._network, self._validators, certificate.epoch)


def _fields(what: str, a: Genesis | Header, b: Genesis | Header) -> tuple[str, ...]:
    pairs = ((name, getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    return tuple(f"{what}.{name}: a {_brief(x)}, b {_brief(y)}" for name, x, y in pairs if x != y)


def _brief(value: object) -> str:
    if isinstance(value, tuple):
        return f"has {len(value)} items"
    text = str(value)
    return text if len(text) <= 64 else text[:32] + "…"


# ---- reading either kind


@contextlib.contextmanager
def _open(path: Path, rules: Rules) -> Iterator[_Side]:
    file_path = path / "ledger.sqlite" if path.is_dir() else path
    if not file_path.is_file():
        raise UsageError(f"there is no ledger at {file_path}; give a data folder, a ledger.sqlite or an export")
    try:
        file = file_path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file_path}: {error.strerror}") from error
    with file, contextlib.ExitStack() as stack:
        if file.read(len(_SQLITE)) == _SQLITE:
            store = LedgerStore(file_path, read_only=True, rules=rules)
            stack.callback(store.close)
            genesis, items = store.genesis(), _stored(path, store)
        else:
            file.seek(0)
            lines = lines_of(file)
            with _naming(path, 0):
                genesis = open_first(next(lines, (b"", True))[0], rules).genesis
            items = _exported(path, lines)
        yield _Side(genesis, _in_order(path, items, rules.network_id(genesis)))


def _stored(path: Path, store: LedgerStore) -> Iterator[SyncBlock]:
    height = 1
    while rows := store.blocks_from(height, _PAGE):
        for row in rows:
            with _naming(path, row.height):
                items = store.sync_blocks(row)
            yield from items
        height = rows[-1].height + 1


def _exported(path: Path, lines: Iterator[tuple[bytes, bool]]) -> Iterator[SyncBlock]:
    for height in itertools.count(1):
        with _naming(path, height):
            data, is_last = next(lines, (b"", True))
            ensure(data != b"", MalformedError("the file has no last line; it is cut off"))
            if is_last:
                decode(data, Last)
                return
            item = open_item(data)
        yield item


def _in_order(path: Path, items: Iterator[SyncBlock], network: str) -> Iterator[SyncBlock]:
    """Yield blocks whose heights follow one another; a gap would shift all that comes after."""
    for height, item in enumerate(items, start=1):
        with _naming(path, height):
            found = open_header(bytes(item.block.header), network).height
            ensure(found == height, MalformedError(f"block {found} is in this place"))
        yield item


@contextlib.contextmanager
def _naming(path: Path, height: int) -> Iterator[None]:
    """Say which ledger cannot be read, and where."""
    try:
        yield
    except PeerError as error:
        raise VerificationFailedError(f"{path}, height {height}: {error}") from error
