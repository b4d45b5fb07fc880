"""The replica as others see it: timing, refusal of bad input, bounds, restart, catching up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from contracts.state import State
from gdf_market.codec import encode
from gdf_market.errors import MalformedError, OversizedError, PeerError, SignatureError
from gdf_market.messages import Entry
from ledger import limits, pace, wire
from ledger.block import FINAL, NOTAR, SKIP, Block, Certificate, Proposal, Vote, cast, certify, open_header, seal_block
from ledger.chain import genesis_tip
from ledger.effects import (
    Broadcast,
    Effect,
    Executed,
    Finalized,
    Misbehaved,
    PeerDown,
    PeerUp,
    Received,
    ReplicaEvent,
    Restored,
    Save,
    SaveBlocks,
    SaveCandidate,
    SaveEvidence,
    SaveVote,
    Send,
    Serve,
    SetTimer,
    Started,
    Submitted,
    Timer,
)
from ledger.replica import DivergedError, Replica
from ledger.sync import FLOOD_TIMES, SERVES_PER_SECOND
from tests.simulator import (
    START_MS,
    TRANSFERS,
    Cluster,
    Faults,
    TransferRules,
    cached_crypto,
    key,
    make_genesis,
    transfer,
)

GENESIS = make_genesis(4, block_ms=200, heartbeat_ms=5_000)
NETWORK = TRANSFERS.network_id(GENESIS)
SET = GENESIS.validators
NOW = START_MS + 10_000
PEER = key(9).account


def started(number: int | None = 1, *, now_ms: int = NOW, rules: TransferRules = TRANSFERS) -> Replica:
    replica = Replica(GENESIS, key(number) if number is not None else None, None, rules=rules)
    replica.step(Started(), now_ms)
    replica.step(PeerUp(PEER), now_ms)
    return replica


def block_for(slot: int, /, *, at_ms: int = NOW, entries: tuple[Entry, ...] = (), **changes: object) -> Block:
    """Return the block of slot's leader on the genesis."""
    leader = key(SET.index(SET[slot % 4]) + 1)
    maker = Replica(GENESIS, leader, None, rules=TRANSFERS)
    executed, _ = maker._chain.propose(leader, maker._chain.head, slot, at_ms, entries)
    if not changes:
        return executed.block
    header = msgspec.structs.replace(executed.block.header, **changes)
    return seal_block(leader, header, executed.block.entries)


def votes(kind: str, slot: int, hash_: str, voters: tuple[int, ...] = (2, 3, 4)) -> list[bytes]:
    return [encode(cast(key(voter), NETWORK, 0, kind, slot, hash_)) for voter in voters]


def certificate(kind: str, slot: int, hash_: str) -> bytes:
    return encode(certify([cast(key(voter), NETWORK, 0, kind, slot, hash_) for voter in (2, 3, 4)], SET))


def give(replica: Replica, *messages: bytes, now_ms: int = NOW) -> list[Effect]:
    return [effect for message in messages for effect in replica.step(Received(PEER, message), now_ms)]


def sent(effects: list[Effect], kind: type[msgspec.Struct]) -> list[msgspec.Struct]:
    data = [effect.data for effect in effects if isinstance(effect, (Broadcast, Send))]
    return [message for message in map(wire.read, data) if isinstance(message, kind)]


def own_votes(effects: list[Effect], number: int = 1) -> list[tuple[str, int]]:
    return [(vote.kind, vote.slot) for vote in sent(effects, Vote) if vote.voter == key(number).account]


def blamed(effects: list[Effect]) -> list[PeerError]:
    return [effect.error for effect in effects if isinstance(effect, Misbehaved)]


def timer(effects: list[Effect]) -> int:
    return [effect.at_ms for effect in effects if isinstance(effect, SetTimer)][-1]


# ---- saving before sending


def test_a_vote_is_saved_in_the_step_that_sends_it_and_before() -> None:
    replica = started()
    block = block_for(1)
    effects = give(replica, block.raw)
    assert isinstance(effects[0], Save)
    assert sum(isinstance(effect, Save) for effect in effects) == 1
    assert {type(write) for write in effects[0].writes} == {SaveCandidate, SaveVote}
    assert own_votes(effects) == [(NOTAR, 1)]


