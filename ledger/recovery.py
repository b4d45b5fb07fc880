"""What a ledger file must show before a node goes on with it.

Rules kept here:
1. The head's row says what its header says, and a quorum of its epoch's set finalized it.  (That the records hash to
   its state root, the store checks.)
2. The seal, written by the same transaction, covers the head, the own votes and what is pruned: pages of different
   moments, or a vote that is gone, are noticed.  SQLite has no checksums of its own in the database file.
3. Candidates and evidence carry signatures, which are checked again.
Everything here raises PeerError, as for bytes of a stranger: a damaged disk is no better than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gdf_market.codec import decode, digest
from gdf_market.errors import MalformedError, ensure
from gdf_market.messages import Evidence, open_entry
from ledger import wire
from ledger.block import FINAL, Certificate, Header, Proposal, block_hash, open_block, open_header, verify_certificate
from ledger.epochs import Epoch
from ledger.tables import BlockRow


def seal(head: str, oldest: bytes, votes: Iterable[bytes]) -> bytes:
    """Return the value of ``meta.seal``: the head's hash ("" before the first block), and a digest of all."""
    return f"{head}/{digest('gdf/seal', head.encode(), oldest, *votes).hex()}".encode()


def head_of(value: bytes) -> str:
    """Return the head's hash that a seal names; "" before the first block."""
    return value.partition(b"/")[0].decode(errors="replace")


def check_seal(value: bytes | None, head: str, oldest: bytes, votes: Sequence[bytes]) -> None:
    """Raise MalformedError unless head, oldest height and votes (by epoch, slot and kind) are what was sealed."""
    ensure(
        value == seal(head, oldest, votes),
        MalformedError(f"its head {head[:16] or 'at the genesis'} and its {len(votes)} votes are not of one moment"),
    )


def open_head(
    row: BlockRow, closing: Sequence[Proposal], epoch: int, validators: Sequence[str], network: str
) -> Header:
    """Return the header of the last finalized block; raises PeerError unless row, header and certificate agree."""
    header = open_header(row.header, network)
    ensure(
        (row.hash, row.height, row.slot, row.time_ms, row.state_root, row.proposer, row.entry_count)
        == (
            *(block_hash(row.header), header.height, header.slot, header.time_ms),
            *(header.state_root, header.proposer, header.entry_count),
        ),
        MalformedError(f"the row of block {row.height} does not say what its header says"),
    )
    certificate = decode(row.certificate, Certificate)
    last = bytes(closing[-1].header) if closing else row.header
    ensure(
        (certificate.kind, certificate.hash) == (FINAL, block_hash(last)),
        MalformedError(f"the certificate of block {row.height} is of {certificate.hash}"),
    )
    verify_certificate(certificate, network, validators, epoch)
    return header


def check_candidate(raw: bytes, epoch: Epoch, network: str) -> None:
    """Raise PeerError unless a stored candidate is a signed block or a certificate of the epoch under way."""
    message = wire.read(raw)
    if isinstance(message, Certificate):
        verify_certificate(message, network, epoch.validators, epoch.number)
        return
    ensure(isinstance(message, Proposal), MalformedError(f"a {type(message).__name__} is stored as a candidate"))
    assert isinstance(message, Proposal)
    open_block(message, network)


def check_evidence(raw: bytes, network: str) -> None:
    """Raise PeerError unless a stored accusation is a signed entry of evidence."""
    body = open_entry(raw, network).body
    ensure(isinstance(body, Evidence), MalformedError(f"a {type(body).__name__} is stored as evidence"))
