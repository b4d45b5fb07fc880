"""Proofs checked by JavaScript in a real browser: the verdicts of the program itself, for true and altered proofs."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gdf_market import identity
from gdf_market.codec import encode
from ledger.proof import EntryProof, check, read, to_bytes
from ledger.prove import prove_entry, prove_heads
from tests.browser_kit import AUDIT, OpenPage, browsing, no_browser, serving
from tests.explorer_ledger import Example, build_example
from tests.ledger_kit import Maker, make_epochs

pytestmark = [pytest.mark.e2e, no_browser]

STEPS = ["file", "genesis", "validators", "epochs", "headers", "certificate", "proposer", "inclusion", "entry"]
ALTERED = 300  # copies of a proof with one byte changed
# y of the points of small order and of their aliases beyond the field (libsodium's list), little-endian
SMALL_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)
FAILING = """async ([network, proofs]) => {
  const { check } = await import('/static/proof.js');
  const found = [];
  for (const text of proofs) {
    const data = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const verdict = await check(data, network);
    found.push(verdict.holds ? '' : verdict.steps.at(-1).name);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    made = make_epochs(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    made.store.close()
    return made


@pytest.fixture(scope="module")
def url(maker: Maker) -> Iterator[str]:
    with serving(maker.path) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[OpenPage]:
    with browsing() as open_page:
        yield open_page


@pytest.fixture
def page(browser: OpenPage) -> Any:
    return browser(1280, "light")


def entry_at(maker: Maker, height: int, position: int = 0) -> str:
    return maker.store.block_entries(height)[position].id


def result(page: Any) -> list[tuple[str, bool]]:
    """Return the steps that a page shows once it is done."""
    page.wait_for_selector(".result.good, .result.bad")
    lines = page.locator("[data-verify] .checks li").all()
    return [(line.get_attribute("data-step"), line.get_attribute("data-ok") == "true") for line in lines]


def verify(page: Any, network: str) -> list[tuple[str, bool]]:
    page.get_by_label("Network id").fill(network)
    page.get_by_role("button", name="Check").click()
    return result(page)


def failing_steps(page: Any, network: str, proofs: list[bytes]) -> list[str]:
    """Return the step at which the browser's check of each proof ends, "" for those that hold."""
    found: list[str] = page.evaluate(FAILING, [network, [base64.b64encode(proof).decode() for proof in proofs]])
    return found


def expected_step(data: bytes, network: str) -> str:
    verdict = check(data, network)
    return "" if verdict.holds else verdict.steps[-1].name


# ---- what is true


@pytest.mark.parametrize("height", [1, 7, 8, 18])
def test_an_entry_is_verified_on_its_page(page: Any, url: str, maker: Maker, height: int) -> None:
    page.goto(f"{url}/entry/{entry_at(maker, height)}")
    assert verify(page, f" {maker.network.upper()} ") == [(name, True) for name in STEPS]
    assert "Everything holds" in page.inner_text(".result")
    assert page.evaluate(AUDIT) == []
    assert page.troubles == []
    assert all(asked.startswith(url) for asked in page.asked)
    page.goto(f"{url}/entry/{entry_at(maker, 5)}")
    assert page.get_by_label("Network id").input_value() == maker.network  # what the visitor named, for this tab


def test_what_is_downloaded_is_what_was_checked(page: Any, url: str, maker: Maker, tmp_path: Path) -> None:
    name = entry_at(maker, 18, 2)
    page.goto(f"{url}/entry/{name}")
    with page.expect_download() as download:
        page.get_by_role("link", name="download the proof").click()
    assert download.value.suggested_filename == f"{name[:16]}.proof"
    download.value.save_as(tmp_path / "paid.proof")
    assert (tmp_path / "paid.proof").read_bytes() == prove_entry(maker.store, name)
    page.goto(f"{url}/verify")
    page.get_by_label("Proof", exact=True).set_input_files(tmp_path / "paid.proof")
    assert verify(page, maker.network) == [(step, True) for step in STEPS]


def test_heads_are_verified_as_well(page: Any, url: str, maker: Maker) -> None:
    page.goto(url)
    pairs = [(1, 3), (1, 19), (5, 9), (8, 8), (12, 13), (16, 19), (2, 18)]
    proofs = [prove_heads(maker.store, *pair) for pair in pairs]
    assert failing_steps(page, maker.network, proofs) == [""] * len(proofs)


def test_all_entries_of_a_unit_are_verified(page: Any, tmp_path: Path) -> None:
    example: Example = build_example(tmp_path / "ledger.db")
    with serving(example.path) as address:
        page.goto(f"{address}/unit/{example.done_job}/1/3")
        count = page.locator("[data-verify] a[data-entry]").count()
        assert count >= 5
        page.get_by_label("Network id").fill(example.build.network)
        page.get_by_role("button", name="Check").click()
        page.wait_for_selector(".result.good, .result.bad")
        assert "Everything holds" in page.inner_text(".result")
        assert page.locator("[data-verify] li.whole[data-ok=true]").count() == count
        assert page.troubles == []


# ---- what is not


def test_the_network_must_be_the_one_that_was_named(page: Any, url: str, maker: Maker) -> None:
    page.goto(f"{url}/entry/{entry_at(maker, 5)}")
    assert verify(page, "ab" * 32) == [("file", True), ("genesis", False)]
    assert "does not hold" in page.inner_text(".result")
    assert maker.network in page.inner_text("[data-verify] .checks li:last-child")
    colour = page.evaluate(
        "getComputedStyle(document.querySelector('[data-verify] .checks li:last-child .chip')).color"
    )
    assert colour == page.evaluate("getComputedStyle(document.querySelector('.result.bad')).color")
    page.get_by_label("Network id").fill("not an id")
    page.get_by_role("button", name="Check").click()
    assert "64 hex digits" in page.inner_text(".result")
    assert page.locator("[data-verify] .checks li").count() == 0


@pytest.mark.parametrize(
    ("step", "old", "new"),
    [
        ("file", b'"position":', b'"positiom":'),
        ("genesis", b'"test_network":true', b'"test_network":false'),
        ("epochs", b'"certificate":{"epoch":0', b'"certificate":{"epoch":1'),
        ("inclusion", b'"position":0', b'"position":1'),
    ],
)
def test_bytes_altered_on_the_way_are_shown_at_their_step(
    page: Any, url: str, maker: Maker, step: str, old: bytes, new: bytes
) -> None:
    name = entry_at(maker, 18)
    proof = prove_entry(maker.store, name)
    at = proof.index(b'"links":') if step == "epochs" else 0
    altered = proof[:at] + proof[at:].replace(old, new, 1)
    assert altered != proof
    page.route(f"**/proof/{name}", lambda route: route.fulfill(status=200, body=altered))
    page.goto(f"{url}/entry/{name}")
    shown = verify(page, maker.network)
    assert shown == [(each, True) for each in STEPS[: STEPS.index(step)]] + [(step, False)]
    assert expected_step(altered, maker.network) == step


def test_another_entrys_proof_is_not_this_ones(page: Any, url: str, maker: Maker) -> None:
    name, other = entry_at(maker, 18), entry_at(maker, 18, 1)
    proof = prove_entry(maker.store, other)
    page.route(f"**/proof/{name}", lambda route: route.fulfill(status=200, body=proof))
    page.goto(f"{url}/entry/{name}")
    shown = verify(page, maker.network)
    assert shown == [*((step, True) for step in STEPS), ("entry", False)]
    assert other in page.inner_text("[data-verify] .checks li:last-child")


def test_an_entry_that_cannot_be_proven_says_why(page: Any, tmp_path: Path) -> None:
    example = build_example(tmp_path / "ledger.db")
    with serving(example.path) as address:
        page.goto(f"{address}/entry/{example.altered}")
        assert verify(page, example.build.network) == [("fetch", False)]
        assert "is damaged" in page.inner_text("[data-verify] .checks")


def test_the_browser_and_the_program_agree_on_altered_bytes(page: Any, url: str, maker: Maker) -> None:
    page.goto(url)
    rng = random.Random(7)
    proofs = []
    for proof in (prove_entry(maker.store, entry_at(maker, 18)), prove_heads(maker.store, 7, 10)):
        for _ in range(ALTERED // 2):
            at = rng.randrange(len(proof))
            same_kind = b"0123456789abcdef" if proof[at : at + 1] in b"0123456789abcdef" else bytes(range(32, 127))
            proofs.append(proof[:at] + bytes([rng.choice(same_kind)]) + proof[at + 1 :])
    proofs += [proofs[0][:-1], proofs[0] + b"\n", b"", b"\n", b"{}\n", b"[" * 60_000 + b"\n", b"\xff\n"]
    for data, found in zip(proofs, failing_steps(page, maker.network, proofs), strict=True):
        expected = expected_step(data, maker.network)
        # the browser reads the file as a whole: what is not canonical within an entry or a header is noticed there
        assert found == expected or (found == "file" and not is_canonical(data)), (found, expected)


def is_canonical(data: bytes) -> bool:
    return encode(json.loads(data)) + b"\n" == data


def test_the_browser_and_the_program_agree_on_exchanged_parts(page: Any, url: str, maker: Maker) -> None:
    page.goto(url)
    proof, other = (read(prove_entry(maker.store, entry_at(maker, height))) for height in (18, 7))
    assert isinstance(proof, EntryProof)
    assert isinstance(other, EntryProof)
    certificate = proof.certificate
    replace = msgspec.structs.replace
    changes: list[dict[str, Any]] = [
        {"links": proof.links[:-1]},
        {"links": (*proof.links[:2], *proof.links[3:])},
        {"links": (replace(proof.links[0], validators=()), *proof.links[1:])},
        {"links": (replace(proof.links[1], validators=other.genesis.validators), *proof.links[2:])},
        {"certificate": other.certificate},
        {"certificate": replace(certificate, signers=certificate.signers[:-1], sigs=certificate.sigs[:-1])},
        {"certificate": replace(certificate, signers=certificate.signers[::-1])},
        {"certificate": replace(certificate, sigs=certificate.sigs[::-1])},
        {"header": other.header},
        {"descendants": ()},
        {"descendants": (*proof.descendants, *proof.descendants)},
        {"sig": other.sig},
        {"entry": other.entry},
        {"path": proof.path[:-1]},
        {"path": (*proof.path, "00" * 32)},
        {"position": proof.position + 1},
    ]
    proofs = [to_bytes(replace(proof, **change)) for change in changes]
    expected = [expected_step(data, maker.network) for data in proofs]
    assert "" not in expected
    assert {"epochs", "certificate", "headers", "proposer", "inclusion"} <= set(expected)
    assert failing_steps(page, maker.network, proofs) == expected


# ---- its parts


def test_keys_of_small_order_are_refused(page: Any, url: str) -> None:
    page.goto(url)
    code = """async (accounts) => {
      const { publicKey } = await import('/static/canonical.js');
      return Promise.all(accounts.map((each) => publicKey(each).then(() => '', (error) => error.message)));
    }"""
    flipped = [bytes.fromhex(y)[:31] + bytes([bytes.fromhex(y)[31] | 0x80]) for y in SMALL_ORDER]
    bad = [identity.account_id(raw) for raw in (*map(bytes.fromhex, SMALL_ORDER), *flipped)]
    good = [identity.Identity(bytes([number]) * 32).account for number in range(8)]
    assert all("small order" in why for why in page.evaluate(code, bad))
    assert page.evaluate(code, good) == [""] * len(good)
    for wrong in (good[0][:-1], good[0] + "1", "12D3KooW" + "1" * 44, "12D3KooW" + "z" * 44, good[0].replace("K", "0")):
        assert "no account id" in page.evaluate(code, [wrong])[0]


def test_canonical_text_is_the_same(page: Any, url: str) -> None:
    page.goto(url)
    values: list[Any] = [
        {"b": 1, "a": [True, False, None], "__proto__": {"z": -1, "y": 2**53 - 1}, "1": 0, "0": 1},
        {"text": "".join(map(chr, range(160))) + '\u2028\u2029\ufeffé漢😀"\\/'},
        [[], {}, "", 0, -(2**53) + 1],
    ]
    code = "async (texts) => { const { canonical } = await import('/static/canonical.js');"
    code += " return texts.map((text) => canonical(JSON.parse(text))); }"
    assert page.evaluate(code, [json.dumps(each) for each in values]) == [encode(each).decode() for each in values]


def test_a_browser_without_ed25519_says_so(page: Any, url: str, maker: Maker) -> None:
    page.add_init_script("SubtleCrypto.prototype.importKey = () => Promise.reject(new DOMException('none'));")
    page.goto(f"{url}/entry/{entry_at(maker, 5)}")
    page.get_by_text("no Ed25519 in WebCrypto").wait_for()
    assert not page.get_by_role("button", name="Check").is_visible()
    assert "gdf-market ledger check" in page.inner_text("[data-verify]")
