"""Keeping the blobs of a node reachable: its bulk host uses relays while nobody can dial it, and says so to peers."""

from __future__ import annotations

import structlog
import trio

from gdf_market.errors import GdfError
from gdf_market.node.bulk import BulkHost
from gdf_market.node.control import ControlHost

LOOK_EVERY_S = 5.0

log = structlog.get_logger("gdf.reach")


async def keep_reachable(control: ControlHost, bulk: BulkHost, *, relay: bool) -> None:
    """Vouch for the bulk host at its own addresses and those through relays, whenever they change.

    ``relay``: relay for others, too, unless this node cannot be dialled itself.
    """
    announced: tuple[str, tuple[str, ...]] | None = None
    while True:
        circuits: tuple[str, ...] = ()
        try:
            serves = relay and control.reach.bulk.inbound != "no"
            circuits = await bulk.use_relays(control.bulk_relays(), relay=serves, seen=control.reach.observed)
        except GdfError as error:  # the process is starting anew; it is told again
            log.info("bulk host has no relays now", error=str(error))
        found = (bulk.peer, (*circuits, *bulk.addresses))
        if found != announced:
            announced = found
            control.announce_bulk(*found)
        await trio.sleep(LOOK_EVERY_S)
