"""The local API: who may call it, what it refuses, and that every answer is typed JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest
import trio

from gdf_market import messages
from gdf_market.book.core import OrderBook
from gdf_market.errors import RuleError, StorageError, UsageError
from gdf_market.messages import JobCancel, JobPost
from gdf_market.node import api as module
from gdf_market.node import neighbours
from gdf_market.node import node as node_module
from gdf_market.node.api import create_api
from gdf_market.node.datadir import DataDir
from gdf_market.node.ledger_service import NotFinalError
from gdf_market.node.neighbours import Neighbours
from gdf_market.node.node import Node
from gdf_market.node.own_orders import MAX_ORDERS, OwnOrders
from gdf_market.units import CREDIT
from ledger import effects as core
from ledger.store import LedgerStore
from tests.contracts_world import key_of, make_world, post
from tests.market_ledger import make_market_world
from tests.node_kit import Kit, make_kit

TOKEN = "a-token"
OTHER = key_of("other").account


class Air:
    """The control host as the node sees it; remembers what was gossiped."""

    peers = frozenset({OTHER})
    addresses = ("/ip4/127.0.0.1/tcp/4001/p2p/x",)
    peer_addresses: tuple[str, ...] = ()
    port = 4001

    def __init__(self) -> None:
        self.gossiped: list[bytes] = []
        self.counters: dict[str, int] = {}

    def reachability(self) -> dict[str, Any]:
        return {}

    def publish_order(self, raw: bytes) -> bool:
        self.gossiped.append(raw)
        return True


class Store:
    """The entries that were made final, all at height 7."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    def entry(self, entry_id: str) -> Any:
        final = any(entry.id == entry_id for entry in self._kit.ledger.entries)
        return SimpleNamespace(id=entry_id, height=7) if final else None


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    made = make_kit(tmp_path, monkeypatch, make_world(), "owner")
    monkeypatch.setattr(node_module, "now_ms", lambda: made.world.time_ms)
    made.ledger.dropped = 0  # type: ignore[attr-defined]
    made.ledger.store = Store(made)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def node(kit: Kit, tmp_path: Path) -> Node:
    book = OrderBook(kit.world.network)
    settings = kit.context.settings
    return Node(DataDir(tmp_path), settings, kit.context, cast(Any, Air()), book, worker=True, poison="")


def client_of(node: Node, **headers: str | bytes) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_api(node, TOKEN))
    given = dict[str, Any](Authorization=f"Bearer {TOKEN}") | headers
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1234", headers=given)


