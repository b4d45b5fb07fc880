"""``limits`` and ``node storage``: what they ask the node, and what they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gdf_market.commands import cli
from gdf_market.node.client import NodeClient

STORAGE = {
    "quota_bytes": 20_000_000_000,
    "held_bytes": 3_000_000,
    "active_bytes": 2_000_000,
    "ended_bytes": 0,
    "collectable_bytes": 1_000_000,
    "blobs": 7,
    "jobs": 2,
    "copied": 1,
    "short": {"ab" * 32: 1},
    "problem": "The disk is full",
}


class Answers(NodeClient):
    """A node that answers what it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", "token")
        self.asked: list[tuple[str, str, dict[str, Any] | None]] = []

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 1.0
    ) -> dict[str, Any]:
        self.asked.append((method, path, body))
        return {"storage": STORAGE} if path == "/status" else {"up": 0, "down": 0} | (body or {})


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(NodeClient, "of", lambda data: answers)
    return answers


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--data-dir", str(tmp_path), *arguments])


def test_rates_are_shown_and_set(node: Answers, tmp_path: Path) -> None:
    assert run(tmp_path, "limits").output.splitlines() == ["up    no limit", "down  no limit"]
    assert node.asked == [("GET", "/limits", None)]
    shown = run(tmp_path, "limits", "--up", "8Mbit/s").output
    assert "up    1.0 MB/s" in shown
    assert node.asked[-1] == ("POST", "/limits", {"up": 1_000_000})
    value = json.loads(run(tmp_path, "--json", "limits", "--up", "0", "--down", "2M").output)
    assert value == {"up": 0, "down": 2_000_000}


def test_a_rate_that_is_none_is_refused_before_the_node_is_asked(node: Answers, tmp_path: Path) -> None:
    result = run(tmp_path, "limits", "--up", "plenty")
    assert "'plenty'" in str(result.exception)
    assert node.asked == []


def test_storage_says_what_is_kept_for_what(node: Answers, tmp_path: Path) -> None:
    shown = run(tmp_path, "node", "storage").output
    for words in ("held", "3.0 MB", "20.0 GB", "not needed", "1.0 MB", "abababababab", "The disk is full"):
        assert words in shown
    assert json.loads(run(tmp_path, "--json", "node", "storage").output) == STORAGE
