"""Updates come back within half a step, equal their definition, and no bytes make the decoder raise anything else."""

from __future__ import annotations

import contextlib

import hypothesis
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gdf_market.errors import MalformedError, PeerError
from gdf_market.train.checkpoint import pack, unpack
from gdf_market.train.codec import GRID_BITS, Codec
from gdf_market.train.codec_frame import compress
from gdf_market.units import PPM
from tests import codec_oracle

quick = hypothesis.settings(max_examples=100, deadline=None)
densities = st.one_of(st.just(PPM), st.integers(0, PPM))
codecs = st.builds(Codec, st.integers(2, 8), st.sampled_from([16, 17, 64, 100]), densities)
deltas = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-3, 3, width=32))


@quick
@hypothesis.given(deltas, codecs)
def test_round_trip_is_within_half_a_step(delta: npt.NDArray[np.float32], codec: Codec) -> None:
    data = codec.encode(delta)
    decoded, steps = codec.decode(data, delta.size), codec.steps(data, delta.size)
    held = np.zeros(delta.size, bool)
    held[codec_oracle.largest(delta, codec.held(delta.size))] = True
    error = np.abs(decoded - np.where(held, delta, 0).astype(np.float64) * 2**GRID_BITS)
    assert (error <= steps / 2 * (1 + 1e-12)).all()
    top = (1 << (codec.bits - 1)) - 1
    assert (np.abs(decoded.astype(np.int64)) <= top * steps.astype(np.int64)).all()
    assert len(data) <= codec.max_bytes(delta.size)


@quick
@hypothesis.given(deltas, codecs)
def test_decoded_values_are_those_of_the_definition(delta: npt.NDArray[np.float32], codec: Codec) -> None:
    decoded = codec.decode(codec.encode(delta), delta.size)
    k = codec.held(delta.size)
    assert (decoded == codec_oracle.sparse_values(delta, codec.bits, codec.block, k)).all()


@quick
@hypothesis.given(deltas, codecs)
def test_what_is_read_writes_the_same_bytes(delta: npt.NDArray[np.float32], codec: Codec) -> None:
    data = codec.encode(delta)
    assert codec.write(codec.read(data, delta.size)) == data


@quick
@hypothesis.given(deltas, codecs, st.data())
def test_decoding_altered_bytes_raises_only_peer_errors(
    delta: npt.NDArray[np.float32], codec: Codec, data: st.DataObject
) -> None:
    encoded = bytearray(codec.encode(delta))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedError):
        values = codec.decode(bytes(encoded), delta.size)
        assert int(np.abs(values).max()) < 2**30


@quick
@hypothesis.given(codecs, st.integers(1, 300), st.binary(max_size=200), st.booleans())
def test_any_body_is_refused_or_read(codec: Codec, n: int, body: bytes, squeeze: bool) -> None:
    """Below an honest header, so that what comes after it is reached."""
    rest = compress(body * 3) if squeeze else body
    with contextlib.suppress(MalformedError):
        read = codec.read(codec._header(int(squeeze), n) + rest, n)
        assert codec.decode(codec.write(read), n).tolist() == read.spread(read.values()).tolist()


@quick
@hypothesis.given(st.binary(max_size=200), st.integers(0, 100), codecs)
def test_decoding_any_bytes_raises_only_peer_errors(data: bytes, n: int, codec: Codec) -> None:
    with contextlib.suppress(MalformedError):
        codec.decode(data, n)
    with contextlib.suppress(PeerError):
        unpack(data, n)


@quick
@hypothesis.given(deltas, st.data())
def test_decoded_checkpoints_encode_to_their_bytes(delta: npt.NDArray[np.float32], data: st.DataObject) -> None:
    encoded = bytearray(pack(delta, delta[::-1].copy()))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerError):
        assert pack(*unpack(bytes(encoded), delta.size)) == bytes(encoded)
