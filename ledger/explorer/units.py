"""The unit page: time line, shard proof, audits against thresholds, dispute and payment arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.parameters import DEVICE_CLASSES, Thresholds, thresholds
from contracts.records import Audit, Dispute, Job, Round, Unit
from contracts.state import dispute_key, job_key, round_key, unit_key
from gdf_market import identity, vrf
from gdf_market.errors import PeerError
from gdf_market.messages import (
    ArbiterCommit,
    ArbiterOpen,
    AuditCommit,
    AuditOpen,
    BisectOpen,
    Commit,
    Reveal,
    SketchOpen,
    StateOffer,
    commitment,
    draw,
    open_entry,
    shard_alpha,
)
from ledger.explorer.checks import Check, attempt, compare
from ledger.explorer.payment import Payment, payment
from ledger.explorer.present import account_name
from ledger.explorer.queries import MAX_PAGE, Reader
from ledger.explorer.rows import EntryView, EventView, entry_views, event_views
from ledger.tables import EntryRow

UnitBody = (
    Commit | Reveal | AuditCommit | SketchOpen | AuditOpen | BisectOpen | StateOffer | ArbiterCommit | ArbiterOpen
)
UNIT_KINDS = (
    *("commit", "reveal", "audit_commit", "sketch_open", "audit_open"),
    *("bisect_open", "state_offer", "arbiter_commit", "arbiter_open"),
)
# a commit, a reveal, eight audits of three entries each and as many of a committee, three bisections of thirty
MAX_UNIT_ENTRIES = 160


@dataclass(frozen=True)
class TimelineItem:
    """One moment of a unit's life; ``entry`` is the signed entry behind it, "" if a deadline or a draw."""

    time_ms: int
    height: int
    kind: str
    sentence: str
    entry: str
    effects: tuple[str, ...]  # what the entry caused


@dataclass(frozen=True)
class SignedEntry:
    """A signed entry behind the unit's pay, and what it is called where its proof is checked."""

    id: str
    name: str


@dataclass(frozen=True)
class UnitPage:
    """Everything the ledger holds of one unit."""

    job: str
    title: str
    device_class: str
    unit: Unit
    phase: str
    shards: int
    proof: str
    checks: list[Check]
    payment: Payment | None
    thresholds: Thresholds | None
    audits: list[Audit]
    dispute: Dispute | None
    timeline: list[TimelineItem]
    signed: list[SignedEntry]  # of the time line
    more_events: bool
    pruned_below: int  # the height before which its entries and events may have been pruned; 0 if none were


def load(reader: Reader, job_id: str, index: int, slot: int) -> UnitPage | None:
    """Return a unit's page; None if the job, round or unit does not exist."""
    job = reader.record(job_key(job_id), Job)
    entry = reader.record(round_key(job_id, index), Round)
    unit = reader.record(unit_key(job_id, index, slot), Unit)
    if job is None or entry is None or unit is None:
        return None
    audits = reader.records_under(f"audit/{job_id}/{index}/{slot}/", Audit, MAX_PAGE)
    bodies, entries = _entries(reader, unit)
    reveal = next((body for body in bodies if isinstance(body, Reveal) and body.author == unit.worker), None)
    events = reader.events(MAX_PAGE, job=job_id, unit=(index, slot), oldest_first=True)
    return UnitPage(
        job=job_id,
        title=job.spec.title,
        device_class=job.spec.device_class,
        unit=unit,
        phase=entry.phase,
        shards=job.spec.shards,
        proof=reveal.proof if reveal else "",
        checks=_evidence(job, entry, unit, reveal) if reveal else [],
        payment=payment(job, entry, unit, _accepted(reader, entry)),
        thresholds=_thresholds(job.spec.device_class),
        audits=sorted(audits.values(), key=lambda audit: (audit.committed_ms, audit.auditor)),
        dispute=reader.record(dispute_key(job_id, index, slot), Dispute),
        signed=[
            SignedEntry(view.id, f"{view.kind.replace('_', ' ')} in block {view.height} ({account_name(view.author)})")
            for view in entries
        ],
        timeline=_timeline(entries, event_views(reader, events)),
        more_events=len(events) == MAX_PAGE,
        pruned_below=oldest if (oldest := reader.oldest()) > 1 else 0,
    )


def _entries(reader: Reader, unit: Unit) -> tuple[list[UnitBody], list[EntryView]]:
    rows = reader.unit_entries(unit.job, unit.round, unit.slot, UNIT_KINDS, MAX_UNIT_ENTRIES)
    bodies: list[UnitBody] = []
    matching: list[EntryRow] = []
    for row in rows:
        try:
            body = open_entry(row.raw, "", check_signature=False).body
        except PeerError:
            continue
        if not isinstance(body, UnitBody):
            continue
        if (body.round, body.slot) == (unit.round, unit.slot):
            bodies.append(body)
            matching.append(row)
    return bodies, entry_views(reader, matching)


def _evidence(job: Job, entry: Round, unit: Unit, reveal: Reveal) -> list[Check]:
    """Return what a reader can recompute from the reveal alone."""
    alpha = shard_alpha(job.id, entry.index, unit.slot, entry.seed)
    opened = commitment(reveal.author, reveal.update, reveal.proof, reveal.sketch_root, reveal.salt)

    def drawn() -> int:
        beta = vrf.verify(identity.public_key(reveal.author), alpha, bytes.fromhex(reveal.proof))
        return draw(beta, job.spec.shards)

    proof = attempt("The shard proof is the worker's own", drawn, "ECVRF proof over job, round, slot and round seed")
    checks = [compare("The reveal opens the commit", opened, unit.commit), proof]
    if proof.valid:
        checks.append(compare("The proof draws the recorded shard", drawn(), unit.shard))
    return checks


def _accepted(reader: Reader, entry: Round) -> int:
    """Return how many units of a settled round were accepted, whatever became of them later."""
    units = reader.records([unit_key(entry.job, entry.index, slot) for slot in entry.units], Unit)
    return sum(1 for unit in units.values() if unit.release_ms)


def _thresholds(device_class: str) -> Thresholds | None:
    return thresholds(device_class) if device_class in DEVICE_CLASSES else None


def _timeline(entries: list[EntryView], events: list[EventView]) -> list[TimelineItem]:
    """Return entries, each with what it caused, and what deadlines and draws did, in ledger order."""
    signed = {entry.id for entry in entries}
    effects = {entry.id: tuple(event.sentence for event in events if event.entry == entry.id) for entry in entries}
    items = [
        ((entry.height, 1, entry.position), _item(entry, entry.sentence, entry.id, effects[entry.id]))
        for entry in entries
    ] + [
        ((event.height, 1 if event.entry else 0, event.id), _item(event, event.sentence, event.entry, ()))
        for event in events
        if event.entry not in signed
    ]
    return [item for _, item in sorted(items, key=lambda pair: pair[0])]


def _item(row: EntryView | EventView, sentence: str, entry: str, effects: tuple[str, ...]) -> TimelineItem:
    return TimelineItem(row.time_ms, row.height, row.kind, sentence, entry, effects)
