"""A state of a unit: one step from it is the unit's own, bit for bit; states that nobody can reach are refused."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from train_kit import JOB, dataset, program, recipe, write_job

from gdf_market.errors import GdfError, MalformedError, OversizedError
from gdf_market.messages import SKETCH_DIM, Recipe
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.errors import DivergedError
from gdf_market.train.graph import Group, Node, Parameter
from gdf_market.train.operations import Operations, Verification
from gdf_market.train.operators import DROPOUT
from gdf_market.train.optimizers import state_layout
from gdf_market.train.program import Program
from gdf_market.train.protocol import ReplayRequest, StateRequest, TrainRequest
from gdf_market.train.replay import load_state
from gdf_market.train.unit_state import (
    StateError,
    UnitState,
    most_state_bytes,
    pack_state,
    state_bytes,
    state_distance_ppb,
    unpack_state,
)
from gdf_market.units import MAX_INT
from verifier.outcome import compute_outcome
from verifier.sketch import sketch
from verifier.verdict import measure

SEED = "5e" * 32
STEPS = 6


def with_dropout() -> Program:
    """The language model with dropout of a quarter after the embedding."""
    nodes = (
        Node(op="aten.embedding.default", args=[{"value": 0}, {"value": 2}], kwargs={}),
        Node(op="aten.mul.Tensor", args=[{"value": 5}, {"value": 4}], kwargs={}),
        Node(op=DROPOUT, args=[{"value": 6}, {"float": (0.25).hex()}], kwargs={}),
        Node(op="aten.linear.default", args=[{"value": 7}, {"value": 1}], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 8}, [-1, dataset().vocab]], kwargs={}),
        Node(op="aten.reshape.default", args=[{"value": 3}, [-1]], kwargs={}),
        Node(op="aten.cross_entropy_loss.default", args=[{"value": 9}, {"value": 10}], kwargs={}),
    )
    return program(nodes=nodes, output=11)


def with_muon() -> Program:
    """The head's matrix goes to Muon, the table to AdamW."""
    vocab = dataset().vocab
    parameters = (Parameter(name="table", shape=(vocab, 8), group=0), Parameter(name="head", shape=(vocab, 8), group=1))
    return program(parameters=parameters, groups=(Group(decay_ppm=0), Group(lr_ppm=500_000, muon=True)))


CASES: dict[str, tuple[Program, Recipe, set[str]]] = {
    "adamw": (program(), recipe(weight_decay_ppm=10_000), {"adam.first", "adam.second"}),
    "muon": (with_muon(), recipe(inner="muon"), {"adam.first", "adam.second", "muon.momentum"}),
    "sgd": (program(), recipe(inner="sgd"), {"sgd.momentum"}),
    "sgd without momentum": (program(), recipe(inner="sgd", beta1_ppm=0), set()),
    "dropout": (with_dropout(), recipe(), {"adam.first", "adam.second"}),
    "schedule": (
        program(),
        recipe(schedule="cosine", schedule_steps=40, warmup_steps=14, final_lr_ppm=100_000, rewarm_steps=4),
        {"adam.first", "adam.second"},
    ),
    "bf16": (program(), recipe(precision="bf16", codec_bits=8), {"adam.first", "adam.second"}),
}


