"""The signed entries of the market, as typed records, and the envelope that carries them.

An envelope is the canonical JSON ``{"body":{...},"sig":"<128 hex>"}``.  The
signature covers (network id, "entry", the body's own bytes).  An entry's id is
the SHA-256 of its body bytes under a domain tag, so a second signature of the
same body is the same entry.  Signed bytes are stored and hashed as received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from gdf_market import identity
from gdf_market.codec import (
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
)
from gdf_market.errors import MalformedError, UsageError
from gdf_market.statements import Statement
from gdf_market.units import PPM

MAX_ENTRY_BYTES = 32_768
MAX_UNITS_PER_ROUND = 64
MAX_ROUNDS = 10_000
MAX_SHARDS = 65_536
MAX_STEPS = 1_000  # inner steps of a unit
SKETCH_DIM = 32  # integers in one sketch
MAX_OPENINGS = 8
MAX_CLASSES = 16  # device classes that one account declares

MAX_PROCESSES = 64  # that compute one unit together
Processes = Annotated[int, msgspec.Meta(ge=1, le=MAX_PROCESSES)]

Slot = Annotated[int, msgspec.Meta(ge=0, lt=MAX_UNITS_PER_ROUND)]
Slots = Annotated[tuple[Slot, ...], msgspec.Meta(max_length=MAX_UNITS_PER_ROUND)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
DeviceClass = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9.-]{0,31}\Z")]


class Recipe(Record, frozen=True, kw_only=True):
    """How one unit trains, and how a round's updates become the next checkpoint.

    Units: ``_e9`` is 1e-9 of the natural value, ``_ppm`` 1e-6.
    """

    inner: Annotated[str, msgspec.Meta(pattern=r"\A(adamw|muon|sgd)\Z")]
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]  # H, inner steps per unit
    batch: Annotated[int, msgspec.Meta(ge=1, le=65_536)]  # samples per step
    lr_e9: Positive
    beta1_ppm: Ppm
    beta2_ppm: Ppm
    weight_decay_ppm: Ppm
    clip_ppm: UInt  # global gradient norm limit; 0 means none
    rewarm_steps: UInt  # linear learning-rate warm-up at the start of each unit
    outer_lr_ppm: UInt
    outer_momentum_ppm: Ppm
    codec_bits: Annotated[int, msgspec.Meta(ge=2, le=8)]
    codec_block: Annotated[int, msgspec.Meta(ge=16, le=4_096)]
    codec_density_ppm: Ppm = PPM  # share of values that an update holds; PPM means all: dense
    precision: Annotated[str, msgspec.Meta(pattern=r"\A(fp32|bf16)\Z")] = "fp32"  # bf16: autocast over float32 weights
    schedule: Annotated[str, msgspec.Meta(pattern=r"\A(constant|linear|cosine)\Z")] = "constant"
    schedule_steps: UInt = 0  # steps of the whole job at whose end the schedule has come down; 0 if constant
    warmup_steps: UInt = 0  # linear warm-up at the start of the whole job
    final_lr_ppm: Ppm = 0  # share of the learning rate that the schedule ends with


class Body(Record, frozen=True, kw_only=True, tag_field="kind"):
    """Fields every signed body has."""

    author: AccountId
    nonce: UInt  # unique per author until ``expires_ms``
    expires_ms: UInt  # block time after which the entry is refused


class Void(Body, frozen=True, kw_only=True, tag="void"):
    """Use up a nonce, so that another entry with it, such as an order not posted yet, never comes to the ledger.

    It does nothing else: that a nonce is used once is what makes it binding.
    """


class Transfer(Body, frozen=True, kw_only=True, tag="transfer"):
    """Move credits from the author to another account."""

    to: AccountId
    amount: Positive
    memo: Text


class JobPost(Body, frozen=True, kw_only=True, tag="job_post"):
    """A training job; the same envelope is the order in the gossip order book."""

    title: Name
    program: Hash  # blob id of the data-only program
    data: Hash  # blob id of the data manifest
    checkpoint: Hash  # blob id of the first checkpoint
    parameters: Positive  # trained values in the flat vector
    tokens_per_unit: UInt  # for reports; 0 if the data has no tokens
    recipe: Recipe
    device_class: DeviceClass
    rounds: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROUNDS)]
    units_per_round: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_ROUND)]
    warm_rounds: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROUNDS)] = 0  # first rounds, of one unit each
    shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]
    min_workers: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_ROUND)]
    reserve_price: Positive  # micro-credits per accepted unit
    unit_bond: UInt  # micro-credits a worker locks per unit slot it wins
    merit_ppm: Ppm  # merit pot as a share of a round's base pay
    audit_fee: UInt  # micro-credits per opened audit
    audit_budget: UInt  # micro-credits for all audits
    audit_floor_ppm: Ppm  # lower bound of the audit probability per unit
    bid_ms: Positive  # bidding window of an epoch
    work_ms: Positive
    reveal_ms: Positive
    receipt_ms: Positive
    result_ms: Positive
    audit_ms: Positive  # time for each step of an audit or dispute
    hold_ms: Positive  # pay is held this long after its round settled
    deadline_ms: UInt  # block time at which the job expires whatever happened

    def most_units(self) -> int:
        """Return the units of the job if every round has all of its own; a warm round has one."""
        return self.warm_rounds + (self.rounds - self.warm_rounds) * self.units_per_round


class JobCancel(Body, frozen=True, kw_only=True, tag="job_cancel"):
    """The owner ends its job; rounds under way still settle."""

    job: Hash


class Bid(Body, frozen=True, kw_only=True, tag="bid"):
    """Offer to run up to ``units`` units per round at ``price`` each or better; locks the bond."""

    job: Hash
    price: Positive  # micro-credits per unit
    units: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_ROUND)]
    device_class: DeviceClass


class BidWithdraw(Body, frozen=True, kw_only=True, tag="bid_withdraw"):
    """Take a bid back; a matched worker leaves at the end of the round."""

    job: Hash


class Commit(Body, frozen=True, kw_only=True, tag="commit"):
    """Binding but hidden claim of one finished unit (see ``commitment``)."""

    job: Hash
    round: UInt
    slot: Slot
    digest: Hash


class Reveal(Body, frozen=True, kw_only=True, tag="reveal"):
    """Opens a commit: the shard drawn by VRF, the update's blob id, the root over step sketches.

    ``rows`` (0: all) and ``processes``: the parts in which the worker computed its batches, so that an auditor whose
    own parts give another result can compute it in the same ones: the worker need not trust the program's claim that
    parts change nothing.
    """

    job: Hash
    round: UInt
    slot: Slot
    update: Hash
    proof: VrfProof  # over shard_alpha(); beta modulo the job's shards is the shard
    sketch_root: Hash
    salt: Hash
    rows: UInt = 0
    processes: Processes = 1


class Receipt(Body, frozen=True, kw_only=True, tag="receipt"):
    """An attester's statement of which slots' updates it holds, well-formed."""

    job: Hash
    round: UInt
    holds: Slots


class Rejected(Record, frozen=True, kw_only=True):
    """A slot left out of the aggregate by a form check."""

    slot: Slot
    reason: Name


class Flag(Record, frozen=True, kw_only=True):
    """One similarity finding: ``other`` is the second slot, or the same slot if there is none."""

    slot: Slot
    other: Slot
    reason: Name  # "twin-differs" | "duplicate" | "outlier"
    value_ppm: Int


class Outcome(Record, frozen=True, kw_only=True):
    """The deterministic result of a round; every honest attester computes the same bytes."""

    checkpoint: Hash  # blob id of the next checkpoint
    included: Slots  # ascending
    rejected: Annotated[tuple[Rejected, ...], msgspec.Meta(max_length=MAX_UNITS_PER_ROUND)]
    merit_ppm: Annotated[tuple[Ppm, ...], msgspec.Meta(max_length=MAX_UNITS_PER_ROUND)]  # aligned with included
    cosine_ppm: Annotated[tuple[Int, ...], msgspec.Meta(max_length=MAX_UNITS_PER_ROUND)]  # leave-one-out, aligned
    suspicion: Slots  # included slots, most suspicious first
    flags: Annotated[tuple[Flag, ...], msgspec.Meta(max_length=MAX_UNITS_PER_ROUND)]


class Result(Body, frozen=True, kw_only=True, tag="result"):
    """An attester's vote for a round's outcome, with its own (not agreed) loss measurement."""

    job: Hash
    round: UInt
    outcome: Outcome
    loss_e6: Int  # validation loss of the new checkpoint in micro-nats; -1 if not measured


class AuditCommit(Body, frozen=True, kw_only=True, tag="audit_commit"):
    """An auditor re-executed a unit and commits to what it found (see ``audit_commitment``)."""

    job: Hash
    round: UInt
    slot: Slot
    role: Annotated[str, msgspec.Meta(pattern=r"\A(lottery|targeted|committee|challenge)\Z")]
    proof: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{160})?\Z")]  # VRF over audit_alpha() for the lottery
    digest: Hash


Sketch = Annotated[tuple[Int, ...], msgspec.Meta(min_length=SKETCH_DIM, max_length=SKETCH_DIM)]


class Opening(Record, frozen=True, kw_only=True):
    """One step's sketch with its RFC 9162 inclusion path in the sketch tree."""

    step: Annotated[int, msgspec.Meta(ge=0, lt=MAX_STEPS)]
    sketch: Sketch
    path: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=16)]


