"""A ledger file of what a ``contracts_world.World`` went through: its real records, events and entries.

Blocks carry no proofs: what reads prices and rounds asks for none.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session, SQLModel, create_engine

from contracts.block import Transition
from gdf_market.codec import encode
from gdf_market.messages import Entry
from gdf_market.units import CREDIT
from ledger.kinds import kind_of
from ledger.store import LedgerStore
from ledger.tables import BlockRow, EntryRow, EventRow, RecordRow
from tests.contracts_world import WORKERS, World, text_hash


@dataclass
class MarketWorld(World):
    """A world that remembers its blocks; ``write`` makes the file."""

    check: bool = False
    rows: list[SQLModel] = field(default_factory=list)

    def block(self, *entries: Entry, dt: int = 1_000) -> Transition:
        result = super().block(*entries, dt=dt)
        self.rows.append(
            BlockRow(
                height=self.height,
                hash=text_hash("block", self.height),
                slot=self.height,
                time_ms=self.time_ms,
                proposer="",
                entry_count=len(entries),
                state_root="",
                header=b"",
                signature="",
                certified_height=self.height,
                certificate=b"",
            )
        )
        for position, entry in enumerate(entries):
            kind, job = entry.body.__struct_config__.tag, getattr(entry.body, "job", "")
            row = EntryRow(
                id=entry.id,
                height=self.height,
                position=position,
                kind=str(kind),
                author=entry.body.author,
                job=job,
                raw=entry.raw,
            )
            self.rows.append(row)
        for position, event in enumerate(result.events):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            self.rows.append(EventRow(height=self.height, position=position, **fields))
        return result

    def write(self, path: Path) -> Path:
        """Write (or write anew) the file."""
        path.unlink(missing_ok=True)
        with closing(LedgerStore(path)) as store:
            store.create(self.genesis)
        engine = create_engine(f"sqlite:///{path}")
        with Session(engine) as session:
            for key, record in self.state.records.items():
                row = RecordRow(key=key, kind=kind_of(record), value=encode(record), height=self.height)
                session.merge(row)
            session.add_all([type(row)(**row.model_dump()) for row in self.rows])
            session.commit()
        engine.dispose()
        return path


def make_market_world() -> MarketWorld:
    """Return a network of two owners, three workers and a validator, everybody with credits."""
    return MarketWorld({name: 1_000 * CREDIT for name in ("owner", "other", *WORKERS, "val")})