def test_finalized_block_state_and_certificate_are_one_write() -> None:
    replica = started(None)
    block = block_for(1)
    effects = give(replica, block.raw, certificate(FINAL, 1, block.hash))
    (save,) = [effect for effect in effects if isinstance(effect, Save)]
    (write,) = save.writes
    assert isinstance(write, SaveBlocks)
    assert write.blocks[0].block == block
    assert [effect.height for effect in effects if isinstance(effect, Finalized)] == [1]
    assert (replica.height, replica.head, replica.time_ms) == (1, block.hash, NOW)


def test_nothing_is_sent_or_timed_before_started() -> None:
    replica = Replica(GENESIS, key(1), None, rules=TRANSFERS)
    assert give(replica, block_for(1).raw) == [Broadcast(block_for(1).raw, PEER)]  # relayed, but no vote
    effects = replica.step(Started(), NOW)
    assert own_votes(effects) == [(NOTAR, 1)]


def test_a_restart_keeps_votes_and_blocks() -> None:
    replica = started()
    block = block_for(1)
    effects = give(replica, block.raw, *votes(NOTAR, 1, block.hash, (2, 3)))
    writes = [write for effect in effects if isinstance(effect, Save) for write in effect.writes]
    raws = {SaveVote: [], SaveCandidate: []}
    for write in writes:
        raws[type(write)].append(encode(write.vote) if isinstance(write, SaveVote) else write.raw)
    tip = genesis_tip(GENESIS, TRANSFERS)
    again = Replica(
        GENESIS, key(1), Restored(GENESIS, tip, tuple(raws[SaveVote]), tuple(raws[SaveCandidate])), rules=TRANSFERS
    )
    effects = again.step(Started(), NOW)
    assert own_votes(effects) == []  # nothing new to say
    assert again._quorum.own_vote(FINAL, 1) == block.hash
    assert again._quorum.frontier == 2
    effects = give(again, block_for(1, at_ms=NOW + 7).raw, *votes(FINAL, 1, block.hash, (2, 3)))
    assert own_votes(effects) == []
    assert again.height == 1


# ---- when things happen


def run_network(faults: Callable[[Cluster], None], until_ms: int, **options: int) -> Cluster:
    with cached_crypto():
        genesis = make_genesis(4, block_ms=200, heartbeat_ms=5_000)
        cluster = Cluster(3, 4, genesis=genesis, faults=Faults(until_ms=0, delay_ms=(5, 20)))
        cluster.run(500)
        faults(cluster)
        cluster.run(until_ms)
    return cluster


def latency(cluster: Cluster, number: int, via: int = 0) -> int:
    """Return how long a new entry takes to be final everywhere that runs."""
    name = cluster.up()[via]
    entry = transfer(cluster.network, key(101), key(1).account, number, cluster.clock(name))
    begin = cluster.now_ms
    cluster.submit(name, entry)
    running = [cluster.nodes[name].store for name in cluster.up()]

    def done() -> bool:
        return all(any(e.id == entry.id for each, _ in store.blocks[-3:] for e in each.entries) for store in running)

    with cached_crypto():
        assert cluster.run(begin + 30_000, done)
    return cluster.now_ms - begin


def test_an_idle_network_makes_one_block_per_heartbeat() -> None:
    cluster = run_network(lambda _: None, 31_000)
    assert set(cluster.heights()) <= {5, 6, 7}


def test_work_is_done_at_once() -> None:
    cluster = run_network(lambda _: None, 7_000)
    for number in range(6):
        assert latency(cluster, number) < 700
        cluster.run(cluster.now_ms + 1_000)


