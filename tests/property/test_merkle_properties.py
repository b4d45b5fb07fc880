"""The tree against a recursive definition and against pymerkle, at random sizes."""

from __future__ import annotations

import hashlib

import hypothesis
import pymerkle
import pytest
from hypothesis import strategies as st

from gdf_market import merkle
from gdf_market.errors import SignatureError

quick = hypothesis.settings(max_examples=60, deadline=None)
leaf_lists = st.lists(st.binary(max_size=8), min_size=1, max_size=70)


def defined_root(leaves: list[bytes]) -> bytes:
    """Return MTH of RFC 9162 section 2.1.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + defined_root(leaves[:k]) + defined_root(leaves[k:])).digest()


def defined_proof(old: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """Return SUBPROOF of RFC 9162 section 2.1.4.1, word for word."""
    if old == len(leaves):
        return [] if whole else [defined_root(leaves)]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if old <= k:
        return [*defined_proof(old, leaves[:k], whole), defined_root(leaves[k:])]
    return [*defined_proof(old - k, leaves[k:], False), defined_root(leaves[:k])]


def trees(leaves: list[bytes]) -> tuple[merkle.Tree, pymerkle.InmemoryTree]:
    ours, theirs = merkle.Tree(), pymerkle.InmemoryTree(algorithm="sha256")
    for leaf in leaves:
        ours.append(leaf)
        theirs.append_entry(leaf)
    return ours, theirs


@quick
@hypothesis.given(leaf_lists)
def test_roots_of_every_size(leaves: list[bytes]) -> None:
    ours, theirs = trees(leaves)
    for size in range(1, len(leaves) + 1):
        assert ours.root(size) == defined_root(leaves[:size]) == theirs.get_state(size)
    assert merkle.root(leaves) == ours.root()


@quick
@hypothesis.given(leaf_lists, st.data())
def test_inclusion_proofs_agree_with_the_oracle(leaves: list[bytes], data: st.DataObject) -> None:
    ours, theirs = trees(leaves)
    size = data.draw(st.integers(1, len(leaves)))
    index = data.draw(st.integers(0, size - 1))
    path = ours.path(index, size)
    merkle.verify_inclusion(leaves[index], index, size, path, ours.root(size))
    proof = theirs.prove_inclusion(index + 1, size)  # the oracle counts from one and puts the leaf's hash first
    assert [bytes.fromhex(node) for node in proof.serialize()["path"]] == [merkle.leaf_hash(leaves[index]), *path]


@quick
@hypothesis.given(leaf_lists, st.data())
def test_consistency_proofs_agree_with_the_oracle(leaves: list[bytes], data: st.DataObject) -> None:
    ours, theirs = trees(leaves)
    new = data.draw(st.integers(1, len(leaves)))
    old = data.draw(st.integers(1, new))
    path = ours.consistency(old, new)
    merkle.verify_consistency(old, new, ours.root(old), ours.root(new), path)
    proof = theirs.prove_consistency(old, new)
    pymerkle.verify_consistency(ours.root(old), ours.root(new), proof)
    assert path == defined_proof(old, leaves[:new], True)  # the oracle's own proofs are not in the RFC's form


@quick
@hypothesis.given(leaf_lists, st.data())
def test_random_proofs_are_refused(leaves: list[bytes], data: st.DataObject) -> None:
    tree, _ = trees(leaves)
    size = data.draw(st.integers(1, len(leaves)))
    index = data.draw(st.integers(0, size - 1))
    junk = data.draw(st.lists(st.binary(min_size=32, max_size=32), max_size=8))
    hypothesis.assume(junk != tree.path(index, size))
    with pytest.raises(SignatureError):
        merkle.verify_inclusion(leaves[index], index, size, junk, tree.root(size))
    old = data.draw(st.integers(1, size))
    hypothesis.assume(junk != tree.consistency(old, size))
    with pytest.raises(SignatureError):
        merkle.verify_consistency(old, size, tree.root(old), tree.root(size), junk)
