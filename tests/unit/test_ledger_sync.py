"""Catching up from peers that never send the certificate that covers their blocks, or send a page of a state twice."""

from __future__ import annotations

import msgspec

from contracts.records import Staking
from gdf_market.codec import decode
from ledger import limits
from ledger.block import FINAL, Proposal, cast, certify
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import Executed
from ledger.rules import MARKET
from ledger.snapshot import Snapshot, SnapshotSync
from ledger.sync import CatchUp, Peer
from ledger.wire import LinksRequest, SnapshotPage, SnapshotRequest, SyncBlock
from tests.simulator import START_MS, Cluster, key, make_genesis

GENESIS = make_genesis(4)
NETWORK = MARKET.network_id(GENESIS)
LIAR, HONEST = key(2).account, key(3).account
NOW = START_MS + 1_000


def blocks(count: int) -> list[Executed]:
    chain = Chain(GENESIS, MARKET, genesis_tip(GENESIS, MARKET), SeenEntries(10))
    made: list[Executed] = []
    for slot in range(1, count + 1):
        parent = made[-1].tip if made else chain.head
        executed, _ = chain.propose(key(1 + slot % 4), parent, slot, NOW + slot, [])
        made.append(executed)
    return made


def item(executed: Executed, *, certified: bool = False) -> SyncBlock:
    votes = [cast(key(index), NETWORK, 0, FINAL, executed.tip.slot, executed.tip.hash) for index in (1, 2, 3)]
    proposal = msgspec.json.decode(executed.block.raw, type=Proposal)
    return SyncBlock(block=proposal, certificate=certify(votes, GENESIS.validators) if certified else None)


def catching_up(liar_height: int, honest_height: int) -> tuple[CatchUp, Chain]:
    chain = Chain(GENESIS, MARKET, genesis_tip(GENESIS, MARKET), SeenEntries(10))
    catch_up = CatchUp(NETWORK)
    catch_up.peers = {LIAR: Peer(height=liar_height), HONEST: Peer(height=honest_height)}
    catch_up.peers[HONEST].asked_ms = 1  # so that the liar is asked first
    return catch_up, chain


def test_blocks_without_a_certificate_do_not_keep_others_from_being_asked() -> None:
    (first,) = blocks(1)
    catch_up, chain = catching_up(9, 1)
    assert catch_up.request(chain.head, NOW) == (LIAR, 1)
    # the liar sends the one block that the honest peer has too, and nothing that covers it
    assert catch_up.take(LIAR, [item(first)], False, chain.head, chain.epoch, NOW) is None
    assert catch_up.request(chain.head, NOW) == (LIAR, 2)
    late = NOW + limits.SYNC_TIMEOUT_MS
    assert catch_up.request(chain.head, late) == (HONEST, 1)
    fetched = catch_up.take(HONEST, [item(first, certified=True)], False, chain.head, chain.epoch, late)
    assert fetched is not None
    assert [block.hash for block in fetched.blocks] == [first.block.hash]


def test_blocks_of_a_peer_that_left_do_not_keep_others_from_being_asked() -> None:
    made = blocks(2)
    catch_up, chain = catching_up(3, 2)
    assert catch_up.request(chain.head, NOW) == (LIAR, 1)
    assert catch_up.take(LIAR, [item(each) for each in made], False, chain.head, chain.epoch, NOW) is None
    del catch_up.peers[LIAR]
    assert catch_up.request(chain.head, NOW + 1_000) == (HONEST, 1)


def test_a_copy_of_a_page_is_no_fault() -> None:
    genesis = make_genesis(1, users=12, staking=Staking(epoch_blocks=1))
    cluster = Cluster(1, 1, genesis=genesis, rules=MARKET)
    cluster.run(3_000)
    store = cluster.nodes[key(1).account].store
    assert store.boundary is not None
    sync = SnapshotSync(genesis, MARKET.network_id(genesis), MARKET)
    sync.offer(HONEST, store.boundary.height, NOW)
    assert sync.request(NOW) == (HONEST, LinksRequest(epoch=0))
    sync.on_links(HONEST, 0, store.links, NOW)
    page = decode(store.snapshot_message("", 0), SnapshotPage)
    assert not page.done
    asked = sync.on_page(HONEST, page, NOW)
    assert isinstance(asked, SnapshotRequest)
    assert sync.on_page(HONEST, page, NOW) is None
    following = decode(store.snapshot_message(asked.key, asked.part), SnapshotPage)
    found = sync.on_page(HONEST, following, NOW)
    assert isinstance(found, Snapshot)
    assert found.tip.hash == store.boundary.hash
