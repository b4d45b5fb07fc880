"""What must hold of honest nodes at every moment: of what they finalize (auditor.py), sign, send, hold and report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from contracts.records import Genesis
from gdf_market.codec import encode
from gdf_market.errors import GdfError
from gdf_market.identity import verify
from gdf_market.statements import SignedHeader, Statement, ballot, is_equivocation, place, signer
from ledger.block import FINAL, NOTAR, SKIP, Certificate, Header, Proposal, Vote, open_block
from ledger.effects import SaveBlocks
from ledger.limits import SLOT_WINDOW
from ledger.replica import Replica
from ledger.rules import Rules
from tests.sim.auditor import Auditor, require
from tests.sim.caches import READ, VERIFIED
from tests.sim.memory import MemoryStore

_open_block, _verify = open_block, verify


@functools.lru_cache(maxsize=10_000)
def read_header(data: bytes) -> Header:
    """Decode a header without any check."""
    return msgspec.json.decode(data, type=Header)


@dataclass(frozen=True)
class Debt:
    """An equivocation whose two statements one honest node received: its signer is to be convicted."""

    accused: str
    epoch: int
    witness: str
    since_ms: int
    first: Statement
    second: Statement


class Monitor:
    """Everything that any honest node finalized, signed or sent in one run."""

    def __init__(self, genesis: Genesis, rules: Rules, is_honest: Callable[[str], bool]) -> None:
        self.auditor = Auditor(genesis, rules, is_honest)
        self.debts: dict[tuple[str, int], Debt] = {}
        self._is_honest = is_honest
        self._votes: dict[tuple[str, int, int, str], str] = {}
        self._headers: dict[tuple[str, int, int], bytes] = {}
        self._sent: set[bytes] = set()
        self._received: dict[str, dict[tuple[int, int, str], list[Statement]]] = {}
        self._fresh: list[tuple[str, int]] = []  # debts that came up in the step under way

    # ---- what honest nodes make durable

    def on_saved(self, write: SaveBlocks, clock_ms: int) -> None:
        """Check newly finalized blocks."""
        self.auditor.on_finalized(write, clock_ms)

    def on_restart(self, store: MemoryStore) -> None:
        """What a node finds on its disk is of one moment."""
        store.check()

    # ---- what honest nodes send

    def on_sent(self, data: bytes) -> None:
        """Check what an honest node sends: honest validators' statements, and certificates that it vouches for."""
        if data in self._sent:
            return
        self._sent.add(data)
        message = READ(data)
        if isinstance(message, Vote):
            if self._is_honest(message.voter):
                self._check_vote(message)
        elif isinstance(message, Certificate):
            self.auditor.check_certificate(message)
        elif isinstance(message, Proposal):
            header = read_header(bytes(message.header))
            if self._is_honest(header.proposer):
                where = header.proposer, header.epoch, header.slot
                known = self._headers.setdefault(where, bytes(message.header))
                require(known == bytes(message.header), f"two blocks of {where[0]} in slot {where[2]}")

    def _check_vote(self, vote: Vote) -> None:
        where = vote.voter, vote.epoch, vote.slot
        earlier = self._votes.setdefault((*where, vote.kind), vote.hash)
        require(earlier == vote.hash, f"{vote.voter} sent two {vote.kind} votes in slot {vote.slot}")
        if vote.kind in (SKIP, FINAL):
            both = (*where, SKIP if vote.kind == FINAL else FINAL) in self._votes
            require(not both, f"{vote.voter} voted both to skip and to finalize slot {vote.slot}")
        if vote.kind == FINAL:
            notarized = self._votes.get((*where, NOTAR), vote.hash)
            require(notarized == vote.hash, f"{vote.voter} finalizes another block than it notarized")

    # ---- what honest nodes hold

    def on_step(self, replica: Replica) -> None:
        """The epoch of a node follows from its height, and its set is the one that the ledger's state names."""
        epoch, auditor = replica.epoch, self.auditor
        require(epoch.number == replica.height // auditor.blocks, f"epoch {epoch.number} at height {replica.height}")
        require(
            epoch.validators == auditor.sets[epoch.number] == replica.state.network().validators,
            f"a node's validators of epoch {epoch.number} are not those of the ledger",
        )

    # ---- what honest nodes must report

    def on_received(self, name: str, replica: Replica, data: bytes, now_ms: int) -> None:
        """Note a dishonest validator's statement that an honest node gets while it keeps such statements."""
        self._fresh = []
        try:
            message = READ(data)
            if isinstance(message, Vote):
                statement: Statement = message
            elif isinstance(message, Proposal):
                statement = SignedHeader(header=read_header(bytes(message.header)), sig=message.sig)
            else:
                return
        except (GdfError, msgspec.MsgspecError, UnicodeError):
            return  # garbage
        if not self._is_honest(signer(statement)) and self._is_signed(statement):
            self._compare(name, replica, statement, now_ms)
            if self._is_kept(replica, message):
                where = (*place(statement), signer(statement))
                self._received.setdefault(name, {}).setdefault(where, []).append(statement)

    def _is_signed(self, statement: Statement) -> bool:
        network, who = self.auditor.network, signer(statement)
        if isinstance(statement, Vote):
            kind, covered = "vote", ballot(statement)
            if (statement.kind == SKIP) != (statement.hash == ""):
                return False
        else:
            kind, covered = "block", encode(statement.header)
            if statement.header.network != network:
                return False
        try:
            VERIFIED(network, kind, who, covered, bytes.fromhex(statement.sig))
        except GdfError:
            return False
        return True

    def _is_kept(self, replica: Replica, message: Vote | Proposal) -> bool:
        """Say whether a node must remember a statement: of its epoch, near its slot, by whom it is about."""
        epoch, quorum = replica.epoch, replica._quorum
        if isinstance(message, Vote):
            number, slot = message.epoch, message.slot
            entitled = message.voter in epoch.validators
        else:
            header = read_header(bytes(message.header))
            number, slot = header.epoch, header.slot
            entitled = header.proposer == epoch.leader(slot)
            try:
                _open_block(message, self.auditor.network)
            except GdfError:
                return False  # its entries are not those of the header
        return entitled and number == epoch.number and quorum.root.slot < slot <= quorum.frontier + SLOT_WINDOW

    def _compare(self, name: str, replica: Replica, statement: Statement, now_ms: int) -> None:
        accused, (epoch, slot) = signer(statement), place(statement)
        if isinstance(statement, Vote) and epoch == replica.epoch.number and accused not in replica.epoch.validators:
            return
        if epoch < replica.epoch.number - 1 or slot + SLOT_WINDOW <= replica._quorum.root.slot:
            return
        for earlier in self._received.get(name, {}).get((epoch, slot, accused), ()):
            if is_equivocation(earlier, statement) and (accused, epoch) not in self.debts:
                self.debts[accused, epoch] = Debt(accused, epoch, name, now_ms, earlier, statement)
                self._fresh.append((accused, epoch))

    def on_crash(self, name: str, *, lost: bool) -> None:
        """Statements are not on disk; of the step under way nothing is, if its Save was ``lost``."""
        self._received.pop(name, None)
        if lost:
            for debt in self._fresh:
                del self.debts[debt]
        self._fresh = []

    def unpaid(self) -> list[Debt]:
        """Return the equivocations that the ledger has not punished though it still could."""
        auditor = self.auditor
        state = auditor.chain[-1].state
        network = state.network()
        owed = []
        for debt in self.debts.values():
            record = state.validator(debt.accused)
            if record is None or record.status == "candidate" or record.convicted:
                continue
            if network.epoch - network.staking.evidence_epochs <= debt.epoch:
                owed.append(debt)
        return owed
