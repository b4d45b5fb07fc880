"""Byzantine validators: what a node with a real key can send that the rules forbid.

An attack rewrites the effects of the node's own, honest replica.  ``ATTACKS`` are drawn by the scenarios; each keeps
within what one validator can do.  ``sibling`` needs an accomplice and ``turncoat`` several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from gdf_market.codec import encode
from gdf_market.messages import ValidatorLeave, seal
from ledger import wire
from ledger.block import (
    FINAL,
    NOTAR,
    SKIP,
    Block,
    Certificate,
    Header,
    Proposal,
    Vote,
    block_hash,
    cast,
    open_block,
)
from ledger.effects import Broadcast, Effect, Send, Tip
from ledger.replica import Replica
from tests.sim.caches import READ
from tests.sim.monitor import read_header
from tests.simulator import Cluster

T = TypeVar("T", Proposal, Vote, Certificate, wire.Status)


def replica_of(cluster: Cluster, name: str) -> Replica:
    replica = cluster.nodes[name].replica
    assert replica is not None
    return replica


def others_of(cluster: Cluster, name: str) -> list[str]:
    """Return the accounts of all other nodes."""
    account = cluster.nodes[name].account
    return [each for each in dict.fromkeys(node.account for node in cluster.nodes.values()) if each != account]


def messages(effects: list[Effect], kind: type[T]) -> Iterator[tuple[bytes, T]]:
    """Yield what is broadcast of one kind."""
    for effect in effects:
        if isinstance(effect, Broadcast):
            message = READ(effect.data)
            if isinstance(message, kind):
                yield effect.data, message


def proposals_of(name: str, effects: list[Effect]) -> Iterator[tuple[Proposal, Header]]:
    """Yield the node's own proposals among the effects."""
    for _, proposal in messages(effects, Proposal):
        header = read_header(bytes(proposal.header))
        if header.proposer == name:
            yield proposal, header


def without_own(name: str, effects: list[Effect]) -> list[Effect]:
    """Return the effects without the node's own proposals."""
    return [
        effect
        for effect in effects
        if not (isinstance(effect, Broadcast) and any(True for _ in proposals_of(name, [effect])))
    ]


def votes_for(cluster: Cluster, name: str, epoch: int, slot: int, hash_: str) -> list[bytes]:
    """Return a node's votes of all kinds in a slot."""
    key = cluster.nodes[name].key
    return [
        encode(cast(key, cluster.network, epoch, kind, slot, "" if kind == SKIP else hash_))
        for kind in (NOTAR, FINAL, SKIP)
    ]


def twin_of(cluster: Cluster, name: str, proposal: Proposal, shift_ms: int = 1) -> Block | None:
    """Return another valid block for the slot of a node's own proposal; None when its parent is gone."""
    chain = replica_of(cluster, name)._chain
    header = read_header(bytes(proposal.header))
    parent = chain.tip(header.parent)
    if parent is None:
        return None
    kept = dict(chain.candidates)
    entries = list(chain.open_entries(open_block(proposal, cluster.network)))
    executed, _ = chain.propose(
        cluster.nodes[name].key, parent, header.slot, header.time_ms + shift_ms, entries[:-1] or entries
    )
    chain.candidates = kept
    return executed.block


