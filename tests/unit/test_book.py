"""The order book: every check, limit and reason, eviction by worth, and which orders fit a worker."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest

from gdf_market import messages
from gdf_market.book import errors
from gdf_market.book.core import MAX_REASONS, Limits, Order, OrderBook
from gdf_market.book.match import Capabilities, match
from gdf_market.errors import MalformedError, OversizedError, PeerError, RuleError, SignatureError
from gdf_market.identity import Identity
from gdf_market.messages import JobPost, Recipe, Transfer, Void, seal

NETWORK = "ab" * 32
NOW = 1_700_000_000_000
HOUR = 3_600_000
OWNER = Identity(b"\x01" * 32)
OTHER = Identity(b"\x02" * 32)
RECIPE = Recipe(
    inner="adamw",
    steps=20,
    batch=8,
    lr_e9=1_000_000,
    beta1_ppm=900_000,
    beta2_ppm=990_000,
    weight_decay_ppm=0,
    clip_ppm=1_000_000,
    rewarm_steps=10,
    outer_lr_ppm=1_000_000,
    outer_momentum_ppm=500_000,
    codec_bits=4,
    codec_block=128,
)


def spec(key: Identity = OWNER, **changes: Any) -> JobPost:
    fields: dict[str, Any] = {
        "author": key.account,
        "nonce": 1,
        "expires_ms": NOW + HOUR,
        "title": "a job",
        "program": "11" * 32,
        "data": "22" * 32,
        "checkpoint": "33" * 32,
        "parameters": 1_000,
        "tokens_per_unit": 0,
        "recipe": RECIPE,
        "device_class": "cpu-fp32",
        "rounds": 2,
        "units_per_round": 4,
        "shards": 8,
        "min_workers": 2,
        "reserve_price": 1_000_000,
        "unit_bond": 3_000_000,
        "merit_ppm": 100_000,
        "audit_fee": 0,
        "audit_budget": 0,
        "audit_floor_ppm": 100_000,
        "bid_ms": 1_000,
        "work_ms": 1_000,
        "reveal_ms": 1_000,
        "receipt_ms": 1_000,
        "result_ms": 1_000,
        "audit_ms": 1_000,
        "hold_ms": 1_000,
        "deadline_ms": NOW + 10 * HOUR,
    }
    return JobPost(**(fields | changes))


def order_bytes(key: Identity = OWNER, **changes: Any) -> bytes:
    return seal(key, NETWORK, spec(key, **changes)).raw


def escrow_of(job: JobPost) -> int:
    return job.reserve_price * job.rounds * job.units_per_round


class Shell:
    """A book with the balances that its node would look up."""

    def __init__(self, **limits: int) -> None:
        self.book = OrderBook(NETWORK, Limits(**limits))
        self.balances: dict[str, int] = {}
        self.spent: set[tuple[str, int]] = set()

    def is_spent(self, author: str, nonce: int) -> bool:
        return (author, nonce) in self.spent

    def balance_of(self, account: str) -> int:
        return self.balances.get(account, 10**15)

    def give(self, raw: bytes, now_ms: int = NOW) -> Order:
        return self.book.on_order(
            raw, "peer", now_ms, balance_of=self.balance_of, escrow_of=escrow_of, is_spent=self.is_spent
        )

    def refuse(self, raw: bytes, error: type[PeerError], now_ms: int = NOW) -> None:
        before, count = [order.id for order in self.book.orders()], self.book.refused.get(error.reason, 0)
        with pytest.raises(error):
            self.give(raw, now_ms)
        assert self.book.refused[error.reason] == count + 1
        assert [order.id for order in self.book.orders()] == before


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_good_order_is_taken(shell: Shell) -> None:
    raw = order_bytes()
    order = shell.give(raw)
    assert order == Order(messages.open_entry(raw, NETWORK), spec(), "peer", NOW, 8_000_000)
    assert shell.book.orders() == [order]
    assert shell.book.get(order.id) is order
    assert order.id in shell.book
    assert len(shell.book) == 1
    assert shell.book.refused == {}


def test_oversized_orders_are_refused(shell: Shell) -> None:
    shell.refuse(b" " * (messages.MAX_ENTRY_BYTES + 1), OversizedError)


def test_a_smaller_limit_of_the_book_holds() -> None:
    raw = order_bytes()
    Shell(order_bytes=len(raw)).give(raw)
    Shell(order_bytes=len(raw) - 1).refuse(raw, OversizedError)


@pytest.mark.parametrize("raw", [b"", b"{}", b"null", b"\xff"])
def test_malformed_orders_are_refused(shell: Shell, raw: bytes) -> None:
    shell.refuse(raw, MalformedError)


def test_an_order_that_is_not_canonical_is_refused(shell: Shell) -> None:
    shell.refuse(order_bytes().replace(b'"nonce":1', b'"nonce": 1'), MalformedError)


def test_forged_orders_are_refused(shell: Shell) -> None:
    shell.refuse(order_bytes().replace(b'"nonce":1', b'"nonce":2'), SignatureError)


def test_orders_of_another_network_are_refused(shell: Shell) -> None:
    shell.refuse(seal(OWNER, "cd" * 32, spec()).raw, SignatureError)


def test_other_entries_are_refused(shell: Shell) -> None:
    body = Transfer(author=OWNER.account, nonce=1, expires_ms=NOW + 1, to=OTHER.account, amount=1, memo="")
    shell.refuse(seal(OWNER, NETWORK, body).raw, errors.NotAnOrderError)


def test_the_signature_is_checked_before_balances_are_read() -> None:
    def never(_: object) -> int:
        raise AssertionError("looked up for an unsigned order")

    with pytest.raises(SignatureError):
        OrderBook(NETWORK).on_order(
            order_bytes().replace(b'"nonce":1', b'"nonce":2'), "peer", NOW, balance_of=never, escrow_of=never
        )


def test_expired_orders_are_refused(shell: Shell) -> None:
    shell.refuse(order_bytes(), errors.ExpiredOrderError, now_ms=NOW + HOUR)
    shell.give(order_bytes(), now_ms=NOW + HOUR - 1)


def test_an_expiry_beyond_an_hour_is_refused(shell: Shell) -> None:
    shell.refuse(order_bytes(expires_ms=NOW + HOUR + 1), errors.DistantExpiryError)


def test_duplicates_are_refused(shell: Shell) -> None:
    shell.give(order_bytes())
    shell.refuse(order_bytes(), errors.DuplicateOrderError)


def test_an_author_has_at_most_its_share(shell: Shell) -> None:
    for nonce in range(16):
        shell.give(order_bytes(nonce=nonce))
    shell.refuse(order_bytes(nonce=16), errors.AuthorLimitError)
    shell.give(order_bytes(OTHER))


def test_expired_orders_free_their_authors_share() -> None:
    shell = Shell(per_author=1)
    shell.give(order_bytes(expires_ms=NOW + 10))
    shell.refuse(order_bytes(nonce=2), errors.AuthorLimitError, now_ms=NOW + 9)
    shell.give(order_bytes(nonce=2), now_ms=NOW + 10)
    assert len(shell.book) == 1


def test_orders_beyond_the_balance_are_refused(shell: Shell) -> None:
    shell.balances[OWNER.account] = 8_000_000 - 1
    shell.refuse(order_bytes(), errors.UnfundedOrderError)
    shell.balances[OWNER.account] = 8_000_000
    shell.give(order_bytes())


def test_one_balance_does_not_fund_two_orders(shell: Shell) -> None:
    shell.balances[OWNER.account] = 16_000_000 - 1
    shell.give(order_bytes())
    shell.refuse(order_bytes(nonce=2), errors.UnfundedOrderError)
    shell.balances[OWNER.account] += 1
    shell.give(order_bytes(nonce=2))


def test_a_job_that_the_rules_refuse_is_counted_as_such() -> None:
    def refuses(_: JobPost) -> int:
        raise RuleError("no such job")

    book = OrderBook(NETWORK)
    with pytest.raises(RuleError):
        book.on_order(order_bytes(), "peer", NOW, balance_of=lambda _: 10**15, escrow_of=refuses)
    assert book.refused == {"rule": 1}
    assert len(book) == 0


def test_a_full_book_keeps_the_orders_of_most_worth() -> None:
    shell = Shell(orders=3, per_author=10)
    for nonce, price in enumerate((5, 3, 4)):
        shell.give(order_bytes(nonce=nonce, reserve_price=price))
    shell.refuse(order_bytes(nonce=9, reserve_price=2), errors.BookFullError)
    assert shell.give(order_bytes(nonce=10, reserve_price=6)).id in shell.book
    assert [order.spec.reserve_price for order in shell.book.orders()] == [6, 5, 4]
    assert shell.book.refused == {"book-full": 1, "evicted": 1}


def test_worth_is_price_times_units_times_rounds() -> None:
    shell = Shell(orders=1)
    shell.give(order_bytes(reserve_price=10, rounds=1, units_per_round=4))
    shell.give(order_bytes(nonce=2, reserve_price=1, rounds=41, units_per_round=1, min_workers=1))
    assert [order.worth for order in shell.book.orders()] == [41]


def test_equal_worth_gives_way_by_id_whatever_the_order_of_arrival() -> None:
    entries = [order_bytes(nonce=nonce) for nonce in range(4)]
    kept = set()
    for arrival in (entries, entries[::-1]):
        shell = Shell(orders=2)
        for raw in arrival:
            try:
                shell.give(raw)
            except errors.BookFullError:
                assert len(shell.book) == 2
        kept.add(tuple(order.id for order in shell.book.orders()))
    ids = sorted(messages.open_entry(raw, NETWORK).id for raw in entries)
    assert kept == {tuple(ids[2:])}


def test_an_unfunded_order_evicts_nothing() -> None:
    shell = Shell(orders=1)
    shell.give(order_bytes())
    shell.balances[OTHER.account] = 0
    shell.refuse(order_bytes(OTHER, reserve_price=10**9), errors.UnfundedOrderError)


def test_the_default_book_holds_1024_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages.identity, "verify", lambda *_: None)  # 1,025 signatures are not the point here
    shell = Shell(per_author=2_000)
    for nonce in range(1_024):
        shell.give(order_bytes(nonce=nonce))
    assert len(shell.book) == 1_024
    shell.refuse(order_bytes(nonce=1_024, reserve_price=1), errors.BookFullError)
    shell.give(order_bytes(nonce=1_025, reserve_price=1_000_001))
    assert len(shell.book) == 1_024


def test_default_limits() -> None:
    sizes = {"order_bytes": 32_768, "per_author": 16, "orders": 1_024, "lifetime_ms": HOUR, "posted": 4_096}
    assert Limits() == Limits(**sizes, replacements=8, past=4_096)


def test_expire_drops_what_is_over(shell: Shell) -> None:
    early = shell.give(order_bytes(expires_ms=NOW + 10))
    late = shell.give(order_bytes(nonce=2))
    assert shell.book.expire(NOW + 9) == []
    assert shell.book.expire(NOW + 10) == [early.id]
    assert shell.book.orders() == [late]


def test_a_posted_order_leaves_for_good(shell: Shell) -> None:
    order = shell.give(order_bytes())
    shell.book.mark_posted(order.id)
    assert shell.book.orders() == []
    shell.refuse(order_bytes(), errors.DuplicateOrderError)


def test_a_job_posted_before_its_order_was_heard_is_known(shell: Shell) -> None:
    shell.book.mark_posted(messages.open_entry(order_bytes(), NETWORK).id)
    shell.refuse(order_bytes(), errors.DuplicateOrderError)


def test_posted_jobs_are_remembered_up_to_a_limit() -> None:
    shell = Shell(posted=3)
    first = shell.give(order_bytes())
    for job in (first.id, "a" * 64, "b" * 64, "c" * 64):
        shell.book.mark_posted(job)
    assert len(shell.book._posted) == 3
    assert shell.give(order_bytes()).id == first.id  # forgotten: the caller's rules refuse it where it matters


def test_orders_are_sorted_by_price_then_id(shell: Shell) -> None:
    for nonce, price in enumerate((2, 3, 2, 1)):
        shell.give(order_bytes(nonce=nonce, reserve_price=price))
    orders = shell.book.orders()
    assert [order.spec.reserve_price for order in orders] == [3, 2, 2, 1]
    assert orders[1].id < orders[2].id


def test_orders_whose_authors_spent_the_money_are_dropped(shell: Shell) -> None:
    first, second = shell.give(order_bytes()), shell.give(order_bytes(nonce=2))
    small = shell.give(order_bytes(nonce=3, reserve_price=1))
    other = shell.give(order_bytes(OTHER))
    shell.balances[OWNER.account] = first.escrow + small.escrow
    assert shell.book.drop_unfunded(shell.balance_of) == [second.id]
    assert {order.id for order in shell.book.orders()} == {first.id, small.id, other.id}


def test_refusals_are_counted_under_a_bounded_number_of_reasons() -> None:
    book = OrderBook(NETWORK)
    for number in range(MAX_REASONS + 5):
        reason = type("Invented", (PeerError,), {"reason": f"reason {number}"})

        def refuses(_: JobPost, reason: type[PeerError] = reason) -> int:
            raise reason("no")

        with pytest.raises(reason):
            book.on_order(order_bytes(), "peer", NOW, balance_of=lambda _: 0, escrow_of=refuses)
    assert len(book.refused) == MAX_REASONS + 1
    assert book.refused["other"] == 5


def test_blame_is_told_apart() -> None:
    """A node may drop a peer for the first kind only: an honest one relays what another book refuses."""
    local = (
        errors.ExpiredOrderError,
        errors.DistantExpiryError,
        errors.DuplicateOrderError,
        errors.AuthorLimitError,
        errors.BookFullError,
        errors.UnfundedOrderError,
        errors.SupersededOrderError,
        errors.VoidedOrderError,
        errors.SpentNonceError,
        errors.ReplaceLimitError,
        errors.UnknownVoidError,
    )
    assert all(issubclass(error, errors.OrderRefusedError) for error in local)
    assert not issubclass(errors.NotAnOrderError, errors.OrderRefusedError)
    assert len({error.reason for error in (*local, errors.NotAnOrderError, errors.OrderRefusedError)}) == 13


# replacing and taking back


def void_bytes(key: Identity = OWNER, **changes: Any) -> bytes:
    fields: dict[str, Any] = {"author": key.account, "nonce": 1, "expires_ms": NOW + HOUR}
    return seal(key, NETWORK, Void(**(fields | changes))).raw


def version(number: int, key: Identity = OWNER, **changes: Any) -> bytes:
    """Return an order of nonce 1 that was signed later than those of lower numbers."""
    return order_bytes(key, **({"expires_ms": NOW + HOUR // 2 + number, "title": f"version {number}"} | changes))


def test_the_order_that_expires_last_takes_the_place_of_others_with_its_nonce(shell: Shell) -> None:
    shell.give(version(0))
    other = shell.give(order_bytes(nonce=2))
    newer = shell.give(version(1, reserve_price=2_000_000))
    assert shell.book.orders() == [newer, other]
    shell.refuse(version(0), errors.SupersededOrderError)


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
def test_whatever_comes_first_the_newest_order_stays(arrival: tuple[int, ...]) -> None:
    shell = Shell()
    for number in arrival:
        with contextlib.suppress(errors.SupersededOrderError):
            shell.give(version(number))
    assert [order.spec.title for order in shell.book.orders()] == ["version 2"]


def test_a_replacement_needs_no_room_and_no_balance_of_its_own() -> None:
    shell = Shell(orders=1, per_author=1)
    shell.balances[OWNER.account] = 8_000_000
    shell.give(version(0))
    shell.give(version(1))
    shell.refuse(version(2, reserve_price=1_000_001), errors.UnfundedOrderError)  # and version 1 stays
    shell.give(version(3, reserve_price=1))
    assert [order.spec.title for order in shell.book.orders()] == ["version 3"]


def test_a_flood_of_replacements_ends_and_uses_up_the_authors_share() -> None:
    shell = Shell(per_author=2, replacements=3)
    for number in range(4):
        shell.give(version(number))
    shell.refuse(version(4), errors.ReplaceLimitError)
    shell.balances[OWNER.account] = 0
    assert len(shell.book.drop_unfunded(shell.balance_of)) == 1
    shell.balances.clear()
    shell.refuse(version(4), errors.ReplaceLimitError)  # leaving the book does not begin the count anew
    shell.give(order_bytes(nonce=2))
    shell.refuse(order_bytes(nonce=3), errors.AuthorLimitError)
    shell.give(version(4, expires_ms=NOW + HOUR + 4), now_ms=NOW + HOUR // 2 + 3)


def test_another_author_with_the_same_nonce_replaces_nothing(shell: Shell) -> None:
    shell.give(version(0))
    shell.give(version(1, OTHER))
    assert len(shell.book) == 2
    shell.refuse(void_bytes(OTHER, nonce=2), errors.UnknownVoidError)
    assert shell.give(void_bytes(OTHER)).spec.author == OTHER.account
    assert [order.spec.author for order in shell.book.orders()] == [OWNER.account]


def test_a_void_ends_all_orders_with_its_nonce_until_the_last_has_expired(shell: Shell) -> None:
    order = shell.give(version(1))
    assert shell.give(void_bytes(expires_ms=NOW + HOUR)) == order
    assert shell.book.orders() == []
    for number in range(3):
        shell.refuse(version(number), errors.VoidedOrderError)
    shell.refuse(void_bytes(), errors.DuplicateOrderError)
    shell.refuse(version(4), errors.VoidedOrderError, now_ms=NOW + HOUR // 2 + 1)
    assert shell.book.expire(NOW + HOUR) == []
    assert shell.book._past == {}


def test_a_void_of_nothing_is_kept_from_nobody(shell: Shell) -> None:
    shell.refuse(void_bytes(), errors.UnknownVoidError)
    assert shell.book._past == {}
    shell.give(version(0))


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (void_bytes().replace(b'"nonce":1', b'"nonce":2'), SignatureError),
        (void_bytes(expires_ms=NOW), errors.ExpiredOrderError),
        (void_bytes(expires_ms=NOW + HOUR + 1), errors.DistantExpiryError),
    ],
)
def test_voids_are_checked_as_orders_are(shell: Shell, raw: bytes, error: type[PeerError]) -> None:
    shell.give(order_bytes())
    shell.refuse(raw, error)


def test_orders_taken_back_use_up_their_authors_share() -> None:
    shell = Shell(per_author=2)
    for nonce in (1, 2):
        shell.give(order_bytes(nonce=nonce))
        shell.give(void_bytes(nonce=nonce))
    shell.refuse(order_bytes(nonce=3), errors.AuthorLimitError)
    shell.give(order_bytes(nonce=3, expires_ms=NOW + 2 * HOUR), now_ms=NOW + HOUR)


def test_what_is_remembered_of_past_orders_is_bounded() -> None:
    shell = Shell(past=2)
    for nonce in range(4):
        shell.give(order_bytes(nonce=nonce))
        shell.give(void_bytes(nonce=nonce))
    assert [nonce for _, nonce in shell.book._past] == [2, 3]
    shell.give(order_bytes(nonce=0))  # the ledger refuses it where it matters


def test_what_the_ledger_has_seen_of_a_nonce_is_the_end_of_its_order(shell: Shell) -> None:
    order, other = shell.give(version(0)), shell.give(order_bytes(nonce=2))
    shell.spent.add((OWNER.account, 1))
    assert shell.book.drop_spent(shell.is_spent) == [order.id]
    assert shell.book.orders() == [other]
    shell.refuse(version(1), errors.SpentNonceError)


WORKER = Capabilities(OTHER.account, ("cpu-fp32", "cuda-bf16"), 1_000_000, 1_000, 3_000_000)


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (replace(WORKER, account=OWNER.account), "posted by this account"),
        (replace(WORKER, device_classes=("cuda-bf16",)), "wants device class cpu-fp32; this worker has cuda-bf16"),
        (replace(WORKER, device_classes=()), "this worker has none"),
        (replace(WORKER, min_price=1_500_000), "pays at most 1 credits per unit; this worker asks 1.5"),
        (replace(WORKER, max_parameters=999), "trains 1000 parameters; 999 fit this worker"),
        (replace(WORKER, max_unit_bond=2_999_999), "locks a bond of 3 credits per unit"),
    ],
)
def test_each_misfit_has_its_reason(shell: Shell, worker: Capabilities, reason: str) -> None:
    shell.give(order_bytes())
    (found,) = match(shell.book.orders(), worker)
    assert not found.fits
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_matches_come_in_the_orders_own_order_with_all_reasons(shell: Shell) -> None:
    good = shell.give(order_bytes())
    bad = shell.give(order_bytes(nonce=2, reserve_price=1, device_class="other"))
    found = match(shell.book.orders(), WORKER)
    assert [(item.order, item.fits, len(item.reasons)) for item in found] == [(good, True, 0), (bad, False, 2)]


def test_absent_limits_limit_nothing(shell: Shell) -> None:
    shell.give(order_bytes(parameters=10**12, unit_bond=10**12))
    (found,) = match(shell.book.orders(), Capabilities(OTHER.account, ("cpu-fp32",)))
    assert found.fits
