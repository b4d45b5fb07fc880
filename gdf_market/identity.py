"""Ed25519 identities whose account id is their libp2p Peer ID, and domain-separated signatures.

Rules kept here:
1. Every signature covers a domain tag (network id, kind) and then the exact bytes.
2. PyNaCl is the only Ed25519 verifier: two verifiers that differ fork a ledger.
3. Keys of small order are refused.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import base58
import nacl.bindings
import nacl.exceptions
import nacl.signing

from gdf_market.errors import MalformedError, SignatureError, ensure

# identity multihash (0x00, 36 bytes) of the protobuf {1: Ed25519 (1), 2: 32 bytes}; libp2p peer-ids spec
_PEER_ID_PREFIX = bytes.fromhex("002408011220")


def account_id(public_key: bytes) -> str:
    """Return the account id (libp2p Peer ID text) of a 32-byte Ed25519 public key."""
    encoded: bytes = base58.b58encode(_PEER_ID_PREFIX + public_key)
    return encoded.decode()


@functools.lru_cache(maxsize=4096)
def public_key(account: str) -> bytes:
    """Return the 32-byte public key inside an account id.

    Raises MalformedError for text that is no Ed25519 Peer ID, SignatureError
    for a key of small order or off the curve.
    """
    ensure(len(account) == 52, MalformedError(f"{account[:60]!r} is not an account id (12D3KooW…)"))
    try:
        raw = base58.b58decode(account)
    except ValueError:
        raise MalformedError(f"{account!r} is not an account id (12D3KooW…)") from None
    ensure(
        len(raw) == 38 and raw.startswith(_PEER_ID_PREFIX) and account_id(raw[6:]) == account,
        MalformedError(f"{account!r} is not an account id (12D3KooW…)"),
    )
    key: bytes = raw[6:]
    # libsodium's check refuses small order, non-canonical and off-subgroup points
    ensure(
        bool(nacl.bindings.crypto_core_ed25519_is_valid_point(key)),
        SignatureError(f"{account} holds an Ed25519 key of small order"),
    )
    return key


@functools.lru_cache(maxsize=4096)
def _verify_key(account: str) -> nacl.signing.VerifyKey:
    return nacl.signing.VerifyKey(public_key(account))


def _covered(network: str, kind: str, message: bytes) -> bytes:
    return b"gdf-market/1\0" + network.encode() + b"\0" + kind.encode() + b"\0" + message


@dataclass(frozen=True)
class Identity:
    """A signing key; ``seed`` is its 32 secret bytes and never leaves this object's holder."""

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.seed) == 32

    @classmethod
    def generate(cls) -> Identity:
        """Return a new identity from the system's random source."""
        return cls(bytes(nacl.signing.SigningKey.generate()))

    @functools.cached_property
    def _key(self) -> nacl.signing.SigningKey:
        return nacl.signing.SigningKey(self.seed)

    @functools.cached_property
    def account(self) -> str:
        """The account id, which is the libp2p Peer ID of this key."""
        return account_id(bytes(self._key.verify_key))

    def sign(self, network: str, kind: str, message: bytes) -> bytes:
        """Return the 64-byte signature over (network, kind, message)."""
        return self._key.sign(_covered(network, kind, message)).signature


def verify(network: str, kind: str, account: str, message: bytes, signature: bytes) -> None:
    """Raise SignatureError unless ``signature`` is ``account``'s over (network, kind, message)."""
    key = _verify_key(account)
    try:
        key.verify(_covered(network, kind, message), signature)
    except (nacl.exceptions.BadSignatureError, nacl.exceptions.ValueError):
        raise SignatureError(f"signature of {account} over a {kind} does not verify") from None
