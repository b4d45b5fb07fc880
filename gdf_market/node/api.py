"""The node's local HTTP API: loopback only, bearer token from ``node.json``, used by the command line.

Every answer is JSON.  An error answer is ``{"error": sentence, "exit_code": n}``
with a 4xx status; the client turns it back into an exception.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gdf_market.errors import GdfError, UnreachableError, UsageError
from gdf_market.messages import Bid, BidWithdraw, Body, JobCancel, JobPost, Transfer

if TYPE_CHECKING:
    from gdf_market.node.node import Node

MAX_BODY_BYTES = 1 << 20
SUBMITTABLE: dict[str, type[Body]] = {
    "transfer": Transfer,
    "bid": Bid,
    "bid_withdraw": BidWithdraw,
    "job_cancel": JobCancel,
}

Handler = Callable[[Request], Awaitable[Response]]


class _Bearer:
    """Refuse every request without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "wrong or missing token", "exit_code": 3}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise UsageError(f"request larger than {MAX_BODY_BYTES} bytes")
    try:
        value = json.loads(data or b"{}")
    except ValueError:
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


def create_api(node: Node, token: str) -> Starlette:
    """Return the ASGI application of one node."""

    async def status(_: Request) -> Response:
        return JSONResponse(node.status())

    async def submit(request: Request) -> Response:
        body = await _body(request)
        kind = SUBMITTABLE.get(str(body.get("kind")))
        if kind is None:
            raise UsageError(f"kind {body.get('kind')!r} is not one of {', '.join(sorted(SUBMITTABLE))}")
        entry = await node.context.submit(kind, **_fields(kind, body.get("fields")))
        return JSONResponse({"entry": entry.id})

    async def orders(_: Request) -> Response:
        return JSONResponse({"orders": node.order_rows(), "refused": dict(node.book.refused)})

    async def publish(request: Request) -> Response:
        body = await _body(request)
        return JSONResponse({"order": await node.publish_order(_fields(JobPost, body.get("fields")))})

    async def holders(request: Request) -> Response:
        roots = [str(root) for root in (await _body(request)).get("roots", [])][:16]
        counts = {root: await node.context.bulk.holders(root) for root in roots}
        return JSONResponse({"holders": counts})

    async def post_order(request: Request) -> Response:
        entry, height = await node.post_order(request.path_params["order"])
        return JSONResponse({"entry": entry, "height": height})

    async def fetch(request: Request) -> Response:
        body = await _body(request)
        limit = min(int(body.get("max_bytes", node.settings.max_blob_bytes)), node.settings.max_blob_bytes)
        path = await node.context.bulk.fetch(str(body.get("root")), max_bytes=limit)
        return JSONResponse({"path": str(path)})

    async def stop(_: Request) -> Response:
        node.stop()
        return JSONResponse({"stopping": True})

    routes = [
        Route("/status", _guarded(status)),
        Route("/submit", _guarded(submit), methods=["POST"]),
        Route("/orders", _guarded(orders)),
        Route("/orders", _guarded(publish), methods=["POST"]),
        Route("/orders/{order}/post", _guarded(post_order), methods=["POST"]),
        Route("/holders", _guarded(holders), methods=["POST"]),
        Route("/fetch", _guarded(fetch), methods=["POST"]),
        Route("/stop", _guarded(stop), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Bearer, token=token)])


def _guarded(handler: Handler) -> Handler:
    """Turn typed errors into JSON answers."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except trio.TooSlowError:
            slow: GdfError = UnreachableError(
                "the entry was not final in time: too few validators are reachable; see `gdf-market status`"
            )
            return JSONResponse({"error": str(slow), "exit_code": slow.exit_code}, 409)
        except GdfError as error:
            return JSONResponse({"error": str(error), "exit_code": error.exit_code}, 409)

    return guarded
