"""Validators: who may agree on blocks, the bond that stands for it, and the proof that takes it.

Rules kept here:
1. Whoever agreed on blocks has its bond locked for as long as evidence about those blocks is taken.
2. A bond is slashed once, for two signed statements that no honest validator can have made.
3. Entries only note who wants to join or leave; the set changes at the end of an epoch (epochs.py).
"""

from __future__ import annotations

from contracts.accounts import Where, balance, check_balance, emit, move, stake
from contracts.parameters import EVIDENCE_REWARD_PART, MAX_CANDIDATES
from contracts.records import Validator
from contracts.state import Draft, require, validator_key
from gdf_market.errors import RuleError, ensure
from gdf_market.messages import Evidence, ValidatorJoin, ValidatorLeave
from gdf_market.statements import is_equivocation, place, signer, verify_statement


def process_validator_join(draft: Draft, body: ValidatorJoin) -> None:
    """Lock the bond and wait for a seat."""
    network, record = draft.network(), draft.validator(body.author)
    # a bond that still unlocks answers for the old seat alone
    if record is not None:
        raise RuleError(f"{body.author} is {record.status} already; join once its bond returned")
    ensure(
        len(network.candidates) < MAX_CANDIDATES,
        RuleError(f"{len(network.candidates)} candidates wait for a seat; try again when some have joined"),
    )
    bond = network.staking.bond
    check_balance(draft, body.author, bond, "the validator's bond")
    draft.put(validator_key(body.author), Validator(status="candidate", since_epoch=network.epoch))
    draft.update("network", candidates=(*network.candidates, body.author))
    move(draft, "bond", balance(body.author), stake(body.author), bond)
    emit(draft, "validator", Where(account=body.author), reason="waits for a seat")


def process_validator_leave(draft: Draft, body: ValidatorLeave) -> None:
    """Note that a member gives up its seat; a candidate, which never voted, gets its bond back at once."""
    network = draft.network()
    record = require(draft.validator(body.author), f"{body.author} is no validator and waits for no seat")
    if record.status == "candidate":
        draft.update("network", candidates=tuple(each for each in network.candidates if each != body.author))
        process_bond_returned(draft, body.author, "left the queue")
        return
    ensure(record.status == "member", RuleError(f"{body.author} gave up its seat already; its bond unlocks"))
    ensure(not record.convicted, RuleError(f"{body.author} is convicted and leaves at the end of the epoch"))
    ensure(body.author not in network.leaving, RuleError(f"{body.author} leaves already, at the end of an epoch"))
    draft.update("network", leaving=(*network.leaving, body.author))
    emit(draft, "validator", Where(account=body.author), reason="gives up its seat at the end of an epoch")


def process_bond_returned(draft: Draft, account: str, reason: str) -> None:
    """Give an account back all it has at stake, and forget that it was a validator."""
    move(draft, "returned", stake(account), balance(account), draft.account(account).stake, reason=reason)
    draft.drop(validator_key(account))
    emit(draft, "validator", Where(account=account), reason=reason)


def process_evidence(draft: Draft, body: Evidence) -> None:
    """Slash whoever signed two statements that convict it; it leaves the set at the end of this epoch."""
    ensure(
        is_equivocation(body.first, body.second),
        RuleError("the two statements do not convict anybody: an honest validator may have signed both"),
    )
    accused = signer(body.first)
    _check_punishable(draft, body, accused)
    receivers = _get_receivers(draft, accused)
    # a validator alone in its network could otherwise use up its only punishment for nothing
    ensure(
        bool(receivers) or body.author != accused,
        RuleError(f"{accused} accuses itself and nobody else is there to receive its bond"),
    )
    # the most expensive checks come last
    for statement in (body.first, body.second):
        verify_statement(statement, draft.network().id)
    draft.update(validator_key(accused), convicted=True)
    epoch, slot = place(body.first)
    reason = f"signed two conflicting statements in slot {slot} of epoch {epoch}"
    emit(draft, "convicted", Where(account=accused), reason=reason)
    _process_slash(draft, accused, body.author, receivers)


def _check_punishable(draft: Draft, body: Evidence, accused: str) -> None:
    record = draft.validator(accused)
    # whoever left the set and got its bond back has nothing at stake; a candidate has not voted yet
    if record is None or record.status == "candidate":
        raise RuleError(f"{accused} is no validator, and none whose bond is still locked")
    ensure(not record.convicted, RuleError(f"{accused} is punished already"))
    network, (epoch, _) = draft.network(), place(body.first)
    oldest = max(0, network.epoch - network.staking.evidence_epochs)
    ensure(
        oldest <= epoch <= network.epoch,
        RuleError(f"evidence about epoch {epoch} is not taken in epoch {network.epoch}, only about {oldest} and later"),
    )


def _get_receivers(draft: Draft, accused: str) -> list[str]:
    """Return the members that share a slashed bond: equivocators do not pay each other."""
    others = [account for account in draft.network().validators if account != accused]
    return [account for account in others if not _is_convicted(draft, account)]


def _is_convicted(draft: Draft, account: str) -> bool:
    record = draft.validator(account)
    return record is not None and record.convicted


def _process_slash(draft: Draft, accused: str, author: str, receivers: list[str]) -> None:
    """Pay the evidence's author its part and share the rest; what does not divide goes to the first receivers."""
    bond = draft.account(accused).stake
    reward = bond // EVIDENCE_REWARD_PART if receivers else bond
    if author != accused:
        move(draft, "slashed", stake(accused), balance(author), reward, reason="reward for the evidence")
        bond -= reward
    for place_, account in enumerate(receivers):
        share = bond // len(receivers) + (place_ < bond % len(receivers))
        move(draft, "slashed", stake(accused), balance(account), share, reason="shared among the other validators")


def process_proposer(draft: Draft) -> None:
    """Note that a member proposed in this epoch; once per epoch, whatever it proposes."""
    record, epoch = draft.validator(draft.context.proposer), draft.network().epoch
    if record is not None and record.status == "member" and record.proposed_epoch != epoch:
        draft.update(validator_key(draft.context.proposer), proposed_epoch=epoch)