def test_a_dead_leader_delays_by_the_margin_once_and_hardly_ever_after() -> None:
    cluster = run_network(lambda cluster: cluster.crash(list(cluster.nodes)[2]), 1_000)
    times = []
    for number in range(16):
        times.append(latency(cluster, number))
        cluster.run(cluster.now_ms + 300)
    assert max(times) < limits.MARGIN_MS + 1_000
    assert max(times[6:]) < 1_200  # every fourth slot is the dead one's
    assert sorted(times)[len(times) // 2] < 700


def test_a_leader_that_is_back_proves_that_it_lives() -> None:
    cluster = run_network(lambda cluster: cluster.crash(list(cluster.nodes)[2]), 20_000)
    name = list(cluster.nodes)[2]
    with cached_crypto():
        cluster.start(name)
        cluster.run(cluster.now_ms + 60_000)
    recent = [each.block.header.proposer for each, _ in cluster.nodes[name].store.blocks[-8:]]
    assert recent.count(name) == 2


def test_a_block_from_the_future_waits_for_the_clock() -> None:
    replica = started()
    block = block_for(1, at_ms=NOW + limits.MAX_CLOCK_AHEAD_MS + 50)
    effects = give(replica, block.raw)
    assert (own_votes(effects), blamed(effects)) == ([], [])
    assert timer(effects) == NOW + 50
    assert own_votes(replica.step(Timer("tick"), NOW + 50)) == [(NOTAR, 1)]


def test_skip_follows_pending_work_and_not_the_heartbeat() -> None:
    replica = started(now_ms=START_MS)
    entry = transfer(NETWORK, key(101), key(1).account, 0, START_MS)
    effects = replica.step(Submitted(entry), START_MS + 1_000)
    assert timer(effects) <= START_MS + 1_000 + limits.MARGIN_MS
    assert own_votes(replica.step(Timer("tick"), START_MS + 999 + limits.MARGIN_MS)) == []
    assert own_votes(replica.step(Timer("tick"), START_MS + 1_000 + limits.MARGIN_MS)) == [(SKIP, 1)]
    idle = started(now_ms=START_MS)
    assert own_votes(idle.step(Timer("tick"), START_MS + 5_000 + limits.MARGIN_MS - 1)) == []
    assert own_votes(idle.step(Timer("tick"), START_MS + 5_000 + limits.MARGIN_MS)) == [(SKIP, 1)]


def test_a_clock_set_back_does_not_stop_the_node() -> None:
    replica = started(now_ms=NOW + 3_600_000)
    effects = replica.step(Timer("tick"), NOW)
    assert timer(effects) <= NOW + limits.STATUS_MS * limits.QUIET_STATUSES
    assert own_votes(replica.step(Timer("tick"), NOW + 5_000 + limits.MARGIN_MS)) == [(SKIP, 1)]


def test_margins_grow_up_to_a_cap() -> None:
    calm = pace.Situation(
        entered_ms=0,
        parent_ms=0,
        parent_final=True,
        work_since_ms=None,
        wake_ms=None,
        proposed_ms=None,
        suspect=False,
        unfinalized=0,
        block_ms=200,
        heartbeat_ms=5_000,
    )

    def situation(**changes: object) -> pace.Situation:
        return pace.Situation(**{**calm.__dict__, **changes})

    growing = [pace.margin_ms(situation(unfinalized=count)) for count in range(40)]
    assert growing[0] == limits.MARGIN_MS
    assert growing == sorted(growing)
    assert growing[-1] == limits.MAX_MARGIN_MS
    suspect = [pace.margin_ms(situation(unfinalized=count, suspect=True)) for count in range(40)]
    assert (suspect[0], suspect[-1]) == (limits.SUSPECT_MS, limits.MAX_MARGIN_MS)
    assert pace.propose_at(calm) == 5_000
    assert pace.propose_at(situation(suspect=True)) == 200
    assert pace.propose_at(situation(work_since_ms=50)) == 200
    assert pace.propose_at(situation(work_since_ms=700)) == 700
    assert pace.propose_at(situation(wake_ms=0)) == 200
    assert pace.propose_at(situation(wake_ms=900)) == 900
    assert pace.propose_at(situation(parent_final=False)) == limits.UNFINALIZED_MS
    assert pace.propose_at(situation(parent_ms=90_000, entered_ms=7)) == 5_007  # the parent's clock was ahead
    assert pace.skip_at(situation(proposed_ms=100)) == 100 + limits.MARGIN_MS
    assert pace.propose_at(situation(parent_ms=None, entered_ms=7)) == 7


# ---- bad input


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedError),
        (b"{}", MalformedError),
        (b'{"type":"nonsense"}', MalformedError),
        (b" " * 65_537, OversizedError),
        (encode(cast(key(9), NETWORK, 0, SKIP, 1, "")), MalformedError),  # no validator
        (encode(msgspec.structs.replace(cast(key(2), NETWORK, 0, SKIP, 1, ""), slot=2)), SignatureError),
        (encode(cast(key(2), "00" * 32, 0, SKIP, 1, "")), SignatureError),
        (block_for(1, network="00" * 32).raw, MalformedError),
        (block_for(1, slot=2).raw, MalformedError),  # signed by slot 1's leader
        (block_for(1).raw.replace(b'"sig":"', b'"sig":"00')[:-2] + b"]}", PeerError),
        (encode(Certificate(epoch=0, kind=SKIP, slot=1, hash="", signers=(), sigs=())), SignatureError),
    ],
)
def test_bad_bytes_are_blamed_on_the_sender_and_change_nothing(data: bytes, error: type[PeerError]) -> None:
    replica = started()
    effects = give(replica, data)
    assert len(blamed(effects)) == 1
    assert isinstance(blamed(effects)[0], error)
    assert not any(isinstance(effect, (Save, Broadcast, Send)) for effect in effects)
    assert (replica.height, replica._quorum.frontier, len(replica.mempool)) == (0, 1, 0)
    assert list(replica._proposals) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"height": 2},
        {"parent_slot": 1},
        {"epoch": 0, "state_root": "00" * 32},
        {"beacon": "00" * 32},
        {"time_ms": START_MS},
    ],
)
def test_an_invalid_block_is_blamed_on_its_proposer_and_gets_no_vote(changes: dict[str, object]) -> None:
    replica = started()
    block = block_for(1, **changes)
    effects = give(replica, block.raw)
    assert [effect.peer for effect in effects if isinstance(effect, Misbehaved)] == [SET[1]]
    assert own_votes(effects) == []
    assert give(replica, block.raw) == []  # and is not looked at again
    again = give(replica, block_for(1).raw)  # nor is another one for the same slot
    assert own_votes(again) == []
    kept = [write for effect in again if isinstance(effect, Save) for write in effect.writes]
    assert [(write.accused, write.epoch) for write in kept if isinstance(write, SaveEvidence)] == [(SET[1], 0)]


