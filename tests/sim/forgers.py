"""More Byzantine validators: false claims in headers, forged certificates, false answers to sync requests, garbage."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gdf_market import merkle
from gdf_market.codec import encode
from gdf_market.messages import Entry, Transfer, seal
from ledger.block import (
    FINAL,
    NOTAR,
    SKIP,
    Block,
    Certificate,
    Header,
    Proposal,
    Vote,
    assemble,
    cast,
    open_block,
    seal_block,
)
from ledger.effects import Broadcast, Effect, Send
from tests.sim.attackers import (
    messages,
    others_of,
    proposals_of,
    replica_of,
    twin_of,
    votes_for,
    without_own,
)
from tests.sim.caches import READ
from tests.simulator import Cluster

WRONG_HASH = "5a" * 32


def lie(field: str, cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader make a false claim in one's header, and vote for the block."""
    forged = without_own(name, effects)
    for proposal, header in proposals_of(name, effects):
        block = false_block(field, cluster, name, proposal, header)
        votes = votes_for(cluster, name, header.epoch, header.slot, block.hash)[:2]
        forged += [Broadcast(block.raw), *(Broadcast(vote) for vote in votes)]
    return forged


def false_block(field: str, cluster: Cluster, name: str, proposal: Proposal, header: Header) -> Block:
    """Return an own block with one false claim."""
    entries: list[bytes] = [bytes(raw) for raw in proposal.entries]
    changes: dict[str, object] = {}
    match field:
        case "height" | "epoch":
            changes[field] = getattr(header, field) + 1
        case "time_ms":
            changes[field] = header.time_ms - 600_000
        case "state_root" | "validators" | "parent":
            changes[field] = WRONG_HASH
        case "beacon":
            changes[field] = WRONG_HASH
        case "vrf_proof":
            changes[field] = "5a" * 80
        case "entries_root":  # what is signed are none
            changes.update(entries_root=merkle.root(()).hex(), entry_count=0)
        case "entries":  # in a closing block; a transfer of our own credits elsewhere
            entries = [*entries, _transfer(cluster, name).raw]
            changes.update(entries_root=merkle.root(entries).hex(), entry_count=len(entries))
    changed = msgspec.structs.replace(header, **changes)
    return seal_block(cluster.nodes[name].key, changed, entries)


def _transfer(cluster: Cluster, name: str) -> Entry:
    key, now_ms = cluster.nodes[name].key, cluster.clock(name)
    to = others_of(cluster, name)[0]
    body = Transfer(author=name, nonce=now_ms, expires_ms=now_ms + 600_000, to=to, amount=1, memo="")
    return seal(key, cluster.network, body)


FIELDS = ("height", "epoch", "time_ms", "state_root", "validators", "parent", "beacon", "vrf_proof", "entries")


