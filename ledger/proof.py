"""Proofs that need no database: an entry is final, or one block is the ancestor of a certified one (docs/proofs.md).

Rules kept here:
1. A proof is one canonical record in a file of bounded size; every byte of it is covered by a hash or a signature.
2. The reader brings the network id; the genesis in the proof must hash to it, and names the validators (epoch 0).
3. A finalize certificate by a quorum of them covers the last header; each header covers the one before by its hash;
   the first covers the entry by the RFC 9162 path to its root of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec

from contracts.records import Genesis
from gdf_market import identity, merkle
from gdf_market.codec import Hash, Record, Signature, UInt, decode, encode
from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.messages import Entry, open_entry
from ledger.block import FINAL, Certificate, Header, block_hash, open_header, quorum_size, verify_certificate
from ledger.limits import MAX_BLOCK_ENTRIES
from ledger.rules import MARKET, Rules

EPOCH = 0
MAX_DESCENDANTS = 256  # headers between an entry's block and the certified block
MAX_HEADERS = 2_048  # headers of one proof about two heads
MAX_PATH = (MAX_BLOCK_ENTRIES - 1).bit_length()
MAX_PROOF_BYTES = 4 << 20  # the widest genesis (200 KB), 2048 headers of at most 1 KB and a certificate fit
END = b"\n"


class Proof(Record, frozen=True, kw_only=True, tag_field="format"):
    """What both kinds of proofs carry; ``certificate`` finalizes the last of their headers."""

    genesis: Genesis
    certificate: Certificate


class EntryProof(Proof, frozen=True, kw_only=True, tag="gdf-entry-proof/1"):
    """An entry is leaf ``position`` of a final block; ``descendants`` lead from there to the certified block."""

    entry: msgspec.Raw  # the envelope as signed
    position: UInt
    path: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MAX_PATH)]
    header: msgspec.Raw
    sig: Signature  # the proposer's over the header
    descendants: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_DESCENDANTS)]


class HeadProof(Proof, frozen=True, kw_only=True, tag="gdf-head-proof/1"):
    """Consecutive headers from the older block to the certified one."""

    headers: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(min_length=1, max_length=MAX_HEADERS)]


AnyProof = EntryProof | HeadProof


@dataclass(frozen=True)
class Step:
    """One step of a check; ``detail`` says what was found, or why it fails."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The steps up to the first that fails; what is proven only if none does."""

    steps: tuple[Step, ...]
    first: Header | None = None  # the entry's block, or the older head
    last: Header | None = None  # the certified block
    entry: Entry | None = None

    @property
    def holds(self) -> bool:
        """Whether every step was ok."""
        return all(step.ok for step in self.steps)


def to_bytes(proof: AnyProof) -> bytes:
    """Return the content of a proof's file."""
    return encode(proof) + END


def read(data: bytes) -> AnyProof:
    """Decode a proof's file; raises OversizedError or MalformedError."""
    ensure(data.endswith(END), MalformedError("the file does not end as a proof does; it is cut off or altered"))
    proof: AnyProof = decode(data[: -len(END)], AnyProof, max_bytes=MAX_PROOF_BYTES)  # type: ignore[arg-type]
    return proof


def check(data: bytes, network: str, *, rules: Rules = MARKET) -> Verdict:
    """Check a proof's file against a network id; bad bytes make a failing step, never an exception."""
    return _Check(data, network, rules).run()


