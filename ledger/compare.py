"""Where two ledgers part: files of nodes, exports and data folders, read side by side.

Compared is what is agreed: the genesis, and every block's header and entries.  Proposer's signatures, certificates and
the closing blocks that end an epoch may differ between honest nodes (each keeps the quorum that it saw first); where
they do, both are verified against the set of the block's epoch, which the header before commits to.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.records import Genesis
from gdf_market.codec import decode
from gdf_market.errors import (
    GdfError,
    MalformedError,
    OversizedError,
    PeerError,
    StorageError,
    UsageError,
    VerificationFailedError,
    ensure,
)
from gdf_market.messages import open_entry
from ledger import limits
from ledger.block import Certificate, Header, Proposal, open_block, open_header, set_hash
from ledger.effects import SaveBlocks
from ledger.epochs import Epoch, epoch_of
from ledger.export import Last, lines_of, open_first, open_item, verify
from ledger.links import check_final, open_headers
from ledger.rules import MARKET, Rules
from ledger.store import LedgerStore
from ledger.wire import SyncBlock

EQUAL, PREFIX, DIFFERENT = "equal", "prefix", "different"
_PAGE = 256
_SQLITE = b"SQLite format 3\0"
_MAX_REASONS = 20

Sets = Callable[[int], tuple[str, ...]]  # height -> its validators, or GdfError


@dataclass(frozen=True)
class Comparison:
    """``height`` is the last common one, or the first that differs (0: the genesis) if ``relation`` says different."""

    relation: str
    height: int
    reasons: tuple[str, ...] = ()
    longer: str = ""  # "a" or "b" if the other is a prefix of it
    beyond: int = 0  # blocks of the longer one after the common ones
    attested_otherwise: int = 0  # common blocks with another valid signature, certificate or closing block
    first: int = 1  # the height from which on blocks were compared; those before are covered by the hash of its parent


class Attested(msgspec.Struct, frozen=True):
    """A block of the ledger and what makes it final, as far as that is its own."""

    block: Proposal
    closing: tuple[Proposal, ...]
    certificate: Certificate | None


@dataclass(frozen=True)
class Side:
    """One of two ledgers: ``blocks`` gives its blocks from a height on, ``oldest`` is the first that it has."""

    genesis: Genesis
    oldest: int
    blocks: Callable[[int], Iterator[Attested]]
    sets: Sets


def compare(a: Path, b: Path, *, rules: Rules = MARKET) -> Comparison:
    """Say whether two ledgers are equal, one is a prefix of the other, or where and why they differ.

    Raises UsageError for a path without a ledger, StorageError or VerificationFailedError when one cannot be read.
    """
    with _open(a, rules) as left, _open(b, rules) as right:
        return compare_sides(left, right, rules)


def compare_sides(a: Side, b: Side, rules: Rules) -> Comparison:
    """Compare two ledgers that are open already; raises what reading them raises."""
    if a.genesis != b.genesis:
        return Comparison(DIFFERENT, 0, _fields("genesis", a.genesis, b.genesis))
    first = max(a.oldest, b.oldest)
    named = set_hash(a.genesis.validators) if first == 1 else None
    return _Pair(a, b, rules.network_id(a.genesis), named).run(first)


def compare_block(own: Side, height: int, ours: Attested, theirs: Attested, rules: Rules) -> tuple[str, ...]:
    """Return how one block differs from that of a ledger whose earlier blocks are the same; nothing if only by signers.

    Raises PeerError for a header that is none of this network.
    """
    return _Pair(own, own, rules.network_id(own.genesis), named=None).differences(height, ours, theirs)


class _Pair:
    """Two ledgers of one network."""

    def __init__(self, a: Side, b: Side, network: str, named: str | None) -> None:
        self._a, self._b = a, b
        self._network = network
        self._named = named  # the hash of the set that agrees on the next block; None if its header is not read

    def run(self, first: int) -> Comparison:
        height, otherwise = first - 1, 0
        pairs = itertools.zip_longest(self._a.blocks(first), self._b.blocks(first))
        for ours, theirs in pairs:
            if ours is None or theirs is None:
                beyond = 1 + sum(1 for _ in pairs)
                longer = "b" if ours is None else "a"
                return Comparison(PREFIX, height, (), longer, beyond, otherwise, first)
            height += 1
            if ours != theirs:
                reasons = self.differences(height, ours, theirs)
                if reasons:
                    return Comparison(DIFFERENT, height, reasons, attested_otherwise=otherwise, first=first)
                otherwise += 1
            self._named = open_header(bytes(ours.block.header), self._network).validators
        return Comparison(EQUAL, height, attested_otherwise=otherwise, first=first)

    def differences(self, height: int, ours: Attested, theirs: Attested) -> tuple[str, ...]:
        """Return how two blocks of a height differ; nothing if only by who validly signed them."""
        reasons = [*self._agreed(ours, theirs), *self._attestations(height, ours, theirs)]
        return tuple(reasons[:_MAX_REASONS])

    def _agreed(self, ours: Attested, theirs: Attested) -> list[str]:
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

    def _attestations(self, height: int, ours: Attested, theirs: Attested) -> list[str]:
        """Return what of two differing blocks does not hold by itself; nothing if only the signers differ."""
        try:
            epoch = self._epoch(height)
        except GdfError as error:
            return [f"nobody here knows the validators of block {height}: {error}"]
        reasons = []
        for name, item in zip("ab", (ours, theirs), strict=True):
            try:
                _check_attested(item, epoch, self._network)
            except PeerError as error:
                reasons.append(f"{name} does not hold: {error}")
        return reasons

    def _epoch(self, height: int) -> Epoch:
        """Return the epoch of a height with the set that the common header before commits to; raises GdfError."""
        genesis = self._a.genesis
        number = (height - 1) // genesis.staking.epoch_blocks
        if number == 0:
            return epoch_of(genesis, 0, genesis.validators)
        failure: GdfError = MalformedError("neither has its set")
        for side in (self._a, self._b):
            try:
                validators = side.sets(height)
            except GdfError as error:
                failure = error
                continue
            if self._named in (None, set_hash(validators)):
                return epoch_of(genesis, number, validators)
            failure = MalformedError("the header before it names another set than is stored")
        raise failure


def _check_attested(item: Attested, epoch: Epoch, network: str) -> None:
    """Raise PeerError unless leaders signed a block and its closing blocks, and a quorum what its certificate says."""
    proposals = (item.block, *item.closing)
    for proposal in proposals:
        open_block(proposal, network, epoch.leader(open_header(bytes(proposal.header), network).slot))
    first = open_header(bytes(item.block.header), network)
    root = first.parent if first.height == epoch.first else ""  # whether it is, the blocks before decide
    places = open_headers([proposal.header for proposal in proposals], epoch, network, root)
    if item.certificate is not None:
        check_final(item.certificate, places[-1], epoch, network)
    else:  # a later block's certificate finalizes it, but no later one of this epoch can
        ensure(first.height < epoch.last, MalformedError(f"no certificate ends epoch {epoch.number}"))


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
def _open(path: Path, rules: Rules) -> Iterator[Side]:
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
            yield stored_side(path, store)
        else:
            file.seek(0)
            lines = lines_of(file)
            with _naming(path, 0):
                genesis = open_first(next(lines, (b"", True))[0], rules).genesis
            network = rules.network_id(genesis)
            sets = _ExportSets(file_path, genesis, rules)
            blocks = _in_order(path, _exported(lines), genesis, network, 1)
            yield Side(genesis, 1, lambda first: itertools.islice(blocks, first - 1, None), sets)


def stored_side(path: Path, store: LedgerStore) -> Side:
    """Return a node's ledger as one side of a comparison."""
    genesis = store.genesis()
    network = store.rules.network_id(genesis)

    def blocks(first: int) -> Iterator[Attested]:
        return _in_order(path, _stored(store, first), genesis, network, first)

    return Side(genesis, store.oldest(), blocks, store.validators_at)


