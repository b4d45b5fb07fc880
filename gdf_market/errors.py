"""Every error that crosses a module boundary.

``LocalError`` is our bug or this machine's trouble; ``PeerError`` is the fault
of whoever sent the bytes; ``UserError`` is what a person can mend, and carries
the exit code of the command line.  Any other exception caused by peer input is
a bug.
"""

from __future__ import annotations


class GdfError(Exception):
    """Base of all errors of this project."""

    exit_code = 1


class LocalError(GdfError):
    """This node failed: a bug, a disk, a missing dependency."""


class StorageError(LocalError):
    """The disk refused: full, read-only, or a damaged database."""


class UserError(GdfError):
    """Something the person at the keyboard can mend; the message says how."""


class UsageError(UserError):
    """A value on the command line or in a job file is unusable."""

    exit_code = 2


class KeyLockedError(UserError):
    """The key is missing, sealed, or the passphrase is wrong."""

    exit_code = 3


class UnreachableError(UserError):
    """No node, or no peer, answered."""

    exit_code = 4


class VerificationFailedError(UserError):
    """A ledger, a proof or a run does not hold what it claims."""

    exit_code = 5


class InsufficientCreditsError(UserError):
    """The account cannot pay for this, or no bid took the job."""

    exit_code = 6


class PeerError(GdfError):
    """A peer sent something unacceptable.  ``reason`` is the counter it is counted under."""

    reason = "peer"


class MalformedError(PeerError):
    """Bytes that are not the canonical form of the expected type."""

    reason = "malformed"


class OversizedError(PeerError):
    """A message, frame, blob or list beyond its limit."""

    reason = "oversized"


class SignatureError(PeerError):
    """A signature, VRF proof or key that does not verify."""

    reason = "signature"


class RuleError(PeerError):
    """A well-formed, signed entry that the contract rules refuse in this state."""

    reason = "rule"


class FloodError(PeerError):
    """More frames, messages, streams or bytes than the agreed rate."""

    reason = "flood"


class SlowError(PeerError):
    """A peer that does not take what it asked for."""

    reason = "slow"


def ensure(condition: bool, error: GdfError) -> None:
    """Raise ``error`` unless ``condition``; for what others sent (``assert`` is for our own invariants)."""
    if not condition:
        raise error
