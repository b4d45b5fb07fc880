"""Blocks as a whole: selection, rollback, refusals that name the entry, wake-up times, purity."""

import ast
import pathlib
import time
from typing import get_args

import msgspec
import pytest

import contracts
from contracts.block import _PROCESS, apply_block, check_entry, next_wake_ms, select_entries
from contracts.records import StateRecord
from contracts.state import State
from gdf_market import errors
from gdf_market.errors import RuleError
from gdf_market.messages import Commit, Entry, EntryBody, Transfer, open_entry
from gdf_market.units import CREDIT, MAX_INT
from tests.contracts_world import World, cast_all, key_of, make_world, play_to, play_to_end, post, start, text_hash


def transfer(world: World, amount: int, name: str = "owner", to: str = "w1", **changes: object) -> Entry:
    return world.entry(name, Transfer, **({"to": key_of(to).account, "amount": amount, "memo": ""} | changes))


def test_an_empty_block_on_an_idle_network_changes_nothing() -> None:
    world = make_world()
    result = world.block()
    assert (result.events, dict(result.changes)) == ((), {})
    assert result.state.records == world.state.records
    assert next_wake_ms(world.state) is None


def test_a_refusal_names_the_entry_and_leaves_the_state_alone() -> None:
    world = make_world()
    good, bad = transfer(world, 1), transfer(world, 5_000 * CREDIT)
    before = world.state
    with pytest.raises(RuleError, match=f"Transfer {bad.id[:12]} is refused: the transfer takes 5000 credits"):
        apply_block(before, [good, bad], world.context())
    assert before.records == world.state.records


def test_selection_keeps_input_order_and_rolls_refused_entries_back() -> None:
    world = make_world()
    candidates = [
        transfer(world, 600 * CREDIT),
        transfer(world, 600 * CREDIT),  # the second of these is not covered any more
        transfer(world, 1_600 * CREDIT, name="w1"),  # covered by the first
        transfer(world, 1, nonce=5),
        transfer(world, 1, nonce=5),
        transfer(world, 400 * CREDIT - 1),
    ]
    selected, refused = select_entries(world.state, candidates, world.context())
    assert selected == [candidates[at] for at in (0, 2, 3, 5)]
    assert [entry for entry, _ in refused] == [candidates[1], candidates[4]]
    assert "takes 600 credits" in str(refused[0][1])
    assert "nonce 5" in str(refused[1][1])
    result = world.block(*selected)
    assert result.state.account(key_of("owner").account).balance == 0


def test_a_refused_entry_does_not_use_its_nonce() -> None:
    world = make_world()
    early = transfer(world, 2_000 * CREDIT, nonce=9)
    selected, refused = select_entries(world.state, [early, transfer(world, 1, nonce=9)], world.context())
    assert len(selected) == len(refused) == 1
    assert refused[0][0] is early


def test_a_selection_of_many_refusals_takes_time_in_proportion() -> None:
    world = make_world()
    signed = transfer(world, 5_000 * CREDIT)
    many = [Entry(text_hash(at), msgspec.structs.replace(signed.body, nonce=at), signed.raw) for at in range(4_000)]
    started = time.process_time()
    selected, refused = select_entries(world.state, many, world.context())
    assert (len(selected), len(refused)) == (0, 4_000)
    assert time.process_time() - started < 5  # about 0.1 s; copying the state per entry would take minutes


def test_an_entry_is_checked_alone_on_the_state_as_it_is() -> None:
    world = make_world()
    check_entry(world.state, transfer(world, 1), world.time_ms)
    with pytest.raises(RuleError, match="takes 5000 credits"):
        check_entry(world.state, transfer(world, 5_000 * CREDIT), world.time_ms)
    with pytest.raises(RuleError, match="expired"):
        check_entry(world.state, transfer(world, 1), world.time_ms + 600_000)


