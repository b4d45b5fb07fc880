"""Order book, fairness, anomalies, tables as CSV: what the explorer adds up over a whole ledger."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.parameters import MAX_PANEL
from contracts.records import Genesis, Staking
from gdf_market.units import CREDIT
from ledger import proof
from ledger.block import Certificate, Header
from ledger.explorer import anomalies, plots, tables
from ledger.explorer import app as app_module
from ledger.explorer.app import create_app
from ledger.explorer.checks import Check
from ledger.explorer.distribution import MAX_POINTS, detection, gini, lorenz, units_until
from ledger.explorer.files import open_ledger
from ledger.limits import MAX_VALIDATORS
from ledger.links import MAX_CLOSING, Link
from tests.explorer_ledger import HOSTILE, START_MS, Example, build_example

AMOUNTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return build_example(tmp_path_factory.mktemp("explorer") / "ledger.db")


def client(path: Path) -> httpx.AsyncClient:
    app = create_app(path, clock=lambda: START_MS + 600_000)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://explorer")


async def value(path: Path, address: str) -> Any:
    async with client(path) as site:
        assert (await site.get(address)).status_code == 200
        return (await site.get(address, params={"format": "json"})).json()


# ---- distribution


@given(AMOUNTS)
def test_gini_is_half_the_relative_mean_difference(amounts: list[int]) -> None:
    total, count = sum(amounts), len(amounts)
    expected = 0.0
    if total:
        expected = sum(abs(a - b) for a, b in itertools.product(amounts, repeat=2)) / (2 * count * total)
    assert gini(amounts) == pytest.approx(expected, abs=1e-9)


def test_gini_of_plain_cases() -> None:
    assert gini([]) == gini([0, 0]) == gini([7, 7, 7]) == 0
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)


@given(AMOUNTS)
def test_lorenz_curve_rises_and_lies_below_equality(amounts: list[int]) -> None:
    points = lorenz(amounts)
    if not sum(amounts):
        assert points == []
        return
    assert (points[0], points[-1]) == ((0, 0), (1, 1))
    assert points == sorted(points)
    assert all(share <= count + 1e-9 for count, share in points)


def test_lorenz_curve_of_many_accounts_is_thinned() -> None:
    assert len(lorenz(range(10_000))) <= 2 * MAX_POINTS


def test_detection_is_the_chance_of_at_least_one_audit() -> None:
    assert detection(0, 3) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert detection(1_000_000, 1) == [(0, 0), (1, 1)]
    assert [chance for _, chance in detection(500_000, 3)] == [0, 0.5, 0.75, 0.875]
    assert [units_until(100_000, wanted) for wanted in (0.5, 0.9, 0.99)] == [7, 22, 44]
    assert units_until(0, 0.5) == 0
    assert units_until(1_000_000, 0.99) == 1


async def test_fairness_adds_up_to_what_was_paid(example: Example) -> None:
    found = await value(example.path, "/fairness")
    overview = await value(example.path, "/")
    assert found["base"] + found["merit"] == overview["paid"]
    assert found["audits"] == 7 * CREDIT // 2
    assert sum(line["total"] for line in found["rewards"]) == found["base"] + found["merit"] + found["audits"]
    assert [line["total"] for line in found["rewards"]] == sorted((x["total"] for x in found["rewards"]), reverse=True)
    assert (found["units"], found["audited"], found["convicted"]) == (31, 4, 1)
    assert [rate["chance_ppm"] for rate in found["rates"]] == [129_000, 100_000]
    assert sum(bucket["audits"] for bucket in found["buckets"]) == 7
    assert sum(bucket["failed"] for bucket in found["buckets"]) == 4
    assert sum(bucket["convictions"] for bucket in found["buckets"]) == 1
    assert found["lorenz"]["lines"][1]["points"].startswith("56.0,172.0 ")


# ---- order book


async def test_order_book_shows_bids_prices_and_reasons(example: Example) -> None:
    found = await value(example.path, "/book")
    (job,) = found["open"]
    assert (job["id"], job["vacant"], job["slots"], job["status"]) == (example.running_job, 1, 4, "running")
    assert [bid["status"] for bid in job["bids"]] == ["matched", "matched"]  # the closed ones are no offers any more
    assert [price["price"] for price in found["prices"]] == [3 * CREDIT] * 8
    assert [price["time_ms"] for price in found["prices"]] == sorted(price["time_ms"] for price in found["prices"])
    assert found["reasons"] == [{"reason": "outbid: asked … the slots went at …", "bids": 2}]
    assert len(found["unmatched"]) == found["sampled"] == 2


# ---- drawings


def test_a_curve_of_steps_keeps_each_value_until_the_next() -> None:
    frame = plots.Frame((0, 10), (0, 4))
    drawn = frame.steps("x", [(0, 1), (5, 3), (10, 2)], "a").points
    points = [tuple(map(float, point.split(","))) for point in drawn.split()]
    heights = [y for _, y in points]
    assert heights[0] == heights[1] > heights[4]
    assert heights[2] == heights[3]
    assert points[1][0] == points[2][0] == frame.at_x(5)


def test_a_flat_axis_has_a_place_for_its_value() -> None:
    frame = plots.Frame((3, 3), (0, 0))
    assert (frame.at_x(3), frame.at_y(0)) == (56, 172)


# ---- tables


async def test_every_table_of_every_page_is_there_as_csv(example: Example) -> None:
    addresses = ("/", "/jobs", f"/job/{example.running_job}", f"/unit/{example.running_job}/5/2", "/fairness", "/book")
    async with client(example.path) as site:
        for address in (*addresses, "/events", "/accounts", "/validators", f"/entry/{example.transfer}"):
            text = (await site.get(address)).text
            links = [
                part.split('"')[0].replace("&amp;", "&") for part in text.split('href="')[1:] if "format=csv" in part
            ]
            assert links, address
            for link in {link for link in links if "format=csv" in link}:
                answer = await site.get(link)
                assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8"), link
                rows = list(csv.reader(io.StringIO(answer.text)))
                assert len(rows) > 1
                assert len({len(row) for row in rows}) == 1, link


async def test_a_table_has_the_values_of_the_page(example: Example) -> None:
    async with client(example.path) as site:
        rows = list(csv.DictReader(io.StringIO((await site.get("/blocks?format=csv&table=blocks&limit=7")).text)))
        page = (await site.get("/blocks?format=json&limit=7")).json()
        assert [int(row["height"]) for row in rows] == [block["height"] for block in page["blocks"]]
        answer = await site.get("/blocks?format=csv&table=nothing")
        assert answer.status_code == 400
        assert "none of this page" in answer.text
        assert (await site.get("/block/99999?format=csv&table=x")).status_code == 404


def test_strangers_text_is_no_formula() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "plain", HOSTILE, 'say "a,b"\n']
    rows = list(csv.DictReader(io.StringIO(tables.to_csv([Check(text, True, text) for text in texts]).decode())))
    assert [row["claim"] for row in rows] == [*(f"'{text}" for text in texts[:5]), *texts[5:]]


# ---- anomalies


def add_transfers(path: Path, transfers: Sequence[tuple[str, str, int, int]]) -> None:
    """Write events of (source, target, amount, height) into a file."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for source, target, amount, height in transfers:
            file.execute(
                "insert into event (height, position, kind, job, round, slot, account, source, target, amount, reason,"
                " entry) values (?, 9, 'transfer', '', -1, -1, ?, ?, ?, ?, '', '')",
                (height, source, source, target, amount),
            )


