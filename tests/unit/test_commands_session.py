"""How failures of a running program reach a person: one sentence, the right exit code, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import structlog
import trio

import gdf_market.commands as commands
from gdf_market.commands import session
from gdf_market.commands.common import App, printable
from gdf_market.commands.session import configure_logging, first_cause, interrupted_after, passphrase, run_async
from gdf_market.errors import (
    GdfError,
    InsufficientCreditsError,
    KeyLockedError,
    RuleError,
    StorageError,
    UnreachableError,
    UsageError,
    VerificationFailedError,
)
from gdf_market.node.client import RemoteError
from gdf_market.node.datadir import DataDir
from ledger.replica import DivergedError
from ledger.store import LedgerStore

ROOT = Path(__file__).parents[2]


def nested(*errors: BaseException) -> BaseException:
    group: BaseException = BaseExceptionGroup("inner", errors)
    for _ in range(3):
        group = BaseExceptionGroup("outer", [group])
    return group


STORAGE, BUG, AWAY, USAGE = StorageError("full"), KeyError("x"), UnreachableError("away"), UsageError("no")


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([STORAGE], STORAGE),
        ([AWAY, STORAGE], STORAGE),
        ([BUG, STORAGE], STORAGE),
        ([AWAY, BUG], BUG),
        ([AWAY, USAGE], USAGE),
        ([BUG, USAGE], USAGE),
        ([USAGE, STORAGE], STORAGE),
    ],
)
def test_the_cause_is_found_among_what_followed_from_it(errors: list[BaseException], expected: BaseException) -> None:
    assert first_cause(nested(*errors)) is expected
    assert first_cause(BaseExceptionGroup("", [nested(error) for error in errors])) is expected
    assert first_cause(errors[0]) is errors[0]


def test_an_interrupt_comes_first() -> None:
    stop = KeyboardInterrupt()
    assert first_cause(nested(STORAGE, stop)) is stop
    leave = SystemExit(1)
    assert first_cause(nested(BUG, leave)) is leave


def test_a_program_raises_its_cause_alone() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            outer.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail, StorageError("full"))

    with pytest.raises(StorageError) as caught:
        run_async(main)
    assert caught.value.__context__ is None


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Return the exit code of the program when a command raises ``error``."""

    def command(**_: object) -> None:
        raise error

    monkeypatch.setattr(commands.cli, "main", command)
    with pytest.raises(SystemExit) as caught:
        commands.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a"), 2),
        (KeyLockedError("a"), 3),
        (UnreachableError("a"), 4),
        (VerificationFailedError("a"), 5),
        (InsufficientCreditsError("a"), 6),
        (RemoteError("a", 6), 6),
        (StorageError("a"), 1),
        (DivergedError("a"), 1),
        (RuleError("a"), 1),
    ],
)
def test_typed_errors_have_their_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: GdfError, code: int
) -> None:
    assert ended(monkeypatch, error) == code
    assert capsys.readouterr() == ("", "Error: a\n")


def test_an_unexpected_error_is_one_sentence_that_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(commands.TRACEBACK, raising=False)
    assert ended(monkeypatch, KeyError("lines\nof text")) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "internal error KeyError at test_commands_session.py:" in shown
    assert commands.TRACEBACK in shown
    assert ended(monkeypatch, PermissionError(13, "Permission denied", "key.json")) == 1
    assert capsys.readouterr().err == "Error: key.json: Permission denied\n"
    monkeypatch.setenv(commands.TRACEBACK, "1")
    monkeypatch.setattr(commands.cli, "main", lambda **_: {}["x"])
    with pytest.raises(KeyError):
        commands.main()


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_errors_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ended(monkeypatch, RuleError("job \x1b[2Jtitle\r\x07"))
    assert capsys.readouterr().err == "Error: job \ufffd[2Jtitle\ufffd\ufffd\n"
    assert printable("naïve 日本 – ok\n") == "naïve 日本 – ok\n"


def test_a_log_level_must_exist() -> None:
    with pytest.raises(UsageError, match="'loud'"):
        configure_logging("loud")


def test_logged_tracebacks_show_no_variables(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
    configure_logging("info")
    try:
        seed = "secret" * 3
        try:
            raise ValueError(str(len(seed)))
        except ValueError:
            structlog.get_logger("test").exception("failed")
        sys.stderr.flush()
    finally:
        structlog.reset_defaults()
    shown = capfd.readouterr().err
    assert "ValueError: 18" in shown
    assert seed not in shown


def test_a_passphrase_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_PASSPHRASE", "from the environment")
    file = tmp_path / "words"

    def app(path: Path | None) -> App:
        return App(data=DataDir(tmp_path), passphrase_file=path)

    assert passphrase(app(None)) == "from the environment"
    with pytest.raises(KeyLockedError, match="words"):
        passphrase(app(file))
    file.write_bytes(b" tulip 43 \r\n")
    assert passphrase(app(file)) == " tulip 43 "
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(KeyLockedError, match="UTF-8"):
        passphrase(app(file))


def test_a_node_whose_disk_is_full_ends_with_one_sentence_and_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def gdf(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gdf-market", "--data-dir", str(tmp_path), "--quiet", *arguments])
        try:
            commands.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    def full(store: LedgerStore, writes: object) -> None:
        raise StorageError(f"ledger {store.path}: the disk is full; free some space")

    assert gdf("init", "--new-network", "home") == 0
    monkeypatch.setattr(LedgerStore, "save", full)
    capsys.readouterr()
    children = set(psutil.Process().children(recursive=True))
    assert gdf("node", "run") == 1
    assert capsys.readouterr().err == f"Error: ledger {DataDir(tmp_path).ledger}: the disk is full; free some space\n"
    assert set(psutil.Process().children(recursive=True)) == children
    assert not DataDir(tmp_path).lock_file.exists()
    assert not DataDir(tmp_path).node_file.exists()
    structlog.reset_defaults()


async def signalled(stop: Callable[[], None], count: int) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: session.stop_on_signals(stop, task_status=task_status))
        for number in range(count):
            os.kill(os.getpid(), signal.SIGTERM if number % 2 else signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(os.name != "posix", reason="os.kill ends the process elsewhere")
def test_the_first_signal_asks_and_the_second_insists() -> None:
    calls: list[int] = []
    trio.run(signalled, lambda: calls.append(1), 1)
    assert calls == [1]
    with pytest.raises(KeyboardInterrupt):
        run_async(lambda: signalled(lambda: calls.append(2), 2))
    assert calls == [1, 2]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a third one kills


@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is another error elsewhere")
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gdf_market", "--data-dir", str(tmp_path / "node"), "--json", "init"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (1, b"")


LIGHT = """
import sys
from gdf_market.commands import main
folder = sys.argv[1]
for words in ("init --new-network home", "key show", "wallet show", "jobs ls", "status"):
    sys.argv = ["gdf-market", "--data-dir", folder, *words.split()]
    try:
        main()
    except SystemExit:
        pass  # there is no ledger and no node
    heavy = {"torch", "libp2p", "starlette", "hypercorn"} & set(sys.modules)
    assert not heavy, (words, heavy)
print("light")
"""


def test_light_commands_do_not_wait_for_torch_or_the_network(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIGHT, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.stdout.endswith("light\n"), ran.stderr


def test_an_interrupt_takes_effect_at_the_end_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    previous = signal.getsignal(signal.SIGINT)
    done = []

    def step() -> None:
        with interrupted_after():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest of the step")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["the rest of the step"]
    assert signal.getsignal(signal.SIGINT) is previous
    assert "as soon as" in capsys.readouterr().err
    with interrupted_after():
        pass
