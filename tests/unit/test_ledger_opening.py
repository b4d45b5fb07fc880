"""Entries opened in several threads are what they are one after another, and so is what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gdf_market.errors import MalformedError, SignatureError
from ledger.envelopes import open_each
from ledger.opening import CHUNK, OpenPool, threads_here
from tests.simulator import TRANSFERS, key, make_genesis, transfer

NETWORK = TRANSFERS.network_id(make_genesis(4))
RAWS = [transfer(NETWORK, key(101), key(102).account, 1, nonce).raw for nonce in range(5 * CHUNK + 1)]
FORGED = RAWS[0][:-130] + RAWS[1][-130:]  # another entry's signature


@pytest.fixture(params=[1, 2, 4])
def pool(request: pytest.FixtureRequest) -> Iterator[OpenPool]:
    pool = OpenPool(request.param)
    yield pool
    pool.close()


@pytest.mark.parametrize("count", [0, 1, 2 * CHUNK - 1, 2 * CHUNK, len(RAWS)])
def test_all_are_opened_in_order(pool: OpenPool, count: int) -> None:
    assert pool(RAWS[:count], NETWORK) == open_each(RAWS[:count], NETWORK)


@pytest.mark.parametrize("place", [0, CHUNK, len(RAWS) - 1])
def test_a_forged_entry_is_found_wherever_it_is(pool: OpenPool, place: int) -> None:
    raws = [*RAWS[:place], FORGED, *RAWS[place + 1 :]]
    with pytest.raises(SignatureError):
        pool(raws, NETWORK)
    assert pool(RAWS, NETWORK) == open_each(RAWS, NETWORK)  # it goes on


def test_the_first_bad_entry_is_what_is_told(pool: OpenPool) -> None:
    with pytest.raises(MalformedError):
        pool([*RAWS[:CHUNK], b"{}", *RAWS[CHUNK:-1], FORGED], NETWORK)


def test_there_are_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert threads_here() == 4
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert threads_here() == 1
