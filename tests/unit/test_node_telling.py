"""What a node tells outside: its log on disk, metrics for Prometheus, and the owner's own command."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio

from contracts.records import Event
from gdf_market import logfile
from gdf_market.commands.logs import _Follower
from gdf_market.commands.session import configure_logging
from gdf_market.node.metrics import create_metrics, serve_metrics
from gdf_market.node.notify import GATHER_S, Notifier
from gdf_market.units import CREDIT
from tests.command_kit import call

STATUS: dict[str, Any] = {
    "height": 41, "block_age_ms": 2_500, "peers": ["12D3KooWsecret"], "orders": 2, "balance": 5 * CREDIT // 2,
    "stake": 0, "validator": True, "step": [3, 20], "hold": "", "uptime_s": 60, "trained": 7, "audited": 1,
    "dropped": 0, "refused_orders": {"expired": 3},
}  # fmt: skip


# log --------------------------------------------------------------------------


def test_the_file_keeps_more_than_the_terminal_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.log"
    configure_logging("warning", path)
    log = structlog.get_logger("gdf.test")
    try:
        log.debug("too little to keep")
        log.info("bid", job="ab\x1b[31mcd")
        log.warning("late", round=3)
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("failed")
    finally:
        structlog.reset_defaults()
    events = list(logfile.read(path))
    assert [event["event"] for event in events] == ["bid", "late", "failed"]
    assert events[1]["round"] == 3
    assert "ValueError: broken" in events[2]["exception"]
    assert [event["event"] for event in logfile.read(path, level="warning")] == ["late", "failed"]
    shown = capsys.readouterr().err
    assert "late" in shown
    assert "bid" not in shown


def test_the_file_turns_over_and_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "FILE_BYTES", 2_000)
    keep = logfile.Keep(tmp_path / "node.log", 20, 30)
    for number in range(200):
        with pytest.raises(structlog.DropEvent):
            keep(None, "info", {"event": "n", "number": number, "level": "info"})
    with pytest.raises(structlog.DropEvent):
        keep(None, "info", {"event": "n", "long": "x" * 100_000, "level": "info"})
    keep.close()
    assert len(list(tmp_path.iterdir())) == 1 + logfile.FILES
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5 * 2_000 + logfile.MAX_LINE_BYTES
    numbers = [event["number"] for event in logfile.read(tmp_path / "node.log") if "number" in event]
    assert numbers == list(range(numbers[0], 200))


def test_following_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    follower = _Follower(path)
    assert list(follower.new()) == []
    path.write_bytes(b'{"event":"a"}\n{"event":"b"')
    assert [event["event"] for event in follower.new()] == ["a"]
    path.write_bytes(b'{"event":"a"}\n{"event":"b"}\nnot json\n')
    assert [event["event"] for event in follower.new()] == ["b"]
    path.write_bytes(b'{"event":"c"}\n')  # turned over
    assert [event["event"] for event in follower.new()] == ["c"]


def test_the_command_shows_the_newest_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, "--data-dir", str(tmp_path), *arguments)

    code, _, err = run("logs")
    assert code == 2
    assert "node.log" in err
    lines = [{"event": f"e{n}", "level": "info", "timestamp": "t", "title": "a\x1b[2Jb"} for n in range(5)]
    (tmp_path / "node.log").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    code, out, _ = run("logs", "-n", "2")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()] == ["e3", "e4"]
    assert "\x1b" not in out
    code, out, _ = run("logs", "-n", "1", "--json")
    assert json.loads(out)["event"] == "e4"


# metrics ----------------------------------------------------------------------


async def test_metrics_are_served_on_loopback_without_names() -> None:
    async with trio.open_nursery() as nursery:
        binds = await nursery.start(serve_metrics, lambda: STATUS, 0)
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{binds[0]}/metrics")
            nothing = await client.get(f"{binds[0]}/status")
        nursery.cancel_scope.cancel()
    assert binds[0].startswith("http://127.0.0.1:")
    assert nothing.status_code == 404
    text = answer.text
    assert "gdf_ledger_height 41.0" in text
    assert "gdf_balance_credits 2.5" in text
    assert "gdf_units_trained_total 7.0" in text
    assert 'gdf_orders_refused_total{reason="expired"} 3.0' in text
    assert "12D3KooW" not in text


async def test_a_taken_metrics_port_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises((OSError, ExceptionGroup)):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_metrics, lambda: STATUS, taken.getsockname()[1])


def test_every_metric_of_the_dashboard_exists() -> None:
    import re

    from starlette.testclient import TestClient

    dashboard = Path(__file__).parents[2] / "docs" / "grafana" / "gdf-market.json"
    text = dashboard.read_text(encoding="utf-8")
    served = TestClient(create_metrics(lambda: STATUS)).get("/metrics").text
    wanted = set(re.findall(r"\bgdf_\w+", json.dumps([p["targets"] for p in json.loads(text)["panels"]])))
    assert wanted
    assert all(re.search(rf"^{name}[ {{]", served, re.M) for name in wanted), wanted


# notices ----------------------------------------------------------------------


def event(kind: str, **fields: Any) -> Event:
    return Event(kind=kind, **fields)


class Watched(Notifier):
    """A notifier that says when it called the command."""

    def __init__(self, account: str, command: list[str]) -> None:
        super().__init__(account, command)
        self.called = trio.Event()

    async def _call(self, sentence: str) -> None:
        await super()._call(sentence)
        self.called.set()


async def test_events_that_come_together_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gdf_market.node import notify

    assert GATHER_S >= 1  # what a person is spared; the test need not wait as long
    monkeypatch.setattr(notify, "GATHER_S", 0.01)
    path = tmp_path / "told"
    program = "import sys; open(sys.argv[1], 'a', encoding='utf-8').write(sys.argv[2] + '\\n')"
    notifier = Watched("me", [sys.executable, "-c", program, str(path)])
    notifier.on_events(
        [
            event("paid", source="held", target="me", account="me", amount=CREDIT),
            event("paid", source="held", target="me", account="me", amount=CREDIT),
            event("merit", source="held", target="me", account="me", amount=CREDIT // 2),
            event("paid", source="held", target="other", account="other", amount=CREDIT),
            event("missed", account="me"),
            event("slashed", source="bond", target="escrow", account="me", amount=3 * CREDIT),
            event("slashed", source="bond", target="escrow", account="other", amount=CREDIT),
        ]
    )
    notifier.tell("the GPU has 91 °C")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.run)
        with trio.fail_after(120):
            await notifier.called.wait()
        nursery.cancel_scope.cancel()
    assert (await trio.Path(path).read_text(encoding="utf-8")).splitlines() == [
        "paid 2.5 credits for 2 units; 1 unit missed; lost 3 credits of a bond; the GPU has 91 °C"
    ]


async def test_a_command_that_cannot_be_run_costs_only_the_notice(tmp_path: Path) -> None:
    notifier = Notifier("me", [str(tmp_path / "no-such-program")])
    await notifier._call("paid")
    failing = Notifier("me", [sys.executable, "-c", "raise SystemExit(3)"])
    await failing._call("paid")


async def test_without_a_command_nothing_is_gathered() -> None:
    notifier = Notifier("me", [])
    notifier.on_events([event("paid", source="held", target="me", account="me", amount=CREDIT)])
    notifier.tell("hot")
    assert notifier._sentence() == ""
