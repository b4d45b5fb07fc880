"""The explorer's process, looked at with a real browser: light, dark, narrow, without scripts, and while it is hostile.

Needs a system Chromium; ``GDF_NO_BROWSER=1`` skips this file on machines that cannot have one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.explorer_ledger import Example, build_example

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.environ.get("GDF_NO_BROWSER") == "1", reason="GDF_NO_BROWSER=1"),
]

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# What axe's most frequent findings are about: names, labels, landmarks, headings, tables, contrast.
AUDIT = """() => {
  const faults = [];
  const visible = (e) => e.getClientRects().length && getComputedStyle(e).visibility !== 'hidden';
  const name = (e) => (e.getAttribute('aria-label') || e.textContent || e.title || '').trim()
    || [...e.querySelectorAll('img')].map((i) => i.alt).join('');
  if (!document.documentElement.lang) faults.push('html has no lang');
  for (const tag of ['main', 'header', 'footer', 'h1'])
    if (document.querySelectorAll(tag).length !== 1) faults.push(`not one ${tag}`);
  for (const e of document.querySelectorAll('a, button')) if (!name(e)) faults.push('no name: ' + e.outerHTML);
  for (const e of document.querySelectorAll('input')) if (!e.labels.length) faults.push('no label: ' + e.outerHTML);
  for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) faults.push('no alt');
  for (const e of document.querySelectorAll('svg'))
    if (e.getAttribute('role') === 'img' ? !name(e) : e.getAttribute('aria-hidden') !== 'true')
      faults.push('unnamed svg');
  for (const e of document.querySelectorAll('table'))
    if (!e.caption || !e.querySelector('th')) faults.push('table without caption or headings');
  for (const e of document.querySelectorAll('nav, section'))
    if (!e.getAttribute('aria-label') && !document.getElementById(e.getAttribute('aria-labelledby')))
      faults.push('unnamed landmark: ' + e.outerHTML.slice(0, 80));
  let last = 0;
  for (const e of document.querySelectorAll('h1, h2, h3')) {
    const level = Number(e.tagName[1]);
    if (level > last + 1) faults.push('heading skips a level: ' + e.textContent);
    last = level;
  }
  for (const e of document.querySelectorAll('pre')) if (e.tabIndex < 0) faults.push('pre cannot be focused');
  const channel = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !visible(e) || e.closest('svg, script')) continue;
    const [a, b] = [parse(getComputedStyle(e).color), behind(e)].map(luminance).sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) faults.push(`${wide} px wider than the window`);
  return faults;
}"""


def browser_path() -> str:
    """Return the system's Chromium; fails with what to install."""
    found = os.environ.get("GDF_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.fail(
            "no browser: install Chromium (Debian: apt-get install chromium; macOS: brew install chromium), "
            "name one with GDF_CHROMIUM, or leave these tests out with GDF_NO_BROWSER=1"
        )
    return found


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return build_example(tmp_path_factory.mktemp("browser") / "ledger.db")


@pytest.fixture(scope="module")
def url(example: Example) -> Iterator[str]:
    """Yield the address of an explorer process."""
    command = [sys.executable, "-m", "ledger.explorer", "--db", str(example.path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/")
        finally:
            process.terminate()


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


def failed(page: Any, request: Any) -> None:
    """Note a request that failed; one that leaving the page cut off is none."""
    if request.failure != "net::ERR_ABORTED":
        page.troubles.append(f"{request.url}: {request.failure}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a function that opens a page of given width and colour scheme; every trouble it meets is collected."""
    from playwright.sync_api import sync_playwright

    executable = browser_path()
    with sync_playwright() as driver:
        # the driver gives it a fresh user-data-dir and removes it afterwards
        chromium = driver.chromium.launch(executable_path=executable, args=ARGS)

        def open_page(width: int, scheme: str, scripts: bool = True) -> Any:
            context = chromium.new_context(
                viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=scripts
            )
            page = context.new_page()
            page.troubles, page.asked = [], []
            page.on("console", lambda message: page.troubles.append(message.text))
            page.on("pageerror", lambda error: page.troubles.append(str(error)))
            page.on("dialog", lambda dialog: page.troubles.append("dialog " + dialog.message))
            page.on("requestfailed", lambda request: failed(page, request))
            page.on("request", lambda request: page.asked.append(request.url))
            return page

        yield open_page
        chromium.close()


def paths(example: Example) -> list[str]:
    account = example.build.workers[1].account
    job = example.running_job
    return [
        *("/", "/jobs", "/accounts", "/blocks", "/events", "/search?q=nothing"),
        *(f"/job/{job}", f"/job/{job}/round/5", f"/unit/{job}/5/2", f"/unit/{example.done_job}/1/3"),
        *(f"/account/{account}", "/block/7", f"/entry/{example.transfer}", f"/entry/{example.altered}"),
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_pages_are_readable(browser: Any, url: str, example: Example, width: int, scheme: str) -> None:
    page = browser(width, scheme)
    faults = {}
    for path in paths(example):
        page.goto(url + path)
        if found := page.evaluate(AUDIT):
            faults[path] = found
    assert faults == {}
    assert page.troubles == []  # among them: anything the Content-Security-Policy stopped, any alert() that ran
    assert all(asked.startswith(url) for asked in page.asked)


def test_the_audit_itself_notices(browser: Any, url: str) -> None:
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


def test_a_person_finds_the_way_without_scripts(browser: Any, url: str, example: Example) -> None:
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
    page.goto(f"{url}/nope")
    assert "Not in this ledger" in page.inner_text("h1")


def test_keyboard_reaches_the_content_first(browser: Any, url: str) -> None:
    page = browser(1280, "light")
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#content")


def test_overview_refreshes_itself(browser: Any, url: str) -> None:
    page = browser(1280, "light")
    page.goto(url)
    page.evaluate("document.querySelector('[data-live] h1').textContent = 'old'")
    page.get_by_role("heading", name="Overview", level=1).wait_for(timeout=20_000)
    assert page.troubles == []
