"""Catching validators that sign two statements of which an honest one signs at most one (gdf_market/statements.py).

Rules kept here:
1. Only statements whose signatures held are kept; a conflict is looked for before that, so that what a node would drop
   unread costs a signature check only if it convicts somebody.
2. At most one statement of a kind per validator and slot is kept, for slots near the last finalized one, and one
   conviction per validator and epoch is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdf_market import identity
from gdf_market.codec import digest
from gdf_market.errors import GdfError
from gdf_market.messages import Entry, Evidence, seal
from gdf_market.statements import Statement, Vote, is_equivocation, place, signer, verify_statement
from gdf_market.units import MAX_INT
from ledger import limits


@dataclass(frozen=True)
class Accusation:
    """Two verified statements that convict their signer."""

    accused: str
    epoch: int
    first: Statement
    second: Statement

    def entry(self, key: identity.Identity, network: str, time_ms: int) -> Entry:
        """Return the evidence as an entry; the same accuser makes the same nonce in the same minute."""
        minute = time_ms // 60_000
        drawn = digest("gdf/evidence-nonce", f"{self.accused}/{self.epoch}/{minute}".encode())
        body = Evidence(
            author=key.account,
            nonce=int.from_bytes(drawn, "big") % MAX_INT,
            expires_ms=time_ms + limits.EVIDENCE_TTL_MS,
            first=self.first,
            second=self.second,
        )
        return seal(key, network, body)

    @classmethod
    def of(cls, evidence: Evidence) -> Accusation:
        """Return the accusation that an own entry made."""
        return cls(signer(evidence.first), place(evidence.first)[0], evidence.first, evidence.second)


class Watch:
    """Recent statements by slot and signer, and who was caught."""

    def __init__(self, network: str, me: str | None) -> None:
        self._network = network
        self._me = me  # two copies of our own key are the operator's to notice, not ours to report
        self._kept: dict[tuple[int, int], dict[str, dict[str, Statement]]] = {}
        self._caught: dict[tuple[str, int], None] = {}
        self.pending: dict[tuple[str, int], Accusation] = {}  # not yet known to be in the ledger

    def __len__(self) -> int:
        return sum(len(kinds) for signers in self._kept.values() for kinds in signers.values())

    def note(self, statement: Statement) -> None:
        """Keep a statement whose signature holds, if it is the first of its kind."""
        kinds = self._kept.setdefault(place(statement), {}).setdefault(signer(statement), {})
        kinds.setdefault(_kind(statement), statement)

    def catch(self, statement: Statement) -> Accusation | None:
        """Return the accusation that an unverified statement completes, if its signature holds."""
        name, where = signer(statement), place(statement)
        kept = self._kept.get(where, {}).get(name)
        if not kept or name == self._me or (name, where[0]) in self._caught:
            return None
        earlier = next((each for each in _in_order(kept) if is_equivocation(each, statement)), None)
        if earlier is None:
            return None
        try:
            verify_statement(statement, self._network)
        except GdfError:
            return None  # whoever sent it forged it; it is dropped like any other stray vote
        found = Accusation(name, where[0], earlier, statement)
        self.remember(found)
        return found

    def remember(self, found: Accusation) -> None:
        """Keep an accusation for the ledger; the same equivocation is not looked for again."""
        if len(self.pending) < limits.MAX_EVIDENCE:
            self.pending[found.accused, found.epoch] = found
        self._caught[found.accused, found.epoch] = None
        while len(self._caught) > limits.MAX_CAUGHT:
            del self._caught[next(iter(self._caught))]

    def prune(self, epoch: int, root_slot: int) -> None:
        """Forget what is far below the last finalized slot."""
        for old in [key for key in self._kept if key[0] < epoch - 1 or key[1] + limits.SLOT_WINDOW <= root_slot]:
            del self._kept[old]


def _kind(statement: Statement) -> str:
    return statement.kind if isinstance(statement, Vote) else "header"


def _in_order(kept: dict[str, Statement]) -> Iterator[Statement]:
    for kind in sorted(kept):
        yield kept[kind]