def test_what_a_proposer_selects_every_node_applies_to_the_same_state() -> None:
    worlds = [make_world(), make_world()]
    for world in worlds:
        start(world, "w1", "w2", "w3")
        cast_all(world, lottery=True)
    for _ in range(40):
        if not worlds[0].state.active().jobs:
            break
        entries, refused = select_entries(worlds[0].state, worlds[0].due(), worlds[0].context())
        assert refused == []
        # the second node has the entries from the wire and its state from the disk
        network = worlds[1].network
        again = [open_entry(entry.raw, network) for entry in entries]
        stored = {key: round_trip(record) for key, record in worlds[1].state.records.items()}
        worlds[1].state = State(type(worlds[1].state.records)(stored))
        dt = 1_000 if entries else max(1, (next_wake_ms(worlds[0].state) or 0) - worlds[0].time_ms)
        first, second = (world.block(*batch, dt=dt) for world, batch in zip(worlds, (entries, again), strict=True))
        assert first.events == second.events
        assert dict(first.changes) == dict(second.changes)
        assert first.state.records == second.state.records
    assert worlds[0].height > 10


def round_trip(record: StateRecord) -> StateRecord:
    return msgspec.json.decode(msgspec.json.encode(record), type=type(record))


def test_the_wake_up_time_is_the_next_deadline() -> None:
    world = make_world()
    job = post(world)
    assert next_wake_ms(world.state) == world.job(job).phase_end_ms
    world = make_world()
    job = start(world, "w1", "w2")
    assert next_wake_ms(world.state) == world.round(job, 0).phase_end_ms
    cast_all(world)
    for entry in world.due():
        world.block(entry, dt=1)
    assert next_wake_ms(world.state) == 0  # everybody has committed
    play_to(world, job, "settled")
    early = post(world, name="other", deadline_ms=world.time_ms + 2_000)
    assert next_wake_ms(world.state) == world.job(early).spec.deadline_ms
    play_to_end(world)
    assert next_wake_ms(world.state) is None


def test_entries_of_one_block_cannot_sway_its_draws() -> None:
    """A block's beacon draws only from what earlier blocks hold: its own commits wait for the next beacon."""
    world = make_world()
    job = start(world, "w1", "w2")
    cast_all(world)
    world.block(*world.due())
    assert world.round(job, 0).audit_seed == ""
    world.wake()
    assert world.round(job, 0).audit_seed != ""


def test_every_kind_of_entry_has_a_rule() -> None:

    assert set(_PROCESS) == set(get_args(EntryBody))


@pytest.mark.parametrize("value", [0, 1, MAX_INT])
def test_extreme_numbers_are_refused_not_crashed_on(value: int) -> None:
    world = make_world()
    job = start(world, "w1", "w2")
    world.refuse(world.entry("w1", Commit, job=job, round=max(1, value), slot=63, digest=text_hash(1)), "no round")
    for name in ("reserve_price", "unit_bond", "audit_fee", "audit_budget", "parameters", "tokens_per_unit"):
        entry = world.job_entry(**{name: max(1, value)})
        selected, refused = select_entries(world.state, [entry], world.context())
        assert len(selected) + len(refused) == 1
        if selected:
            world.block(entry)
    world.refuse(transfer(world, MAX_INT), "the transfer takes")
    world.refuse(transfer(world, 1, expires_ms=MAX_INT), "more than")


def test_contracts_use_no_float_no_clock_and_no_framework() -> None:
    banned = {"torch", "numpy", "time", "random", "os", "socket", "trio", "sqlmodel", "datetime", "secrets"}
    files = sorted(pathlib.Path(contracts.__file__).parent.glob("*.py"))
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant):
                assert not isinstance(node.value, float), where
            if isinstance(node, ast.BinOp | ast.AugAssign):
                assert not isinstance(node.op, ast.Div), where
            if isinstance(node, ast.Name):
                assert node.id != "float", where
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, where
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, where


def test_refusals_are_the_peers_fault() -> None:
    assert issubclass(RuleError, errors.PeerError)
    assert RuleError.reason == "rule"
