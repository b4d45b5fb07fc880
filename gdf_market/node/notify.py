"""Telling the owner of a machine what happened to its account, by a command of its owner's choice.

The command gets one sentence as its last argument, and no shell sees it.  Events that come close together are told in
one sentence; what the command prints is dropped, and one that hangs is ended.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence

import structlog
import trio

from contracts.records import Event
from gdf_market.units import format_credits

GATHER_S = 10.0  # events of so long become one sentence
COMMAND_S = 30.0
MAX_KINDS = 16

log = structlog.get_logger("gdf.notify")

# what a person wants to be told about, and how
_WORDS = {"missed": "missed", "rejected": "rejected", "convicted": "convicted as wrong"}
_LOSSES = ("slashed", "forfeited")


class Notifier:
    """Gathers what concerns ``account`` and tells it through ``command``; without one it does nothing."""

    def __init__(self, account: str, command: Sequence[str]) -> None:
        self._account, self._command = account, tuple(command)
        self._paid = self._lost = self._units = 0
        self._troubles: Counter[str] = Counter()
        self._notices: list[str] = []
        self._news = trio.Event()

    def on_events(self, events: Iterable[Event]) -> None:
        """Note what a block did to this account."""
        if not self._command:
            return
        for event in events:
            self._note(event)

    def tell(self, sentence: str) -> None:
        """Say something else soon, for example that the machine is too hot."""
        if self._command and sentence not in self._notices and len(self._notices) < MAX_KINDS:
            self._notices.append(sentence)
            self._news.set()

    def _note(self, event: Event) -> None:
        if event.target == self._account and event.kind in ("paid", "merit", "audit") and event.source != "bond":
            self._paid += event.amount
            self._units += event.kind == "paid"
        elif event.kind in _LOSSES and event.account == self._account and event.source in ("bond", "stake"):
            self._lost += event.amount
        elif event.kind in _WORDS and event.account == self._account:
            self._troubles[event.kind] += 1
        else:
            return
        self._news.set()

    def _sentence(self) -> str:
        parts = []
        if self._paid:
            units = f" for {self._units} unit{'' if self._units == 1 else 's'}" if self._units else ""
            parts.append(f"paid {format_credits(self._paid)} credits{units}")
        for kind, count in sorted(self._troubles.items()):
            parts.append(f"{count} unit{'' if count == 1 else 's'} {_WORDS[kind]}")
        if self._lost:
            parts.append(f"lost {format_credits(self._lost)} credits of a bond")
        parts += self._notices
        self._paid = self._lost = self._units = 0
        self._troubles.clear()
        self._notices.clear()
        return "; ".join(parts)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._news.wait()
            await trio.sleep(GATHER_S)
            self._news = trio.Event()
            await self._call(self._sentence())

    async def _call(self, sentence: str) -> None:
        try:
            with trio.move_on_after(COMMAND_S) as scope:
                done = await trio.run_process(
                    [*self._command, sentence],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
                if done.returncode:
                    log.warning("the notify command failed", code=done.returncode)
            if scope.cancelled_caught:
                log.warning("the notify command was ended", seconds=COMMAND_S)
        except OSError as error:
            log.warning("the notify command cannot be run", error=str(error))
