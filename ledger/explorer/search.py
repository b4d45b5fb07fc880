"""The search box: account ids, hashes or their prefixes, block heights, unit keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.records import Account, Unit
from contracts.state import unit_key
from ledger.explorer.queries import Reader

MAX_QUERY = 200
MIN_PREFIX = 4
MAX_HITS = 20

_UNIT = re.compile(r"\A(?:unit/)?([0-9a-f]{64})/(\d{1,9})/(\d{1,4})\Z")
_HEX = re.compile(rf"\A[0-9a-f]{{{MIN_PREFIX},64}}\Z")
_ACCOUNT = re.compile(r"\A[1-9A-HJ-NP-Za-km-z]{8,52}\Z")


@dataclass(frozen=True)
class Hit:
    """One thing found, and where its page is."""

    what: str
    name: str
    url: str


@dataclass(frozen=True)
class SearchPage:
    """What a search found; ``hint`` says what can be searched when nothing was found."""

    query: str
    hits: list[Hit]
    hint: str


HINT = (
    "Search for an account id (12D3KooW… or its beginning), a job, entry or block hash or at least four characters "
    "of its beginning, a block height, or a unit as job/round/slot."
)


def load(reader: Reader, query: str) -> SearchPage:
    """Return everything that ``query`` may mean."""
    wanted = query.strip()
    hits: list[Hit] = []
    if wanted.isascii() and wanted.isdigit() and len(wanted) <= 15 and reader.block(int(wanted)):
        hits.append(Hit("Block", wanted, f"/block/{int(wanted)}"))
    if match := _UNIT.match(wanted):
        job, index, slot = match[1], int(match[2]), int(match[3])
        if reader.record(unit_key(job, index, slot), Unit):
            hits.append(Hit("Unit", f"{job}/{index}/{slot}", f"/unit/{job}/{index}/{slot}"))
    if _HEX.match(lower := wanted.lower().removeprefix("0x")):
        hits += _hashes(reader, lower)
    if _ACCOUNT.match(wanted) and wanted.startswith("12D3KooW"):
        found = reader.records_under(f"account/{wanted}", Account, MAX_HITS)
        names = [key.removeprefix("account/") for key in found]
        hits += [Hit("Account", name, f"/account/{name}") for name in names]
    return SearchPage(wanted, hits[:MAX_HITS], HINT)


def _hashes(reader: Reader, prefix: str) -> list[Hit]:
    found = reader.find(prefix, MAX_HITS)
    jobs = [Hit("Job", job, f"/job/{job}") for job in found["job"]]
    entries = [Hit("Entry", entry, f"/entry/{entry}") for entry in found["entry"] if entry not in found["job"]]
    return jobs + entries + [Hit("Block", height, f"/block/{height}") for height in found["block"]]
