"""What was said in final blocks: the evidence that every payment must rest on, read from entries alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gdf_market.codec import digest, encode
from gdf_market.messages import (
    ArbiterOpen,
    AuditCommit,
    AuditOpen,
    Bid,
    Commit,
    Entry,
    JobPost,
    Outcome,
    Receipt,
    Result,
    Reveal,
    SketchOpen,
    commitment,
)

Where = tuple[str, int, int]
Audited = tuple[str, int, int, str]  # a unit and an account


@dataclass
class Said:
    """Everything that people said so far, by what it is about."""

    posts: dict[str, JobPost] = field(default_factory=dict)
    prices: dict[tuple[str, str], int] = field(default_factory=dict)  # the last bid's, by (job, worker)
    commits: dict[Where, str] = field(default_factory=dict)
    reveals: dict[Where, Reveal] = field(default_factory=dict)
    receipts: dict[tuple[str, int], dict[str, tuple[int, ...]]] = field(default_factory=lambda: defaultdict(dict))
    results: dict[tuple[str, int], dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    audit_commits: dict[Audited, int] = field(default_factory=dict)  # at which height
    audit_opens: dict[Audited, AuditOpen] = field(default_factory=dict)
    openings: dict[Where, list[tuple[int, frozenset[int]]]] = field(default_factory=lambda: defaultdict(list))
    replays: Counter[Audited] = field(default_factory=Counter)  # arbiters' openings

    def note(self, entry: Entry, height: int) -> None:
        """Take one final entry."""
        body = entry.body
        match body:
            case JobPost():
                self.posts[entry.id] = body
            case Bid():
                self.prices[body.job, body.author] = body.price
            case Commit() | Reveal() | Receipt() | Result():
                self._note_round(body)
            case AuditCommit() | AuditOpen() | SketchOpen() | ArbiterOpen():
                self._note_audit(body, height)

    def _note_round(self, body: Commit | Reveal | Receipt | Result) -> None:
        match body:
            case Commit():
                self.commits[body.job, body.round, body.slot] = body.digest
            case Reveal():
                self.reveals[body.job, body.round, body.slot] = body
            case Receipt():
                self.receipts[body.job, body.round][body.author] = body.holds
            case Result():
                name = digest("gdf/outcome", encode(body.outcome)).hex()
                self.outcomes[name] = body.outcome
                self.results[body.job, body.round][body.author] = name

    def _note_audit(self, body: AuditCommit | AuditOpen | SketchOpen | ArbiterOpen, height: int) -> None:
        where = (body.job, body.round, body.slot)
        match body:
            case AuditCommit():
                self.audit_commits[*where, body.author] = height
            case AuditOpen():
                self.audit_opens[*where, body.author] = body
            case SketchOpen():
                self.openings[where].append((height, frozenset(opening.step for opening in body.openings)))
            case ArbiterOpen():
                self.replays[*where, body.author] += 1

    def is_revealed(self, where: Where) -> bool:
        """Say whether a unit was committed to and opened as it was committed."""
        body = self.reveals.get(where)
        if body is None:
            return False
        parts = (body.author, body.update, body.proof, body.sketch_root, body.salt)
        return self.commits.get(where) == commitment(*parts)

    def is_held(self, where: Where) -> bool:
        """Say whether more than two thirds of those who sent receipts hold a unit."""
        said = self.receipts[where[0], where[1]]
        return 3 * sum(where[2] in holds for holds in said.values()) > 2 * len(said)

    def winner(self, job: str, index: int, expelled: set[str]) -> Outcome | None:
        """Return the outcome for which more than two thirds of the votes are, without those of convicts."""
        votes = Counter(name for account, name in self.results[job, index].items() if account not in expelled)
        for name, count in votes.items():
            if 3 * count > 2 * votes.total():
                return self.outcomes[name]
        return None

    def opened_since(self, where: Where, height: int, steps: tuple[int, ...]) -> bool:
        """Say whether the worker opened all these steps at once after a height."""
        return any(at >= height and opened >= set(steps) for at, opened in self.openings[where])
