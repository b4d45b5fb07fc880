"""The explorer's pages over a written example ledger."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from contracts.records import Job
from gdf_market.codec import decode, encode
from gdf_market.errors import StorageError, UsageError
from gdf_market.units import CREDIT
from ledger.explorer import files, queries
from ledger.explorer.app import create_app
from tests.explorer_ledger import HOSTILE, START_MS, Example, build_example, hash_of

PAGE_PATHS = (
    *("/book", "/fairness", "/audit", "/verify"),
    *("/", "/jobs", "/accounts", "/blocks", "/validators", "/epochs", "/events", "/search?q=zz"),
)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return build_example(tmp_path_factory.mktemp("explorer") / "ledger.db")


@pytest.fixture
async def site(example: Example) -> Any:
    async with client(example.path) as found:
        yield found


def client(path: Path) -> httpx.AsyncClient:
    app = create_app(path, clock=lambda: START_MS + 600_000)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://explorer")


async def page(site: httpx.AsyncClient, path: str) -> str:
    answer = await site.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


async def value(site: httpx.AsyncClient, path: str) -> Any:
    answer = await site.get(path, params={**httpx.QueryParams(httpx.URL(path).query), "format": "json"})
    assert answer.status_code == 200, (path, answer.text)
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


class Links(HTMLParser):
    """Collects addresses, elements and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: set[str] = set()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append({name: text for name, text in attrs if name != "defer"})
        for name, text in attrs:
            if name in ("href", "src", "action") and text:
                self.hrefs.add(text)
            if name == "id" and text:
                self.ids.append(text)
            if name.startswith("on") or name == "style":
                self.handlers.append(name)


# every page


async def test_every_link_leads_somewhere(site: httpx.AsyncClient) -> None:
    seen, todo = {"/"}, ["/"]
    while todo and len(seen) < 160:
        answer = await site.get(todo.pop(0))
        assert answer.status_code in (200, 303), (answer.url, answer.text)
        if "html" in answer.headers.get("content-type", ""):
            for href in Links(answer.text).hrefs:
                assert href.startswith(("/", "#")), href
                plain = href.split("#")[0]
                # replays and proofs have tests of their own
                if plain and plain not in seen and not plain.endswith("/changes") and "/proof/" not in plain:
                    seen.add(plain)
                    todo.append(plain)
    assert len(seen) >= 160


async def test_strangers_text_stays_text(site: httpx.AsyncClient, example: Example) -> None:
    unit = f"/unit/{example.running_job}/5/2"
    paths = ("/", "/jobs", f"/job/{example.running_job}", unit, f"/entry/{example.transfer}", "/events", "/block/1")
    places = 0
    for path in (*paths, "/search?q=" + "%3Cscript%3Ealert(1)%3C/script%3E", "/events?kind=%22%3E%3Cscript%3E"):
        text = await page(site, path)
        found = Links(text)
        assert "<script>alert" not in text
        own = {"src": "/static/refresh.js"} if path == "/" else {"type": "module", "src": "/static/verify.js"}
        assert found.scripts == ([own] if path == "/" or path.startswith(("/entry", "/unit")) else []), path
        assert found.handlers == []
        assert found.tags.count("img") == 1, path  # the logo
        assert "49" not in re.findall(r"alert\(2\)&gt;(\S{2})", text), "a template was evaluated"
        places += text.count("&lt;script&gt;alert(1)&lt;/script&gt;")
    assert places >= 10


@pytest.mark.parametrize("path", [*PAGE_PATHS, "/nope", "/healthz", "/static/style.css"])
async def test_headers_forbid_inline_and_outside(site: httpx.AsyncClient, path: str) -> None:
    headers = (await site.get(path)).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_pages_have_one_main_landmark_and_unique_ids(site: httpx.AsyncClient, example: Example) -> None:
    for path in (*PAGE_PATHS, f"/job/{example.running_job}", f"/unit/{example.done_job}/1/3", "/block/7"):
        found = Links(await page(site, path))
        assert [found.tags.count(tag) for tag in ("main", "header", "footer", "h1")] == [1, 1, 1, 1]
        assert len(found.ids) == len(set(found.ids)), path


