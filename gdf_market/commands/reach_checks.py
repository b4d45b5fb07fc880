"""What ``doctor`` and ``status`` say of both directions: whom this node reaches, and who reaches it."""

from __future__ import annotations

from typing import Any

from gdf_market.commands.checks import Check
from gdf_market.commands.common import App
from gdf_market.errors import GdfError
from gdf_market.node.addresses import is_loopback
from gdf_market.node.client import NodeClient

FEW = 2  # votes below which a verdict is one peer's word
NEEDED = "to be dialled, or a relay"


def reach_checks(app: App) -> list[Check]:
    """Return the lines about the network; they come from the running node, which asked several peers."""
    try:
        settings = app.settings()
        with NodeClient.of(app.data) as client:
            status = client.status()
    except GdfError:  # the line about the node says so
        return [Check("network", True, "not known", "nothing", "start a node; it asks its peers whether they reach it")]
    found = judge(status["reach"], len(status["peers"]), expects_peers=bool(settings.bootstrap))
    if is_loopback(settings.listen_host):
        found[1:] = [
            Check(
                "inbound",
                True,
                "this node listens to programs of this machine only",
                "nothing",
                "to be reached by others, start it with --listen 0.0.0.0:4001",
            )
        ]
    return [*found, _discovery(settings.uses_lan())]


def judge(reach: dict[str, Any], peers: int, *, expects_peers: bool) -> list[Check]:
    """Return the lines about outbound, inbound, and inbound to the host that serves blobs."""
    outbound = Check(
        "outbound",
        peers > 0 or not expects_peers,
        f"{peers} peers, {reach['outbound']} of them dialled from here",
        "a peer",
        "" if peers else "let TCP connections out, or join again with a fresh invite",
    )
    relayed = {"inbound": bool(reach["relays"]), "bulk_inbound": bool(reach["bulk_relayed"])}
    asked = {"inbound": ("reached", "asked"), "bulk_inbound": ("bulk_reached", "bulk_asked")}
    return [outbound] + [
        _inbound(reach, which, title, reach[asked[which][0]], reach[asked[which][1]], relayed[which])
        for which, title in (("inbound", "inbound"), ("bulk_inbound", "inbound, blobs"))
    ]


def _inbound(reach: dict[str, Any], which: str, title: str, reached: int, asked: int, relayed: bool) -> Check:
    votes = f"{reached} of {asked} peers could dial this node{_seen(reach)}"
    few = "" if asked >= FEW else f"; fewer than {FEW} peers could be asked, so this may be wrong"
    if reach[which] == "unknown":
        return Check(title, True, f"not known{few}", "peers that can be asked", "ask again when there are some")
    if reach[which] == "yes":
        return Check(title, True, votes + few, NEEDED)
    actual = f"{votes}; {'reached through a relay' if relayed else 'no relay yet'}{few}"
    return Check(title, relayed, actual, NEEDED, advice(reach, relayed))


def _seen(reach: dict[str, Any]) -> str:
    return f" at {', '.join(reach['observed'])}" if reach["observed"] else ""


def advice(reach: dict[str, Any], relayed: bool) -> str:
    """Return what to do for a node that nobody can dial."""
    ports = " and ".join(map(str, reach["ports"]))
    forward = (
        f"forward TCP ports {ports} of the router to this machine, with listen_port and bulk_port set to them; "
        "if the router's address has a name or another port outside, set announce"
    )
    if relayed:
        return f"it works through relays; for more speed, {forward}"
    return f"{forward}; or wait for a public member that relays"


def _discovery(lan: bool) -> Check:
    ways = ["invites", "what peers tell of others", *(["the local network (multicast DNS)"] if lan else [])]
    return Check("discovery", True, f"{', '.join(ways)}; no DHT (docs/network.md)", "one of them")


def in_short(reach: dict[str, Any]) -> str:
    """Return one phrase for ``status``."""
    relays = len(reach["relays"])
    words = {
        "yes": f"can be dialled ({reach['reached']} of {reach['asked']} peers could)",
        "unknown": "not known whether others can dial it",
        "no": f"cannot be dialled; {relays} relay{'' if relays == 1 else 's'} in use; `gdf-market doctor` says more",
    }
    return words[reach["inbound"]]
