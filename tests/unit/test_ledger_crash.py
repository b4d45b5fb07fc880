"""Validators that stop at every Save, in every way a process can: nobody signs twice, nothing final is lost."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.effects import SaveBlocks, Write
from ledger.export import export, verify
from tests.crash_net import HONEST, MODES, NEWCOMER, Net, Stop
from tests.simulator import cached_crypto

STRIDE = 4  # a victim stops at every fourth Save, beginning with each of the first four
VICTIMS = (1, NEWCOMER)


@pytest.fixture(scope="module", autouse=True)
def shared_crypto() -> Iterator[None]:
    with cached_crypto():
        yield


def check(net: Net, folder: Path) -> None:
    """Every file holds the one chain, and a replay of its export gives the state that it holds."""
    for number, node in net.nodes.items():
        restored = node.store.restored()
        assert restored is not None
        tip = restored.tip
        assert (tip.hash, tip.sum.root()) == net.agreed.blocks[tip.height]
        for row in node.store.blocks_from(restored.oldest, 1_000):
            assert (row.hash, row.state_root) == net.agreed.blocks[row.height]
        assert tip.state.supply_check() == tip.state.network().supply
        assert all(net.agreed.entries[row.id] == row.height for row in node.store.entries(limit=10_000))
        if number in HONEST:
            export(node.store, folder / f"{number}.gdfl")
            report = verify(folder / f"{number}.gdfl")
            assert (report.height, report.head, report.state_root) == (tip.height, tip.hash, tip.sum.root())
    assert net.is_convicted()
    net.close()


def test_a_run_without_stops_crosses_everything_that_a_save_can_hold(tmp_path: Path) -> None:
    net = Net(tmp_path, record=True)
    net.live()
    writes = [(number, write) for number, saved in net.recorded for write in saved]
    for number in VICTIMS:
        blocks = [write for who, write in writes if who == number and isinstance(write, SaveBlocks)]
        assert any(write.next is not None for write in blocks)
    assert any(write.closing for _, write in writes if isinstance(write, SaveBlocks))
    assert {type(write) for _, write in writes} == set(typing.get_args(Write))
    check(net, tmp_path)


@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("mode", MODES)
def test_stops_at_every_save(mode: str, first: int, tmp_path: Path) -> None:
    stops = [
        Stop(number, mode, range((first + index * STRIDE // 2) % STRIDE, 10_000, STRIDE))
        for index, number in enumerate(VICTIMS)
    ]
    net = Net(tmp_path, stops)
    net.live()
    assert net.crashes >= 6
    check(net, tmp_path)