# what the pages say


async def test_overview_adds_up(site: httpx.AsyncClient, example: Example) -> None:
    found = await value(site, "/")
    assert sum(amount for _, amount in found["pools"]) == found["total"] == found["supply"] == 9_400 * CREDIT
    assert found["supply_difference"] == 0
    assert found["slashed"] == 9 * CREDIT
    assert found["job_counts"] == {"done": 1, "running": 1}
    assert len(found["validators"]) == 4
    assert sum(line["proposed"] for line in found["validators"]) == found["sampled_blocks"]
    assert found["head"]["hash"] == example.build.parent


async def test_a_wrong_sum_is_shown(example: Example, tmp_path: Path) -> None:
    copy = shutil.copy(example.path, tmp_path / "copy.db")
    name = example.build.owner.account
    change(copy, "UPDATE record SET value = ? WHERE key = ?", b'{"balance":7,"stake":0}', f"account/{name}")
    async with client(copy) as site:
        found = await value(site, "/")
        assert found["supply_difference"] > 0
        assert "do not add up" in await page(site, "/")
        assert "balance is 0.000007" in await page(site, f"/account/{name}")


@pytest.mark.parametrize("which", ["done_job", "running_job"])
async def test_statements_of_a_job_sum_to_zero(site: httpx.AsyncClient, example: Example, which: str) -> None:
    found = await value(site, f"/job/{getattr(example, which)}")
    for statement in found["statements"]:
        assert statement["difference"] == 0
        assert sum(step["amount"] for step in statement["steps"]) == statement["remaining"]
    labels = {step["label"]: step["amount"] for step in found["statements"][0]["steps"]}
    assert labels["Locked by the owner"] == sum(found["budget"].values())
    if which == "done_job":
        assert found["statements"][0]["remaining"] == 0
        assert -labels["Refunded to the owner"] == found["job"]["refunded"]
    else:
        assert labels["Slashed bonds"] == 4_500_000
        assert labels["Pay taken back from convicted workers"] == 3 * CREDIT + 624_000


async def test_job_page_explains_price_loss_and_units(site: httpx.AsyncClient, example: Example) -> None:
    found = await value(site, f"/job/{example.running_job}")
    assert found["clearing"]["expected"] == found["clearing"]["recorded"] == 3 * CREDIT
    assert [line["offered_so_far"] for line in found["bids"]] == [
        *sorted(line["offered_so_far"] for line in found["bids"])
    ]
    assert [loss for _, loss in found["loss"]] == sorted((loss for _, loss in found["loss"]), reverse=True)
    assert [view["index"] for view in found["rounds"]] == [5, 4, 3, 2, 1, 0]
    assert [cell["status"] for cell in found["rounds"][2]["units"]] == ["paid", "paid", "paid", "missed"]
    text = await page(site, f"/job/{example.running_job}")
    assert "outbid: asked 3, the slots went at 3" in text
    assert "matches the recorded price" in text
    assert "<polyline" in text


async def test_job_page_of_a_job_that_is_over(site: httpx.AsyncClient, example: Example) -> None:
    over, running = (f"/job/{job}" for job in (example.done_job, example.running_job))
    assert (await value(site, over))["last_workers"] == 3
    assert (await value(site, running))["last_workers"] is None
    text = await page(site, over)
    assert "Slots filled" not in text
    assert "<dt>Workers</dt><dd>3<small>in the last round; the job is over</small>" in text
    assert "Slots filled</dt><dd>3 of 4" in await page(site, running)