def test_a_certified_block_that_the_rules_refuse_stops_the_node() -> None:
    replica = started()
    block = block_for(1, state_root="00" * 32)
    give(replica, certificate(NOTAR, 1, block.hash))
    with pytest.raises(DivergedError, match="update this node"):
        give(replica, block.raw)


def test_another_epoch_is_ignored() -> None:
    replica = started()
    assert give(replica, encode(cast(key(2), NETWORK, 1, SKIP, 1, ""))) == []
    assert give(replica, block_for(1, epoch=1).raw) == []


# ---- bounds


def test_proposals_are_kept_one_per_slot_within_the_window() -> None:
    replica = started()
    parent = "11" * 32  # unknown, so that none can be executed
    for slot in range(1, limits.SLOT_WINDOW + 10):
        for time_ms in (NOW, NOW + 1):
            give(replica, block_for(slot, parent=parent, at_ms=time_ms).raw)
    assert len(list(replica._proposals)) == limits.SLOT_WINDOW + 1
    twin = block_for(1, parent=parent, at_ms=NOW + 1)
    give(replica, certificate(NOTAR, 1, twin.hash))
    give(replica, twin.raw)  # a certificate names it: now it is needed
    assert replica._proposals.get(1, twin.hash) is not None


def test_votes_are_kept_within_the_window() -> None:
    replica = started()
    for slot in range(1, limits.SLOT_WINDOW + 10):
        give(replica, encode(cast(key(2), NETWORK, 0, SKIP, slot, "")))
    assert len(replica._quorum._votes) == limits.SLOT_WINDOW + 1


