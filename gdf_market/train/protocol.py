"""Requests and replies between a node and its runner, one JSON object per line; no torch.

Both ends are on one machine and of one version, so numbers here may be floats.
Paths are absolute.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gdf_market.codec import Hash, Positive, Record, UInt
from gdf_market.messages import MAX_PROCESSES, MAX_SHARDS, MAX_STEPS, Flag, Processes, Recipe, Rejected, Slot

MAX_LINE_BYTES = 8 * 2**20  # a reply with the sketches of 1000 steps is about 0.6 MB
POISONS = ("", "sign-flip", "label-flip", "lazy", "noise")
DEFAULT_MEMORY_BYTES = 16 * 2**30
MAX_DEVICES = MAX_PROCESSES

Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
DEVICE_PATTERN = r"^(cpu|cuda(:[0-9]{1,2})?)$"
OptionalPath = Annotated[str, msgspec.Meta(max_length=4_096)]
Device = Annotated[str, msgspec.Meta(pattern=DEVICE_PATTERN)]


class Request(Record, frozen=True, kw_only=True, tag_field="op"):
    """What every request may say about resources; ``threads`` 0 means GDF_THREADS, or 1.

    ``devices``: where a unit is computed by several processes, one for each; they share ``threads``, and
    ``memory_bytes`` is what each may take.
    """

    threads: Annotated[int, msgspec.Meta(ge=0, le=1_024)] = 0
    device: Device = "cpu"
    memory_bytes: Positive = DEFAULT_MEMORY_BYTES
    devices: Annotated[tuple[Device, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()


class UnitParts(Record, frozen=True, kw_only=True):
    """Fields of unit.Parts."""

    rows: UInt = 0
    processes: Processes = 1


class DataFields(Request, frozen=True, kw_only=True):
    """A program, its data and a checkpoint."""

    program: Path
    data: Path
    content: Path
    checkpoint: Path


class UnitFields(DataFields, frozen=True, kw_only=True):
    """What a unit is a pure function of.

    ``parts``: in which the batches are to be computed, whatever fits the memory better; without, the largest that fit
    it.  A program whose batches cannot be computed in parts ignores them.
    """

    recipe: Recipe
    job: Hash
    round: UInt
    done: UInt  # rounds that were completed before it
    shard: UInt
    shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]
    parts: UnitParts | None = None


class TrainRequest(UnitFields, frozen=True, kw_only=True, tag="train"):
    out: Path
    poison: Annotated[str, msgspec.Meta(pattern=r"\A(sign-flip|label-flip|lazy|noise)?\Z")] = ""


class AuditRequest(UnitFields, frozen=True, kw_only=True, tag="audit"):
    claim: Path


class StateRequest(UnitFields, frozen=True, kw_only=True, tag="state"):
    """The unit's state after ``step`` steps, written as safetensors (see unit_state.py)."""

    step: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
    out: Path


class ReplayRequest(UnitFields, frozen=True, kw_only=True, tag="replay"):
    """Compare two states of the unit before step ``step`` (0-based), and run that one step from the worker's.

    At step 0 both states are "", the checkpoint.  At ``recipe.steps`` nothing is run, but ``claim``, the worker's
    encoded update, is measured; otherwise it is "".  ``seed``: of a second projection for the sketch.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS)]
    worker_state: OptionalPath = ""
    accuser_state: OptionalPath = ""
    claim: OptionalPath = ""
    seed: Hash


class OutcomeRequest(Request, frozen=True, kw_only=True, tag="outcome"):
    program: Path
    checkpoint: Path
    recipe: Recipe
    updates: dict[Slot, Path]
    shards: dict[Slot, UInt]
    out: Path


class EvaluateRequest(DataFields, frozen=True, kw_only=True, tag="evaluate"):
    """The validation loss of a checkpoint."""


class StatisticsRequest(DataFields, frozen=True, kw_only=True, tag="statistics"):
    """The running statistics of batch norm that belong to a checkpoint, written as safetensors."""

    out: Path


class ProbeRequest(DataFields, frozen=True, kw_only=True, tag="probe"):
    recipe: Recipe
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] = 5


AnyRequest = (
    TrainRequest
    | AuditRequest
    | StateRequest
    | ReplayRequest
    | OutcomeRequest
    | EvaluateRequest
    | StatisticsRequest
    | ProbeRequest
)

Sketches = tuple[tuple[int, ...], ...]


class TrainReply(Record, frozen=True, kw_only=True):
    """``sketches[i]`` is the sketch after step i; losses are those of the first and last step."""

    update_path: str
    sketches: Sketches
    loss_first: float
    loss_last: float
    seconds: float
    parts: UnitParts = UnitParts()


class AuditReply(Record, frozen=True, kw_only=True):
    excess_ppb: UInt
    distance_ppb: UInt
    sketches: Sketches
    seconds: float
    parts: UnitParts = UnitParts()


class StateReply(Record, frozen=True, kw_only=True):
    """``sketch`` is that of the state: of the unit's change after its last step."""

    path: str
    sketch: tuple[int, ...]


class ReplayReply(Record, frozen=True, kw_only=True):
    """``sketch`` and ``seeded`` (under the request's projection) are those of the unit's change after the step.

    ``state_distance_ppb`` is relative to the worker's state.  ``excess_ppb`` is that of the claim over the worker's
    state, 0 unless nothing was run.
    """

    state_distance_ppb: UInt
    sketch: tuple[int, ...]
    seeded: tuple[int, ...]
    excess_ppb: UInt


class OutcomeReply(Record, frozen=True, kw_only=True):
    """The fields of messages.Outcome except the checkpoint's blob id, and where the checkpoint lies."""

    checkpoint_path: str
    included: tuple[int, ...]
    rejected: tuple[Rejected, ...]
    merit_ppm: tuple[int, ...]
    cosine_ppm: tuple[int, ...]
    suspicion: tuple[int, ...]
    flags: tuple[Flag, ...]


class EvaluateReply(Record, frozen=True, kw_only=True):
    loss_e6: int  # mean validation loss in micro-nats


class StatisticsReply(Record, frozen=True, kw_only=True):
    path: str
    tensors: int  # 0 for a program without running statistics


class ProbeReply(Record, frozen=True, kw_only=True):
    """``excess_ppb``: how far the same steps, computed in another order of additions, are from the first ones: what an
    honest audit would find."""

    seconds_per_step: float
    excess_ppb: UInt
    memory_bytes: int  # upper bound of what a step takes in each process
    rows: int  # of a batch that are computed at once; 0 for all


class Helped(Record, frozen=True, kw_only=True):
    """Reply of a process that computed its part of a unit whose result another one has."""

    helped: bool = True


class Progress(Record, frozen=True, kw_only=True):
    """Step ``progress`` of ``of`` is done."""

    progress: int
    of: int


class Failure(Record, frozen=True, kw_only=True):
    """``kind`` is the class name of the error."""

    error: str
    kind: str
