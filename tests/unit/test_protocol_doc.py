"""docs/protocol.md names what is on the wire, and its examples are what this implementation reads and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from gdf_market.codec import encode
from gdf_market.errors import PeerError, SignatureError
from gdf_market.identity import Identity
from gdf_market.messages import JobPost, Recipe, open_entry, seal
from gdf_market.node.frames import DATA, HELLO, Hello, Voucher, check_voucher, frame, read_hello
from gdf_market.statements import Header
from ledger import wire
from ledger.block import Certificate, Proposal, genesis_beacon, open_block, verify_beacon, verify_certificate

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "wire.json").read_text(encoding="utf-8"))
DOC = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NETWORK, ACCOUNT = VECTORS["network"], VECTORS["account"]
KEY = Identity(bytes.fromhex(VECTORS["seed"]))


def table(first_cell: str) -> set[str]:
    """Return the names in the first column of the table with this head."""
    lines = DOC[DOC.index(f"| {first_cell} |") :].splitlines()[2:]
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def keys_of(pattern: str) -> set[str]:
    """Return the keys of the first object in the page that begins with ``pattern``."""
    begin = DOC.index(pattern)
    return set(re.findall(r'"(\w+)":', DOC[begin : DOC.index("}", begin)]))


@pytest.mark.parametrize(
    ("head", "record"), [("field of a job_post", JobPost), ("field of a recipe", Recipe), ("field of a header", Header)]
)
def test_every_field_is_documented(head: str, record: type[msgspec.Struct]) -> None:
    kind = {"kind"} if record is JobPost else set()
    assert table(head) == set(record.__struct_fields__) | kind


@pytest.mark.parametrize(
    ("begin", "record", "tag"),
    [
        ('{"account":"12D3KooW', Hello, set()),
        ('{"addresses":[…],"expires_ms":…,"peer":"12D3KooW…","sig"', Voucher, set()),
        ('{"entries":[ENVELOPE,…],"header"', Proposal, {"type"}),
        ('{"epoch":e,"hash":"<64 hex>","kind":"final","signers"', Certificate, {"type"}),
        ('{"block":PROPOSAL', wire.SyncBlock, set()),
        ('{"blocks":[SYNC_BLOCK', wire.SyncResponse, {"type"}),
    ],
)
def test_every_record_is_documented(begin: str, record: type[msgspec.Struct], tag: set[str]) -> None:
    assert keys_of(begin) == set(record.__struct_fields__) | tag


def test_every_message_of_the_ledger_is_documented() -> None:
    tags = {kind.__struct_config__.tag for kind in wire.AnyMessage.__args__}
    assert table("type") == tags


def test_the_order_is_what_its_author_signs_and_others_read() -> None:
    raw = VECTORS["order"].encode()
    entry = open_entry(raw, NETWORK)
    assert entry.id == VECTORS["order_id"]
    assert isinstance(entry.body, JobPost)
    assert seal(KEY, NETWORK, entry.body).raw == raw
    assert f"one line, {len(raw):,} bytes" in DOC
    assert entry.id in DOC
    with pytest.raises(SignatureError):
        open_entry(raw.replace(b"Tiny", b"Huge"), NETWORK)


def test_the_hello_and_its_voucher_are_read_and_written_so() -> None:
    raw = VECTORS["hello"].encode()
    hello = read_hello(raw, NETWORK, ACCOUNT)
    assert hello.bulk is not None
    assert check_voucher(hello.bulk, NETWORK, ACCOUNT, now_ms=0) is not None
    assert encode(hello) == raw
    assert frame(HELLO, raw)[:5].hex() == VECTORS["hello_frame_head"]


def test_the_frame_in_the_page_is_the_one_that_is_written() -> None:
    payload = encode(wire.SyncRequest(height=1))
    packed = frame(DATA, payload)
    assert payload.decode() == VECTORS["sync_request"]
    assert packed.hex() == VECTORS["sync_request_frame"]
    shown = re.search(r"^00 00 00 23 .*$", DOC, re.MULTILINE)
    assert shown is not None
    assert bytes.fromhex(shown.group().replace(" ", "")) == packed


def test_the_block_and_its_certificate_verify() -> None:
    message = wire.read(VECTORS["sync_response"].encode())
    assert isinstance(message, wire.SyncResponse)
    item = message.blocks[0]
    block = open_block(item.block, NETWORK, ACCOUNT)
    assert block.hash == VECTORS["block_hash"]
    assert item.certificate is not None
    verify_certificate(item.certificate, NETWORK, (ACCOUNT,), 0)
    verify_beacon(block.header, genesis_beacon(NETWORK))
    assert open_entry(block.entries[0], NETWORK).id == VECTORS["order_id"]
    with pytest.raises(PeerError):
        verify_certificate(item.certificate, "cd" * 32, (ACCOUNT,), 0)


def test_the_covered_bytes_in_the_page_are_those_of_the_domain() -> None:
    domain = b"gdf-market/1\0" + NETWORK.encode() + b"\0entry\0"
    first, _, last, body = re.findall(r"^((?:[0-9a-f]{2} )+)", DOC, re.MULTILINE)[:4]
    assert domain.startswith(bytes.fromhex(first))
    assert domain.endswith(bytes.fromhex(last))
    assert VECTORS["order"].encode()[8:].startswith(bytes.fromhex(body))