Openings = Annotated[tuple[Opening, ...], msgspec.Meta(max_length=MAX_OPENINGS)]


class SketchOpen(Body, frozen=True, kw_only=True, tag="sketch_open"):
    """The worker opens its sketches at the steps that the beacon chose after the audit's commit."""

    job: Hash
    round: UInt
    slot: Slot
    openings: Openings


class AuditOpen(Body, frozen=True, kw_only=True, tag="audit_open"):
    """The auditor opens its commit: distances of the claim from its own run, and its sketches."""

    job: Hash
    round: UInt
    slot: Slot
    excess_ppb: UInt  # rounding excess (design of quantised verdicts)
    distance_ppb: UInt  # relative L2 distance of the decoded updates
    sketch_root: Hash
    salt: Hash
    openings: Openings


class AuditClasses(Body, frozen=True, kw_only=True, tag="audit_classes"):
    """The device classes whose units the author can audit from now on; replaces what it declared before."""

    classes: Annotated[tuple[DeviceClass, ...], msgspec.Meta(max_length=MAX_CLASSES)]


class BisectOpen(Body, frozen=True, kw_only=True, tag="bisect_open"):
    """Worker or accuser opens its sketch at the middle of the steps that are in question."""

    job: Hash
    round: UInt
    slot: Slot
    opening: Opening


