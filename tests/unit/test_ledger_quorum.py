"""The rules of Simplex, one by one, on a set of four."""

from __future__ import annotations

import pytest

from ledger import limits
from ledger.block import FINAL, NOTAR, SKIP, Certificate, cast
from ledger.epochs import Epoch
from ledger.quorum import Decision, Position, Quorum
from tests.simulator import key

NETWORK = "ab" * 32
SET = tuple(key(number).account for number in range(1, 5))
EPOCH = Epoch(0, 1, 1_000, SET)
ROOT = Position(0, NETWORK)


def hash_of(number: int) -> str:
    return f"{number:064x}"


def vote(quorum: Quorum, voter: int, kind: str, slot: int, hash_: str = "") -> Certificate | None:
    return quorum.add_vote(cast(key(voter), NETWORK, 0, kind, slot, hash_))


def certify(quorum: Quorum, kind: str, slot: int, hash_: str = "") -> None:
    """Let three others than me vote."""
    for voter in (2, 3, 4):
        vote(quorum, voter, kind, slot, hash_)
    assert quorum.certificate(kind, slot) is not None


@pytest.fixture
def quorum() -> Quorum:
    return Quorum(EPOCH, SET[0], ROOT)


def cast_all(quorum: Quorum) -> list[Decision]:
    """Vote as the rules say until they say nothing."""
    done = []
    while (decision := next(quorum.decisions(), None)) is not None:
        vote(quorum, 1, decision.kind, decision.slot, decision.hash)
        done.append(decision)
    return done


def test_leaders_take_turns(quorum: Quorum) -> None:
    assert [quorum.leader(slot) for slot in (1, 2, 3, 4, 5)] == [SET[1], SET[2], SET[3], SET[0], SET[1]]


def test_three_of_four_make_a_certificate_once(quorum: Quorum) -> None:
    assert vote(quorum, 2, NOTAR, 1, hash_of(1)) is None
    assert vote(quorum, 3, NOTAR, 1, hash_of(2)) is None
    assert vote(quorum, 4, NOTAR, 1, hash_of(1)) is None
    certificate = vote(quorum, 1, NOTAR, 1, hash_of(1))
    assert certificate is not None
    assert certificate.signers == (0, 1, 3)
    assert quorum.notarized == {1: certificate}


def test_the_first_vote_of_a_voter_counts(quorum: Quorum) -> None:
    vote(quorum, 2, NOTAR, 1, hash_of(1))
    assert not quorum.wants_vote(cast(key(2), NETWORK, 0, NOTAR, 1, hash_of(2)))
    assert quorum.wants_vote(cast(key(2), NETWORK, 0, SKIP, 1, ""))
    assert not quorum.wants_vote(cast(key(9), NETWORK, 0, SKIP, 1, ""))


def test_the_frontier_passes_notarized_and_skipped_slots(quorum: Quorum) -> None:
    certify(quorum, SKIP, 2)
    assert quorum.frontier == 1
    certify(quorum, NOTAR, 1, hash_of(1))
    assert quorum.frontier == 3
    certify(quorum, FINAL, 9, hash_of(9))  # a quorum is past slot 9, whatever we missed
    assert quorum.frontier == 10


def test_votes_and_certificates_far_ahead_are_not_kept(quorum: Quorum) -> None:
    last = quorum.frontier + limits.SLOT_WINDOW
    assert quorum.wants_vote(cast(key(2), NETWORK, 0, SKIP, last, ""))
    assert not quorum.wants_vote(cast(key(2), NETWORK, 0, SKIP, last + 1, ""))
    assert not quorum.wants_vote(cast(key(2), NETWORK, 0, SKIP, 0, ""))
    far = Certificate(epoch=0, kind=SKIP, slot=last + 1, hash="", signers=(), sigs=())
    assert not quorum.add_certificate(far)


def test_notar_once_per_slot_and_only_on_a_notarized_parent(quorum: Quorum) -> None:
    quorum.add_block(Position(2, hash_of(2)), Position(1, hash_of(1)))
    assert cast_all(quorum) == []  # the parent is not notarized
    certify(quorum, NOTAR, 1, hash_of(7))
    assert cast_all(quorum) == []  # a sibling of the parent is
    other = Quorum(EPOCH, SET[0], ROOT)
    other.add_block(Position(2, hash_of(2)), Position(1, hash_of(1)))
    other.add_block(Position(2, hash_of(3)), Position(1, hash_of(1)))
    certify(other, NOTAR, 1, hash_of(1))
    assert cast_all(other) == [Decision(NOTAR, 2, hash_of(2))]  # and not for the second block


