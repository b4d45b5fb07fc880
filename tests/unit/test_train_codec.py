"""Update codec, checkpoints and the outer step: the numbers that every node has to agree on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from train_kit import recipe

from gdf_market.errors import MalformedError
from gdf_market.train.checkpoint import pack, packed_size, unpack
from gdf_market.train.codec import GRID_BITS, MAX_VALUE, Codec
from gdf_market.train.errors import DivergedError
from gdf_market.train.outer import outer_step
from tests import codec_oracle

HEADER_BYTES = 24
SCRIPT = """
import hashlib
import numpy as np
from gdf_market.train.codec import Codec
delta = np.sin(np.arange(100_000, dtype=np.float64)).astype(np.float32) * np.float32(0.01)
for codec in (Codec(4, 64), Codec(3, 100), Codec(2, 64, 30_000)):
    data = codec.encode(delta)
    print(hashlib.sha256(data + codec.decode(data, delta.size).tobytes()).hexdigest())
"""


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


def header(codec: Codec, n: int, form: int) -> bytes:
    fields = (codec.bits, 1), (codec.block, 2), (codec.density_ppm, 4), (form, 4), (n, 8)
    return b"GDFU\x02" + b"".join(value.to_bytes(size, "little") for value, size in fields)


def plain(codec: Codec, delta: np.ndarray) -> bytes:
    """Return an update that is not compressed."""
    return header(codec, delta.size, 0) + codec_oracle.coded(delta, codec.bits, codec.block)


def test_known_bytes() -> None:
    delta = np.zeros(17, np.float32)
    delta[0], delta[1], delta[2], delta[16] = 7 * 2.0**-20, -3 * 2.0**-20, 0.6 * 2.0**-20, -(2.0**-10)
    data, codec = Codec(4, 16).encode(delta), Codec(4, 16)
    scales = [2**8, -(-(2**18) // 7)]  # largest value / 7, rounded up, on the grid 2**-28
    planes = bytes([scales[0] & 255, scales[1] & 255, scales[0] >> 8, scales[1] >> 8, 0, 0, 0, 0])
    codes = bytes([0xD7, 0x01, 0, 0, 0, 0, 0, 0, 0x09])  # 7, -3, 1, 0 ... and -7, low nibble first
    start = b"GDFU\x02\x04\x10\x00" + (10**6).to_bytes(4, "little") + bytes(4) + (17).to_bytes(8, "little")
    assert data == start + planes + codes  # too short to gain from compression
    assert codec.decode(data, 17)[:3].tolist() == [7 * 2**8, -3 * 2**8, 2**8]
    assert codec.steps(data, 17)[[0, 16]].tolist() == scales


def test_ties_go_to_even() -> None:
    step = 2.0**-20
    delta = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5] + [0] * 10, np.float32) * np.float32(step)
    assert Codec(4, 16).decode(Codec(4, 16).encode(delta), 16)[1:6].tolist() == [0, 512, 512, 0, -512]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("block", [16, 17, 64, 100, 4_096])
def test_equals_the_definition(bits: int, block: int) -> None:
    """Sizes around words of eight codes, blocks, and the pieces that are worked on at a time."""
    codec, random = Codec(bits, block), np.random.default_rng(bits)
    for n in (1, 7, 8, 9, 63, 64, 65, 32_768 - 3, 65_536 + 5):
        delta = random.standard_t(3, n).clip(-900, 900).astype(np.float32) * np.float32(1e-3)
        delta[n // 2 : n // 2 + 300] = 0
        data = codec.encode(delta)
        assert (codec.decode(data, n) == codec_oracle.values(delta, bits, block)).all()
        assert (codec.steps(data, n) == np.repeat(codec_oracle.quantise(delta, bits, block)[1], block)[:n]).all()
        assert (codec.decode(plain(codec, delta), n) == codec.decode(data, n)).all()
        assert len(data) <= codec.max_bytes(n) == codec.expected_bytes(n) == len(plain(codec, delta))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 4.5, 3e38])
def test_values_beyond_the_grid_diverged(bad: float) -> None:
    with pytest.raises(DivergedError):
        Codec(4, 64).encode(np.array([0.1, bad], np.float32))
    with pytest.raises(DivergedError):
        Codec(4, 64, 500_000).encode(np.array([0.1, bad], np.float32))


def test_values_that_are_not_finite_are_counted_wherever_they_are() -> None:
    delta = np.zeros(100_000, np.float32)
    delta[[5, 50_000, 99_999]] = np.nan, np.inf, -np.inf
    for codec in (Codec(4, 64), Codec(4, 64, 1_000)):
        with pytest.raises(DivergedError, match="3 values that are not finite"):
            codec.encode(delta)


def test_the_largest_value_fits() -> None:
    largest = np.nextafter(np.float32(4), np.float32(0)) - np.float32(0.01)
    for bits in range(2, 9):
        codec = Codec(bits, 64)
        decoded = codec.decode(codec.encode(np.full(3, -largest)), 3)
        assert 0 < -int(decoded[0]) <= MAX_VALUE
        assert abs(int(decoded[0]) / 2**GRID_BITS + largest) < 1e-6


@pytest.mark.parametrize("scale", [MAX_VALUE // 7 + 1, 2**31, 2**32 - 1])
def test_scales_beyond_the_grid_are_refused(scale: int) -> None:
    codec = Codec(4, 16)
    data = plain(codec, np.full(16, 0.5, np.float32))
    with pytest.raises(MalformedError, match="scale beyond the grid"):
        codec.decode(data[:HEADER_BYTES] + scale.to_bytes(4, "little") + data[HEADER_BYTES + 4 :], 16)


def test_every_bit_matters() -> None:
    """Each one-bit change of an update is refused or decodes to something else."""
    delta = np.linspace(-1, 1, 37).astype(np.float32)
    delta[16:32] = 0
    for codec in (Codec(3, 16), Codec(3, 16, 400_000)):
        data = codec.encode(delta)
        assert data[12] == 0, "an update that is not compressed"
        before = codec.decode(data, 37).tolist(), codec.steps(data, 37).tolist()
        refused = 0
        for bit in range(8 * len(data)):
            other = changed(data, bit // 8, data[bit // 8] ^ 1 << bit % 8)
            try:
                after = codec.decode(other, 37).tolist(), codec.steps(other, 37).tolist()
            except MalformedError:
                refused += 1
            else:
                assert after != before
        assert refused >= 8 * HEADER_BYTES


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_wrong_sizes_are_refused(n: int) -> None:
    codec = Codec(5, 16)
    data = plain(codec, np.ones(n, np.float32))
    for other in (data[:-1], data + b"\0", b"", data[: HEADER_BYTES - 1], data[:HEADER_BYTES]):
        with pytest.raises(MalformedError):
            codec.decode(other, n)
    for wrong in (0, n - 1, n + 1, 2**31 + 1):
        with pytest.raises(MalformedError):
            codec.decode(data, wrong)


@pytest.mark.parametrize(
    ("bits", "block", "density"), [(1, 64, 1), (9, 64, 1), (4, 15, 1), (4, 4_097, 1), (4, 64, -1), (4, 64, 10**6 + 1)]
)
def test_parameters_of_the_codec_are_bounded(bits: int, block: int, density: int) -> None:
    with pytest.raises(MalformedError):
        Codec(bits, block, density)


def test_a_codec_is_its_recipes() -> None:
    assert Codec.of(recipe()) == Codec(4, 64, 1_000_000)
    assert Codec.of(recipe(codec_bits=2, codec_block=32, codec_density_ppm=5)) == Codec(2, 32, 5)


def test_an_update_of_another_codec_is_refused() -> None:
    delta = np.linspace(-1, 1, 64).astype(np.float32)
    codecs = [Codec(4, 64), Codec(5, 64), Codec(4, 32), Codec(4, 64, 999_999), Codec(4, 64, 500_000)]
    for one in codecs:
        for other in codecs:
            if one != other:
                with pytest.raises(MalformedError):
                    other.decode(one.encode(delta), 64)


def test_bytes_do_not_depend_on_the_number_of_threads() -> None:
    def run(threads: str) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.strip()

    first, second = run("1"), run("2")
    assert first == second
    assert [len(bytes.fromhex(line)) for line in first.splitlines()] == [hashlib.sha256().digest_size] * 3


def test_checkpoint_round_trip_and_size() -> None:
    parameters, momentum = np.arange(5, dtype=np.float32), np.array([0, 0, 1, 0, 0], np.float32)
    for moving in (momentum, np.zeros(5, np.float32)):
        data = pack(parameters, moving)
        again = unpack(data, 5)
        assert again[0].tobytes() == parameters.tobytes()
        assert again[1].tobytes() == moving.tobytes()
    assert len(pack(parameters, momentum)) == packed_size(5)
    assert len(pack(parameters, np.zeros(5, np.float32))) == packed_size(5) - 20  # no momentum is stored


def test_a_checkpoint_has_one_encoding() -> None:
    parameters = np.ones(3, np.float32)
    still = pack(parameters, np.zeros(3, np.float32))
    forged = still[:5] + b"\x01" + still[6:] + bytes(12)
    with pytest.raises(MalformedError, match="all zero"):
        unpack(forged, 3)


def test_damaged_checkpoints_are_refused() -> None:
    data = pack(np.ones(3, np.float32), np.ones(3, np.float32))
    nan = np.float32(np.nan).tobytes()
    for other in (data[:-1], data + b"\0", b"", b"x" + data[1:], data[:16] + nan + data[20:], changed(data, 5, 2)):
        with pytest.raises(MalformedError):
            unpack(other, 3)
    with pytest.raises(MalformedError):
        unpack(data, 4)


def test_a_checkpoint_that_is_not_finite_is_not_written() -> None:
    with pytest.raises(DivergedError):
        pack(np.array([np.inf], np.float32), np.zeros(1, np.float32))


@pytest.mark.parametrize(("momentum_ppm", "rate_ppm"), [(0, 1_000_000), (500_000, 1_000_000), (900_000, 700_000)])
def test_outer_step_is_nesterov_sgd(momentum_ppm: int, rate_ppm: int) -> None:
    """torch.optim.SGD is the oracle, over three steps."""
    rng = np.random.Generator(np.random.PCG64(5))
    parameters = rng.standard_normal(200).astype(np.float32)
    momentum = np.zeros(200, np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(parameters.copy()))
    mu = momentum_ppm / 1e6
    oracle = torch.optim.SGD([weight], lr=rate_ppm / 1e6, momentum=mu, nesterov=mu > 0, foreach=False)
    settings = recipe(outer_momentum_ppm=momentum_ppm, outer_lr_ppm=rate_ppm)
    for _ in range(3):
        aggregate = rng.integers(-(2**26), 2**26, 200)
        weight.grad = torch.from_numpy((aggregate / 3 / 2**GRID_BITS).astype(np.float32))
        oracle.step()
        parameters, momentum = outer_step(parameters, momentum, aggregate, 3, settings)
    assert np.allclose(parameters, weight.detach().numpy(), rtol=1e-6, atol=1e-6)
    assert momentum.any() == (momentum_ppm > 0)


def test_outer_step_has_known_bytes() -> None:
    """Fixed on one machine: another one that differs would fork the agreement."""
    spread = (np.arange(100, dtype=np.int64) * 7_919 % 1_009 - 500).astype(np.float32) / np.float32(777)
    parameters, momentum = spread[:50], spread[50:]
    aggregate = (np.arange(50, dtype=np.int64) - 25) * 7_654_321
    step = outer_step(parameters, momentum, aggregate, 7, recipe(outer_momentum_ppm=900_000, outer_lr_ppm=700_000))
    digest = hashlib.sha256(step[0].tobytes() + step[1].tobytes()).hexdigest()
    assert digest == "f6c303888ee5c21964e2416a4adbc2a13b47c18af14808836596e24f0ca856b1"


def test_outer_step_equals_the_definition_over_several_pieces() -> None:
    random = np.random.default_rng(3)
    n = 2**15 + 77
    parameters, momentum = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    aggregate = random.integers(-(2**42), 2**42, n)
    for mu in (0, 900_000):
        settings = recipe(outer_momentum_ppm=mu, outer_lr_ppm=700_000)
        step = outer_step(parameters, momentum, aggregate, 4_095, settings)
        expected = codec_oracle.outer_step(parameters, momentum, aggregate, 4_095, settings)
        assert [each.tobytes() for each in step] == [each.tobytes() for each in expected]


def test_outer_step_refuses_what_leaves_float32() -> None:
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(DivergedError):
        outer_step(huge, -huge, np.full(2, -(2**30), np.int64), 1, recipe(outer_momentum_ppm=999_000))
