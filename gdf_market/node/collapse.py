"""One exception instead of a group of one: what a caller of an async context manager expects to catch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def collapsing() -> Iterator[None]:
    """Raise the only exception of a nursery's group as itself; a group of several stays a group."""
    error: BaseException
    try:
        yield
        return
    except BaseExceptionGroup as group:
        error = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
    raise error  # outside the handler, so that the group is not shown as its context
