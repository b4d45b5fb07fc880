"""What the ledger asks of the contract rules; injected, so that a simulation can run on a smaller market."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import immutables

from contracts import block, state
from contracts.block import Transition
from contracts.records import Genesis, StateRecord
from contracts.state import BlockContext, State
from gdf_market.errors import RuleError
from gdf_market.messages import Entry


class Rules(Protocol):
    """Deterministic rules: same state, entries and context give the same transition on every node."""

    def network_id(self, genesis: Genesis) -> str: ...

    def genesis_state(self, genesis: Genesis) -> State: ...

    def validators(self, state: State) -> tuple[str, ...]: ...

    def restore(self, records: Mapping[str, StateRecord]) -> State: ...

    def apply_block(self, state: State, entries: Sequence[Entry], context: BlockContext) -> Transition: ...

    def select_entries(
        self, state: State, candidates: Sequence[Entry], context: BlockContext
    ) -> tuple[list[Entry], list[tuple[Entry, RuleError]]]: ...

    def check_entry(self, state: State, entry: Entry, time_ms: int) -> None: ...

    def next_wake_ms(self, state: State) -> int | None: ...


class MarketRules:
    """The rules of docs/rules.md, as ``contracts/`` implements them."""

    def network_id(self, genesis: Genesis) -> str:
        return state.network_id(genesis)

    def genesis_state(self, genesis: Genesis) -> State:
        return state.genesis_state(genesis)

    def validators(self, state: State) -> tuple[str, ...]:
        return state.network().validators

    def restore(self, records: Mapping[str, StateRecord]) -> State:
        return State(immutables.Map(records))

    def apply_block(self, state: State, entries: Sequence[Entry], context: BlockContext) -> Transition:
        return block.apply_block(state, entries, context)

    def select_entries(
        self, state: State, candidates: Sequence[Entry], context: BlockContext
    ) -> tuple[list[Entry], list[tuple[Entry, RuleError]]]:
        return block.select_entries(state, candidates, context)

    def check_entry(self, state: State, entry: Entry, time_ms: int) -> None:
        block.check_entry(state, entry, time_ms)

    def next_wake_ms(self, state: State) -> int | None:
        return block.next_wake_ms(state)


MARKET = MarketRules()