def search(path: Path) -> anomalies.Anomalies:
    with open_ledger(path).read() as reader:
        return anomalies.find(reader)


def test_what_is_odd_is_found(tmp_path: Path) -> None:
    made = build_example(tmp_path / "ledger.db")
    owner, first, second = made.build.owner.account, made.build.workers[0].account, made.build.workers[1].account
    before = search(made.path)
    assert (before.spikes, before.loops, before.circles, before.complete) == ([], [], [], True)
    add_transfers(made.path, [(first, owner, 7 * CREDIT, 9), (first, second, 300 * CREDIT, 2)])
    found = search(made.path)
    assert [(spike.account, spike.height, spike.amount) for spike in found.spikes] == [(second, 2, 300 * CREDIT)]
    assert {(loop.job, loop.payee, loop.returned) for loop in found.loops} == {
        (job, first, 7 * CREDIT) for job in (made.done_job, made.running_job)
    }
    assert all(loop.owner == owner and loop.paid > 0 for loop in found.loops)
    assert [(set(circle.accounts), circle.amount) for circle in found.circles] == [({owner, first}, CREDIT)]


def test_a_circle_is_met_once_and_not_longer_than_the_bound() -> None:
    ring = {(str(index), str((index + 1) % 4)): 10 + index for index in range(4)}
    circles, complete = anomalies.find_circles(ring)
    assert ([(circle.accounts, circle.amount) for circle in circles], complete) == ([(("0", "1", "2", "3"), 10)], True)
    longer = {(str(index), str((index + 1) % 5)): 10 for index in range(5)}
    assert anomalies.find_circles(longer) == ([], True)
    pair = {("a", "b"): 5, ("b", "a"): 3, ("b", "c"): 1}
    assert [circle.amount for circle in anomalies.find_circles(pair)[0]] == [3]


