"""Errors of training that are no peer's and no user's fault on this machine."""

from __future__ import annotations

from gdf_market.errors import LocalError


class TrainingError(LocalError):
    """A unit could not be run here."""


class DivergedError(TrainingError):
    """Training left the range of numbers that an update or checkpoint can hold."""