@pytest.fixture
async def client(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(node) as opened:
        yield opened


def refused(answer: httpx.Response, status: int, exit_code: int) -> str:
    """Check that an answer is a typed refusal; return its sentence."""
    assert answer.status_code == status, answer.text
    value = answer.json()
    assert set(value) == {"error", "exit_code"}
    assert value["exit_code"] == exit_code
    assert "Traceback" not in value["error"]
    return str(value["error"])


def order_fields(kit: Kit, **changes: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(kit.world.job_fields() | kit.blobs_of_job() | changes))


ROUTES = [
    ("GET", "/status"),
    ("POST", "/submit"),
    ("GET", "/orders"),
    ("POST", "/orders"),
    ("POST", "/orders/00/post"),
    ("POST", "/orders/00/void"),
    ("GET", "/prices"),
    ("POST", "/holders"),
    ("POST", "/challenge"),
    ("POST", "/limits"),
    ("POST", "/fetch"),
    ("POST", "/stop"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(
    "given", ["", "Bearer ", "Bearer a-toke", "Bearer a-token1", "a-token", "Basic a-token", b"Bearer \xe9"]
)
async def test_nothing_without_the_token(node: Node, given: str | bytes) -> None:
    async with client_of(node, Authorization=given) as stranger:
        for method, path in ROUTES:
            refused(await stranger.request(method, path), 401, 3)
    assert not node._stop.is_set()


@pytest.mark.parametrize("host", ["evil.example:1234", "127.0.0.1.evil.example:1", "", "127.0.0.1", "[::1]:1"])
async def test_a_page_of_another_name_is_refused_even_with_the_token(node: Node, host: str) -> None:
    async with client_of(node, Host=host) as page:
        refused(await page.get("/status"), 403, 3)


async def test_only_http_is_served(node: Node) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await create_api(node, TOKEN)({"type": "websocket", "path": "/status", "headers": []}, receive, send)
    assert sent == []


async def test_unknown_paths_and_methods_are_json_too(client: httpx.AsyncClient) -> None:
    assert "/nowhere" in refused(await client.get("/nowhere"), 404, 1)
    refused(await client.get("/stop"), 405, 1)


async def test_status_says_why_the_node_is_idle(client: httpx.AsyncClient, node: Node) -> None:
    value = (await client.get("/status")).json()
    assert value["idle_reasons"] == {"*": "nobody offers a job at the moment"}
    assert value["balance"] == 1_000 * CREDIT
    assert value["step"] is None
    node.bidder = None
    assert "gdf-market work" in (await client.get("/status")).json()["idle_reasons"]["*"]
    assert TOKEN not in json.dumps(value)


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"[]", b"3", b'"x"', b"null", b"[" * 100_000, b'{"kind": NaN'],
    ids=lambda body: repr(body[:8]),
)
@pytest.mark.parametrize("path", ["/submit", "/orders", "/holders", "/fetch"])
async def test_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    assert "JSON" in refused(await client.post(path, content=body), 400, 2)


async def test_a_body_has_a_limit(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 100)
    assert "100 bytes" in refused(await client.post("/fetch", content=b" " * 101), 400, 2)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "kind"),
        ({"kind": "job_post", "fields": {}}, "kind"),
        ({"kind": ["transfer"]}, "kind"),
        ({"kind": "transfer"}, "fields"),
        ({"kind": "transfer", "fields": []}, "fields"),
        ({"kind": "transfer", "fields": {}}, "Transfer"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": 0, "memo": ""}}, "amount"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": 2**53, "memo": ""}}, "amount"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": "5", "memo": ""}}, "amount"),
        ({"kind": "transfer", "fields": {"to": "nobody", "amount": 5, "memo": ""}}, "to"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": 5, "memo": "x" * 201}}, "memo"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": 5, "memo": "\ud800"}}, "surrogate"),
        ({"kind": "transfer", "fields": {"to": OTHER, "amount": 5, "memo": "", "fee": 1}}, "fee"),
        ({"kind": "transfer", "fields": {"kind": "bid", "to": OTHER, "amount": 5, "memo": ""}}, "Transfer"),
    ],
)
async def test_a_bad_entry_is_refused_before_anything_is_signed(
    client: httpx.AsyncClient, kit: Kit, body: dict[str, Any], word: str
) -> None:
    answer = await client.post("/submit", content=json.dumps(body).encode())
    assert word in refused(answer, 400, 2)
    assert kit.ledger.entries == []


async def test_an_entry_is_signed_as_this_account_whatever_the_body_says(client: httpx.AsyncClient, kit: Kit) -> None:
    fields = {"to": OTHER, "amount": CREDIT, "memo": "hi", "author": OTHER, "nonce": 0, "expires_ms": 1}
    answer = await client.post("/submit", json={"kind": "transfer", "fields": fields})
    assert answer.status_code == 200
    (entry,) = kit.ledger.entries
    assert answer.json() == {"entry": entry.id}
    assert entry.body.author == key_of("owner").account
    assert kit.world.balance("other") == 1_001 * CREDIT


async def test_errors_of_the_ledger_keep_their_exit_code(client: httpx.AsyncClient, kit: Kit) -> None:
    fields = {"to": OTHER, "amount": 2_000 * CREDIT, "memo": ""}
    assert "takes 2000" in refused(await client.post("/submit", json={"kind": "transfer", "fields": fields}), 409, 1)
    kit.ledger.refuse_next = NotFinalError("entry 12 was not final")
    fields["amount"] = 1
    assert "12" in refused(await client.post("/submit", json={"kind": "transfer", "fields": fields}), 409, 4)
    kit.ledger.refuse_next = StorageError("the disk is full")
    assert "full" in refused(await client.post("/submit", json={"kind": "transfer", "fields": fields}), 409, 1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 409),
        ({"root": 5}, 409),
        ({"root": None}, 409),
        ({"root": "../../key.json"}, 409),
        ({"root": "AB" * 32}, 409),
        ({"root": "ab" * 32 + "/.."}, 409),
        ({"root": "ab" * 32, "max_bytes": "many"}, 400),
        ({"root": "ab" * 32, "max_bytes": 0}, 400),
        ({"root": "ab" * 32, "max_bytes": -1}, 400),
        ({"root": "ab" * 32, "max_bytes": 1.5}, 400),
        ({"root": "ab" * 32, "max_bytes": True}, 400),
        ({"root": "ab" * 32, "max_bytes": None}, 400),
        ({"root": "ab" * 32, "max_bytes": 1 << 60}, 400),
    ],
)
async def test_fetch_takes_roots_and_limits_only(client: httpx.AsyncClient, body: dict[str, Any], status: int) -> None:
    refused(await client.post("/fetch", json=body), status, 2 if status == 400 else 1)