class Unit:
    """A unit on disk and a runner's operations, without a process."""

    def __init__(self, folder: Path, made: Program, settings: Recipe) -> None:
        self.folder, self.program, self.recipe = folder, made, settings
        self._operations = Operations(Verification(sketch, measure, compute_outcome), lambda _done, _of: None)
        files = write_job(folder, made)
        self._fields: dict[str, Any] = {
            name: str(getattr(files, name)) for name in ("program", "data", "content", "checkpoint")
        }
        self._fields |= {"recipe": settings, "job": JOB, "round": 3, "done": 2, "shard": 1, "shards": 4}

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def start(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return unpack(Path(self._fields["checkpoint"]).read_bytes(), self.program.size)[0]

    def train(self, out: str = "update") -> Any:
        return self._operations.perform(TrainRequest(**self._fields, out=self.path(out)))

    def state(self, step: int, **changes: Any) -> Any:
        return self._operations.perform(
            StateRequest(**(self._fields | changes), step=step, out=self.path(f"state-{step}"))
        )

    def replay(self, step: int, **given: Any) -> Any:
        states = {"worker_state": self.path(f"state-{step}"), "accuser_state": self.path(f"state-{step}")}
        values = {"seed": SEED, "claim": self.path("update") if step == STEPS else ""} | (states if step else {})
        return self._operations.perform(ReplayRequest(**self._fields, step=step, **(values | given)))

    def read(self, step: int, name: str = "") -> UnitState:
        found = load_state(self.path(name or f"state-{step}"), self.program, self.recipe, step)
        assert found is not None
        return found

    def write(self, state: UnitState, name: str) -> str:
        Path(self.path(name)).write_bytes(pack_state(state))
        return self.path(name)


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    return Unit(tmp_path, program(), recipe())


@pytest.mark.parametrize("case", CASES)
def test_one_step_from_a_state_is_the_units_own(tmp_path: Path, case: str) -> None:
    made, settings, kinds = CASES[case]
    unit = Unit(tmp_path, made, settings)
    own = unit.train()
    assert unit.replay(0).sketch == own.sketches[0]
    for step in range(1, STEPS + 1):
        given = unit.state(step)
        assert given.sketch == own.sketches[step - 1]
        assert Path(given.path).stat().st_size == state_bytes(state_layout(made.graph, settings), made.size, step)
        assert Path(given.path).stat().st_size <= most_state_bytes(made.size)
        found = unit.replay(step)
        assert found.sketch == own.sketches[min(step, STEPS - 1)]
        assert (found.state_distance_ppb, found.excess_ppb) == (0, 0)
        assert found.seeded != found.sketch
        assert len(found.seeded) == SKETCH_DIM
    assert set(unit.read(STEPS).optimizer) == kinds


def test_the_file_is_safetensors_with_the_programs_order(tmp_path: Path) -> None:
    unit = Unit(tmp_path, with_muon(), recipe(inner="muon"))
    unit.state(4)
    with safetensors.safe_open(unit.path("state-4"), "numpy") as file:
        assert file.metadata() == {"step": "4"}
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (the file is no mapping)
    half = unit.program.size // 2
    sizes = {"parameters": 2 * half, "adam.first": half, "adam.second": half, "muon.momentum": half}
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        name: (np.float32, (size,)) for name, size in sizes.items()
    }
    assert unit.read(4).parameters.tobytes() == found["parameters"].tobytes()
    assert float(np.abs(found["muon.momentum"]).max()) > 0


def test_the_second_projection_is_another_one_for_each_seed(unit: Unit) -> None:
    found = [unit.replay(0, seed=seed).seeded for seed in (SEED, SEED, "5f" * 32)]
    assert found[0] == found[1] != found[2]
    unit.state(1)
    change = unit.start() - unit.read(1).parameters
    assert found[0] == sketch(change, seed=bytes.fromhex(SEED))


def test_the_distance_is_the_largest_over_all_that_the_next_step_depends_on(unit: Unit) -> None:
    unit.state(3)
    state, start = unit.read(3), unit.start()
    change = start - state.parameters
    near = replace(state, parameters=start - change * np.float32(1.01))
    assert state_distance_ppb(start, state, near) == pytest.approx(10_000_000, rel=1e-3)
    for name in state.optimizer:
        bent = replace(near, optimizer={**state.optimizer, name: state.optimizer[name] * np.float32(1.5)})
        assert state_distance_ppb(start, state, bent) == pytest.approx(500_000_000, rel=1e-6)
    found = unit.replay(3, accuser_state=unit.write(near, "near"))
    assert found.state_distance_ppb == state_distance_ppb(start, state, near)
    assert found.sketch == unit.train().sketches[3], "the step starts from the worker's state"


def test_a_distance_from_nothing_is_as_large_as_can_be() -> None:
    start, zero = np.ones(4, np.float32), UnitState(1, np.ones(4, np.float32), {})
    assert state_distance_ppb(start, zero, zero) == 0
    assert state_distance_ppb(start, zero, UnitState(1, np.zeros(4, np.float32), {})) == MAX_INT
    huge = UnitState(1, np.full(4, 3e38, np.float32), {})
    assert state_distance_ppb(start, UnitState(1, np.full(4, 1.0 + 2**-20, np.float32), {}), huge) == MAX_INT


def test_at_the_end_the_claim_is_measured_and_nothing_is_run(unit: Unit) -> None:
    own = unit.train()
    unit.state(STEPS)
    state = unit.read(STEPS)
    bent = replace(state, parameters=unit.start() - (unit.start() - state.parameters) * np.float32(1.2))
    found = unit.replay(STEPS, worker_state=unit.write(bent, "bent"))
    assert found.excess_ppb > 1_000_000
    assert found.sketch != own.sketches[-1]
    assert unit.replay(STEPS).excess_ppb == 0


