"""The shell around the replica: a real replica on a real file; the network is what the test sends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from gdf_market.errors import LocalError, PeerError, RuleError, StorageError
from gdf_market.messages import Entry, Transfer, seal
from gdf_market.node import fair
from gdf_market.node import ledger_service as module
from gdf_market.node.ledger_service import LedgerService, NotFinalError, now_ms
from gdf_market.units import CREDIT
from ledger import effects as core
from ledger.replica import DivergedError
from ledger.store import LedgerStore
from tests.contracts_world import key_of, make_genesis

GENESIS = make_genesis({"val": 1_000 * CREDIT, "other": 10 * CREDIT}, ["val"])
NETWORK = module.Replica(GENESIS, None, None).network
PEER = key_of("peer").account


def transfer(amount: int = CREDIT, *, sender: str = "val", nonce: int = 1) -> Entry:
    body = Transfer(
        author=key_of(sender).account,
        nonce=nonce,
        expires_ms=now_ms() + 600_000,
        to=key_of("other").account,
        amount=amount,
        memo="",
    )
    return seal(key_of(sender), NETWORK, body)


class Wire:
    """What the service sent, and whom it blamed."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.flooded: list[bytes] = []
        self.blamed: list[PeerError] = []


@contextlib.contextmanager
def opened(path: Path, name: str = "val"):  # type: ignore[no-untyped-def]
    store = LedgerStore(path / "ledger.sqlite")
    store.create(GENESIS)
    wire = Wire()
    service = LedgerService(
        GENESIS,
        key_of(name),
        store,
        send=lambda peer, data: wire.sent.append((peer, data)),
        broadcast=lambda data, exclude: wire.flooded.append(data),
        misbehaved=lambda peer, error: wire.blamed.append(error),
    )
    try:
        yield service, wire
    finally:
        store.close()


@contextlib.asynccontextmanager
async def running(service: LedgerService) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        with trio.fail_after(20):
            yield
        nursery.cancel_scope.cancel()


def causes(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in causes(inner)]
    return [group]


async def test_a_lone_validator_makes_an_entry_final_and_remembers_it(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, wire):
        seen: list[core.Finalized] = []
        service.listeners.append(seen.append)
        async with running(service):
            entry = transfer()
            height = await service.submit(entry)
        assert height >= 1
        assert [block.height for block in seen][-1] == height == service.replica.height
        assert entry.id in [one.id for one in seen[-1].entries]
        assert service.state.account(key_of("other").account).balance == 11 * CREDIT
        assert service._waiters == {}
        root = service.replica.state_root
        assert wire.flooded  # votes and blocks went out
    with opened(tmp_path) as (service, _):
        assert (service.replica.height, service.replica.state_root) == (height, root)
        assert service.store.entry(entry.id).height == height


async def test_what_the_rules_refuse_comes_back_as_their_error(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, _):
        async with running(service):
            with pytest.raises(RuleError, match="takes 99 credits"):
                await service.submit(transfer(99 * CREDIT, sender="other"))
            assert service._waiters == {}
            assert await service.submit(transfer()) >= 1


async def test_two_that_wait_for_one_entry_both_hear_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, _):
        entry, heights = transfer(), []

        async def submit() -> None:
            heights.append(await service.submit(entry))

        async with running(service), trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            nursery.start_soon(submit)
        assert heights == [service.replica.height] * 2


async def test_who_cannot_reach_a_validator_is_told_that_the_entry_may_still_become_final(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "other") as (service, _):
        entry = transfer(sender="other")
        start = now_ms()
        monkeypatch.setattr(module, "now_ms", lambda: start + int(trio.current_time() * 1_000))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            with pytest.raises(NotFinalError, match=entry.id) as caught:
                await service.submit(entry, timeout_s=60)
            assert "try again" in str(caught.value)
            assert caught.value.exit_code == 4
            assert service._waiters == {}
            assert entry.id in service.replica.mempool  # it was not withdrawn
            nursery.cancel_scope.cancel()