def test_notar_only_over_skipped_slots(quorum: Quorum) -> None:
    quorum.add_block(Position(3, hash_of(3)), ROOT)
    certify(quorum, SKIP, 2)
    assert cast_all(quorum) == []
    certify(quorum, SKIP, 1)
    assert cast_all(quorum) == [Decision(NOTAR, 3, hash_of(3))]


def test_final_needs_my_notar_and_the_certificate(quorum: Quorum) -> None:
    certify(quorum, NOTAR, 1, hash_of(1))
    assert cast_all(quorum) == []  # I have not seen the block
    quorum.add_block(Position(1, hash_of(1)), ROOT)
    assert cast_all(quorum) == [Decision(NOTAR, 1, hash_of(1)), Decision(FINAL, 1, hash_of(1))]


def test_final_not_for_a_sibling_of_what_i_notarized(quorum: Quorum) -> None:
    quorum.add_block(Position(1, hash_of(1)), ROOT)
    assert cast_all(quorum) == [Decision(NOTAR, 1, hash_of(1))]
    certify(quorum, NOTAR, 1, hash_of(2))
    assert cast_all(quorum) == []


def test_never_final_after_skip(quorum: Quorum) -> None:
    assert quorum.may_skip(1)
    vote(quorum, 1, SKIP, 1)
    quorum.add_block(Position(1, hash_of(1)), ROOT)
    certify(quorum, NOTAR, 1, hash_of(1))
    assert cast_all(quorum) == [Decision(NOTAR, 1, hash_of(1))]


def test_never_skip_after_final_nor_behind_the_frontier(quorum: Quorum) -> None:
    vote(quorum, 1, FINAL, 1, hash_of(1))
    assert not quorum.may_skip(1)
    assert not quorum.may_skip(2)
    certify(quorum, NOTAR, 1, hash_of(1))
    assert quorum.may_skip(2)


def test_an_observer_decides_nothing() -> None:
    observer = Quorum(EPOCH, key(9).account, ROOT)
    observer.add_block(Position(1, hash_of(1)), ROOT)
    certify(observer, NOTAR, 1, hash_of(1))
    assert cast_all(observer) == []
    assert not observer.may_skip(2)


def test_the_leader_builds_on_the_newest_notarized_block_it_has(quorum: Quorum) -> None:
    have = {NETWORK, hash_of(1)}
    assert quorum.parent_for_proposal(have.__contains__) == ROOT
    certify(quorum, NOTAR, 1, hash_of(1))
    certify(quorum, SKIP, 2)
    assert quorum.parent_for_proposal(have.__contains__) == Position(1, hash_of(1))
    certify(quorum, NOTAR, 3, hash_of(3))
    assert quorum.parent_for_proposal(have.__contains__) is None  # it must fetch that block first
    certify(quorum, SKIP, 3)  # now it may leave it out
    assert quorum.parent_for_proposal(have.__contains__) == Position(1, hash_of(1))


def test_finalization_forgets_what_is_below(quorum: Quorum) -> None:
    certify(quorum, SKIP, 1)
    certify(quorum, NOTAR, 2, hash_of(2))
    certify(quorum, FINAL, 2, hash_of(2))
    vote(quorum, 1, SKIP, 3)
    quorum.finalize([Position(2, hash_of(2))])
    assert (quorum.notarized, quorum.skipped, quorum.final) == ({}, {}, None)
    assert quorum.voters(2, FINAL) == {}
    assert quorum.own_vote(SKIP, 3) == ""
    assert (quorum.frontier, quorum.unfinalized) == (3, 0)
    assert quorum.stands_on(3, Position(2, hash_of(2)))
    assert not quorum.stands_on(3, Position(1, hash_of(1)))


def test_a_leader_whose_last_slot_passed_is_suspect_until_it_proposes(quorum: Quorum) -> None:
    certify(quorum, SKIP, 1)
    assert quorum.is_suspect(5)
    assert not quorum.is_suspect(6)
    certify(quorum, NOTAR, 2, hash_of(2))
    quorum.finalize([Position(2, hash_of(2))])
    assert quorum.is_suspect(5)
    assert not quorum.is_suspect(6)
    quorum.finalize([Position(5, hash_of(5))])
    assert not quorum.is_suspect(9)
    assert quorum.is_suspect(7)  # slot 3 is not in the chain
    assert not Quorum(EPOCH, None, Position(50, hash_of(5))).is_suspect(52)  # nothing is known of slot 48
