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
from ledger.explorer import present, search, tables
from ledger.explorer.changes import EntryChanges
from ledger.explorer.charts import waterfall_bar
from ledger.explorer.files import Ledger, open_ledger
from ledger.explorer.pages import PAGES, Loader, Sums, View, found_or_404
from ledger.explorer.proofs import NoProofError, Proofs
from ledger.explorer.security import SecurityHeaders
from ledger.explorer.worker import Worker

MACROS = {
    "m": "_macros.html",
    "charts": "_charts.html",
    "plots": "_plots.html",
    "verify": "_verify.html",
}  # name in all templates -> file
FORMATS = ("html", "json", "csv")
HERE = Path(__file__).parent


def now_ms() -> int:
    """Return this machine's clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


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
            found_or_404(reader.entry(entry_id), "such entry")
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