class StateOffer(Body, frozen=True, kw_only=True, tag="state_offer"):
    """Worker or accuser names its state after the last step that both agree on, and serves it as a blob."""

    job: Hash
    round: UInt
    slot: Slot
    state: Hash


class ArbiterCommit(Body, frozen=True, kw_only=True, tag="arbiter_commit"):
    """An arbiter compared both states, replayed the step and commits to what it found (see ``arbiter_commitment``)."""

    job: Hash
    round: UInt
    slot: Slot
    digest: Hash


class ArbiterOpen(Body, frozen=True, kw_only=True, tag="arbiter_open"):
    """The arbiter opens its commit: the distance of the states, the step's sketches, the excess of the claim."""

    job: Hash
    round: UInt
    slot: Slot
    state_distance_ppb: UInt  # of the accuser's state from the worker's, in full; 0 from the checkpoint
    excess_ppb: UInt  # of the claim over the worker's last state; 0 where a step was replayed
    sketch: Sketch  # after the step from the worker's state
    seeded: Sketch  # the same under the projection of the dispute's seed
    salt: Hash


class ValidatorJoin(Body, frozen=True, kw_only=True, tag="validator_join"):
    """Lock the network's validator bond and wait for a seat; taken at an epoch's end, in the order of joining."""


class ValidatorLeave(Body, frozen=True, kw_only=True, tag="validator_leave"):
    """Give up the seat (or the place in the queue) at the epoch's end; the bond unlocks after the evidence window."""


class Evidence(Body, frozen=True, kw_only=True, tag="evidence"):
    """Two signed statements that one honest validator cannot have made (see ``gdf_market/statements.py``)."""

    first: Statement
    second: Statement


EntryBody = (
    Void
    | Transfer
    | JobPost
    | JobCancel
    | Bid
    | BidWithdraw
    | Commit
    | Reveal
    | Receipt
    | Result
    | AuditCommit
    | SketchOpen
    | AuditOpen
    | AuditClasses
    | BisectOpen
    | StateOffer
    | ArbiterCommit
    | ArbiterOpen
    | ValidatorJoin
    | ValidatorLeave
    | Evidence
)


class Envelope(Record, frozen=True, kw_only=True):
    """Wire form of a signed body; ``body`` keeps the author's exact bytes."""

    body: msgspec.Raw
    sig: Signature


@dataclass(frozen=True)
class Entry:
    """A decoded entry whose signature was checked; ``raw`` is the envelope as received."""

    id: str
    body: EntryBody
    raw: bytes


def seal(key: identity.Identity, network: str, body: EntryBody) -> Entry:
    """Sign ``body`` with ``key`` and return the entry.

    Raises UsageError for a value that every receiver would refuse, OversizedError for a body that is too long.
    """
    assert body.author == key.account, "an entry is signed by its author"
    data = encode(body)
    signature = key.sign(network, "entry", data)
    raw = b'{"body":' + data + b',"sig":"' + signature.hex().encode() + b'"}'
    try:
        return open_entry(raw, network, check_signature=False)  # what we sign is what others accept
    except MalformedError as error:
        raise UsageError(str(error)) from None


