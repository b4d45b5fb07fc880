"""Sealed entries: every altered byte is refused, and signatures do not travel between networks, kinds or forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import nacl.signing
import pytest

from gdf_market import messages, vrf
from gdf_market.codec import encode, sha256
from gdf_market.errors import LocalError, MalformedError, OversizedError, PeerError, SignatureError, UsageError
from gdf_market.identity import Identity, account_id, public_key
from gdf_market.messages import (
    MAX_ENTRY_BYTES,
    Bid,
    EntryBody,
    Flag,
    Opening,
    Outcome,
    Receipt,
    Rejected,
    Result,
    SketchOpen,
    Transfer,
    open_entry,
    seal,
)

VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "entry.json").read_text("utf-8"))
NETWORK = "ab" * 32
KEY = Identity(b"\x05" * 32)
OTHER = Identity(b"\x06" * 32)
HASH = "0f" * 32


def transfer(**changes: Any) -> Transfer:
    fields: dict[str, Any] = {
        "author": KEY.account,
        "nonce": 7,
        "expires_ms": 1_700_000_000_000,
        "to": OTHER.account,
        "amount": 2_500_000,
        "memo": "für dich",
    }
    return Transfer(**(fields | changes))


def resign(body: bytes, key: Identity = KEY, network: str = NETWORK, kind: str = "entry") -> bytes:
    """Return an envelope over exact body bytes, as a dishonest author would make it."""
    return b'{"body":' + body + b',"sig":"' + key.sign(network, kind, body).hex().encode() + b'"}'


def test_round_trip_keeps_the_authors_bytes() -> None:
    entry = seal(KEY, NETWORK, transfer())
    assert open_entry(entry.raw, NETWORK) == entry
    assert entry.body == transfer()
    assert encode(entry.body) in entry.raw


def test_the_wire_form_is_the_published_one() -> None:
    """What another implementation must reproduce, computed here without the code under test where that is possible."""
    account, network, envelope = VECTOR["account"], VECTOR["network"], VECTOR["envelope"].encode()
    entry = open_entry(envelope, network)
    assert (entry.id, entry.body.author) == (VECTOR["id"], account)
    assert seal(Identity(bytes.fromhex(VECTOR["seed"])), network, entry.body).raw == envelope
    body = envelope[len(b'{"body":') : -len(b',"sig":""}') - 128]
    covered = b"gdf-market/1\0" + network.encode() + b"\0entry\0" + body
    signature = nacl.signing.SigningKey(bytes.fromhex(VECTOR["seed"])).sign(covered).signature
    assert envelope == b'{"body":' + body + b',"sig":"' + signature.hex().encode() + b'"}'
    assert sha256(b"gdf/entry\0" + len(body).to_bytes(8, "big") + body).hex() == VECTOR["id"]


def test_the_lottery_is_the_published_one() -> None:
    draw = VECTOR["lottery"]
    position = (draw["job"], draw["round"], draw["slot"], draw["seed"])
    assert messages.shard_alpha(*position).hex() == draw["shard_alpha"]
    assert messages.audit_alpha(*position).hex() == draw["audit_alpha"]
    key = public_key(VECTOR["account"])
    beta = vrf.verify(key, bytes.fromhex(draw["shard_alpha"]), bytes.fromhex(draw["proof"]))
    assert messages.draw(beta, 8) == draw["shard_of_8"]


def test_every_altered_byte_of_an_envelope_is_refused() -> None:
    raw = seal(KEY, NETWORK, transfer()).raw
    for position in range(len(raw)):
        for bits in (0x01, 0x20, 0x80):
            altered = bytearray(raw)
            altered[position] ^= bits
            with pytest.raises((MalformedError, SignatureError)):
                open_entry(bytes(altered), NETWORK)


def test_every_removed_and_every_inserted_byte_is_refused() -> None:
    raw = seal(KEY, NETWORK, transfer()).raw
    for position in range(len(raw)):
        with pytest.raises((MalformedError, SignatureError)):
            open_entry(raw[:position] + raw[position + 1 :], NETWORK)
        with pytest.raises((MalformedError, SignatureError)):
            open_entry(raw[:position] + b" " + raw[position:], NETWORK)
    with pytest.raises(MalformedError):
        open_entry(raw + b"\n", NETWORK)


def test_replay_on_another_network_is_refused() -> None:
    raw = seal(KEY, NETWORK, transfer()).raw
    with pytest.raises(SignatureError):
        open_entry(raw, "cd" * 32)


def test_a_signature_of_another_kind_is_refused() -> None:
    with pytest.raises(SignatureError):
        open_entry(resign(encode(transfer()), kind="vote"), NETWORK)


def test_a_body_under_another_tag_is_another_body() -> None:
    """The kind is inside the signed bytes: a withdrawal is no cancellation, though their fields agree."""
    body = encode(messages.JobCancel(author=KEY.account, nonce=1, expires_ms=1, job=HASH))
    raw = resign(body)
    assert isinstance(open_entry(raw, NETWORK).body, messages.JobCancel)
    with pytest.raises(SignatureError):
        open_entry(raw.replace(b'"job_cancel"', b'"bid_withdraw"'), NETWORK)


def test_a_signature_by_another_account_is_refused() -> None:
    with pytest.raises(SignatureError):
        open_entry(resign(encode(transfer()), key=OTHER), NETWORK)


def test_a_second_envelope_of_the_same_body_is_the_same_entry() -> None:
    entry = seal(KEY, NETWORK, transfer())
    forged = entry.raw[:-130] + b"00" * 64 + b'"}'
    assert open_entry(forged, NETWORK, check_signature=False).id == entry.id
    assert seal(KEY, NETWORK, transfer(nonce=8)).id != entry.id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"amount":2500000', b'"amount":2500000.0'),
        (b'"amount":2500000', b'"amount":0'),
        (b'"amount":2500000', b'"amount":-1'),
        (b'"amount":2500000', b'"amount":9007199254740992'),
        (b'"amount":2500000', b'"amount":2500000,"amount":2500000'),
        (b'"amount":2500000', b'"amount":2500000,"extra":1'),
        (b'"amount":2500000,', b""),
        (b'"amount":2500000', b'"amount": 2500000'),
        (b'"kind":"transfer"', b'"kind":"mint"'),
        (b'"kind":"transfer"', b'"kind":1'),
        (b'"kind":"transfer",', b""),
        (b'"memo":"f\xc3\xbcr', b'"memo":"f\\u00fcr'),
        (b'"nonce":7', b'"nonce":07'),
        (b'"author":"12D3', b'"author":"13D3'),
    ],
)
def test_bodies_that_are_not_canonical_are_refused_even_when_signed(old: bytes, new: bytes) -> None:
    body = encode(transfer())
    assert old in body
    with pytest.raises(MalformedError):
        open_entry(resign(body.replace(old, new)), NETWORK)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"null", b"1", b'"transfer"', b"[" * 15_000 + b"]" * 15_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000],
)
def test_signed_rubbish_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        open_entry(resign(body), NETWORK)


def test_an_author_of_small_order_is_refused() -> None:
    """Under such a key one signature would hold for every body."""
    weak = account_id(b"\x01" + bytes(31))
    raw = b'{"body":' + encode(transfer(author=weak)) + b',"sig":"' + b"01" + b"00" * 63 + b'"}'
    with pytest.raises(SignatureError, match="small order"):
        open_entry(raw, NETWORK)


def test_oversized_envelopes_are_refused_unread() -> None:
    with pytest.raises(OversizedError):
        open_entry(b"\xff" * (MAX_ENTRY_BYTES + 1), NETWORK)


def test_the_largest_result_fits_the_limit() -> None:
    """A round of 64 slots with the longest lists the schema allows still fits an entry."""
    slots = tuple(range(64))
    name = "twin-differs"
    outcome = Outcome(
        checkpoint=HASH,
        included=slots,
        rejected=tuple(Rejected(slot=slot, reason=name) for slot in slots),
        merit_ppm=(1_000_000,) * 64,
        cosine_ppm=(-1_000_000,) * 64,
        suspicion=slots,
        flags=tuple(Flag(slot=slot, other=63, reason=name, value_ppm=-(10**9)) for slot in slots),
    )
    body = Result(author=KEY.account, nonce=1, expires_ms=1, job=HASH, round=9_999, outcome=outcome, loss_e6=-1)
    assert len(seal(KEY, NETWORK, body).raw) < MAX_ENTRY_BYTES


def test_the_largest_opening_fits_the_limit() -> None:
    opening = Opening(step=999, sketch=(-(2**53 - 1),) * 32, path=(HASH,) * 16)
    body = SketchOpen(
        author=KEY.account,
        nonce=1,
        expires_ms=1,
        job=HASH,
        round=1,
        slot=63,
        openings=(opening,) * messages.MAX_OPENINGS,
    )
    assert len(seal(KEY, NETWORK, body).raw) < MAX_ENTRY_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": 0},
        {"amount": 1.5},
        {"amount": 2**53},
        {"memo": "x" * 201},
        {"to": "nobody"},
        {"nonce": -1},
        {"memo": 5},
    ],
)
def test_nothing_is_sealed_that_receivers_would_refuse(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        seal(KEY, NETWORK, transfer(**changes))


def test_one_signs_only_for_oneself() -> None:
    with pytest.raises(AssertionError):
        seal(OTHER, NETWORK, transfer())


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("units", 65),
        ("units", 0),
        ("device_class", ""),
        ("device_class", "CPU"),
        ("device_class", "x" * 33),
        ("price", 0),
    ],
)
def test_fields_hold_their_bounds(field: str, bad: object) -> None:
    good: dict[str, Any] = {"job": HASH, "price": 1, "units": 64, "device_class": "x" * 32}
    base: dict[str, Any] = {"author": KEY.account, "nonce": 0, "expires_ms": 0}
    seal(KEY, NETWORK, Bid(**base, **good))
    with pytest.raises(UsageError):
        seal(KEY, NETWORK, Bid(**base, **(good | {field: bad})))


def test_lists_hold_their_bounds() -> None:
    base: dict[str, Any] = {"author": KEY.account, "nonce": 0, "expires_ms": 0, "job": HASH, "round": 0}
    seal(KEY, NETWORK, Receipt(**base, holds=tuple(range(64))))
    for holds in ((64,), (-1,), (0,) * 65):
        with pytest.raises(UsageError):
            seal(KEY, NETWORK, Receipt(**base, holds=holds))


def test_every_body_has_its_own_tag_and_the_common_fields() -> None:
    kinds = get_args(EntryBody)
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(tags) == 21
    for kind in kinds:
        names = {field.name for field in msgspec.structs.fields(kind)}
        assert {"author", "nonce", "expires_ms"} <= names


def test_errors_are_the_peers() -> None:
    for raw in (b"", b"{}", resign(b"{}"), b"x" * (MAX_ENTRY_BYTES + 1)):
        with pytest.raises(PeerError):
            open_entry(raw, NETWORK)


def test_alphas_differ_in_every_part_and_between_lotteries() -> None:
    base = (HASH, 1, 2, "aa" * 32)
    inputs = [
        base,
        ("ff" * 32, 1, 2, "aa" * 32),
        (HASH, 2, 2, "aa" * 32),
        (HASH, 1, 3, "aa" * 32),
        (HASH, 1, 2, "bb" * 32),
    ]
    alphas = [kind(*values) for kind in (messages.shard_alpha, messages.audit_alpha) for values in inputs]
    assert len(set(alphas)) == len(alphas)


def test_alphas_are_bit_exact() -> None:
    """Written out from the definition: tag, NUL, and each part behind its length in eight bytes."""
    position = bytes.fromhex(HASH) + (1).to_bytes(8, "big") + (2).to_bytes(4, "big")
    seed = bytes.fromhex("aa" * 32)
    framed = len(position).to_bytes(8, "big") + position + (32).to_bytes(8, "big") + seed
    assert messages.shard_alpha(HASH, 1, 2, "aa" * 32) == sha256(b"gdf/shard\0" + framed)
    assert messages.audit_alpha(HASH, 1, 2, "aa" * 32) == sha256(b"gdf/audit\0" + framed)


def test_draws_and_lotteries() -> None:
    assert messages.draw(bytes(64), 7) == 0
    assert messages.draw(b"\xff" * 64, 10) == (2**512 - 1) % 10
    assert not messages.lottery_wins(bytes(64), 0)
    assert messages.lottery_wins(bytes(64), 1)
    assert messages.lottery_wins((999_999).to_bytes(64, "big"), 1_000_000)
    assert not messages.lottery_wins((999_999).to_bytes(64, "big"), 999_999)


def test_commitments_bind_every_part() -> None:
    parts: list[Any] = [KEY.account, HASH, "ab" * 80, "11" * 32, "22" * 32]
    digests = {messages.commitment(*parts)}
    for index, other in enumerate((OTHER.account, "ee" * 32, "ac" * 80, "12" * 32, "23" * 32)):
        digests.add(messages.commitment(*parts[:index], other, *parts[index + 1 :]))
    assert len(digests) == 6
    numbers: list[Any] = [KEY.account, 1, 2, "11" * 32, "22" * 32]
    audits = {messages.audit_commitment(*numbers)}
    for index, other in enumerate((OTHER.account, 3, 4, "12" * 32, "23" * 32)):
        audits.add(messages.audit_commitment(*numbers[:index], other, *numbers[index + 1 :]))
    assert len(audits) == 6
    measured: list[Any] = [KEY.account, 1, 2, (1, 2), (3,), "22" * 32]
    replays = {messages.arbiter_commitment(*measured)}
    for index, other in enumerate((OTHER.account, 3, 4, (1,), (2, 3), "23" * 32)):
        replays.add(messages.arbiter_commitment(*measured[:index], other, *measured[index + 1 :]))
    assert len(replays) == 7


def test_sketches_of_a_bisection_hold_their_bounds() -> None:
    base: dict[str, Any] = {"author": KEY.account, "nonce": 0, "expires_ms": 0, "job": HASH, "round": 0, "slot": 0}
    wide = (2**53 - 1,) * 32
    numbers = {"state_distance_ppb": 2**53 - 1, "excess_ppb": 2**53 - 1, "salt": HASH}
    assert len(seal(KEY, NETWORK, messages.ArbiterOpen(**base, **numbers, sketch=wide, seeded=wide)).raw) < 2_048
    opening = messages.Opening(step=messages.MAX_STEPS - 1, sketch=wide, path=(HASH,) * 16)
    assert len(seal(KEY, NETWORK, messages.BisectOpen(**base, opening=opening)).raw) < 4_096
    for sketch in (wide[:31], (*wide, 1), (2**53, *wide[1:])):
        with pytest.raises((UsageError, LocalError)):
            seal(KEY, NETWORK, messages.ArbiterOpen(**base, **numbers, sketch=sketch, seeded=wide))
    limits = {"author": KEY.account, "nonce": 0, "expires_ms": 0}
    seal(KEY, NETWORK, messages.AuditClasses(**limits, classes=("cpu-fp32",) * messages.MAX_CLASSES))
    with pytest.raises(UsageError):
        seal(KEY, NETWORK, messages.AuditClasses(**limits, classes=("cpu-fp32",) * (messages.MAX_CLASSES + 1)))


def test_sketch_leaves_are_canonical() -> None:
    assert messages.sketch_leaf(3, (1, -2)) == b'{"sketch":[1,-2],"step":3}'
