"""Zstandard around an update's body, with bounds that hold before anything is allocated."""

from __future__ import annotations

import zstandard

from gdf_market.errors import MalformedError, ensure

_LEVEL = 1  # higher ones search for repetitions, which quantised noise has none of
_WINDOW_LOG = 17
_MAX_WINDOW = 1 << 20  # bytes; below the limits of all versions, so that no two of them decide differently
_MAGIC = b"\x28\xb5\x2f\xfd"


def compress(body: bytes) -> bytes:
    """Return one frame that declares the size of ``body``."""
    settings = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, write_content_size=True, write_checksum=False, write_dict_id=False
    )
    return zstandard.ZstdCompressor(compression_params=settings).compress(body)


def decompress(frame: bytes, least: int, most: int) -> bytes:
    """Return the content of exactly one frame without a dictionary, of ``least`` to ``most`` bytes.

    Raises MalformedError for everything else; not more than ``most`` bytes and a window are ever allocated.
    """
    ensure(frame[:4] == _MAGIC, MalformedError("update's body is no Zstandard frame"))
    try:
        declared = zstandard.get_frame_parameters(frame)
        size = declared.content_size
        ensure(
            least <= size <= most,
            MalformedError(f"update's body declares {size} bytes; {least} to {most} are possible"),
        )
        ensure(declared.dict_id == 0, MalformedError("update's body needs a dictionary"))
        ensure(not declared.has_checksum, MalformedError("update's body has a checksum, which our writer leaves out"))
        ensure(
            declared.window_size <= _MAX_WINDOW,
            MalformedError(f"update's body needs a window of {declared.window_size} bytes"),
        )
        body = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=most, read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise MalformedError(f"update's body does not decompress: {error}") from None
    ensure(len(body) == size, MalformedError(f"update's body has {len(body)} bytes and declares {size}"))
    return body
