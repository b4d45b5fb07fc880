"""One node's ledger as a sans-I/O core: events in, effects out.  Validators and observers run the same code.

Rules kept here:
1. Signatures are checked before state is read; what fails is Misbehaved and changes nothing.
2. All writes of a step are one Save, placed before everything that the step sends.
3. Nothing is proposed, voted or timed before Started; by then the past is rebuilt completely.
4. What arrives for the first time and is valid is forwarded, so that the mesh need not be complete; what was lost
   is resent in answer to the periodic status.
"""

from __future__ import annotations

from contracts.records import Genesis
from contracts.state import State
from gdf_market.codec import encode
from gdf_market.errors import LocalError, MalformedError, PeerError, ensure
from gdf_market.identity import Identity
from gdf_market.messages import Evidence, open_entry
from gdf_market.statements import SignedHeader, Statement
from ledger import limits, pace, wire
from ledger.admission import Admission
from ledger.block import (
    NOTAR,
    SKIP,
    Block,
    Certificate,
    Proposal,
    Vote,
    block_hash,
    cast,
    open_block,
    open_header,
    verify_certificate,
    verify_vote,
)
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import (
    Broadcast,
    DropEvidence,
    Effect,
    Finality,
    Finalized,
    Misbehaved,
    PeerDown,
    PeerUp,
    Prune,
    Received,
    ReplicaEvent,
    Restored,
    Save,
    SaveBlocks,
    SaveCandidate,
    SaveEvidence,
    SaveSnapshot,
    SaveVote,
    Send,
    Serve,
    ServeLinks,
    ServeSnapshot,
    SetTimer,
    Started,
    Submitted,
    Timer,
    Tip,
    Write,
)
from ledger.envelopes import OpenMany, open_each
from ledger.epochs import Epoch
from ledger.mempool import Mempool
from ledger.proposals import Proposals
from ledger.quorum import Position, Quorum
from ledger.rules import MARKET, Rules
from ledger.snapshot import Snapshot, SnapshotSync
from ledger.status import make_status, missing_for
from ledger.sync import CatchUp, Peer
from ledger.watch import Accusation, Watch

TICK = "tick"  # the one timer: the earliest of all deadlines


class DivergedError(LocalError):
    """A quorum finalized what this node's rules refuse: another version of the software, or a captured network."""