async def test_fetch_gives_the_path_of_a_blob_within_its_limit(client: httpx.AsyncClient, kit: Kit) -> None:
    root = kit.blobs.put_bytes(b"content")
    answer = await client.post("/fetch", json={"root": root})
    assert answer.json()["path"] == str(kit.blobs.path(root))
    assert "larger" in refused(await client.post("/fetch", json={"root": root, "max_bytes": 3}), 409, 1)
    refused(await client.post("/fetch", json={"root": "ab" * 32}), 409, 4)


@pytest.mark.parametrize("roots", [None, "ab" * 32, 5, {"a": 1}, ["ab" * 32] * 17, [5], [["a"]]])
async def test_holders_takes_a_short_list_of_texts(client: httpx.AsyncClient, roots: object) -> None:
    assert "16 blob roots" in refused(await client.post("/holders", json={"roots": roots}), 400, 2)


async def test_holders_counts_per_root(client: httpx.AsyncClient, kit: Kit) -> None:
    root = kit.blobs.put_bytes(b"content")
    answer = await client.post("/holders", json={"roots": [root, "ab" * 32]})
    assert answer.json() == {"holders": {root: 1, "ab" * 32: 0}}
    refused(await client.post("/holders", json={"roots": ["../x"]}), 409, 1)


async def test_an_order_is_gossiped_posted_once_and_asking_again_is_no_error(
    client: httpx.AsyncClient, kit: Kit, node: Node
) -> None:
    order = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]
    assert len(cast(Any, node.control).gossiped) == 1
    (row,) = (await client.get("/orders")).json()["orders"]
    assert (row["id"], row["state"], row["unfit"]) == (order, "announced", "posted by this account")
    assert kit.ledger.entries == []
    posted = await client.post(f"/orders/{order}/post")
    assert posted.json()["entry"] == order
    again = await client.post(f"/orders/{order}/post")
    assert again.json() == {"entry": order, "height": 7}
    assert len(kit.ledger.entries) == 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device_class": "tpu"}, "tpu"),
        ({"min_workers": 3}, "min_workers"),
        ({"rounds": 10_000}, "escrow"),
        ({"deadline_ms": 5}, "deadline"),
    ],
)
async def test_an_order_that_the_ledger_would_refuse_is_never_announced(
    client: httpx.AsyncClient, kit: Kit, node: Node, changes: dict[str, Any], word: str
) -> None:
    answer = await client.post("/orders", json={"fields": order_fields(kit, **changes)})
    assert word in refused(answer, 409, 1)
    assert cast(Any, node.control).gossiped == []
    assert len(node.book) == 0


async def test_only_own_orders_are_posted(client: httpx.AsyncClient) -> None:
    assert "waits to be posted" in refused(await client.post(f"/orders/{'ab' * 32}/post"), 400, 2)


async def test_a_replaced_order_is_posted_by_nobody(
    client: httpx.AsyncClient, kit: Kit, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]
    kit.world.time_ms -= 5_000  # a clock that was set back does not keep an owner from replacing
    body = {"fields": order_fields(kit, title="better"), "replace": old[:12]}
    new = (await client.post("/orders", json=body)).json()["order"]
    kit.world.time_ms += 5_000
    assert [order.spec.title for order in node.book.orders()] == ["better"]
    assert "waits to be posted" in refused(await client.post(f"/orders/{old}/post"), 400, 2)
    assert "waits to be posted" in refused(await client.post("/orders", json=body), 400, 2)
    assert (await client.post(f"/orders/{new}/post")).json() == {"entry": new, "height": kit.world.height}
    node.on_block(finalized(kit))
    assert len(node.book) == len(node.own_orders) == 0


def finalized(kit: Kit) -> core.Finalized:
    """Return the last block, as the ledger announces it."""
    return core.Finalized(kit.world.height, kit.world.time_ms, (), tuple(kit.ledger.entries[-1:]))


