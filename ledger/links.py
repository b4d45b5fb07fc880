"""Following the chain of validator sets from the genesis, with no state and no database.

Rules kept here:
1. The set of epoch 0 is the genesis's.  Each link shows the boundary block of one epoch: a quorum of that epoch's set
   finalized it, itself or by way of closing blocks, and its header commits to the set of the next epoch.
2. A set has one form: it is listed in a link exactly when it is another than the one before.
3. Headers lead from one to the next by hash, height, slot and time.  Closing blocks are empty and change nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec

from contracts.records import Genesis
from gdf_market import identity, merkle
from gdf_market.codec import AccountId, Record
from gdf_market.errors import MalformedError, ensure
from ledger.block import FINAL, Certificate, Header, block_hash, open_header, set_hash, verify_certificate
from ledger.epochs import Epoch, epoch_of
from ledger.limits import MAX_VALIDATORS

MAX_CLOSING = 256  # closing blocks of one epoch in a proof; there are none or a few
_EMPTY_ROOT = merkle.root(()).hex()

_usable = functools.lru_cache(maxsize=4_096)(identity.public_key)  # sets change little from epoch to epoch


class Link(Record, frozen=True, kw_only=True):
    """How one epoch ended; ``certificate`` finalizes the last of (the boundary block, its closing blocks)."""

    header: msgspec.Raw  # of the boundary block
    closing: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_CLOSING)]
    certificate: Certificate
    validators: Annotated[tuple[AccountId, ...], msgspec.Meta(max_length=MAX_VALIDATORS)]  # of the next epoch; () same


class Place:
    """A header and its hash."""

    def __init__(self, header: Header, raw: bytes) -> None:
        self.header = header
        self.hash = block_hash(raw)


class SetChain:
    """Which validators agree on the blocks of the current epoch, as far as the links taken so far show."""

    def __init__(self, genesis: Genesis, network: str) -> None:
        """Raise MalformedError for a genesis that lists one validator twice or an unusable key."""
        check_set(genesis.validators)
        self._genesis = genesis
        self._network = network
        self.epoch = epoch_of(genesis, 0, genesis.validators)
        self.boundary: Place | None = None  # of the epoch before; None in the first

    @property
    def root(self) -> str:
        """Return the hash on which the first block of the epoch builds."""
        return self.boundary.hash if self.boundary is not None else self._network

    def take(self, link: Link) -> None:
        """Go on to the next epoch.  Raises MalformedError or SignatureError, and stays where it is."""
        places = open_headers([link.header, *link.closing], self.epoch, self._network, self.root)
        first = places[0].header
        ensure(
            first.height == self.epoch.last,
            MalformedError(f"block {first.height} does not end epoch {self.epoch.number}; {self.epoch.last} does"),
        )
        check_final(link.certificate, places[-1], self.epoch, self._network)
        validators = next_set(self.epoch.validators, link.validators, first)
        self.epoch = epoch_of(self._genesis, self.epoch.number + 1, validators)
        self.boundary = places[0]


def check_set(validators: Sequence[str]) -> None:
    """Raise MalformedError unless a set's members are distinct usable keys."""
    for account in validators:
        _usable(account)
    ensure(len(set(validators)) == len(validators), MalformedError("a validator set lists one validator twice"))


def next_set(current: tuple[str, ...], listed: tuple[str, ...], boundary: Header) -> tuple[str, ...]:
    """Return the set to which a boundary block commits; ``listed`` is empty if it is the current one.

    Raises MalformedError when it is not the one that the header names.
    """
    validators = listed or current
    ensure(listed != current, MalformedError("a set that did not change is not listed again"))
    ensure(
        set_hash(validators) == boundary.validators,
        MalformedError(f"block {boundary.height} names another set of validators than these {len(validators)}"),
    )
    check_set(validators)
    return validators


def open_headers(raws: Sequence[msgspec.Raw], epoch: Epoch, network: str, root: str) -> list[Place]:
    """Decode consecutive headers of one epoch, whose first block builds on ``root``.  Raises MalformedError."""
    places: list[Place] = []
    for raw in raws:
        place = Place(open_header(bytes(raw), network), bytes(raw))
        _check_epoch(place.header, epoch, root)
        if places:
            check_follows(place.header, places[-1])
            _check_closing(place.header, places[-1].header, epoch)
        places.append(place)
    ensure(
        places[0].header.height <= epoch.last,
        MalformedError(f"block {places[0].header.height} is a closing block, not one of the ledger"),
    )
    return places


def _check_epoch(header: Header, epoch: Epoch, root: str) -> None:
    ensure(
        header.epoch == epoch.number,
        MalformedError(f"block {header.height} says epoch {header.epoch}; its epoch is {epoch.number}"),
    )
    ensure(
        header.height >= epoch.first,
        MalformedError(f"block {header.height} is before epoch {epoch.number}, which begins with {epoch.first}"),
    )
    ensure(
        (header.height == epoch.first) == (header.parent == root),
        MalformedError(f"block {header.height} does not say where epoch {epoch.number} begins"),
    )


def check_follows(header: Header, parent: Place) -> None:
    """Raise MalformedError unless a header names another one as its parent and comes after it."""
    before = parent.header
    ensure(
        (header.parent, header.parent_slot, header.height) == (parent.hash, before.slot, before.height + 1)
        and header.slot > before.slot
        and header.time_ms > before.time_ms,
        MalformedError(f"block {header.height} of slot {header.slot} does not follow block {before.height}"),
    )


def _check_closing(header: Header, before: Header, epoch: Epoch) -> None:
    """Raise MalformedError for a block beyond the epoch's boundary block that has entries or changes something."""
    ensure(
        header.height <= epoch.last
        or (header.entry_count, header.entries_root, header.state_root, header.validators)
        == (0, _EMPTY_ROOT, before.state_root, before.validators),
        MalformedError(f"block {header.height} is beyond the end of epoch {epoch.number} and not empty"),
    )


def check_final(certificate: Certificate, place: Place, epoch: Epoch, network: str) -> None:
    """Raise MalformedError or SignatureError unless a quorum of an epoch's set finalized a block."""
    ensure(certificate.kind == FINAL, MalformedError(f"a {certificate.kind} certificate finalizes nothing"))
    ensure(
        (certificate.slot, certificate.hash) == (place.header.slot, place.hash),
        MalformedError(f"the certificate is of block {certificate.hash}, not of {place.hash}"),
    )
    verify_certificate(certificate, network, epoch.validators, epoch.number)
