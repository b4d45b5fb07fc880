"""Decoders of the ledger: messages, entries, blocks, certificates, proofs, exports, snapshots, and a live replica."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from contracts.block import BlockContext, apply_block, check_entry
from contracts.records import Genesis, Staking
from contracts.state import genesis_state, network_id
from gdf_market import identity, merkle, vrf
from gdf_market.codec import decode, encode
from gdf_market.errors import PeerError, UserError, VerificationFailedError
from gdf_market.identity import Identity
from gdf_market.messages import EntryBody, open_entry
from gdf_market.statements import SignedHeader, Statement, Vote, is_equivocation, verify_statement
from ledger import proof, wire
from ledger.block import NOTAR, SKIP, Certificate, Proposal, cast, open_block, open_header, verify_certificate
from ledger.effects import Misbehaved, PeerUp, Received, Started
from ledger.export import _Replay, export, genesis_of, open_first, open_item
from ledger.handover import SignedLink, follow
from ledger.links import SetChain
from ledger.prove import prove_entry, prove_heads
from ledger.replica import Replica
from ledger.rules import MARKET
from ledger.serving import links_message, signed_links, snapshot_message
from ledger.snapshot import SnapshotSync
from tests.fuzz.draw import Draw, Run, Target, canonical, example
from tests.ledger_kit import Maker
from tests.simulator import START_MS, key, make_genesis

GENESIS = make_genesis(4, staking=Staking(epoch_blocks=3, bond=1_000_000), entry_fee=100)
NETWORK = network_id(GENESIS)
NOW = START_MS + 20_000
PEER = key(60).account
PEER_ERRORS = (PeerError,)


@dataclass(frozen=True)
class Samples:
    """Bytes of every kind, of one real ledger of eleven blocks."""

    messages: tuple[bytes, ...]
    blocks: tuple[bytes, ...]
    entries: tuple[bytes, ...]
    proofs: tuple[bytes, ...]
    export: bytes
    links: tuple[bytes, ...]
    pages: tuple[bytes, ...]


@functools.cache
def samples() -> Samples:
    """Return the samples, made once per process."""
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(Path(folder) / "ledger.sqlite", GENESIS)
        executed = [maker.block(maker.transfers(height % 4), final=height % 5 != 0) for height in range(1, 12)]
        export(maker.store, Path(folder) / "ledger.export")
        links = [encode(link) for link in signed_links(maker.store, 0)]
        pages = [snapshot_message(maker.store, "", 0)]
        entry_ids = [entry.id for each in executed[:3] for entry in each.entries[:1]]
        proofs = [*(prove_entry(maker.store, each) for each in entry_ids), prove_heads(maker.store, 2, 8)]
        certificate = encode(maker.certificate(executed[-1]))
        sync = maker.store.sync_messages(1)
        content = (Path(folder) / "ledger.export").read_bytes()
        served = links_message(maker.store, 0)
        maker.store.close()
    blocks = tuple(each.block.raw for each in executed)
    entries = tuple(entry.raw for each in executed for entry in each.entries)
    votes = [encode(cast(key(2), NETWORK, 0, kind, 3, hash_)) for kind, hash_ in ((SKIP, ""), (NOTAR, "11" * 32))]
    others = [canonical(example(kind)) for kind in get_args(wire.AnyMessage)]
    messages = (*blocks, *votes, certificate, *sync, *wire.batches(entries), served, *pages, *others)
    return Samples(messages, blocks, entries, tuple(proofs), content, tuple(links), tuple(pages))


def reading(read: Callable[[bytes], object], given: Callable[[], Sequence[bytes]]) -> Callable[[], Run]:
    """Return the preparation of a decoder that needs nothing but bytes."""

    def prepare() -> Run:
        inputs = given()
        return lambda draw: _ignore(read(draw.bytes_like(inputs)))

    return prepare


def _ignore(value: object) -> None:
    """A decoder's result is of no interest."""


# ---- messages


def read_header(data: bytes) -> None:
    open_header(data, NETWORK)


def header_samples() -> list[bytes]:
    return [_header_of(block) for block in samples().blocks]


def read_block(data: bytes) -> None:
    """Open a proposal down to its entries."""
    message = wire.read(data)
    if isinstance(message, Proposal):
        block = open_block(message, NETWORK)
        for raw in block.entries:
            open_entry(raw, NETWORK)


def read_certificate(data: bytes) -> None:
    message = wire.read(data)
    if isinstance(message, Certificate):
        verify_certificate(message, NETWORK, GENESIS.validators, message.epoch)


