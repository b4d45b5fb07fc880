"""A validator whose disk fills up: it stops with one error, says nothing that is not on disk, and goes on later."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from gdf_market.codec import encode
from gdf_market.errors import StorageError
from gdf_market.node.ledger_service import LedgerService
from ledger import wire
from ledger.block import Proposal, Vote, open_header
from ledger.effects import Write
from ledger.store import LedgerStore
from tests.unit.test_node_ledger_service import NETWORK, Wire, causes, opened, running, transfer

SPARE_PAGES = 8


class Limit:
    """How many pages a database may have: SQLite itself refuses more, as it does on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.pages = 0
        connect = LedgerStore._connect

        def limited(store: LedgerStore) -> sqlite3.Connection:
            connection = connect(store)
            if self.pages:
                connection.execute(f"PRAGMA max_page_count={self.pages}")
            return connection

        monkeypatch.setattr(LedgerStore, "_connect", limited)
        with opened(path) as (service, _):
            assert service.replica.height == 0
        with contextlib.closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
            self.pages = connection.execute("PRAGMA page_count").fetchone()[0] + SPARE_PAGES


def said(wire_: Wire) -> tuple[list[Vote], list[int]]:
    """Return the votes and the slots of the blocks that a node sent."""
    messages = [wire.read(data) for data in (*wire_.flooded, *(data for _, data in wire_.sent))]
    votes = [message for message in messages if isinstance(message, Vote)]
    headers = [open_header(bytes(each.header), NETWORK) for each in messages if isinstance(each, Proposal)]
    return votes, [header.slot for header in headers]


async def test_a_full_disk_ends_the_service_with_one_error_and_space_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(monkeypatch, tmp_path)
    with opened(tmp_path) as (service, spoken):
        with pytest.raises(BaseExceptionGroup) as caught:
            await pay_forever(service)
        (cause,) = causes(caught.value)
        assert isinstance(cause, StorageError)
        assert "the disk is full; free some space and start again" in str(cause)
        assert cause.exit_code == 1
        restored = service.store.restored()
        assert restored is not None
        votes, slots = said(spoken)
        assert restored.tip.height >= 1
        durable = {encode_place(vote) for vote in map(wire.read, restored.votes) if isinstance(vote, Vote)}
        for vote in votes:
            assert vote.slot <= restored.tip.slot or encode_place(vote) in durable
        assert all(slot <= restored.tip.slot or slot in {vote.slot for vote in votes} for slot in slots)
    limit.pages = 0
    with opened(tmp_path) as (service, _):
        assert service.replica.head == restored.tip.hash
        async with running(service):
            assert await service.submit(transfer(1, nonce=20_000)) > restored.tip.height


async def pay_forever(service: LedgerService) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        for nonce in itertools.count(1):
            await service.submit(transfer(1, nonce=nonce))


def encode_place(vote: Vote) -> tuple[int, int, str, str]:
    return vote.epoch, vote.slot, vote.kind, vote.hash


async def test_a_save_that_fails_although_it_is_on_disk_ends_the_service_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as (service, spoken):
        save = service.store.save
        done: list[Sequence[Write]] = []

        def unsure(writes: Sequence[Write]) -> None:
            save(writes)
            done.append(writes)
            raise StorageError("ledger: disk I/O error")

        monkeypatch.setattr(service.store, "save", unsure)
        with pytest.raises(BaseExceptionGroup) as caught:
            async with running(service):
                await trio.sleep_forever()
        assert [type(cause) for cause in causes(caught.value)] == [StorageError]
        assert len(done) == 1
        assert said(spoken) == ([], [])
        restored = service.store.restored()
        assert restored is not None
        monkeypatch.undo()
    with opened(tmp_path) as (service, spoken):
        async with running(service):
            height = await service.submit(transfer())
        assert height > restored.tip.height
        votes, _ = said(spoken)
        for raw in restored.votes:  # what it promised before is what it says now
            promised = wire.read(raw)
            assert isinstance(promised, Vote)
            same = [vote for vote in votes if (vote.slot, vote.kind) == (promised.slot, promised.kind)]
            assert all(encode(vote) == raw for vote in same)
