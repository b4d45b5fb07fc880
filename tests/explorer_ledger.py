"""A small ledger file for the explorer's tests: real signatures and proofs, every kind of record, sums that hold.

Two jobs: one done, one running with a paid, a held, a missed and a convicted
unit.  One entry's signature is altered after sealing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session, SQLModel, create_engine

from contracts.records import (
    Account,
    Active,
    Allocation,
    Audit,
    Bid,
    Dispute,
    Genesis,
    Job,
    Network,
    Reputation,
    Round,
    StateRecord,
    Target,
    Unit,
    Validator,
)
from contracts.state import network_id
from gdf_market import identity, merkle, messages, vrf
from gdf_market.codec import encode
from gdf_market.identity import Identity
from gdf_market.messages import Entry, EntryBody, Flag, JobPost, Outcome, Recipe, Rejected
from gdf_market.units import CREDIT, MINUTE_MS
from ledger import block as blocks
from ledger.tables import BlockRow, EntryRow, EpochRow, EventRow, MetaRow, RecordRow

START_MS = 1_796_000_000_000
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>{{7*7}}"
DEVICE = "cpu-fp32"
PRICE = 3 * CREDIT
SHARDS = 64


def hash_of(text: str) -> str:
    """Return a hash that stands for some content."""
    return hashlib.sha256(text.encode()).hexdigest()


def identity_of(name: str) -> Identity:
    """Return the same identity for the same name."""
    return Identity(hashlib.sha256(name.encode()).digest())


RECIPE = Recipe(
    inner="adamw",
    steps=20,
    batch=8,
    lr_e9=1_000_000,
    beta1_ppm=900_000,
    beta2_ppm=950_000,
    weight_decay_ppm=10_000,
    clip_ppm=1_000_000,
    rewarm_steps=10,
    outer_lr_ppm=1_000_000,
    outer_momentum_ppm=500_000,
    codec_bits=4,
    codec_block=128,
)


@dataclass
class Build:
    """A ledger under construction; ``pots`` follows every credit, so records and events agree."""

    owner: Identity = field(default_factory=lambda: identity_of("owner"))
    workers: list[Identity] = field(default_factory=lambda: [identity_of(f"worker {n}") for n in range(4)])
    validators: list[Identity] = field(default_factory=lambda: [identity_of(f"validator {n}") for n in range(4)])
    time_ms: int = START_MS
    pots: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    records: dict[str, StateRecord] = field(default_factory=dict)
    rows: list[SQLModel] = field(default_factory=list)
    pending: list[Entry] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)
    height: int = 0
    parent: str = ""
    parent_beacon: str = ""
    nonce: int = 0

    def __post_init__(self) -> None:
        everyone = [self.owner, *self.workers, *self.validators]
        self.genesis = Genesis(
            name="example",
            test_network=True,
            time_ms=START_MS,
            allocations=tuple(
                Allocation(account=key.account, balance=1_000 * CREDIT, stake=100 * CREDIT * (key in self.validators))
                for key in everyone
            ),
            validators=tuple(key.account for key in self.validators),
            block_ms=500,
            heartbeat_ms=5_000,
            audit_bond=CREDIT,
            max_void_rounds=3,
        )
        self.network = network_id(self.genesis)
        self.parent, self.parent_beacon = self.network, blocks.genesis_beacon(self.network)
        for allocation in self.genesis.allocations:
            self.pots[allocation.account] = allocation.balance

    # entries, events and blocks

    def post(self, key: Identity, kind: type[EntryBody], **fields: object) -> Entry:
        """Seal an entry for the next block."""
        self.nonce += 1
        common = {"author": key.account, "nonce": self.nonce, "expires_ms": self.time_ms + MINUTE_MS}
        entry = messages.seal(key, self.network, kind(**common, **fields))
        self.pending.append(entry)
        return entry

    def move(self, kind: str, source: str, target: str, amount: int, **where: object) -> None:
        """Move credits between accounts and named pots of a job or unit, and note the event."""
        unit = f"{where.get('job', '')}/{where.get('round', '')}/{where.get('slot', '')}"
        for name, sign in ((source, -1), (target, 1)):
            if name == "held":
                key = f"held {'merit' if kind == 'merit' else 'pay'} {unit}"
            elif name == "bond":
                key = f"bond {unit} {where['account']}"
            else:
                key = name if name.startswith("12D3") else f"{name} {where.get('job')}"
            self.pots[key] += sign * amount
            assert self.pots[key] >= 0, f"{key} is overdrawn by {kind}"
        self.note(kind, source=source, target=target, amount=amount, **where)

    def note(self, kind: str, **fields: object) -> None:
        """Add an event to the next block."""
        names = {"job": "", "round": -1, "slot": -1, "account": "", "source": "", "target": "", "amount": 0}
        self.events.append(names | {"kind": kind, "reason": "", "entry": ""} | fields)

    def seal_block(self) -> None:
        """Put everything pending into a block with real proofs."""
        self.height += 1
        self.time_ms += 4_000
        proposer = self.validators[self.height % len(self.validators)]
        alpha = blocks.beacon_alpha(self.network, self.parent_beacon, self.height)
        proof = vrf.prove(proposer.seed, alpha)
        raws = [entry.raw for entry in self.pending]
        header = blocks.Header(
            network=self.network,
            height=self.height,
            slot=self.height,
            epoch=0,
            parent=self.parent,
            parent_slot=self.height - 1,
            proposer=proposer.account,
            time_ms=self.time_ms,
            entries_root=merkle.root(raws).hex(),
            entry_count=len(raws),
            state_root=hash_of(f"state {self.height}"),
            validators=blocks.set_hash(self.genesis.validators),
            beacon=blocks.next_beacon(self.parent_beacon, vrf.output(proof)),
            vrf_proof=proof.hex(),
        )
        sealed = blocks.seal_block(proposer, header, raws)
        self.rows.append(self._block_row(sealed))
        self.rows += [self._entry_row(entry, position) for position, entry in enumerate(self.pending)]
        self.rows += [
            EventRow(height=self.height, position=position, **event) for position, event in enumerate(self.events)
        ]
        self.pending, self.events = [], []
        self.parent, self.parent_beacon = sealed.hash, header.beacon

    def _block_row(self, sealed: blocks.Block) -> BlockRow:
        header = sealed.header
        votes = [
            blocks.cast(key, self.network, 0, blocks.FINAL, header.slot, sealed.hash) for key in self.validators[:3]
        ]
        certificate = blocks.certify(votes, self.genesis.validators)
        return BlockRow(
            height=header.height,
            hash=sealed.hash,
            slot=header.slot,
            time_ms=header.time_ms,
            proposer=header.proposer,
            entry_count=header.entry_count,
            state_root=header.state_root,
            header=sealed.header_bytes,
            signature=sealed.signature,
            certified_height=header.height,
            certificate=encode(certificate),
        )

    def _entry_row(self, entry: Entry, position: int) -> EntryRow:
        body = entry.body
        job = entry.id if isinstance(body, JobPost) else getattr(body, "job", "")
        return EntryRow(
            id=entry.id,
            height=self.height,
            position=position,
            kind=body.__struct_config__.tag,
            author=body.author,
            job=job,
            raw=entry.raw,
        )

    def write(self, path: Path) -> Path:
        """Write the file."""
        engine = create_engine(f"sqlite:///{path}")
        SQLModel.metadata.create_all(engine)
        with Session(engine) as session:
            session.add(MetaRow(key="genesis", value=encode(self.genesis)))
            members = encode(list(self.genesis.validators))
            session.add(EpochRow(number=0, first_height=1, validators=members))
            session.add_all(self.rows)
            for key, record in self.records.items():
                kind = type(record).__name__.lower()
                session.add(RecordRow(key=key, kind=kind, value=encode(record), height=self.height))
            session.commit()
        engine.dispose()
        return path


def job_spec(title: str, rounds: int) -> dict[str, object]:
    """Return the terms of a job."""
    return {
        "title": title,
        "program": hash_of("program"),
        "data": hash_of("data"),
        "checkpoint": hash_of("checkpoint 0"),
        "parameters": 235_000,
        "tokens_per_unit": 20_480,
        "recipe": RECIPE,
        "device_class": DEVICE,
        "rounds": rounds,
        "units_per_round": 4,
        "shards": SHARDS,
        "min_workers": 2,
        "reserve_price": 4 * CREDIT,
        "unit_bond": 9 * CREDIT,
        "merit_ppm": 200_000,
        "audit_fee": CREDIT // 2,
        "audit_budget": 20 * CREDIT,
        "audit_floor_ppm": 100_000,
        "bid_ms": 20_000,
        "work_ms": 120_000,
        "reveal_ms": 20_000,
        "receipt_ms": 20_000,
        "result_ms": 20_000,
        "audit_ms": 60_000,
        "hold_ms": 300_000,
        "deadline_ms": START_MS + 1_000 * MINUTE_MS,
    }


@dataclass
class Unveiled:
    """What a worker revealed of one unit."""

    update: str
    proof: str
    sketch_root: str
    salt: str
    shard: int


def unveil(key: Identity, job: str, index: int, slot: int, seed: str) -> Unveiled:
    """Return a reveal with a real shard proof."""
    name = f"{job} {index} {slot}"
    proof = vrf.prove(key.seed, messages.shard_alpha(job, index, slot, seed))
    shard = messages.draw(vrf.output(proof), SHARDS)
    return Unveiled(hash_of("update" + name), proof.hex(), hash_of("sketch" + name), hash_of("salt" + name), shard)


@dataclass
class Running:
    """A job being built: what its record needs at the end."""

    build: Build
    entry: Entry
    units: dict[tuple[int, int], Unit] = field(default_factory=dict)
    rounds: int = 0

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def spec(self) -> JobPost:
        assert isinstance(self.entry.body, JobPost)
        return self.entry.body


def post_job(build: Build, title: str, rounds: int) -> Running:
    """Post a job, take bids of all workers (the last one too dear) and hold the auction."""
    entry = build.post(build.owner, JobPost, **job_spec(title, rounds))
    running = Running(build, entry)
    base = rounds * 4 * running.spec.reserve_price
    owner = build.owner.account
    build.move("escrow", owner, "escrow", base + base // 5, job=entry.id, entry=entry.id)
    build.move("escrow", owner, "audit_escrow", running.spec.audit_budget, job=entry.id, entry=entry.id)
    build.seal_block()
    for number, key in enumerate(build.workers):
        units = 2 if number == 0 else 1
        price = (2 * CREDIT, 2 * CREDIT, PRICE - CREDIT // 2, PRICE)[number]
        bid = build.post(key, messages.Bid, job=entry.id, price=price, units=units, device_class=DEVICE)
        bond = units * running.spec.unit_bond
        build.move("bid", key.account, "bond", bond, job=entry.id, account=key.account, entry=bid.id)
        build.records[f"bid/{entry.id}/{key.account}"] = Bid(
            job=entry.id,
            worker=key.account,
            price=price,
            units=units,
            device_class=DEVICE,
            bond=0,
            status="matched" if number < 3 else "closed",
            reason="" if number < 3 else "outbid: asked 3, the slots went at 3",
            entry=bid.id,
        )
    build.seal_block()
    for number, key in enumerate(build.workers[:3]):
        build.note("matched", job=entry.id, account=key.account, reason=f"{1 + (number == 0)} slots at 3")
    last = build.workers[3].account
    build.note("unmatched", job=entry.id, account=last, reason="outbid: asked 3, the slots went at 3")
    build.move("returned", "bond", last, 9 * CREDIT, job=entry.id, account=last)
    build.seal_block()
    return running


def play_round(running: Running, index: int, loss_e6: int, missing: tuple[int, ...] = ()) -> None:
    """Play one round: commits, reveals, receipts, votes and held pay."""
    build, job = running.build, running.id
    running.rounds = index + 1
    seed, slots = hash_of(f"seed {job} {index}"), (0, 1, 2, 3)
    holders = [build.workers[number] for number in (0, 0, 1, 2)]
    started = build.time_ms
    build.note("round", job=job, round=index, reason="4 units")
    build.seal_block()
    unveiled = {slot: unveil(holders[slot], job, index, slot, seed) for slot in slots}
    commits = {}
    for slot in slots:
        found = unveiled[slot]
        commits[slot] = messages.commitment(
            holders[slot].account, found.update, found.proof, found.sketch_root, found.salt
        )
        if slot not in missing:
            build.post(holders[slot], messages.Commit, job=job, round=index, slot=slot, digest=commits[slot])
    build.note("phase", job=job, round=index, reason="work")
    build.seal_block()
    included = tuple(slot for slot in slots if slot not in missing)
    for slot in included:
        found = unveiled[slot]
        build.post(
            holders[slot],
            messages.Reveal,
            job=job,
            round=index,
            slot=slot,
            update=found.update,
            proof=found.proof,
            sketch_root=found.sketch_root,
            salt=found.salt,
        )
    for slot in missing:
        build.note("missed", job=job, round=index, slot=slot, account=holders[slot].account, reason="no commit")
    build.seal_block()
    shares = _shares(len(included))
    outcome = Outcome(
        checkpoint=hash_of(f"checkpoint {job} {index + 1}"),
        included=included,
        rejected=tuple(Rejected(slot=slot, reason="norm 3.1 x median") for slot in ()),
        merit_ppm=shares,
        cosine_ppm=tuple(520_000 + 10_000 * slot for slot in included),
        suspicion=included[::-1],
        flags=(Flag(slot=included[-1], other=included[-1], reason="outlier", value_ppm=-20_000),),
    )
    attesters = [build.workers[0], build.workers[1], build.workers[2], build.validators[0]]
    for key in attesters:
        build.post(key, messages.Receipt, job=job, round=index, holds=included)
    build.seal_block()
    vote = hash_of(f"outcome {job} {index}")
    for number, key in enumerate(attesters):
        build.post(key, messages.Result, job=job, round=index, outcome=outcome, loss_e6=loss_e6 + number * 100)
    pot = PRICE * len(included) * running.spec.merit_ppm // 1_000_000
    for slot in slots:
        share = shares[included.index(slot)] if slot in included else 0
        merit = pot * share // 1_000_000
        where = {"job": job, "round": index, "slot": slot, "account": holders[slot].account}
        if slot in included:
            build.note("accepted", **where)
            build.move("held", "escrow", "held", PRICE, **where)
            build.move("merit", "escrow", "held", merit, **where)
        running.units[index, slot] = Unit(
            job=job,
            round=index,
            slot=slot,
            worker=holders[slot].account,
            status="accepted" if slot in included else "missed",
            reason="" if slot in included else "no commit before the deadline",
            commit=commits[slot] if slot in included else "",
            update=unveiled[slot].update if slot in included else "",
            shard=unveiled[slot].shard if slot in included else 0,
            sketch_root=unveiled[slot].sketch_root if slot in included else "",
            audit_chance_ppm=25_000,
            release_ms=build.time_ms + 300_000 if slot in included else 0,
        )
    names = tuple(key.account for key in attesters)
    build.records[f"round/{job}/{index}"] = Round(
        job=job,
        index=index,
        phase="settled",
        started_ms=started,
        phase_end_ms=build.time_ms,
        seed=seed,
        checkpoint=hash_of(f"checkpoint {job} {index}"),
        price=PRICE,
        units=slots,
        audit_seed=hash_of(f"audit seed {index}"),
        attesters=names,
        receipts=tuple((name, included) for name in names),
        results=tuple((name, vote) for name in names),
        outcomes=((vote, outcome),),
        losses=tuple((name, loss_e6 + number * 100) for number, name in enumerate(names)),
        included=included,
        outcome=outcome,
        targets=(Target(slot=included[-1], auditor=names[-1], phase_end_ms=build.time_ms + 60_000, status="done"),),
        ended_ms=build.time_ms,
    )
    build.seal_block()


def _shares(count: int) -> tuple[int, ...]:
    shares = [1_000_000 // count + 10_000 * (index - (count - 1) // 2) for index in range(count)]
    return (*shares[:-1], 1_000_000 - sum(shares[:-1]))


def pay_unit(running: Running, index: int, slot: int) -> None:
    """Release a unit's pay."""
    build, unit = running.build, running.units[index, slot]
    where = {"job": running.id, "round": index, "slot": slot, "account": unit.worker}
    pay, merit = held_of(running, unit)
    build.move("paid", "held", unit.worker, pay, **where)
    build.move("merit", "held", unit.worker, merit, **where)
    running.units[index, slot] = replaced(unit, status="paid", paid=pay + merit)