def prepare_replica() -> Run:
    """A live validator gets everything that a peer can send; what it does not raise is what counts."""
    inputs = samples().messages
    replica = Replica(GENESIS, key(1), None, rules=MARKET)
    replica.step(Started(), NOW)
    replica.step(PeerUp(PEER), NOW)

    def run(draw: Draw) -> None:
        data = draw.bytes_like(inputs) if draw.random() < 0.8 else _signed(draw)
        effects = replica.step(Received(PEER, data), NOW + draw.randrange(60_000))
        for effect in effects:
            if isinstance(effect, Misbehaved):
                raise effect.error

    return run


def _signed(draw: Draw) -> bytes:
    """Return a vote or a header that a validator signed, with drawn fields."""
    voter = key(draw.randint(1, 4))
    slot, epoch = draw.choice((0, 1, 2, 3, 64, 65, 2**53 - 1)), draw.choice((0, 0, 0, 1, 2**53 - 1))
    if draw.random() < 0.5:
        kind = draw.choice(("notar", "skip", "final"))
        return encode(cast(voter, NETWORK, epoch, kind, slot, "" if kind == SKIP else draw.choice(("11", "22")) * 32))
    header = json.loads(msgspec.json.encode(open_header(_header_of(draw.choice(samples().blocks)), NETWORK)))
    header = {**header, **draw.fields(header), "slot": slot, "epoch": epoch, "proposer": voter.account}
    data = canonical(header)
    signature = voter.sign(NETWORK, "block", data).hex()
    return canonical({"type": "proposal", "header": header, "sig": signature, "entries": []})


def _header_of(block: bytes) -> bytes:
    return bytes(msgspec.json.decode(block, type=Proposal).header)


def prepare_statements() -> Run:
    pairs = [canonical(example(kind)) for kind in (Vote, SignedHeader)]

    def run(draw: Draw) -> None:
        read = [_statement(draw, pairs) for _ in range(2)]
        for each in read:
            verify_statement(each, NETWORK)
        assert is_equivocation(read[0], read[1]) == is_equivocation(read[1], read[0])

    return run


def _statement(draw: Draw, samples: list[bytes]) -> Statement:
    data = signed_statement(draw) if draw.random() < 0.7 else draw.bytes_like([*samples, signed_statement(draw)])
    statement: Statement = decode(data, Statement)  # type: ignore[arg-type]
    return statement


def signed_statement(draw: Draw) -> bytes:
    """Return a vote or a header without entries that a validator signed."""
    data = _signed(draw)
    value = json.loads(data)
    if value["type"] == "vote":
        return data
    return canonical({"type": "header", "header": value["header"], "sig": value["sig"]})


# ---- entries


@functools.cache
def entry_bodies() -> tuple[dict[str, Any], ...]:
    """Return a valid body of every kind, as JSON would hold it."""
    return tuple(example(kind) for kind in get_args(EntryBody))


def entry_samples() -> tuple[bytes, ...]:
    bodies = [canonical(body) for body in entry_bodies()]
    return (*samples().entries, *(b'{"body":' + body + b',"sig":"' + b"5a" * 64 + b'"}' for body in bodies))


def prepare_rules() -> Run:
    """Entries that are signed but otherwise drawn meet the rules; accepted ones change the state, and credits stay."""
    state = genesis_state(GENESIS)
    authors = [*(key(1 + index) for index in range(4)), *(key(101 + index) for index in range(4))]
    height, time_ms = 0, NOW

    def run(draw: Draw) -> None:
        nonlocal state, height, time_ms
        author = draw.choice(authors)
        raw = _sealed(draw, author, time_ms)
        entry = open_entry(raw, NETWORK)
        check_entry(state, entry, time_ms)
        height, time_ms = height + 1, time_ms + draw.choice((1, 1_000, 60_000))
        context = BlockContext(height=height, time_ms=time_ms, beacon="5a" * 32, proposer=key(1).account)
        state = apply_block(state, [entry], context).state
        assert state.supply_check() == state.network().supply

    return run


def _sealed(draw: Draw, author: Identity, time_ms: int) -> bytes:
    body = dict(draw.choice(entry_bodies()))
    if body["kind"] == "evidence":
        body |= {"first": json.loads(signed_statement(draw)), "second": json.loads(signed_statement(draw))}
    elif draw.random() < 0.7:
        body = draw.altered(body)
    if isinstance(body, dict):
        body |= {"author": author.account, "nonce": draw.randrange(2**40), "expires_ms": time_ms + 1_800_000}
        if "to" in body:
            body["to"] = key(101).account
    data = canonical(body)
    return b'{"body":' + data + b',"sig":"' + author.sign(NETWORK, "entry", data).hex().encode() + b'"}'


# ---- files


