"""What a ledger file gives to nodes that start from a snapshot: links of the chain of sets, and pages of the state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from sqlmodel import col, select

from gdf_market.codec import encode
from ledger.handover import SignedLink
from ledger.limits import MAX_LINKS, PAGE_RECORDS, RECORD_PART_CHARS, SYNC_BYTES
from ledger.links import Link
from ledger.store import LedgerStore, certificate_of, validators_of
from ledger.tables import EpochRow, RecordRow, UndoRow
from ledger.wire import Links, SnapshotPage, SnapshotRecord

_OVERHEAD = 200  # bytes of a page or a record besides its texts


def signed_links(store: LedgerStore, epoch: int, limit: int = MAX_LINKS) -> Iterator[SignedLink]:
    """Yield the links of consecutive epochs that have ended, from ``epoch`` on.  Raises StorageError."""
    statement = select(EpochRow).where(col(EpochRow.number) >= epoch).order_by(col(EpochRow.number)).limit(limit + 1)
    rows = store.all(statement)
    before = None
    for row in rows:
        if before is not None:
            boundary = store.block(row.first_height - 1)
            if boundary is None:
                return
            closing = store.closing(boundary.height)
            validators = validators_of(row)
            yield SignedLink(
                link=Link(
                    header=msgspec.Raw(boundary.header),
                    closing=tuple(each.header for each in closing),
                    certificate=certificate_of(boundary),
                    validators=() if validators == validators_of(before) else validators,
                ),
                sigs=(boundary.signature, *(each.sig for each in closing)),
            )
        elif row.number != epoch:
            return
        before = row


def links_message(store: LedgerStore, epoch: int) -> bytes:
    """Return the answer to a LinksRequest: as many links as fit into one message."""
    chosen: list[SignedLink] = []
    size = _OVERHEAD
    for link in signed_links(store, epoch):
        size += len(encode(link)) + 1
        if size > SYNC_BYTES:
            break
        chosen.append(link)
    return encode(Links(epoch=epoch, links=tuple(chosen)))


def snapshot_message(store: LedgerStore, key: str, part: int) -> bytes:
    """Return the page of the last boundary block's state that follows the first ``part`` parts of record ``key``."""
    height = store.boundary()
    chosen: list[SnapshotRecord] = []
    size = _OVERHEAD
    for record in _parts(store, key, part):
        # JSON inside a text: its quotes are escaped, and what is not ASCII takes more bytes than characters
        size += len(encode(record)) + 1
        if size > SYNC_BYTES or len(chosen) == PAGE_RECORDS:
            return encode(SnapshotPage(height=height, key=key, part=part, records=tuple(chosen), done=False))
        chosen.append(record)
    return encode(SnapshotPage(height=height, key=key, part=part, records=tuple(chosen), done=True))


def _parts(store: LedgerStore, key: str, part: int) -> Iterator[SnapshotRecord]:
    for name, kind, value in _boundary_records(store, key):
        text = value.decode()
        count = max(1, -(-len(text) // RECORD_PART_CHARS))
        for index in range(part if name == key else 0, count):
            piece = text[index * RECORD_PART_CHARS : (index + 1) * RECORD_PART_CHARS]
            yield SnapshotRecord(key=name, kind=kind, value=piece, more=index + 1 < count)


def _boundary_records(store: LedgerStore, key: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield (key, kind, bytes) of the records at the boundary block, in key order, from ``key`` on."""
    while True:
        now = store.all(
            select(RecordRow).where(col(RecordRow.key) >= key).order_by(col(RecordRow.key)).limit(PAGE_RECORDS)
        )
        undo = store.all(select(UndoRow).where(col(UndoRow.key) >= key).order_by(col(UndoRow.key)).limit(PAGE_RECORDS))
        full = [rows[-1].key for rows in (now, undo) if len(rows) == PAGE_RECORDS]
        last = min(full, default=None)  # beyond it one of the two lists may lack something
        found: dict[str, tuple[str, bytes | None]] = {row.key: (row.kind, row.value) for row in now}
        found.update({row.key: (row.kind, row.value) for row in undo})
        for name in sorted(found):
            kind, value = found[name]
            if value is not None and (last is None or name <= last):
                yield name, kind, value
        if last is None:
            return
        key = last + "\0"