def equivocate(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader send two blocks to two halves; vote for both, and to skip and to finalize every slot."""
    others = others_of(cluster, name)
    forged: list[Effect] = without_own(name, effects)
    for proposal, header in proposals_of(name, effects):
        twin = twin_of(cluster, name, proposal)
        own = open_block(proposal, cluster.network)
        cluster.random.shuffle(others)
        for index, other in enumerate(others):
            mine = own if index % 2 or twin is None else twin
            forged.append(Send(other, mine.raw))
            forged += [Send(other, vote) for vote in votes_for(cluster, name, header.epoch, header.slot, mine.hash)]
    for _, vote in messages(effects, Vote):
        if vote.voter != name:
            continue
        for other in others:
            if cluster.random.random() < 0.7:
                hash_ = vote.hash or cluster.network
                forged += [Send(other, each) for each in votes_for(cluster, name, vote.epoch, vote.slot, hash_)]
    return forged


def front_run(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader of coming slots propose at once, on parents not notarized and over slots not skipped."""
    replica = replica_of(cluster, name)
    quorum, chain = replica._quorum, replica._chain
    done: set[tuple[int, int]] = cluster.memory.setdefault(name, set())
    forged = list(effects)
    epoch = quorum.epoch.number
    others = others_of(cluster, name)
    for slot in range(quorum.frontier, quorum.frontier + len(quorum.validators) + 1):
        if quorum.leader(slot) != name or (epoch, slot) in done or replica.height == 0:
            continue
        done.add((epoch, slot))
        parents: list[Tip] = [chain.head, *(executed.tip for executed in chain.candidates.values())]
        parents = [tip for tip in parents if tip.slot < slot]
        for other in others:
            parent = cluster.random.choice(parents)
            now_ms = cluster.clock(name) + cluster.random.randint(0, 5)
            executed, _ = chain.propose(cluster.nodes[name].key, parent, slot, now_ms, [])
            if executed.block.hash not in {block.hash for block in replica._proposals.at(slot)}:
                replica._proposals.add(executed.block, now_ms)
            forged.append(Send(other, executed.block.raw))
            votes = votes_for(cluster, name, epoch, slot, executed.block.hash)
            forged += [Send(peer, vote) for peer in others for vote in votes]
    for executed in list(chain.candidates.values()):  # help every sibling towards a certificate
        if (name, executed.block.hash) not in cluster.memory:
            cluster.memory[name, executed.block.hash] = True
            votes = votes_for(cluster, name, epoch, executed.tip.slot, executed.block.hash)
            forged += [Broadcast(vote) for vote in votes]
    return forged


def silent(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Keep everything to oneself, but go on running."""
    return [effect for effect in effects if not isinstance(effect, (Broadcast, Send))]


def selective(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send each message to a random part of the others only, so that they see different votes."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Broadcast):
            peers = [peer for peer in others_of(cluster, name) if peer != effect.exclude]
            forged += [Send(peer, effect.data) for peer in peers if cluster.random.random() < 0.4]
        else:
            forged.append(effect)
    return forged


def withhold(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Keep own votes and certificates back; let some go much later, and to some only."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Broadcast) and isinstance(READ(effect.data), (Vote, Certificate)):
            for peer in others_of(cluster, name):
                if cluster.random.random() < 0.4:
                    later_ms = cluster.now_ms + cluster.random.randint(100, 3_000)
                    cluster.at(later_ms, cluster.transmit, name, peer, effect.data)
        else:
            forged.append(effect)
    return forged


def whisper(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Once, send one other node alone a second vote for a slot."""
    for _, vote in messages(effects, Vote):
        if vote.voter == name and vote.kind == NOTAR and (name, "whispered") not in cluster.memory:
            cluster.memory[name, "whispered"] = True
            victim = cluster.random.choice(others_of(cluster, name))
            second = cast(cluster.nodes[name].key, cluster.network, vote.epoch, NOTAR, vote.slot, cluster.network)
            cluster.at(cluster.now_ms + 20, cluster.transmit, name, victim, encode(second))
    return effects


def usurp(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Propose in slots that belong to others, before they do."""
    replica = replica_of(cluster, name)
    slot, parent, epoch = replica._quorum.frontier, replica._parent, replica.epoch.number
    if parent is None or (name, epoch, slot) in cluster.memory or replica._quorum.leader(slot) == name:
        return effects
    cluster.memory[name, epoch, slot] = True
    kept = dict(replica._chain.candidates)
    executed, _ = replica._chain.propose(cluster.nodes[name].key, parent, slot, cluster.clock(name), [])
    replica._chain.candidates = kept
    votes = [Broadcast(vote) for vote in votes_for(cluster, name, epoch, slot, executed.block.hash)]
    return [*effects, Broadcast(executed.block.raw), *votes]


def sibling(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """With an accomplice in the next slot: get one block finalized and its unnotarized twin built upon."""
    replica = replica_of(cluster, name)
    seats = replica.epoch.validators
    if name not in seats:
        return effects
    accomplice = seats[(seats.index(name) + 1) % len(seats)]
    own_proposals = list(proposals_of(name, effects))
    if accomplice not in cluster.byzantine or not own_proposals:
        return effects
    proposal, header = own_proposals[-1]
    if ("sibling", header.epoch, header.slot) in cluster.memory:
        return effects
    cluster.memory["sibling", header.epoch, header.slot] = True
    chain = replica._chain
    twin_block = twin_of(cluster, name, proposal)
    if twin_block is None:
        return effects
    twin = chain.execute(twin_block)
    child, _ = chain.propose(cluster.nodes[accomplice].key, twin.tip, header.slot + 1, cluster.clock(name), [])
    own = open_block(proposal, cluster.network)
    for voter in (name, accomplice):
        for slot, hash_ in ((header.slot, own.hash), (header.slot + 1, child.block.hash)):
            effects += [Broadcast(vote) for vote in votes_for(cluster, voter, header.epoch, slot, hash_)[:2]]

    def later() -> None:
        for peer in others_of(cluster, name):
            cluster.transmit(name, peer, twin.block.raw)
            cluster.transmit(name, peer, child.block.raw)

    cluster.at(cluster.now_ms + cluster.random.randint(10, 120), later)  # after their votes, before finalization
    return effects


def turncoat(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Leave the set at once; then vote for every block, and to skip every slot, as if one were still in it."""
    replica = replica_of(cluster, name)
    if name in replica.epoch.validators:
        if (name, "asked") not in cluster.memory:
            cluster.memory[name, "asked"] = True
            node = cluster.nodes[name]
            now_ms = cluster.clock(name)
            body = ValidatorLeave(author=name, nonce=now_ms, expires_ms=now_ms + 1_800_000)
            cluster.at(cluster.now_ms + 1, cluster.submit, name, seal(node.key, cluster.network, body))
        return effects
    forged = list(effects)
    for _, proposal in messages(effects, Proposal):
        header = read_header(bytes(proposal.header))
        hash_ = block_hash(bytes(proposal.header))
        forged += [Broadcast(vote) for vote in votes_for(cluster, name, header.epoch, header.slot, hash_)]
    return forged


def replay(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send what others signed in earlier epochs once more, as if it were of the current epoch."""
    replica = replica_of(cluster, name)
    epoch = replica.epoch.number
    seen: dict[tuple[str, int, str], bytes] = cluster.memory.setdefault(("replay", name), {})
    for data, vote in messages(effects, Vote):
        seen[vote.voter, vote.slot, vote.kind] = data
    forged = list(effects)
    for (voter, slot, _kind), data in list(seen.items()):
        vote = READ(data)  # type: ignore[assignment]
        if vote.epoch < epoch and slot > replica._quorum.root.slot and voter in replica.epoch.validators:
            del seen[voter, slot, _kind]
            forged += [Broadcast(data), Broadcast(encode(msgspec.structs.replace(vote, epoch=epoch)))]
    return forged


def fast_clock(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Run an hour ahead: propose blocks from the future."""
    cluster.nodes[name].skew_ms = 3_600_000
    return effects