def test_peers_are_bounded() -> None:
    replica = started()
    for number in range(limits.MAX_PEERS + 10):
        replica.step(PeerUp(f"peer {number}"), NOW)
    assert len(replica._catch_up.peers) == limits.MAX_PEERS
    replica.step(PeerDown("peer 0"), NOW)
    assert len(replica._catch_up.peers) == limits.MAX_PEERS - 1


def finalized_replica() -> Replica:
    replica = started(None)
    block = block_for(1)
    give(replica, block.raw, certificate(FINAL, 1, block.hash))
    return replica


def test_serving_history_is_limited_per_second() -> None:
    replica = finalized_replica()
    request = encode(wire.SyncRequest(height=1))
    effects = give(replica, *[request] * (SERVES_PER_SECOND + 5))
    assert effects == [Serve(PEER, 1)] * SERVES_PER_SECOND
    assert give(replica, request, now_ms=NOW + 1_000) == [Serve(PEER, 1)]
    assert give(replica, encode(wire.SyncRequest(height=2)), now_ms=NOW + 2_000) == []


def test_far_more_requests_than_are_answered_are_a_flood() -> None:
    replica = finalized_replica()
    request = encode(wire.SyncRequest(height=1))
    most = FLOOD_TIMES * SERVES_PER_SECOND
    assert blamed(give(replica, *[request] * most)) == []
    assert [error.reason for error in blamed(give(replica, request))] == ["flood"]
    pages = [encode(wire.LinksRequest(epoch=0))] * (8 * most + 1)
    assert [error.reason for error in blamed(give(replica, *pages, now_ms=NOW + 1_000))] == ["flood"]


def status(**changes: object) -> wire.Status:
    empty = wire.Status(
        network=NETWORK,
        epoch=0,
        height=0,
        slot=0,
        oldest=1,
        snapshot=0,
        frontier=1,
        notarized=(),
        skipped=(),
        blocks=(),
        votes=(),
    )
    return msgspec.structs.replace(empty, **changes)


def test_answers_to_statuses_are_limited() -> None:
    replica = started()
    block = block_for(1)
    give(replica, block.raw)
    asked = encode(status(votes=(wire.VotesSeen(slot=1),)))
    first = give(replica, asked)
    assert [type(message) for message in sent(first, msgspec.Struct)] == [Proposal, Vote]
    assert sent(give(replica, asked), msgspec.Struct) == []
    assert sent(give(replica, asked, now_ms=NOW + limits.HELP_INTERVAL_MS), Vote) != []


# ---- flooding and resending


def test_what_is_new_is_forwarded_once_and_not_back() -> None:
    replica = started(None)
    block = block_for(1)
    for data in (block.raw, votes(NOTAR, 1, block.hash)[0], certificate(SKIP, 2, "")):
        assert Broadcast(data, PEER) in give(replica, data)
        assert give(replica, data) == []


def test_a_status_is_answered_with_exactly_what_is_missing() -> None:
    replica = started()
    block = block_for(1)
    give(replica, block.raw, *votes(NOTAR, 1, block.hash), certificate(SKIP, 2, ""), *votes(SKIP, 3, "", (2, 3)))
    everything = give(replica, encode(status(votes=(wire.VotesSeen(slot=1), wire.VotesSeen(slot=3)))))
    kinds = [type(message).__name__ for message in sent(everything, msgspec.Struct)]
    assert kinds == ["Certificate", "Certificate", "Proposal", "Vote", "Vote", "Vote"]
    some = status(
        frontier=3,
        notarized=(1,),
        skipped=(2,),
        blocks=(block.hash,),
        votes=(wire.VotesSeen(slot=1, notar="f", final="1"), wire.VotesSeen(slot=3, skip="2")),
    )
    (vote,) = sent(give(replica, encode(some), now_ms=NOW + 1_000), Vote)
    assert (vote.kind, vote.slot, vote.voter) == (SKIP, 3, SET[2])


