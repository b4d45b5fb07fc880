"""The VRF against RFC 9381's vectors, and everything a dishonest prover may try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nacl import bindings

from gdf_market import vrf
from gdf_market.errors import SignatureError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ecvrf_rfc9381_b3.json").read_text("utf-8"))["vectors"]
ORDER = 2**252 + 27742317777372353535851937790883648493
FIELD = 2**255 - 19
# one point of each small order, and encodings that are not reduced (RFC 8032 section 5.1.3 refuses them)
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",  # 1
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # 2
    "0000000000000000000000000000000000000000000000000000000000000000",  # 4
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # 8
]
OFF_SUBGROUP = bytes.fromhex(SMALL_ORDER[3])


@pytest.fixture(params=VECTORS, ids=["example16", "example17", "example18"])
def vector(request: pytest.FixtureRequest) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in request.param.items()}


def test_rfc_vectors_in_proof_and_output(vector: dict[str, bytes]) -> None:
    assert vrf.prove(vector["sk"], vector["alpha"]) == vector["pi"]
    assert vrf.verify(vector["pk"], vector["alpha"], vector["pi"]) == vector["beta"]
    assert vrf.output(vector["pi"]) == vector["beta"]


def test_rfc_vectors_in_the_intermediate_point(vector: dict[str, bytes]) -> None:
    assert vrf._encode_to_curve(vector["pk"], vector["alpha"]) == vector["h"]


def test_proof_of_an_earlier_draft_is_refused() -> None:
    """Drafts before the RFC left the key out of the challenge; such a proof of example 16 is in circulation."""
    pi = bytes.fromhex(
        "8657106690b5526245a92b003bb079ccd1a92130477671f6fc01ad16f26f723f"
        "5e8bd1839b414219e8626d393787a192241fc442e6569e96c462f62b8079b9ed83ff2ee21c90c7c398802fdeebea4001"
    )
    with pytest.raises(SignatureError):
        vrf.verify(bytes.fromhex(VECTORS[0]["pk"]), b"", pi)


def test_every_altered_byte_of_a_proof_is_refused(vector: dict[str, bytes]) -> None:
    for position in range(vrf.PROOF_BYTES):
        altered = bytearray(vector["pi"])
        altered[position] ^= 1
        with pytest.raises(SignatureError):
            vrf.verify(vector["pk"], vector["alpha"], bytes(altered))


def test_every_altered_byte_of_the_key_is_refused(vector: dict[str, bytes]) -> None:
    for position in range(32):
        altered = bytearray(vector["pk"])
        altered[position] ^= 0x80
        with pytest.raises(SignatureError):
            vrf.verify(bytes(altered), vector["alpha"], vector["pi"])


def test_every_altered_byte_of_the_input_is_refused() -> None:
    seed, alpha = bytes(range(32)), bytes(range(40))
    key, _ = bindings.crypto_sign_seed_keypair(seed)
    pi = vrf.prove(seed, alpha)
    vrf.verify(key, alpha, pi)
    for position in range(len(alpha)):
        altered = bytearray(alpha)
        altered[position] ^= 1
        with pytest.raises(SignatureError):
            vrf.verify(key, bytes(altered), pi)
    for other in (b"", alpha[:-1], alpha + b"\0"):
        with pytest.raises(SignatureError):
            vrf.verify(key, other, pi)


def test_outputs_differ_between_inputs_and_keys() -> None:
    proofs = [vrf.prove(bytes([k]) * 32, bytes([a])) for k in range(3) for a in range(3)]
    assert len({vrf.output(pi) for pi in proofs}) == 9


def test_unreduced_s_is_refused(vector: dict[str, bytes]) -> None:
    s = int.from_bytes(vector["pi"][48:], "little") + ORDER  # the same scalar modulo the group order
    with pytest.raises(SignatureError, match="not reduced"):
        vrf.verify(vector["pk"], vector["alpha"], vector["pi"][:48] + s.to_bytes(32, "little"))


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_small_order_keys_are_refused(key: str) -> None:
    """Under a key of small order anyone could prove any output."""
    with pytest.raises(SignatureError, match="key"):
        vrf.verify(bytes.fromhex(key), b"", bytes.fromhex(VECTORS[0]["pi"]))


@pytest.mark.parametrize("y", [FIELD, FIELD + 1, 2**255 - 1])
def test_unreduced_points_are_refused(y: int) -> None:
    point = y.to_bytes(32, "little")
    pi = bytes.fromhex(VECTORS[0]["pi"])
    with pytest.raises(SignatureError, match="key"):
        vrf.verify(point, b"", pi)
    with pytest.raises(SignatureError, match="gamma"):
        vrf.verify(bytes.fromhex(VECTORS[0]["pk"]), b"", point + pi[32:])


def test_points_off_the_subgroup_are_refused(vector: dict[str, bytes]) -> None:
    gamma = bindings.crypto_core_ed25519_add(vector["pi"][:32], OFF_SUBGROUP)
    with pytest.raises(SignatureError, match="gamma"):
        vrf.verify(vector["pk"], vector["alpha"], gamma + vector["pi"][32:])
    with pytest.raises(SignatureError, match="gamma"):
        vrf.output(gamma + vector["pi"][32:])
    key = bindings.crypto_core_ed25519_add(vector["pk"], OFF_SUBGROUP)
    with pytest.raises(SignatureError, match="key"):
        vrf.verify(key, vector["alpha"], vector["pi"])


def test_zero_scalars_are_refused(vector: dict[str, bytes]) -> None:
    with pytest.raises(SignatureError):
        vrf.verify(vector["pk"], vector["alpha"], vector["pi"][:48] + bytes(32))
    with pytest.raises(SignatureError):
        vrf.verify(vector["pk"], vector["alpha"], vector["pi"][:32] + bytes(16) + vector["pi"][48:])


@pytest.mark.parametrize("length", [0, 79, 81])
def test_wrong_lengths_are_refused(length: int) -> None:
    with pytest.raises(SignatureError, match="80 bytes"):
        vrf.verify(bytes.fromhex(VECTORS[0]["pk"]), b"", bytes(length))
    with pytest.raises(SignatureError, match="80 bytes"):
        vrf.output(bytes(length))
    with pytest.raises(SignatureError, match="key"):
        vrf.verify(bytes(31), b"", bytes.fromhex(VECTORS[0]["pi"]))


def test_hashing_to_the_curve_clears_the_cofactor() -> None:
    for number in range(64):
        point = vrf._encode_to_curve(bytes(32), bytes([number]))
        assert bindings.crypto_core_ed25519_is_valid_point(point)
