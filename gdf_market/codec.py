"""Canonical bytes: the integer-only subset of RFC 8785 that is signed, hashed and stored.

Rules kept here:
1. One value has one encoding: sorted ASCII keys, no spaces, integers within
   +-(2**53 - 1), no floats, bytes as lower-case hex text.
2. Input that is not exactly that encoding is refused, so what was hashed is
   what was read.
3. The size is checked before anything is parsed.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec

from gdf_market.errors import LocalError, MalformedError, OversizedError, UsageError, ensure
from gdf_market.units import MAX_INT

MAX_MESSAGE_BYTES = 65_536

T = TypeVar("T")

UInt = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Int = Annotated[int, msgspec.Meta(ge=-MAX_INT, le=MAX_INT)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
Ppm = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Signature = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{128}\Z")]
VrfProof = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{160}\Z")]
AccountId = Annotated[str, msgspec.Meta(pattern=r"\A12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=200)]

_encoder = msgspec.json.Encoder(order="sorted")
_decoders: dict[object, msgspec.json.Decoder[object]] = {}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every immutable value that is signed, hashed or stored."""


def encode(value: object) -> bytes:
    """Return the canonical bytes of a Record, or of lists and dicts of Records, integers and text.

    The fields of Records are not checked again here: ``decode`` refuses what is out of range.
    Raises LocalError for a float or an integer out of range, UsageError for text without a UTF-8 form.
    """
    _check_plain(value)
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        raise UsageError("a text holds half a character (a lone surrogate); type it again") from None


def _check_plain(value: object) -> None:
    if value is None or isinstance(value, Record | str):
        return
    if isinstance(value, int):
        ensure(abs(value) <= MAX_INT, LocalError(f"{value} has no canonical encoding; integers are within 2**53 - 1"))
    elif isinstance(value, dict):
        for key, item in value.items():
            ensure(isinstance(key, str) and key.isascii(), LocalError(f"{key!r} is no canonical key; keys are ASCII"))
            _check_plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_plain(item)
    else:
        raise LocalError(f"a {type(value).__name__} has no canonical encoding")


def decode(data: bytes, kind: type[T], *, max_bytes: int = MAX_MESSAGE_BYTES) -> T:
    """Return the value of canonical ``data``.

    Raises OversizedError above ``max_bytes`` and MalformedError when the bytes
    are not the canonical encoding of a ``kind``.
    """
    # every entry and message passes here: an error is made only when there is one
    if len(data) > max_bytes:
        raise OversizedError(f"{len(data)} bytes; at most {max_bytes} are read")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value = decoder.decode(data)
        again = _encoder.encode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError) as error:
        # the text of the error may quote the sender at length
        raise MalformedError(f"not a valid {getattr(kind, '__name__', 'message')}: {str(error)[:200]}") from None
    if again != data:
        raise MalformedError("not the canonical encoding of its value")
    return value  # type: ignore[return-value]


def sha256(data: bytes) -> bytes:
    """Return the 32-byte SHA-256 of ``data``."""
    return hashlib.sha256(data).digest()


def digest(tag: str, *parts: bytes) -> bytes:
    """Return SHA-256 over a domain tag and length-prefixed parts (no two part lists collide)."""
    pieces = [tag.encode(), b"\0"]
    for part in parts:
        pieces += (len(part).to_bytes(8, "big"), part)
    return hashlib.sha256(b"".join(pieces)).digest()
