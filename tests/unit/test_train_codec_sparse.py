"""Updates that hold only the largest values: which ones, where, how many bytes, and error feedback."""

from __future__ import annotations

import numpy as np
import pytest

from gdf_market.errors import MalformedError
from gdf_market.train.codec import GRID_BITS, Codec
from gdf_market.train.codec_blocks import pack, quantise, scales_to_bytes
from gdf_market.train.codec_support import gaps_from_bytes, gaps_to_bytes, largest
from tests import codec_oracle

Array = np.ndarray


def heavy_tailed(n: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_t(4, n) * 1e-3).astype(np.float32)


def places_to_bytes(codec: Codec, n: int, gaps: bytes) -> bytes:
    """Return an update that is not compressed, all ones, in places that may make no sense."""
    codes, scales = quantise(np.ones(codec.held(n), np.float32), codec.bits, codec.block)
    return codec._header(0, n) + gaps + scales_to_bytes(scales) + pack(codes, codec.bits)


@pytest.mark.parametrize("density_ppm", [0, 1_000, 30_000, 125_000, 500_000, 999_999])
@pytest.mark.parametrize("n", [1, 2, 300, 5_000])
def test_equals_the_definition(density_ppm: int, n: int) -> None:
    delta = np.round(heavy_tailed(n, n) * 3_000).astype(np.float32) / np.float32(1_000)  # many equal magnitudes
    for bits in (2, 3, 4, 8):
        codec = Codec(bits, 64, density_ppm)
        data = codec.encode(delta)
        assert codec.held(n) == max(1, n * density_ppm // 1_000_000)
        assert (codec.decode(data, n) == codec_oracle.sparse_values(delta, bits, 64, codec.held(n))).all()
        assert len(data) <= codec.max_bytes(n)


def test_of_equal_magnitudes_the_lower_place_is_held() -> None:
    delta = np.array([1, -2, 2, -2, 2, 3, 0, -2], np.float32)
    assert [largest(delta, k).tolist() for k in (1, 2, 4, 6, 8)] == [
        [5],
        [1, 5],
        [1, 2, 3, 5],
        [1, 2, 3, 4, 5, 7],
        list(range(8)),
    ]
    assert largest(np.array([0.0, -0.0, 0.0], np.float32), 2).tolist() == [0, 1]
    assert largest(np.array([1e-45, -3e-45, 1e-38], np.float32), 2).tolist() == [1, 2]  # denormal numbers


def test_steps_are_those_of_the_held_values() -> None:
    codec = Codec(4, 16, 250_000)
    delta = heavy_tailed(640)
    data = codec.encode(delta)
    places = codec_oracle.largest(delta, 160)
    steps = codec.steps(data, 640)
    assert np.flatnonzero(steps).tolist() == places
    assert (steps[places] == np.repeat(codec_oracle.quantise(delta[places], 4, 16)[1], 16)).all()


@pytest.mark.parametrize(
    ("places", "data"),
    [
        ([0, 1, 2], "000000"),
        ([254, 255], "fe00"),
        ([255], "ff00"),
        ([256, 767], "ff01ffff00"),
    ],
)
def test_known_gaps(places: list[int], data: str) -> None:
    assert gaps_to_bytes(np.array(places, np.int64)).hex() == data == codec_oracle.gaps(places).hex()
    assert gaps_from_bytes(np.frombuffer(bytes.fromhex(data), np.uint8), len(places), 768).tolist() == places


def test_gaps_that_no_writer_makes_are_refused() -> None:
    codec, n = Codec(4, 16, 10_000), 600  # six values
    assert codec.decode(places_to_bytes(codec, n, bytes(6)), n)[:6].all()
    assert codec.decode(places_to_bytes(codec, n, bytes([255, 255, 84, 0, 0, 0, 0, 0])), n)[594:].all()
    for gaps in (
        bytes([255, 255, 85, 0, 0, 0, 0, 0]),  # beyond the end
        bytes([0, 0, 0, 0, 0, 255]),  # the last one does not end
        bytes(5),
        bytes(7),
        bytes([255] * 8),
        bytes([255, 255, 255, 0, 0, 0, 0, 0, 0]),  # more bytes than any six places take
    ):
        with pytest.raises(MalformedError):
            codec.decode(places_to_bytes(codec, n, gaps), n)


def test_the_longest_gaps_fit_the_limit() -> None:
    codec = Codec(8, 16, 10_000)
    n, delta = 100_000, np.zeros(100_000, np.float32)
    delta[-codec.held(n) :] = 0.5 + np.random.default_rng(0).random(codec.held(n)).astype(np.float32)
    data = codec.encode(delta)
    plain = len(codec_oracle.gaps(codec_oracle.largest(delta, codec.held(n))))
    assert codec.max_bytes(n) == 24 + plain + codec_oracle.coded(delta[delta != 0], 8, 16).__len__()
    assert len(data) < codec.max_bytes(n)  # repetitions gain
    assert codec.decode(data, n).astype(bool).tolist() == delta.astype(bool).tolist()


def test_estimates_are_close_to_the_bytes_before_compression() -> None:
    n, delta = 50_000, heavy_tailed(50_000)
    for density_ppm in (2_000, 10_000, 31_250, 125_000):
        codec = Codec(4, 64, density_ppm)
        places = codec_oracle.largest(delta, codec.held(n))
        actual = 24 + len(codec_oracle.gaps(places)) + len(codec_oracle.coded(delta[places], 4, 64))
        assert abs(codec.expected_bytes(n) - actual) <= actual // 50
        assert actual <= codec.max_bytes(n)


def test_error_feedback_sends_later_what_was_left_out() -> None:
    codec, n = Codec(4, 64, 31_250), 6_400
    delta, residual = heavy_tailed(n), np.zeros(n, np.float32)
    without = codec.decode(codec.encode(delta), n)
    sent = np.zeros(n)
    for _ in range(60):
        data, residual = codec.encode_with_feedback(delta, residual)
        sent += codec.decode(data, n) / 2**GRID_BITS
    wanted = 60 * delta.astype(float)
    assert np.allclose(sent + residual, wanted, atol=1e-4)
    lost = np.linalg.norm(sent - wanted) / np.linalg.norm(wanted)
    lost_without = np.linalg.norm(without / 2**GRID_BITS - delta) / np.linalg.norm(delta)
    assert lost < 0.4 * lost_without