@pytest.mark.parametrize(
    ("status", "ending", "tone"),
    [
        ("done", "done", "good"),
        ("draining", "done", "good"),
        ("cancelled", "cancelled", "warn"),
        ("running", "", "warn"),
    ],
)
async def test_only_what_went_wrong_is_said_in_yellow(tmp_path: Path, status: str, ending: str, tone: str) -> None:
    made = build_example(tmp_path / "ledger.db")
    with contextlib.closing(sqlite3.connect(made.path)) as file, file:
        key = f"job/{made.done_job}"
        (raw,) = file.execute("select value from record where key = ?", (key,)).fetchone()
        job = msgspec.structs.replace(decode(raw, Job), status=status, ending=ending, reason="it says why")
        file.execute("update record set value = ? where key = ?", (encode(job), key))
    async with client(made.path) as site:
        text = await page(site, f"/job/{made.done_job}")
    assert f'<p class="banner {tone}">it says why</p>' in text


async def test_job_page_says_warm_rounds_and_the_recipe(tmp_path: Path) -> None:
    made = build_example(tmp_path / "ledger.db")
    with contextlib.closing(sqlite3.connect(made.path)) as file, file:
        key = f"job/{made.running_job}"
        (raw,) = file.execute("select value from record where key = ?", (key,)).fetchone()
        job = decode(raw, Job)
        changes = {"schedule": "cosine", "schedule_steps": 1_000, "warmup_steps": 30, "precision": "bf16"}
        recipe = msgspec.structs.replace(job.spec.recipe, **changes)
        spec = msgspec.structs.replace(job.spec, recipe=recipe, warm_rounds=5)
        file.execute(
            "update record set value = ? where key = ?", (encode(msgspec.structs.replace(job, spec=spec)), key)
        )
    async with client(made.path) as site:
        text = await page(site, f"/job/{made.running_job}")
    for word in ("30 steps of warm-up, then cosine to 0% at step 1,000", "bf16", "one unit in the first 5"):
        assert word in text
    assert "(5 rounds × 1 unit + 7 rounds × 4 units)" in text


async def test_unit_page_shows_evidence_and_arithmetic(site: httpx.AsyncClient, example: Example) -> None:
    convicted = await value(site, f"/unit/{example.running_job}/5/2")
    assert [check["valid"] for check in convicted["checks"]] == [True, True, True]
    pay = convicted["payment"]
    assert (pay["due"], pay["held"], pay["paid"]) == (3_624_000, 0, 0)
    assert pay["forfeited"] == pay["due"]
    assert [audit["verdict"] for audit in convicted["audits"]] == ["fail"] * 4
    assert convicted["dispute"]["status"] == "convicted"
    assert len(convicted["dispute"]["committee"]) == 3
    assert [item["kind"] for item in convicted["timeline"][:2]] == ["commit", "reveal"]
    paid = (await value(site, f"/unit/{example.done_job}/1/3"))["payment"]
    assert paid["paid"] == paid["due"] == paid["price"] + paid["merit"]
    assert paid["forfeited"] == 0
    missed = await value(site, f"/unit/{example.running_job}/3/3")
    assert missed["payment"] is None
    assert missed["unit"]["reason"] == "no commit before the deadline"


async def test_unit_page_notices_a_false_shard(example: Example, tmp_path: Path) -> None:
    copy = shutil.copy(example.path, tmp_path / "copy.db")
    key = f"unit/{example.done_job}/0/1"
    unit = json.loads(read(copy, "SELECT value FROM record WHERE key = ?", key))
    unit["shard"] = (unit["shard"] + 1) % 64
    change(copy, "UPDATE record SET value = ? WHERE key = ?", encode(unit), key)
    async with client(copy) as site:
        checks = (await value(site, f"/unit/{example.done_job}/0/1"))["checks"]
        assert [check["valid"] for check in checks] == [True, True, False]


