"""Proofs hold for everything in a ledger, and no altered, exchanged or forged part of one is accepted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from contracts.records import Allocation, Genesis
from contracts.state import network_id
from gdf_market import merkle
from gdf_market.codec import MAX_MESSAGE_BYTES, decode, encode
from gdf_market.errors import StorageError, UsageError
from gdf_market.identity import Identity
from gdf_market.node.invite import make_invite
from gdf_market.units import MAX_INT
from ledger import prove
from ledger.block import (
    FINAL,
    NOTAR,
    Certificate,
    Header,
    block_hash,
    cast,
    open_header,
    quorum_size,
    seal_block,
    set_hash,
)
from ledger.effects import Prune
from ledger.limits import MAX_VALIDATORS
from ledger.links import MAX_CLOSING, Link
from ledger.proof import (
    MAX_DESCENDANTS,
    MAX_HEADERS,
    MAX_LINKS,
    MAX_PATH,
    MAX_PROOF_BYTES,
    EntryProof,
    HeadProof,
    Verdict,
    check,
    read,
    to_bytes,
)
from ledger.prove import prove_entry, prove_heads
from tests.ledger_kit import KEYS, Cli, Maker, make_epochs, make_folder, make_ledger
from tests.simulator import key, make_genesis

HEX = b"0123456789abcdef"


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return make_epochs(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


def entry_at(maker: Maker, height: int, position: int = 0) -> str:
    return maker.store.block_entries(height)[position].id


def entry_proof(maker: Maker, height: int = 2, position: int = 3) -> EntryProof:
    proof = read(prove_entry(maker.store, entry_at(maker, height, position)))
    assert isinstance(proof, EntryProof)
    return proof


def head_proof(maker: Maker, older: int, newer: int) -> HeadProof:
    proof = read(prove_heads(maker.store, older, newer))
    assert isinstance(proof, HeadProof)
    return proof


def failing(verdict: Verdict) -> str:
    """Return the name of the step that fails; it is the last, nothing counts as proven."""
    assert not verdict.holds
    assert [step.ok for step in verdict.steps] == [True] * (len(verdict.steps) - 1) + [False]
    assert (verdict.first, verdict.last, verdict.certified_height, verdict.entry) == (None, None, 0, None)
    return verdict.steps[-1].name


def refuse(maker: Maker, proof: EntryProof | HeadProof, **changes: object) -> str:
    return failing(check(to_bytes(msgspec.structs.replace(proof, **changes)), maker.network))


def signed(keys: list[Identity], network: str, slot: int, hash_: str, signers: list[int]) -> Certificate:
    votes = [cast(each, network, 0, FINAL, slot, hash_) for each in keys]
    return Certificate(
        epoch=0, kind=FINAL, slot=slot, hash=hash_, signers=tuple(signers), sigs=tuple(vote.sig for vote in votes)
    )


# ---- what is true is proven


def test_every_entry_of_the_ledger_is_proven(maker: Maker) -> None:
    rows = maker.store.entries()
    assert len(rows) == 12
    for row in rows:
        verdict = check(prove_entry(maker.store, row.id), maker.network)
        assert verdict.holds
        assert verdict.first is not None
        assert verdict.last is not None
        assert verdict.entry is not None
        assert (verdict.entry.id, verdict.entry.raw, verdict.first.height) == (row.id, row.raw, row.height)
        assert verdict.last.height == maker.store.block(row.height).certified_height
        assert [step.name for step in verdict.steps] == [
            *("file", "genesis", "validators", "epochs", "headers", "certificate"),
            *("proposer", "inclusion", "entry"),
        ]


def test_a_block_without_its_own_certificate_is_proven_by_a_descendant(maker: Maker) -> None:
    proof = entry_proof(maker, 5, 1)
    assert len(proof.descendants) == 3
    assert len(to_bytes(proof)) < 6_000
    assert len(to_bytes(entry_proof(maker))) < 4_000


@pytest.mark.parametrize(("older", "newer", "certified"), [(1, 12, 12), (3, 3, 3), (2, 6, 8), (5, 5, 8), (12, 12, 12)])
def test_heads(maker: Maker, older: int, newer: int, certified: int) -> None:
    verdict = check(prove_heads(maker.store, older, newer), maker.network)
    assert verdict.holds
    assert verdict.entry is None
    assert (verdict.first.height, verdict.last.height) == (older, certified)


# ---- nothing else is


def altered_bytes(data: bytes) -> Iterator[bytes]:
    """Yield, for every byte, the file with a bit of it flipped, or (what stays well-formed) another hex digit there."""
    for at, byte in enumerate(data):
        other = HEX[(HEX.index(byte) + 1) % 10] if byte in HEX else byte ^ 1
        yield data[:at] + bytes([other]) + data[at + 1 :]


def other_alterations(data: bytes) -> Iterator[bytes]:
    """Yield, for every byte, the file with another bit of it flipped (0x20: the other case), and without the byte."""
    for at, byte in enumerate(data):
        for other in (byte ^ 1, byte ^ 0x20):
            yield data[:at] + bytes([other]) + data[at + 1 :]
        yield data[:at] + data[at + 1 :]
    yield data + b"\n"
    yield b" " + data


def refused_everywhere(data: bytes, network: str, alterations: Callable[[bytes], Iterator[bytes]]) -> set[str]:
    assert check(data, network).holds
    return {failing(check(altered, network)) for altered in alterations(data)}


def test_any_altered_byte_of_an_entry_proof_is_refused(maker: Maker) -> None:
    data = prove_entry(maker.store, entry_at(maker, 2, 3))
    steps = refused_everywhere(data, maker.network, altered_bytes)
    assert steps == {"file", "genesis", "headers", "certificate", "proposer", "inclusion"}
    assert refused_everywhere(data, maker.network, other_alterations) >= {"file", "inclusion"}


def test_any_altered_byte_of_a_proof_by_descendants_is_refused(maker: Maker) -> None:
    data = prove_entry(maker.store, entry_at(maker, 7, 1))
    assert refused_everywhere(data, maker.network, altered_bytes) >= {"headers", "certificate"}


def test_any_altered_byte_of_a_head_proof_is_refused(maker: Maker) -> None:
    steps = refused_everywhere(prove_heads(maker.store, 3, 4), maker.network, altered_bytes)
    assert steps == {"file", "genesis", "headers", "certificate"}


def test_random_damage_is_refused(maker: Maker) -> None:
    chance = random.Random(7)
    data = prove_entry(maker.store, entry_at(maker, 5))
    for _ in range(300):
        altered = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            start, length = chance.randrange(len(data)), chance.randint(0, 40)
            altered[start : start + length] = chance.choice(
                (b"", chance.randbytes(length), data[chance.randrange(len(data)) :][:length])
            )
        if bytes(altered) != data:
            failing(check(bytes(altered), maker.network))
    for nonsense in (b"", b"\n", b"{}\n", b"null\n", b"[" * 50_000 + b"\n", b"\xff\n", data[:-1], data[:-1] + b"\r\n"):
        assert failing(check(nonsense, maker.network)) == "file"


@pytest.mark.parametrize(("p", "q"), [((2, 3), (2, 1)), ((2, 3), (5, 1)), ((5, 0), (7, 0)), ((1, 0), (10, 0))])
def test_no_field_of_another_proof_fits(maker: Maker, p: tuple[int, int], q: tuple[int, int]) -> None:
    ours, theirs = entry_proof(maker, *p), entry_proof(maker, *q)
    exchanged = 0
    for name in EntryProof.__struct_fields__:
        if getattr(ours, name) != getattr(theirs, name):
            assert refuse(maker, ours, **{name: getattr(theirs, name)}) in (
                *("headers", "certificate", "proposer", "inclusion"),
            )
            exchanged += 1
    assert exchanged >= 3


def test_no_field_of_another_head_proof_fits(maker: Maker) -> None:
    ours, theirs = head_proof(maker, 1, 4), head_proof(maker, 2, 10)
    assert refuse(maker, ours, headers=theirs.headers) == "certificate"
    assert refuse(maker, ours, certificate=theirs.certificate) == "certificate"


@pytest.mark.parametrize(
    "changed",
    [
        lambda headers: headers[:-1],
        lambda headers: headers[:2] + headers[3:],
        lambda headers: headers[::-1],
        lambda headers: (*headers, headers[-1]),
        lambda headers: headers + headers,
    ],
)
def test_headers_in_between_are_all_there_in_order(
    maker: Maker, changed: Callable[[tuple[msgspec.Raw, ...]], tuple[msgspec.Raw, ...]]
) -> None:
    proof = head_proof(maker, 1, 6)
    assert refuse(maker, proof, headers=changed(proof.headers)) in ("headers", "certificate")


def test_a_quorum_of_distinct_validators_signs_the_certificate(maker: Maker) -> None:
    proof = entry_proof(maker)
    slot, hash_ = proof.certificate.slot, proof.certificate.hash
    a, b, c, d, stranger = (key(number) for number in (1, 2, 3, 4, 99))
    for keys, signers in (([a, b, c], [0, 1, 2]), ([b, c, d], [1, 2, 3]), ([a, b, c, d], [0, 1, 2, 3])):
        good = signed(keys, maker.network, slot, hash_, signers)
        assert check(to_bytes(msgspec.structs.replace(proof, certificate=good)), maker.network).holds
    for keys, signers in (
        ([a, b], [0, 1]),  # one less than a quorum
        ([], []),
        ([a, a, b], [0, 0, 1]),  # one votes twice
        ([a, b, b], [0, 1, 1]),
        ([a, b, b], [0, 1, 2]),  # ... and takes another's place
        ([a, b, stranger], [0, 1, 2]),  # no validator
        ([a, b, stranger], [0, 1, 4]),  # nobody has this position
        ([b, a, c], [1, 0, 2]),  # not in order: a second encoding of the same certificate
        ([a, b, c], [0, 1, 3]),
        ([a, b, c], [0, 1]),
        ([a, b], [0, 1, 2]),
    ):
        assert refuse(maker, proof, certificate=signed(keys, maker.network, slot, hash_, signers)) == "certificate"


def test_only_a_finalize_certificate_of_this_network_and_block_counts(maker: Maker) -> None:
    proof = entry_proof(maker)
    certificate = proof.certificate
    other = entry_proof(maker, 10, 0)
    keys = [key(number) for number in (1, 2, 3)]

    def votes(network: str, epoch: int, kind: str, slot: int, hash_: str) -> Certificate:
        sigs = tuple(cast(each, network, epoch, kind, slot, hash_).sig for each in keys)
        return Certificate(epoch=epoch, kind=kind, slot=slot, hash=hash_, signers=(0, 1, 2), sigs=sigs)

    slot, hash_ = certificate.slot, certificate.hash
    assert votes(maker.network, 0, FINAL, slot, hash_) == certificate
    for wrong in (
        votes(maker.network, 0, NOTAR, slot, hash_),
        votes("0" * 64, 0, FINAL, slot, hash_),
        votes(maker.network, 1, FINAL, slot, hash_),
        votes(maker.network, 0, FINAL, slot + 4, hash_),
        votes(maker.network, 0, FINAL, slot, other.certificate.hash),
        msgspec.structs.replace(certificate, hash=other.certificate.hash),
        other.certificate,
    ):
        assert refuse(maker, proof, certificate=wrong) == "certificate"


def test_a_proposer_cannot_prove_a_block_that_nobody_certified(maker: Maker) -> None:
    """The slot's leader signs a second block with another entry; only the certificate tells which is final."""
    proof = entry_proof(maker, 1, 0)
    header = open_header(bytes(proof.header), maker.network)
    leader = maker.validator(header.slot % 4)
    forged = maker.transfers(1, amount=900)[0]
    raws = (forged.raw,)
    twin = seal_block(leader, msgspec.structs.replace(header, entries_root=merkle.root(raws).hex()), raws)
    changes = {"entry": msgspec.Raw(forged.raw), "header": msgspec.Raw(twin.header_bytes), "sig": twin.signature}
    assert refuse(maker, proof, **changes) == "certificate"
    certified = signed([leader], maker.network, header.slot, twin.hash, [header.slot % 4])
    assert refuse(maker, proof, **changes, certificate=certified) == "certificate"
    quorum = signed([key(n) for n in (1, 2, 3)], maker.network, header.slot, twin.hash, [0, 1, 2])
    assert check(to_bytes(msgspec.structs.replace(proof, **changes, certificate=quorum)), maker.network).holds


