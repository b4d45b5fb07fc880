"""Compression of updates: taken where it gains, and bounded before anything is allocated."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard

from gdf_market.errors import MalformedError
from gdf_market.train.codec import Codec
from gdf_market.train.codec_frame import compress, decompress

N = 20_000
HEADER_BYTES = 24
CODEC = Codec(4, 64)
DELTA = (np.random.default_rng(0).standard_t(4, N) * 1e-3).astype(np.float32)
DATA = CODEC.encode(DELTA)
FRAME = DATA[HEADER_BYTES:]
BODY = zstandard.ZstdDecompressor().decompress(FRAME)


def settings(**options: int) -> bytes:
    """Return the body as another writer compresses it."""
    chosen = zstandard.ZstdCompressionParameters.from_level(3, **options)
    return zstandard.ZstdCompressor(compression_params=chosen).compress(BODY)


def test_compression_is_taken_where_it_gains() -> None:
    assert DATA[12] == 1
    assert len(DATA) < 0.8 * CODEC.expected_bytes(N)
    noise = np.random.default_rng(1).integers(-127, 128, 4_096).astype(np.float32) / 127
    assert Codec(8, 4_096).encode(noise)[12] == 0


def test_bytes_of_another_writer_decode_to_the_same_values() -> None:
    other = DATA[:HEADER_BYTES] + settings(window_log=15)
    assert other != DATA
    assert (CODEC.decode(other, N) == CODEC.decode(DATA, N)).all()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (FRAME + b"\0", "does not decompress"),
        (FRAME + FRAME, "at most"),
        (FRAME + zstandard.ZstdCompressor().compress(b""), "does not decompress"),
        (FRAME[:-1], "does not decompress"),
        (FRAME[:5], "does not decompress"),
        (b"", "no Zstandard frame"),
        (b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + FRAME, "no Zstandard frame"),  # a skippable frame first
        (settings(write_content_size=False), "declares"),
        (settings(write_checksum=True), "checksum"),
        (zstandard.ZstdCompressor().compress(BODY + b"\0"), "declares"),
        (zstandard.ZstdCompressor().compress(BODY[:-1]), "declares"),
        (zstandard.ZstdCompressor().compress(bytes(2**20)), "declares"),
    ],
)
def test_other_frames_are_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        CODEC.decode(DATA[:HEADER_BYTES] + frame, N)


def test_dictionaries_are_refused() -> None:
    words = zstandard.ZstdCompressionDict(BODY[:1_000], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    unnamed = zstandard.ZstdCompressor(dict_data=words).compress(BODY)
    trained = zstandard.train_dictionary(1_024, [BODY[i : i + 60] for i in range(0, 9_000, 30)])
    named = zstandard.ZstdCompressor(dict_data=trained).compress(BODY)
    assert zstandard.get_frame_parameters(named).dict_id == trained.dict_id() != 0
    with pytest.raises(MalformedError, match="dictionary"):
        CODEC.decode(DATA[:HEADER_BYTES] + named, N)
    assert zstandard.get_frame_parameters(unnamed).dict_id == 0
    with pytest.raises(MalformedError, match="does not decompress"):
        CODEC.decode(DATA[:HEADER_BYTES] + unnamed, N)


def test_a_wide_window_is_refused() -> None:
    stream = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=25)
    ).compressobj(size=len(BODY))
    wide = stream.compress(BODY) + stream.flush()
    body = bytes(3 << 20)
    large = zstandard.ZstdCompressor(level=19).compress(body)
    assert zstandard.get_frame_parameters(large).window_size > 1 << 20
    with pytest.raises(MalformedError, match="window"):
        decompress(large, len(body), len(body))
    assert decompress(compress(body), len(body), len(body)) == body
    assert decompress(wide, len(BODY), len(BODY)) == BODY  # one segment: its window is its content


def test_compression_without_a_gain_is_refused() -> None:
    noise = np.random.default_rng(1).integers(-127, 128, 4_096).astype(np.float32) / 127
    codec = Codec(8, 4_096)
    data = codec.encode(noise)
    frame = zstandard.ZstdCompressor().compress(data[HEADER_BYTES:])
    forged = data[:12] + b"\1\0\0\0" + data[16:HEADER_BYTES] + frame
    with pytest.raises(MalformedError, match=r"without a gain|at most"):
        codec.decode(forged, 4_096)


def test_a_bomb_costs_no_memory() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        for codec in (CODEC, Codec(4, 64, 100_000)):
            data = codec.encode(DELTA)
            with pytest.raises(MalformedError, match="declares"):
                codec.decode(data[:HEADER_BYTES] + bomb[:2_000], N)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_holds_more_than_it_declares_is_refused() -> None:
    honest = zstandard.get_frame_parameters(FRAME)
    assert honest.content_size == len(BODY)
    longer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(1, write_content_size=True)
    ).compress(BODY + bytes(70_000))
    at = longer.index((len(BODY) + 70_000).to_bytes(4, "little"))
    forged = longer[:at] + len(BODY).to_bytes(4, "little") + longer[at + 4 :]
    assert zstandard.get_frame_parameters(forged).content_size == len(BODY)
    with pytest.raises(MalformedError, match="does not decompress"):
        decompress(forged, len(BODY), len(BODY))
