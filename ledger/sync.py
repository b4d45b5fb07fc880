"""Fetching finalized blocks in ranges from whoever has more, and checking them before they are believed.

A fetched block counts once it hangs on our head by its hash chain and a finalize certificate covers it; execution
then decides whether we agree with the quorum.  One request is under way at a time; a peer that does not deliver
loses its turn to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdf_market.errors import FloodError, MalformedError, OversizedError, PeerError, ensure
from ledger import limits
from ledger.block import FINAL, Block, Certificate, Header, open_block, open_header, verify_certificate
from ledger.effects import Tip
from ledger.epochs import Epoch
from ledger.wire import SyncBlock

PATIENCE_MS = 200  # one block behind is usually a vote under way
SERVES_PER_SECOND = 20
FLOOD_TIMES = 2  # whoever asks for more than that many times as much a second asks for no answer


@dataclass
class Peer:
    """What is known of a connected node, and when it was last served."""

    height: int = 0
    oldest: int = 1  # from which height on it holds all blocks
    snapshot: int = 0  # the boundary block whose state it can send; 0 if none
    helped_ms: int = -limits.HELP_INTERVAL_MS
    asked_ms: int = -1  # when it was last asked for blocks
    serve_second: int = -1
    served: int = 0  # in that second, in eighths of an answer to a sync request

    def may_serve(self, now_ms: int, weight: int = 8) -> bool:
        """Count one answer to a request; False beyond the rate, FloodError far beyond it."""
        if self.serve_second != now_ms // 1_000:
            self.serve_second, self.served = now_ms // 1_000, 0
        self.served += weight
        ensure(
            self.served <= FLOOD_TIMES * 8 * SERVES_PER_SECOND,
            FloodError(f"more than {FLOOD_TIMES * SERVES_PER_SECOND} requests for blocks in a second, or as much"),
        )
        return self.served <= 8 * SERVES_PER_SECOND

    def may_help(self, now_ms: int) -> bool:
        """Note one answer to a status; False when the last was just now."""
        if now_ms < self.helped_ms + limits.HELP_INTERVAL_MS:
            return False
        self.helped_ms = now_ms
        return True


@dataclass(frozen=True)
class Fetched:
    """Blocks that the certificate finalizes, and what of the message is of the next epoch."""

    blocks: tuple[Block, ...]
    certificate: Certificate
    rest: tuple[SyncBlock, ...]


class CatchUp:
    """Peers' heights, the request under way, and fetched blocks that wait for their certificate."""

    def __init__(self, network: str) -> None:
        self.peers: dict[str, Peer] = {}
        self._network = network
        self._buffer: list[Block] = []
        self._asked: str | None = None  # whose answer is awaited
        self._source: str | None = None  # who sent what is in the buffer: nobody else's blocks are mixed in
        self._deadline_ms = 0
        self._behind_ms: int | None = None
        self._cut_off_ms: int | None = None  # since when nobody ahead holds the next block

    def _next_height(self, head: Tip) -> int:
        while self._buffer and self._buffer[0].header.height <= head.height:
            self._buffer.pop(0)  # agreement was faster
        if self._buffer and self._buffer[0].header.parent != head.hash:
            self._buffer = []
        return head.height + len(self._buffer) + 1

    def is_behind(self, head: Tip) -> bool:
        """Say whether a peer claims more finalized blocks."""
        return bool(self._able(self._next_height(head)))

    def _able(self, wanted: int) -> dict[str, Peer]:
        """Return the peers that claim to hold a block and those after it."""
        return {name: peer for name, peer in self.peers.items() if peer.oldest <= wanted <= peer.height}

    def request(self, head: Tip, now_ms: int) -> tuple[str, int] | None:
        """Return (peer, height) to ask now, if it is time to."""
        self._drop_stuck(head, now_ms)
        wanted = self._next_height(head)
        ahead = self._able(wanted)
        if not ahead:
            self._behind_ms = self._asked = None
            return None
        if self._behind_ms is None:
            self._behind_ms = now_ms
        if now_ms < self._due_ms(wanted):
            return None
        if self._asked in ahead:
            ahead[self._asked].height = 0  # it did not deliver what it claims; its next status may say so again
            if len(ahead) > 1:
                del ahead[self._asked]
        name = min(ahead, key=lambda name: (ahead[name].asked_ms, name))
        if name != self._source:
            self._source, self._buffer = name, []
            wanted = self._next_height(head)
        self._asked, self._deadline_ms = name, now_ms + limits.SYNC_TIMEOUT_MS
        self.peers[name].asked_ms = now_ms
        return name, wanted

    def _drop_stuck(self, head: Tip, now_ms: int) -> None:
        """Forget blocks whose certificate does not come: with them, only who claims even more could be asked."""
        if not self._buffer:
            return
        late = self._asked is not None and now_ms >= self._deadline_ms
        alone = self._asked is None and not self._able(self._next_height(head))
        if late or alone:
            self._buffer = []

    def _due_ms(self, wanted: int) -> int:
        if self._asked is not None:
            return self._deadline_ms
        far = any(peer.height > wanted for peer in self.peers.values())
        return (self._behind_ms or 0) + (0 if far else PATIENCE_MS)

    def deadline(self, head: Tip) -> int | None:
        """Return when ``request`` is to be called again."""
        if self.is_behind(head):
            return self._due_ms(self._next_height(head))
        return self._cut_off_ms + limits.CUT_OFF_MS if self._cut_off_ms is not None else None

    def is_cut_off(self, head: Tip, now_ms: int) -> bool:
        """Say whether for some time peers were ahead of which none holds the next block: all have pruned it."""
        wanted = self._next_height(head)
        if self._able(wanted) or all(peer.height < wanted for peer in self.peers.values()):
            self._cut_off_ms = None
        elif self._cut_off_ms is None:
            self._cut_off_ms = now_ms
        return self._cut_off_ms is not None and now_ms >= self._cut_off_ms + limits.CUT_OFF_MS

    def take(
        self, peer: str, items: Sequence[SyncBlock], more: bool, head: Tip, epoch: Epoch, now_ms: int
    ) -> Fetched | None:
        """Return fetched blocks that a verified certificate finalizes, in order, once there are any.

        Blocks beyond the end of ``epoch`` are handed back as ``rest``: to be taken once its blocks were executed.
        Raises PeerError, and forgets what was fetched, when the blocks are not what a finalized chain looks like.
        """
        known = self.peers.get(peer)
        if known is None or peer != self._source:
            return None  # not asked, or too late
        wanted = self._next_height(head), epoch.number  # drops what agreement finalized meanwhile
        places = [(header.height, header.epoch) for header in map(self._header, items)]
        if wanted not in places:
            return None  # known already, or a part before it was lost
        try:
            fetched = self._append(items[places.index(wanted) :], head, epoch)
        except PeerError:
            self._buffer, known.height = [], 0
            raise
        if peer == self._asked:
            self._deadline_ms = now_ms + limits.SYNC_TIMEOUT_MS
            if not more:
                self._asked, self._behind_ms = None, 0  # ask for the next range at once
        return fetched

    def _header(self, item: SyncBlock) -> Header:
        return open_header(bytes(item.block.header), self._network)

    def _append(self, items: Sequence[SyncBlock], head: Tip, epoch: Epoch) -> Fetched | None:
        covered, certificate, rest = 0, None, items
        for item in items:
            rest = rest[1:]
            header = self._header(item)
            ensure(
                header.epoch == epoch.number,
                MalformedError(f"block {header.height} is of epoch {header.epoch}, not of {epoch.number}"),
            )
            block = open_block(item.block, self._network, epoch.leader(header.slot))
            last = self._buffer[-1].hash if self._buffer else head.hash
            ensure(
                header.parent == last and header.height == head.height + len(self._buffer) + 1,
                MalformedError(f"block {header.height} does not follow the one before it"),
            )
            self._buffer.append(block)
            ensure(
                len(self._buffer) <= limits.SYNC_BUFFER_BLOCKS,
                OversizedError(f"{len(self._buffer)} blocks without a finalize certificate"),
            )
            if item.certificate is not None:
                covered, certificate = len(self._buffer), item.certificate
                if header.height >= epoch.last:
                    break
        if certificate is None:
            return None
        self._check(certificate, self._buffer[covered - 1], epoch)
        finalized, self._buffer = self._buffer[:covered], self._buffer[covered:]
        return Fetched(tuple(finalized), certificate, tuple(rest))

    def _check(self, certificate: Certificate, block: Block, epoch: Epoch) -> None:
        ensure(
            (certificate.kind, certificate.slot, certificate.hash) == (FINAL, block.header.slot, block.hash),
            MalformedError(f"block {block.header.height} comes with a certificate of something else"),
        )
        verify_certificate(certificate, self._network, epoch.validators, epoch.number)
