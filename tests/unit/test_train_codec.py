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
from gdf_market.train.codec import (
    GRID_BITS,
    MAX_VALUE,
    decode_steps,
    decode_update,
    encode_update,
    encoded_size,
)
from gdf_market.train.errors import DivergedError
from gdf_market.train.outer import outer_step

SCRIPT = """
import hashlib
import numpy as np
from gdf_market.train.codec import decode_update, encode_update
from gdf_market.train.outer import outer_step
from gdf_market.messages import Recipe
delta = np.sin(np.arange(100_000, dtype=np.float64)).astype(np.float32) * np.float32(0.01)
data = encode_update(delta, 4, 64)
decoded = decode_update(data, delta.size, 4, 64)
print(hashlib.sha256(data + decoded.tobytes()).hexdigest())
"""


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


def test_known_bytes() -> None:
    delta = np.zeros(17, np.float32)
    delta[0], delta[1], delta[2], delta[16] = 7 * 2.0**-20, -3 * 2.0**-20, 0.6 * 2.0**-20, -(2.0**-10)
    data = encode_update(delta, 4, 16)
    scales = np.array([2**8, -(-(2**18) // 7)], "<u4")  # largest value / 7, rounded up, on the grid 2**-28
    codes = bytes([0xD7, 0x01, 0, 0, 0, 0, 0, 0, 0x09])  # 7, -3, 1, 0 ... and -7, low nibble first
    assert data == b"GDFU\x01\x04\x10\x00" + (17).to_bytes(8, "little") + scales.tobytes() + codes
    assert decode_update(data, 17, 4, 16)[:3].tolist() == [7 * 2**8, -3 * 2**8, 2**8]
    assert decode_steps(data, 17, 4, 16)[[0, 16]].tolist() == scales.tolist()


def test_ties_go_to_even() -> None:
    step = 2.0**-20
    delta = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5] + [0] * 10, np.float32) * np.float32(step)
    assert decode_update(encode_update(delta, 4, 16), 16, 4, 16)[1:6].tolist() == [0, 512, 512, 0, -512]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 5.0, 1e30])
def test_what_the_grid_cannot_hold_is_refused(bad: float) -> None:
    with pytest.raises(DivergedError):
        encode_update(np.array([0.1, bad], np.float32), 4, 64)


def test_the_largest_value_fits_below_two_to_the_thirty() -> None:
    for bits in range(2, 9):
        top = (1 << (bits - 1)) - 1
        largest = np.float32((MAX_VALUE // top * top) / 2**GRID_BITS * 0.999)
        decoded = decode_update(encode_update(np.full(3, -largest), bits, 64), 3, bits, 64)
        assert decoded.dtype == np.int64
        assert -MAX_VALUE <= int(decoded.min()) < -(2**29)


def test_a_scale_beyond_the_grid_is_refused() -> None:
    data = encode_update(np.full(16, 0.5, np.float32), 4, 16)
    with pytest.raises(MalformedError, match="scale beyond"):
        decode_update(data[:16] + (MAX_VALUE // 7 + 1).to_bytes(4, "little") + data[20:], 16, 4, 16)


def test_every_bit_of_an_encoding_means_something() -> None:
    """Each single-bit change is refused or decodes to other values."""
    rng = np.random.Generator(np.random.PCG64(3))
    delta = (rng.standard_normal(37) * 0.01).astype(np.float32)
    delta[16:32] = 0  # a block whose scale is 0
    data = encode_update(delta, 3, 16)
    values = decode_update(data, 37, 3, 16).tolist()
    refused = 0
    for bit in range(8 * len(data)):
        other = changed(data, bit // 8, data[bit // 8] ^ (1 << bit % 8))
        try:
            decoded = decode_update(other, 37, 3, 16).tolist()
        except MalformedError:
            refused += 1
        else:
            steps = decode_steps(other, 37, 3, 16).tolist()
            assert (decoded, steps) != (values, decode_steps(data, 37, 3, 16).tolist())
    assert refused >= 8 * 16 + 48  # the header, the zero block's codes, and unused last bits


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_any_other_size_is_refused(n: int) -> None:
    data = encode_update(np.ones(n, np.float32), 5, 16)
    assert len(data) == encoded_size(n, 5, 16)
    for other in (data[:-1], data + b"\0", b"", data[:16]):
        with pytest.raises(MalformedError):
            decode_update(other, n, 5, 16)
    with pytest.raises(MalformedError):
        decode_update(data, n + 1, 5, 16)


@pytest.mark.parametrize(("n", "bits", "block"), [(0, 4, 64), (2**31 + 1, 4, 64), (8, 1, 64), (8, 9, 64), (8, 4, 8)])
def test_parameters_of_the_codec_are_bounded(n: int, bits: int, block: int) -> None:
    with pytest.raises(MalformedError):
        decode_update(b"", n, bits, block)


def test_bytes_do_not_depend_on_the_number_of_threads() -> None:
    def run(threads: str) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.strip()

    first, second = run("1"), run("2")
    assert first == second
    assert len(bytes.fromhex(first)) == hashlib.sha256().digest_size


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


def test_outer_step_refuses_what_leaves_float32() -> None:
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(DivergedError):
        outer_step(huge, -huge, np.full(2, -(2**30), np.int64), 1, recipe(outer_momentum_ppm=999_000))
