"""Metrics files: one line or step per settled round, whatever happened before."""

from __future__ import annotations

import builtins
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from contracts.records import Job
from gdf_market.codec import encode
from gdf_market.commands import main
from gdf_market.commands.metrics import JsonLines, Sinks, TensorBoard, scalars, scalars_of
from gdf_market.commands.progress import RoundMetrics, metrics_of, rounds_of
from gdf_market.errors import UsageError
from gdf_market.node.datadir import DataDir
from gdf_market.train.codec import Codec
from ledger.store import LedgerStore
from tests.explorer_ledger import PRICE, Example, build_example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


@pytest.fixture(scope="module")
def settled(example: Example) -> list[RoundMetrics]:
    store = LedgerStore(example.path, read_only=True)
    job = store.record(f"job/{example.running_job}")
    assert isinstance(job, Job)
    found = metrics_of(job, rounds_of(store, job.id))
    store.close()
    return found


def test_a_round_in_numbers(settled: list[RoundMetrics]) -> None:
    assert [line.step for line in settled] == [1, 2, 3, 4, 5, 6]
    full, short = settled[0], settled[3]
    assert (full.units, short.units) == (4, 3)
    assert full.credits == 4 * PRICE + 4 * PRICE // 5
    assert (full.tokens, short.tokens) == (4 * 20_480, 3 * 20_480)
    assert short.bytes == 3 * Codec(4, 128).expected_bytes(235_000)
    assert full.loss == 4.1802
    assert full.seconds > 0


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_are_added_once(tmp_path: Path, settled: list[RoundMetrics]) -> None:
    path = tmp_path / "rounds.jsonl"
    for known in (2, 2, 5, 6, 6):
        with Sinks("job", metrics=path) as sinks:
            sinks.write(settled[:known])
            sinks.write(settled[:known])
        assert [line["round"] for line in read(path)] == list(range(known))
    names = {"job", "round", "time_ms", "loss", "units", "rejected", "credits", "bytes", "seconds", "tokens"}
    assert names < set(read(path)[0])


def test_two_jobs_share_a_file(tmp_path: Path, settled: list[RoundMetrics]) -> None:
    from dataclasses import replace

    path = tmp_path / "rounds.jsonl"
    with Sinks("job", metrics=path) as sinks:
        sinks.write(settled[:1])
        sinks.write([replace(settled[0], job="cd" * 32)])
    assert [line["job"][:2] for line in read(path)] == [settled[0].job[:2], "cd"]


@pytest.mark.parametrize("left", [1, 5, 7, 40])
def test_a_line_that_was_cut_off_is_written_again(tmp_path: Path, settled: list[RoundMetrics], left: int) -> None:
    path = tmp_path / "rounds.jsonl"
    with Sinks("job", metrics=path) as sinks:
        sinks.write(settled[:3])
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    path.write_bytes(whole[: last + left])
    with Sinks("job", metrics=path) as sinks:
        sinks.write(settled[:3])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"job": "a"}\n', b"\xff\xfe\n", b"[]\n", b"{}"])
def test_other_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="give another file"):
        JsonLines(path)
    assert path.read_bytes() == content


def test_a_place_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "file.jsonl"):
        with pytest.raises(UsageError, match="--metrics"):
            JsonLines(path)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(UsageError, match="--tensorboard"):
        TensorBoard(blocked, "ab" * 32)


def events(folder: Path) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, tag, value in scalars_of(folder):
        found[tag][step].append(value)
    return found


def test_event_files_hold_every_round_once(tmp_path: Path, settled: list[RoundMetrics]) -> None:
    job = settled[0].job
    for known in (2, 2, 6):
        with Sinks(job, tensorboard=tmp_path) as sinks:
            sinks.write(settled[:known])
    found = events(tmp_path / job[:12])
    assert set(found) == set(scalars(settled[0]))
    for line in settled:
        for tag, value in scalars(line).items():
            assert found[tag][line.step] == [pytest.approx(value, rel=1e-6)]


def test_the_event_files_are_those_of_the_format(tmp_path: Path, settled: list[RoundMetrics]) -> None:
    """Read by the classes of tensorboardX itself, with lengths and checksums."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    with Sinks("ab" * 32, tensorboard=tmp_path) as sinks:
        sinks.write(settled[:1])
    (path,) = (tmp_path / ("ab" * 6)).iterdir()
    data, times = path.read_bytes(), set()
    while data:
        length = int.from_bytes(data[:8], "little")
        record, checksum = data[12 : 12 + length], int.from_bytes(data[12 + length : 16 + length], "little")
        value = crc32c(record)
        assert checksum == ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
        event = Event.FromString(record)
        times |= {round(event.wall_time * 1_000)} if event.summary.value else set()
        data = data[16 + length :]
    assert times == {settled[0].time_ms}


def test_a_half_written_event_file_is_read_up_to_its_end(tmp_path: Path, settled: list[RoundMetrics]) -> None:
    with Sinks("ab" * 32, tensorboard=tmp_path) as sinks:
        sinks.write(settled)
    run = tmp_path / ("ab" * 6)
    (path,) = run.iterdir()
    whole = len(list(scalars_of(run)))
    path.write_bytes(path.read_bytes()[:-3])
    assert len(list(scalars_of(run))) == whole - 1


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("tensorboardX"):
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install gdf-market\[tensorboard\]"):
        Sinks("ab" * 32, tensorboard=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_show_writes_what_the_ledger_has_now(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "rounds.jsonl", tmp_path / "board"
    for watched in ([], ["--watch"], []):
        files = ["--metrics", str(path), "--tensorboard", str(folder)]
        root = str(example.path.parent)
        monkeypatch.setattr(
            sys, "argv", ["gdf-market", "--data-dir", root, "jobs", "show", example.done_job, *watched, *files]
        )
        main()
        assert "2/2" in (shown := capsys.readouterr().out) or "2 of 2" in shown
        assert [(line["round"], line["loss"]) for line in read(path)] == [(0, 0.8122), (1, 0.4012)]
    assert set(events(folder / example.done_job[:12])["loss"]) == {1, 2}
