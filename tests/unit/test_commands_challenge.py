"""Challenging from the command line: what cannot be challenged is said before anything is run again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdf_market.codec import encode
from gdf_market.commands import main
from gdf_market.node.client import NodeClient, RemoteError
from gdf_market.node.datadir import DataDir
from tests.contracts_world import start
from tests.market_ledger import make_market_world

Run = Callable[..., tuple[int, str, str]]


class Client:
    """A node's client; ``refusal`` is what the node answers to a check."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.asked: list[str] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def check_challenge(self, *_: object) -> None:
        self.asked.append("check")
        if self.refusal:
            raise RemoteError(self.refusal, 1)

    def challenge(self, *_: object) -> dict[str, Any]:
        self.asked.append("challenge")
        return {"excess_ppb": 0, "distance_ppb": 0}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    world, data = make_market_world(), DataDir(tmp_path)
    job = start(world, "w1", "w2")
    data.genesis_file.write_bytes(encode(world.genesis))
    world.write(data.ledger)
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path))
    return job


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    def command(client: Client, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(NodeClient, "of", lambda _: client)
        monkeypatch.setattr(sys, "argv", ["gdf-market", "challenge", *arguments])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        return code, "".join(capsys.readouterr())

    return command


@pytest.mark.parametrize("place", [("0", "2"), ("9", "0")])
def test_a_unit_that_is_not_there_is_a_wrong_argument(job: str, run: Any, place: tuple[str, str]) -> None:
    client = Client()
    code, err = run(client, job[:10], *place)
    assert (code, client.asked) == (2, [])
    assert f"round {place[0]}, slot {place[1]}" in err
    assert "running" not in err
    assert run(client, "nowhere", "0", "0")[0] == 2


def test_a_refusal_comes_before_anything_is_run_again(job: str, run: Any) -> None:
    client = Client("slot 0 of round 0 is not challenged: its pay is released")
    code, err = run(client, job[:10], "0", "0")
    assert (code, client.asked) == (1, ["check"])
    assert "its pay is released" in err
    assert "running" not in err


def test_what_may_be_challenged_is_run_again(job: str, run: Any) -> None:
    client = Client()
    code, err = run(client, job[:10], "0", "1")
    assert (code, client.asked) == (0, ["check", "challenge"])
    assert "running the unit again" in err
    assert "5 credits are locked until it ends, and lost if the accusation is wrong" in err.replace("\n", " ")