class _Check:
    """The steps in order, and what the ones before have found."""

    def __init__(self, data: bytes, network: str, rules: Rules) -> None:
        self._data = data
        self._network = network
        self._rules = rules
        self._proof: AnyProof
        self._headers: list[Header] = []
        self._last_hash = ""
        self._entry: Entry | None = None

    def run(self) -> Verdict:
        steps: list[Step] = []
        for name, step in self._steps():
            try:
                steps.append(Step(name, True, step()))
            except PeerError as error:
                steps.append(Step(name, False, str(error)))
                return Verdict(tuple(steps))
        return Verdict(tuple(steps), self._headers[0], self._headers[-1], self._entry)

    def _steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "file", self._file
        yield "genesis", self._genesis
        yield "validators", self._validators
        yield "headers", self._chain
        yield "certificate", self._certificate
        if isinstance(self._proof, EntryProof):
            yield "proposer", self._proposer
            yield "inclusion", self._inclusion
            yield "entry", self._author

    def _file(self) -> str:
        self._proof = read(self._data)
        what = "an entry" if isinstance(self._proof, EntryProof) else "a head and its ancestor"
        return f"proof of {what}, {len(self._data)} bytes"

    def _genesis(self) -> str:
        found = self._rules.network_id(self._proof.genesis)
        ensure(found == self._network, MalformedError(f"the proof is of network {found}, not of {self._network}"))
        return f"network {self._proof.genesis.name} {found}"

    def _validators(self) -> str:
        validators = self._proof.genesis.validators
        for account in validators:
            identity.public_key(account)
        ensure(len(set(validators)) == len(validators), MalformedError("the genesis lists one validator twice"))
        return f"{len(validators)} validators, a quorum is {quorum_size(len(validators))}"

    def _chain(self) -> str:
        raws = _headers_of(self._proof)
        for raw in raws:
            header = open_header(raw, self._network)
            _check_follows(header, self._headers[-1] if self._headers else None, self._last_hash)
            self._headers.append(header)
            self._last_hash = block_hash(raw)
        first, last = self._headers[0], self._headers[-1]
        return f"block {first.height}" + (
            f" and the {len(raws) - 1} after it, to {last.height}" if last != first else ""
        )

    def _certificate(self) -> str:
        certificate, last = self._proof.certificate, self._headers[-1]
        ensure(certificate.kind == FINAL, MalformedError(f"a {certificate.kind} certificate finalizes nothing"))
        ensure(
            (certificate.slot, certificate.hash) == (last.slot, self._last_hash),
            MalformedError(f"the certificate is of block {certificate.hash}, not of {self._last_hash}"),
        )
        validators = self._proof.genesis.validators
        verify_certificate(certificate, self._network, validators, EPOCH)
        return f"block {last.height} is final, signed by {len(certificate.signers)} of {len(validators)} validators"

    def _proposer(self) -> str:
        assert isinstance(self._proof, EntryProof)
        header, validators = self._headers[0], self._proof.genesis.validators
        leader = validators[header.slot % len(validators)]
        ensure(
            header.proposer == leader,
            MalformedError(f"slot {header.slot} belongs to {leader}, not to {header.proposer}"),
        )
        signature = bytes.fromhex(self._proof.sig)
        identity.verify(self._network, "block", leader, bytes(self._proof.header), signature)
        return f"block {header.height} is signed by {leader}"

    def _inclusion(self) -> str:
        proof, header = self._proof, self._headers[0]
        assert isinstance(proof, EntryProof)
        path, root = [bytes.fromhex(item) for item in proof.path], bytes.fromhex(header.entries_root)
        merkle.verify_inclusion(bytes(proof.entry), proof.position, header.entry_count, path, root)
        return f"entry {proof.position + 1} of {header.entry_count} in block {header.height}"

    def _author(self) -> str:
        assert isinstance(self._proof, EntryProof)
        self._entry = entry = open_entry(bytes(self._proof.entry), self._network)
        return f"{kind_of(entry)} {entry.id} is signed by {entry.body.author}"


def kind_of(entry: Entry) -> str:
    """Return the kind of an entry's body, as it is written in the entry."""
    return str(type(entry.body).__struct_config__.tag)


def _headers_of(proof: AnyProof) -> list[bytes]:
    raws = (proof.header, *proof.descendants) if isinstance(proof, EntryProof) else proof.headers
    return [bytes(raw) for raw in raws]


def _check_follows(header: Header, parent: Header | None, parent_hash: str) -> None:
    """Raise MalformedError unless a header follows the one before it (None: it is the first of the proof)."""
    ensure(header.epoch == EPOCH, MalformedError(f"block of epoch {header.epoch}; this is epoch {EPOCH}"))
    ensure(
        header.height >= 1 and (header.height == 1) == (header.parent == header.network),
        MalformedError(f"block {header.height} does not say where the chain begins"),
    )
    if parent is None:
        return
    ensure(
        (header.parent, header.parent_slot, header.height) == (parent_hash, parent.slot, parent.height + 1)
        and header.slot > parent.slot
        and header.time_ms > parent.time_ms,
        MalformedError(f"block {header.height} of slot {header.slot} does not follow block {parent.height}"),
    )