def lie_somewhere(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Make some false claim in one's header."""
    return lie(cluster.random.choice(FIELDS), cluster, name, effects)


def rob(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader put a transfer of somebody else's credits, signed by ourselves, into the block."""
    forged = without_own(name, effects)
    for proposal, header in proposals_of(name, effects):
        replica = replica_of(cluster, name)
        parent = replica._chain.tip(header.parent)
        if parent is None or header.height > replica.epoch.last:
            forged.append(Broadcast(open_block(proposal, cluster.network).raw))
            continue
        victim = cluster.genesis.allocations[-1].account
        now_ms = cluster.clock(name)
        body = Transfer(author=victim, nonce=now_ms, expires_ms=now_ms + 600_000, to=name, amount=1_000, memo="")
        data = encode(body)
        raw = b'{"body":' + data + b',"sig":"' + b"5a" * 64 + b'"}'
        entry = Entry(id=f"{now_ms:064x}", body=body, raw=raw)
        kept = dict(replica._chain.candidates)
        executed, _ = replica._chain.propose(cluster.nodes[name].key, parent, header.slot, header.time_ms, [entry])
        replica._chain.candidates = kept
        votes = votes_for(cluster, name, header.epoch, header.slot, executed.block.hash)[:2]
        forged += [Broadcast(executed.block.raw), *(Broadcast(vote) for vote in votes)]
    return forged


def impersonate(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Propose in the name of other leaders, before they do, with a signature that is not theirs."""
    replica = replica_of(cluster, name)
    slot, parent, epoch = replica._quorum.frontier, replica._parent, replica.epoch.number
    leader = replica._quorum.leader(slot)
    if parent is None or (name, epoch, slot) in cluster.memory or leader == name:
        return effects
    cluster.memory[name, epoch, slot] = True
    kept = dict(replica._chain.candidates)
    key = cluster.nodes[name].key
    executed, _ = replica._chain.propose(cluster.nodes[leader].key, parent, slot, cluster.clock(name), [])
    replica._chain.candidates = kept
    header = executed.block.header
    signature = key.sign(cluster.network, "block", executed.block.header_bytes).hex()
    block = assemble(header, executed.block.header_bytes, signature, executed.block.entries)
    return [*effects, Broadcast(block.raw)]


# ---- certificates


def forge(style: str, cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send two blocks to two halves, and to each half forged certificates that notarize and finalize its own."""
    replica = replica_of(cluster, name)
    others = others_of(cluster, name)
    forged = without_own(name, effects)
    for proposal, header in proposals_of(name, effects):
        own, twin = open_block(proposal, cluster.network), twin_of(cluster, name, proposal)
        for index, other in enumerate(others):
            mine = own if index % 2 or twin is None else twin
            forged.append(Send(other, mine.raw))
            for kind in (NOTAR, FINAL):
                certificate = false_certificate(style, cluster, name, kind, header.slot, mine.hash)
                forged.append(Send(other, encode(certificate)))
    slot = replica._quorum.frontier
    if cluster.random.random() < 0.1 and name in replica.epoch.validators:
        certificate = false_certificate(style, cluster, name, SKIP, slot, "")
        forged += [Send(other, encode(certificate)) for other in others if cluster.random.random() < 0.5]
    return forged


def false_certificate(style: str, cluster: Cluster, name: str, kind: str, slot: int, hash_: str) -> Certificate:
    """Return a certificate that has no quorum: of one signer repeated, of false signatures, or of too few."""
    replica = replica_of(cluster, name)
    members = replica.epoch.validators
    me, needed = members.index(name), 2 * len(members) // 3 + 1
    mine = cast(cluster.nodes[name].key, cluster.network, replica.epoch.number, kind, slot, hash_).sig
    signers: Sequence[int] = {"repeated": [me] * needed, "unsigned": range(needed), "few": [me]}[style]
    return Certificate(
        epoch=replica.epoch.number,
        kind=kind,
        slot=slot,
        hash=hash_,
        signers=tuple(signers),
        sigs=tuple(mine for _ in signers),
    )


def forge_somehow(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Forge certificates of changing kinds."""
    return forge(cluster.random.choice(("repeated", "unsigned", "few")), cluster, name, effects)


def forge_votes(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send two blocks to two halves, and votes in the others' names for each."""
    replica = replica_of(cluster, name)
    forged = without_own(name, effects)
    for proposal, header in proposals_of(name, effects):
        own, twin = open_block(proposal, cluster.network), twin_of(cluster, name, proposal)
        for index, other in enumerate(others_of(cluster, name)):
            mine = own if index % 2 or twin is None else twin
            forged.append(Send(other, mine.raw))
            for kind in (NOTAR, FINAL):
                signature = cast(
                    cluster.nodes[name].key, cluster.network, header.epoch, kind, header.slot, mine.hash
                ).sig
                for voter in replica.epoch.validators:
                    vote = Vote(
                        epoch=header.epoch, kind=kind, slot=header.slot, hash=mine.hash, voter=voter, sig=signature
                    )
                    forged.append(Send(other, encode(vote)))
    return forged


def stale(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send certificates of earlier slots and epochs again, as they were and as if they were of this epoch."""
    epoch = replica_of(cluster, name).epoch.number
    seen: list[bytes] = cluster.memory.setdefault(("stale", name), [])
    seen += [data for data, _ in messages(effects, Certificate)]
    forged = list(effects)
    if seen and cluster.random.random() < 0.2:
        data = cluster.random.choice(seen)
        certificate = READ(data)
        assert isinstance(certificate, Certificate)
        forged += [Broadcast(data), Broadcast(encode(msgspec.structs.replace(certificate, epoch=epoch)))]
    return forged
