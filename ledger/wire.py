"""The messages between ledgers besides blocks, votes and certificates, and the one decoder for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from gdf_market.codec import Hash, Record, UInt, decode, encode
from ledger.block import Certificate, Message, Proposal, Vote, entries_size
from ledger.handover import SignedLink
from ledger.limits import (
    BATCH_BYTES,
    MAX_BATCH_ENTRIES,
    MAX_LINKS,
    PAGE_RECORDS,
    RECORD_PART_CHARS,
    SLOT_WINDOW,
)

Bitmap = Annotated[str, msgspec.Meta(pattern=r"\A([1-9a-f][0-9a-f]{0,24})?\Z")]  # of validator positions, hex
SlotList = Annotated[tuple[UInt, ...], msgspec.Meta(max_length=SLOT_WINDOW)]
RecordKey = Annotated[str, msgspec.Meta(max_length=300)]
MAX_VOTE_SLOTS = 16


class Entries(Message, frozen=True, kw_only=True, tag="entries"):
    """Envelopes on their way to a block."""

    entries: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(min_length=1, max_length=MAX_BATCH_ENTRIES)]


class VotesSeen(Record, frozen=True, kw_only=True):
    """Whose votes a node holds in a slot that it has not got past."""

    slot: UInt
    notar: Bitmap = ""
    skip: Bitmap = ""
    final: Bitmap = ""


class Status(Message, frozen=True, kw_only=True, tag="status"):
    """Where a node stands and what it holds above its last finalized block; others send what it lacks."""

    network: Hash
    epoch: UInt
    height: UInt
    slot: UInt  # of the last finalized block
    oldest: UInt  # the lowest height from which on it holds all blocks
    snapshot: UInt  # the boundary block whose state it can send; 0 if none
    frontier: UInt
    notarized: SlotList
    skipped: SlotList
    blocks: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=2 * SLOT_WINDOW)]
    votes: Annotated[tuple[VotesSeen, ...], msgspec.Meta(max_length=MAX_VOTE_SLOTS)]


class SyncRequest(Message, frozen=True, kw_only=True, tag="sync_request"):
    """Ask for finalized blocks from a height on."""

    height: UInt


class SyncBlock(Record, frozen=True, kw_only=True):
    """A finalized block; the certificate is there when it finalizes this very block."""

    block: Proposal
    certificate: Certificate | None


class SyncResponse(Message, frozen=True, kw_only=True, tag="sync_response"):
    """Consecutive finalized blocks; ``more``: another message of the same answer follows."""

    blocks: Annotated[tuple[SyncBlock, ...], msgspec.Meta(min_length=1, max_length=256)]
    more: bool


class LinksRequest(Message, frozen=True, kw_only=True, tag="links_request"):
    """Ask for the chain of validator sets from the end of an epoch on."""

    epoch: UInt


class Links(Message, frozen=True, kw_only=True, tag="links"):
    """Links of consecutive epochs, the first of which ends ``epoch``; none if that one has not ended."""

    epoch: UInt
    links: Annotated[tuple[SignedLink, ...], msgspec.Meta(max_length=MAX_LINKS)]


class SnapshotRequest(Message, frozen=True, kw_only=True, tag="snapshot_request"):
    """Ask for the state after the boundary block of a height: what follows the first ``part`` parts of ``key``."""

    height: UInt
    key: RecordKey
    part: UInt


class SnapshotRecord(Record, frozen=True, kw_only=True):
    """A record of the state; a long one comes in several parts, all but the last with ``more``."""

    key: RecordKey
    kind: Annotated[str, msgspec.Meta(max_length=20)]
    value: Annotated[str, msgspec.Meta(max_length=RECORD_PART_CHARS)]
    more: bool


class SnapshotPage(Message, frozen=True, kw_only=True, tag="snapshot_page"):
    """Records in the order of their keys; ``done``: these are the last ones."""

    height: UInt  # of the boundary block; another one than asked for if that one is no longer held
    key: RecordKey  # what was asked for: late pages and copies follow something else
    part: UInt
    records: Annotated[tuple[SnapshotRecord, ...], msgspec.Meta(max_length=PAGE_RECORDS)]
    done: bool


AnyMessage = (
    Proposal
    | Vote
    | Certificate
    | Entries
    | Status
    | SyncRequest
    | SyncResponse
    | LinksRequest
    | Links
    | SnapshotRequest
    | SnapshotPage
)


def read(data: bytes) -> AnyMessage:
    """Decode one message; raises OversizedError or MalformedError."""
    message: AnyMessage = decode(data, AnyMessage)  # type: ignore[arg-type]
    return message


def batches(entries: Iterable[bytes]) -> list[bytes]:
    """Pack envelopes into as few Entries messages as their limits allow."""
    messages: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for raw in entries:
        added = entries_size((raw,))
        if batch and (size + added > BATCH_BYTES or len(batch) == MAX_BATCH_ENTRIES):
            messages.append(_entries(batch))
            batch, size = [], 0
        batch.append(raw)
        size += added
    return [*messages, _entries(batch)] if batch else messages


def _entries(batch: Sequence[bytes]) -> bytes:
    return encode(Entries(entries=tuple(msgspec.Raw(raw) for raw in batch)))


def bitmap(positions: Iterable[int]) -> str:
    """Return the hex bitmap of positions ("" for none)."""
    bits = 0
    for position in positions:
        bits |= 1 << position
    return f"{bits:x}" if bits else ""


def in_bitmap(text: str, position: int) -> bool:
    """Say whether a position is in a hex bitmap."""
    return bool(int(text or "0", 16) >> position & 1)
