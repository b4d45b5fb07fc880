"""Room on the disk: what goes first, what never goes, and a kill in the middle of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdf_market.blobs.disk import Disk
from gdf_market.blobs.pins import MAX_PINS, Pins, load_pins
from gdf_market.blobs.room import SPARE_DISK_BYTES, Held, QuotaError, choose
from gdf_market.blobs.store import BlobStore
from gdf_market.errors import StorageError

HOUR_S = 3_600.0


def used(store: BlobStore, path: Path, root: str, ago_s: float) -> None:
    """Make blob ``root`` last used so long ago."""
    at = time.time() - ago_s
    os.utime(path / "data" / root, (at, at))


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, quota_bytes=3_000, grace_s=60.0)


def fill(store: BlobStore, path: Path) -> list[str]:
    """Fill the store with three blobs of 1,000 bytes, the first one used longest ago, all of them past the grace."""
    roots = [store.put_bytes(bytes([number]) * 1_000) for number in range(3)]
    for number, root in enumerate(roots):
        used(store, path, root, (3 - number) * HOUR_S)
    return roots


def test_what_was_used_longest_ago_goes_first(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins())
    store.path(roots[0])  # a use
    new = store.put_bytes(b"n" * 500)
    assert store.roots() == sorted([roots[0], roots[2], new])


def test_serving_a_blob_to_others_does_not_keep_it(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins())
    store.read_chunk(roots[0], 0)
    store.put_bytes(b"n" * 500)
    assert not store.has(roots[0])


def test_jobs_that_ended_give_way_oldest_first_and_jobs_under_way_never(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins(frozenset({roots[0]}), {roots[1]: 2_000, roots[2]: 1_000}))
    store.put_bytes(b"n" * 500)
    assert store.has(roots[0])
    assert store.has(roots[1])
    assert not store.has(roots[2]), "its job ended first"
    with pytest.raises(QuotaError, match=r"quota of 3000.*blob_quota"):
        store.put_bytes(b"x" * 2_001)
    assert store.has(roots[1]), "nothing is deleted for what does not fit all the same"


def test_without_a_list_of_pins_or_with_a_damaged_one_nothing_is_deleted(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    with pytest.raises(QuotaError):
        store.put_bytes(b"n" * 500)
    store.room.set_pins(Pins())
    (tmp_path / "pins.json").write_bytes(b'{"pins":[')
    with pytest.raises(QuotaError):
        store.put_bytes(b"n" * 500)
    assert (store.room.drop(roots), store.room.drop_unused(0.0)) == (0, 0)
    assert store.roots() == sorted(roots)


def test_what_was_just_used_stays(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins())
    for root in roots:
        store.path(root)
    with pytest.raises(QuotaError, match="just used"):
        store.put_bytes(b"n" * 500)
    assert store.roots() == sorted(roots)


def test_an_arriving_blob_makes_room_and_an_abandoned_one_gives_it(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    first, second = (source.put_bytes(bytes([number]) * 2_500) for number in (8, 9))
    store = BlobStore(tmp_path / "store", quota_bytes=3_000, grace_s=60.0)
    store.room.set_pins(Pins())
    store.open_partial(first, source.manifest(first))
    with pytest.raises(QuotaError):
        store.open_partial(second, source.manifest(second))
    at = time.time() - HOUR_S
    os.utime(tmp_path / "store" / "partial" / f"{first}.data", (at, at))
    store.open_partial(second, source.manifest(second))
    assert store.partial_roots() == [second]


def test_a_full_disk_makes_room_too_and_says_so_if_it_cannot(tmp_path: Path) -> None:
    class SmallDisk(Disk):
        def free(self, path: Path) -> int:
            return SPARE_DISK_BYTES + 3_000 - sum(file.stat().st_size for file in (tmp_path / "data").iterdir())

    store = BlobStore(tmp_path, disk=SmallDisk(), grace_s=60.0)
    roots = fill(store, tmp_path)
    with pytest.raises(StorageError, match=r"The disk is full: 500 bytes"):
        store.put_bytes(b"n" * 500)
    store.room.set_pins(Pins())
    store.put_bytes(b"n" * 500)
    assert not store.has(roots[0])


def test_old_roots_and_unused_ones_are_dropped_unless_pinned(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins(frozenset({roots[0]})))
    assert store.room.drop([*roots[:2], "00" * 32]) == 1_000
    assert store.roots() == sorted([roots[0], roots[2]])
    assert store.room.drop_unused(2 * HOUR_S) == 0
    assert store.room.drop_unused(HOUR_S / 2) == 1_000
    assert store.roots() == [roots[0]]


def test_usage_says_why_it_is_there(store: BlobStore, tmp_path: Path) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins(frozenset({roots[0]}), {roots[0]: 5, roots[1]: 5}))
    found = store.room.usage()
    assert (found.quota, found.held, found.active, found.ended, found.collectable, found.blobs) == (
        3_000,
        3_000,
        1_000,
        1_000,
        1_000,
        3,
    )


def test_pins_survive_and_the_latest_of_too_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    pins = Pins(frozenset({"aa" * 32}), {"bb" * 32: 7}, frozenset({"cc" * 32}))
    path.write_bytes(pins.to_bytes())
    assert load_pins(path) == pins
    many = Pins(frozenset({"ff" * 32}), {f"{number:064x}": number + 1 for number in range(MAX_PINS)})
    path.write_bytes(many.to_bytes())
    found = load_pins(path)
    assert found is not None
    assert found.active == many.active
    assert len(found.ended) == MAX_PINS - 1
    assert f"{0:064x}" not in found.ended, "the job that ended first is left out"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100), st.sampled_from(["active", "ended", "loose"]))),
    st.integers(1, 200),
)
def test_what_goes_is_enough_in_order_and_never_needed(blobs: list[tuple[int, int, str]], need: int) -> None:
    held = [Held(f"{place:064x}", size, float(at)) for place, (size, at, _) in enumerate(blobs)]
    kinds = {one.root: kind for one, (_, _, kind) in zip(held, blobs, strict=True)}
    active = frozenset(root for root, kind in kinds.items() if kind == "active")
    ended = {root: place + 1 for place, (root, kind) in enumerate(kinds.items()) if kind == "ended"}
    chosen = choose(held, Pins(active, ended), need, 50.0)
    possible = [one for one in held if one.used_s < 50 and kinds[one.root] != "active"]
    assert set(chosen) <= set(possible)
    if sum(one.size for one in possible) < need:
        assert chosen == []
    else:
        assert sum(one.size for one in chosen) >= need
        assert sum(one.size for one in chosen[:-1]) < need
    keys = [(ended.get(one.root, 0), one.used_s) for one in chosen]
    assert keys == sorted(keys)
    left_out = [(ended.get(one.root, 0), one.used_s) for one in possible if one not in chosen]
    assert not chosen or all(key >= keys[-1] for key in left_out)


KILLED = """
import os, sys
from pathlib import Path
from gdf_market.blobs.disk import Disk
from gdf_market.blobs.store import BlobStore

