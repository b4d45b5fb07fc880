"""A real ledger file in a blink: four validators under the market's rules, without the agreement between them.

Every signature, VRF proof, certificate and state root is real; who certifies which block is up to the test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.records import Genesis, Staking
from gdf_market.codec import encode
from gdf_market.commands import main
from gdf_market.identity import Identity
from gdf_market.messages import Body, Entry, Evidence, Transfer, ValidatorJoin, ValidatorLeave, seal
from ledger.block import FINAL, NOTAR, Certificate, cast, certify, quorum_size
from ledger.chain import Chain, SeenEntries, genesis_tip
from ledger.effects import Executed, SaveBlocks
from ledger.rules import MARKET
from ledger.store import LedgerStore
from tests.simulator import key, make_genesis, transfer

VALIDATORS = 4
KEYS = {each.account: each for each in (key(number) for number in (*range(1, 10), *range(101, 105)))}
BOND = 50_000_000  # micro-credits
ENTRY_FEE = 1_000


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

    @property
    def validators(self) -> tuple[str, ...]:
        """The set of the epoch under way."""
        return self.chain.epoch.validators

    def validator(self, position: int) -> Identity:
        """Return the key of a position in the validator set."""
        return KEYS[self.validators[position]]

    def entry(self, kind: type[Body], author: Identity, **fields: Any) -> Entry:
        """Return a signed entry of another kind that lives for half an hour."""
        self._nonce += 1
        expires_ms = self.chain.head.time_ms + 1_800_000
        body = kind(author=author.account, nonce=self._nonce, expires_ms=expires_ms, **fields)
        return seal(author, self.network, body)  # type: ignore[arg-type]

    def pay(self, sender: Identity, to: Identity, amount: int) -> Entry:
        """Return a signed transfer of micro-credits."""
        return self.entry(Transfer, sender, to=to.account, amount=amount, memo="")

    def evidence(self, author: Identity, accused: Identity, epoch: int) -> Entry:
        """Return evidence of two notarize votes that an accused signed in a slot of an epoch."""
        first, second = (cast(accused, self.network, epoch, NOTAR, 7, digit * 64) for digit in "ab")
        return self.entry(Evidence, author, first=first, second=second)

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

        After a boundary block that is not final it is a closing block.

        ``signers`` is how many validators sign (a quorum by default; the last ones when it is negative).
        """
        parent = self.pending[-1].tip if self.pending else self.chain.head
        slot = parent.slot + 1 + skipped
        leader = KEYS[self.chain.epoch.leader(slot)]
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
        size = len(self.validators)
        chosen = range(signers or quorum_size(size)) if signers >= 0 else range(size + signers, size)
        slot, hash_ = executed.tip.slot, executed.tip.hash
        votes = [
            cast(self.validator(index), self.network, executed.block.header.epoch, kind, slot, hash_)
            for index in chosen
        ]
        return certify(votes, self.validators)


def make_ledger(path: Path, genesis: Genesis | None = None) -> Maker:
    """Return a ledger of 12 blocks: 5 to 7 are certified by 8, one slot is skipped, some blocks are empty."""
    maker = Maker(path, genesis)
    for height in range(1, 13):
        entries = maker.transfers({1: 1, 2: 5, 5: 3, 7: 2, 10: 1}.get(height, 0))
        maker.block(entries, final=height not in (5, 6, 7), skipped=1 if height == 4 else 0)
    return maker


def epochs_genesis() -> Genesis:
    """Return a network of four validators with epochs of four blocks, bonds and fees."""
    genesis = make_genesis(VALIDATORS)
    staking = Staking(epoch_blocks=4, bond=BOND, floor=1, silent_epochs=100, evidence_epochs=3)
    allocations = tuple(
        msgspec.structs.replace(each, stake=BOND if each.account in genesis.validators else 0)
        for each in genesis.allocations
    )
    return msgspec.structs.replace(genesis, staking=staking, allocations=allocations, entry_fee=ENTRY_FEE)


def make_epochs(path: Path, blocks: int = 19) -> Maker:
    """Return a ledger of 19 (or fewer) blocks in five epochs, whose sets are those of the keys

    1 2 3 4; 1 2 3 4 101; 1 3 4 101; the same; 1 4 101.

    Blocks 8 and 12 end epochs by closing blocks; 7 is certified by those of 8, and 18 by 19.
    """
    maker = Maker(path, epochs_genesis())
    entries = {
        1: lambda: [maker.entry(ValidatorJoin, key(101))],
        5: lambda: [maker.entry(ValidatorLeave, key(2)), *maker.transfers(1)],
        7: lambda: maker.transfers(2),
        8: lambda: maker.transfers(1),
        14: lambda: [maker.evidence(key(4), key(3), 2)],
        18: lambda: maker.transfers(3),
    }
    closing = {8: 2, 12: 1}
    for height in range(1, blocks + 1):
        maker.block(entries.get(height, list)(), final=height not in (7, 8, 12, 18))
        for left in range(closing.get(height, 0), 0, -1):
            maker.block(final=left == 1)
    assert blocks < 19 or maker.validators == tuple(key(n).account for n in (1, 4, 101))
    return maker


def make_folder(root: Path, make: Callable[[Path], Maker] = make_ledger) -> Maker:
    """Return the same ledger in a data folder of its network."""
    root.mkdir()
    maker = make(root / "ledger.sqlite")
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