async def test_an_order_taken_back_is_gone_for_everybody_and_for_good(
    client: httpx.AsyncClient, kit: Kit, node: Node
) -> None:
    order = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]
    (raw,) = cast(Any, node.control).gossiped
    answer = (await client.post(f"/orders/{order[:10]}/void")).json()
    assert answer == {"order": order, "entry": kit.ledger.entries[-1].id, "height": kit.world.height}
    assert cast(Any, node.control).gossiped[1:] == [kit.ledger.entries[-1].raw]
    assert len(node.book) == 0
    assert not node.on_order(raw, OTHER)
    node.on_block(finalized(kit))
    assert len(node.own_orders) == 0
    kit.world.refuse(messages.open_entry(raw, kit.world.network), "nonce")
    other = Node(
        node.data, node.settings, kit.context, node.control, OrderBook(kit.world.network), worker=False, poison=""
    )
    assert not other.on_order(raw, OTHER)  # of a node that heard neither the order nor the void before
    assert other.book.refused == {"spent": 1}


async def test_a_void_that_is_not_final_yet_is_gossiped_and_can_be_asked_for_again(
    client: httpx.AsyncClient, kit: Kit, node: Node
) -> None:
    order = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]
    kit.ledger.refuse_next = NotFinalError("later")
    assert refused(await client.post(f"/orders/{order}/void"), 409, 4) == "later"
    await node._tend_own_orders()
    sent = cast(Any, node.control).gossiped
    assert sent[-1] == sent[-2] != sent[0]
    assert "taken back" in refused(await client.post(f"/orders/{order}/post"), 400, 2)
    body = {"fields": order_fields(kit), "replace": order}
    assert "taken back" in refused(await client.post("/orders", json=body), 400, 2)
    again = Node(node.data, node.settings, kit.context, node.control, node.book, worker=False, poison="")
    assert [(own.order.id, own.gossiped.raw) for own in again.own_orders] == [(order, sent[-1])]
    again.book = OrderBook(kit.world.network)
    kit.ledger.refuse_next = NotFinalError("later still")
    async with trio.open_nursery() as nursery:
        again._take_up_orders(nursery)
    assert "later still" in again.notes["orders"]
    assert len(again.book) == 0
    async with client_of(again) as restarted:
        assert (await restarted.post(f"/orders/{order}/void")).json()["height"] == kit.world.height
    assert kit.ledger.entries[-1].raw == sent[-1]


async def test_a_node_that_starts_again_takes_back_what_it_could_not(
    client: httpx.AsyncClient, kit: Kit, node: Node
) -> None:
    kept = (await client.post("/orders", json={"fields": order_fields(kit, title="kept")})).json()["order"]
    order = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]
    kit.ledger.refuse_next = NotFinalError("later")
    await client.post(f"/orders/{order}/void")
    again = Node(
        node.data, node.settings, kit.context, node.control, OrderBook(kit.world.network), worker=False, poison=""
    )
    async with trio.open_nursery() as nursery:
        again._take_up_orders(nursery)
    assert [open_.id for open_ in again.book.orders()] == [kept]
    assert [entry.body.nonce for entry in kit.ledger.entries] == [own.order.body.nonce for own in again.own_orders][1:]


async def test_an_order_without_the_fee_for_its_void_stays(
    client: httpx.AsyncClient, kit: Kit, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = (await client.post("/orders", json={"fields": order_fields(kit)})).json()["order"]

    def refuse(*_: object) -> None:
        raise RuleError("the entry's fee takes 1 credits")

    monkeypatch.setattr(node_module, "check_entry", refuse)
    assert "fee" in refused(await client.post(f"/orders/{order}/void"), 409, 1)
    assert order in node.book
    assert "waits to be posted" in refused(await client.post(f"/orders/{'ab' * 32}/void"), 400, 2)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'["{}"]', b"[" * 100_000, b"\xff"])
def test_a_damaged_file_of_own_orders_is_no_reason_not_to_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "orders.json").write_bytes(content)
    assert list(OwnOrders(tmp_path / "orders.json", "ab" * 32)) == []


