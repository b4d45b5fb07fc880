"""A market of transfers alone: small, so that a test spends its time on agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import immutables
import msgspec

from contracts.block import Transition
from contracts.records import Account, Event, Genesis, Spent, StateRecord
from contracts.state import BlockContext, State, genesis_state, network_id
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import Entry, Transfer


class TransferRules:
    """Only transfers: balance, nonce, expiry.  The validator set never changes."""

    def network_id(self, genesis: Genesis) -> str:
        return network_id(genesis)

    def genesis_state(self, genesis: Genesis) -> State:
        return genesis_state(genesis)

    def validators(self, state: State) -> tuple[str, ...]:
        return state.network().validators

    def restore(self, records: Mapping[str, StateRecord]) -> State:
        return State(immutables.Map(records))

    def apply_block(self, state: State, entries: Sequence[Entry], context: BlockContext) -> Transition:
        events: list[Event] = []
        records = state.records
        touched: dict[str, None] = {}
        for entry in entries:
            for key, record in self._transfer(State(records), entry, context.time_ms).items():
                records = records.set(key, record)
                touched[key] = None
            events.append(Event(kind="transfer", entry=entry.id))
        changes = {key: (state.records.get(key), records.get(key)) for key in touched}
        return Transition(state=State(records), events=tuple(events), changes=changes)

    def _transfer(self, state: State, entry: Entry, time_ms: int) -> dict[str, StateRecord]:
        body = entry.body
        ensure(isinstance(body, Transfer), RuleError("only transfers here"))
        assert isinstance(body, Transfer)
        ensure(time_ms < body.expires_ms, RuleError(f"entry {entry.id} has expired"))
        nonce = f"nonce/{body.author}/{body.nonce}"
        ensure(state.get(nonce) is None, RuleError(f"nonce {body.nonce} is used"))
        payer = state.account(body.author)
        ensure(payer.balance >= body.amount, RuleError(f"balance {payer.balance} does not cover {body.amount}"))
        changed: dict[str, StateRecord] = {
            f"account/{body.author}": msgspec.structs.replace(payer, balance=payer.balance - body.amount),
            nonce: Spent(time_ms=body.expires_ms, nonces=()),
        }
        receiver = changed.get(f"account/{body.to}", state.account(body.to))
        assert isinstance(receiver, Account)
        changed[f"account/{body.to}"] = msgspec.structs.replace(receiver, balance=receiver.balance + body.amount)
        return changed

    def select_entries(
        self, state: State, candidates: Sequence[Entry], context: BlockContext
    ) -> tuple[list[Entry], list[tuple[Entry, RuleError]]]:
        chosen: list[Entry] = []
        refused: list[tuple[Entry, RuleError]] = []
        for entry in candidates:
            try:
                state = self.apply_block(state, [entry], context).state
                chosen.append(entry)
            except RuleError as error:
                refused.append((entry, error))
        return chosen, refused

    def check_entry(self, state: State, entry: Entry, time_ms: int) -> None:
        self._transfer(state, entry, time_ms)

    def next_wake_ms(self, state: State) -> int | None:
        return None


TRANSFERS = TransferRules()