def test_even_a_quorum_cannot_sign_for_an_author_or_another_leader(maker: Maker) -> None:
    proof = entry_proof(maker, 1, 0)
    header = open_header(bytes(proof.header), maker.network)
    keys = [key(number) for number in (1, 2, 3)]

    def final(proposer: Identity, raw: bytes, signer: Identity | None = None) -> Verdict:
        changed = msgspec.structs.replace(
            header, proposer=proposer.account, entries_root=merkle.root([raw]).hex(), entry_count=1
        )
        block = seal_block(signer or proposer, changed, [raw])
        changes = {"entry": msgspec.Raw(raw), "header": msgspec.Raw(block.header_bytes), "sig": block.signature}
        certificate = signed(keys, maker.network, header.slot, block.hash, [0, 1, 2])
        return check(to_bytes(msgspec.structs.replace(proof, **changes, certificate=certificate)), maker.network)

    leader = maker.validator(header.slot % 4)
    honest = bytes(proof.entry)
    assert final(leader, honest).holds
    assert failing(final(leader, honest.replace(b'"amount":5', b'"amount":6'))) == "entry"
    assert failing(final(leader, honest[:-1] + b" }")) == "entry"
    another = maker.validator((header.slot + 1) % 4)
    for proposer, signer in ((another, another), (another, leader), (leader, another)):
        assert failing(final(proposer, honest, signer)) == "proposer"
    foundling = encode(msgspec.structs.replace(header, parent="0" * 64))
    assert refuse(maker, proof, header=msgspec.Raw(foundling)) == "headers"  # the first block builds on the genesis


