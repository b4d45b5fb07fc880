"""Proofs that need no database: an entry is final, or one block is the ancestor of a certified one (docs/proofs.md).

Rules kept here:
1. A proof is one canonical record in a file of bounded size; every byte of it is covered by a hash or a signature.
2. The reader brings the network id; the genesis in the proof must hash to it, and names the first validators.  Links
   lead from set to set (ledger/links.py), one for each epoch before the certified block's.
3. A finalize certificate by a quorum of that epoch's set covers the last header; each header covers the one before by
   its hash; the first covers the entry by the RFC 9162 path to its root of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from contracts.records import Genesis
from gdf_market import identity, merkle
from gdf_market.codec import Hash, Record, Signature, UInt, decode, encode
from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.messages import Entry, open_entry
from ledger.block import Certificate, Header, open_header, quorum_size
from ledger.epochs import epoch_of
from ledger.limits import MAX_BLOCK_ENTRIES
from ledger.links import Link, Place, SetChain, check_final, open_headers
from ledger.rules import MARKET, Rules

MAX_DESCENDANTS = 256  # headers between an entry's block and the certified block
MAX_HEADERS = 2_048  # headers of one proof about two heads
MAX_LINKS = 10_000  # epochs before the certified block's
MAX_PATH = (MAX_BLOCK_ENTRIES - 1).bit_length()
# 10,000 links of four validators (1.4 KB each), or 800 of a hundred that all change (18 KB), beside the widest
# genesis (200 KB) and a certificate, or 2,048 headers of at most 1 KB
MAX_PROOF_BYTES = 16 << 20
END = b"\n"


class Proof(Record, frozen=True, kw_only=True, tag_field="format"):
    """What both kinds of proofs carry; ``certificate`` finalizes the last of their headers."""

    genesis: Genesis
    links: Annotated[tuple[Link, ...], msgspec.Meta(max_length=MAX_LINKS)]  # of the epochs before that header's
    certificate: Certificate


class EntryProof(Proof, frozen=True, kw_only=True, tag="gdf-entry-proof/2"):
    """An entry is leaf ``position`` of a final block; ``descendants`` lead from there to the certified block.

    All of them are of one epoch; the last may be closing blocks.
    """

    entry: msgspec.Raw  # the envelope as signed
    position: UInt
    path: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=MAX_PATH)]
    header: msgspec.Raw
    sig: Signature  # the proposer's over the header
    descendants: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_DESCENDANTS)]


class HeadProof(Proof, frozen=True, kw_only=True, tag="gdf-head-proof/2"):
    """Consecutive headers from the older block to the certified one; the last may be closing blocks."""

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
    last: Header | None = None  # the certified block; it may be a closing block
    certified_height: int = 0  # of the last block of the ledger that the certificate makes final
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
        self._sets: SetChain
        self._roots: list[str] = []  # by epoch: the hash on which its first block builds
        self._places: list[Place] = []
        self._entry: Entry | None = None

    def run(self) -> Verdict:
        steps: list[Step] = []
        for name, step in self._steps():
            try:
                steps.append(Step(name, True, step()))
            except PeerError as error:
                steps.append(Step(name, False, str(error)))
                return Verdict(tuple(steps))
        first, last = self._places[0].header, self._places[-1].header
        return Verdict(tuple(steps), first, last, min(last.height, self._sets.epoch.last), self._entry)

    def _steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "file", self._file
        yield "genesis", self._genesis
        yield "validators", self._validators
        yield "epochs", self._links
        yield "headers", self._headers
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
        self._sets = SetChain(self._proof.genesis, self._network)
        return f"the genesis names {_quorum(self._sets.epoch.validators)}"

    def _links(self) -> str:
        self._roots.append(self._sets.root)
        changed = 0
        for number, link in enumerate(self._proof.links):
            try:
                self._sets.take(link)
            except PeerError as error:
                raise MalformedError(f"the end of epoch {number}: {error}") from error
            self._roots.append(self._sets.root)
            changed += bool(link.validators)
        epoch = self._sets.epoch
        if not epoch.number:
            return "the block is of epoch 0, the set is the genesis's"
        return (
            f"{epoch.number} epochs ended by certified blocks, the set changed {changed} times; "
            f"epoch {epoch.number} has {_quorum(epoch.validators)}"
        )

    def _headers(self) -> str:
        proof, epoch = self._proof, self._sets.epoch
        if isinstance(proof, EntryProof):
            raws = (proof.header, *proof.descendants)
            self._places = open_headers(raws, epoch, self._network, self._sets.root)
        else:
            self._places = self._span(proof.headers)
        first, last = self._places[0].header, self._places[-1].header
        after = f" and the {len(self._places) - 1} after it, to {last.height}" if last != first else ""
        return f"block {first.height}{after}"

    def _span(self, raws: Sequence[msgspec.Raw]) -> list[Place]:
        """Open consecutive headers epoch by epoch; each epoch ends with the boundary block of its link."""
        height = open_header(bytes(raws[0]), self._network).height
        ensure(height >= 1, MalformedError("heights begin with 1"))
        genesis, places, last = self._proof.genesis, list[Place](), self._sets.epoch
        for number in range((height - 1) // genesis.staking.epoch_blocks, last.number):
            epoch = epoch_of(genesis, number, ())
            count = epoch.last - height + 1
            places += open_headers(raws[:count], epoch, self._network, self._roots[number])
            ensure(
                places[-1].hash == self._roots[number + 1],
                MalformedError(f"block {places[-1].header.height} is not the one that ended epoch {number}"),
            )
            raws, height = raws[count:], epoch.last + 1
            ensure(len(raws) > 0, MalformedError(f"the headers end before epoch {number + 1}"))
        return places + open_headers(raws, last, self._network, self._sets.root)

    def _certificate(self) -> str:
        certificate, place, epoch = self._proof.certificate, self._places[-1], self._sets.epoch
        check_final(certificate, place, epoch, self._network)
        signed = f"signed by {len(certificate.signers)} of {len(epoch.validators)} validators"
        if place.header.height > epoch.last:
            return f"block {epoch.last}, the last of epoch {epoch.number}, is final by a closing block {signed}"
        return f"block {place.header.height} is final, {signed}"

    def _proposer(self) -> str:
        assert isinstance(self._proof, EntryProof)
        header = self._places[0].header
        leader = self._sets.epoch.leader(header.slot)
        ensure(
            header.proposer == leader,
            MalformedError(f"slot {header.slot} belongs to {leader}, not to {header.proposer}"),
        )
        signature = bytes.fromhex(self._proof.sig)
        identity.verify(self._network, "block", leader, bytes(self._proof.header), signature)
        return f"block {header.height} is signed by {leader}"

    def _inclusion(self) -> str:
        proof, header = self._proof, self._places[0].header
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


def _quorum(validators: Sequence[str]) -> str:
    return f"{len(validators)} validators, a quorum is {quorum_size(len(validators))}"
