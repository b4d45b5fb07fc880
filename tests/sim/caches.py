"""Work that all nodes of one process would repeat on the same bytes, done once per content.

Everything cached here is a pure function of its arguments, and runs for real on each distinct content.  Nodes share
immutable results: decoded messages, opened entries and blocks, verified signatures, executed blocks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import ledger.admission
import ledger.chain
import ledger.replica
import ledger.sync
from contracts.parameters import MAX_TTL_MS
from contracts.state import State
from gdf_market import identity, vrf
from gdf_market.errors import GdfError
from gdf_market.messages import Entry
from ledger import wire
from ledger.block import Block, Proposal
from ledger.effects import Executed, Tip
from ledger.epochs import Epoch
from ledger.rules import MarketRules, Rules

VERIFIED = functools.lru_cache(maxsize=100_000)(identity.verify)
VRF_VERIFIED = functools.lru_cache(maxsize=20_000)(vrf.verify)
_vrf_prove = functools.lru_cache(maxsize=20_000)(vrf.prove)
READ = functools.lru_cache(maxsize=50_000)(wire.read)
_sign = functools.lru_cache(maxsize=20_000)(identity.Identity.sign)
_CACHED = (_sign, VERIFIED, VRF_VERIFIED, _vrf_prove, READ)


def _once(function: Callable[..., Any], key: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its results, or what it raised, kept by ``key`` of its arguments."""
    results: dict[Any, tuple[Any, GdfError | None, Any]] = {}

    def cached(*arguments: Any, **options: Any) -> Any:
        where = key(*arguments, **options)
        found = results.get(where)
        if found is None:
            try:
                found = function(*arguments, **options), None, arguments
            except GdfError as error:
                found = None, error, arguments
            results[where] = found  # the arguments stay alive: their ids are in the key
        if found[1] is not None:
            raise found[1].with_traceback(None)
        return found[0]

    return cached


def _entry_key(raw: bytes, network: str, *, check_signature: bool = True) -> Any:
    return raw, network, check_signature


def _header_key(data: bytes, network: str) -> Any:
    return data, network


def _block_key(proposal: Proposal, network: str, leader: str | None = None) -> Any:
    return id(proposal), network, leader


def _execute_key(block: Block, parent: Tip, epoch: Epoch, rules: Rules, opened: object) -> Any:
    return block.raw, parent.hash, epoch, id(rules)


def _checked_key(rules: MarketRules, state: State, entry: Entry, time_ms: int) -> Any:
    # time decides only whether an entry lives: jobs aside, of which there are none here
    body = entry.body
    return id(state), entry.id, time_ms < body.expires_ms <= time_ms + MAX_TTL_MS


def _execute_once(function: Callable[..., Executed]) -> Callable[..., Executed]:
    cached = _once(function, _execute_key)

    def execute(
        block: Block, parent: Tip, epoch: Epoch, rules: Rules, open_entries: Callable[[Block], tuple[Entry, ...]]
    ) -> Executed:
        executed: Executed = cached(block, parent, epoch, rules, open_entries)
        open_entries(block)  # every node notes what it has seen
        return executed

    return execute


@contextlib.contextmanager
def cached_crypto() -> Iterator[None]:
    """Let nodes of one process share results.

    Signatures, VRF proofs and decoding are the real ones whatever a test patched; of the rest, what is patched when
    this is entered is what is cached.
    """
    patches: list[tuple[Any, str, Any]] = [
        (identity, "verify", VERIFIED),
        (identity.Identity, "sign", lambda key, *covered: _sign(key, *covered)),
        (vrf, "verify", VRF_VERIFIED),
        (vrf, "prove", _vrf_prove),
        (wire, "read", READ),
        (ledger.chain, "execute", _execute_once(ledger.chain.execute)),
    ]
    patches.append((MarketRules, "check_entry", _once(MarketRules.check_entry, _checked_key)))
    for module in (ledger.chain, ledger.admission):
        patches.append((module, "open_entry", _once(module.open_entry, _entry_key)))
    for module in (ledger.replica, ledger.sync):
        patches.append((module, "open_block", _once(module.open_block, _block_key)))
        patches.append((module, "open_header", _once(module.open_header, _header_key)))
    saved = [(module, name, getattr(module, name)) for module, name, _ in patches]
    for module, name, cached in patches:
        setattr(module, name, cached)
    try:
        yield
    finally:
        for module, name, original in saved:
            setattr(module, name, original)
        for each in _CACHED:
            each.cache_clear()
