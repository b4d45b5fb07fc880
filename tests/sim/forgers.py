"""More Byzantine validators: false claims in headers, forged certificates, false answers to sync requests, garbage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec

from contracts.records import Account
from gdf_market import merkle
from gdf_market.codec import encode
from gdf_market.messages import Entry, Transfer, seal
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
    assemble,
    block_hash,
    cast,
    open_block,
    seal_block,
)
from ledger.effects import Broadcast, Effect, Send, Serve, ServeLinks, ServeSnapshot
from tests.sim import attackers
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
from tests.sim.monitor import read_header
from tests.simulator import Cluster, Tamper, key

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


# ---- answers and noise


def false_history(style: str, cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Claim to be ahead, and answer sync requests falsely."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Serve):
            forged += [Send(effect.peer, data) for data in false_answer(style, cluster, name, effect.height)]
            continue
        status = READ(effect.data) if isinstance(effect, Broadcast) else None
        if isinstance(status, wire.Status):
            higher = msgspec.structs.replace(status, height=status.height + cluster.random.randint(1, 3))
            forged.append(Broadcast(encode(higher)))
            continue
        forged.append(effect)
    return forged


def false_answer(style: str, cluster: Cluster, name: str, height: int) -> list[bytes]:
    """Return what the node has from a height on, altered."""
    true = cluster.nodes[name].store.sync_messages(height)
    if style == "own chain" or not true:
        blocks = _own_chain(cluster, name)
    else:
        response = READ(true[0])
        assert isinstance(response, wire.SyncResponse)
        blocks = _altered(style, cluster, name, list(response.blocks))
    return [encode(wire.SyncResponse(blocks=tuple(blocks), more=False))] if blocks else []


def _altered(style: str, cluster: Cluster, name: str, blocks: list[wire.SyncBlock]) -> list[wire.SyncBlock]:
    certificates = [each.certificate for each in blocks if each.certificate is not None]
    match style:
        case "gap":
            return blocks[:1] + blocks[2:]
        case "no certificate":
            return [msgspec.structs.replace(each, certificate=None) for each in blocks]
        case "another block":
            return [_replaced(cluster, name, each) for each in blocks]
        case "borrowed certificate" if certificates:
            false = _next_block(cluster, name, blocks[-1].block)
            bare = [msgspec.structs.replace(each, certificate=None) for each in blocks]
            return [*bare, wire.SyncBlock(block=false, certificate=certificates[-1])] if false is not None else bare
    return blocks


def _replaced(cluster: Cluster, name: str, item: wire.SyncBlock) -> wire.SyncBlock:
    """Return another block of the node's own in place of the one that was agreed on."""
    header = read_header(bytes(item.block.header))
    if header.proposer != name or item.certificate is not None:
        return item
    changed = msgspec.structs.replace(header, time_ms=header.time_ms + 1)
    block = seal_block(cluster.nodes[name].key, changed, [bytes(raw) for raw in item.block.entries])
    return wire.SyncBlock(block=msgspec.json.decode(block.raw, type=Proposal), certificate=None)


def _next_block(cluster: Cluster, name: str, last: Proposal) -> Proposal | None:
    """Return an invalid block of the node's own on top of a block; None if no slot near is its own."""
    header = read_header(bytes(last.header))
    epoch = replica_of(cluster, name).epoch
    slots = [slot for slot in range(header.slot + 1, header.slot + 9) if epoch.leader(slot) == name]
    if not slots or epoch.number != header.epoch or header.height + 1 > epoch.last:
        return None
    changed = msgspec.structs.replace(
        header,
        height=header.height + 1,
        slot=slots[0],
        parent=block_hash(bytes(last.header)),
        parent_slot=header.slot,
        proposer=name,
        time_ms=header.time_ms + 1,
        entries_root=merkle.root(()).hex(),
        entry_count=0,
        state_root=WRONG_HASH,
    )
    block = seal_block(cluster.nodes[name].key, changed, [])
    return msgspec.json.decode(block.raw, type=Proposal)


