"""What must hold of everything that honest nodes finalize, checked by an auditor of its own.

The auditor shares no code with the checks that the nodes make on blocks and certificates: it was bound to the kernel's
functions when it was imported, and states each rule once more.  So a rule removed from the nodes is not removed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from contracts.records import Genesis, Network
from contracts.state import BlockContext, State
from gdf_market import identity, merkle, statements
from gdf_market.codec import digest
from gdf_market.errors import GdfError
from gdf_market.messages import Evidence, open_entry
from gdf_market.statements import set_hash, signer
from ledger.block import FINAL, NOTAR, SKIP, Block, Certificate, Vote, genesis_beacon
from ledger.effects import SaveBlocks, SaveSnapshot
from ledger.limits import MAX_CLOCK_AHEAD_MS
from ledger.rules import Rules
from ledger.state_hash import StateHash
from tests.sim.caches import VERIFIED, VRF_VERIFIED
from tests.sim.memory import InvariantError

T = TypeVar("T")
_open_entry = open_entry


def require(condition: bool, message: str) -> None:
    """Raise InvariantError unless the condition holds."""
    if not condition:
        raise InvariantError(message)


@dataclass(frozen=True)
class Agreed:
    """A finalized block as the auditor sees it: what follows from the genesis and the blocks before."""

    height: int
    slot: int
    hash: str
    time_ms: int
    beacon: str
    state: State
    sum: StateHash


class Auditor:
    """The chain that honest nodes finalized in one run, replayed from the genesis."""

    def __init__(self, genesis: Genesis, rules: Rules, is_honest: Callable[[str], bool]) -> None:
        self.genesis = genesis
        self.network = rules.network_id(genesis)
        self.blocks = genesis.staking.epoch_blocks
        self._rules = rules
        self._is_honest = is_honest
        state = rules.genesis_state(genesis)
        first = Agreed(
            0,
            0,
            self.network,
            genesis.time_ms,
            genesis_beacon(self.network),
            state,
            StateHash.of(state.records.items()),
        )
        self.chain: list[Agreed] = [first]
        self.sets: list[tuple[str, ...]] = [state.network().validators]
        self.convicted: dict[str, int] = {}  # account -> height of the block that holds the evidence
        self.heights: dict[str, int] = {}  # of finalized entries
        self._certificates: dict[tuple[int, int, str], str] = {}
        self._verified: set[Certificate] = set()

    # ---- what honest nodes make durable

    def on_finalized(self, write: SaveBlocks, clock_ms: int) -> None:
        """Check newly finalized blocks, the certificate that finalizes them, and the set that follows."""
        for executed in write.blocks:
            height = executed.tip.height
            if height < len(self.chain):
                agreed = self.chain[height]
                require(agreed.hash == executed.block.hash, f"two finalized blocks at height {height}")
            else:
                require(height == len(self.chain), f"block {height} is finalized before block {len(self.chain)}")
                self._audit(executed.block, clock_ms)
            require(executed.tip.sum.root() == self.chain[height].sum.root(), f"two state roots at height {height}")
        self._check_closing(write)
        last = write.closing[-1] if write.closing else write.blocks[-1].block
        self.check_certificate(write.certificate)
        certificate = write.certificate
        require(
            (certificate.kind, certificate.slot, certificate.hash) == (FINAL, last.header.slot, last.hash),
            f"block {last.header.height} is finalized by a certificate of something else",
        )
        tip = write.blocks[-1].tip
        require((write.next is not None) == (tip.height % self.blocks == 0), f"an epoch ends at height {tip.height}")
        if write.next is not None:
            require(write.next.validators == self.sets[write.next.number], "the next epoch has another set")

    def on_snapshot(self, write: SaveSnapshot) -> None:
        """Check a state from which a node begins."""
        height = write.tip.height
        require(height < len(self.chain), f"a snapshot of block {height}, which is not final")
        agreed = self.chain[height]
        require(write.tip.hash == agreed.hash, f"a snapshot of another block {height}")
        require(write.tip.state.records == agreed.state.records, f"a snapshot of another state at height {height}")
        require(write.tip.sum.root() == agreed.sum.root(), f"two state roots at height {height}")
        require(write.next.validators == self.sets[write.next.number], "the snapshot's epoch has another set")

    def _audit(self, block: Block, clock_ms: int) -> None:
        header, parent = block.header, self.chain[-1]
        height, epoch = header.height, (header.height - 1) // self.blocks
        members = self.sets[epoch]
        require(header.parent == parent.hash, f"block {height} does not follow the finalized block before it")
        require(
            (header.network, header.epoch, header.parent_slot) == (self.network, epoch, parent.slot)
            and header.slot > parent.slot,
            f"block {height} is of epoch {header.epoch}, slot {header.slot} after {header.parent_slot}",
        )
        leader = members[header.slot % len(members)]
        require(header.proposer == leader, f"block {height} of slot {header.slot} is not by the slot's leader")
        require(
            parent.time_ms < header.time_ms <= clock_ms + 2 * MAX_CLOCK_AHEAD_MS,
            f"block {height} has time {header.time_ms}, its parent {parent.time_ms}",
        )
        self._blame(f"block {height} is not signed", self._check_signature, block)
        beta = self._blame(f"block {height} has no VRF proof", self._beta, block, parent.beacon)
        beacon = digest("gdf/beacon-next", bytes.fromhex(parent.beacon), beta).hex()
        require(header.beacon == beacon, f"the beacon of block {height} does not follow from its proof")
        require(
            header.entry_count == len(block.entries) and header.entries_root == merkle.root(block.entries).hex(),
            f"the entries of block {height} are not those of its header",
        )
        self._apply(block, parent)

    def _apply(self, block: Block, parent: Agreed) -> None:
        header = block.header
        height = header.height
        entries = [self._blame(f"an entry of block {height}", _open_entry, raw, self.network) for raw in block.entries]
        context = BlockContext(height=height, time_ms=header.time_ms, beacon=header.beacon, proposer=header.proposer)
        transition = self._blame(
            f"block {height} breaks the rules", self._rules.apply_block, parent.state, entries, context
        )
        state, total = transition.state, parent.sum.changed(transition.changes)
        require(header.state_root == total.root(), f"the state root of block {height} is another")
        network = state.network()
        require(state.supply_check() == network.supply, f"credits were made or lost at height {height}")
        require(header.validators == set_hash(network.validators), f"block {height} names other validators")
        for entry in entries:
            self.heights[entry.id] = height
            if isinstance(entry.body, Evidence):
                accused = signer(entry.body.first)
                require(not self._is_honest(accused), f"honest {accused} was convicted at height {height}")
                self.convicted.setdefault(accused, height)
        self._check_set(height, parent.state.network(), state)
        self.chain.append(Agreed(height, header.slot, block.hash, header.time_ms, header.beacon, state, total))

    def _check_set(self, height: int, before: Network, state: State) -> None:
        old, new = before.validators, state.network().validators
        if height % self.blocks:
            require(old == new, f"the validator set changed within an epoch, at height {height}")
            return
        require(len(new) >= 1 and len(set(new)) == len(new), f"the set after height {height} is {new}")
        records = {account: state.validator(account) for account in old}
        kept = {account for account, record in records.items() if record is None or not record.convicted}
        changed = len(kept - set(new)) + len(set(new) - set(old))
        limit = max(1, max(len(kept), 1) // 3)
        require(changed <= limit, f"{changed} of {len(kept)} validators changed at height {height}, not {limit}")
        self.sets.append(new)

    def _check_signature(self, block: Block) -> None:
        header = block.header
        VERIFIED(header.network, "block", header.proposer, block.header_bytes, bytes.fromhex(block.signature))

    def _beta(self, block: Block, beacon: str) -> bytes:
        header = block.header
        where = bytes.fromhex(self.network), bytes.fromhex(beacon), header.slot.to_bytes(8, "big")
        alpha = digest("gdf/beacon", *where)
        return VRF_VERIFIED(identity.public_key(header.proposer), alpha, bytes.fromhex(header.vrf_proof))

    @staticmethod
    def _blame(what: str, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except GdfError as error:
            raise InvariantError(f"{what}: {error}") from error

    def _check_closing(self, write: SaveBlocks) -> None:
        boundary = write.blocks[-1].block
        chain = [boundary, *write.closing]
        for before, after in itertools.pairwise(chain):
            header = after.header
            members = self.sets[boundary.header.epoch]
            require(boundary.header.height % self.blocks == 0, "closing blocks follow another than a boundary block")
            require(
                (header.parent, header.height, header.epoch)
                == (before.hash, before.header.height + 1, boundary.header.epoch)
                and header.proposer == members[header.slot % len(members)],
                f"closing block {header.height} does not follow the one before it",
            )
            require(
                not after.entries
                and (header.entry_count, header.state_root, header.validators)
                == (0, boundary.header.state_root, boundary.header.validators),
                f"closing block {header.height} is not empty",
            )

    def check_certificate(self, certificate: Certificate) -> None:
        """A quorum of distinct members of its epoch's set signed it, and nothing that contradicts it is certified."""
        if certificate in self._verified:
            return
        require(certificate.epoch < len(self.sets), f"a certificate of epoch {certificate.epoch}, which never began")
        members, signers = self.sets[certificate.epoch], certificate.signers
        what = f"the {certificate.kind} certificate of slot {certificate.slot}"
        require(
            len(set(signers)) == len(signers) == len(certificate.sigs) and all(seat < len(members) for seat in signers),
            f"{what} names a validator twice, or none",
        )
        require(3 * len(signers) > 2 * len(members), f"{what} has {len(signers)} of {len(members)} signatures")
        kind, slot = certificate.kind, certificate.slot
        for seat, signature in zip(signers, certificate.sigs, strict=True):
            vote = Vote(
                epoch=certificate.epoch,
                kind=kind,
                slot=slot,
                hash=certificate.hash,
                voter=members[seat],
                sig=signature,
            )
            covered = statements.ballot(vote)
            self._blame(what, VERIFIED, self.network, "vote", vote.voter, covered, bytes.fromhex(signature))
        self._verified.add(certificate)
        self._check_contradiction(certificate)

    def _check_contradiction(self, certificate: Certificate) -> None:
        epoch, slot, kind = certificate.epoch, certificate.slot, certificate.kind
        known = self._certificates.setdefault((epoch, slot, kind), certificate.hash)
        require(known == certificate.hash, f"two {kind} certificates in slot {slot} of epoch {epoch}")
        if kind == NOTAR:
            other = self._certificates.get((epoch, slot, FINAL), certificate.hash)
            require(other == certificate.hash, f"slot {slot} of epoch {epoch} is notarized and finalized differently")
        elif kind == FINAL:
            require((epoch, slot, SKIP) not in self._certificates, f"slot {slot} of {epoch} is final and skipped")
            other = self._certificates.get((epoch, slot, NOTAR), certificate.hash)
            require(other == certificate.hash, f"slot {slot} of epoch {epoch} is notarized and finalized differently")
        else:
            require((epoch, slot, FINAL) not in self._certificates, f"slot {slot} of {epoch} is final and skipped")
