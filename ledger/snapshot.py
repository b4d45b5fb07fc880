"""Starting from the state after a boundary block instead of from the genesis: who offers one, and is it true.

Rules kept here:
1. The chain of validator sets is followed from the genesis to the boundary block (ledger/links.py).
2. Records count only together, when their hash is the state root in that block's certified header and their credits
   add up to the supply.  Until then nothing is kept but memory, which is bounded.
3. One peer is asked at a time; one that does not deliver, or delivers something else, is passed over.
4. Peers hold the state of their last boundary block only.  Where epochs end faster than a snapshot arrives, the chase
   stops after a number of them, and blocks are fetched instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import immutables

from contracts.records import Genesis, StateRecord
from contracts.state import State
from gdf_market.codec import decode
from gdf_market.errors import MalformedError, OversizedError, PeerError, ensure
from ledger import limits
from ledger.effects import Tip
from ledger.epochs import Epoch, epoch_after
from ledger.handover import Handover, SignedLink, follow
from ledger.kinds import MAX_RECORD_BYTES, RECORD_KINDS
from ledger.links import SetChain
from ledger.rules import Rules
from ledger.state_hash import StateHash
from ledger.wire import LinksRequest, SnapshotPage, SnapshotRecord, SnapshotRequest

_FAILURES = 3  # times that a peer does not answer, before it is not asked any more


@dataclass(frozen=True)
class Snapshot:
    """A verified state, and the links that lead to it."""

    tip: Tip
    handovers: tuple[Handover, ...]
    next: Epoch


class SnapshotSync:
    """One attempt after another to get a verified snapshot."""

    def __init__(self, genesis: Genesis, network: str, rules: Rules) -> None:
        self._genesis, self._network, self._rules = genesis, network, rules
        self._chain = SetChain(genesis, network)
        self._offers: dict[str, int] = {}  # peer -> height of the boundary block
        self._failures: dict[str, int] = {}
        self._peer: str | None = None
        self._give_up_ms: int | None = None  # counts from the first peer
        self._deadline_ms = 0
        self._pages = _Pages()
        self._handovers: list[Handover] = []
        self._restarts = 0  # times that an epoch ended before all records of its beginning had come
        self.given_up = False

    def offer(self, peer: str, height: int, now_ms: int) -> None:
        """Note which boundary block's state a peer says it can send; 0 for none."""
        if self._give_up_ms is None:
            self._give_up_ms = now_ms + limits.SNAPSHOT_WAIT_MS
        if len(self._offers) < limits.MAX_PEERS or peer in self._offers:
            self._offers[peer] = height

    def leave(self, peer: str) -> None:
        """Forget a peer that is gone."""
        self._offers.pop(peer, None)

    @property
    def _epoch(self) -> Epoch:
        return self._chain.epoch

    def request(self, now_ms: int) -> tuple[str, LinksRequest | SnapshotRequest] | None:
        """Return what to ask now of whom, if anything; sets ``given_up`` when nobody can help."""
        if self._restarts >= limits.SNAPSHOT_RESTARTS:
            self.given_up = True
            return None
        if self._peer is not None and now_ms >= self._deadline_ms:
            self._fail()
        if self._peer is not None:
            return None
        able = [
            peer
            for peer, height in self._offers.items()
            if height >= self._epoch.first - 1 and height > 0 and self._failures.get(peer, 0) < _FAILURES
        ]
        if not able:
            self.given_up = self._give_up_ms is not None and now_ms >= self._give_up_ms
            return None
        self._peer = min(able, key=lambda peer: (self._failures.get(peer, 0), -self._offers[peer], peer))
        self._deadline_ms = now_ms + limits.SYNC_TIMEOUT_MS
        return self._peer, self._ask()

    def _ask(self) -> LinksRequest | SnapshotRequest:
        assert self._peer is not None
        if self._offers.get(self._peer, 0) >= self._epoch.last or not self._handovers:
            return LinksRequest(epoch=self._epoch.number)
        return SnapshotRequest(height=self._handovers[-1].header.height, key=self._pages.key, part=self._pages.parts)

    def deadline(self) -> int | None:
        """Return when ``request`` is to be called again."""
        return self._deadline_ms if self._peer is not None else self._give_up_ms

    def _fail(self, weight: int = 1) -> None:
        if self._peer is not None:
            self._failures[self._peer] = self._failures.get(self._peer, 0) + weight
            self._peer = None
        self._pages = _Pages()

    def on_links(
        self, peer: str, epoch: int, links: Sequence[SignedLink], now_ms: int
    ) -> LinksRequest | SnapshotRequest | None:
        """Follow links; return what to ask next.  Raises PeerError for one that does not hold."""
        if peer != self._peer or epoch != self._epoch.number:
            return None
        try:
            for link in links:
                self._handovers.append(follow(self._chain, link, self._network))
                self._pages = _Pages()  # of an older boundary block
        except PeerError:
            self._fail(_FAILURES)  # it need not be asked again
            raise
        if not links:
            self._offers[peer] = min(self._offers.get(peer, 0), self._epoch.first - 1)  # it promised more
            self._fail()
            return None
        self._deadline_ms = now_ms + limits.SYNC_TIMEOUT_MS
        return self._ask()

    def on_page(self, peer: str, page: SnapshotPage, now_ms: int) -> SnapshotRequest | LinksRequest | Snapshot | None:
        """Add records; return what to ask next, or the snapshot.  Raises PeerError for records that are not it."""
        asked = self._pages.key, self._pages.parts
        if peer != self._peer or not self._handovers or (page.key, page.part) != asked:
            return None  # late, or a copy: no fault
        boundary = self._handovers[-1]
        self._deadline_ms = now_ms + limits.SYNC_TIMEOUT_MS
        if page.height > boundary.header.height:
            self._offers[peer] = page.height  # an epoch ended meanwhile
            self._restarts += 1
            if self._restarts >= limits.SNAPSHOT_RESTARTS:
                return None
            return self._ask()
        try:
            ensure(
                page.height == boundary.header.height,
                MalformedError(f"{peer} sent the state of block {page.height}, not of {boundary.header.height}"),
            )
            self._pages.add(page.records)
            ensure(page.done or len(page.records) > 0, MalformedError(f"{peer} sent an empty part of a snapshot"))
            return self._finish(boundary) if page.done else self._ask()
        except PeerError:
            self._fail(_FAILURES)  # it need not be asked again
            raise

    def _finish(self, boundary: Handover) -> Snapshot:
        header = boundary.header
        state = self._pages.state()
        total = StateHash.of(state.records.items())
        ensure(
            total.root() == header.state_root,
            MalformedError(f"the records give state {total.root()}, block {header.height} names {header.state_root}"),
        )
        found, supply = state.supply_check(), state.network().supply
        ensure(found == supply, MalformedError(f"the records hold {found} micro-credits, the supply is {supply}"))
        tip = Tip(header.height, header.slot, boundary.hash, header.time_ms, header.beacon, state, total)
        following = epoch_after(self._genesis, header.height, state, self._rules)
        assert following == boundary.next, "the header's set is that of the state with its root"
        return Snapshot(tip, tuple(self._handovers), following)


