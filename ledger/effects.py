"""What goes into a replica and what comes out: events, effects, and the writes of one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.block import Transition
from contracts.records import Event, Genesis
from contracts.state import State
from gdf_market.errors import GdfError, PeerError
from gdf_market.messages import Entry
from ledger.block import Block, Certificate, Vote
from ledger.epochs import Epoch
from ledger.handover import Handover
from ledger.state_hash import StateHash

# ---- events


@dataclass(frozen=True)
class Started:
    """The shell is ready to carry effects out; no timer is armed and nothing is proposed before it."""


@dataclass(frozen=True)
class PeerUp:
    peer: str


@dataclass(frozen=True)
class PeerDown:
    peer: str


@dataclass(frozen=True)
class Received:
    peer: str
    data: bytes


@dataclass(frozen=True)
class Submitted:
    """An entry from this node's own user or roles."""

    entry: Entry


@dataclass(frozen=True)
class Timer:
    name: str


ReplicaEvent = Started | PeerUp | PeerDown | Received | Submitted | Timer


# ---- writes (of one Save, hence of one transaction)


@dataclass(frozen=True)
class Tip:
    """A block's position and the state after it: what a child builds on."""

    height: int
    slot: int
    hash: str
    time_ms: int
    beacon: str
    state: State
    sum: StateHash


@dataclass(frozen=True)
class Executed:
    """A block whose execution on its parent gave the state root that it claims."""

    block: Block
    entries: tuple[Entry, ...]
    transition: Transition
    tip: Tip


@dataclass(frozen=True)
class Finality:
    """What one finalize certificate finalizes: blocks of the ledger in order, at most up to the epoch's end.

    ``closing`` are the blocks beyond the boundary block that lead to the certified one; ``next`` is the epoch that
    begins when the boundary block is among ``blocks``.
    """

    blocks: tuple[Executed, ...]
    closing: tuple[Block, ...] = ()
    next: Epoch | None = None


@dataclass(frozen=True)
class SaveVote:
    vote: Vote


@dataclass(frozen=True)
class SaveCandidate:
    """A block or certificate above the finalized head; ``raw`` are its message bytes."""

    id: str
    kind: str  # block | certificate
    slot: int
    raw: bytes


@dataclass(frozen=True)
class SaveBlocks:
    """Newly finalized blocks in order; the certificate finalizes the last one (of ``closing``, if there are any).

    Votes up to its slot and candidates up to its slot are deleted by the same transaction; all of them when an epoch
    ends.
    """

    blocks: tuple[Executed, ...]
    certificate: Certificate
    closing: tuple[Block, ...] = ()
    next: Epoch | None = None


@dataclass(frozen=True)
class SaveEvidence:
    """Proof of an equivocation seen here: kept until it is in the ledger or too old; ``raw`` is a signed entry."""

    accused: str
    epoch: int
    raw: bytes


@dataclass(frozen=True)
class DropEvidence:
    """What SaveEvidence kept is in the ledger, or too old."""

    accused: str
    epoch: int


@dataclass(frozen=True)
class SaveSnapshot:
    """Start anew from a verified state: all records are replaced, votes and candidates deleted."""

    tip: Tip
    handovers: tuple[Handover, ...]
    next: Epoch


@dataclass(frozen=True)
class Prune:
    """Delete blocks below a height, with their entries and events; boundary blocks' headers stay."""

    before: int


Write = SaveVote | SaveCandidate | SaveBlocks | SaveEvidence | DropEvidence | SaveSnapshot | Prune


@dataclass(frozen=True)
class Restored:
    """What a store gives back after a restart; ``votes`` and ``candidates`` are message bytes, ``evidence`` entries."""

    genesis: Genesis
    tip: Tip
    votes: tuple[bytes, ...] = ()
    candidates: tuple[bytes, ...] = ()
    evidence: tuple[bytes, ...] = ()
    oldest: int = 1  # the height from which on all blocks are held


# ---- effects


@dataclass(frozen=True)
class Save:
    """Must be durable before any later effect is carried out."""

    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Send:
    peer: str
    data: bytes


@dataclass(frozen=True)
class Broadcast:
    data: bytes
    exclude: str | None = None


@dataclass(frozen=True)
class Serve:
    """Send ``peer`` every message of ``store.sync_messages(height)``."""

    peer: str
    height: int


@dataclass(frozen=True)
class ServeLinks:
    """Send ``peer`` every message of ``store.link_messages(epoch)``."""

    peer: str
    epoch: int


@dataclass(frozen=True)
class ServeSnapshot:
    """Send ``peer`` the message ``store.snapshot_message(key, part)``."""

    peer: str
    key: str
    part: int


@dataclass(frozen=True)
class SetTimer:
    """Deliver Timer(name) at ``at_ms``; replaces an earlier one of that name."""

    name: str
    at_ms: int


@dataclass(frozen=True)
class Finalized:
    height: int
    time_ms: int
    events: tuple[Event, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Refused:
    """An entry submitted here will not be in a block."""

    entry_id: str
    error: GdfError


@dataclass(frozen=True)
class Misbehaved:
    peer: str
    error: PeerError


Effect = Save | Send | Broadcast | Serve | ServeLinks | ServeSnapshot | SetTimer | Finalized | Refused | Misbehaved
