"""The kinds of state records by the name under which they are stored and sent."""

from __future__ import annotations

import typing

from contracts.records import StateRecord

MAX_RECORD_BYTES = 64 << 20
RECORD_KINDS: dict[str, type[StateRecord]] = {kind.__name__.lower(): kind for kind in typing.get_args(StateRecord)}


def kind_of(record: StateRecord) -> str:
    """Return the name of a record's kind."""
    return type(record).__name__.lower()
