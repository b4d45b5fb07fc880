"""The Merkle tree against the Certificate Transparency reference vectors, and proofs that must not pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdf_market import merkle
from gdf_market.errors import MalformedError, SignatureError

CT = json.loads((Path(__file__).parents[1] / "vectors" / "ct_merkle.json").read_text("utf-8"))
LEAVES = [bytes.fromhex(text) for text in CT["leaves"]]


def tree_of(size: int) -> merkle.Tree:
    tree = merkle.Tree()
    for number in range(size):
        assert tree.append(number.to_bytes(4, "big")) == number
    return tree


def test_reference_roots() -> None:
    tree = merkle.Tree()
    assert tree.root().hex() == merkle.EMPTY_ROOT.hex() == CT["empty_root"]
    for leaf, root in zip(LEAVES, CT["roots"], strict=True):
        tree.append(leaf)
        assert tree.root().hex() == root
    assert [tree.root(size).hex() for size in range(1, 9)] == CT["roots"]
    assert [merkle.root(LEAVES[:size]).hex() for size in range(9)] == [CT["empty_root"], *CT["roots"]]


def test_a_root_without_a_tree_is_that_of_the_tree() -> None:
    tree, leaves = merkle.Tree(), [index.to_bytes(2, "big") for index in range(70)]
    for size, leaf in enumerate(leaves):
        assert merkle.root(leaves[:size]) == tree.root()
        tree.append(leaf)


@pytest.mark.parametrize("case", CT["inclusion"])
def test_reference_inclusion_proofs(case: dict[str, object]) -> None:
    tree = merkle.Tree()
    for leaf in LEAVES:
        tree.append(leaf)
    index, size = int(str(case["index"])), int(str(case["size"]))
    path = tree.path(index, size)
    assert [node.hex() for node in path] == case["path"]
    merkle.verify_inclusion(LEAVES[index], index, size, path, bytes.fromhex(CT["roots"][size - 1]))


@pytest.mark.parametrize("case", CT["consistency"])
def test_reference_consistency_proofs(case: dict[str, object]) -> None:
    tree = merkle.Tree()
    for leaf in LEAVES:
        tree.append(leaf)
    old, new = int(str(case["old"])), int(str(case["new"]))
    path = tree.consistency(old, new)
    assert [node.hex() for node in path] == case["path"]
    roots = [bytes.fromhex(CT["roots"][size - 1]) for size in (old, new)]
    merkle.verify_consistency(old, new, *roots, path)


def test_every_proof_of_small_trees_holds_and_no_altered_one_does() -> None:
    tree = tree_of(9)
    for size in range(1, 10):
        for index in range(size):
            leaf, path, root = index.to_bytes(4, "big"), tree.path(index, size), tree.root(size)
            merkle.verify_inclusion(leaf, index, size, path, root)
            wrong = [
                (b"other", index, size, path, root),
                (leaf, index, size, [*path, bytes(32)], root),
                (leaf, index, size, path, bytes(32)),
                *((leaf, other, size, path, root) for other in range(size) if other != index),
                *((leaf, index, size, [*path[:k], bytes(32), *path[k + 1 :]], root) for k in range(len(path))),
                *((leaf, index, size, path[:k] + path[k + 1 :], root) for k in range(len(path))),
            ]
            for case in wrong:
                with pytest.raises(SignatureError):
                    merkle.verify_inclusion(*case)


def test_every_consistency_proof_of_small_trees_holds_and_no_altered_one_does() -> None:
    tree = tree_of(9)
    for new in range(10):
        for old in range(new + 1):
            path, roots = tree.consistency(old, new), (tree.root(old), tree.root(new))
            merkle.verify_consistency(old, new, *roots, path)
            wrong = [
                (old, new, *roots, [*path, bytes(32)]),
                (old, new, bytes(32), roots[1], path),
                *((old, new, *roots, [*path[:k], bytes(32), *path[k + 1 :]]) for k in range(len(path))),
                *((old, new, *roots, path[:k] + path[k + 1 :]) for k in range(len(path))),
            ]
            if old > 0:  # every tree extends the empty one, so its new root proves nothing
                wrong.append((old, new, roots[0], bytes(32), path))
            for case in wrong:
                with pytest.raises(SignatureError):
                    merkle.verify_consistency(*case)


def test_a_rewritten_history_has_no_consistency_proof() -> None:
    honest, forged = tree_of(6), merkle.Tree()
    for number in range(8):
        forged.append(b"forged" if number == 2 else number.to_bytes(4, "big"))
    with pytest.raises(SignatureError, match="old root"):
        merkle.verify_consistency(6, 8, honest.root(), forged.root(), forged.consistency(6))


def test_an_inner_node_is_no_leaf() -> None:
    """Without domain separation, the two children of a node would pass as a leaf of a smaller tree."""
    tree = tree_of(4)
    children = tree.path(1, 2)[0] + tree.path(0, 2)[0]
    with pytest.raises(SignatureError):
        merkle.verify_inclusion(children, 0, 2, [tree.path(0, 4)[1]], tree.root())


def test_a_size_of_another_shape_is_refused() -> None:
    tree = tree_of(8)
    for size in (1, 4, 6, 9, 16, 2**60):  # 7 has the same path for leaf 5: the size must come with the root
        with pytest.raises(SignatureError):
            merkle.verify_inclusion((5).to_bytes(4, "big"), 5, size, tree.path(5), tree.root())


@pytest.mark.parametrize(("index", "size"), [(-1, 4), (4, 4), (1, 1), (0, 0), (0, -1)])
def test_impossible_positions_are_refused(index: int, size: int) -> None:
    with pytest.raises(SignatureError):
        merkle.verify_inclusion(b"", index, size, [], merkle.leaf_hash(b""))
    with pytest.raises(MalformedError):
        tree_of(4).path(index, size)


def test_impossible_sizes_are_refused() -> None:
    tree = tree_of(4)
    for size in (-1, 5):
        with pytest.raises(MalformedError, match="there are 4"):
            tree.root(size)
    with pytest.raises(MalformedError):
        tree.consistency(4, 3)
    with pytest.raises(SignatureError):
        merkle.verify_consistency(4, 3, tree.root(4), tree.root(3), [])
    with pytest.raises(SignatureError):
        merkle.verify_consistency(-1, 3, merkle.EMPTY_ROOT, tree.root(3), [])


def test_a_proof_in_a_bigger_tree_proves_nothing_about_a_smaller_one() -> None:
    """The hashes would add up to the root; only the length of the proof tells the sizes apart."""
    tree = tree_of(8)
    with pytest.raises(SignatureError, match="too long"):
        merkle.verify_inclusion((1).to_bytes(4, "big"), 0, 1, tree.path(1, 2), tree.root(2))
    with pytest.raises(SignatureError, match="too long"):
        merkle.verify_consistency(3, 4, tree.root(7), tree.root(8), tree.consistency(7, 8))
    with pytest.raises(SignatureError, match="too short"):
        merkle.verify_inclusion((0).to_bytes(4, "big"), 0, 4, tree.path(0, 2), tree.root(2))
    with pytest.raises(SignatureError, match="too short"):
        merkle.verify_consistency(7, 8, tree.root(3), tree.root(4), tree.consistency(3, 4))
    with pytest.raises(SignatureError, match="extends none"):
        merkle.verify_consistency(2, 1, tree.root(2), tree.root(2), [])
    with pytest.raises(SignatureError, match="empty"):
        merkle.verify_consistency(3, 4, tree.root(3), tree.root(4), [])


def test_hashes_of_a_wrong_length_are_refused() -> None:
    tree = tree_of(2)
    with pytest.raises(SignatureError, match="32 bytes"):
        merkle.verify_inclusion(bytes(4), 0, 2, [bytes(31)], tree.root())
    with pytest.raises(SignatureError, match="32 bytes"):
        merkle.verify_consistency(1, 2, tree.root(1), tree.root(2) + b"\0", tree.consistency(1, 2))


def test_an_empty_tree_extends_only_itself() -> None:
    merkle.verify_consistency(0, 0, merkle.EMPTY_ROOT, merkle.EMPTY_ROOT, [])
    with pytest.raises(SignatureError):
        merkle.verify_consistency(0, 0, merkle.EMPTY_ROOT, bytes(32), [])
    with pytest.raises(SignatureError):
        merkle.verify_consistency(0, 0, bytes(32), bytes(32), [])
