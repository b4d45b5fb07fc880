"""The end of an epoch: who of the validators goes, who comes, and whose bond returns.

Rules kept here:
1. The set is never empty, has at most MAX_VALIDATORS members, and leaving does not take it below the floor.
2. Beside equivocators, at most a third of the set changes, coming and going counted together (but always one may).
3. What the end of an epoch costs is bounded by the size of the set and what one epoch can add to the queues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from contracts.accounts import Where, emit
from contracts.parameters import MAX_VALIDATORS
from contracts.records import Network, Validator
from contracts.state import Draft, present, validator_key
from contracts.validators import process_bond_returned


@dataclass(frozen=True)
class SetChange:
    """Who goes and who comes at the end of an epoch; ``stay`` keeps the order of the old set."""

    stay: tuple[str, ...]
    expelled: tuple[str, ...]  # convicted
    silenced: tuple[str, ...]  # made no block for too long
    left: tuple[str, ...]  # asked to
    joined: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """Return the new set: newcomers after those that stay."""
        return self.stay + self.joined


def compute_set_change(
    members: Sequence[str],
    *,
    convicted: Collection[str],
    silent: Collection[str],
    leaving: Sequence[str],
    candidates: Sequence[str],
    floor: int,
) -> SetChange:
    """Return the change of a set: equivocators go first, then the silent, the leavers, and the candidates come.

    ``floor`` (at least 1) bounds from below what silence and leaving leave of the set.
    """
    expelled = tuple(account for account in members if account in convicted)
    if len(expelled) == len(members):
        expelled = expelled[1:]  # an empty set could never agree on anything again
    kept = [account for account in members if account not in expelled]
    budget = compute_change_limit(len(kept))
    may_go = min(budget, max(0, len(kept) - floor))
    silenced = tuple(account for account in kept if account in silent)[:may_go]
    askers = [account for account in leaving if account in kept and account not in silenced]
    left = tuple(askers[: may_go - len(silenced)])
    stay = tuple(account for account in kept if account not in silenced + left)
    seats = min(budget - len(silenced) - len(left), MAX_VALIDATORS - len(stay))
    return SetChange(stay, expelled, silenced, left, tuple(candidates[: max(0, seats)]))


def compute_change_limit(members: int) -> int:
    """Return how many members of a set may come and go in one epoch, together."""
    return max(1, members // 3)


def process_epoch_end(draft: Draft) -> None:
    """Make the next epoch's set from what this epoch's blocks hold; the block's own entries count."""
    network = draft.network()
    _process_silence(draft, network)
    records = {account: present(draft.validator(account)) for account in network.validators}
    change = compute_set_change(
        network.validators,
        convicted={account for account, record in records.items() if record.convicted},
        silent={account for account, record in records.items() if record.silent >= network.staking.silent_epochs},
        leaving=network.leaving,
        candidates=network.candidates,
        floor=network.staking.floor,
    )
    gone = (*change.expelled, *change.silenced, *change.left)
    draft.update(
        "network",
        epoch=network.epoch + 1,
        validators=change.members,
        candidates=network.candidates[len(change.joined) :],
        leaving=tuple(account for account in network.leaving if account not in gone),
        unlocking=(*network.unlocking, *gone),
    )
    _process_change(draft, change, records)
    _process_unlocked(draft)
    emit(draft, "epoch", Where(), reason=f"epoch {network.epoch + 1} has {len(change.members)} validators")


def _process_silence(draft: Draft, network: Network) -> None:
    """Count epochs in a row without a block; not where an epoch is too short to give everybody two turns."""
    counts = network.staking.epoch_blocks >= 2 * len(network.validators)
    for account in network.validators:
        record = present(draft.validator(account))
        silent = 0 if record.proposed_epoch == network.epoch else record.silent + counts
        if silent != record.silent:
            draft.update(validator_key(account), silent=silent)


def _process_change(draft: Draft, change: SetChange, records: dict[str, Validator]) -> None:
    epoch = draft.network().epoch
    for account in change.expelled:
        _process_gone(draft, account, "evicted", "signed conflicting statements")
    for account in change.silenced:
        _process_gone(draft, account, "evicted", f"made no block in {records[account].silent} epochs")
    for account in change.left:
        _process_gone(draft, account, "validator", "left")
    for account in change.joined:
        # its first epoch counts as one with a block: it may have had no turn yet
        member = Validator(status="member", since_epoch=epoch, proposed_epoch=epoch)
        draft.put(validator_key(account), member)
        emit(draft, "validator", Where(account=account), reason=f"joined in epoch {epoch}")


def _process_gone(draft: Draft, account: str, kind: str, reason: str) -> None:
    """Start to unlock a bond: it returns when no evidence about the member's last epoch is taken any more."""
    network = draft.network()
    unlock_epoch = network.epoch + network.staking.evidence_epochs
    changes = {"status": "unlocking", "since_epoch": network.epoch, "unlock_epoch": unlock_epoch}
    draft.update(validator_key(account), **changes)
    emit(draft, kind, Where(account=account), reason=f"{reason}; its bond unlocks in epoch {unlock_epoch}")


def _process_unlocked(draft: Draft) -> None:
    """Return the bonds that are due: the first ones, as all are locked equally long."""
    network = draft.network()
    due = list(takewhile(lambda account: _get_unlock_epoch(draft, account) <= network.epoch, network.unlocking))
    if due:
        draft.update("network", unlocking=network.unlocking[len(due) :])
    for account in due:
        process_bond_returned(draft, account, "the bond is unlocked")


def _get_unlock_epoch(draft: Draft, account: str) -> int:
    return present(draft.validator(account)).unlock_epoch
