"""A marketplace where strangers pool their GPUs to train PyTorch models, with no coordinator."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["Job", "__version__"]


def __getattr__(name: str) -> Any:
    """Return ``Job``, imported when it is first asked for: it needs torch, which most commands do not."""
    if name == "Job":
        return importlib.import_module("gdf_market.commands.api").Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