async def test_a_disk_that_refuses_stops_the_service_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as (service, wire):

        def full(writes: object) -> None:
            raise StorageError("ledger: the disk is full")

        monkeypatch.setattr(service.store, "save", full)
        with pytest.raises(BaseExceptionGroup) as caught:
            async with running(service):
                await service.submit(transfer())
        assert [type(cause) for cause in causes(caught.value)] == [StorageError]
        assert all(b'"vote"' not in data and b'"header"' not in data for data in wire.flooded)
        assert service.store.head() is None


async def test_a_captured_network_stops_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (service, _):

        def diverge(event: core.ReplicaEvent, at_ms: int) -> list[core.Effect]:
            raise DivergedError("a quorum certified block 7, which is invalid here")

        async def run() -> None:
            async with running(service):
                monkeypatch.setattr(service.replica, "step", diverge)
                await service.submit(transfer())

        with pytest.raises(BaseExceptionGroup) as caught:
            await run()
        assert [type(cause) for cause in causes(caught.value)] == [DivergedError]


async def test_bytes_that_are_no_message_are_the_peers_fault_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, wire):
        async with running(service):
            service.post(core.PeerUp(PEER))
            service.post(core.Received(PEER, b"nonsense"))
            await service.submit(transfer())
        assert [error.reason for error in wire.blamed] == ["malformed"]


def fill(service: LedgerService, count: int, data: bytes, peer: Callable[[int], str]) -> None:
    for number in range(count):
        service.post(core.Received(peer(number), data))


def test_no_peer_takes_all_the_room(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, _):
        fill(service, fair.MAX_FRAMES + 3, b"x", lambda number: "one")
        assert service.dropped == 3
        fill(service, 5, b"x", lambda number: "two")
        assert service.dropped == 3


def test_the_queue_has_a_size_and_frames_take_no_room_of_what_must_not_be_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as (service, _):
        fill(service, (fair.MAX_ALL_BYTES >> 20) + 2, b"x" * (1 << 20), str)
        assert service._frames.total_bytes == fair.MAX_ALL_BYTES
        for number in range(module.MAX_EVENTS):
            service.post(core.PeerUp(str(number)))
        assert service.dropped == 0
        service.post(core.PeerUp("one too many"))
        assert service.dropped == 1


async def test_frames_of_a_peer_that_left_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path, "other") as (service, wire):
        fill(service, 50, b"x" * 1_000, lambda number: PEER)
        service.post(core.PeerDown(PEER))
        async with running(service):
            await trio.testing.wait_all_tasks_blocked()
        assert service._frames.total_bytes == 0
        assert wire.blamed == []


async def test_a_flood_of_one_peer_delays_nobody_elses_frame(tmp_path: Path) -> None:
    with opened(tmp_path, "other") as (service, _):
        fill(service, 50, b"nonsense", lambda number: "flood")
        service.post(core.Received(PEER, b"as well"))
        handled: list[str] = []
        service._misbehaved = lambda peer, error: handled.append(peer)
        async with running(service):
            await trio.testing.wait_all_tasks_blocked()
        assert handled.index(PEER) == 1
        assert len(handled) == 51


async def test_waiting_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITERS", 1)
    with opened(tmp_path, "other") as (service, _):
        async with running(service):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.submit, transfer(sender="other"))
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(LocalError, match="1 entries"):
                    await service.submit(transfer(sender="other", nonce=2))
                nursery.cancel_scope.cancel()
            assert service._waiters == {}


async def test_a_clock_that_is_set_back_does_not_stop_the_timers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, back = now_ms(), [0]
    monkeypatch.setattr(module, "now_ms", lambda: start + int(trio.current_time() * 1_000) - back[0])
    with opened(tmp_path, "other") as (service, wire):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            await trio.sleep(30)
            before = len(wire.flooded)
            back[0] = 3_600_000
            await trio.sleep(30)
            assert len(wire.flooded) > before  # its status goes out as before
            nursery.cancel_scope.cancel()
