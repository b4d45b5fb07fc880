"""Updates come back within half a step, and no bytes make the decoder raise anything but a PeerError."""

from __future__ import annotations

import contextlib

import hypothesis
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gdf_market.errors import PeerError
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import GRID_BITS, decode_steps, decode_update, encode_update

quick = hypothesis.settings(max_examples=100, deadline=None)
bits = st.integers(2, 8)
blocks = st.sampled_from([16, 17, 64, 100])
deltas = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-3, 3, width=32))


@quick
@hypothesis.given(deltas, bits, blocks)
def test_round_trip_is_within_half_a_step(delta: npt.NDArray[np.float32], bits: int, block: int) -> None:
    data = encode_update(delta, bits, block)
    decoded, steps = decode_update(data, delta.size, bits, block), decode_steps(data, delta.size, bits, block)
    error = np.abs(decoded - delta.astype(np.float64) * 2**GRID_BITS)
    assert (error <= steps / 2 * (1 + 1e-12)).all()
    top = (1 << (bits - 1)) - 1
    assert (np.abs(decoded) <= top * steps).all()


@quick
@hypothesis.given(deltas, bits, blocks, st.data())
def test_decoding_altered_bytes_raises_only_peer_errors(
    delta: npt.NDArray[np.float32], bits: int, block: int, data: st.DataObject
) -> None:
    encoded = bytearray(encode_update(delta, bits, block))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerError):
        values = decode_update(bytes(encoded), delta.size, bits, block)
        assert int(np.abs(values).max()) < 2**30


@quick
@hypothesis.given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 10), st.integers(0, 100))
def test_decoding_any_bytes_raises_only_peer_errors(data: bytes, n: int, bits: int, block: int) -> None:
    with contextlib.suppress(PeerError):
        decode_update(data, n, bits, block)
    with contextlib.suppress(PeerError):
        unpack(data, n)


@quick
@hypothesis.given(deltas, st.data())
def test_decoded_checkpoints_encode_to_their_bytes(delta: npt.NDArray[np.float32], data: st.DataObject) -> None:
    encoded = bytearray(pack(delta, delta[::-1].copy()))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerError):
        assert pack(*unpack(bytes(encoded), delta.size)) == bytes(encoded)
