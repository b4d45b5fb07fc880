"""The one random generator of training: raw 64-bit words of PCG64, which NumPy keeps stable (NEP 19)."""

from __future__ import annotations

import numpy as np


def pcg64(seed: bytes) -> np.random.PCG64:
    """Return PCG64 whose 128-bit state and (odd) increment are the halves of a 32-byte seed."""
    assert len(seed) == 32
    generator = np.random.PCG64(0)
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(seed[:16], "big"), "inc": int.from_bytes(seed[16:], "big") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return generator