class _Pages:
    """Records received so far, in the order of their keys."""

    def __init__(self) -> None:
        self.key = ""  # of the last record of which something came
        self.parts = 0  # parts of it that came
        self._complete = True
        self._kind = ""
        self._text: list[str] = []
        self._bytes = 0
        self._records = immutables.Map[str, StateRecord]().mutate()

    def add(self, records: Sequence[SnapshotRecord]) -> None:
        for record in records:
            self._add(record)

    def _add(self, record: SnapshotRecord) -> None:
        if self._complete:
            ensure(record.key > self.key, MalformedError(f"record {record.key!r} comes after {self.key!r}"))
            self.key, self._kind, self.parts, self._text = record.key, record.kind, 0, []
        else:
            same = (record.key, record.kind) == (self.key, self._kind)
            ensure(same, MalformedError(f"record {self.key!r} is cut off"))
        self._text.append(record.value)
        self.parts += 1
        self._bytes += len(record.value)
        ensure(
            self._bytes <= limits.MAX_SNAPSHOT_BYTES and len(self._records) < limits.MAX_SNAPSHOT_RECORDS,
            OversizedError(f"a snapshot of more than {len(self._records)} records and {self._bytes} bytes"),
        )
        self._complete = not record.more
        if self._complete:
            kind = RECORD_KINDS.get(self._kind)
            ensure(kind is not None, MalformedError(f"record {self.key!r} is of an unknown kind {self._kind!r}"))
            assert kind is not None
            self._records[self.key] = decode("".join(self._text).encode(), kind, max_bytes=MAX_RECORD_BYTES)

    def state(self) -> State:
        """Return the state; raises MalformedError unless it is one."""
        ensure(self._complete, MalformedError(f"record {self.key!r} is cut off"))
        records = self._records.finish()
        ensure("network" in records and "active" in records, MalformedError("the records are no state of a network"))
        return State(records)