def audit_unit(running: Running, index: int, slot: int, auditor: Identity, role: str, found: str) -> Audit:
    """Audit a unit: commit and open, with a finding of ``found`` (pass or fail)."""
    build, job, unit = running.build, running.id, running.units[index, slot]
    excess, distance = (21, 4_000) if found == "pass" else (31_000_000, 61_000_000)
    root, salt = hash_of(f"audit {auditor.account} {index} {slot}"), hash_of(f"audit salt {slot}")
    digest = messages.audit_commitment(auditor.account, excess, distance, root, salt)
    where = {"job": job, "round": index, "slot": slot}
    seed = hash_of(f"audit seed {index}")
    proof = vrf.prove(auditor.seed, messages.audit_alpha(job, index, slot, seed)).hex() if role == "lottery" else ""
    commit = build.post(auditor, messages.AuditCommit, **where, role=role, proof=proof, digest=digest)
    build.move("audit", auditor.account, "bond", CREDIT, **where, account=auditor.account, entry=commit.id)
    build.seal_block()
    opening = messages.Opening(step=19, sketch=tuple(range(32)), path=(hash_of("path"),))
    worker = next(key for key in build.workers if key.account == unit.worker)
    build.post(worker, messages.SketchOpen, **where, openings=(opening,))
    opened = build.post(
        auditor,
        messages.AuditOpen,
        **where,
        excess_ppb=excess,
        distance_ppb=distance,
        sketch_root=root,
        salt=salt,
        openings=(opening,),
    )
    build.note("verdict", **where, account=auditor.account, reason=found, entry=opened.id)
    build.move("returned", "bond", auditor.account, CREDIT, **where, account=auditor.account, entry=opened.id)
    fee = CREDIT // 2
    build.move("audit", "audit_escrow", auditor.account, fee, **where, account=auditor.account, entry=opened.id)
    build.seal_block()
    audit = Audit(
        **where,
        auditor=auditor.account,
        role=role,
        digest=digest,
        bond=0,
        committed_ms=build.time_ms - 4_000,
        phase_end_ms=build.time_ms + 60_000,
        steps=(3, 11, 19),
        worker_sketches=(tuple(range(32)),),
        auditor_sketches=(tuple(range(32)),),
        worker_opened=True,
        status="opened",
        verdict=found,
        excess_ppb=excess,
        distance_ppb=distance,
        sketch_distance_ppb=3_000 if found == "pass" else 55_000_000,
        fee=fee,
    )
    build.records[f"audit/{job}/{index}/{slot}/{auditor.account}"] = audit
    running.units[index, slot] = replaced(unit, auditors=(*unit.auditors, auditor.account))
    return audit


