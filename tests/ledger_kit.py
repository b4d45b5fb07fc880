"""A real ledger file in a blink: four validators under the market's rules, without the agreement between them.

Every signature, VRF proof, certificate and state root is real; who certifies which block is up to the test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.records import Genesis
from gdf_market.codec import encode
from gdf_market.commands import main
from gdf_market.identity import Identity
from gdf_market.messages import Entry
from ledger.block import FINAL, Certificate, cast, certify, quorum_size
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import Executed, SaveBlocks
from ledger.rules import MARKET
from ledger.store import LedgerStore
from tests.simulator import key, make_genesis, transfer

VALIDATORS = 4


class Maker:
    """Makes blocks one after another; ``store`` receives them when a certificate covers them."""

    def __init__(self, path: Path, genesis: Genesis | None = None) -> None:
        self.path = path
        self.genesis = genesis or make_genesis(VALIDATORS)
        self.network = MARKET.network_id(self.genesis)
        self.store = LedgerStore(path)
        self.store.create(self.genesis)
        self.chain = Chain(self.genesis, MARKET, genesis_tip(self.genesis, MARKET), SeenEntries(1_000))
        self.pending: list[Executed] = []
        self._nonce = 0

    def validator(self, position: int) -> Identity:
        """Return the key of a position in the validator set."""
        return key(1 + position)

    def transfers(self, count: int, amount: int = 5) -> list[Entry]:
        """Return signed transfers that the next block accepts."""
        entries = []
        for _ in range(count):
            self._nonce += 1
            sender = key(101 + self._nonce % 4)
            now_ms = self.chain.head.time_ms
            entries.append(transfer(self.network, sender, key(1).account, self._nonce, now_ms, amount))
        return entries

    def block(
        self, entries: Sequence[Entry] = (), *, final: bool = True, skipped: int = 0, signers: int = 0
    ) -> Executed:
        """Make the next block; ``skipped`` slots before it pass empty; unless ``final`` a later block certifies it.

        ``signers`` is how many validators sign (a quorum by default; the last ones when it is negative).
        """
        parent = self.pending[-1].tip if self.pending else self.chain.head
        slot = parent.slot + 1 + skipped
        leader = self.validator(slot % len(self.genesis.validators))
        executed, refused = self.chain.propose(leader, parent, slot, parent.time_ms + 1_000, entries)
        assert not refused
        self.pending.append(executed)
        if final:
            certificate = self.certificate(executed, signers=signers)
            finality = self.chain.finalize(executed.block.hash)
            assert finality is not None
            self.store.save([SaveBlocks(finality.blocks, certificate, finality.closing, finality.next)])
            self.pending = []
        return executed

    def certificate(self, executed: Executed, *, kind: str = FINAL, signers: int = 0) -> Certificate:
        """Return a certificate over a block by the first (or, if negative, the last) validators."""
        size = len(self.genesis.validators)
        chosen = range(signers or quorum_size(size)) if signers >= 0 else range(size + signers, size)
        slot, hash_ = executed.tip.slot, executed.tip.hash
        votes = [
            cast(self.validator(index), self.network, executed.block.header.epoch, kind, slot, hash_)
            for index in chosen
        ]
        return certify(votes, self.genesis.validators)


def make_ledger(path: Path, genesis: Genesis | None = None) -> Maker:
    """Return a ledger of 12 blocks: 5 to 7 are certified by 8, one slot is skipped, some blocks are empty."""
    maker = Maker(path, genesis)
    for height in range(1, 13):
        entries = maker.transfers({1: 1, 2: 5, 5: 3, 7: 2, 10: 1}.get(height, 0))
        maker.block(entries, final=height not in (5, 6, 7), skipped=1 if height == 4 else 0)
    return maker


def make_folder(root: Path) -> Maker:
    """Return the same ledger in a data folder of its network."""
    root.mkdir()
    maker = make_ledger(root / "ledger.sqlite")
    (root / "genesis.json").write_bytes(encode(maker.genesis))
    return maker


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> dict[str, Any]:
        """The JSON on stdout."""
        value: dict[str, Any] = json.loads(self.out)
        return value


class Cli:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> Answer:
        self._monkeypatch.setattr(sys, "argv", ["gdf-market", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        shown = self._capsys.readouterr()
        assert "Traceback" not in shown.err
        assert len([line for line in shown.err.splitlines() if line.startswith("Error: ")]) == (code != 0)
        return Answer(code, shown.out, shown.err)