def test_another_networks_genesis_is_refused(maker: Maker, tmp_path: Path) -> None:
    proof = entry_proof(maker)
    renamed = msgspec.structs.replace(maker.genesis, name="other")
    for genesis in (renamed, make_genesis(5), make_genesis(1)):
        assert refuse(maker, proof, genesis=genesis) == "genesis"
    # a whole valid proof of a network with the same validators
    other = make_ledger(tmp_path / "other.sqlite", renamed)
    data = prove_entry(other.store, entry_at(other, 2))
    assert check(data, other.network).holds
    assert failing(check(data, maker.network)) == "genesis"
    # ... and its parts under our genesis
    assert refuse(maker, entry_proof(other), genesis=maker.genesis) == "headers"


def test_a_genesis_that_counts_one_validator_twice_gives_no_quorum(maker: Maker) -> None:
    a = maker.genesis.validators[0]
    doubled = msgspec.structs.replace(maker.genesis, validators=(a, a, a))
    proof = msgspec.structs.replace(entry_proof(maker), genesis=doubled)
    assert failing(check(to_bytes(proof), network_id(doubled))) == "validators"


# ---- bounds


def test_lists_are_bounded(maker: Maker) -> None:
    entry, heads = entry_proof(maker), head_proof(maker, 1, 4)
    assert refuse(maker, entry, descendants=(entry.header,) * MAX_DESCENDANTS) == "headers"
    assert refuse(maker, entry, descendants=(entry.header,) * (MAX_DESCENDANTS + 1)) == "file"
    assert refuse(maker, entry, path=("0" * 64,) * MAX_PATH) == "inclusion"
    assert refuse(maker, entry, path=("0" * 64,) * (MAX_PATH + 1)) == "file"
    assert refuse(maker, heads, headers=(heads.headers[0],) * MAX_HEADERS) == "headers"
    assert refuse(maker, heads, headers=(heads.headers[0],) * (MAX_HEADERS + 1)) == "file"
    assert refuse(maker, heads, headers=()) == "file"
    link = Link(header=entry.header, closing=(), certificate=entry.certificate, validators=())
    for links, step in (((link,) * 2, "epochs"), ((link,) * MAX_LINKS, "epochs"), ((link,) * (MAX_LINKS + 1), "file")):
        assert refuse(maker, entry, links=links) == step
    for name, limit, item in (("closing", MAX_CLOSING, entry.header), ("validators", MAX_VALIDATORS, key(1).account)):
        for count, step in ((limit, "epochs"), (limit + 1, "file")):
            wide = msgspec.structs.replace(link, **{name: (item,) * count})
            assert refuse(maker, entry, links=(wide,)) == step
    verdict = check(b" " * (MAX_PROOF_BYTES + 1) + b"\n", maker.network)
    assert failing(verdict) == "file"
    assert "at most" in verdict.steps[-1].detail