def open_entry(raw: bytes, network: str, *, check_signature: bool = True) -> Entry:
    """Decode an envelope and verify its author's signature.

    Raises OversizedError, MalformedError or SignatureError.
    """
    data, signature = _split(raw)
    try:
        body: EntryBody = decode(data, EntryBody, max_bytes=MAX_ENTRY_BYTES)  # type: ignore[arg-type]
    except MalformedError:
        decode(raw, Envelope, max_bytes=MAX_ENTRY_BYTES)  # what is no envelope is called that
        raise
    if check_signature:
        identity.verify(network, "entry", body.author, data, bytes.fromhex(signature))
    return Entry(entry_id(data), body, raw)


def _split(raw: bytes) -> tuple[bytes, str]:
    """Return body bytes and signature of an envelope whose form is canonical if its body's is.

    Raises OversizedError or MalformedError.
    """
    data, signature = raw[8:-138], raw[-130:-2]
    plain = len(raw) <= MAX_ENTRY_BYTES and raw == b'{"body":' + data + b',"sig":"' + signature + b'"}'
    if plain and len(signature) == 128 and not signature.strip(b"0123456789abcdef"):
        return data, signature.decode()  # costs a tenth of decoding and encoding it again
    envelope = decode(raw, Envelope, max_bytes=MAX_ENTRY_BYTES)
    return bytes(envelope.body), envelope.sig


def entry_id(body: bytes) -> str:
    """Return the hex id of an entry from its body bytes."""
    return digest("gdf/entry", body).hex()


# What the lotteries and commitments hash.  All take hex or plain text fields and are bit-exact.


def _position(job: str, round_index: int, slot: int) -> bytes:
    return bytes.fromhex(job) + round_index.to_bytes(8, "big") + slot.to_bytes(4, "big")


def shard_alpha(job: str, round_index: int, slot: int, seed: str) -> bytes:
    """Return the VRF input whose output draws a unit's data shard; ``seed`` is the round's (hex)."""
    return digest("gdf/shard", _position(job, round_index, slot), bytes.fromhex(seed))


def audit_alpha(job: str, round_index: int, slot: int, seed: str) -> bytes:
    """Return the VRF input of the private audit lottery; ``seed`` is the round's audit seed (hex)."""
    return digest("gdf/audit", _position(job, round_index, slot), bytes.fromhex(seed))


def draw(beta: bytes, modulus: int) -> int:
    """Return the VRF output reduced to 0..modulus-1 (bias below 2**-448 for modulus < 2**64)."""
    return int.from_bytes(beta, "big") % modulus


def lottery_wins(beta: bytes, chance_ppm: int) -> bool:
    """Say whether a 64-byte VRF output wins a lottery of the given chance."""
    return draw(beta, 1_000_000) < chance_ppm


def commitment(author: str, update: str, proof: str, sketch_root: str, salt: str) -> str:
    """Return the digest of Commit for what Reveal will open."""
    parts = (author.encode(), bytes.fromhex(update), bytes.fromhex(proof), bytes.fromhex(sketch_root))
    return digest("gdf/commit", *parts, bytes.fromhex(salt)).hex()


def audit_commitment(author: str, excess_ppb: int, distance_ppb: int, sketch_root: str, salt: str) -> str:
    """Return the digest of AuditCommit for what AuditOpen will open."""
    numbers = excess_ppb.to_bytes(8, "big") + distance_ppb.to_bytes(8, "big")
    parts = (author.encode(), numbers, bytes.fromhex(sketch_root), bytes.fromhex(salt))
    return digest("gdf/audit-commit", *parts).hex()


def arbiter_commitment(
    author: str, state_distance_ppb: int, excess_ppb: int, sketch: tuple[int, ...], seeded: tuple[int, ...], salt: str
) -> str:
    """Return the digest of ArbiterCommit for what ArbiterOpen will open."""
    numbers = state_distance_ppb.to_bytes(8, "big") + excess_ppb.to_bytes(8, "big")
    parts = (author.encode(), numbers, encode(list(sketch)), encode(list(seeded)), bytes.fromhex(salt))
    return digest("gdf/arbiter-commit", *parts).hex()


def sketch_leaf(step: int, sketch: tuple[int, ...]) -> bytes:
    """Return the bytes of one leaf of a sketch tree."""
    return encode({"sketch": list(sketch), "step": step})
