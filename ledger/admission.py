"""Which entries this node keeps and relays: checks, mempool, deferred entries, flooding with deduplication.

Rules kept here:
1. An envelope's signature is verified once; the same bytes are not looked at again while they wait here or were refused
   for good.
2. Only entries that the rules would accept now are relayed; others wait apart for the next block.
3. A message with one unacceptable entry changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gdf_market.errors import FloodError, GdfError, PeerError, RuleError
from gdf_market.messages import Entry, open_entry
from ledger import limits
from ledger.chain import SeenEntries
from ledger.effects import Broadcast, Effect, Refused, Tip
from ledger.mempool import Deferred, Mempool, MempoolFullError
from ledger.rules import Rules
from ledger.wire import batches


class Admission:
    """The entries side of a replica."""

    def __init__(self, network: str, rules: Rules, seen: SeenEntries) -> None:
        self.pool = Mempool()
        self.deferred = Deferred()
        self.work_since_ms: int | None = None  # since when an entry waits that the tip does not contain
        self._network = network
        self._rules = rules
        self._seen = seen
        self._own: set[str] = set()  # submitted here and not yet finalized
        self._done: dict[str, None] = {}  # ids of recently finalized entries
        self._outbox: dict[str, Entry] = {}
        self._outbox_from: set[str | None] = set()
        self._relayed_ms = -limits.RELAY_MS
        self._refused: dict[str, int] = {}  # refused entries by peer since _refused_ms
        self._refused_ms = 0

    # ---- arrivals

    def submit(self, entry: Entry, tip: Tip, now_ms: int) -> list[Effect]:
        """Take an entry from this node's user; it is refused or kept until it is final or refused."""
        if entry.id in self.pool or entry.id in self._done:
            return []
        try:
            self._rules.check_entry(tip.state, entry, _entry_time(tip, now_ms))
            effects = self._keep(entry, now_ms, None)
        except (PeerError, MempoolFullError) as error:
            return [Refused(entry.id, error)]
        self._own.add(entry.id)
        self._seen.add(entry.raw)
        return effects

    def is_news(self, raws: Sequence[bytes]) -> bool:
        """Say whether any of these envelopes was not looked at yet."""
        return any(raw not in self._seen for raw in raws)

    def receive(self, peer: str, raws: Sequence[bytes], tip: Tip, now_ms: int, *, behind: bool = False) -> list[Effect]:
        """Take a peer's batch; raises PeerError for a malformed envelope, a bad signature, or a flood.

        ``behind``: this node lacks blocks, so that what it refuses may be right: then a flood is a RuleError, no fault.
        """
        self._check_flood(peer, now_ms, behind)
        fresh = [raw for raw in dict.fromkeys(raws) if raw not in self._seen]
        opened = [open_entry(raw, self._network) for raw in fresh]
        effects: list[Effect] = []
        for entry in opened:
            self._seen.add(entry.raw)
            effects += self._take(entry, tip, now_ms, peer, now_ms + limits.DEFERRED_MS)
        return effects

    def _check_flood(self, peer: str, now_ms: int, behind: bool) -> None:
        """Entries that the rules refuse cost a signature check each and pay for nothing: a peer may send few."""
        if not 0 <= now_ms - self._refused_ms < limits.REFUSED_WINDOW_MS:
            self._refused, self._refused_ms = {}, now_ms
        refused = self._refused.get(peer, 0)
        if refused > limits.MAX_REFUSED:
            kind = RuleError if behind else FloodError
            raise kind(f"{peer} sent {refused} entries that the rules refuse")

    def _take(self, entry: Entry, tip: Tip, now_ms: int, peer: str | None, until_ms: int) -> list[Effect]:
        if entry.id in self.pool or entry.id in self.deferred or entry.id in self._done:
            return []
        try:
            self._rules.check_entry(tip.state, entry, _entry_time(tip, now_ms))
            return self._keep(entry, now_ms, peer)
        except PeerError:
            if peer is not None:
                self._refused[peer] = self._refused.get(peer, 0) + 1
            if entry.body.expires_ms > now_ms:
                self.deferred.add(entry, until_ms)
        except MempoolFullError:
            pass  # whoever relays it later may find room here
        return []

    def _keep(self, entry: Entry, now_ms: int, peer: str | None) -> list[Effect]:
        evicted = self.pool.add(entry, now_ms)
        self.deferred.discard(entry.id)
        self._outbox[entry.id] = entry
        self._outbox_from.add(peer)
        if evicted is None:
            return []
        return self._refuse(evicted, MempoolFullError("the mempool filled up; submit again with a new nonce later"))

    def _refuse(self, entry: Entry, error: GdfError) -> list[Effect]:
        if entry.id not in self._own:
            return []
        self._own.discard(entry.id)
        return [Refused(entry.id, error)]

    # ---- as the ledger grows

    def on_tip(self, tip: Tip, included: Collection[str], now_ms: int) -> list[Effect]:
        """Check what waits against a new tip: some became invalid, some deferred ones valid."""
        effects: list[Effect] = []
        time_ms = _entry_time(tip, now_ms)
        waiting = [entry for entry in self.pool if entry.id not in included]
        for entry in waiting[: limits.RECHECKS_PER_BLOCK]:
            try:
                self._rules.check_entry(tip.state, entry, time_ms)
            except PeerError as error:
                effects += self.put_aside(entry, error, now_ms)
        for entry, until_ms in self.deferred.take(limits.RECHECKS_PER_BLOCK, now_ms):
            effects += self._take(entry, tip, now_ms, None, until_ms)
        self.note_work(included, now_ms)
        return effects

    def note_work(self, included: Collection[str], now_ms: int) -> None:
        """Keep ``work_since_ms`` up to date."""
        if not self.pool.has_other_than(included):
            self.work_since_ms = None
        elif self.work_since_ms is None:
            self.work_since_ms = now_ms

    def put_aside(self, entry: Entry, error: PeerError, now_ms: int) -> list[Effect]:
        """Move an entry that the rules refuse on the tip out of the pool."""
        self.pool.discard(entry.id)
        if entry.id not in self._own and entry.body.expires_ms > now_ms:
            self.deferred.add(entry, now_ms + limits.DEFERRED_MS)
        return self._refuse(entry, error)

    def finalized(self, entries: Sequence[Entry]) -> None:
        """Forget entries that are in the ledger now."""
        for entry in entries:
            self.pool.discard(entry.id)
            self.deferred.discard(entry.id)
            self._own.discard(entry.id)
            self._outbox.pop(entry.id, None)
            self._done[entry.id] = None
        while len(self._done) > limits.MAX_RAW_SEEN:
            del self._done[next(iter(self._done))]

    # ---- relaying

    def relay(self, now_ms: int) -> list[Effect]:
        """Flood what was accepted since the last relay, if that is long enough ago."""
        if not self._outbox or now_ms < self._relayed_ms + limits.RELAY_MS:
            return []
        source = next(iter(self._outbox_from)) if len(self._outbox_from) == 1 else None
        messages = batches(entry.raw for entry in self._outbox.values())
        self._outbox, self._outbox_from, self._relayed_ms = {}, set(), now_ms
        return [Broadcast(message, source) for message in messages]

    def relay_deadline(self) -> int | None:
        """Return when the next relay is due."""
        return self._relayed_ms + limits.RELAY_MS if self._outbox else None

    def flood_again(self, now_ms: int) -> list[Effect]:
        """Send entries that no block took for a while once more: a message may have been lost."""
        stale = self.pool.stale(now_ms - limits.REFLOOD_MS, now_ms, limits.REFLOOD_BYTES)
        return [Broadcast(message) for message in batches(entry.raw for entry in stale)]

    def greeting(self) -> list[bytes]:
        """Return messages with waiting entries for a new peer (bounded)."""
        first = self.pool.candidates((), limits.REFLOOD_BYTES * 2, limits.MAX_BATCH_ENTRIES)
        return batches(entry.raw for entry in first)


def _entry_time(tip: Tip, now_ms: int) -> int:
    return max(tip.time_ms + 1, now_ms)