def test_the_largest_honest_proof_is_below_the_limit(maker: Maker) -> None:
    accounts = [key(1 + number).account for number in range(1_000)]
    genesis = Genesis(
        name="n" * 40,
        test_network=False,
        time_ms=MAX_INT,
        allocations=tuple(Allocation(account=each, balance=MAX_INT, stake=MAX_INT) for each in accounts),
        validators=tuple(accounts[:MAX_VALIDATORS]),
        block_ms=MAX_INT,
        heartbeat_ms=MAX_INT,
        audit_bond=MAX_INT,
        max_void_rounds=MAX_INT,
    )
    header = open_header(bytes(entry_proof(maker).header), maker.network)
    numbers = ("height", "slot", "epoch", "parent_slot", "time_ms", "entry_count")
    widest = encode(msgspec.structs.replace(header, **dict.fromkeys(numbers, MAX_INT)))
    quorum = quorum_size(MAX_VALIDATORS)
    certificate = msgspec.structs.replace(
        entry_proof(maker).certificate, signers=tuple(range(quorum)), sigs=("0" * 128,) * quorum
    )
    # every epoch ends by a closing block and changes the whole set
    link = Link(
        header=msgspec.Raw(widest),
        closing=(msgspec.Raw(widest),),
        certificate=certificate,
        validators=tuple(accounts[-MAX_VALIDATORS:]),
    )
    proof = HeadProof(
        genesis=genesis, links=(link,) * 800, certificate=certificate, headers=(msgspec.Raw(widest),) * MAX_HEADERS
    )
    assert MAX_MESSAGE_BYTES < len(to_bytes(proof)) <= MAX_PROOF_BYTES
    assert read(to_bytes(proof)) == proof
    # ... and of four validators, whose set changes every tenth epoch, all links fit
    few = msgspec.structs.replace(certificate, signers=(0, 1, 2), sigs=("0" * 128,) * 3)
    same = Link(header=msgspec.Raw(encode(header)), closing=(), certificate=few, validators=())
    changed = msgspec.structs.replace(same, validators=tuple(accounts[:4]))
    proof = msgspec.structs.replace(proof, links=((same,) * 9 + (changed,)) * (MAX_LINKS // 10), certificate=few)
    proof = msgspec.structs.replace(proof, headers=proof.headers[:500])
    assert 0.85 * MAX_PROOF_BYTES < len(to_bytes(proof)) <= MAX_PROOF_BYTES
    assert read(to_bytes(proof)) == proof


def test_what_cannot_be_proven_is_said(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no entry"):
        prove_entry(maker.store, "0" * 64)
    for older, newer, word in ((0, 3, "begin with 1"), (4, 3, "older height first"), (1, 13, "its head is block 12")):
        with pytest.raises(UsageError, match=word):
            prove_heads(maker.store, older, newer)
    monkeypatch.setattr(prove, "MAX_DESCENDANTS", 2)
    monkeypatch.setattr(prove, "MAX_HEADERS", 5)
    with pytest.raises(UsageError, match="more than 2 later"):
        prove_entry(maker.store, entry_at(maker, 5))
    with pytest.raises(UsageError, match="make several"):
        prove_heads(maker.store, 1, 6)


@pytest.mark.parametrize("statement", ["UPDATE entry SET position = 9", "UPDATE block SET certificate = '{}'"])
def test_a_damaged_ledger_gives_no_proof(tmp_path: Path, statement: str) -> None:
    maker = make_ledger(tmp_path / "ledger.sqlite")
    with maker.store._engine.begin() as connection:
        connection.exec_driver_sql(statement)
    with pytest.raises(StorageError, match="is damaged"):
        prove_entry(maker.store, entry_at(maker, 2))


# ---- validator sets that change


def final(epochs: Maker, epoch: int, accounts: Sequence[str], signers: Sequence[int], raw: bytes) -> Certificate:
    """Return a certificate over a header by some of the keys of a set."""
    slot, hash_ = decode(raw, Header).slot, block_hash(raw)
    votes = [cast(KEYS[accounts[signer]], epochs.network, epoch, FINAL, slot, hash_) for signer in signers]
    return Certificate(
        epoch=epoch, kind=FINAL, slot=slot, hash=hash_, signers=tuple(signers), sigs=tuple(vote.sig for vote in votes)
    )


def with_link(proof: EntryProof, index: int, **changes: object) -> tuple[Link, ...]:
    links = list(proof.links)
    links[index] = msgspec.structs.replace(links[index], **changes)
    return tuple(links)


def set_of(epochs: Maker, epoch: int) -> tuple[str, ...]:
    return epochs.store.validators_at(epoch * 4 + 1)


def test_every_entry_is_proven_by_the_set_of_its_epoch(epochs: Maker) -> None:
    certified = {7: 8, 18: 19}
    for row in epochs.store.entries():
        data = prove_entry(epochs.store, row.id)
        verdict = check(data, epochs.network)
        assert verdict.holds
        assert (verdict.first.height, verdict.first.epoch) == (row.height, (row.height - 1) // 4)
        assert verdict.certified_height == certified.get(row.height, row.height)
        proof = read(data)
        assert len(proof.links) == verdict.first.epoch
        assert [len(link.closing) for link in proof.links] == [0, 2, 1, 0][: len(proof.links)]
        listed = [link.validators for link in proof.links]
        assert listed == [set_of(epochs, 1), set_of(epochs, 2), (), set_of(epochs, 4)][: len(listed)]


def test_an_entry_of_a_boundary_block_is_proven_by_closing_blocks(epochs: Maker) -> None:
    for height, descendants in ((7, 3), (8, 2)):
        proof = entry_proof(epochs, height, 0)
        assert len(proof.descendants) == descendants
        verdict = check(to_bytes(proof), epochs.network)
        assert (verdict.last.height, verdict.last.epoch, verdict.certified_height) == (10, 1, 8)
        assert "by a closing block signed by 4 of 5" in verdict.steps[5].detail


@pytest.mark.parametrize(
    ("older", "newer", "certified", "epoch"),
    [
        *[(1, 19, 19, 4), (4, 4, 4, 0), (4, 5, 5, 1), (5, 8, 8, 1), (8, 9, 9, 2), (8, 8, 8, 1), (3, 12, 12, 2)],
        *[(12, 13, 13, 3), (17, 18, 19, 4), (9, 9, 9, 2), (16, 17, 17, 4)],
    ],
)
def test_heads_of_different_epochs(epochs: Maker, older: int, newer: int, certified: int, epoch: int) -> None:
    data = prove_heads(epochs.store, older, newer)
    verdict = check(data, epochs.network)
    assert verdict.holds
    assert (verdict.first.height, verdict.last.epoch, verdict.certified_height) == (older, epoch, certified)
    assert len(read(data).links) == epoch


def test_any_altered_byte_of_a_proof_across_epochs_is_refused(epochs: Maker) -> None:
    data = prove_entry(epochs.store, entry_at(epochs, 5, 1))
    steps = refused_everywhere(data, epochs.network, altered_bytes)
    assert steps == {"file", "genesis", "epochs", "headers", "certificate", "proposer", "inclusion"}


@pytest.mark.parametrize("heads", [False, True])
def test_sampled_bytes_of_a_long_proof_are_refused(epochs: Maker, heads: bool) -> None:
    chance = random.Random(11)
    data = prove_heads(epochs.store, 2, 19) if heads else prove_entry(epochs.store, entry_at(epochs, 18, 2))
    assert len(data) > 12_000
    for _ in range(600):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        failing(check(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], epochs.network))
    for _ in range(200):
        start, length = chance.randrange(len(data)), chance.randint(1, 900)
        failing(check(data[:start] + data[start + length :], epochs.network))


def test_links_are_all_there_in_order(epochs: Maker) -> None:
    proof = entry_proof(epochs, 18, 0)
    links = proof.links
    for changed in (
        (),
        links[:-1],
        links[1:],
        (links[0], *links[2:]),
        (links[0], links[0], *links[1:]),
        (*links, links[-1]),
        links[::-1],
        (links[1], links[0], *links[2:]),
    ):
        assert refuse(epochs, proof, links=changed) in ("epochs", "headers")
    other = entry_proof(epochs, 5, 0)
    assert refuse(epochs, other, links=links) == "headers"
    assert refuse(epochs, other, links=()) == "headers"


def test_no_link_of_another_ledger_fits(epochs: Maker, tmp_path: Path) -> None:
    other = Maker(tmp_path / "other.sqlite", epochs.genesis)  # the same network went another way
    for _ in range(5):
        other.block()
    proof, fork = entry_proof(epochs, 5, 1), head_proof(other, 5, 5)
    # both forks are signed by quorums, as if all validators lied; parts of one do not fit the other
    assert check(to_bytes(fork), epochs.network).holds
    assert refuse(epochs, proof, links=fork.links) == "headers"
    assert refuse(epochs, fork, links=proof.links) == "headers"
    assert refuse(epochs, head_proof(epochs, 3, 5), links=fork.links) in ("headers", "certificate")


def test_the_set_in_a_link_is_the_one_that_the_boundary_block_names(epochs: Maker) -> None:
    proof = entry_proof(epochs, 18, 0)
    first, second = set_of(epochs, 1), set_of(epochs, 2)
    for index, listed in (
        (0, ()),  # it changed
        (0, set_of(epochs, 0)),
        (0, first[::-1]),  # positions count
        (0, first[:-1]),
        (0, (*first, key(9).account)),
        (0, (*first[:-1], first[0])),
        (1, first),
        (2, second),  # it did not change: a second form of the same link
        (2, set_of(epochs, 4)),
    ):
        assert refuse(epochs, proof, links=with_link(proof, index, validators=listed)) == "epochs"


def test_a_link_is_certified_by_the_set_of_its_epoch(epochs: Maker) -> None:
    proof = entry_proof(epochs, 18, 0)
    boundary = bytes(proof.links[3].header)  # block 16, of epoch 3 with the set 1 3 4 101
    old, own, following = (set_of(epochs, number) for number in (0, 3, 4))
    good = final(epochs, 3, own, (1, 2, 3), boundary)
    again = msgspec.structs.replace(proof, links=with_link(proof, 3, certificate=good))
    assert check(to_bytes(again), epochs.network).holds
    for wrong in (
        final(epochs, 3, own, (1, 2), boundary),
        final(epochs, 3, old, (0, 1, 2), boundary),  # who left still has a key
        final(epochs, 3, following, (0, 1, 2), boundary),
        final(epochs, 2, own, (0, 1, 2), boundary),
        final(epochs, 4, own, (0, 1, 2), boundary),
        final(epochs, 3, own, (0, 1, 2), bytes(proof.links[2].header)),
        proof.links[2].certificate,
        proof.certificate,
    ):
        assert refuse(epochs, proof, links=with_link(proof, 3, certificate=wrong)) == "epochs"
    # and so is the last certificate: the set of the epoch before cannot finalize a block of this one
    last = bytes(proof.descendants[-1])
    for wrong in (final(epochs, 4, own, (0, 1, 2), last), final(epochs, 3, own, (0, 1, 2), last)):
        assert refuse(epochs, proof, certificate=wrong) == "certificate"


def test_a_link_ends_its_epoch(epochs: Maker) -> None:
    """Even a quorum of its set cannot make another block hand over."""
    proof = entry_proof(epochs, 5, 1)
    validators = set_of(epochs, 0)

    def replaced(raw: bytes, closing: tuple[bytes, ...] = ()) -> str:
        certificate = final(epochs, 0, validators, (0, 1, 2), closing[-1] if closing else raw)
        raws = tuple(msgspec.Raw(each) for each in closing)
        changes = {"header": msgspec.Raw(raw), "closing": raws, "certificate": certificate}
        return refuse(epochs, proof, links=with_link(proof, 0, **changes))

    boundary = open_header(bytes(proof.links[0].header), epochs.network)
    assert replaced(epochs.store.block(3).header) == "epochs"
    for changes in ({"height": 3}, {"height": 5}, {"height": 8}, {"epoch": 1}, {"network": "0" * 64}):
        assert replaced(encode(msgspec.structs.replace(boundary, **changes))) == "epochs"
    closing = msgspec.structs.replace(
        boundary,
        height=5,
        slot=boundary.slot + 1,
        parent=block_hash(encode(boundary)),
        parent_slot=boundary.slot,
        time_ms=boundary.time_ms + 1,
        entry_count=0,
        entries_root=merkle.root(()).hex(),
    )
    certificate = final(epochs, 0, validators, (0, 1, 2), encode(closing))
    raws = (msgspec.Raw(encode(closing)),)
    good = with_link(proof, 0, closing=raws, certificate=certificate)
    assert check(to_bytes(msgspec.structs.replace(proof, links=good)), epochs.network).holds
    for changes in (
        {"epoch": 1},
        {"height": 6},
        {"height": 4},
        {"parent": "0" * 64},
        {"parent_slot": boundary.slot + 1},
        {"slot": boundary.slot},
        {"time_ms": boundary.time_ms},
        {"entry_count": 1},
        {"entries_root": "0" * 64},
        {"state_root": "0" * 64},
        {"validators": set_hash(validators[:1])},
    ):
        changed = encode(msgspec.structs.replace(closing, **changes))
        assert replaced(bytes(proof.links[0].header), (changed,)) == "epochs", changes


def test_a_closing_block_is_no_block_of_the_ledger(epochs: Maker) -> None:
    """A head proof does not begin with one, and nothing follows one but another."""
    proof = head_proof(epochs, 7, 8)
    assert len(proof.headers) == 4
    assert refuse(epochs, proof, headers=proof.headers[2:]) == "headers"
    assert refuse(epochs, proof, headers=proof.headers[3:]) == "headers"
    longer = head_proof(epochs, 7, 9)
    assert refuse(epochs, longer, headers=(*proof.headers, *longer.headers[2:])) == "headers"
    assert refuse(epochs, longer, headers=proof.headers) == "headers"
    assert refuse(epochs, longer, headers=longer.headers[:2]) == "headers"
    zero = encode(msgspec.structs.replace(open_header(bytes(proof.headers[0]), epochs.network), height=0))
    assert refuse(epochs, proof, headers=(msgspec.Raw(zero), *proof.headers[1:])) == "headers"


def test_a_proof_that_reaches_too_far_is_refused(
    epochs: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = entry_at(epochs, 18)
    monkeypatch.setattr(prove, "MAX_LINKS", 3)
    with pytest.raises(UsageError, match="block 18 lies in epoch 4; a proof reaches 3 epochs far: give an export"):
        prove_entry(epochs.store, entry)
    with pytest.raises(UsageError, match="reaches 3 epochs far"):
        prove_heads(epochs.store, 17, 17)
    assert check(prove_entry(epochs.store, entry_at(epochs, 14)), epochs.network).holds
    monkeypatch.setattr(prove, "MAX_LINKS", MAX_LINKS)
    for room in (3_000, 10_500):  # the links alone are too long; everything together is
        monkeypatch.setattr(prove, "MAX_PROOF_BYTES", room)
        with pytest.raises(UsageError, match=f"does not fit into a proof of {room} bytes; give an export"):
            prove_entry(epochs.store, entry)
    monkeypatch.setattr(prove, "MAX_PROOF_BYTES", MAX_PROOF_BYTES)
    monkeypatch.setattr(prove, "MAX_CLOSING", 1)
    with pytest.raises(UsageError, match="2 closing blocks end the epoch of block 8; a proof has room for 1"):
        prove_entry(epochs.store, entry)


def test_a_pruned_ledger_proves_what_it_still_holds(epochs: Maker, tmp_path: Path) -> None:
    """Boundary blocks and closing blocks stay, so the chain of sets does."""
    pruned = make_epochs(tmp_path / "ledger.sqlite")
    pruned.store.save([Prune(18)])
    for row in pruned.store.block_entries(18):
        assert prove_entry(pruned.store, row.id) == prove_entry(epochs.store, row.id)
    assert prove_heads(pruned.store, 18, 19) == prove_heads(epochs.store, 18, 19)
    with pytest.raises(UsageError, match="blocks below 18 were pruned from this ledger; ask a node that keeps them"):
        prove_heads(pruned.store, 17, 19)
    with pytest.raises(UsageError, match=r"no entry .* in this ledger.*blocks below 18 were pruned"):
        prove_entry(pruned.store, entry_at(epochs, 14))


# ---- commands


def test_commands_prove_and_check(cli: Cli, tmp_path: Path) -> None:
    maker = make_folder(tmp_path / "node")
    file, entry = tmp_path / "paid.proof", entry_at(maker, 5)
    made = cli("--data-dir", tmp_path / "node", "ledger", "prove", entry, "-o", file, "--json")
    assert made.code == 0
    assert made.value == {"file": str(file), "bytes": file.stat().st_size, "network": maker.network, "epochs": 0}
    printed = cli("--data-dir", tmp_path / "node", "ledger", "prove", entry)
    assert printed.out.encode() == file.read_bytes()
    nowhere = ("--data-dir", tmp_path / "none", "ledger", "check", file)
    genesis = tmp_path / "node" / "genesis.json"
    for trusted in (maker.network, maker.network.upper(), make_invite(maker.genesis, []), genesis, tmp_path / "node"):
        checked = cli(*nowhere, "--genesis", trusted)
        assert checked.code == 0
        assert [line.split()[0] for line in checked.out.splitlines()] == ["ok"] * 9
    value = cli(*nowhere, "--genesis", maker.network, "--json").value
    assert value["holds"] is True
    assert (value["entry"]["id"], value["height"], value["certified_height"]) == (entry, 5, 8)
    assert not (tmp_path / "none").exists()
    assert cli("--data-dir", tmp_path / "node", "ledger", "check", file).code == 0  # this folder's network
    heads = cli("--data-dir", tmp_path / "node", "ledger", "prove", "--head", 2, 6, "-o", file)
    assert heads.code == 0
    assert cli(*nowhere, "--genesis", maker.network, "--json").value["height"] == 2


def test_commands_show_the_chain_of_sets(cli: Cli, tmp_path: Path) -> None:
    maker = make_folder(tmp_path / "node", make_epochs)
    folder, file = ("--data-dir", tmp_path / "node", "ledger"), tmp_path / "paid.proof"
    made = cli(*folder, "prove", entry_at(maker, 18), "-o", file)
    assert "the sets of 5 epochs lead from the genesis to the block" in made.out
    checked = cli("ledger", "check", file, "--genesis", maker.network)
    assert checked.code == 0
    epochs = next(line for line in checked.out.splitlines() if line.split()[1] == "epochs")
    assert "4 epochs ended by certified blocks, the set changed 3 times; epoch 4 has 3 validators" in epochs
    value = cli("ledger", "check", file, "--genesis", maker.network, "--json").value
    assert (value["height"], value["epoch"], value["certified_height"]) == (18, 4, 19)
    shown = cli(*folder, "show", "--json").value
    assert (shown["height"], shown["epoch"], shown["validators"]) == (19, 4, 3)
    assert "head 19, epoch 4 with 3 validators" in cli(*folder, "show").out
    block = cli(*folder, "show", "--height", 8, "--json").value
    assert block["epoch"] == {"number": 1, "validators": list(set_of(maker, 1))}


def test_check_names_the_failing_step_and_exits_with_5(cli: Cli, tmp_path: Path, maker: Maker) -> None:
    file = tmp_path / "paid.proof"
    data = prove_entry(maker.store, entry_at(maker, 2))
    file.write_bytes(data.replace(b'"amount":5', b'"amount":6'))
    refused = cli("ledger", "check", file, "--genesis", maker.network)
    assert refused.code == 5
    assert refused.out.splitlines()[-1].split()[:2] == ["FAILED", "inclusion"]
    assert "inclusion" in refused.err
    value = cli("ledger", "check", file, "--genesis", maker.network, "--json").value
    assert value["holds"] is False
    assert "entry" not in value
    assert value["steps"][-1]["name"] == "inclusion"
    file.write_bytes(data)
    assert cli("ledger", "check", file, "--genesis", "0" * 64).code == 5


def test_bad_arguments_are_one_sentence(cli: Cli, tmp_path: Path) -> None:
    maker = make_folder(tmp_path / "node")
    folder = ("--data-dir", tmp_path / "node", "ledger")
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x00" * 100)
    for arguments in (
        (*folder, "prove"),
        (*folder, "prove", entry_at(maker, 1), "--head", 1, 2),
        (*folder, "prove", "nothing"),
        (*folder, "prove", entry_at(maker, 1), "-o", tmp_path / "none" / "file"),
        (*folder, "check", tmp_path / "none"),
        (*folder, "check", junk, "--genesis", "0" * 63),
        (*folder, "check", junk, "--genesis", "gdf1-nonsense"),
        (*folder, "check", junk, "--genesis", junk),
        (*folder, "check", junk, "--genesis", tmp_path),
    ):
        assert cli(*arguments).code == 2
    assert cli(*folder, "check", junk).code == 5
