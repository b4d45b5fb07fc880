"""The explorer over validator sets that change, fees, evidence, and ledgers whose old blocks were pruned."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from gdf_market.codec import encode
from gdf_market.messages import ValidatorJoin
from gdf_market.statements import set_hash
from ledger.effects import Prune
from ledger.explorer.app import create_app
from tests.ledger_kit import BOND, ENTRY_FEE, Maker, make_epochs
from tests.simulator import key

OLD_SET = "UPDATE epoch SET validators = (SELECT validators FROM epoch WHERE number = 0) WHERE number = 1"
FIRST, SECOND, THIRD, FOURTH, JOINER = (key(number).account for number in (1, 2, 3, 4, 101))


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_epochs(tmp_path_factory.mktemp("epochs") / "ledger.sqlite")


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    made = make_epochs(tmp_path_factory.mktemp("pruned") / "ledger.sqlite")
    made.store.save([Prune(14)])
    return made


def client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=create_app(path)), base_url="http://explorer")


async def value(site: httpx.AsyncClient, path: str) -> Any:
    answer = await site.get(path, params={**httpx.QueryParams(httpx.URL(path).query), "format": "json"})
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()


async def text(site: httpx.AsyncClient, path: str) -> str:
    answer = await site.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


def valid(found: Any) -> list[bool]:
    return [check["valid"] for check in found["checks"]]


async def crawl(site: httpx.AsyncClient) -> dict[str, int]:
    """Follow every link from the overview; return the status of each address."""
    seen: dict[str, int] = {}
    todo = ["/"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        answer = await site.get(path)
        seen[path] = answer.status_code
        if "html" in answer.headers.get("content-type", ""):
            todo += [href.split("#")[0] for href in re.findall(r'href="(/[^"]*)"', answer.text.replace("&amp;", "&"))]
    return seen


# ---- blocks of every epoch


async def test_every_block_is_verified_with_the_set_of_its_epoch(maker: Maker) -> None:
    async with client(maker.path) as site:
        for height in range(1, 20):
            found = await value(site, f"/block/{height}")
            assert valid(found) == [True] * 6, (height, found["checks"])
            assert found["epoch"] == (height - 1) // 4
            assert found["ends_epoch"] == (height % 4 == 0)
            assert found["validators"] == len(maker.store.validators_at(height))
            assert found["signers"] == list(maker.store.validators_at(height))[: found["quorum"]]
        by_closing = await value(site, "/block/8")
        assert (by_closing["closing"], (await value(site, "/block/7"))["closing"]) == (2, 2)
        page = await text(site, "/block/8")
        assert "They signed the last of 2 empty closing blocks" in page
        assert "It ends <a" in page
        assert "It is of <a" in await text(site, "/block/7")


@pytest.mark.parametrize(
    ("statement", "height", "failing"),
    [
        (OLD_SET, 6, {1, 4, 5}),
        (OLD_SET, 4, {5}),
        ("DELETE FROM epoch", 6, {1, 4, 5}),
        ("DELETE FROM closing", 8, {4}),
        ("DELETE FROM closing WHERE position = 0", 8, {4}),
        ("DELETE FROM closing WHERE position = 1", 8, {4}),
        ("UPDATE closing SET raw = x'00'", 8, {4}),
        ("UPDATE epoch SET validators = x'00' WHERE number = 2", 10, {1, 4, 5}),
    ],
)
async def test_wrong_sets_and_closing_blocks_are_noticed(
    maker: Maker, tmp_path: Path, statement: str, height: int, failing: set[int]
) -> None:
    copy = Path(shutil.copy(maker.path, tmp_path / "copy.sqlite"))
    for suffix in ("-wal", "-shm"):
        if (beside := maker.path.with_name(maker.path.name + suffix)).exists():
            shutil.copy(beside, tmp_path / f"copy.sqlite{suffix}")
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute(statement)
    connection.close()
    async with client(copy) as site:
        found = valid(await value(site, f"/block/{height}"))
        assert {index for index, good in enumerate(found) if not good} == failing
        assert (await site.get(f"/block/{height}")).status_code == 200
        assert (await site.get("/validators")).status_code == 200


# ---- the validators' pages


async def test_the_validators_page_shows_set_epoch_and_bonds(maker: Maker) -> None:
    async with client(maker.path) as site:
        found = await value(site, "/validators")
        assert (found["epoch"], found["first"], found["last"], found["blocks_left"]) == (4, 17, 20, 1)
        assert (found["quorum"], found["bond"], found["pruned_below"]) == (3, BOND, 0)
        assert [line["account"] for line in found["members"]] == [FIRST, FOURTH, JOINER]
        assert sum(line["proposed"] for line in found["members"]) == 3
        left = [(line["account"], line["status"], line["stake"], line["unlock_epoch"]) for line in found["unlocking"]]
        assert left == [(SECOND, "unlocking", BOND, 5), (THIRD, "convicted", 0, 7)]
        assert found["slashed"] == BOND
        lines = found["epochs"]
        assert [line["number"] for line in lines] == [4, 3, 2, 1, 0]
        assert [line["members"] for line in lines] == [3, 4, 4, 5, 4]
        assert [line["joined"] for line in lines] == [[], [], [], [JOINER], []]
        assert [line["left"] for line in lines] == [[THIRD], [], [SECOND], [], []]
        assert [line["closing"] for line in lines] == [0, 0, 1, 2, 0]
        assert [line["ended"] for line in lines] == [False, True, True, True, True]
        page = await text(site, "/validators")
        assert "3 accounts agree on the blocks of epoch 4" in page
        assert "by 2 closing blocks" in page
        assert "under way" in page


async def test_candidates_and_leavers_are_shown(tmp_path: Path) -> None:
    maker = make_epochs(tmp_path / "ledger.sqlite", 5)
    maker.block([maker.entry(ValidatorJoin, key(102))])
    async with client(maker.path) as site:
        found = await value(site, "/validators")
        assert [line["status"] for line in found["members"]] == ["member", "leaving", "member", "member", "member"]
        assert [line["account"] for line in found["candidates"]] == [key(102).account]
        assert "waits for a seat" in await text(site, f"/account/{key(102).account}")
        assert "as validator, leaving" in await text(site, f"/account/{SECOND}")


async def test_epochs_are_paged(maker: Maker) -> None:
    async with client(maker.path) as site:
        first = await value(site, "/epochs?limit=2")
        assert [line["number"] for line in first["epochs"]] == [4, 3]
        rest = await value(site, f"/epochs?limit=2&before={first['next_before']}")
        assert [line["number"] for line in rest["epochs"]] == [2, 1]
        assert rest["epochs"][1]["joined"] == [JOINER]  # compared with an epoch of the next page
        last = await value(site, f"/epochs?limit=2&before={rest['next_before']}")
        assert ([line["number"] for line in last["epochs"]], last["next_before"]) == ([0], None)


async def test_evidence_is_shown_and_verified_again(maker: Maker, tmp_path: Path) -> None:
    (row,) = maker.store.entries(kind="evidence")
    async with client(maker.path) as site:
        (item,) = (await value(site, "/validators"))["evidence"]
        assert (item["accused"], item["author"], item["epoch"], item["slot"]) == (THIRD, FOURTH, 2, 7)
        assert (item["height"], item["slashed"], item["entry"]) == (14, BOND, row.id)
        assert valid(item) == [True, True, True]
        sentences = [statement["sentence"][:27] for statement in item["statements"]]
        assert sentences == ["A vote to notarize block aa", "A vote to notarize block bb"]
        assert (await value(site, f"/entry/{row.id}"))["evidence"] == item
        page = await text(site, f"/entry/{row.id}")
        assert "signed two contradicting statements in slot 7 of epoch 2" in page
        assert (await value(site, f"/entry/{maker.store.block_entries(7)[0].id}"))["evidence"] is None
    # a false signature inside, or statements that an honest validator may have signed both
    for old, new, expected in (
        (encode(first_statement(row.raw)["sig"])[1:-1], b"0" * 128, [False, True, True]),
        (b'"hash":"' + b"b" * 64, b'"hash":"' + b"a" * 64, [True, False, False]),
    ):
        copy = tmp_path / f"copy{len(new)}.sqlite"
        forged = make_epochs(copy)
        with forged.store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE entry SET raw = ? WHERE id = ?", (row.raw.replace(old, new), row.id))
        async with client(copy) as site:
            (item,) = (await value(site, "/validators"))["evidence"]
            assert valid(item) == expected


def first_statement(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(raw)["body"]["first"]
    return found


# ---- fees


async def test_fees_are_part_of_every_sum(maker: Maker) -> None:
    async with client(maker.path) as site:
        paying = {1: 1, 5: 2, 7: 2, 8: 1, 18: 3}  # evidence in block 14 pays none
        for height in range(1, 20):
            assert (await value(site, f"/block/{height}"))["fees"] == paying.get(height, 0) * ENTRY_FEE
        entry = await value(site, f"/entry/{maker.store.block_entries(7)[0].id}")
        assert (entry["fee"], entry["fee_per_kib"]) == (ENTRY_FEE, ENTRY_FEE)
        page = (await text(site, f"/entry/{entry['view']['id']}")).replace("&#39;", "'")
        assert "0.001 credits to the block's proposer: 1 started KiB at 0.001" in page
        free = await value(site, f"/entry/{maker.store.block_entries(14)[0].id}")
        assert free["fee"] == 0
        assert "entries of this kind pay none" in await text(site, f"/entry/{free['view']['id']}")
        paid = earned = 0
        for line in (await value(site, "/accounts?limit=100"))["accounts"]:
            account = await value(site, f"/account/{line['account']}")
            assert account["genesis_balance"] + account["moves"] == account["balance"]
            paid, earned = paid + account["fees_paid"], earned + account["fees_earned"]
        assert paid == earned == 9 * ENTRY_FEE
        kinds = {event["kind"]: event["sentence"] for event in (await value(site, "/events?limit=100"))["events"]}
        assert set(kinds) == {*("transfer", "fee", "bond", "validator", "evicted", "convicted", "slashed", "epoch")}
        assert "pays the fee of its entry to the block's proposer: 0.001 credits from 12D3…" in kinds["fee"]
        assert kinds["evicted"].startswith("Validator 12D3…")
        assert kinds["epoch"] == "An epoch begins (epoch 1 has 5 validators)."
        assert "from the validator's bond to 12D3…" in kinds["slashed"]


# ---- pruned ledgers


async def test_a_pruned_ledger_says_so_instead_of_failing(pruned: Maker, maker: Maker) -> None:
    async with client(pruned.path) as site:
        seen = await crawl(site)
        assert set(seen.values()) <= {200, 303}, {path: code for path, code in seen.items() if code not in (200, 303)}
        assert {"/block/14", "/block/12", "/block/4", "/validators", "/epochs"} <= set(seen)
        assert "/block/13" not in seen
        gone = await site.get("/block/13")
        assert gone.status_code == 410
        assert "Block 13 was pruned from this file, which holds all blocks from 14 on" in gone.text
        assert (await site.get("/block/13?format=json")).json()["status"] == 410
        lost = await site.get(f"/entry/{maker.store.block_entries(5)[0].id}")
        assert lost.status_code == 404
        assert "from block 14 on; earlier ones were pruned" in lost.text
        assert (await site.get("/block/0")).status_code == 404
        assert "before block 14 were pruned" in await text(site, "/")
        assert "Those before 14 were pruned" in await text(site, "/blocks")


async def test_what_a_pruned_ledger_still_holds_is_verified(pruned: Maker) -> None:
    async with client(pruned.path) as site:
        for height in range(15, 20):
            assert valid(await value(site, f"/block/{height}")) == [True] * 6
        first = await value(site, "/block/14")
        assert [(check["valid"], check["pruned"]) for check in first["checks"]] == [
            *[(True, False)] * 2,
            (False, True),  # its parent is gone
            *[(True, False)] * 3,
        ]
        boundary = await value(site, "/block/8")  # kept for the chain of sets, without its entries
        assert [check["pruned"] for check in boundary["checks"]] == [False, False, True, True, False, False]
        assert [check["valid"] for check in boundary["checks"]] == [True, True, False, False, True, True]
        page = await text(site, "/block/8")
        assert "this file keeps only the headers that end an epoch" in page
        assert "its 1 entries were pruned from this file" in page
        assert 'href="/block/7"' not in page
        assert 'href="/block/9"' not in page
        assert (await value(site, "/block/16"))["header"]["validators"] == set_hash(pruned.store.validators_at(17))


async def test_balances_of_a_pruned_ledger_count_from_where_it_begins(pruned: Maker, maker: Maker) -> None:
    async with client(pruned.path) as site, client(maker.path) as whole:
        for account in (FIRST, THIRD, JOINER):
            found, full = await value(site, f"/account/{account}"), await value(whole, f"/account/{account}")
            assert (found["balance"], found["pruned_below"], full["pruned_below"]) == (full["balance"], 14, 0)
            known = len(found["history"])
            assert [line["balance"] for line in found["history"]] == [
                line["balance"] for line in full["history"][:known]
            ]
            page = await text(site, f"/account/{account}")
            assert "before block 14" in page
            assert "earlier events were pruned" in page
            assert "matches the balance" not in page
        slashed = await value(site, "/validators")
        assert (slashed["slashed"], slashed["pruned_below"]) == (BOND, 14)  # block 14 is still here
        assert (await value(site, "/"))["supply_difference"] == 0


async def test_a_ledger_pruned_to_its_head_has_pages(tmp_path: Path) -> None:
    made = make_epochs(tmp_path / "ledger.sqlite")
    made.store.save([Prune(19)])
    async with client(made.path) as site:
        assert set((await crawl(site)).values()) <= {200, 303}
        assert (await value(site, "/validators"))["evidence"] == []
        assert "since block 19" in await text(site, "/validators")
