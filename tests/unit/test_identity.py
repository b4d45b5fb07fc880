"""Identities: RFC 8032 signatures, account ids that are Peer IDs, and keys or signatures that must not pass."""

from __future__ import annotations

import json
from pathlib import Path

import base58
import nacl.bindings
import nacl.exceptions
import nacl.signing
import pytest

from gdf_market.errors import MalformedError, SignatureError
from gdf_market.identity import Identity, account_id, public_key, verify

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ed25519_rfc8032.json").read_text("utf-8"))["vectors"]
NETWORK = "ab" * 32
ORDER = 2**252 + 27742317777372353535851937790883648493
KEY = Identity(b"\x07" * 32)
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # 0, not reduced
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # 1, not reduced
]


@pytest.mark.parametrize("vector", VECTORS)
def test_rfc_8032_vectors(vector: dict[str, str]) -> None:
    seed, message, signature = (bytes.fromhex(vector[name]) for name in ("seed", "message", "signature"))
    key = nacl.signing.SigningKey(seed)
    assert bytes(key.verify_key).hex() == vector["key"]
    assert key.sign(message).signature == signature
    key.verify_key.verify(message, signature)
    assert public_key(Identity(seed).account).hex() == vector["key"]


def test_the_account_id_is_the_libp2p_peer_id() -> None:
    libp2p_keys = pytest.importorskip("libp2p.crypto.ed25519")
    libp2p_id = pytest.importorskip("libp2p.peer.id")
    pair = libp2p_keys.create_new_key_pair(KEY.seed)
    assert libp2p_id.ID.from_pubkey(pair.public_key).to_base58() == KEY.account
    assert KEY.account.startswith("12D3KooW")


def test_account_and_key_convert_both_ways() -> None:
    key = public_key(KEY.account)
    assert len(key) == 32
    assert account_id(key) == KEY.account


def test_new_identities_differ_and_hide_their_seed() -> None:
    first, second = Identity.generate(), Identity.generate()
    assert first.account != second.account
    assert first.seed.hex() not in repr(first)
    assert repr(first.seed) not in repr(first)


def test_signing_is_deterministic_and_verifies() -> None:
    signature = KEY.sign(NETWORK, "entry", b"message")
    assert signature == KEY.sign(NETWORK, "entry", b"message")
    assert len(signature) == 64
    verify(NETWORK, "entry", KEY.account, b"message", signature)


def test_a_signature_holds_for_its_network_kind_author_and_message_alone() -> None:
    signature = KEY.sign(NETWORK, "entry", b"message")
    other = Identity(b"\x08" * 32).account
    for case in (
        ("cd" * 32, "entry", KEY.account, b"message"),
        (NETWORK, "vote", KEY.account, b"message"),
        (NETWORK, "entry", other, b"message"),
        (NETWORK, "entry", KEY.account, b"message "),
        (NETWORK, "entr", KEY.account, b"y\0message"),
        (NETWORK, "", KEY.account, b"entry\0message"),
    ):
        with pytest.raises(SignatureError, match="does not verify"):
            verify(*case, signature)


def test_a_bare_signature_over_the_message_does_not_count() -> None:
    bare = nacl.signing.SigningKey(KEY.seed).sign(b"message").signature
    with pytest.raises(SignatureError):
        verify(NETWORK, "entry", KEY.account, b"message", bare)


def test_every_altered_byte_of_a_signature_is_refused() -> None:
    signature = KEY.sign(NETWORK, "entry", b"message")
    for position in range(64):
        altered = bytearray(signature)
        altered[position] ^= 1
        with pytest.raises(SignatureError):
            verify(NETWORK, "entry", KEY.account, b"message", bytes(altered))


@pytest.mark.parametrize("length", [0, 63, 65, 128])
def test_signatures_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(SignatureError):
        verify(NETWORK, "entry", KEY.account, b"message", bytes(length))


def test_the_second_form_of_s_is_refused() -> None:
    """s + L signs the same equation; accepting it would give one message two signatures."""
    signature = KEY.sign(NETWORK, "entry", b"message")
    s = int.from_bytes(signature[32:], "little") + ORDER
    with pytest.raises(SignatureError):
        verify(NETWORK, "entry", KEY.account, b"message", signature[:32] + s.to_bytes(32, "little"))


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_keys_of_small_order_are_refused(key: str) -> None:
    account = account_id(bytes.fromhex(key))
    with pytest.raises(SignatureError, match="small order"):
        public_key(account)
    # the signature (identity point, 0) would hold for every message under such a key
    with pytest.raises(SignatureError):
        verify(NETWORK, "entry", account, b"anything", b"\x01" + bytes(63))


def test_keys_with_a_small_order_part_are_refused() -> None:
    key = nacl.bindings.crypto_core_ed25519_add(public_key(KEY.account), bytes.fromhex(SMALL_ORDER[4]))
    with pytest.raises(SignatureError):
        public_key(account_id(key))


def test_keys_off_the_curve_are_refused() -> None:
    off = 0
    for number in range(2, 40):
        key = number.to_bytes(32, "little")
        try:
            nacl.bindings.crypto_core_ed25519_add(key, key)
        except nacl.exceptions.RuntimeError:
            off += 1
            with pytest.raises(SignatureError):
                public_key(account_id(key))
    assert off > 10


@pytest.mark.parametrize(
    "account",
    [
        "",
        "12D3KooW",
        KEY.account[:-1],
        KEY.account + "a",
        KEY.account[:-1] + "0",  # no base58 digit
        KEY.account[:-1] + "é",
        "1" + KEY.account[:-1],
        " " + KEY.account[1:],
        base58.b58encode(bytes.fromhex("002508021221") + b"\x02" * 33).decode(),  # a secp256k1 Peer ID
        "Qm" + "a" * 44,
        "1" * 52,
        "z" * 52,
        "12D3KooW" + "z" * 44,
    ],
)
def test_other_texts_are_no_accounts(account: str) -> None:
    with pytest.raises(MalformedError, match="is not an account id"):
        public_key(account)
    with pytest.raises(MalformedError):
        verify(NETWORK, "entry", account, b"", bytes(64))
