"""Every attack by name."""

from __future__ import annotations

from dataclasses import dataclass

from tests.hostile import blobs, connections, gossip, identities, ledger, linking, streams
from tests.hostile.kit import Attack


@dataclass(frozen=True)
class Listed:
    """An attack and what it is, in a few words."""

    run: Attack

    @property
    def what(self) -> str:
        return (self.run.__doc__ or "").strip().rstrip(".")


ATTACKS = {
    name: Listed(run)
    for name, run in {
        "connections-one": connections.flood_one,
        "connections-many": connections.flood_many,
        "half-open": connections.half_open,
        "slow-writer": connections.slow_writer,
        "garbage": connections.garbage,
        "login-churn": connections.login_churn,
        "streams": streams.flood,
        "stream-churn": streams.churn,
        "muxer-frames": streams.nothing,
        "muxer-giants": streams.giants,
        "no-window": streams.without_window,
        "bad-frames": linking.bad_frames,
        "hellos": linking.hellos,
        "links-replaced": linking.replaced,
        "eclipse-one": identities.eclipse,
        "eclipse-many": identities.eclipse_many,
        "dial-abuse": identities.dial_abuse,
        "dialled-back": identities.dialled_back,
        "gossip-malformed": gossip.malformed,
        "gossip-forged": gossip.forged,
        "gossip-replayed": gossip.replayed,
        "gossip-control": gossip.control,
        "gossip-deaf": gossip.deaf,
        "order-spam": gossip.spam,
        "ledger-votes": ledger.votes,
        "ledger-entries": ledger.entries,
        "ledger-signatures": ledger.bad_signatures,
        "ledger-requests": ledger.requests,
        "ledger-slow-readers": ledger.slow_readers,
        "ledger-heights": ledger.heights,
        "blob-slow-readers": blobs.slow_readers,
        "blob-flood": blobs.flood,
        "blob-poison": blobs.poison,
    }.items()
}