def test_the_search_for_circles_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = {(str(a), str(b)): a * b for a in range(12) for b in range(12) if a != b}
    assert anomalies.find_circles(everyone)[1]
    monkeypatch.setattr(anomalies, "MAX_STEPS", 500)
    circles, complete = anomalies.find_circles(everyone)
    assert not complete
    assert len(circles) <= anomalies.SHOWN


@pytest.mark.parametrize("bound", ["MAX_SUMS", "MAX_EDGES", "MAX_PAYEES"])
def test_a_search_that_is_cut_short_says_so(example: Example, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(anomalies, bound, 1)
    assert not search(example.path).complete


# ---- the script that checks proofs knows the forms of records


@pytest.mark.parametrize(
    ("name", "record"),
    [("GENESIS", Genesis), ("CERTIFICATE", Certificate), ("LINK", Link), ("HEADER", Header), ("staking", Staking)],
)
def test_the_browsers_forms_are_those_of_the_program(name: str, record: type[msgspec.Struct]) -> None:
    script = (Path(app_module.__file__).parent / "static" / "proof.js").read_text(encoding="utf-8")
    pattern = r"staking: record\(\{(.*?)\}\)" if name == "staking" else rf"const {name} = (?:record\()?\{{\n(.*?)\n\}}"
    found = re.search(pattern, script, re.DOTALL)
    assert found is not None
    text = re.sub(r"\(\{.*?\}\)", "", found[1])  # records within
    text = re.sub(r"/(?:[^/\\]|\\.)+/", "", text)
    named = set(re.findall(r"(\w+)(?=\s*[:,]|\s*$)", re.sub(r":[^,]*(?:\([^)]*\))*", ":", text)))
    fields = {*record.__struct_fields__, *([record.__struct_config__.tag_field] if record is Certificate else [])}
    assert fields <= named, fields - named


def test_the_browsers_limits_are_those_of_the_program() -> None:
    script = (Path(app_module.__file__).parent / "static" / "proof.js").read_text(encoding="utf-8")
    limits = dict(re.findall(r"(\w+): ([\d_]+)", re.search(r"const MAX = \{(.*?)\}", script)[1]))
    assert {name: int(value) for name, value in limits.items()} == {
        "links": proof.MAX_LINKS,
        "closing": MAX_CLOSING,
        "descendants": proof.MAX_DESCENDANTS,
        "headers": proof.MAX_HEADERS,
        "path": proof.MAX_PATH,
        "validators": MAX_VALIDATORS,
    }
    assert f"value <= {MAX_PANEL}" in script
    assert [proof.EntryProof, proof.HeadProof] == [
        kind for kind in (proof.EntryProof, proof.HeadProof) if f'"{kind.__struct_config__.tag}"' in script
    ]