def convict(running: Running, index: int, slot: int) -> None:
    """Convict a unit's worker after a dispute: pay goes back, the bond is slashed."""
    build, job = running.build, running.id
    accuser, *committee = (build.workers[3], *build.validators[:3])
    audit_unit(running, index, slot, accuser, "lottery", "fail")
    build.note("dispute", job=job, round=index, slot=slot, account=accuser.account, reason="a committee decides")
    for member in committee:
        audit_unit(running, index, slot, member, "committee", "fail")
    unit = running.units[index, slot]
    reason = f"{HOSTILE} 3 of 3 members found a fail"
    where = {"job": job, "round": index, "slot": slot, "account": unit.worker}
    pay, merit = held_of(running, unit)
    build.move("convicted", "held", "escrow", pay, **where, reason=reason)
    build.pots[f"held merit {job}/{index}/{slot}"] -= merit
    build.pots[f"held pay {job}/{index}/{slot}"] += merit  # the event below names one pot for both
    build.move("convicted", "held", "escrow", merit, **where, reason=reason)
    build.note("convicted", **where, reason=reason)
    bond = build.pots[f"bond {job}// {unit.worker}"]
    share = bond // 2 // 4
    about = {"job": job, "account": unit.worker, "reason": reason}
    for member in (accuser, *committee):
        build.move("slashed", "bond", member.account, share, **about)
    build.move("slashed", "bond", "escrow", bond - 4 * share, **about)
    build.seal_block()
    running.units[index, slot] = replaced(unit, status="convicted", reason=reason)
    build.records[f"dispute/{job}/{index}/{slot}"] = Dispute(
        job=job,
        round=index,
        slot=slot,
        accuser=accuser.account,
        committee=tuple(member.account for member in committee),
        opened_ms=build.time_ms - 20_000,
        phase_end_ms=build.time_ms + 40_000,
        status="convicted",
        reason=reason,
    )


