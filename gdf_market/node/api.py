"""The node's local HTTP API: loopback only, bearer token from ``node.json``, used by the command line.

Every answer is JSON.  An error answer is ``{"error": sentence, "exit_code": n}``
with a 4xx status; the client turns it back into an exception.
"""

from __future__ import annotations

import functools
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gdf_market.errors import GdfError, UsageError
from gdf_market.messages import (
    Bid,
    BidWithdraw,
    Body,
    JobCancel,
    JobPost,
    Transfer,
    ValidatorJoin,
    ValidatorLeave,
)
from gdf_market.node.limits import MIN_RATE_BYTES_PER_S
from gdf_market.units import MAX_INT
from ledger.prices import WINDOW_BLOCKS, price_report

if TYPE_CHECKING:
    from gdf_market.node.controls import Controls
    from gdf_market.node.node import Node

MAX_BODY_BYTES = 1 << 20
MAX_ROOTS = 16
HOSTS = ("127.0.0.1", "localhost")  # names that a web page's own address cannot have (DNS rebinding)
SUBMITTABLE: dict[str, type[Body]] = {
    "transfer": Transfer,
    "bid": Bid,
    "bid_withdraw": BidWithdraw,
    "job_cancel": JobCancel,
    "validator_join": ValidatorJoin,
    "validator_leave": ValidatorLeave,
}

Handler = Callable[[Request], Awaitable[Response]]

log = structlog.get_logger("gdf.api")


class _Bearer:
    """Refuse every request that does not name this machine and the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1").rpartition(":")[0]
            if host not in HOSTS:
                await _failure("this address is for programs on this machine", 3, 403)(scope, receive, send)
            elif not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                await _failure("wrong or missing token", 3, 401)(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)


def _failure(sentence: str, exit_code: int, status: int) -> JSONResponse:
    return JSONResponse({"error": sentence, "exit_code": exit_code}, status)


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise UsageError(f"request larger than {MAX_BODY_BYTES} bytes")
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise UsageError("request body is not JSON") from None
    if not isinstance(value, dict):
        raise UsageError("request body is not a JSON object")
    return value


def _fields(kind: type[Body], given: object) -> dict[str, Any]:
    """Return ``given`` checked against ``kind``, without the fields that signing adds."""
    if not isinstance(given, dict):
        raise UsageError("fields must be an object")
    placeholder = {"author": "12D3KooW" + "1" * 44, "nonce": 0, "expires_ms": 0}
    try:
        body = msgspec.convert({"kind": kind.__struct_config__.tag, **given, **placeholder}, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{kind.__name__}: {error}") from None
    return {name: getattr(body, name) for name in kind.__struct_fields__ if name not in placeholder}


class _Api:
    """The requests one node answers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def status(self, _: Request) -> Response:
        return JSONResponse(self._node.status() | {"refused": await self._node.refused()})

    async def submit(self, request: Request) -> Response:
        body = await _body(request)
        kind = SUBMITTABLE.get(str(body.get("kind")))
        if kind is None:
            raise UsageError(f"kind {body.get('kind')!r} is not one of {', '.join(sorted(SUBMITTABLE))}")
        entry = await self._node.context.submit(kind, **_fields(kind, body.get("fields")))
        return JSONResponse({"entry": entry.id})

    async def orders(self, _: Request) -> Response:
        return JSONResponse({"orders": self._node.order_rows(), "refused": dict(self._node.book.refused)})

    async def publish(self, request: Request) -> Response:
        body = await _body(request)
        fields, replace = _fields(JobPost, body.get("fields")), str(body.get("replace", ""))
        return JSONResponse({"order": await self._node.publish_order(fields, replace)})

    async def void(self, request: Request) -> Response:
        order, entry, height = await self._node.void_order(request.path_params["order"])
        return JSONResponse({"order": order, "entry": entry, "height": height})

    async def prices(self, request: Request) -> Response:
        asked = request.query_params
        blocks = asked.get("blocks", str(WINDOW_BLOCKS))
        if not (blocks.isascii() and blocks.isdigit() and len(blocks) <= 9 and int(blocks) > 0):
            raise UsageError(f"blocks {blocks[:20]!r} is not a whole number from 1 to 999999999")
        read = functools.partial(price_report, device_class=asked.get("class"), blocks=int(blocks))
        return JSONResponse(await trio.to_thread.run_sync(read, self._node.context.ledger.store))

    async def holders(self, request: Request) -> Response:
        roots = (await _body(request)).get("roots")
        if not isinstance(roots, list) or len(roots) > MAX_ROOTS or not all(isinstance(root, str) for root in roots):
            raise UsageError(f"roots must be a list of at most {MAX_ROOTS} blob roots")
        counts = {root: await self._node.context.bulk.holders(root) for root in roots}
        return JSONResponse({"holders": counts})

    async def challenge(self, request: Request) -> Response:
        """Audit a unit with a bond; the answer takes as long as running it again.  ``check``: only see if it may."""
        body = await _body(request)
        round_index, slot = body.get("round"), body.get("slot")
        if type(round_index) is not int or type(slot) is not int:
            raise UsageError(f"round {round_index!r} and slot {slot!r} must be whole numbers")
        if body.get("check") is True:
            self._node.roles.check_challenge(str(body.get("job")), round_index, slot)
            return JSONResponse({"ok": True})
        note = await self._node.roles.challenge(str(body.get("job")), round_index, slot)
        return JSONResponse({"excess_ppb": note.excess_ppb, "distance_ppb": note.distance_ppb})

    async def post_order(self, request: Request) -> Response:
        entry, height = await self._node.post_order(request.path_params["order"])
        return JSONResponse({"entry": entry, "height": height})

    async def limits(self, request: Request) -> Response:
        """Show, or set until the node stops, the bytes a second of blobs in each direction."""
        bulk = self._node.context.bulk
        body = await _body(request) if request.method == "POST" else {}
        for name, rate in body.items():
            known = name in ("up", "down") and type(rate) is int and 0 <= rate <= MAX_INT
            if not known or 0 < rate < MIN_RATE_BYTES_PER_S:
                raise UsageError(
                    f"{name} {rate!r}: up and down are 0 or at least {MIN_RATE_BYTES_PER_S} bytes a second"
                )
        if "up" in body:
            bulk.limit_upload(body["up"])
        if "down" in body:
            bulk.limit_download(body["down"])
        return JSONResponse({"up": bulk.upload_bytes_per_s, "down": bulk.download_bytes_per_s})

    async def fetch(self, request: Request) -> Response:
        body = await _body(request)
        most = self._node.settings.max_blob_bytes
        limit = body.get("max_bytes", most)
        if type(limit) is not int or not 0 < limit <= most:
            raise UsageError(f"max_bytes {limit!r} is not a whole number from 1 to {most}")
        path = await self._node.context.bulk.fetch(str(body.get("root")), max_bytes=limit)
        return JSONResponse({"path": str(path)})

    def _controls(self) -> Controls:
        controls = self._node.controls
        if controls is None:
            raise UsageError("this node does not work; start it with `gdf-market work`")
        return controls

    async def pause(self, request: Request) -> Response:
        for_ms = (await _body(request)).get("for_ms")
        if for_ms is not None and type(for_ms) is not int:
            raise UsageError(f"for_ms {for_ms!r} is not a whole number of milliseconds")
        self._controls().pause(for_ms)
        return JSONResponse({"hold": self._controls().get_hold()})

    async def resume(self, _: Request) -> Response:
        self._controls().resume()
        return JSONResponse({"hold": self._controls().get_hold()})

    async def finish(self, _: Request) -> Response:
        self._controls().finish()
        return JSONResponse({"hold": self._controls().get_hold()})

    async def _end(self) -> None:
        self._node.stop()

    async def stop(self, _: Request) -> Response:
        return JSONResponse({"stopping": True}, background=BackgroundTask(self._end))  # once the answer is out


