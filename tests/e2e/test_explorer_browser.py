"""The explorer, looked at with a real browser: light, dark, narrow, without scripts, and over a hostile ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdf_market import messages
from gdf_market.units import CREDIT
from ledger.explorer.pages import PAGES
from tests.browser_kit import (
    AUDIT,
    DEMANDED,
    ROOT,
    SHOTS,
    OpenPage,
    axe_source,
    barriers,
    browsing,
    no_browser,
    serving,
)
from tests.explorer_ledger import Build, Example, build_example
from tests.ledger_kit import Maker, make_ledger

pytestmark = [pytest.mark.e2e, no_browser]

# all looks, with a screenshot of each page, when they are asked for; the others say the same of the markup
LOOKS = [(1280, "light"), (360, "dark"), *([(1280, "dark"), (360, "light")] if os.environ.get(DEMANDED) else [])]
RIGHT_TO_LEFT = "\u202eמטבעות\u202c \u2067قرش\u2069"
LONG = "W" * 190
HOSTILE = (
    "</code></pre><script>alert(3)</script>",
    '"><svg onload=alert(4)>',
    "{{ 7 * 7 }}{% raw %}",
    RIGHT_TO_LEFT,
    LONG,
)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return build_example(tmp_path_factory.mktemp("browser") / "ledger.db")


@pytest.fixture(scope="module")
def url(example: Example) -> Iterator[str]:
    with serving(example.path) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[OpenPage]:
    with browsing() as open_page:
        yield open_page


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent SIGTERM there, only killed")
def test_the_command_ends_well_when_it_is_told_to(example: Example, tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path), "--json"]
    command = [sys.executable, "-m", "gdf_market", *place, "explorer", "--db", str(example.path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "{"
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def paths(example: Example) -> dict[str, str]:
    """Return a path of every kind of page, by the name of its screenshot."""
    account = example.build.workers[1].account
    job = example.running_job
    return {
        "overview": "/",
        "jobs": "/jobs",
        "accounts": "/accounts",
        "blocks": "/blocks",
        "validators": "/validators",
        "epochs": "/epochs",
        "events": "/events",
        "order-book": "/book",
        "fairness": "/fairness",
        "audit": "/audit",
        "check-a-proof": "/verify",
        "search": "/search?q=nothing",
        "job": f"/job/{job}",
        "round": f"/job/{job}/round/5",
        "unit-convicted": f"/unit/{job}/5/2",
        "unit-paid": f"/unit/{example.done_job}/1/3",
        "account": f"/account/{account}",
        "block": "/block/7",
        "entry": f"/entry/{example.transfer}",
        "entry-altered": f"/entry/{example.altered}",
        "state-around-an-entry": f"/entry/{example.transfer}/changes",
    }


def test_every_kind_of_page_is_looked_at(example: Example) -> None:
    shown = {len(path.split("?")[0].strip("/").split("/")): set() for path in paths(example).values()}
    for path in paths(example).values():
        parts = path.split("?")[0].strip("/").split("/")
        shown[len(parts)].add(parts[0])
    for pattern, _, _ in PAGES:
        parts = pattern.strip("/").split("/")
        assert parts[0] in shown[len(parts)], pattern


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_pages_are_readable(browser: OpenPage, url: str, example: Example, width: int, scheme: str) -> None:
    page = browser(width, scheme)
    faults = {}
    for name, path in paths(example).items():
        page.goto(url + path)
        if found := page.evaluate(AUDIT):
            faults[path] = found
        if os.environ.get(DEMANDED):
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
    assert faults == {}
    assert page.troubles == []  # among them: anything the Content-Security-Policy stopped, any alert() that ran
    assert all(asked.startswith(url) for asked in page.asked)


@pytest.mark.parametrize(("width", "scheme"), LOOKS[:2])
def test_axe_finds_nothing_serious(browser: OpenPage, url: str, example: Example, width: int, scheme: str) -> None:
    source, page = axe_source(), browser(width, scheme)
    faults = {}
    for path in paths(example).values():
        page.goto(url + path)
        if found := barriers(page, source):
            faults[path] = found
    assert faults == {}
    page.evaluate("document.querySelector('h1').outerHTML = '<p><img src=/static/icon.svg><button></button></p>'")
    assert {fault.split()[0] for fault in barriers(page, source)} >= {"image-alt", "button-name"}


def test_at_200_percent_nothing_is_beside_the_window(browser: OpenPage, url: str, example: Example) -> None:
    page = browser(640, "light", scale=2)  # a window of 1280 pixels
    for path in paths(example).values():
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path


def test_the_audit_itself_notices(browser: OpenPage, url: str) -> None:
    page = browser(360, "light")
    page.goto(url)
    page.evaluate("""() => {
        document.querySelector('h1').style.color = '#ccc';
        document.querySelector('caption').remove();
        document.querySelector('main').insertAdjacentHTML('beforeend',
            '<h4></h4><nav></nav><a href="/"></a><p><input></p><img src="/static/icon.svg"><svg></svg>');
        document.querySelector('footer').insertAdjacentHTML('beforeend', '<h1>wide</h1><pre>x</pre>');
        document.querySelector('pre').style.width = '900px';
    }""")
    faults = " ".join(page.evaluate(AUDIT))
    for word in (
        "contrast",
        "caption",
        "unnamed landmark",
        "no name",
        "no label",
        "no alt",
        "unnamed svg",
        "not one h1",
    ):
        assert word in faults
    assert "px wider" in faults
    assert "pre cannot be focused" in faults


def test_a_person_finds_the_way_without_scripts(browser: OpenPage, url: str, example: Example) -> None:
    page = browser(360, "light", scripts=False)
    page.goto(url)
    page.get_by_role("link", name="Digits, a small network").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("Digits, a small network")
    page.get_by_role("link", name="slot 3 paid").first.click()
    assert "Due = held + paid + forfeited" in page.inner_text("main")
    page.get_by_label("Search the ledger").fill(example.altered[:10])
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/entry/{example.altered}")
    assert "does not verify" in page.inner_text("h1")
    assert "gdf-market ledger check" in page.inner_text("[data-verify]")
    page.goto(f"{url}/nope")
    assert "Not in this ledger" in page.inner_text("h1")


def test_search_finds_each_kind(browser: OpenPage, url: str, example: Example) -> None:
    page = browser(1280, "light")
    account = example.build.owner.account
    for query, target in (
        ("12", "/block/12"),
        (example.running_job[:12], f"/job/{example.running_job}"),
        (example.transfer[:12], f"/entry/{example.transfer}"),
        (account, f"/account/{account}"),
        (f"{example.done_job}/1/3", f"/unit/{example.done_job}/1/3"),
        ("zzz", "/search?q=zzz"),
    ):
        page.goto(url)
        page.get_by_label("Search the ledger").fill(query)
        page.keyboard.press("Enter")
        page.wait_for_url(url + target)


def test_keyboard_reaches_the_content_first_and_shows_where_it_is(browser: OpenPage, url: str) -> None:
    page = browser(1280, "light")
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#content")
    page.goto(f"{url}/audit")
    seen = set()
    for _ in range(16):
        page.keyboard.press("Tab")
        name, style, width = page.evaluate("""() => {
            const outline = getComputedStyle(document.activeElement);
            return [document.activeElement.textContent, outline.outlineStyle, parseFloat(outline.outlineWidth)];
        }""")
        assert (style, width >= 2) == ("solid", True), name
        seen.add(name)
    assert {"Overview", "Audit", "Search", "Replay now"} <= seen


def test_overview_refreshes_itself(browser: OpenPage, url: str) -> None:
    page = browser(1280, "light")
    page.goto(url)
    page.evaluate("document.querySelector('[data-live] h1').textContent = 'old'")
    page.get_by_role("heading", name="Overview", level=1).wait_for()
    assert page.troubles == []


# ---- a ledger that grows, and its replay


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Maker, str]]:
    """A ledger file that this test writes, and the explorer over it."""
    maker = make_ledger(tmp_path_factory.mktemp("growing") / "ledger.sqlite")
    with serving(maker.path) as address:
        yield maker, address
    maker.store.close()


def test_the_page_follows_the_blocks(browser: OpenPage, growing: tuple[Maker, str]) -> None:
    maker, address = growing
    page = browser(1280, "light")
    page.goto(address)
    loads = len([asked for asked in page.asked if asked.endswith(".css")])
    for height in (13, 14):
        assert maker.store.head().height == height - 1
        page.get_by_role("link", name=str(height - 1), exact=True).first.wait_for()
        maker.block(maker.transfers(1))
        page.get_by_role("link", name=str(height), exact=True).first.wait_for()
    assert len([asked for asked in page.asked if asked.endswith(".css")]) == loads  # no page was loaded anew
    assert page.troubles == []


def test_a_replay_is_watched_to_its_end(browser: OpenPage, growing: tuple[Maker, str]) -> None:
    maker, address = growing
    page = browser(1280, "light")
    page.goto(f"{address}/audit")
    page.get_by_role("button", name="Replay now").click()
    page.get_by_role("heading", name="Conservation").wait_for()
    assert f"{maker.store.head().height} blocks with" in page.inner_text("main")
    assert page.troubles == []


def test_the_state_around_an_entry(browser: OpenPage, growing: tuple[Maker, str]) -> None:
    maker, address = growing
    entry = maker.store.block_entries(5)[0]
    page = browser(1280, "light")
    page.goto(f"{address}/entry/{entry.id}")
    page.get_by_role("link", name="State before and after this entry").click()
    page.get_by_role("heading", name=f"account/{entry.author}").wait_for()
    before, after = (int(cell.inner_text()) for cell in page.locator("td code").all()[:2])
    assert before - after == 5 or after - before == 5
    assert page.troubles == []


# ---- strangers


def test_hostile_text_stays_text_and_in_its_place(browser: OpenPage, tmp_path: Path) -> None:
    build = Build()
    entries = []
    for memo in HOSTILE:
        entry = build.post(build.owner, messages.Transfer, to=build.workers[0].account, amount=CREDIT, memo=memo)
        build.move("transfer", build.owner.account, build.workers[0].account, CREDIT, reason=memo, entry=entry.id)
        entries.append(entry.id)
    build.seal_block()
    page = browser(360, "light")
    with serving(build.write(tmp_path / "ledger.db")) as address:
        for path in ("/", "/events", "/block/1", f"/account/{build.owner.account}", *(f"/entry/{e}" for e in entries)):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
            assert page.evaluate("document.querySelectorAll('main svg[onload], main img, main script').length") == 0
            if path in ("/events", "/block/1"):
                for memo in HOSTILE:
                    assert memo in page.inner_text("main"), memo
    assert page.troubles == []


def test_a_page_needs_no_other_host(browser: OpenPage, url: str) -> None:
    page: Any = browser(1280, "light")
    page.goto(url)
    refused = page.evaluate("fetch('http://192.0.2.1/').then(() => 'answered', () => 'refused')")
    assert refused == "refused"
    assert any("Content Security Policy" in trouble for trouble in page.troubles)
