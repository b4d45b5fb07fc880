"""Evidence against validators: the two statements, each with its signature checked again, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from gdf_market.codec import encode
from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.messages import Evidence, open_entry
from gdf_market.statements import Statement, is_equivocation, place, signer, verify_statement
from ledger.explorer.checks import Check, attempt
from ledger.explorer.present import account_name
from ledger.explorer.queries import Reader
from ledger.explorer.sentences import statement_sentence
from ledger.tables import EntryRow


@dataclass(frozen=True)
class StatementView:
    """One signed statement; ``signed`` is its canonical text with the signature."""

    sentence: str
    signed: str


@dataclass(frozen=True)
class EvidenceView:
    """An equivocation that the ledger punished; ``slashed`` in micro-credits."""

    entry: str
    height: int
    author: str
    accused: str
    epoch: int
    slot: int
    statements: list[StatementView]
    slashed: int
    checks: list[Check]


def evidence_view(reader: Reader, network: str, row: EntryRow) -> EvidenceView | None:
    """Return what an entry proves; None if it is no evidence or cannot be read."""
    try:
        body = open_entry(row.raw, "", check_signature=False).body
    except PeerError:
        return None
    if not isinstance(body, Evidence):
        return None
    epoch, slot = place(body.first)
    return EvidenceView(
        entry=row.id,
        height=row.height,
        author=body.author,
        accused=signer(body.first),
        epoch=epoch,
        slot=slot,
        statements=[_view(body.first), _view(body.second)],
        slashed=reader.sum_events("slashed", height=row.height, entry=row.id),
        checks=_checks(body, network),
    )


def _view(statement: Statement) -> StatementView:
    return StatementView(statement_sentence(statement), encode(statement).decode())


def _checks(body: Evidence, network: str) -> list[Check]:
    accused = signer(body.first)

    def conflict() -> None:
        ensure(
            is_equivocation(body.first, body.second),
            MalformedError("an honest validator may have signed both statements"),
        )

    return [
        *(
            attempt(
                f"{account_name(accused)} signed the {name} statement",
                lambda statement=statement: verify_statement(statement, network),  # type: ignore[misc]
                f"Ed25519 signature of {accused} over the network id and the statement",
            )
            for name, statement in (("first", body.first), ("second", body.second))
        ),
        attempt("No honest validator signs both", conflict, "same epoch and slot, contradicting content"),
    ]
