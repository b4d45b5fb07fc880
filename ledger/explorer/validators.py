"""The validators' page: the current set, who waits and who left, equivocations, and the epochs so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import Network, Validator
from contracts.state import validator_key
from ledger.block import quorum_size
from ledger.explorer.evidence import EvidenceView, evidence_view
from ledger.explorer.queries import MAX_PAGE, Reader, validators_of
from ledger.tables import EpochRow

LATEST_EVIDENCE = 10
LATEST_EPOCHS = 12


@dataclass(frozen=True)
class ValidatorLine:
    """An account that is, waits to be, or was a validator; ``stake`` in micro-credits, ``proposed`` in this epoch."""

    account: str
    status: str  # member | leaving | convicted | candidate | unlocking
    stake: int
    proposed: int
    silent_epochs: int
    since_epoch: int
    unlock_epoch: int


@dataclass(frozen=True)
class EpochLine:
    """An epoch; ``joined`` and ``left`` against the one before; ``ended`` is False for the one under way."""

    number: int
    first: int
    last: int
    ended: bool
    members: int
    joined: list[str]
    left: list[str]
    closing: int  # closing blocks that it took to finalize its last block


@dataclass(frozen=True)
class ValidatorsPage:
    """Who agrees on blocks now, and how that came about; amounts in micro-credits."""

    epoch: int
    first: int
    last: int
    blocks_left: int
    epoch_blocks: int
    quorum: int
    bond: int
    floor: int
    silent_epochs: int
    evidence_epochs: int
    members: list[ValidatorLine]
    candidates: list[ValidatorLine]
    unlocking: list[ValidatorLine]
    slashed: int
    evidence: list[EvidenceView]
    epochs: list[EpochLine]
    pruned_below: int


@dataclass(frozen=True)
class EpochList:
    """One page of epochs, newest first; ``next_before`` is None on the last page."""

    epochs: list[EpochLine]
    before: int | None
    next_before: int | None


def load(reader: Reader, network_id: str) -> ValidatorsPage | None:
    """Return the page; None when the file has no state yet."""
    network, genesis = reader.record("network", Network), reader.genesis()
    if network is None:
        return None
    head, blocks = reader.head(), genesis.staking.epoch_blocks
    first, last = network.epoch * blocks + 1, (network.epoch + 1) * blocks
    proposed = reader.proposed_since(first)
    evidence = [evidence_view(reader, network_id, row) for row in reader.entries(LATEST_EVIDENCE, kind="evidence")]
    oldest = reader.oldest()
    return ValidatorsPage(
        epoch=network.epoch,
        first=first,
        last=last,
        blocks_left=last - (head.height if head else 0),
        epoch_blocks=blocks,
        quorum=quorum_size(len(network.validators)),
        bond=network.staking.bond,
        floor=network.staking.floor,
        silent_epochs=network.staking.silent_epochs,
        evidence_epochs=network.staking.evidence_epochs,
        members=_lines(reader, network, network.validators, proposed),
        candidates=_lines(reader, network, network.candidates[:MAX_PAGE], {}),
        unlocking=_lines(reader, network, network.unlocking[:MAX_PAGE], {}),
        slashed=reader.sum_events("slashed", source="stake"),
        evidence=[view for view in evidence if view is not None],
        epochs=load_epochs(reader, LATEST_EPOCHS, None).epochs,
        pruned_below=oldest if oldest > 1 else 0,
    )


def _lines(reader: Reader, network: Network, accounts: Sequence[str], proposed: dict[str, int]) -> list[ValidatorLine]:
    stakes = reader.stakes(accounts)
    records = reader.records([validator_key(account) for account in accounts], Validator)
    lines = []
    for account in accounts:
        record = records.get(validator_key(account), Validator(status="member"))
        lines.append(
            ValidatorLine(
                account=account,
                status=standing(network, account, record),
                stake=stakes.get(account, 0),
                proposed=proposed.get(account, 0),
                silent_epochs=record.silent,
                since_epoch=record.since_epoch,
                unlock_epoch=record.unlock_epoch,
            )
        )
    return lines


def standing(network: Network, account: str, record: Validator) -> str:
    """Return what an account is among the validators: member, leaving, convicted, candidate or unlocking."""
    if record.convicted:
        return "convicted"
    return "leaving" if account in network.leaving else record.status


def load_epochs(reader: Reader, limit: int, before: int | None) -> EpochList:
    """Return one page of epochs."""
    rows = reader.epochs(limit + 1, before)  # one more: the last shown is compared with it
    shown = rows[:limit]
    head, blocks = reader.head(), reader.genesis().staking.epoch_blocks
    height = head.height if head else 0
    closing = reader.closing([row.first_height - 1 + blocks for row in shown])
    lines = [
        _epoch(row, older, blocks, height, len(closing[row.first_height - 1 + blocks]))
        for row, older in zip(shown, [*rows[1:], None], strict=False)
    ]
    return EpochList(lines, before, shown[-1].number if len(rows) > limit else None)


def _epoch(row: EpochRow, older: EpochRow | None, blocks: int, height: int, closing: int) -> EpochLine:
    members = validators_of(row)
    earlier = validators_of(older) if older is not None else members
    last = row.first_height - 1 + blocks
    return EpochLine(
        number=row.number,
        first=row.first_height,
        last=last,
        ended=height >= last,
        members=len(members),
        joined=[account for account in members if account not in earlier],
        left=[account for account in earlier if account not in members],
        closing=closing,
    )
