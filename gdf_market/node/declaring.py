"""Tells the ledger which device classes this machine can audit, once a calibration says something else than is assumed.

Without a word an account counts for what every machine can run.  More is declared only where it was measured, and
less where a measurement failed: an auditor of another class would accuse honest workers, and lose its bonds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
import trio

from contracts.parameters import EVERYBODYS_CLASSES
from contracts.state import State
from gdf_market.errors import GdfError
from gdf_market.messages import AuditClasses
from gdf_market.node.calibration import Machine, classes_to_declare, read_calibration
from gdf_market.node.context import NodeContext

AGAIN_S = 60.0  # the file may be written while the node runs

log = structlog.get_logger("gdf.declaring")


def get_missing(state: State, account: str, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return what the account has to declare so that the ledger knows ``wanted`` (None: what is assumed), or None."""
    known = state.auditor(account)
    said = tuple(sorted(EVERYBODYS_CLASSES)) if known is None else known.classes
    meant = tuple(sorted(EVERYBODYS_CLASSES)) if wanted is None else wanted
    return None if said == meant else meant


class Declarer:
    """Declares for an account that audits: a validator, or one that works."""

    def __init__(self, context: NodeContext, path: Path, audits: Callable[[], bool]) -> None:
        self._context, self._path, self._audits = context, path, audits

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            try:
                await self.declare()
            except GdfError as error:
                log.warning("device classes not declared", error=str(error))
                self._context.note("declare", str(error))
            await trio.sleep(AGAIN_S)

    async def declare(self) -> None:
        """Declare what differs from the ledger, if anything does.  Raises GdfError."""
        context = self._context
        if not self._audits() or context.ledger.replica.height == 0:
            return
        found = await trio.to_thread.run_sync(read_calibration, self._path)
        classes = get_missing(context.state, context.account, classes_to_declare(found, Machine.here()))
        if classes is not None and context.state.account(context.account).balance:
            await context.submit(AuditClasses, classes=classes)
            context.note("declare", f"audits {', '.join(classes) or 'no device class'} from now on")