def create_api(node: Node, token: str) -> Starlette:
    """Return the ASGI application of one node."""
    api = _Api(node)
    routes = [
        Route("/status", _guarded(api.status)),
        Route("/submit", _guarded(api.submit), methods=["POST"]),
        Route("/orders", _guarded(api.orders)),
        Route("/orders", _guarded(api.publish), methods=["POST"]),
        Route("/orders/{order}/post", _guarded(api.post_order), methods=["POST"]),
        Route("/orders/{order}/void", _guarded(api.void), methods=["POST"]),
        Route("/prices", _guarded(api.prices)),
        Route("/holders", _guarded(api.holders), methods=["POST"]),
        Route("/challenge", _guarded(api.challenge), methods=["POST"]),
        Route("/limits", _guarded(api.limits), methods=["GET", "POST"]),
        Route("/fetch", _guarded(api.fetch), methods=["POST"]),
        Route("/pause", _guarded(api.pause), methods=["POST"]),
        Route("/resume", _guarded(api.resume), methods=["POST"]),
        Route("/finish", _guarded(api.finish), methods=["POST"]),
        Route("/stop", _guarded(api.stop), methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Bearer, token=token)],
        exception_handlers={HTTPException: _no_route},
    )


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(f"{request.method} {request.url.path}: {error.detail}", 1, error.status_code)


def _guarded(handler: Handler) -> Handler:
    """Turn typed errors into JSON answers."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except UsageError as error:
            return _failure(str(error), error.exit_code, 400)
        except GdfError as error:
            return _failure(str(error), error.exit_code, 409)
        except ClientDisconnect:
            return _failure("the request ended early", 1, 400)  # nobody reads it
        except Exception as error:  # a bug in one request must not look like a node that is gone
            log.exception("request failed", path=request.url.path)
            return _failure(f"the node failed on this request ({type(error).__name__}); its log says where", 1, 500)

    return guarded
