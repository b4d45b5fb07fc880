"""The block list and the block page, with the block's proofs checked live."""

from __future__ import annotations

from dataclasses import dataclass

from gdf_market import identity, merkle
from gdf_market.codec import decode
from gdf_market.errors import MalformedError, PeerError, ensure
from ledger.block import (
    FINAL,
    Certificate,
    Header,
    Proposal,
    block_hash,
    genesis_beacon,
    open_header,
    quorum_size,
    set_hash,
    verify_beacon,
    verify_certificate,
)
from ledger.explorer.checks import Check, attempt, compare, pruned
from ledger.explorer.queries import MAX_PAGE, Reader
from ledger.explorer.rows import BlockView, EntryView, EventView, block_views, entry_views, event_views
from ledger.tables import BlockRow, EntryRow

CERTIFICATE_BYTES = 65_536


@dataclass(frozen=True)
class BlockList:
    """One page of blocks, newest first; ``next_before`` is None on the last page."""

    blocks: list[BlockView]
    before: int | None
    next_before: int | None
    pruned_below: int  # only the last blocks of epochs are kept below; 0: nothing was pruned


@dataclass(frozen=True)
class BlockPage:
    """A block; entries and events are shown up to a page of each; ``fees`` in micro-credits, to the proposer."""

    view: BlockView
    is_head: bool
    epoch: int
    ends_epoch: bool
    closing: int  # closing blocks that lead to the certified one
    fees: int
    pruned_below: int  # 0: nothing was pruned
    header: dict[str, str]
    signature: str
    certified_height: int
    signers: list[str]
    quorum: int
    validators: int
    checks: list[Check]
    entries: list[EntryView]
    next_position: int | None
    events: list[EventView]
    more_events: bool


def load_list(reader: Reader, limit: int, before: int | None) -> BlockList:
    """Return one page of blocks."""
    rows = reader.blocks(limit, before)
    more = bool(rows) and bool(reader.blocks(1, rows[-1].height))
    return BlockList(block_views(rows), before, rows[-1].height if more else None, pruned_below(reader))


def pruned_below(reader: Reader) -> int:
    """Return the height below which blocks were pruned; 0 if none were."""
    oldest = reader.oldest()
    return oldest if oldest > 1 else 0


def load(reader: Reader, network: str, height: int, from_position: int) -> BlockPage | None:
    """Return a block's page with entries from ``from_position`` on; None if there is no such block."""
    row = reader.block(height)
    if row is None:
        return None
    place = _Place.of(reader, network, row)
    validators = place.validators
    entries = reader.block_entries(height)
    certificate = _certificate(row)
    end = from_position + MAX_PAGE
    events = reader.events(MAX_PAGE, height=height, oldest_first=True)
    head = reader.head()
    return BlockPage(
        view=block_views([row])[0],
        is_head=head is not None and head.height == height,
        epoch=place.epoch,
        ends_epoch=height % place.epoch_blocks == 0,
        closing=len(place.closing),
        fees=reader.sum_events("fee", height=height),
        pruned_below=pruned_below(reader),
        header=_header_fields(row),
        signature=row.signature,
        certified_height=row.certified_height,
        signers=[validators[index] for index in certificate.signers if index < len(validators)] if certificate else [],
        quorum=quorum_size(len(validators)),
        validators=len(validators),
        checks=_checks(place, entries),
        entries=entry_views(reader, entries[from_position:end]),
        next_position=end if len(entries) > end else None,
        events=event_views(reader, events),
        more_events=len(events) == MAX_PAGE,
    )


def _header_fields(row: BlockRow) -> dict[str, str]:
    try:
        header = decode(row.header, Header)
    except PeerError:
        return {}
    return {field: str(getattr(header, field)) for field in header.__struct_fields__}


def _certificate(row: BlockRow) -> Certificate | None:
    try:
        return decode(row.certificate, Certificate, max_bytes=CERTIFICATE_BYTES)
    except PeerError:
        return None