def test_own_orders_are_bounded_and_named_by_the_start_of_their_id(tmp_path: Path, kit: Kit) -> None:
    orders = OwnOrders(tmp_path / "orders.json", kit.world.network)
    entries = [kit.world.job_entry(nonce=nonce) for nonce in range(MAX_ORDERS + 1)]
    for entry in entries[:-1]:
        orders.put(entry)
    with pytest.raises(UsageError, match="open"):
        orders.put(entries[-1])
    with pytest.raises(UsageError, match="give more characters"):
        orders.find("")
    assert orders.find(entries[3].id.upper()).order is entries[3]
    orders.save()
    assert [own.order for own in OwnOrders(tmp_path / "orders.json", kit.world.network)] == entries[:-1]
    assert len(OwnOrders(tmp_path / "orders.json", "ab" * 32)) == 0  # of another network


async def test_prices_come_from_the_ledger(client: httpx.AsyncClient, node: Node, tmp_path: Path) -> None:
    world = make_market_world()
    world.block()
    with closing(LedgerStore(world.write(tmp_path / "ledger.sqlite"), read_only=True)) as store:
        node.context.ledger.store = store
        answer = await client.get("/prices", params={"blocks": "10", "class": "cpu-fp32"})
        assert answer.json() == {"from_height": 1, "to_height": 1, "classes": []}
        for blocks in ("0", "-1", "x", "²", "1" * 10):
            assert "not a whole number" in refused(await client.get("/prices", params={"blocks": blocks}), 400, 2)


async def test_own_orders_stop_when_they_expire(
    client: httpx.AsyncClient, kit: Kit, node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    neighbours.save(node.data.neighbours, Neighbours(port=4001))  # nothing new to remember: no thread, no real time
    await client.post("/orders", json={"fields": order_fields(kit)})
    gossiped = cast(Any, node.control).gossiped
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node._tend_book)
        await trio.sleep(3 * node_module.REPUBLISH_S)
        assert len(gossiped) > 1
        kit.world.time_ms += 3_600_000
        await trio.sleep(2 * node_module.REPUBLISH_S)
        count = len(gossiped)
        await trio.sleep(3 * node_module.REPUBLISH_S)
        assert len(gossiped) == count
        nursery.cancel_scope.cancel()
    assert len(node.own_orders) == 0
    assert node.data.orders.read_bytes() == b"[]"
    assert len(node.book) == 0


async def test_notes_of_jobs_go_when_they_end_and_at_the_next_start(
    kit: Kit, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = post(kit.world, **kit.blobs_of_job())
    ended = post(kit.world, **kit.blobs_of_job())
    assert node._ended_jobs() == []
    kit.world.block(kit.world.entry("owner", JobCancel, job=ended))
    forgotten: list[str] = []
    monkeypatch.setattr(kit.journal, "forget", forgotten.extend)
    last = kit.world.block()
    assert kit.world.job(ended).status == "cancelled"
    node.on_block(core.Finalized(kit.world.height, kit.world.time_ms, tuple(last.events), ()))
    assert forgotten == [ended]
    assert node._ended_jobs() == [ended]
    assert kit.world.job(running).status == "bidding"


async def test_a_bug_in_one_request_is_an_answer(
    client: httpx.AsyncClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise KeyError("height")

    monkeypatch.setattr(node, "status", broken)
    assert "KeyError" in refused(await client.get("/status"), 500, 1)


async def test_stop_answers_first(client: httpx.AsyncClient, node: Node) -> None:
    assert (await client.post("/stop")).json() == {"stopping": True}
    with trio.fail_after(1):
        await node.wait_stopped()


def test_job_posts_are_orders_only() -> None:
    assert JobPost not in module.SUBMITTABLE.values()


async def test_the_rates_of_blobs_are_shown_and_set(kit: Kit, client: httpx.AsyncClient) -> None:
    assert (await client.get("/limits")).json() == {"up": 0, "down": 0}
    assert (await client.post("/limits", json={"up": 500_000})).json() == {"up": 500_000, "down": 0}
    assert (await client.post("/limits", json={"down": 64_000})).json() == {"up": 500_000, "down": 64_000}
    assert (kit.bulk.upload_bytes_per_s, kit.bulk.download_bytes_per_s) == (500_000, 64_000)
    bad: list[dict[str, object]] = [
        {"up": 63_999},
        {"down": -1},
        {"up": "500k"},
        {"up": True},
        {"left": 0},
        {"up": 2**53},
    ]
    for wanted in bad:
        assert "64000" in refused(await client.post("/limits", json=wanted), 400, 2)
    assert (kit.bulk.upload_bytes_per_s, kit.bulk.download_bytes_per_s) == (500_000, 64_000)
