"""The explorer's process and a real browser for it, for tests: pages of any width, every trouble collected.

Needs a system Chromium; ``GDF_NO_BROWSER=1`` skips what uses this on machines that cannot have one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHOTS = ROOT / "artifacts" / "explorer"  # screenshots that people look at
AXE = Path(__file__).parent / "e2e" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
DEMANDED = "GDF_EXPLORER"  # set by `make test-explorer`: all looks of all pages, with screenshots
AXE_DEMANDED = "GDF_AXE"  # set by it where npm is installed: axe must then be there
WAIT_MS = 60_000  # of a browser on a busy machine

no_browser = pytest.mark.skipif(os.environ.get("GDF_NO_BROWSER") == "1", reason="GDF_NO_BROWSER=1")

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


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """Yield the address of an explorer process over a ledger file."""
    command = [sys.executable, "-m", "ledger.explorer", "--db", str(path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/")
        finally:
            process.terminate()


def failed(page: Any, request: Any) -> None:
    """Note a request that failed; one that leaving the page cut off is none."""
    if request.failure != "net::ERR_ABORTED":
        page.troubles.append(f"{request.url}: {request.failure}")


OpenPage = Callable[..., Any]


@contextlib.contextmanager
def browsing() -> Iterator[OpenPage]:
    """Yield a function that opens a page of given width and colour scheme; every trouble it meets is collected."""
    from playwright.sync_api import sync_playwright

    executable = browser_path()
    with sync_playwright() as driver:
        # the driver gives it a fresh user-data-dir and removes it afterwards
        chromium = driver.chromium.launch(executable_path=executable, args=ARGS)

        def open_page(width: int, scheme: str, scripts: bool = True, scale: int = 1) -> Any:
            context = chromium.new_context(
                viewport={"width": width, "height": 800},
                color_scheme=scheme,
                java_script_enabled=scripts,
                device_scale_factor=scale,
            )
            context.set_default_timeout(WAIT_MS)
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


def axe_source() -> str:
    """Return axe-core's script; skips, or fails if it was asked for, where npm has not fetched it."""
    if AXE.is_file():
        return AXE.read_text(encoding="utf-8")
    reason = "axe-core is not installed; `make test-explorer` does it (npm is needed)"
    if os.environ.get(AXE_DEMANDED):
        pytest.fail(reason)
    pytest.skip(reason)


def barriers(page: Any, source: str) -> list[str]:
    """Return what axe finds serious or critical on a page, each with the elements concerned."""
    page.evaluate(f"{source}; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)")
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:120]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