class Dying(Disk):
    left = int(sys.argv[2])
    def remove(self, path):
        if self.left == 0:
            os._exit(9)
        self.left -= 1
        super().remove(path)

BlobStore(Path(sys.argv[1]), quota_bytes=3_000, grace_s=60.0, disk=Dying()).put_bytes(b"n" * 1_900)
"""


@pytest.mark.parametrize("removals", [0, 1, 2, 6])
def test_a_kill_while_room_is_made_leaves_a_consistent_store(store: BlobStore, tmp_path: Path, removals: int) -> None:
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins(frozenset({roots[2]})))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(removals)], check=False)
    assert ended.returncode == 9
    left = store.roots()
    assert roots[2] in left
    for root in left:
        store.verify(root)
    new = store.put_bytes(b"n" * 1_900)
    store.verify(new)
    store.room.sweep(time.time() + 1)
    assert sorted(path.name for path in (tmp_path / "manifest").iterdir()) == store.roots()


def test_blobs_that_cannot_be_deleted_are_named(tmp_path: Path) -> None:
    class Locked(Disk):
        def remove(self, path: Path) -> None:
            raise PermissionError(13, "in use")

    store = BlobStore(tmp_path, quota_bytes=3_000, grace_s=60.0, disk=Locked())
    roots = fill(store, tmp_path)
    store.room.set_pins(Pins())
    with pytest.raises(StorageError, match=rf"Cannot use .*{roots[0]}"):
        store.put_bytes(b"n" * 500)
    store.verify(roots[0])
