"""Which pages there are, and what each of them is made from: one snapshot, its sums, and the request's paging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ledger.explorer import (
    accounts,
    aggregates,
    audit,
    blocks,
    book,
    entries,
    fairness,
    jobs,
    overview,
    rounds,
    search,
    units,
    validators,
)
from ledger.explorer import events as event_pages
from ledger.explorer.changes import EntryChanges
from ledger.explorer.proofs import VerifyPage
from ledger.explorer.queries import MAX_PAGE, Reader
from ledger.explorer.totals import Totals, compute_totals
from ledger.explorer.worker import Worker

PAGE = 25  # rows of a list unless ?limit= asks for less or more
MAX_NUMBER = 2**53 - 1
MAX_SKIP = 10_000  # jobs that paging walks over

PRUNED = "Block {height} was pruned from this file, which holds all blocks from {oldest} on. Ask a node that keeps all."
NOT_FOUND = "This ledger has no {what}. It may be newer than this file, or of another network."


class Sums:
    """What takes a pass over a whole table, kept until the head moves."""

    def __init__(self) -> None:
        self.totals = aggregates.Cached(lambda reader: compute_totals(reader, reader.height()))
        self.rewards = aggregates.Cached(aggregates.rewards)
        self.over_time = aggregates.Cached(aggregates.over_time)


@dataclass(frozen=True)
class View:
    """What every page is made from: one snapshot, its totals, and how the request asks for paging."""

    request: Request
    reader: Reader
    sums: Sums
    network: str
    worker: Worker
    changes: EntryChanges

    def totals(self) -> Totals:
        """Return the sums over the state of the snapshot."""
        return self.sums.totals.get(self.reader)

    def path_number(self, name: str) -> int:
        """Return a number in the path; 404 when it is out of range."""
        text = str(self.request.path_params[name])
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise HTTPException(404, f"{text[:40]!r} is not a number in any ledger.")
        return int(text)

    def query_number(self, name: str, most: int = MAX_NUMBER) -> int | None:
        """Return a number in the query, None when absent; 400 when it is none."""
        text = self.request.query_params.get(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
            raise HTTPException(400, f"{name}={text[:40]} must be a whole number from 0 to {most}.")
        return int(text)

    def limit(self, default: int = PAGE) -> int:
        """Return how many rows to show: ``?limit=``, at least 1 and at most ``MAX_PAGE``."""
        return min(max(self.query_number("limit") or default, 1), MAX_PAGE)

    def query_text(self, name: str) -> str:
        """Return a text in the query; 400 when it is too long."""
        text = self.request.query_params.get(name, "")
        if len(text) > search.MAX_QUERY:
            raise HTTPException(400, f"{name} is longer than {search.MAX_QUERY} characters.")
        return text

    def path_text(self, name: str) -> str:
        """Return a text in the path."""
        return str(self.request.path_params[name])


Loader = Callable[[View], object]


def found_or_404(page: object | None, what: str) -> object:
    if page is None:
        raise HTTPException(404, NOT_FOUND.format(what=what))
    return page


def _overview(view: View) -> object:
    return overview.load(view.reader, view.totals())


def _jobs(view: View) -> object:
    return jobs.load_list(view.reader, view.totals().jobs, view.limit(), view.query_number("skip", MAX_SKIP) or 0)


def _job(view: View) -> object:
    rows = view.limit(jobs.ROUNDS_PER_PAGE)
    return found_or_404(jobs.load(view.reader, view.path_text("id"), rows, view.query_number("before")), "such job")


def _round(view: View) -> object:
    index = view.path_number("round")
    return found_or_404(rounds.load_page(view.reader, view.path_text("id"), index), f"round {index} of this job")


def _unit(view: View) -> object:
    index, slot = view.path_number("round"), view.path_number("slot")
    return found_or_404(units.load(view.reader, view.path_text("id"), index, slot), f"unit {index}/{slot} of this job")


def _accounts(view: View) -> object:
    return accounts.load_list(view.reader, view.totals(), view.limit(), view.query_text("after"))


def _account(view: View) -> object:
    name = view.path_text("id")
    return found_or_404(
        accounts.load(view.reader, view.totals(), name, view.limit(), view.query_number("before")), "such account"
    )


def _blocks(view: View) -> object:
    return blocks.load_list(view.reader, view.limit(), view.query_number("before"))


def _block(view: View) -> object:
    height = view.path_number("height")
    first = view.query_number("position") or 0
    oldest = view.reader.oldest()
    if 0 < height < oldest and view.reader.block(height) is None:
        raise HTTPException(410, PRUNED.format(height=height, oldest=oldest))
    return found_or_404(blocks.load(view.reader, view.network, height, first), f"block {height}")


def _entry(view: View) -> object:
    oldest = view.reader.oldest()
    what = f"such entry from block {oldest} on; earlier ones were pruned" if oldest > 1 else "such entry"
    return found_or_404(entries.load(view.reader, view.network, view.path_text("id")), what)


def _validators(view: View) -> object:
    return found_or_404(validators.load(view.reader, view.network), "validators yet")


def _epochs(view: View) -> object:
    return validators.load_epochs(view.reader, view.limit(), view.query_number("before"))


def _events(view: View) -> object:
    wanted = event_pages.Filter(
        job=view.query_text("job"), account=view.query_text("account"), kind=view.query_text("kind")
    )
    return event_pages.load(view.reader, wanted, view.limit(), view.query_number("before"))


def _fairness(view: View) -> object:
    reader, sums = view.reader, view.sums
    return fairness.load(
        view.totals(),
        sums.rewards.get(reader),
        sums.over_time.get(reader),
        jobs.audit_floors(reader),
        reader.oldest(),
    )


def _book(view: View) -> object:
    return book.load(view.reader)


def _audit(view: View) -> object:
    return audit.load(view.reader, view.worker.progress)


def _changes(view: View) -> object:
    name = view.path_text("id")
    return found_or_404(view.changes.load(view.reader, name), "such entry")


def _verify(view: View) -> object:
    return VerifyPage()


def _search(view: View) -> object:
    return search.load(view.reader, view.query_text("q"))


PAGES: tuple[tuple[str, str, Loader], ...] = (
    ("/", "overview.html", _overview),
    ("/jobs", "jobs.html", _jobs),
    ("/job/{id}", "job.html", _job),
    ("/job/{id}/round/{round}", "round.html", _round),
    ("/unit/{id}/{round}/{slot}", "unit.html", _unit),
    ("/accounts", "accounts.html", _accounts),
    ("/account/{id}", "account.html", _account),
    ("/blocks", "blocks.html", _blocks),
    ("/block/{height}", "block.html", _block),
    ("/entry/{id}", "entry.html", _entry),
    ("/validators", "validators.html", _validators),
    ("/epochs", "epochs.html", _epochs),
    ("/events", "events.html", _events),
    ("/search", "search.html", _search),
    ("/book", "book.html", _book),
    ("/fairness", "fairness.html", _fairness),
    ("/audit", "audit.html", _audit),
    ("/entry/{id}/changes", "changes.html", _changes),
    ("/verify", "verify.html", _verify),
)