async def test_altered_signature_is_shown(site: httpx.AsyncClient, example: Example) -> None:
    good = await value(site, f"/entry/{example.transfer}")
    assert good["valid"]
    assert json.loads(good["signed"])["memo"] == HOSTILE
    bad = await value(site, f"/entry/{example.altered}")
    assert [check["valid"] for check in bad["checks"]] == [False, True, True]
    text = await page(site, f"/entry/{example.altered}")
    assert "does not verify" in text
    assert "not what their author signed" in text
    assert "does not verify" not in await page(site, f"/entry/{example.transfer}")
    # its block notices as well: the header covers the entry's bytes
    assert [check["valid"] for check in (await value(site, "/block/1"))["checks"]] == [
        *(True, True, True, False, True, True)
    ]


async def test_blocks_are_checked(site: httpx.AsyncClient, example: Example, tmp_path: Path) -> None:
    found = await value(site, "/block/7")
    assert [check["valid"] for check in found["checks"]] == [True] * 6
    assert len(found["signers"]) == found["quorum"] == 3
    assert found["header"]["height"] == "7"
    copy = shutil.copy(example.path, tmp_path / "copy.db")
    change(copy, "UPDATE block SET certificate = CAST(replace(certificate, 'final', 'notar') AS BLOB)")
    change(copy, "UPDATE block SET hash = ? WHERE height = 6", hash_of("another"))
    async with client(copy) as other:
        checks = (await value(other, "/block/7"))["checks"]
        assert [check["valid"] for check in checks] == [True, True, False, True, False, True]
        assert "notar certificate" in checks[4]["detail"]


async def test_account_history_counts_back_to_the_genesis(site: httpx.AsyncClient, example: Example) -> None:
    name = example.build.workers[1].account
    found = await value(site, f"/account/{name}?limit=100")
    assert found["genesis_balance"] + found["moves"] == found["balance"]
    lines = found["history"]
    assert lines[0]["balance"] == found["balance"]
    for newer, older in pairwise(lines):
        assert newer["balance"] - newer["change"] == older["balance"]
    older_page = await value(site, f"/account/{name}?limit=5&before={lines[4]['event']['id']}")
    assert older_page["history"][0] == lines[5]
    assert found["reputation"]["cpu-fp32"]["invalid"] == 1 - 1
    assert {bid["job"] for bid in found["bids"]} == {example.done_job, example.running_job}


# lists, search and errors


async def test_lists_are_paged_and_limited(site: httpx.AsyncClient) -> None:
    seen: list[int] = []
    path: str | None = "/blocks?limit=30"
    while path:
        found = await value(site, path)
        seen += [block["height"] for block in found["blocks"]]
        path = f"/blocks?limit=30&before={found['next_before']}" if found["next_before"] else None
    assert seen == list(range(max(seen), 0, -1))
    assert len((await value(site, "/events?limit=100000"))["events"]) == queries.MAX_PAGE
    first = await value(site, "/accounts?limit=4")
    rest = await value(site, f"/accounts?limit=100&after={first['next_after']}")
    assert len(first["accounts"]) + len(rest["accounts"]) == 9
    assert rest["next_after"] is None
    assert (await value(site, "/jobs?limit=1"))["next_skip"] == 1
    assert (await value(site, "/jobs?limit=1&skip=1"))["next_skip"] is None


