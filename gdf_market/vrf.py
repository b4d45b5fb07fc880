"""Verifiable random function: RFC 9381 ECVRF-EDWARDS25519-SHA512-TAI over libsodium's group operations.

Rules kept here:
1. One key and input have one output, whoever made the proof.
2. Points and scalars are canonical; the key and gamma lie in the prime-order subgroup.  The RFC also lets a gamma
   with a small-order part through, which no honest prover makes.
3. Inputs are public, so the time that try-and-increment takes tells nothing.
"""

from __future__ import annotations

import hashlib

import nacl.exceptions
from nacl import bindings

from gdf_market.errors import SignatureError, ensure

PROOF_BYTES = 80  # gamma (32), challenge (16), s (32); section 5.5
OUTPUT_BYTES = 64

_SUITE = b"\x03"
_CHALLENGE_BYTES = 16  # cLen
_FIELD = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493  # of the prime-order subgroup
_IDENTITY = b"\x01" + bytes(31)


def prove(seed: bytes, alpha: bytes) -> bytes:
    """Return the 80-byte proof (pi) of ``alpha`` under the Ed25519 key of ``seed`` (section 5.1)."""
    assert len(seed) == 32
    key, _ = bindings.crypto_sign_seed_keypair(seed)
    expanded = hashlib.sha512(seed).digest()
    secret = _reduced(_clamped(expanded[:32]))
    point = _encode_to_curve(key, alpha)
    gamma = bindings.crypto_scalarmult_ed25519_noclamp(secret, point)
    nonce = bindings.crypto_core_ed25519_scalar_reduce(hashlib.sha512(expanded[32:] + point).digest())  # 5.4.2.2
    challenge = _challenge(
        key,
        point,
        gamma,
        bindings.crypto_scalarmult_ed25519_base_noclamp(nonce),
        bindings.crypto_scalarmult_ed25519_noclamp(nonce, point),
    )
    product = bindings.crypto_core_ed25519_scalar_mul(_scalar(challenge), secret)
    return gamma + challenge + bindings.crypto_core_ed25519_scalar_add(nonce, product)


def verify(public_key: bytes, alpha: bytes, pi: bytes) -> bytes:
    """Return the 64-byte output (beta) that ``pi`` proves for ``alpha`` (section 5.3).

    Raises SignatureError when the proof is not ``public_key``'s proof of ``alpha``, or the key is no
    canonical point of the prime-order subgroup.
    """
    ensure(len(public_key) == 32, SignatureError(f"a VRF key has 32 bytes, not {len(public_key)}"))
    gamma, challenge, s = _decode(pi)
    point = _encode_to_curve(public_key, alpha)
    # U = s*B - c*Y and V = s*H - c*Gamma
    u = bindings.crypto_core_ed25519_sub(_times(s, None, "s"), _times(_scalar(challenge), public_key, "key"))
    v = bindings.crypto_core_ed25519_sub(_times(s, point, "s"), _times(_scalar(challenge), gamma, "gamma"))
    ensure(
        _challenge(public_key, point, gamma, u, v) == challenge,
        SignatureError(f"VRF proof {pi[:8].hex()}… does not verify under key {public_key[:8].hex()}…"),
    )
    return _gamma_to_hash(gamma)


def output(pi: bytes) -> bytes:
    """Return the 64-byte output of a proof without verifying it (section 5.2).

    Only for proofs that were verified or made here; raises SignatureError for bytes that are no proof.
    """
    gamma, _, _ = _decode(pi)
    valid = bindings.crypto_core_ed25519_is_valid_point(gamma)
    ensure(bool(valid), SignatureError("the VRF proof's gamma is no point of the prime-order subgroup"))
    return _gamma_to_hash(gamma)


def _decode(pi: bytes) -> tuple[bytes, bytes, bytes]:
    """Return (gamma, challenge, s) of an encoded proof (section 5.4.4); gamma is still to be checked."""
    ensure(len(pi) == PROOF_BYTES, SignatureError(f"a VRF proof has {PROOF_BYTES} bytes, not {len(pi)}"))
    gamma, challenge, s = pi[:32], pi[32:48], pi[48:]
    ensure(int.from_bytes(s, "little") < _ORDER, SignatureError("the VRF proof's s is not reduced"))
    return gamma, challenge, s


def _encode_to_curve(salt: bytes, alpha: bytes) -> bytes:
    """Return a point of the prime-order subgroup by try-and-increment (section 5.4.1.1)."""
    for counter in range(256):
        candidate = hashlib.sha512(_SUITE + b"\x01" + salt + alpha + bytes([counter]) + b"\x00").digest()[:32]
        if int.from_bytes(candidate, "little") & (2**255 - 1) >= _FIELD:
            continue
        try:
            point = _times_cofactor(candidate)
        except nacl.exceptions.RuntimeError:  # not on the curve
            continue
        if point != _IDENTITY:
            return point
    raise SignatureError("no curve point found for a VRF input; the chance of this is 2**-256")


def _times_cofactor(point: bytes) -> bytes:
    """Return 8 * point by three doublings; libsodium's scalar multiplication refuses points off the subgroup."""
    for _ in range(3):
        point = bindings.crypto_core_ed25519_add(point, point)
    return point


def _challenge(*points: bytes) -> bytes:
    """Return the 16-byte challenge over key, H, gamma, U, V (section 5.4.3)."""
    return hashlib.sha512(_SUITE + b"\x02" + b"".join(points) + b"\x00").digest()[:_CHALLENGE_BYTES]


def _gamma_to_hash(gamma: bytes) -> bytes:
    return hashlib.sha512(_SUITE + b"\x03" + _times_cofactor(gamma) + b"\x00").digest()


def _times(scalar: bytes, point: bytes | None, name: str) -> bytes:
    """Return scalar * point (the base point if None).

    libsodium refuses points that are not canonical, not on the curve or not in the prime-order subgroup, and the
    scalar 0, which no honest prover can aim for.
    """
    try:
        if point is None:
            return bindings.crypto_scalarmult_ed25519_base_noclamp(scalar)
        return bindings.crypto_scalarmult_ed25519_noclamp(scalar, point)
    except nacl.exceptions.RuntimeError:
        raise SignatureError(f"the VRF {name} is zero or no point of the prime-order subgroup") from None


def _clamped(half: bytes) -> bytes:
    """Return the secret scalar's bytes as RFC 8032 section 5.1.5 prunes them."""
    return bytes([half[0] & 0xF8]) + half[1:31] + bytes([half[31] & 0x7F | 0x40])


def _reduced(scalar: bytes) -> bytes:
    return bindings.crypto_core_ed25519_scalar_reduce(scalar + bytes(32))


def _scalar(challenge: bytes) -> bytes:
    return challenge + bytes(32 - _CHALLENGE_BYTES)