def check_proof(data: bytes) -> None:
    """No other bytes than the proof itself are a proof."""
    verdict = proof.check(data, NETWORK)
    assert not verdict.holds or data in samples().proofs, "an altered proof holds"


def prepare_export_lines() -> Run:
    lines = samples().export.splitlines()

    def run(draw: Draw) -> None:
        line = draw.bytes_like(lines)
        open_item(line) if draw.random() < 0.7 else open_first(line, MARKET)

    return run


def prepare_export() -> Run:
    whole = samples().export

    def run(draw: Draw) -> None:
        data = draw.bytes_like([whole]) if draw.random() < 0.3 else _line_altered(draw, whole)
        genesis_of(io.BytesIO(data))
        _Replay(MARKET, None).run(io.BytesIO(data))
        assert data == whole, "an altered export verifies"

    return run


def _line_altered(draw: Draw, whole: bytes) -> bytes:
    lines = whole.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    lines[place] = draw.bytes_like([lines[place][:-1]]) + b"\n"
    return b"".join(lines)


def read_genesis(data: bytes) -> None:
    genesis_state(decode(data, Genesis, max_bytes=1 << 20))


# ---- snapshots


def prepare_links() -> Run:
    links = samples().links

    def run(draw: Draw) -> None:
        chain = SetChain(GENESIS, NETWORK)
        for raw in links[: draw.randrange(2)]:
            follow(chain, decode(raw, SignedLink), NETWORK)
        follow(chain, decode(draw.bytes_like(links), SignedLink), NETWORK)

    return run


def prepare_pages() -> Run:
    pages, served = samples().pages, [decode(raw, SignedLink) for raw in samples().links]

    def run(draw: Draw) -> None:
        message = wire.read(draw.bytes_like(pages))
        if isinstance(message, wire.SnapshotPage):
            sync = SnapshotSync(GENESIS, NETWORK, MARKET)
            sync.offer(PEER, 9, NOW)
            sync.request(NOW)
            sync.on_links(PEER, 0, served, NOW)
            sync.on_page(PEER, message, NOW)

    return run


# ---- kernel


def run_vrf(draw: Draw) -> None:
    seed = bytes(31) + b"\1"
    sample = vrf.prove(seed, b"alpha") if draw.random() < 0.3 else draw.randbytes(80)
    public = identity.public_key(key(1).account) if draw.random() < 0.5 else draw.randbytes(32)
    vrf.verify(public, b"alpha", draw.bytes_like([sample]))


def run_merkle(draw: Draw) -> None:
    path = [draw.randbytes(draw.choice((32, 32, 31, 0))) for _ in range(draw.randrange(6))]
    size, index = draw.choice((0, 1, 2, 7, 2**40)), draw.choice((-1, 0, 1, 5, 2**40))
    root = draw.randbytes(32)
    if draw.random() < 0.5:
        merkle.verify_inclusion(b"leaf", index, size, path, root)
    else:
        merkle.verify_consistency(index, size, draw.randbytes(32), root, path)


def run_account(draw: Draw) -> None:
    text = draw.bytes_like([key(1).account.encode(), key(2).account.encode()]).decode("utf-8", "replace")
    identity.public_key(text)


TARGETS = (
    Target("wire message", reading(wire.read, lambda: samples().messages), PEER_ERRORS, 4.0),
    Target("replica", prepare_replica, PEER_ERRORS, 3.0),
    Target("entry", reading(lambda data: open_entry(data, NETWORK), entry_samples), PEER_ERRORS, 2.0),
    Target("entry against the rules", prepare_rules, PEER_ERRORS, 2.0),
    Target(
        "header",
        reading(lambda data: open_header(data, NETWORK), lambda: [*map(_header_of, samples().blocks)]),
        PEER_ERRORS,
    ),
    Target("block", reading(read_block, lambda: samples().blocks), PEER_ERRORS, 2.0),
    Target("certificate", reading(read_certificate, lambda: samples().messages), PEER_ERRORS),
    Target("statement", prepare_statements, PEER_ERRORS),
    Target("proof", reading(check_proof, lambda: samples().proofs), (), 1.0),
    Target("export line", prepare_export_lines, PEER_ERRORS),
    Target("export", prepare_export, (VerificationFailedError, PeerError), 0.05),
    Target("genesis", reading(read_genesis, lambda: [encode(GENESIS)]), (PeerError, UserError)),
    Target("link of sets", prepare_links, PEER_ERRORS, 0.5),
    Target("snapshot page", prepare_pages, PEER_ERRORS, 0.5),
    Target("VRF proof", lambda: run_vrf, PEER_ERRORS, 0.1),
    Target("Merkle path", lambda: run_merkle, PEER_ERRORS),
    Target("account id", lambda: run_account, PEER_ERRORS),
)
