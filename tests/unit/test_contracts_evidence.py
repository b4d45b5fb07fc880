"""Distances of sketches in integers, openings of sketch trees, verdict thresholds, drawn steps."""

import math
from fractions import Fraction

import msgspec
import pytest

from contracts.draws import compute_draw_order, compute_opened_steps
from contracts.evidence import check_openings, compute_distance_ppb, compute_sketch_distance_ppb
from contracts.parameters import DEVICE_CLASSES, DISTANCE_CAP_PPB, thresholds, verdict
from contracts.records import Unit
from gdf_market.errors import RuleError
from gdf_market.messages import SKETCH_DIM, Opening
from gdf_market.units import MAX_INT, PPB
from tests.contracts_world import key_of, open_steps, sketch_of, tree_of

ZERO = (0,) * SKETCH_DIM
SKETCHES = [sketch_of("job", 0, 0, 0, step) for step in range(7)]
ROOT = tree_of(SKETCHES).root().hex()


def vector(*values: int) -> tuple[int, ...]:
    return values + (0,) * (SKETCH_DIM - len(values))


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        (ZERO, ZERO, 0),
        (ZERO, vector(1), DISTANCE_CAP_PPB),
        (vector(1), ZERO, PPB),
        (vector(3, 4), vector(3, 4), 0),
        (vector(3, 4), vector(3, 5), PPB // 5),
        (vector(1_000_000), vector(1_000_001), 1_000),
        (vector(-1), vector(1), 2 * PPB),
        (vector(1), vector(MAX_INT), DISTANCE_CAP_PPB),
        (vector(MAX_INT), vector(-MAX_INT), 2 * PPB),
    ],
)
def test_distance(reference: tuple[int, ...], other: tuple[int, ...], expected: int) -> None:
    assert compute_distance_ppb(reference, other) == expected


def test_distance_agrees_with_exact_arithmetic() -> None:
    first, second = SKETCHES[0], SKETCHES[1]
    square = Fraction(sum((a - b) ** 2 for a, b in zip(first, second, strict=True)), sum(a * a for a in first))
    found = compute_distance_ppb(first, second)
    assert Fraction(found, PPB) ** 2 <= square < Fraction(found + 1, PPB) ** 2
    assert abs(found - PPB * math.sqrt(square)) < 2


def test_sketch_distance_is_the_largest_over_the_steps() -> None:
    pairs = [vector(100), vector(100), vector(100)], [vector(100), vector(90), vector(99)]
    assert compute_sketch_distance_ppb(*pairs) == PPB // 10
    assert compute_sketch_distance_ppb([], []) == 0


def test_openings_give_sketches_by_step() -> None:
    opened = check_openings(open_steps(SKETCHES, (1, 4, 6)), ROOT, 7)
    assert opened == {step: SKETCHES[step] for step in (1, 4, 6)}
    assert check_openings((), ROOT, 7) == {}


def test_a_tree_of_one_step_opens() -> None:
    one = SKETCHES[:1]
    assert check_openings(open_steps(one, (0,)), tree_of(one).root().hex(), 1) == {0: one[0]}


def altered(**changes: object) -> tuple[Opening, ...]:
    return (msgspec.structs.replace(open_steps(SKETCHES, (4,))[0], **changes),)


@pytest.mark.parametrize(
    "openings",
    [
        altered(step=5),
        altered(sketch=SKETCHES[3]),
        altered(path=()),
        altered(path=("00" * 32,) * 3),
        altered(path=(*open_steps(SKETCHES, (4,))[0].path, "00" * 32)),
    ],
)
def test_openings_outside_the_root_are_refused(openings: tuple[Opening, ...]) -> None:
    with pytest.raises(RuleError, match="is not in the sketch root"):
        check_openings(openings, ROOT, 7)


def test_openings_beyond_the_last_step_or_twice_are_refused() -> None:
    with pytest.raises(RuleError, match="step 7 is opened; the unit has 7"):
        check_openings(altered(step=7), ROOT, 7)
    with pytest.raises(RuleError, match="opened twice"):
        check_openings(open_steps(SKETCHES, (4,)) * 2, ROOT, 7)


@pytest.mark.parametrize("device_class", ["cpu-fp32", "cuda-fp32"])
@pytest.mark.parametrize(
    ("excess", "distance", "expected"),
    [
        (0, 0, "pass"),
        (100_000, 300_000, "pass"),
        (100_001, 0, "grey"),
        (0, 300_001, "grey"),
        (1_000_000, 1_000_000, "grey"),
        (1_000_001, 0, "fail"),
        (0, 1_000_001, "fail"),
        (MAX_INT, DISTANCE_CAP_PPB, "fail"),
    ],
)
def test_verdict(device_class: str, excess: int, distance: int, expected: str) -> None:
    assert verdict(device_class, excess, distance) == expected


def test_bfloat16_is_judged_more_widely() -> None:
    assert verdict("cpu-bf16", 30_000_000, 40_000_000) == "pass"
    assert verdict("cpu-bf16", 30_000_001, 0) == verdict("cpu-bf16", 0, 80_000_000) == "grey"
    assert verdict("cpu-bf16", 40_000_001, 0) == verdict("cpu-bf16", 0, 80_000_001) == "fail"


def test_an_unknown_device_class_has_no_verdict() -> None:
    assert DEVICE_CLASSES == ("cpu-fp32", "cuda-fp32", "cpu-bf16")
    with pytest.raises(KeyError):
        thresholds("cuda-bf16")


# draws

UNIT = Unit(job="00" * 32, round=0, slot=0, worker=key_of("w1").account, status="accepted")


@pytest.mark.parametrize(("steps", "count"), [(1, 1), (2, 2), (3, 3), (4, 3), (1_000, 3)])
def test_opened_steps_are_the_last_and_distinct_others(steps: int, count: int) -> None:
    for salt in range(20):
        found = compute_opened_steps(f"{salt:064x}", UNIT, key_of("w2").account, steps, 3)
        assert len(found) == len(set(found)) == count
        assert found == tuple(sorted(found))
        assert found[-1] == steps - 1
        assert found[0] >= 0


def test_every_step_can_be_drawn_and_each_auditor_has_its_own() -> None:
    drawn = {
        step for salt in range(200) for step in compute_opened_steps(f"{salt:064x}", UNIT, key_of("w2").account, 10, 3)
    }
    assert drawn == set(range(10))
    draws = {compute_opened_steps("00" * 32, UNIT, key_of(name).account, 1_000, 3) for name in ("w2", "w3", "val")}
    assert len(draws) == 3


def test_the_draw_order_depends_on_the_beacon_alone_and_favours_nobody() -> None:
    accounts = [key_of(name).account for name in ("w1", "w2", "w3")]
    firsts = [compute_draw_order(accounts, "t", f"{salt:064x}", 1)[0] for salt in range(300)]
    assert compute_draw_order(reversed(accounts), "t", "00" * 32, 1) == compute_draw_order(accounts, "t", "00" * 32, 1)
    assert all(70 < firsts.count(account) < 130 for account in accounts)