class Replica:
    """The finalized ledger, agreement on the next blocks, and the entries that wait for them."""

    def __init__(
        self,
        genesis: Genesis,
        identity: Identity | None,
        restored: Restored | None,
        *,
        rules: Rules = MARKET,
        from_snapshot: bool = False,
        keep_epochs: int | None = None,
        open_many: OpenMany = open_each,
    ) -> None:
        """``from_snapshot``: a new ledger begins at the newest boundary block that a peer offers, if there is one.

        ``keep_epochs``: when an epoch ends, blocks older than so many epochs are deleted (None: keep all).
        ``open_many``: opens the entries of a block; the shell may hand in one that uses threads.
        """
        head = restored.tip if restored is not None else genesis_tip(genesis, rules)
        self.genesis = genesis
        self.network = rules.network_id(genesis)
        self._identity = identity
        self._rules = rules
        seen = SeenEntries(limits.MAX_RAW_SEEN)
        self._chain = Chain(genesis, rules, head, seen, open_many)
        self._enter_epoch()
        self._watch = Watch(self.network, identity.account if identity is not None else None)
        self._admission = Admission(self.network, rules, seen)
        self._catch_up = CatchUp(self.network)
        new = from_snapshot and head.height == 0
        self._snapshots = SnapshotSync(genesis, self.network, rules) if new else None
        self._fallback = False  # the snapshot is wanted for want of blocks
        self._keep_epochs = keep_epochs
        self._oldest = restored.oldest if restored is not None else 1
        self._now = 0
        self._started = False
        self._parent: Tip | None = None  # what the frontier's leader builds on; None while it is missing here
        self._tip_hash = ""
        self._included: set[str] = set()  # entries of the blocks from above the head to the tip
        self._wake_ms: int | None = None  # when the rules have something to do on the tip
        self._entered = (0, 0)  # the frontier and when it was reached
        self._status_ms = 0  # when the last status went out
        self._armed: int | None = None
        self._moot = False  # the event of this step told nothing new
        self._still = False  # ... or nothing that a rule calls for
        self._more_comes = False  # fetched blocks wait for those that follow, to be one transaction
        self._writes: list[Write] = []
        self._effects: list[Effect] = []
        if restored is not None:
            self._rebuild(restored)

    def _enter_epoch(self) -> None:
        """Begin the agreement of the chain's epoch on top of its head."""
        me = self._identity
        self._key = me if me is not None and me.account in self._chain.epoch.validators else None
        root = Position(self._chain.head.slot, self._chain.head.hash)
        self._quorum = Quorum(self._chain.epoch, self._key.account if self._key is not None else None, root)
        self._proposals = Proposals()

    # ---- what others may read

    @property
    def is_validator(self) -> bool:
        """Whether this node votes in the current epoch."""
        return self._key is not None

    @property
    def epoch(self) -> Epoch:
        """The epoch of the next block."""
        return self._chain.epoch

    @property
    def state(self) -> State:
        """The state after the last finalized block."""
        return self._chain.head.state

    @property
    def height(self) -> int:
        """The height of the last finalized block; 0 before the first."""
        return self._chain.head.height

    @property
    def state_root(self) -> str:
        """The hash of the state after the last finalized block."""
        return self._chain.head.sum.root()

    @property
    def head(self) -> str:
        """The hash of the last finalized block; the network id before the first."""
        return self._chain.head.hash

    @property
    def time_ms(self) -> int:
        """The time of the last finalized block."""
        return self._chain.head.time_ms

    @property
    def mempool(self) -> Mempool:
        """Valid entries that wait for a block."""
        return self._admission.pool

    # ---- the one entry point

    def step(self, event: ReplicaEvent, now_ms: int) -> list[Effect]:
        """Take one event at a Unix time; return the effects in the order in which they must be carried out."""
        if now_ms < self._now:  # the clock was set back: what was measured by it must not wait for it to come again
            self._entered = (self._entered[0], min(self._entered[1], now_ms))
            self._status_ms = min(self._status_ms, now_ms)
        early = self._armed is not None and self._now <= now_ms < self._armed
        self._now = now_ms
        self._moot = self._still = False
        try:
            self._handle(event)
        except PeerError as error:
            assert isinstance(event, Received), "only what a peer sent can be a peer's fault"
            self._effects.append(Misbehaved(event.peer, error))
        # most of a flood is copies, or one more vote of many: before the next deadline they call for nothing
        if self._started and not (early and (self._moot or self._still)):
            self._settle()
        if self._started and not (early and self._moot):
            self._arm()
        return self._hold_back(event) if self._more_comes else self._hand_out()

    def _hand_out(self) -> list[Effect]:
        effects, writes = self._effects, self._writes
        self._effects, self._writes, self._more_comes = [], [], False
        return [Save(tuple(writes)), *effects] if writes else effects

    def _hold_back(self, event: ReplicaEvent) -> list[Effect]:
        """Amid a range of fetched blocks: let them wait for those that follow, to be one transaction; hand out timers.

        Everything is handed out, in its order, as soon as anything else is written or sent, or a deadline passes.
        """
        timers = [effect for effect in self._effects if isinstance(effect, SetTimer)]
        if (
            not isinstance(event, Received)
            or len(self._writes) >= limits.HELD_BLOCKS
            or not all(isinstance(write, SaveBlocks) for write in self._writes)
            or not all(isinstance(effect, Finalized | SetTimer) for effect in self._effects)
        ):
            return self._hand_out()
        self._effects = [effect for effect in self._effects if not isinstance(effect, SetTimer)]
        return list[Effect](timers)

    def _handle(self, event: ReplicaEvent) -> None:
        match event:
            case Started():
                self._started = True
                self._entered = (self._quorum.frontier, self._now)
                self._status_ms = self._now
                self._send_all(encode(self._status()))
                self._accuse_again()
            case PeerUp(peer):
                self._greet(peer)
            case PeerDown(peer):
                self._catch_up.peers.pop(peer, None)
                if self._snapshots is not None:
                    self._snapshots.leave(peer)
            case Submitted(entry):
                self._effects += self._admission.submit(entry, self._tip(), self._now)
            case Received(peer, data):
                self._receive(peer, data)
            case Timer():
                self._armed = None

    # ---- peers

    def _send_all(self, data: bytes, exclude: str | None = None) -> None:
        self._effects.append(Broadcast(data, exclude))

    def _status(self) -> wire.Status:
        return make_status(self.network, self.height, self._oldest, self._quorum, self._proposals)

    def _greet(self, peer: str) -> None:
        if len(self._catch_up.peers) < limits.MAX_PEERS:
            self._catch_up.peers.setdefault(peer, Peer())
        greeting = [encode(self._status()), *self._admission.greeting()]
        self._effects += [Send(peer, message) for message in greeting]

    def _receive(self, peer: str, data: bytes) -> None:
        message = wire.read(data)
        match message:
            case Vote():
                self._on_vote(peer, message, data)
            case Proposal():
                self._on_proposal(peer, message)
            case Certificate():
                self._on_certificate(peer, message, data)
            case wire.Entries():
                raws = [bytes(raw) for raw in message.entries]
                self._moot = not self._admission.is_news(raws)
                self._effects += self._admission.receive(
                    peer, raws, self._tip(), self._now, behind=self._catch_up.is_behind(self._chain.head)
                )
            case wire.Status():
                self._on_status(peer, message)
            case wire.SyncResponse():
                self._on_blocks(peer, message)
            case wire.Links() | wire.SnapshotPage():
                self._on_snapshot(peer, message)
            case _:
                self._serve(peer, message)

    def _serve(self, peer: str, message: wire.SyncRequest | wire.LinksRequest | wire.SnapshotRequest) -> None:
        known = self._catch_up.peers.get(peer)
        if known is None or not known.may_serve(self._now, 8 if isinstance(message, wire.SyncRequest) else 1):
            return
        match message:
            case wire.SyncRequest(height=height):
                if self._oldest <= max(1, height) <= self.height:
                    self._effects.append(Serve(peer, max(1, height)))
            case wire.LinksRequest(epoch=epoch):
                self._effects.append(ServeLinks(peer, epoch))
            case wire.SnapshotRequest(key=key, part=part):
                self._effects.append(ServeSnapshot(peer, key, part))

    def _on_vote(self, peer: str, vote: Vote, data: bytes) -> None:
        if vote.epoch != self.epoch.number:
            self._moot = not self._examine(vote)
            return  # its sender, or this node, is about to change over
        ensure(vote.voter in self._quorum.validators, MalformedError(f"vote of {vote.voter}, who is no validator"))
        if not self._quorum.wants_vote(vote):
            self._moot = not self._examine(vote)
            return
        verify_vote(vote, self.network)
        accused = self._examine(vote)
        self._watch.note(vote)
        self._send_all(data, peer)
        self._still = not self._count(vote) and not accused

    def _count(self, vote: Vote) -> bool:
        """Count a vote; say whether it completed a certificate."""
        certificate = self._quorum.add_vote(vote)
        if certificate is not None:
            self._save_certificate(certificate, encode(certificate))
        return certificate is not None

    def _on_certificate(self, peer: str, certificate: Certificate, data: bytes) -> None:
        if certificate.epoch != self.epoch.number or not self._quorum.wants_certificate(certificate):
            self._moot = True
            return
        verify_certificate(certificate, self.network, self._quorum.validators, self.epoch.number)
        self._quorum.add_certificate(certificate)
        self._save_certificate(certificate, data)
        self._send_all(data, peer)

    def _save_certificate(self, certificate: Certificate, raw: bytes) -> None:
        if self._key is not None and certificate.kind in (NOTAR, SKIP):
            name = f"{certificate.kind}/{certificate.slot}"
            self._writes.append(SaveCandidate(name, "certificate", certificate.slot, raw))

    def _on_proposal(self, peer: str, proposal: Proposal) -> None:
        header_bytes = bytes(proposal.header)
        header = open_header(header_bytes, self.network)
        signed = SignedHeader(header=header, sig=proposal.sig)
        accused = self._examine(signed)
        if header.epoch != self.epoch.number or not self._quorum.in_window(header.slot):
            self._moot = not accused
            return
        certificate = self._quorum.notarized.get(header.slot) or self._quorum.final
        certified = certificate.hash if certificate is not None else None
        if not self._proposals.wants(header.slot, block_hash(header_bytes), certified):
            self._moot = not accused
            return
        block = open_block(proposal, self.network, self._quorum.leader(header.slot))
        self._watch.note(signed)
        self._proposals.add(block, self._now)
        self._send_all(block.raw, peer)

    def _on_status(self, peer: str, status: wire.Status) -> None:
        ensure(status.network == self.network, MalformedError(f"{peer} is on network {status.network}"))
        known = self._catch_up.peers.get(peer)
        if known is None:
            return
        self._moot = self._snapshots is None and (known.height, known.oldest) == (status.height, status.oldest)
        known.height, known.oldest, known.snapshot = status.height, status.oldest, status.snapshot
        if self._snapshots is not None:
            self._snapshots.offer(peer, status.snapshot, self._now)
        if status.height > self.height or not known.may_help(self._now):
            return
        if status.height < self.height:
            self._effects.append(Send(peer, encode(self._status())))
        elif status.epoch == self.epoch.number:
            self._effects += [Send(peer, data) for data in missing_for(status, self._quorum, self._proposals)]

    def _on_blocks(self, peer: str, response: wire.SyncResponse) -> None:
        items = response.blocks
        self._more_comes = self._more_comes and response.more
        while items:
            fetched = self._catch_up.take(peer, items, response.more, self._chain.head, self.epoch, self._now)
            if fetched is None:
                return
            for block in fetched.blocks:
                if self._chain.tip(block.hash) is None:
                    self._execute_certified(block)
            finality = self._chain.finalize(fetched.certificate.hash)
            assert finality is not None
            self._on_finalized(finality, fetched.certificate)
            self._more_comes = response.more
            items = fetched.rest

    # ---- starting from a snapshot

    def _on_snapshot(self, peer: str, message: wire.Links | wire.SnapshotPage) -> None:
        if self._snapshots is None:
            return
        if isinstance(message, wire.Links):
            self._ask(peer, self._snapshots.on_links(peer, message.epoch, message.links, self._now))
        else:
            self._ask(peer, self._snapshots.on_page(peer, message, self._now))

    def _ask(self, peer: str, found: wire.LinksRequest | wire.SnapshotRequest | Snapshot | None) -> None:
        if isinstance(found, Snapshot):
            self._install(found)
        elif found is not None:
            self._effects.append(Send(peer, encode(found)))

    def _install(self, snapshot: Snapshot) -> None:
        self._snapshots = None
        if snapshot.tip.height <= self.height:
            return  # agreement or another peer was faster
        self._writes.append(SaveSnapshot(snapshot.tip, snapshot.handovers, snapshot.next))
        self._oldest = snapshot.tip.height + 1
        self._chain.start_at(snapshot.tip)
        self._enter_epoch()
        self._parent, self._tip_hash = None, ""
        self._effects.append(Finalized(snapshot.tip.height, snapshot.tip.time_ms, (), ()))

    def _catch_up_now(self) -> None:
        """Ask for what others have and we lack: a snapshot first, if we want one and somebody has it."""
        if self._snapshots is None and self._catch_up.is_cut_off(self._chain.head, self._now):
            self._snapshots = SnapshotSync(self.genesis, self.network, self._rules)
            self._fallback = True
            for name, peer in self._catch_up.peers.items():
                self._snapshots.offer(name, peer.snapshot, self._now)
        elif self._fallback and self._catch_up.is_behind(self._chain.head):
            self._snapshots = None  # somebody holds the next block after all
        if self._snapshots is not None:
            wanted = self._snapshots.request(self._now)
            if wanted is not None:
                self._ask(*wanted)
            if not self._snapshots.given_up:
                return
            self._snapshots = None
        request = self._catch_up.request(self._chain.head, self._now)
        if request is not None:
            self._effects.append(Send(request[0], encode(wire.SyncRequest(height=request[1]))))

    # ---- equivocation

    def _examine(self, statement: Statement) -> bool:
        """Accuse a validator whose statement contradicts an earlier one; say whether it does."""
        found = self._watch.catch(statement)
        if found is not None:
            self._accuse(found)
        return found is not None

    def _accuse(self, found: Accusation) -> None:
        if self._identity is None:
            return
        entry = found.entry(self._identity, self.network, max(self._chain.head.time_ms, self._now))
        self._writes.append(SaveEvidence(found.accused, found.epoch, entry.raw))
        self._effects += self._admission.submit(entry, self._tip(), self._now)

    def _accuse_again(self) -> None:
        """After a restart or in a new epoch: sign anew what is not in the ledger, forget what the rules refuse."""
        tip = self._chain.head
        for key, found in list(self._watch.pending.items()):
            if self._identity is None or self._is_settled(found, tip):
                del self._watch.pending[key]
                self._writes.append(DropEvidence(*key))
            else:
                self._accuse(found)

    def _is_settled(self, found: Accusation, tip: Tip) -> bool:
        assert self._identity is not None
        entry = found.entry(self._identity, self.network, tip.time_ms)
        try:
            self._rules.check_entry(tip.state, entry, tip.time_ms + 1)
        except PeerError:
            return True  # punished already, or too old
        return False

    def _execute_certified(self, block: Block) -> None:
        try:
            self._chain.execute(block)
        except PeerError as error:
            raise DivergedError(
                f"a quorum certified block {block.header.height}, which is invalid here ({error}); "
                "update this node, or its validators are not to be trusted"
            ) from error

    # ---- progress: repeat until no rule calls for anything

    def _settle(self) -> None:
        while self._execute_ready() or self._vote() or self._finalize() or self._propose() or self._skip():
            pass
        self._effects += self._admission.relay(self._now)
        self._catch_up_now()
        if self._now >= self._status_deadline():
            self._status_ms = self._now
            self._send_all(encode(self._status()))
            self._effects += self._admission.flood_again(self._now)

    def _execute_ready(self) -> bool:
        for block in self._proposals.waiting(self._chain.candidates):
            if self._chain.tip(block.header.parent) is None:
                continue
            position = Position(block.header.slot, block.hash)
            certified = self._quorum.is_notarized(position)
            if not certified and block.header.time_ms > self._now + limits.MAX_CLOCK_AHEAD_MS:
                continue  # valid once our clock has come that far
            if self._execute(block):
                self._quorum.add_block(position, Position(block.header.parent_slot, block.header.parent))
            return True
        return False

    def _execute(self, block: Block) -> bool:
        if self._quorum.is_notarized(Position(block.header.slot, block.hash)):
            self._execute_certified(block)
            return True
        try:
            self._chain.execute(block)
        except PeerError as error:
            self._proposals.reject(block)
            self._effects.append(Misbehaved(block.header.proposer, error))  # relays could not know
            return False
        return True

    def _vote(self) -> bool:
        decision = next(self._quorum.decisions(), None)
        if decision is None:
            return False
        self._cast(decision.kind, decision.slot, decision.hash)
        return True

    def _cast(self, kind: str, slot: int, hash_: str) -> None:
        assert self._key is not None
        vote = cast(self._key, self.network, self.epoch.number, kind, slot, hash_)
        block = self._proposals.get(slot, hash_) if kind == NOTAR else None
        if block is not None:
            self._writes.append(SaveCandidate(block.hash, "block", slot, block.raw))
        self._writes.append(SaveVote(vote))
        self._send_all(encode(vote))
        self._count(vote)

    def _finalize(self) -> bool:
        certificate = self._quorum.final
        finality = self._chain.finalize(certificate.hash) if certificate is not None else None
        if finality is None or certificate is None:
            return False
        self._on_finalized(finality, certificate)
        return True

    def _on_finalized(self, finality: Finality, certificate: Certificate) -> None:
        self._writes.append(SaveBlocks(finality.blocks, certificate, finality.closing, finality.next))
        for executed in finality.blocks:
            header, transition = executed.block.header, executed.transition
            self._admission.finalized(executed.entries)
            self._effects.append(Finalized(header.height, header.time_ms, tuple(transition.events), executed.entries))
        self._tip_hash = ""  # what the tip includes has changed
        if finality.next is None:
            self._quorum.finalize([Position(each.tip.slot, each.tip.hash) for each in finality.blocks])
            self._proposals.prune(self._quorum.root.slot)
        else:
            self._enter_epoch()
            self._parent = None
            self._accuse_again()
            self._prune()
        self._watch.prune(self.epoch.number, self._quorum.root.slot)

    def _prune(self) -> None:
        if self._keep_epochs is None:
            return
        kept = self.epoch.first - self._keep_epochs * (self.epoch.last - self.epoch.first + 1)
        if kept > self._oldest:
            self._writes.append(Prune(kept))
            self._oldest = kept

    # ---- leading and passing over

    def _tip(self) -> Tip:
        return self._parent or self._chain.head

    def _follow_tip(self) -> None:
        """After the tip or the frontier moved: check entries against it, note when the slot began."""
        if self._entered[0] != self._quorum.frontier:
            self._entered = (self._quorum.frontier, self._now)
        parent = self._quorum.parent_for_proposal(lambda hash_: self._chain.tip(hash_) is not None)
        self._parent = self._chain.tip(parent.hash) if parent is not None else None
        tip = self._tip()
        if tip.hash != self._tip_hash:
            self._tip_hash, self._included = tip.hash, self._chain.included(tip.hash)
            self._wake_ms = self._rules.next_wake_ms(tip.state)
            self._effects += self._admission.on_tip(tip, self._included, self._now)
        else:
            self._admission.note_work(self._included, self._now)

    def _situation(self) -> pace.Situation:
        parent = self._parent
        return pace.Situation(
            entered_ms=self._entered[1],
            parent_ms=parent.time_ms if parent is not None else None,
            parent_final=parent is None or parent.hash == self.head,
            work_since_ms=self._admission.work_since_ms,
            wake_ms=self._wake_ms,
            proposed_ms=self._proposals.arrived_ms(self._quorum.frontier),
            suspect=self._quorum.is_suspect(self._quorum.frontier),
            unfinalized=self._quorum.unfinalized,
            block_ms=self.genesis.block_ms,
            heartbeat_ms=self.genesis.heartbeat_ms,
        )

    def _leads(self) -> bool:
        slot = self._quorum.frontier
        return (
            self._key is not None
            and self._quorum.leader(slot) == self._key.account
            and self._quorum.own_vote(NOTAR, slot) is None
        )

    def _propose(self) -> bool:
        self._follow_tip()
        parent = self._parent
        if parent is None or not self._leads() or self._now < pace.propose_at(self._situation()):
            return False
        assert self._key is not None
        slot = self._quorum.frontier
        waiting = self.mempool.candidates(self._included, limits.MAX_BLOCK_ENTRY_BYTES, limits.MAX_BLOCK_ENTRIES)
        executed, refused = self._chain.propose(self._key, parent, slot, self._now, waiting)
        for entry, error in refused:
            self._effects += self._admission.put_aside(entry, error, self._now)
        block = executed.block
        self._proposals.add(block, self._now)
        self._quorum.add_block(Position(slot, block.hash), Position(parent.slot, parent.hash))
        self._send_all(block.raw)
        return True

    def _skip(self) -> bool:
        slot = self._quorum.frontier
        if not self._quorum.may_skip(slot) or self._now < pace.skip_at(self._situation()):
            return False
        self._cast(SKIP, slot, "")
        return True

    # ---- deadlines

    def _status_deadline(self) -> int:
        quorum = self._quorum
        if any(self._chain.tip(certificate.hash) is None for certificate in quorum.notarized.values()):
            return self._status_ms + limits.URGENT_STATUS_MS
        unsettled = (
            quorum.unfinalized > 0
            or quorum.own_vote(SKIP, quorum.frontier) is not None
            or bool(quorum.voters(quorum.frontier, NOTAR))
            or bool(quorum.voters(quorum.frontier, SKIP))
            or len(self.mempool) > 0
            or self._catch_up.is_behind(self._chain.head)
        )
        return self._status_ms + limits.STATUS_MS * (1 if unsettled else limits.QUIET_STATUSES)

    def _arm(self) -> None:
        deadlines = [self._status_deadline(), self._admission.relay_deadline()]
        waiting = self._snapshots
        deadlines.append(waiting.deadline() if waiting is not None else self._catch_up.deadline(self._chain.head))
        leads, may_skip = self._leads(), self._quorum.may_skip(self._quorum.frontier)
        if leads or may_skip:
            situation = self._situation()
            if leads and self._parent is not None:
                deadlines.append(pace.propose_at(situation))
            if may_skip:
                deadlines.append(pace.skip_at(situation))
        deadlines += [
            block.header.time_ms - limits.MAX_CLOCK_AHEAD_MS
            for block in self._proposals.waiting(self._chain.candidates)
            if self._chain.tip(block.header.parent) is not None
        ]
        at_ms = min(deadline for deadline in deadlines if deadline is not None)
        if at_ms != self._armed:
            self._armed = at_ms
            self._effects.append(SetTimer(TICK, at_ms))

    # ---- restart

    def _rebuild(self, restored: Restored) -> None:
        """Replay stored blocks, certificates and own votes above the head; nothing is sent or timed."""
        for raw in restored.evidence:
            body = open_entry(raw, self.network).body
            if isinstance(body, Evidence):
                self._watch.remember(Accusation.of(body))
        for raw in restored.candidates:
            message = wire.read(raw)
            if isinstance(message, Proposal):
                self._proposals.add(open_block(message, self.network), 0)
            elif isinstance(message, Certificate):
                self._quorum.add_certificate(message)
        for raw in restored.votes:
            vote = wire.read(raw)
            if isinstance(vote, Vote):
                self._quorum.add_vote(vote)
        self._rebuild_candidates()

    def _rebuild_candidates(self) -> None:
        for block in self._proposals.waiting(self._chain.candidates):
            if self._chain.tip(block.header.parent) is None:
                continue
            if self._execute(block):
                parent = Position(block.header.parent_slot, block.header.parent)
                self._quorum.add_block(Position(block.header.slot, block.hash), parent)
