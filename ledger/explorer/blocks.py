"""The block list and the block page, with the block's proofs checked live."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.records import Network
from gdf_market import identity, merkle
from gdf_market.codec import decode
from gdf_market.errors import MalformedError, PeerError, ensure
from ledger.block import (
    FINAL,
    Certificate,
    Header,
    block_hash,
    genesis_beacon,
    open_header,
    quorum_size,
    verify_beacon,
    verify_certificate,
)
from ledger.explorer.checks import Check, attempt, compare
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


@dataclass(frozen=True)
class BlockPage:
    """A block; entries and events are shown up to a page of each."""

    view: BlockView
    is_head: bool
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
    return BlockList(block_views(rows), before, rows[-1].height if more else None)


def load(reader: Reader, network: str, height: int, from_position: int) -> BlockPage | None:
    """Return a block's page with entries from ``from_position`` on; None if there is no such block."""
    row = reader.block(height)
    if row is None:
        return None
    state = reader.record("network", Network)
    validators = state.validators if state else ()
    entries = reader.block_entries(height)
    certificate = _certificate(row)
    end = from_position + MAX_PAGE
    events = reader.events(MAX_PAGE, height=height, oldest_first=True)
    head = reader.head()
    return BlockPage(
        view=block_views([row])[0],
        is_head=head is not None and head.height == height,
        header=_header_fields(row),
        signature=row.signature,
        certified_height=row.certified_height,
        signers=[validators[index] for index in certificate.signers if index < len(validators)] if certificate else [],
        quorum=quorum_size(len(validators)),
        validators=len(validators),
        checks=_checks(reader, network, row, entries, validators),
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


def _checks(
    reader: Reader, network: str, row: BlockRow, entries: list[EntryRow], validators: tuple[str, ...]
) -> list[Check]:
    checks = [compare("The header's bytes hash to the block's hash", block_hash(row.header), row.hash)]
    try:
        header = open_header(row.header, network)
    except PeerError as error:
        return [*checks, Check("The header can be read", False, str(error))]

    def proposer_signed() -> None:
        identity.verify(network, "block", header.proposer, row.header, _hex(row.signature))

    def follows_parent() -> None:
        parent = reader.block(row.height - 1)
        if parent is None:
            ensure(header.height == 1, MalformedError("the parent block is missing in this file"))
        ensure(
            header.parent == (parent.hash if parent else network),
            MalformedError(f"its parent is {header.parent}, the block before it has another hash"),
        )
        verify_beacon(header, open_header(parent.header, network).beacon if parent else genesis_beacon(network))

    return [
        *checks,
        attempt("The proposer signed the header", proposer_signed, f"Ed25519 signature of {header.proposer}"),
        attempt("It builds on the block before it, and its beacon follows", follows_parent, "hash and VRF proof"),
        compare(
            "Its entries are the ones the header covers",
            merkle.root([entry.raw for entry in entries]).hex(),
            header.entries_root,
        ),
        _finality(reader, network, row, validators),
    ]


def _finality(reader: Reader, network: str, row: BlockRow, validators: tuple[str, ...]) -> Check:
    claim = "A quorum of validators finalized it"
    certified = row if row.certified_height == row.height else reader.block(row.certified_height)

    def quorum_signed() -> None:
        certificate = decode(row.certificate, Certificate, max_bytes=CERTIFICATE_BYTES)
        ensure(certificate.kind == FINAL, MalformedError(f"the certificate is a {certificate.kind} certificate"))
        ensure(
            certified is not None and certificate.hash == certified.hash,
            MalformedError(f"the certificate names {certificate.hash}, not block {row.certified_height}"),
        )
        verify_certificate(certificate, network, validators, certificate.epoch)

    via = "" if row.certified_height == row.height else f", by way of block {row.certified_height} that builds on it"
    return attempt(claim, quorum_signed, f"{quorum_size(len(validators))} of {len(validators)} signatures needed{via}")


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise MalformedError(f"{text[:20]!r} is not hex") from None
