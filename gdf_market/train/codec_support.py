"""Which values a sparse update holds: the k largest, and the bytes that name their places.

Places are sorted, and stored as gaps: the number of values left out before each,
in base 255: as many bytes of 255 as go into the gap, then the rest.  Compressed,
this takes about 6.5 bits a value at 3%; packing gaps into 12 bits takes more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdf_market.errors import MalformedError, ensure
from gdf_market.train.codec_blocks import Bytes, Floats, magnitudes
from gdf_market.units import PPM

_MORE = 255  # a byte that does not end its gap

Places = npt.NDArray[np.int64]


def support_size(n: int, density_ppm: int) -> int:
    """Return k, how many of ``n`` values are held."""
    return max(1, n * density_ppm // PPM)


def largest(delta: Floats, k: int) -> Places:
    """Return the ascending places of the ``k`` largest magnitudes of ``delta`` f32[n]; of equal ones the lower place.

    No rounding is involved: magnitudes are compared as integers.
    """
    sizes = magnitudes(delta)
    threshold = np.partition(sizes, delta.size - k)[delta.size - k]
    held = sizes > threshold
    missing = k - int(np.count_nonzero(held))
    held[np.flatnonzero(sizes == threshold)[:missing]] = True
    return np.flatnonzero(held).astype(np.int64, copy=False)


def gaps_to_bytes(places: Places) -> bytes:
    """Return the gaps of ascending ``places``."""
    gaps = np.diff(places, prepend=-1) - 1
    more, rest = np.divmod(gaps, _MORE)
    data = np.full(places.size + int(more.sum()), _MORE, np.uint8)
    data[np.cumsum(more + 1) - 1] = rest
    return data.tobytes()


def gaps_from_bytes(data: Bytes, k: int, n: int) -> Places:
    """Return the ``k`` ascending places below ``n``.  Raises MalformedError."""
    ends = np.flatnonzero(data != _MORE)
    ensure(ends.size == k, MalformedError(f"update names {ends.size} places; it holds {k} values"))
    ensure(int(ends[-1]) == data.size - 1, MalformedError("update's last gap does not end"))
    places = np.cumsum(data, dtype=np.int64)[ends] + np.arange(k)
    ensure(int(places[-1]) < n, MalformedError(f"update names place {int(places[-1])} of {n} values"))
    return places


def gaps_limit(k: int, n: int) -> int:
    """Return the most bytes that gaps of ``k`` of ``n`` places take; the fewest are k."""
    return k + (n - k) // _MORE


def gaps_expected(k: int, n: int) -> int:
    """Return about how many bytes the gaps take if the places are random."""
    beyond = (1 - k / n) ** _MORE  # the chance that a gap has one byte more
    return min(gaps_limit(k, n), round(k / (1 - beyond)) if beyond < 1 else k)
