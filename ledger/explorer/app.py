"""The explorer's web application: pages over one ledger file, as HTML or JSON.

Rules kept here:
1. Nothing is written and nothing is asked of any other host; pages work without JavaScript.
2. Templates escape everything; the Content-Security-Policy allows this origin's own style and script files only.
3. Every page is a typed value first; ``?format=json`` shows that value, ``?format=csv&table=NAME`` a list in it.
4. Heavy work (a replay) is asked for by this site's own pages, and runs in another process, one at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from contracts.state import network_id
from gdf_market.errors import StorageError, UsageError
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
    present,
    rounds,
    search,
    tables,
    units,
    validators,
)
from ledger.explorer import events as event_pages
from ledger.explorer.changes import EntryChanges
from ledger.explorer.charts import waterfall_bar
from ledger.explorer.proofs import NoProofError, Proofs, VerifyPage
from ledger.explorer.queries import MAX_PAGE, Ledger, Reader, open_ledger
from ledger.explorer.security import SecurityHeaders
from ledger.explorer.totals import Totals, compute_totals
from ledger.explorer.worker import Worker

MACROS = {
    "m": "_macros.html",
    "charts": "_charts.html",
    "plots": "_plots.html",
    "verify": "_verify.html",
}  # name in all templates -> file
PAGE = 25  # rows of a list unless ?limit= asks for less or more
FORMATS = ("html", "json", "csv")
MAX_NUMBER = 2**53 - 1
MAX_SKIP = 10_000  # jobs that paging walks over
HERE = Path(__file__).parent

PRUNED = "Block {height} was pruned from this file, which holds all blocks from {oldest} on. Ask a node that keeps all."
NOT_FOUND = "This ledger has no {what}. It may be newer than this file, or of another network."


def now_ms() -> int:
    """Return this machine's clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


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


def _found(page: object | None, what: str) -> object:
    if page is None:
        raise HTTPException(404, NOT_FOUND.format(what=what))
    return page


def _overview(view: View) -> object:
    return overview.load(view.reader, view.totals())


def _jobs(view: View) -> object:
    return jobs.load_list(view.reader, view.totals().jobs, view.limit(), view.query_number("skip", MAX_SKIP) or 0)


def _job(view: View) -> object:
    rows = view.limit(jobs.ROUNDS_PER_PAGE)
    return _found(jobs.load(view.reader, view.path_text("id"), rows, view.query_number("before")), "such job")


def _round(view: View) -> object:
    index = view.path_number("round")
    return _found(rounds.load_page(view.reader, view.path_text("id"), index), f"round {index} of this job")


def _unit(view: View) -> object:
    index, slot = view.path_number("round"), view.path_number("slot")
    return _found(units.load(view.reader, view.path_text("id"), index, slot), f"unit {index}/{slot} of this job")


def _accounts(view: View) -> object:
    return accounts.load_list(view.reader, view.totals(), view.limit(), view.query_text("after"))