async def test_search_finds_by_every_name(site: httpx.AsyncClient, example: Example) -> None:
    account = example.build.owner.account
    for query, target in (
        ("12", "/block/12"),
        (example.running_job, f"/job/{example.running_job}"),
        (example.running_job[:9].upper(), f"/job/{example.running_job}"),
        (f" {example.transfer} ", f"/entry/{example.transfer}"),
        (example.build.parent[:12], f"/block/{example.build.height}"),
        (account, f"/account/{account}"),
        (account[:30], f"/account/{account}"),
        (f"unit/{example.done_job}/1/3", f"/unit/{example.done_job}/1/3"),
        (f"{example.done_job}/1/3", f"/unit/{example.done_job}/1/3"),
    ):
        answer = await site.get("/search", params={"q": query})
        assert (answer.status_code, answer.headers.get("location")) == (303, target), query
    several = await value(site, "/search?q=12D3KooW")
    assert len(several["hits"]) == 9
    for nothing in ("", "   ", "zzz", "9999999", "'; DROP TABLE block; --", "%", "12D3KooW%", "٣", "0" * 64):
        answer = await site.get("/search", params={"q": nothing})
        assert answer.status_code == 200
        assert "Search for an account id" in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nope", 404),
        ("/block/99999", 404),
        ("/block/-1", 404),
        ("/block/" + "9" * 400, 404),
        ("/block/x", 404),
        ("/job/" + "0" * 64, 404),
        ("/job/%00", 404),
        ("/entry/abc", 404),
        ("/account/me", 404),
        ("/unit/abc/0/0", 404),
        ("/job/abc/round/0", 404),
        ("/static/../app.py", 404),
        ("/blocks?before=x", 400),
        ("/blocks?before=" + "9" * 30, 400),
        ("/blocks?limit=-3", 400),
        ("/jobs?skip=99999999", 400),
        ("/search?q=" + "a" * 201, 400),
        ("/events?account=" + "a" * 500, 400),
        ("/?format=xml", 400),
    ],
)
async def test_wrong_addresses_get_readable_pages(site: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await site.get(path)
    assert answer.status_code == status
    found = Links(answer.text)
    assert found.tags.count("main") == 1
    if "format" not in path:
        other = await site.get(path + ("&" if "?" in path else "?") + "format=json")
        assert (other.status_code, other.json()["status"]) == (status, status)


async def test_nothing_can_be_written(site: httpx.AsyncClient, example: Example) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await site.request(method, "/jobs")
        assert answer.status_code == 405
        assert "only reads" in answer.text
    ledger = files.open_ledger(example.path)
    with pytest.raises(StorageError, match="cannot be read"), ledger.read() as reader:
        reader._session.connection().exec_driver_sql("DELETE FROM block")


async def test_health_tells_height_and_age(site: httpx.AsyncClient, example: Example) -> None:
    answer = (await site.get("/healthz")).json()
    assert answer == {
        "status": "ok",
        "network": example.build.network,
        "height": example.build.height,
        "age_ms": START_MS + 600_000 - example.build.time_ms,
    }


# files


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no ledger file at .*--db FILE"):
        create_app(tmp_path / "none.db")
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to be taken for one " * 20, encoding="utf-8")
    with pytest.raises(StorageError, match="not a database"):
        create_app(text)
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    with pytest.raises(UsageError, match="holds no ledger"):
        create_app(empty)


async def test_damage_is_told_and_later_repaired(example: Example, tmp_path: Path) -> None:
    copy = shutil.copy(example.path, tmp_path / "copy.db")
    async with client(copy) as site:
        change(copy, "UPDATE record SET value = ? WHERE key = ?", b'{"id":1}', f"job/{example.done_job}")
        answer = await site.get(f"/job/{example.done_job}")
        assert answer.status_code == 503
        assert "is damaged" in answer.text
        assert (await site.get(f"/job/{example.running_job}")).status_code == 200
        copy.rename(tmp_path / "gone.db")
        assert (await site.get("/healthz")).status_code == 503
        (tmp_path / "gone.db").rename(copy)
        assert (await site.get("/healthz")).status_code == 200


async def test_other_schema_is_refused(example: Example, tmp_path: Path) -> None:
    copy = shutil.copy(example.path, tmp_path / "copy.db")
    change(copy, "INSERT INTO meta VALUES ('schema', ?)", b"99")
    with pytest.raises(StorageError, match="another version"):
        create_app(copy)


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def read(path: Path, statement: str, *values: object) -> bytes:
    connection = sqlite3.connect(path)
    found: bytes = connection.execute(statement, values).fetchone()[0]
    connection.close()
    return found
