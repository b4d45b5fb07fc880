"""Byzantine nodes that answer requests falsely, and noise."""

from __future__ import annotations

import msgspec

from contracts.records import Account
from gdf_market import merkle
from gdf_market.codec import encode
from ledger import wire
from ledger.block import (
    FINAL,
    Proposal,
    block_hash,
    seal_block,
)
from ledger.effects import Broadcast, Effect, Send, Serve, ServeLinks, ServeSnapshot
from tests.sim.attackers import (
    others_of,
    replica_of,
)
from tests.sim.caches import READ
from tests.sim.forgers import WRONG_HASH, false_certificate
from tests.sim.monitor import read_header
from tests.simulator import Cluster, key


def false_history(style: str, cluster: Cluster, name: str, effects: list[Effect]) -> list[Effect]:
    """Claim to be ahead, and answer sync requests falsely."""
    forged: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Serve):
            forged += [Send(effect.peer, data) for data in false_answer(style, cluster, name, effect.height)]
            continue
        status = READ(effect.data) if isinstance(effect, Broadcast) else None
        if isinstance(status, wire.Status):
            height = status.height + cluster.random.randint(1, 3)
            higher = msgspec.structs.replace(status, height=height)
            if style == "pruned":  # nobody could get the next block from us
                higher = msgspec.structs.replace(higher, oldest=height, snapshot=height)
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


STYLES = ("own chain", "gap", "no certificate", "another block", "borrowed certificate", "pruned")


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