def held_of(running: Running, unit: Unit) -> tuple[int, int]:
    """Return the held pay and merit of a unit."""
    name = f"{running.id}/{unit.round}/{unit.slot}"
    return running.build.pots[f"held pay {name}"], running.build.pots[f"held merit {name}"]


def replaced(record: Unit, **changes: object) -> Unit:
    """Return a changed copy."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return Unit(**(fields | changes))


def finish(running: Running, status: str, slots: tuple[str, ...]) -> None:
    """Write the records of a job and its units."""
    build, job = running.build, running.id
    for (index, slot), unit in running.units.items():
        pay, merit = held_of(running, unit)
        build.records[f"unit/{job}/{index}/{slot}"] = replaced(unit, held_pay=pay, held_merit=merit)
    refunded = 0
    if status == "done":
        owner = build.owner.account
        for pot in ("escrow", "audit_escrow"):
            amount = build.pots[f"{pot} {job}"]
            refunded += amount
            build.move("refund", pot, owner, amount, job=job, account=owner)
        for key in build.workers[:3]:
            bond = build.pots[f"bond {job}// {key.account}"]
            build.move("returned", "bond", key.account, bond, job=job, account=key.account)
    build.note("job", job=job, reason=status)
    build.seal_block()
    for key in build.workers:
        bid = build.records[f"bid/{job}/{key.account}"]
        assert isinstance(bid, Bid)
        fields = {name: getattr(bid, name) for name in bid.__struct_fields__}
        convicted = any(u.worker == key.account and u.status == "convicted" for u in running.units.values())
        status_now = "closed" if status == "done" or convicted else bid.status
        reason = "convicted" if convicted else bid.reason
        bond = build.pots[f"bond {job}// {key.account}"]
        build.records[f"bid/{job}/{key.account}"] = Bid(
            **(fields | {"bond": bond, "status": status_now, "reason": reason})
        )
    build.records[f"job/{job}"] = Job(
        id=job,
        spec=running.spec,
        status=status,
        reason=HOSTILE if status == "running" else "",
        posted_ms=START_MS + 4_000,
        phase_end_ms=START_MS + 24_000,
        escrow=build.pots[f"escrow {job}"],
        audit_escrow=build.pots[f"audit_escrow {job}"],
        clearing_price=PRICE,
        bidders=tuple(key.account for key in build.workers),
        slots=slots,
        round=running.rounds,
        completed=running.rounds,
        checkpoint=hash_of(f"checkpoint {job} {running.rounds}"),
        ended_ms=build.time_ms if status == "done" else 0,
        refunded=refunded,
    )


@dataclass(frozen=True)
class Example:
    """The finished example and where its interesting things are."""

    path: Path
    build: Build
    done_job: str
    running_job: str
    transfer: str
    altered: str  # an entry whose signature was altered


def build_example(path: Path) -> Example:
    """Write the example ledger to ``path``."""
    build = Build()
    owner, workers = build.owner, build.workers
    transfer = build.post(owner, messages.Transfer, to=workers[3].account, amount=5 * CREDIT, memo=HOSTILE)
    where = {"account": owner.account, "reason": HOSTILE, "entry": transfer.id}
    build.move("transfer", owner.account, workers[3].account, 5 * CREDIT, **where)
    altered = build.post(owner, messages.Transfer, to=workers[0].account, amount=CREDIT, memo="coffee")
    build.move("transfer", owner.account, workers[0].account, CREDIT, account=owner.account, entry=altered.id)
    build.seal_block()

    done = post_job(build, "Digits, a small network", 2)
    for index, loss in enumerate((812_000, 401_000)):
        play_round(done, index, loss)
        audit_unit(done, index, 3, build.validators[0], "targeted", "pass")
        for slot in range(4):
            pay_unit(done, index, slot)
        build.seal_block()
    finish(done, "done", ("", "", "", ""))

    running = post_job(build, f"Tiny GPT {HOSTILE}"[:80], 12)
    for index, loss in enumerate((4_180_000, 3_320_000, 2_870_000, 2_610_000, 2_440_000, 2_330_000)):
        play_round(running, index, loss, missing=(3,) if index == 3 else ())
        if index < 4:
            for slot in range(4):
                if running.units[index, slot].status == "accepted":
                    pay_unit(running, index, slot)
            build.seal_block()
    audit_unit(running, 5, 0, build.validators[1], "targeted", "pass")
    convict(running, 5, 2)
    names = (workers[0].account, workers[0].account, workers[1].account, "")
    finish(running, "running", names)

    for key in (owner, *workers, *build.validators):
        stake = 100 * CREDIT if key in build.validators else 0
        build.records[f"account/{key.account}"] = Account(balance=build.pots[key.account], stake=stake)
    for number, key in enumerate(workers[:3]):
        build.records[f"reputation/{key.account}/{DEVICE}"] = Reputation(
            consecutive=12 - 12 * (number == 2), valid=12, invalid=int(number == 2)
        )
    supply = sum(allocation.balance + allocation.stake for allocation in build.genesis.allocations)
    for key in build.validators:
        build.records[f"validator/{key.account}"] = Validator(status="member")
    build.records["network"] = Network(
        id=build.network,
        supply=supply,
        test_network=True,
        validators=build.genesis.validators,
        audit_bond=CREDIT,
        committee=build.genesis.committee,
        arbiters=build.genesis.arbiters,
        max_void_rounds=3,
        staking=build.genesis.staking,
        entry_fee=build.genesis.entry_fee,
    )
    build.records["active"] = Active(jobs=(running.id,))
    _alter(build, altered.id)
    return Example(build.write(path), build, done.id, running.id, transfer.id, altered.id)


def _alter(build: Build, entry_id: str) -> None:
    """Change one digit of an entry's signature, as a damaged or forged copy would have it."""
    row = next(row for row in build.rows if isinstance(row, EntryRow) and row.id == entry_id)
    place = row.raw.index(b'"sig":"') + 7
    digit = b"0" if row.raw[place : place + 1] != b"0" else b"1"
    row.raw = row.raw[:place] + digit + row.raw[place + 1 :]


def public(name: str) -> str:
    """Return the account id of a named identity."""
    return identity.account_id(identity.public_key(identity_of(name).account))
