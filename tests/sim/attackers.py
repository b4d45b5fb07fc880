"""Byzantine validators: what a node with a real key can send that the rules forbid."""

from __future__ import annotations

import msgspec

from gdf_market.codec import encode
from ledger.block import FINAL, NOTAR, SKIP, Block, Proposal, Vote, cast, open_block, open_header, seal_block
from ledger.effects import Broadcast, Effect, Send, Tip
from ledger.replica import Replica
from tests.simulator import Cluster


def _replica(cluster: Cluster, name: str) -> Replica:
    replica = cluster.nodes[name].replica
    assert replica is not None
    return replica


def _twin(cluster: Cluster, name: str, proposal: Proposal, shift_ms: int = 1) -> Block:
    """Return another valid block for the same slot: transfers do not depend on the block's time."""
    header = open_header(bytes(proposal.header), cluster.network)
    changed = msgspec.structs.replace(header, time_ms=header.time_ms + shift_ms)
    return seal_block(cluster.nodes[name].key, changed, [bytes(raw) for raw in proposal.entries])


def _votes_for(cluster: Cluster, name: str, slot: int, hash_: str) -> list[bytes]:
    key = cluster.nodes[name].key
    return [
        encode(cast(key, cluster.network, 0, kind, slot, "" if kind == SKIP else hash_))
        for kind in (NOTAR, FINAL, SKIP)
    ]


def equivocate(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader send two blocks to two halves; vote for both, and to skip and to finalize every slot."""
    others = [other for other in cluster.nodes if other != name]
    forged: list[Effect] = []
    for effect in effects:
        data = effect.data if isinstance(effect, Broadcast) else b""
        if b'"type":"proposal"' in data:
            proposal = msgspec.json.decode(data, type=Proposal)
            header = open_header(bytes(proposal.header), cluster.network)
            if header.proposer != name:
                forged.append(effect)
                continue
            twin = _twin(cluster, name, proposal)
            own = open_block(proposal, cluster.network)
            cluster.random.shuffle(others)
            for index, other in enumerate(others):
                mine = own if index % 2 else twin
                forged.append(Send(other, mine.raw))
                forged += [Send(other, vote) for vote in _votes_for(cluster, name, header.slot, mine.hash)]
        elif b'"type":"vote"' in data and msgspec.json.decode(data, type=Vote).voter == name:
            vote = msgspec.json.decode(data, type=Vote)
            hash_ = vote.hash or cluster.network
            for other in others:
                if cluster.random.random() < 0.7:
                    forged += [Send(other, each) for each in _votes_for(cluster, name, vote.slot, hash_)]
        else:
            forged.append(effect)
    return forged


def front_run(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader of coming slots propose at once, on parents not notarized and over slots not skipped."""
    replica = _replica(cluster, name)
    quorum, chain = replica._quorum, replica._chain
    done: set[int] = cluster.memory.setdefault(name, set())
    forged = list(effects)
    for slot in range(quorum.frontier, quorum.frontier + len(quorum.validators) + 1):
        if quorum.leader(slot) != name or slot in done or replica.height == 0:
            continue
        done.add(slot)
        parents: list[Tip] = [chain.head, *(executed.tip for executed in chain.candidates.values())]
        parents = [tip for tip in parents if tip.slot < slot]
        others = [other for other in cluster.nodes if other != name]
        for other in others:
            parent = cluster.random.choice(parents)
            now_ms = cluster.clock(name) + cluster.random.randint(0, 5)
            executed, _ = chain.propose(cluster.nodes[name].key, parent, slot, now_ms, [])
            if executed.block.hash not in {block.hash for block in replica._proposals.at(slot)}:
                replica._proposals.add(executed.block, now_ms)
            forged.append(Send(other, executed.block.raw))
            forged += [
                Send(peer, vote) for peer in others for vote in _votes_for(cluster, name, slot, executed.block.hash)
            ]
    for executed in list(chain.candidates.values()):  # help every sibling towards a certificate
        if (name, executed.block.hash) not in cluster.memory:
            cluster.memory[name, executed.block.hash] = True
            forged += [Broadcast(vote) for vote in _votes_for(cluster, name, executed.tip.slot, executed.block.hash)]
    return forged


def silent(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Keep everything to oneself, but go on running."""
    return [effect for effect in effects if not isinstance(effect, (Broadcast, Send))]


def selective(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send each message to a random part of the others only, so that they see different votes."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Broadcast):
            peers = [peer for peer in cluster.nodes if peer not in (name, effect.exclude)]
            forged += [Send(peer, effect.data) for peer in peers if cluster.random.random() < 0.4]
        else:
            forged.append(effect)
    return forged


def usurp(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Propose in slots that belong to others, before they do."""
    replica = _replica(cluster, name)
    slot, parent = replica._quorum.frontier, replica._parent
    if parent is None or (name, slot) in cluster.memory or replica._quorum.leader(slot) == name:
        return effects
    cluster.memory[name, slot] = True
    executed, _ = replica._chain.propose(cluster.nodes[name].key, parent, slot, cluster.clock(name), [])
    del replica._chain.candidates[executed.block.hash]
    votes = [Broadcast(vote) for vote in _votes_for(cluster, name, slot, executed.block.hash)]
    return [*effects, Broadcast(executed.block.raw), *votes]


def misnumber(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader claim a height that does not follow."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Broadcast) and b'"type":"proposal"' in effect.data:
            proposal = msgspec.json.decode(effect.data, type=Proposal)
            header = open_header(bytes(proposal.header), cluster.network)
            if header.proposer == name:
                changed = msgspec.structs.replace(header, height=header.height + 1)
                block = seal_block(cluster.nodes[name].key, changed, [bytes(raw) for raw in proposal.entries])
                votes = _votes_for(cluster, name, header.slot, block.hash)
                forged += [Broadcast(block.raw), *(Broadcast(vote) for vote in votes)]
                continue
        forged.append(effect)
    return forged


def sibling(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """With an accomplice in the next slot: get one block finalized and its unnotarized twin built upon."""
    seats = cluster.genesis.validators
    accomplice = seats[(seats.index(name) + 1) % len(seats)]
    proposals = [each.data for each in effects if isinstance(each, Broadcast) and b'"type":"proposal"' in each.data]
    if accomplice not in cluster.byzantine or not proposals:
        return effects
    proposal = msgspec.json.decode(proposals[-1], type=Proposal)
    header = open_header(bytes(proposal.header), cluster.network)
    if header.proposer != name or ("sibling", header.slot) in cluster.memory:
        return effects
    cluster.memory["sibling", header.slot] = True
    chain = _replica(cluster, name)._chain
    twin = chain.execute(_twin(cluster, name, proposal))
    child, _ = chain.propose(cluster.nodes[accomplice].key, twin.tip, header.slot + 1, cluster.clock(name), [])
    own = open_block(proposal, cluster.network)
    for voter in (name, accomplice):
        for position in ((header.slot, own.hash), (header.slot + 1, child.block.hash)):
            effects += [Broadcast(vote) for vote in _votes_for(cluster, voter, *position)[:2]]

    def later() -> None:
        for peer in cluster.nodes:
            cluster.transmit(name, peer, twin.block.raw)
            cluster.transmit(name, peer, child.block.raw)

    cluster.at(cluster.now_ms + cluster.random.randint(10, 120), later)  # after their votes, before finalization
    return effects


ATTACKS = (equivocate, front_run, silent, selective, usurp, misnumber)