def test_a_peer_that_is_behind_is_told_and_asks() -> None:
    ahead, behind = finalized_replica(), started(None)
    (answer,) = sent(give(ahead, encode(status())), wire.Status)
    assert answer.height == 1
    give(behind, encode(answer))
    effects = behind.step(Timer("tick"), NOW + 200)
    assert sent(effects, wire.SyncRequest) == [wire.SyncRequest(height=1)]


def test_another_network_is_refused() -> None:
    assert isinstance(blamed(give(started(), encode(status(network="00" * 32))))[0], MalformedError)


# ---- catching up


def sync_item(block: Block, *, certified: bool = True) -> wire.SyncBlock:
    proof = msgspec.json.decode(certificate(FINAL, block.header.slot, block.hash), type=Certificate)
    return wire.SyncBlock(block=msgspec.json.decode(block.raw, type=Proposal), certificate=proof if certified else None)


def asking(number: int | None = None) -> Replica:
    """Return a replica that has asked PEER for blocks from height 1."""
    replica = started(number)
    assert sent(give(replica, encode(status(height=5, slot=9, frontier=10))), wire.SyncRequest)
    return replica


def answer(*items: wire.SyncBlock, more: bool = False) -> bytes:
    return encode(wire.SyncResponse(blocks=items, more=more))


def test_fetched_blocks_count_once_a_certificate_covers_them() -> None:
    replica = asking()
    first = block_for(1)
    assert give(replica, answer(sync_item(first, certified=False), more=True)) == []
    assert replica.height == 0
    maker = started(None)
    give(maker, first.raw, certificate(FINAL, 1, first.hash))
    executed, _ = maker._chain.propose(key(3), maker._chain.head, 2, NOW + 1, ())
    effects = give(replica, answer(sync_item(executed.block)))
    assert replica.height == 2
    assert [effect.height for effect in effects if isinstance(effect, Finalized)] == [1, 2]
    assert sent(effects, wire.SyncRequest) == [wire.SyncRequest(height=3)]  # on with the next range


def chain_of(count: int) -> list[Block]:
    """Return consecutive blocks."""
    maker = started(None)
    made: list[Block] = []
    for slot in range(1, count + 1):
        leader = key(SET.index(SET[slot % 4]) + 1)
        executed, _ = maker._chain.propose(leader, maker._chain.head, slot, NOW + slot, ())
        made.append(executed.block)
        maker._chain.finalize(executed.block.hash)
    return made


def test_the_blocks_of_a_range_are_one_transaction() -> None:
    replica = asking()
    made = chain_of(3)
    held = give(replica, *(answer(sync_item(block), more=True) for block in made[:2]))
    assert all(isinstance(effect, SetTimer) for effect in held)
    assert replica.height == 2
    effects = give(replica, answer(sync_item(made[2])))
    assert isinstance(effects[0], Save)
    assert [write.blocks[0].block for write in effects[0].writes if isinstance(write, SaveBlocks)] == made
    assert [effect.height for effect in effects if isinstance(effect, Finalized)] == [1, 2, 3]


@pytest.mark.parametrize(
    "event",
    [
        Timer("tick"),
        PeerDown(key(10).account),
        Received(PEER, encode(wire.SyncRequest(height=1))),  # served from the file
        Received(PEER, b"{}"),
    ],
)
def test_held_blocks_are_saved_before_anything_else_is_handed_out(event: ReplicaEvent) -> None:
    replica = asking()
    give(replica, answer(sync_item(block_for(1)), more=True))
    effects = replica.step(event, NOW + 1)
    assert isinstance(effects[0], Save)
    assert [type(write) for write in effects[0].writes] == [SaveBlocks]
    assert isinstance(effects[1], Finalized)
    assert not any(isinstance(effect, Save) for effect in replica.step(Timer("tick"), NOW + 2))


def test_held_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_BLOCKS", 2)
    replica = asking()
    steps = [give(replica, answer(sync_item(block), more=True)) for block in chain_of(3)]
    assert [sum(isinstance(effect, Save) for effect in effects) for effects in steps] == [0, 1, 0]


def test_unasked_or_misplaced_blocks_are_ignored() -> None:
    replica = started(None)
    assert give(replica, answer(sync_item(block_for(1)))) == []
    asked = asking()
    assert give(asked, answer(sync_item(block_for(1, height=2)))) == []  # a part before it was lost
    assert asked.height == replica.height == 0


