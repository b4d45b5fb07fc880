"""Making proofs from a ledger on disk (their form and their check: ``ledger/proof.py``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from gdf_market import merkle
from gdf_market.errors import PeerError, StorageError, UsageError, ensure
from ledger.links import MAX_CLOSING, Link
from ledger.proof import (
    END,
    MAX_DESCENDANTS,
    MAX_HEADERS,
    MAX_LINKS,
    MAX_PROOF_BYTES,
    AnyProof,
    EntryProof,
    HeadProof,
    check,
    to_bytes,
)
from ledger.store import LedgerStore, certificate_of
from ledger.tables import BlockRow


def prove_entry(store: LedgerStore, entry_id: str) -> bytes:
    """Return the file that proves that an entry is final.

    Raises UsageError for an entry that is not in this ledger, StorageError when the ledger is damaged.
    """
    row = store.entry(entry_id)
    ensure(
        row is not None,
        UsageError(
            f"no entry {entry_id!r} in this ledger; give the full id of 64 characters (`ledger show --height`)"
            + _pruned(store)
        ),
    )
    assert row is not None
    block = _block(store, row.height)
    span = block.certified_height - block.height
    closing = _closing(store, block.certified_height)
    ensure(
        span + len(closing) <= MAX_DESCENDANTS,
        UsageError(
            f"block {block.height} is certified only by block {block.certified_height}, more than {MAX_DESCENDANTS} "
            "later; prove it with an export"
        ),
    )
    with _damage(store):
        tree = merkle.Tree()
        for entry in store.block_entries(row.height):
            tree.append(entry.raw)
        descendants = [msgspec.Raw(each.header) for each in _blocks(store, block.height + 1, span)]
        proof = EntryProof(
            genesis=store.genesis(),
            links=_links(store, row.height),
            certificate=certificate_of(block),
            entry=msgspec.Raw(row.raw),
            position=row.position,
            path=tuple(item.hex() for item in tree.path(row.position)),
            header=msgspec.Raw(block.header),
            sig=block.signature,
            descendants=(*descendants, *closing),
        )
    return _checked(store, proof, row.height)


def prove_heads(store: LedgerStore, older: int, newer: int) -> bytes:
    """Return the file that proves that the block of height ``older`` is an ancestor of the one of ``newer``.

    The proof goes on to the block that certifies the newer one, if that is another; it may be a closing block.
    Raises UsageError for heights that are not in this ledger or too far apart, StorageError when it is damaged.
    """
    ensure(1 <= older <= newer, UsageError(f"{older} {newer}: give the older height first; heights begin with 1"))
    head = store.head()
    ensure(
        head is not None and newer <= head.height,
        UsageError(f"no block {newer} in this ledger; its head is block {head.height if head else 0}"),
    )
    ensure(older >= store.oldest(), UsageError(f"{older} {newer}: block {older} is not here{_pruned(store)}"))
    last = _block(store, _block(store, newer).certified_height)
    closing = _closing(store, last.height)
    count = last.height - older + 1 + len(closing)
    ensure(
        count <= MAX_HEADERS,
        UsageError(f"{count} headers lie between the blocks; at most {MAX_HEADERS} fit into a proof: make several"),
    )
    with _damage(store):
        headers = [msgspec.Raw(each.header) for each in _blocks(store, older, count - len(closing))]
        proof = HeadProof(
            genesis=store.genesis(),
            links=_links(store, last.height),
            certificate=certificate_of(last),
            headers=(*headers, *closing),
        )
    return _checked(store, proof, last.height)


def _pruned(store: LedgerStore) -> str:
    """Return the end of a sentence about what may be missing in a ledger that does not hold all blocks."""
    oldest = store.oldest()
    return f"; blocks below {oldest} were pruned from this ledger; ask a node that keeps them" if oldest > 1 else ""


# ---- the chain of validator sets


def _links(store: LedgerStore, height: int) -> tuple[Link, ...]:
    """Return how every epoch before that of a height ended.  Raises UsageError when that is too much for a proof."""
    blocks = store.genesis().staking.epoch_blocks
    count, room = (height - 1) // blocks, MAX_PROOF_BYTES
    ensure(
        count <= MAX_LINKS,
        UsageError(f"block {height} lies in epoch {count}; a proof reaches {MAX_LINKS} epochs far: give an export"),
    )
    links: list[Link] = []
    validators = store.validators_at(1) if count else ()
    for number in range(count):
        row = _block(store, (number + 1) * blocks)
        following = store.validators_at(row.height + 1)
        link = Link(
            header=msgspec.Raw(row.header),
            closing=_closing(store, row.height),
            certificate=certificate_of(row),
            validators=() if following == validators else following,
        )
        links.append(link)
        validators = following
        room -= _size(link)
        _check_room(room, height)
    return tuple(links)


def _size(link: Link) -> int:
    """Return about how many bytes a link takes."""
    headers = sum(len(bytes(raw)) for raw in (link.header, *link.closing))
    return headers + sum(len(sig) for sig in link.certificate.sigs) + sum(len(each) for each in link.validators)


def _check_room(room: int, height: int) -> None:
    ensure(
        room >= 0,
        UsageError(
            f"the chain of validator sets up to block {height} does not fit into a proof of {MAX_PROOF_BYTES} bytes; "
            "give an export"
        ),
    )


def _closing(store: LedgerStore, height: int) -> tuple[msgspec.Raw, ...]:
    """Return the headers of the closing blocks that finalize a block, if it ends an epoch; mostly none."""
    found = tuple(proposal.header for proposal in store.closing(height))
    ensure(
        len(found) <= MAX_CLOSING,
        UsageError(f"{len(found)} closing blocks end the epoch of block {height}; a proof has room for {MAX_CLOSING}"),
    )
    return found


@contextlib.contextmanager
def _damage(store: LedgerStore) -> Iterator[None]:
    """Turn what is not the form of a ledger into a StorageError: it comes from our own disk."""
    try:
        yield
    except PeerError as error:
        raise StorageError(f"{store.path} is damaged ({error}); delete the file and sync again") from error


def _block(store: LedgerStore, height: int) -> BlockRow:
    row = store.block(height)
    if row is None:
        raise StorageError(f"{store.path} lacks block {height}; delete the file and sync again")
    return row


def _blocks(store: LedgerStore, height: int, count: int) -> list[BlockRow]:
    return store.blocks_from(height, count) if count else []


def _checked(store: LedgerStore, proof: AnyProof, height: int) -> bytes:
    """Return the proof's bytes; nothing is handed out that others would refuse."""
    data = to_bytes(proof)
    _check_room(MAX_PROOF_BYTES + len(END) - len(data), height)
    verdict = check(data, store.rules.network_id(proof.genesis), rules=store.rules)
    ensure(
        verdict.holds,
        StorageError(f"{store.path} is damaged ({verdict.steps[-1].detail}); delete the file and sync again"),
    )
    return data