def _own_chain(cluster: Cluster, name: str) -> list[wire.SyncBlock]:
    """Return a block of a slot of our own on our head, with a certificate that only we signed."""
    replica = replica_of(cluster, name)
    quorum, chain = replica._quorum, replica._chain
    slots = [slot for slot in range(quorum.root.slot + 1, quorum.root.slot + 9) if quorum.leader(slot) == name]
    if not slots:
        return []
    kept = dict(chain.candidates)
    executed, _ = chain.propose(cluster.nodes[name].key, chain.head, slots[0], cluster.clock(name), [])
    chain.candidates = kept
    certificate = false_certificate("unsigned", cluster, name, FINAL, slots[0], executed.block.hash)
    proposal = msgspec.json.decode(executed.block.raw, type=Proposal)
    return [wire.SyncBlock(block=proposal, certificate=certificate)]


STYLES = ("own chain", "gap", "no certificate", "another block", "borrowed certificate")


def false_history_somehow(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Answer sync requests falsely, now so and now so."""
    return false_history(cluster.random.choice(STYLES), cluster, name, effects)


def false_snapshot(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Answer requests for a snapshot with a state in which we are richer, and for links with other links."""
    store = cluster.nodes[name].store
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, ServeSnapshot):
            page = READ(store.snapshot_message(effect.key, effect.part))
            assert isinstance(page, wire.SnapshotPage)
            records = tuple(_richer(each, name) for each in page.records)
            forged.append(Send(effect.peer, encode(msgspec.structs.replace(page, records=records))))
        elif isinstance(effect, ServeLinks) and cluster.random.random() < 0.2:
            forged.append(Send(effect.peer, damaged(cluster, store.links_message(effect.epoch))))
        else:
            forged.append(effect)
    return forged


def _richer(record: wire.SnapshotRecord, name: str) -> wire.SnapshotRecord:
    if not record.key.startswith("account/"):
        return record
    account = msgspec.json.decode(record.value, type=Account)
    change = 7 if record.key == f"account/{name}" else 0
    if record.key == "account/" + _payer(name):
        change = -7
    changed = msgspec.structs.replace(account, balance=account.balance + change)
    return msgspec.structs.replace(record, value=encode(changed).decode())


def _payer(name: str) -> str:
    """Return whose credits go to a forger: another user's, so that the supply still adds up."""
    return next(key(number).account for number in (101, 102) if key(number).account != name)


def garbage(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Send random bytes, and one's messages with some bytes altered or missing."""
    forged = list(effects)
    for effect in effects:
        if isinstance(effect, (Broadcast, Send)) and cluster.random.random() < 0.3:
            forged.append(Send(cluster.random.choice(others_of(cluster, name)), damaged(cluster, effect.data)))
    return forged


def damaged(cluster: Cluster, data: bytes) -> bytes:
    """Return bytes that are nearly a message, or none at all."""
    draw = cluster.random
    style = draw.randrange(4)
    if style == 0:
        return draw.randbytes(draw.randrange(200))
    if style == 1:
        return data[: draw.randrange(len(data))]
    altered = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(altered))
        altered[place] = draw.randrange(256) if style == 2 else ord(draw.choice('0123456789abcdef",:{}[]'))
    return bytes(altered)


def at_the_boundary(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """As leader of a boundary block or later ones: two of them for two halves; as closing block one with entries."""
    forged = without_own(name, effects)
    last = replica_of(cluster, name).epoch.last
    for proposal, header in proposals_of(name, effects):
        data = open_block(proposal, cluster.network).raw
        if header.height < last:
            forged.append(Broadcast(data))
        elif header.height == last:
            forged += attackers.equivocate(cluster, name, [Broadcast(data)])
        else:
            forged += lie("entries", cluster, name, [Broadcast(data)])
    return forged


def mixture(cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Another attack at every step."""
    return cluster.random.choice(ATTACKS[:-1])(cluster, name, effects)


def named(function: Callable[..., list[Effect]], *arguments: str) -> Tamper:
    """Return an attack with its first arguments fixed, and a name."""
    made = functools.partial(function, *arguments)
    functools.update_wrapper(made, function)
    return made


ATTACKS: tuple[Tamper, ...] = (
    attackers.equivocate,
    attackers.front_run,
    attackers.silent,
    attackers.selective,
    attackers.withhold,
    attackers.whisper,
    attackers.usurp,
    attackers.replay,
    attackers.fast_clock,
    lie_somewhere,
    rob,
    forge_somehow,
    forge_votes,
    stale,
    false_history_somehow,
    false_snapshot,
    garbage,
    at_the_boundary,
    mixture,
)