def damaged(unit: Unit) -> dict[str, bytes]:
    """Files that are no state after step 3, by what is wrong with them."""
    good = Path(unit.path("state-3")).read_bytes()
    length = struct.unpack_from("<Q", good)[0]
    header, values = json.loads(good[8 : 8 + length]), good[8 + length :]

    def with_header(**changes: Any) -> bytes:
        text = json.dumps(header | changes).encode()
        return struct.pack("<Q", len(text)) + text + values

    def with_value(place: int, value: float) -> bytes:
        changed = np.frombuffer(values, "<f4").copy()
        changed[place] = value
        return good[: 8 + length] + changed.tobytes()

    n = unit.program.size
    renamed = {("weights" if name == "parameters" else name): entry for name, entry in header.items()}
    text = json.dumps(renamed).encode()
    return {
        "nothing": b"",
        "random": b"x" * len(good),
        "a checkpoint": pack(unit.start(), unit.start()),
        "cut off": good[:-4],
        "too long": good + b"\0\0\0\0",
        "renamed": struct.pack("<Q", len(text)) + text + values,
        "another step": with_header(__metadata__={"step": "4"}),
        "two dimensions": with_header(parameters=header["parameters"] | {"shape": [1, n]}),
        "another dtype": with_header(parameters=header["parameters"] | {"dtype": "I32"}),
        "a header of any length": struct.pack("<Q", 2**63) + good[8:],
        "safetensors in another order": safetensors.numpy.save(
            {name: np.zeros(entry["shape"], np.float32) for name, entry in header.items() if name != "__metadata__"}
        ),
        "not a number": with_value(0, float("nan")),
        "infinite": with_value(n, float("inf")),
        "a negative second moment": with_value(2 * n, -1e-30),
    }


def test_files_that_are_no_state_are_refused(unit: Unit) -> None:
    unit.state(3)
    taken = []
    for what, data in damaged(unit).items():
        Path(unit.path("bad")).write_bytes(data)
        for side in ("worker_state", "accuser_state"):
            with contextlib.suppress(StateError, OversizedError):
                unit.replay(3, **{side: unit.path("bad")})
                taken.append((what, side))
    assert taken == []
    unit.replay(3)


def test_a_state_of_another_recipe_is_refused(tmp_path: Path) -> None:
    unit = Unit(tmp_path, program(), recipe())
    unit.state(3, recipe=recipe(inner="sgd"))
    with pytest.raises(StateError, match="not the state of this unit after step 3"):
        unit.replay(3)


@pytest.mark.parametrize(
    ("step", "given", "message"),
    [
        (7, {}, "the unit has 6"),
        (0, {"worker_state": "state-3"}, "takes no state"),
        (3, {"worker_state": ""}, "takes both states"),
        (3, {"accuser_state": ""}, "takes both states"),
        (3, {"claim": "update"}, "takes no claim"),
        (STEPS, {"claim": ""}, "takes the claim"),
    ],
)
def test_requests_that_say_too_little_or_too_much(unit: Unit, step: int, given: dict[str, str], message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        unit.replay(step, **given)


def test_a_unit_has_no_state_after_its_end(unit: Unit) -> None:
    with pytest.raises(MalformedError, match="the unit has 6"):
        unit.state(STEPS + 1)


def test_a_state_that_leaves_all_bounds_is_an_error_of_its_own(unit: Unit) -> None:
    unit.state(3)
    state = unit.read(3)
    wild = unit.write(replace(state, parameters=np.full_like(state.parameters, 3e38)), "wild")
    with pytest.raises(GdfError) as caught:
        unit.replay(3, worker_state=wild)
    assert isinstance(caught.value, DivergedError) or caught.value.reason == "sketch"  # type: ignore[attr-defined]
    with pytest.raises(DivergedError, match="not finite"):
        pack_state(replace(state, parameters=np.full_like(state.parameters, np.inf)))


def test_every_layout_fits_the_bound_that_needs_no_program() -> None:
    for made, settings, _ in CASES.values():
        layout = state_layout(made.graph, settings)
        longest = state_bytes(layout, made.size, 1_000)
        assert longest <= most_state_bytes(made.size)
        data = pack_state(
            UnitState(
                1_000,
                np.ones(made.size, np.float32),
                {name: np.ones(size, np.float32) for name, size in layout.items()},
            )
        )
        assert len(data) == longest
        assert pack_state(unpack_state(data, layout, made.size, 1_000)) == data


def test_requests_are_bounded() -> None:
    fields = {name: "x" for name in ("program", "data", "content", "checkpoint", "out")}
    values = {**fields, "recipe": recipe(), "job": JOB, "round": 0, "done": 0, "shard": 0, "shards": 1}
    raw = msgspec.json.encode({"op": "state", **values, "step": 1_001})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(raw, type=StateRequest)
