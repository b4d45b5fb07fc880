"""The canonical gate: one value, one encoding, and a typed error for everything else."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import pytest
import rfc8785

from gdf_market.codec import (
    MAX_MESSAGE_BYTES,
    AccountId,
    Hash,
    Int,
    Positive,
    Ppm,
    Record,
    Signature,
    Text,
    UInt,
    VrfProof,
    decode,
    digest,
    encode,
    sha256,
)
from gdf_market.errors import LocalError, MalformedError, OversizedError, UsageError
from gdf_market.units import MAX_INT


class Sample(Record, frozen=True, kw_only=True):
    note: Text = ""
    number: Int = 0
    parts: tuple[UInt, ...] = ()


class Nested(Record, frozen=True, kw_only=True):
    inner: Sample


def holds(kind: Any, value: object) -> bool:
    """Say whether ``value`` is accepted where a field has type ``kind``."""
    try:
        decode(msgspec.json.encode(value), kind)
    except MalformedError:
        return False
    return True


def test_round_trip_with_sorted_keys() -> None:
    value = Sample(number=-5, note="ä", parts=(1, 2))
    data = encode(value)
    assert data == '{"note":"ä","number":-5,"parts":[1,2]}'.encode()
    assert decode(data, Sample) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        'a"b\\c',
        "\x00\x01\x1f\x7f",
        "\b\f\n\r\t",
        "/",
        "\u2028\u2029",
        "é",
        "e\u0301",
        "\U0001f511",
        "\ufeff",
        "<&>",
        "\ud7ff\ue000",
    ],
)
def test_awkward_text_is_encoded_as_rfc_8785_says(text: str) -> None:
    assert encode({"text": text}) == rfc8785.dumps({"text": text})
    assert decode(encode(Sample(note=text)), Sample).note == text


@pytest.mark.parametrize(
    "data",
    [
        b'{"note":"","number":1.0,"parts":[]}',
        b'{"note":"","number":1e0,"parts":[]}',
        b'{"note":"","number":1.5,"parts":[]}',
        b'{"note":"","number":-0,"parts":[]}',
        b'{"note":"","number":01,"parts":[]}',
        b'{"note":"","number":+1,"parts":[]}',
        b'{"note":"","number":true,"parts":[]}',
        b'{"note":"","number":null,"parts":[]}',
        b'{"note":"","number":"1","parts":[]}',
        b'{"note":"","number":NaN,"parts":[]}',
        b'{"note":"","number":9007199254740992,"parts":[]}',
        b'{"note":"","number":-9007199254740992,"parts":[]}',
        b'{"note":"","number":' + b"9" * 5_000 + b',"parts":[]}',
    ],
    ids=lambda data: data[20:40].decode(),
)
def test_numbers_that_are_no_canonical_integers_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(data, Sample)


@pytest.mark.parametrize(
    "data",
    [
        b'{"number":1,"note":"","parts":[]}',  # key order
        b'{"note":"","number":1,"number":1,"parts":[]}',  # a key twice, equal
        b'{"note":"","number":2,"number":1,"parts":[]}',  # a key twice, different
        b'{"note":"","number":1,"parts":[],"zzz":0}',  # a field nobody knows
        b'{"note":"","number":1}',  # a default left out
        b'{"note":"","number":1,"parts":[1,]}',
        b"{}",
        b"[]",
        b"null",
        b"",
        b"\xef\xbb\xbf" + b'{"note":"","number":1,"parts":[]}',  # byte order mark
    ],
)
def test_shapes_that_are_not_canonical_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(data, Sample)


@pytest.mark.parametrize("space", [b" ", b"\n", b"\t", b"\r"])
def test_white_space_anywhere_is_refused(space: bytes) -> None:
    data = b'{"note":"","number":1,"parts":[1,2]}'
    assert decode(data, Sample).number == 1
    inside_the_text = data.index(b'""') + 1
    for position in set(range(len(data) + 1)) - {inside_the_text}:
        with pytest.raises(MalformedError):
            decode(data[:position] + space + data[position:], Sample)


@pytest.mark.parametrize(
    "note", [b"\\u00e9", b"\\u0041", b"\\/", b"\\ud800", b"\\ud83d\\udd11", b"\xed\xa0\x80", b"\xff", b"\x01", b"\\x"]
)
def test_other_spellings_of_text_are_refused(note: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(b'{"note":"' + note + b'","number":1,"parts":[]}', Sample)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inner":', b'{"inner":{"parts":[['])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    data = opening * (MAX_MESSAGE_BYTES // len(opening))
    for kind in (Nested, Sample, dict[str, Any], Annotated[tuple[int, ...], msgspec.Meta(max_length=2)]):
        with pytest.raises(MalformedError):
            decode(data, kind)  # type: ignore[arg-type]


def test_size_is_checked_before_parsing() -> None:
    data = encode(Sample(note="x"))
    assert decode(data, Sample, max_bytes=len(data)).note == "x"
    with pytest.raises(OversizedError, match=f"at most {len(data) - 1}"):
        decode(data, Sample, max_bytes=len(data) - 1)
    with pytest.raises(OversizedError):
        decode(b"\xff" * (MAX_MESSAGE_BYTES + 1), Sample)


def test_errors_quote_the_sender_briefly() -> None:
    with pytest.raises(MalformedError) as caught:
        decode(b'{"' + b"x" * 60_000 + b'":1}', Sample)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (UInt, [0, MAX_INT], [-1, MAX_INT + 1]),
        (Int, [-MAX_INT, MAX_INT], [-MAX_INT - 1, MAX_INT + 1]),
        (Positive, [1, MAX_INT], [0, MAX_INT + 1]),
        (Ppm, [0, 1_000_000], [-1, 1_000_001]),
        (Text, ["", "x" * 200], ["x" * 201]),
        (Hash, ["0f" * 32], ["0F" * 32, "0f" * 31, "0f" * 33, "0g" * 32, "0f" * 32 + "\n", ""]),
        (Signature, ["ab" * 64], ["ab" * 63, "ab" * 65]),
        (VrfProof, ["ab" * 80], ["ab" * 79, ""]),
        (AccountId, ["12D3KooW" + "a" * 44], ["12D3KooW" + "a" * 43, "12D3KooW" + "0" * 44, "12D3Koow" + "a" * 44]),
    ],
)
def test_field_types_hold_their_bounds(kind: Any, good: list[object], bad: list[object]) -> None:
    assert all(holds(kind, value) for value in good)
    assert not any(holds(kind, value) for value in bad)


@pytest.mark.parametrize("value", [1.5, math.nan, b"x", {1, 2}, object(), MAX_INT + 1, -MAX_INT - 1])
def test_values_without_a_canonical_encoding_are_our_own_fault(value: object) -> None:
    for nested in (value, [value], {"a": (value,)}):
        with pytest.raises(LocalError):
            encode(nested)


@pytest.mark.parametrize("key", ["é", 1, None])
def test_keys_are_ascii_text(key: object) -> None:
    """RFC 8785 sorts by UTF-16 and we by code point; ASCII keys sort the same in both."""
    with pytest.raises(LocalError, match="keys are ASCII"):
        encode({key: 1})


def test_half_a_character_is_refused() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        encode(Sample(note="\ud800"))


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Sample().number = 1  # type: ignore[misc]


def test_sha256_of_the_empty_string() -> None:
    assert sha256(b"").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_digests_separate_tags_and_parts() -> None:
    inputs: list[tuple[str, tuple[bytes, ...]]] = [
        ("tag", ()),
        ("tag", (b"",)),
        ("tag", (b"", b"")),
        ("tag", (b"ab",)),
        ("tag", (b"a", b"b")),
        ("tag", (b"", b"ab")),
        ("other", (b"ab",)),
        ("ta", (b"g",)),
    ]
    assert len({digest(tag, *parts) for tag, parts in inputs}) == len(inputs)