def _account(view: View) -> object:
    name = view.path_text("id")
    return _found(
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
    return _found(blocks.load(view.reader, view.network, height, first), f"block {height}")


def _entry(view: View) -> object:
    oldest = view.reader.oldest()
    what = f"such entry from block {oldest} on; earlier ones were pruned" if oldest > 1 else "such entry"
    return _found(entries.load(view.reader, view.network, view.path_text("id")), what)


def _validators(view: View) -> object:
    return _found(validators.load(view.reader, view.network), "validators yet")


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
    return _found(view.changes.load(view.reader, name), "such entry")


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


class Explorer:
    """Renders pages of one ledger file."""

    def __init__(self, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._sums = Sums()
        self._proofs = Proofs(ledger.path)
        self.worker = Worker(ledger.path, clock)
        self._changes = EntryChanges(ledger.path, clock)
        with ledger.read() as reader:
            genesis = reader.genesis()
        self._network = network_id(genesis)
        self._templates = Environment(
            loader=PackageLoader("ledger.explorer"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters.update(present.FILTERS)
        self._templates.globals["waterfall_bar"] = waterfall_bar
        self._templates.filters["ago"] = lambda time_ms: present.ago(time_ms, clock())
        self._templates.globals.update(
            network=genesis.name, network_id=self._network, test_network=genesis.test_network, file=ledger.path.name
        )
        for name, template in MACROS.items():
            self._templates.globals[name] = self._templates.get_template(template).module

    def show(self, template: str, load: Loader, request: Request) -> Response:
        """Answer one page request; runs in a worker thread."""
        if request.query_params.get("format", "html") not in FORMATS:
            raise HTTPException(400, "format must be html, json or csv.")
        with self._ledger.read() as reader:
            page = load(View(request, reader, self._sums, self._network, self.worker, self._changes))
        if isinstance(page, search.SearchPage) and len(page.hits) == 1 and _format(request) == "html":
            return RedirectResponse(page.hits[0].url, 303)
        return self.answer(request, template, page)

    def answer(self, request: Request, template: str, page: object, status: int = 200) -> Response:
        """Return a page as HTML, JSON or one of its tables as CSV."""
        form = _format(request)
        if form == "json":
            return Response(msgspec.json.encode(page), status, media_type="application/json")
        if form == "csv" and status == 200:
            return _csv(request, page)
        address = request.url.replace(scheme="", netloc="")
        links = [(name, str(address.include_query_params(format="csv", table=name))) for name in tables.tables(page)]
        html = self._templates.get_template(template).render(
            page=page,
            here=request.url.path,
            json_url=str(address.include_query_params(format="json")),
            csv_urls=links if status == 200 else [],
        )
        return Response(html, status, media_type="text/html; charset=utf-8")

    def proof(self, request: Request) -> Response:
        """Answer with an entry's proof file."""
        entry_id = str(request.path_params["id"])
        with self._ledger.read() as reader:
            _found(reader.entry(entry_id), "such entry")
        try:
            data = self._proofs.make(entry_id)
        except NoProofError as error:
            raise HTTPException(409, f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        name = f'attachment; filename="{entry_id[:16]}.proof"'
        return Response(data, media_type="application/json", headers={"Content-Disposition": name})

    def start_audit(self, request: Request) -> Response:
        """Begin a replay, unless one is under way, and show its page."""
        _own_form(request)
        self.worker.start()
        return RedirectResponse("/audit", 303)

    def health(self, request: Request) -> Response:
        """Answer whether the file can be read, how high it is, and how old its head is."""
        with self._ledger.read() as reader:
            head = reader.head()
        age_ms = max(0, self._clock() - head.time_ms) if head else None
        body = {"status": "ok", "network": self._network, "height": head.height if head else 0, "age_ms": age_ms}
        return Response(msgspec.json.encode(body), media_type="application/json")

    def failed(self, request: Request, error: Exception) -> Response:
        """Answer an error with a readable page; what happened inside is not shown to strangers."""
        if isinstance(error, HTTPException):
            status, text = error.status_code, error.detail
        elif isinstance(error, StorageError | UsageError):
            status, text = 503, str(error)
        else:
            status, text = 500, "The explorer failed on this page; its log says why."
        return self.answer(request, "error.html", ErrorPage(status, TITLES.get(status, "Error"), text), status)


@dataclass(frozen=True)
class ErrorPage:
    """What went wrong, and what to do."""

    status: int
    title: str
    message: str


def _csv(request: Request, page: object) -> Response:
    found = tables.tables(page)
    wanted = request.query_params.get("table", "")
    if wanted not in found:
        raise HTTPException(400, f"table={wanted[:40]} is none of this page's: {', '.join(found) or 'it has none'}.")
    return Response(
        tables.to_csv(found[wanted]),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{wanted}.csv"'},
    )


def _own_form(request: Request) -> None:
    """Refuse a form that another site sends: 403."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    # browsers that say where a form came from send no origin here, as the referrer policy wants it
    if not (site in ("same-origin", "none") if site else origin in (None, own)):
        raise HTTPException(403, "A replay is started from this explorer's own audit page.")


TITLES = {
    400: "That address cannot be read",
    403: "Not from another site",
    404: "Not in this ledger",
    405: "This explorer only reads",
    409: "No proof can be made",
    410: "Pruned from this file",
    500: "Something failed",
    503: "The ledger file cannot be read",
}


def _format(request: Request) -> str:
    return request.query_params.get("format", "html")


def create_app(db: Path, *, clock: Callable[[], int] = now_ms) -> Starlette:
    """Return the explorer of a ledger file, an ASGI application.

    Raises UsageError when there is no ledger at ``db``, StorageError when it
    cannot be read.
    """
    explorer = Explorer(open_ledger(db), clock)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        explorer.worker.close()

    routes = [Route(path, _endpoint(explorer, template, load), name=path) for path, template, load in PAGES]
    return Starlette(
        routes=[
            *routes,
            Route("/audit", explorer.start_audit, methods=["POST"]),
            Route("/proof/{id}", explorer.proof),
            Route("/healthz", explorer.health),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        lifespan=lifespan,
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={
            HTTPException: explorer.failed,
            StorageError: explorer.failed,
            UsageError: explorer.failed,
            Exception: explorer.failed,
        },
    )


def _endpoint(explorer: Explorer, template: str, load: Loader) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return explorer.show(template, load, request)

    return endpoint
