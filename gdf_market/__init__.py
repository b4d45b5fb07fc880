"""A marketplace where strangers pool their GPUs to train PyTorch models, with no coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdf_market.train.job import Job

__version__ = "0.1.0"
__all__ = ["Job", "__version__"]


def __getattr__(name: str) -> Any:
    """Import ``Job`` when it is first asked for: it needs torch, which most commands do not."""
    if name == "Job":
        from gdf_market.train.job import Job

        return Job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
