"""The entry page: what it says, its exact signed bytes, and its signature checked live."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gdf_market.codec import decode
from gdf_market.errors import PeerError
from gdf_market.messages import MAX_ENTRY_BYTES, Envelope, open_entry
from ledger.explorer.changes import Offer, offer
from ledger.explorer.checks import Check, attempt, compare
from ledger.explorer.evidence import EvidenceView, evidence_view
from ledger.explorer.queries import MAX_PAGE, Reader
from ledger.explorer.rows import EntryView, EventView, entry_views, event_views


@dataclass(frozen=True)
class EntryPage:
    """``signed`` is the text of the body's exact bytes, ``pretty`` the same with line breaks; fees in micro-credits."""

    view: EntryView
    checks: list[Check]
    valid: bool
    signed: str
    signature: str
    pretty: str
    raw_bytes: int
    fee: int
    fee_per_kib: int
    evidence: EvidenceView | None
    changes: Offer
    events: list[EventView]
    more_events: bool


def load(reader: Reader, network: str, entry_id: str) -> EntryPage | None:
    """Return an entry's page; None if there is no such entry."""
    row = reader.entry(entry_id)
    if row is None:
        return None
    signed, signature = _parts(row.raw)
    signature_check = attempt(
        "The author signed exactly these bytes",
        lambda: open_entry(row.raw, network),
        f"Ed25519 signature of {row.author} over the network id and the bytes below",
    )
    checks = [signature_check, *_identity_checks(row.raw, row.id, row.author)]
    events = reader.events(MAX_PAGE, height=row.height, entry=entry_id, oldest_first=True)
    return EntryPage(
        view=entry_views(reader, [row])[0],
        checks=checks,
        valid=all(check.valid for check in checks),
        signed=signed,
        signature=signature,
        pretty=_pretty(signed),
        raw_bytes=len(row.raw),
        fee=reader.sum_events("fee", height=row.height, entry=entry_id),
        fee_per_kib=reader.genesis().entry_fee,
        evidence=evidence_view(reader, network, row),
        changes=offer(reader, row.height),
        events=event_views(reader, events),
        more_events=len(events) == MAX_PAGE,
    )


def _parts(raw: bytes) -> tuple[str, str]:
    """Return the body's text and the signature; the whole text and "" when it is no envelope."""
    try:
        envelope = decode(raw, Envelope, max_bytes=MAX_ENTRY_BYTES)
    except PeerError:
        return raw.decode("utf-8", "backslashreplace"), ""
    return bytes(envelope.body).decode("utf-8", "backslashreplace"), envelope.sig


def _identity_checks(raw: bytes, entry_id: str, author: str) -> list[Check]:
    try:
        entry = open_entry(raw, "", check_signature=False)
    except PeerError as error:
        return [Check("The bytes are a canonical entry", False, str(error))]
    return [
        compare("Its id is the hash of these bytes", entry.id, entry_id),
        compare("It is listed under its author", entry.body.author, author),
    ]


def _pretty(signed: str) -> str:
    try:
        return json.dumps(json.loads(signed), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return signed