@dataclass(frozen=True)
class _Place:
    """A block and what its checks need of the blocks around it."""

    network: str
    row: BlockRow
    epoch: int
    epoch_blocks: int
    validators: tuple[str, ...]  # of the block's epoch; () if this file does not hold those that were agreed on
    following: tuple[str, ...]  # of the next block
    parent: BlockRow | None
    certified: BlockRow | None
    closing: list[bytes]
    oldest: int

    @classmethod
    def of(cls, reader: Reader, network: str, row: BlockRow) -> _Place:
        blocks, height = reader.genesis().staking.epoch_blocks, row.height
        return cls(
            network=network,
            row=row,
            epoch=(height - 1) // blocks,
            epoch_blocks=blocks,
            validators=_agreed_set(reader, network, (height - 1) // blocks * blocks),
            following=reader.validators_at(height + 1),
            parent=reader.block(height - 1),
            certified=row if row.certified_height == height else reader.block(row.certified_height),
            # of the certified block: it may end the epoch by them
            closing=reader.closing([row.certified_height])[row.certified_height],
            oldest=reader.oldest(),
        )


def _agreed_set(reader: Reader, network: str, boundary: int) -> tuple[str, ...]:
    """Return the validators after a boundary block; () unless they are those to which its header commits.

    Boundary blocks outlive pruning, and are checked on their own pages; 0 is the genesis.
    """
    validators, row = reader.validators_at(boundary + 1), reader.block(boundary)
    if boundary == 0:
        return validators if validators == reader.genesis().validators else ()
    try:
        named = open_header(row.header, network).validators if row is not None else ""
    except PeerError:
        return ()
    return validators if named == set_hash(validators) else ()


def _checks(place: _Place, entries: list[EntryRow]) -> list[Check]:
    row = place.row
    checks = [compare("The header's bytes hash to the block's hash", block_hash(row.header), row.hash)]
    try:
        header = open_header(row.header, place.network)
    except PeerError as error:
        return [*checks, Check("The header can be read", False, str(error))]
    return [
        *checks,
        attempt(
            "The slot's leader in its epoch signed the header",
            lambda: _proposer_signed(place, header),
            f"Ed25519 signature of {header.proposer}, whose turn slot {header.slot} is",
        ),
        _follows(place, header),
        _covers(place, header, entries),
        _finality(place),
        compare(
            "It commits to the validators of the block after it",
            set_hash(place.following) if place.following else "",
            header.validators,
        ),
    ]


def _proposer_signed(place: _Place, header: Header) -> None:
    ensure(header.epoch == place.epoch, MalformedError(f"it says epoch {header.epoch}, its height is in {place.epoch}"))
    ensure(bool(place.validators), MalformedError(f"this file has not the validators of epoch {place.epoch}"))
    leader = place.validators[header.slot % len(place.validators)]
    ensure(header.proposer == leader, MalformedError(f"slot {header.slot} belongs to {leader}"))
    identity.verify(place.network, "block", header.proposer, place.row.header, _hex(place.row.signature))


def _follows(place: _Place, header: Header) -> Check:
    claim = "It builds on the block before it, and its beacon follows"
    parent = place.parent
    if parent is None and 1 < place.row.height <= place.oldest:
        return pruned(claim, "the block before it was pruned from this file")

    def follows_parent() -> None:
        if parent is None:
            ensure(header.height == 1, MalformedError("the parent block is missing in this file"))
        ensure(
            header.parent == (parent.hash if parent else place.network),
            MalformedError(f"its parent is {header.parent}, the block before it has another hash"),
        )
        beacon = open_header(parent.header, place.network).beacon if parent else genesis_beacon(place.network)
        verify_beacon(header, beacon)

    return attempt(claim, follows_parent, "hash and VRF proof")


def _covers(place: _Place, header: Header, entries: list[EntryRow]) -> Check:
    claim = "Its entries are the ones the header covers"
    if place.row.height < place.oldest and not entries and header.entry_count:
        return pruned(claim, f"its {header.entry_count} entries were pruned from this file")
    return compare(claim, merkle.root([entry.raw for entry in entries]).hex(), header.entries_root)


def _finality(place: _Place) -> Check:
    claim = "A quorum of the validators of its epoch finalized it"
    row, certified = place.row, place.certified

    def quorum_signed() -> None:
        certificate = decode(row.certificate, Certificate, max_bytes=CERTIFICATE_BYTES)
        ensure(certificate.kind == FINAL, MalformedError(f"the certificate is a {certificate.kind} certificate"))
        ensure(certified is not None, MalformedError(f"block {row.certified_height} is missing in this file"))
        assert certified is not None
        last = _closing_hash(place, certified) if place.closing else certified.hash
        ensure(
            certificate.hash == last,
            MalformedError(f"the certificate names {certificate.hash}, not block {row.certified_height}"),
        )
        verify_certificate(certificate, place.network, place.validators, place.epoch)

    via = "" if row.certified_height == row.height else f", by way of block {row.certified_height} that builds on it"
    if place.closing:
        via += f", by {len(place.closing)} closing block{'s' if len(place.closing) > 1 else ''} that end the epoch"
    count = len(place.validators)
    return attempt(claim, quorum_signed, f"{quorum_size(count)} of {count} signatures needed{via}")


def _closing_hash(place: _Place, certified: BlockRow) -> str:
    """Return the hash of the last closing block.

    Raises MalformedError unless empty blocks lead there from the boundary block.
    """
    height, hash_ = certified.height, certified.hash
    for raw in place.closing:
        data = bytes(decode(raw, Proposal, max_bytes=CERTIFICATE_BYTES).header)
        header = open_header(data, place.network)
        ensure(
            (header.parent, header.height, header.epoch) == (hash_, height + 1, place.epoch)
            and (header.entry_count, header.state_root) == (0, certified.state_root),
            MalformedError(f"closing block {header.height} does not follow from block {height}"),
        )
        height, hash_ = header.height, block_hash(data)
    return hash_


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise MalformedError(f"{text[:20]!r} is not hex") from None