@pytest.mark.parametrize(
    "item",
    [
        wire.SyncBlock(block=sync_item(block_for(1)).block, certificate=sync_item(block_for(2)).certificate),
        msgspec.structs.replace(
            sync_item(block_for(1)),
            certificate=msgspec.json.decode(certificate(NOTAR, 1, block_for(1).hash), type=Certificate),
        ),
        sync_item(block_for(1, parent="11" * 32)),
        sync_item(
            seal_block(key(3), open_header(block_for(1).header_bytes, NETWORK), ())
        ),  # not the leader's signature
    ],
)
def test_false_history_is_blamed_and_forgotten(item: wire.SyncBlock) -> None:
    replica = asking()
    effects = give(replica, answer(item))
    assert len(blamed(effects)) == 1
    assert replica.height == 0
    assert replica._catch_up._buffer == []


def test_finalized_history_that_the_rules_refuse_stops_the_node() -> None:
    with pytest.raises(DivergedError):
        give(asking(), answer(sync_item(block_for(1, state_root="00" * 32))))


def test_uncertified_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SYNC_BUFFER_BLOCKS", 0)
    effects = give(asking(), answer(sync_item(block_for(1), certified=False)))
    assert isinstance(blamed(effects)[0], OversizedError)


def test_a_peer_that_does_not_deliver_loses_its_turn() -> None:
    replica = asking()
    other = key(10).account
    replica.step(PeerUp(other), NOW)
    replica.step(Received(other, encode(status(height=1, slot=1))), NOW)
    effects = replica.step(Timer("tick"), NOW + limits.SYNC_TIMEOUT_MS)
    asked = [effect.peer for effect in effects if isinstance(effect, Send)]
    assert asked == [other]
    late = answer(sync_item(block_for(1)))
    assert give(replica, late, now_ms=NOW + limits.SYNC_TIMEOUT_MS) == []


def test_a_late_joiner_catches_up_and_votes() -> None:
    cluster = run_network(lambda cluster: cluster.crash(next(iter(cluster.nodes))), 60_000)
    name = next(iter(cluster.nodes))
    assert cluster.nodes[name].store.tip.height == 0 < max(cluster.heights()) - 9
    with cached_crypto():
        cluster.start(name)
        cluster.run(cluster.now_ms + 40_000)
    assert max(cluster.heights()) - min(cluster.heights()) <= 1
    assert any(each.block.header.proposer == name for each, _ in cluster.nodes[name].store.blocks)


# ---- the rules' own deadlines


class WakingRules(TransferRules):
    """Rules with something to do two seconds after the genesis."""

    def next_wake_ms(self, state: State) -> int | None:
        return START_MS + 2_000


def test_a_deadline_of_the_rules_is_a_reason_to_propose() -> None:
    leader = started(2, now_ms=START_MS, rules=WakingRules())
    assert sent(leader.step(Timer("tick"), START_MS + 1_999), Proposal) == []
    assert len(sent(leader.step(Timer("tick"), START_MS + 2_000), Proposal)) == 1
    idle = started(2, now_ms=START_MS)
    assert sent(idle.step(Timer("tick"), START_MS + 4_999), Proposal) == []
    assert len(sent(idle.step(Timer("tick"), START_MS + 5_000), Proposal)) == 1


def test_executed_blocks_carry_their_transition() -> None:
    replica = started(None)
    entry = transfer(NETWORK, key(101), key(102).account, 1, NOW)
    block = block_for(1, entries=(entry,))
    effects = give(replica, block.raw, certificate(FINAL, 1, block.hash))
    (finalized,) = [effect for effect in effects if isinstance(effect, Finalized)]
    assert [each.id for each in finalized.entries] == [entry.id]
    assert [event.kind for event in finalized.events] == ["transfer"]
    write = next(effect for effect in effects if isinstance(effect, Save)).writes[-1]
    assert isinstance(write.blocks[0], Executed)
    assert replica.state.account(key(102).account).balance == 1_000_000_005