def _stored(store: LedgerStore, height: int) -> Iterator[SyncBlock]:
    while rows := store.blocks_from(height, _PAGE):
        for row in rows:
            yield from store.sync_blocks(row)
        height = rows[-1].height + 1


def _exported(lines: Iterator[tuple[bytes, bool]]) -> Iterator[SyncBlock]:
    while True:
        data, is_last = next(lines, (b"", True))
        ensure(data != b"", MalformedError("the file has no last line; it is cut off"))
        if is_last:
            decode(data, Last)
            return
        yield open_item(data)


def _in_order(path: Path, items: Iterator[SyncBlock], genesis: Genesis, network: str, first: int) -> Iterator[Attested]:
    """Yield blocks whose heights follow one another, from ``first`` on; a gap would shift all that comes after."""
    height, group = first - 1, list[SyncBlock]()
    while True:
        with _naming(path, height + 1):
            item = next(items, None)
            if item is not None and group and _is_closing(item, genesis, network):
                _check_room(group)
                group.append(item)
                continue
        if group:
            yield attested(group)
        if item is None:
            return
        with _naming(path, height + 1):
            found = open_header(bytes(item.block.header), network).height
            ensure(found == height + 1, MalformedError(f"block {found} is in this place"))
        height, group = found, [item]


def _is_closing(item: SyncBlock, genesis: Genesis, network: str) -> bool:
    header = open_header(bytes(item.block.header), network)
    return header.height > epoch_of(genesis, header.epoch, ()).last


def _check_room(group: list[SyncBlock]) -> None:
    ensure(len(group) < limits.SYNC_BUFFER_BLOCKS, OversizedError(f"more than {len(group) - 1} closing blocks"))


def attested(group: list[SyncBlock]) -> Attested:
    """Return a block of the ledger from it and its closing blocks as they travel."""
    return Attested(group[0].block, tuple(item.block for item in group[1:]), group[-1].certificate)


class _ExportSets:
    """The validators of an export's heights: known after one replay, as far as that goes."""

    def __init__(self, path: Path, genesis: Genesis, rules: Rules) -> None:
        self._path, self._rules = path, rules
        self._epochs = [epoch_of(genesis, 0, genesis.validators)]
        self._blocks = genesis.staking.epoch_blocks
        self._failure: VerificationFailedError | None = None
        self._replayed = False

    def __call__(self, height: int) -> tuple[str, ...]:
        """Return the set of a height; raises VerificationFailedError when the export does not hold up to there."""
        number = (height - 1) // self._blocks
        if number >= len(self._epochs) and not self._replayed:
            self._replayed = True
            try:
                verify(self._path, rules=self._rules, follower=self)
            except VerificationFailedError as error:
                self._failure = error
        if number >= len(self._epochs):
            raise self._failure or StorageError(f"{self._path} ends before block {height}")
        return self._epochs[number].validators

    def started(self, genesis: Genesis) -> None:
        """Nothing to note: the genesis was read before."""

    def finalized(self, blocks: SaveBlocks) -> None:
        """Note the epoch that begins."""
        if blocks.next is not None:
            self._epochs.append(blocks.next)


@contextlib.contextmanager
def _naming(path: Path, height: int) -> Iterator[None]:
    """Say which ledger cannot be read, and where."""
    try:
        yield
    except PeerError as error:
        raise VerificationFailedError(f"{path}, height {height}: {error}") from error
