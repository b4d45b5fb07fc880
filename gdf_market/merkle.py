"""Append-only Merkle tree of RFC 9162 section 2.1 with SHA-256: roots, inclusion and consistency proofs.

Rules kept here:
1. Leaves are hashed under 0x00 and inner nodes under 0x01, so that no node passes as a leaf.
2. A proof is checked against an index and a size, never against a root alone.  Root and size come together from
   one trusted source (a signed tree head): a path can have the same shape in trees of two sizes.
3. Every hash of a complete subtree is computed once; appending costs at most log2(n) hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gdf_market.errors import MalformedError, SignatureError, ensure

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()  # root of a tree without leaves


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of one leaf's data."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node from its children's hashes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the 32-byte root over the leaves' data."""
    # a node without a right neighbour goes up as it is: the same tree as that of RFC 9162, without keeping it
    level = [leaf_hash(leaf) for leaf in leaves]
    while len(level) > 1:
        pairs = [node_hash(level[index], level[index + 1]) for index in range(0, len(level) - 1, 2)]
        level = pairs if len(level) % 2 == 0 else [*pairs, level[-1]]
    return level[0] if level else EMPTY_ROOT


class Tree:
    """A growing tree: 64 bytes of memory per leaf; every earlier size stays available for proofs."""

    def __init__(self) -> None:
        # level k holds the hashes of the complete subtrees of 2**k leaves, left to right
        self._levels: list[bytearray] = [bytearray()]

    def __len__(self) -> int:
        return len(self._levels[0]) // HASH_BYTES

    def append(self, leaf: bytes) -> int:
        """Add a leaf's data; return its index."""
        index = position = len(self)
        node, level = leaf_hash(leaf), 0
        self._levels[0] += node
        while position % 2 == 1:
            node = node_hash(self._node(level, position - 1), node)
            level, position = level + 1, position // 2
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += node
        return index

    def root(self, size: int | None = None) -> bytes:
        """Return the root over the first ``size`` leaves (all of them by default)."""
        size = self._checked(size)
        return self._subtree(0, size) if size else EMPTY_ROOT

    def path(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the inclusion proof of leaf ``index`` in the tree of ``size`` leaves (section 2.1.3.1)."""
        size = self._checked(size)
        ensure(0 <= index < size, MalformedError(f"no leaf {index} in a tree of {size}"))
        start, stop, path = 0, size, []
        while stop - start > 1:
            middle = start + _split(stop - start)
            if index < middle:
                path.append(self._subtree(middle, stop))
                stop = middle
            else:
                path.append(self._subtree(start, middle))
                start = middle
        return path[::-1]

    def consistency(self, old: int, new: int | None = None) -> list[bytes]:
        """Return the proof that the tree of ``new`` leaves extends the one of ``old`` (section 2.1.4.1)."""
        new = self._checked(new)
        ensure(0 <= old <= new, MalformedError(f"a tree of {new} leaves extends none of {old}"))
        if old in (0, new):
            return []
        start, stop, path = 0, new, []
        while old < stop:  # until [start, stop) is a subtree of the old tree too
            middle = start + _split(stop - start)
            if old <= middle:
                path.append(self._subtree(middle, stop))
                stop = middle
            else:
                path.append(self._subtree(start, middle))
                start = middle
        if start > 0:  # otherwise the verifier has this hash: the old root
            path.append(self._subtree(start, stop))
        return path[::-1]

    def _checked(self, size: int | None) -> int:
        size = len(self) if size is None else size
        ensure(0 <= size <= len(self), MalformedError(f"no tree of {size} leaves; there are {len(self)}"))
        return size

    def _node(self, level: int, position: int) -> bytes:
        return bytes(self._levels[level][position * HASH_BYTES : (position + 1) * HASH_BYTES])

    def _subtree(self, start: int, stop: int) -> bytes:
        """Return the hash over leaves start..stop-1, where ``start`` is where the tree splits."""
        size = stop - start
        if size & (size - 1) == 0:
            level = size.bit_length() - 1
            return self._node(level, start >> level)
        middle = start + _split(size)
        return node_hash(self._subtree(start, middle), self._subtree(middle, stop))


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Raise SignatureError unless ``leaf`` is leaf ``index`` of the ``size`` under ``root`` (section 2.1.3.2)."""
    ensure(0 <= index < size, SignatureError(f"inclusion proof of leaf {index} in a tree of {size}"))
    _check_hashes((*path, root))
    node, last, running = index, size - 1, leaf_hash(leaf)
    for sibling in path:
        ensure(last > 0, SignatureError(f"inclusion proof of {len(path)} hashes is too long for {size} leaves"))
        if node % 2 == 1 or node == last:
            running = node_hash(sibling, running)
            while node % 2 == 0 and node > 0:
                node, last = node >> 1, last >> 1
        else:
            running = node_hash(running, sibling)
        node, last = node >> 1, last >> 1
    ensure(last == 0, SignatureError(f"inclusion proof of {len(path)} hashes is too short for {size} leaves"))
    ensure(running == root, SignatureError(f"leaf {index} is not under root {root.hex()[:16]}…"))


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> None:
    """Raise SignatureError unless the tree under ``new_root`` extends the one under ``old_root`` (section 2.1.4.2).

    An empty old tree is extended by every tree, with an empty proof.
    """
    ensure(0 <= old_size <= new_size, SignatureError(f"a tree of {new_size} leaves extends none of {old_size}"))
    _check_hashes((*path, old_root, new_root))
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        ensure(not path and old_root == expected, SignatureError(f"roots of {old_size} and {new_size} leaves disagree"))
        ensure(new_size > 0 or new_root == EMPTY_ROOT, SignatureError("root of an empty tree is wrong"))
        return
    hashes = [old_root, *path] if old_size & (old_size - 1) == 0 else list(path)
    ensure(bool(hashes), SignatureError("consistency proof is empty"))
    old, new = _fold(old_size - 1, new_size - 1, hashes)
    ensure(old == old_root, SignatureError(f"consistency proof does not lead to the old root {old_root.hex()[:16]}…"))
    ensure(new == new_root, SignatureError(f"consistency proof does not lead to the new root {new_root.hex()[:16]}…"))


def _fold(old_node: int, new_node: int, hashes: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the old and the new root that a consistency proof leads to."""
    while old_node % 2 == 1:
        old_node, new_node = old_node >> 1, new_node >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        ensure(new_node > 0, SignatureError(f"consistency proof of {len(hashes)} hashes is too long"))
        if old_node % 2 == 1 or old_node == new_node:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while old_node % 2 == 0 and old_node > 0:
                old_node, new_node = old_node >> 1, new_node >> 1
        else:
            new = node_hash(new, sibling)
        old_node, new_node = old_node >> 1, new_node >> 1
    ensure(new_node == 0, SignatureError(f"consistency proof of {len(hashes)} hashes is too short"))
    return old, new


def _check_hashes(hashes: Sequence[bytes]) -> None:
    for value in hashes:
        ensure(len(value) == HASH_BYTES, SignatureError(f"a tree hash has {HASH_BYTES} bytes, not {len(value)}"))


def _split(size: int) -> int:
    """Return the largest power of two below ``size`` (size >= 2)."""
    return 1 << ((size - 1).bit_length() - 1)
