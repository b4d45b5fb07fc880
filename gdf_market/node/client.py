"""Client of a running node's local API, used by the command line."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx

from gdf_market.errors import GdfError, UnreachableError
from gdf_market.node.datadir import DataDir

ANSWER_S = 90.0  # an entry may take a minute to become final; everything else answers at once
FETCH_S = 24 * 3_600.0  # a large blob over a slow line; a download without progress ends much earlier


class RemoteError(GdfError):
    """The node answered with an error; carries its sentence and exit code."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class NodeClient:
    """Calls one node; every method raises RemoteError or UnreachableError."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_S, trust_env=False
        )

    @classmethod
    def of(cls, data: DataDir) -> NodeClient:
        """Return a client of the node that runs on ``data``.  Raises UnreachableError when none does."""
        found = data.running()
        if found is None:
            raise UnreachableError(f"no node runs on {data.root}; start one with `gdf-market node run`")
        return cls(*found)

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """Return the JSON answer of one request."""
        try:
            response = self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx.HTTPError as error:
            raise UnreachableError(f"the node at {self._http.base_url} does not answer ({error})") from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RemoteError(f"the node at {self._http.base_url} gave no JSON answer ({response.status_code})", 1)
        if response.status_code >= 400:
            code = answer.get("exit_code")
            raise RemoteError(str(answer.get("error", "unknown error")), code if isinstance(code, int) else 1)
        return answer

    def status(self) -> dict[str, Any]:
        return self.call("GET", "/status")

    def submit(self, kind: str, **fields: Any) -> str:
        """Sign and submit an entry; return its id once it is final."""
        return str(self.call("POST", "/submit", {"kind": kind, "fields": fields})["entry"])

    def fetch(self, root: str) -> str:
        """Return the local path of a blob, fetched from peers if need be."""
        return str(self.call("POST", "/fetch", {"root": root}, timeout_s=FETCH_S)["path"])

    def check_challenge(self, job: str, round_index: int, slot: int) -> None:
        """Ask whether the node could challenge a unit now; RemoteError says why not."""
        self.call("POST", "/challenge", {"job": job, "round": round_index, "slot": slot, "check": True})

    def challenge(self, job: str, round_index: int, slot: int) -> dict[str, Any]:
        """Let the node audit a unit with a bond; return what it found, once its commit is final."""
        where = {"job": job, "round": round_index, "slot": slot}
        return self.call("POST", "/challenge", where, timeout_s=FETCH_S)

    def close(self) -> None:
        self._http.close()
