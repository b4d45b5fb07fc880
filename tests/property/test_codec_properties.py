"""Whatever bytes arrive, decoding answers with a value that re-encodes to them or with a PeerError."""

from __future__ import annotations

from typing import Any

import hypothesis
import rfc8785
from hypothesis import strategies as st

from gdf_market.codec import Hash, Int, Record, Text, UInt, decode, encode
from gdf_market.errors import PeerError
from gdf_market.identity import Identity
from gdf_market.messages import Transfer, open_entry, seal
from gdf_market.units import MAX_INT, format_credits, parse_credits

NETWORK = "ab" * 32
KEY = Identity(b"\x05" * 32)

quick = hypothesis.settings(max_examples=100, deadline=None)

integers = st.integers(-MAX_INT, MAX_INT)
text = st.text(max_size=200)  # every code point but surrogates
keys = st.text(st.characters(max_codepoint=127), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | integers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


class Leaf(Record, frozen=True, kw_only=True):
    name: Text
    number: Int


class Tree(Record, frozen=True, kw_only=True):
    leaves: tuple[Leaf, ...]
    digest: Hash
    pairs: tuple[tuple[UInt, str], ...]
    maybe: Leaf | None = None


leaves = st.builds(Leaf, name=text, number=integers)
trees = st.builds(
    Tree,
    leaves=st.lists(leaves, max_size=3).map(tuple),
    digest=st.binary(min_size=32, max_size=32).map(bytes.hex),
    pairs=st.lists(st.tuples(st.integers(0, MAX_INT), text), max_size=3).map(tuple),
    maybe=st.none() | leaves,
)


@quick
@hypothesis.given(plain)
def test_encoding_is_that_of_rfc_8785(value: Any) -> None:
    assert encode(value) == rfc8785.dumps(value)


@quick
@hypothesis.given(trees)
def test_records_round_trip(value: Tree) -> None:
    assert decode(encode(value), Tree) == value


@quick
@hypothesis.given(st.binary(max_size=300))
def test_random_bytes_raise_only_peer_errors(data: bytes) -> None:
    for kind in (Tree, Leaf, dict, list):
        try:
            value = decode(data, kind)
        except PeerError:
            continue
        assert encode(value) == data


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """Return ``original`` with a few pieces replaced, removed or inserted."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 6))
        data[position : position + length] = draw(
            st.binary(max_size=6) | st.sampled_from([b'"', b"{", b"[", b"1.5", b"null", b" "])
        )
    return bytes(data)


@quick
@hypothesis.given(st.data())
def test_mutated_records_decode_canonically_or_not_at_all(data: st.DataObject) -> None:
    changed = data.draw(mutated(encode(data.draw(trees))))
    try:
        value = decode(changed, Tree)
    except PeerError:
        return
    assert encode(value) == changed


ENTRY = seal(
    KEY,
    NETWORK,
    Transfer(author=KEY.account, nonce=1, expires_ms=2, to=Identity(b"\x06" * 32).account, amount=3, memo="memo"),
)


@quick
@hypothesis.given(mutated(ENTRY.raw))
def test_mutated_entries_are_refused(changed: bytes) -> None:
    hypothesis.assume(changed != ENTRY.raw)
    try:
        open_entry(changed, NETWORK)
    except PeerError:
        return
    raise AssertionError("an altered envelope was accepted")


@quick
@hypothesis.given(st.integers(0, MAX_INT))
def test_credits_round_trip(amount: int) -> None:
    assert parse_credits(format_credits(amount)) == amount
