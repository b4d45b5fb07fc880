"""Every command: help with an example, one JSON value with --json, and text of others shown as it is."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rich_click as click

from contracts.jobs import escrow_of
from gdf_market.codec import encode
from gdf_market.commands import COMMANDS, cli
from gdf_market.commands import post as posting
from gdf_market.commands.common import App, printable, table
from gdf_market.commands.progress import median_loss
from gdf_market.commands.report import job_report
from gdf_market.demo import processes
from gdf_market.demo.processes import DemoError, Member, stop_all
from gdf_market.errors import GdfError, InsufficientCreditsError, UnreachableError
from gdf_market.messages import JobPost
from gdf_market.node.datadir import DataDir
from gdf_market.units import CREDIT, PPM
from ledger.store import LedgerStore
from tests.command_kit import call
from tests.contracts_world import key_of, make_world, start
from tests.explorer_ledger import HOSTILE, Example, build_example

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    data = DataDir(tmp_path_factory.mktemp("node"))
    made = build_example(data.ledger)
    data.genesis_file.write_bytes(encode(made.build.genesis))
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, example: Example) -> Run:
    monkeypatch.setenv("GDF_DATA_DIR", str(example.path.parent))
    monkeypatch.setenv("COLUMNS", "300")

    def command(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, *arguments)

    return command


def leaves(group: click.Group, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[Any]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, click.Context(command, parent=context), (*path, name))
        else:
            yield (*path, name), command


ALL = dict(leaves(cli, click.Context(cli)))


def test_there_are_commands() -> None:
    assert {path[0] for path in ALL} == set(COMMANDS)
    assert len(ALL) >= 20


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself_with_an_example(run: Run, path: tuple[str, ...]) -> None:
    command = ALL[path]
    example = command.help[command.help.index("Example") :]
    assert "gdf-market " in example
    assert " ".join(path) in example
    for flag in ("-h", "--help"):
        code, out, err = run(*path, flag)
        assert (code, err) == (0, "")
        assert "Usage" in out
        assert "--json" in out


@pytest.mark.parametrize("arguments", [("bogus",), ("wallet", "bogus"), ("status", "--bogus"), ("jobs", "show")])
def test_unknown_commands_are_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Error" in err


def test_no_command_shows_the_help(run: Run) -> None:
    _, out, err = run()
    assert "Start here" in out + err


def answer(run: Run, *arguments: str) -> Any:
    """Return the one JSON value that a command prints, which is the same wherever --json stands."""
    code, out, err = run("--json", *arguments)
    assert (code, err) == (0, "")
    assert run(*arguments, "--json") == (code, out, err)
    return json.loads(out)


def test_jobs_as_json(run: Run, example: Example) -> None:
    rows = answer(run, "jobs", "ls")["jobs"]
    assert {row["id"] for row in rows} == {example.done_job, example.running_job}
    shown = answer(run, "jobs", "show", example.done_job[:12])
    assert shown["job"]["id"] == example.done_job
    assert [row["loss_e6"] for row in shown["rounds"]][-1] is not None
    with contextlib.closing(LedgerStore(example.path, read_only=True)) as store:
        assert shown == json.loads(json.dumps(job_report(store, example.done_job)))


def test_jobs_for_people_show_the_text_of_others_as_it_is(run: Run, example: Example) -> None:
    code, out, err = run("jobs", "ls")
    assert (code, err) == (0, "")
    assert HOSTILE.replace("\x1b", "\ufffd")[:20] in out.replace("\n", "")
    code, out, _ = run("jobs", "show", example.running_job)
    assert code == 0
    assert "\x1b" not in out


@pytest.mark.parametrize("text", ["[/]", "[bold]x[/nothing]", ":smile:", "\x1b[2J\x1b]0;owned\x07", "a\u202eb"])
def test_cells_show_text_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    app = App(data=DataDir(tmp_path))

    def shown() -> object:
        made = table(f"title {text}", "cell")
        made.add_row(text)
        return made

    app.emit({}, shown)
    out = capsys.readouterr().out
    assert out.count(printable(text)) == 2
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize(("prefix", "word"), [("zz", "no job starts"), ("", "2 jobs start")])
def test_a_job_is_named_by_a_prefix_of_one(run: Run, prefix: str, word: str) -> None:
    code, out, err = run("--json", "jobs", "show", prefix)
    assert (code, out) == (2, "")
    assert word in err


def test_a_balance_that_is_not_known_yet_is_no_zero(
    run: Run, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path)
    data.genesis_file.write_bytes(encode(example.build.genesis))
    with contextlib.closing(LedgerStore(data.ledger)) as store:
        store.create(example.build.genesis)
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path))
    stranger = key_of("stranger").account
    assert answer(run, "wallet", "show", "--account", stranger)["balance"] is None
    assert "not known yet" in run("wallet", "show", "--account", stranger)[1]
    founder = answer(run, "wallet", "show", "--account", example.build.owner.account)
    assert founder["balance"] > 0  # by the genesis


def test_wallet_as_json(run: Run, example: Example) -> None:
    worker = example.build.workers[0].account
    value = answer(run, "wallet", "show", "--account", worker)
    with contextlib.closing(LedgerStore(example.path, read_only=True)) as store:
        state = store.state()
        assert value["balance"] == state.account(worker).balance
    assert set(value) == {"account", "height", "balance", "stake", "bonds", "held"}
    code, _, err = run("wallet", "show", "--account", "nobody")
    assert code == 2
    assert "nobody" in err


def test_ledger_as_json(run: Run, example: Example) -> None:
    value = answer(run, "ledger", "show")
    assert value["conserved"] is True
    block = answer(run, "ledger", "show", "--height", "1")
    assert example.transfer in [entry["id"] for entry in block["entries"]]
    assert answer(run, "ledger", "show", "--entry", example.transfer)["id"] == example.transfer
    assert run("--json", "ledger", "show", "--height", "999")[0] == 2


def test_status_of_no_node(run: Run) -> None:
    code, out, err = run("status", "--json")
    assert (code, out) == (4, "")
    assert "gdf-market node run" in err


def test_the_loss_is_the_median_of_what_was_measured() -> None:
    world = make_world()
    round_ = world.round(start(world, "w1"), 0)
    for losses, expected in (((), None), ((-1,), None), ((5, -1, 3), 5), ((9, 1, 4), 4)):
        pairs = tuple((key_of(f"a{number}").account, loss) for number, loss in enumerate(losses))
        assert median_loss(msgspec.structs.replace(round_, losses=pairs)) == expected


# ---- post


def fields(**changes: object) -> dict[str, Any]:
    return dict(msgspec.to_builtins(make_world().job_fields() | {"warm_rounds": 0} | changes))


def test_the_summary_says_what_the_ledger_will_lock(tmp_path: Path) -> None:
    app, account = App(data=DataDir(tmp_path)), key_of("owner").account
    for rounds, units, price, merit in ((1, 1, 1, 1), (3, 5, 7, 333_333), (10_000, 64, CREDIT, PPM), (2, 2, 5, 0)):
        given = fields(rounds=rounds, units_per_round=units, min_workers=1, reserve_price=price, merit_ppm=merit)
        value = posting.summary(app, given, {"unit_s": 1.23456}, account)
        head = {"kind": "job_post", "author": account, "nonce": 0, "expires_ms": 0}
        pay, audits = escrow_of(msgspec.convert(given | head, JobPost))
        assert (value["escrow_units"], value["escrow_audits"]) == (pay, audits)
        assert value["escrow"] == pay + audits
        assert pay == rounds * units * price + -(-rounds * units * price * merit // PPM)
        assert value["balance"] == 0
        assert value["market"]["price"]["likely_micro"] is None
        assert "no history" in value["market"]["price"]["how"]
        assert value["estimate"] == {"unit_s": 1.2346}


def test_the_summary_knows_the_balance_and_past_prices(example: Example) -> None:
    app, owner = App(data=DataDir(example.path.parent)), example.build.owner.account
    value = posting.summary(app, fields(), {}, owner)
    assert value["balance"] == example.build.pots[owner]
    price = value["market"]["price"]
    assert 0 < price["low_micro"] <= price["likely_micro"] <= price["high_micro"] <= value["price_most"]
    with pytest.raises(InsufficientCreditsError, match="lower --max-price"):
        posting._check_balance(value | {"escrow": value["balance"] + 1})
    posting._check_balance(value | {"escrow": value["balance"]})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device_class": "tpu"}, "cpu-fp32"),
        ({"min_workers": 3}, "--min-workers 3"),
        ({"title": ""}, "title"),
        ({"rounds": 0}, "rounds"),
        ({"reserve_price": 2**53}, "canonical"),
    ],
)
def test_terms_that_make_no_order_are_refused_before_anything_is_signed(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(GdfError, match=word):
        posting.summary(App(data=DataDir(tmp_path)), fields(**changes), {}, key_of("owner").account)


class Market:
    """A node's client as ``post`` uses it: counts of holders grow by one with every question."""

    def __init__(self, peers: int, balance: int, most: int) -> None:
        self.peers, self.balance, self.most = peers, balance, most
        self.held = -1
        self.calls: list[str] = []

    def status(self) -> dict[str, Any]:
        return {"account": key_of("owner").account, "balance": self.balance, "peers": ["p"] * self.peers}

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.calls.append(path)
        if path == "/holders":
            assert body is not None
            self.held = min(self.held + 1, self.most)
            return {"holders": dict.fromkeys(body["roots"], self.held)}
        return {"order": "ab" * 32} if path == "/orders" else {"height": 9}


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    clock = [0.0]
    monkeypatch.setattr(posting.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(posting.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    return App(data=DataDir(tmp_path), quiet=True)


@pytest.mark.parametrize(("peers", "most", "holders"), [(5, 9, 2), (1, 9, 1), (5, 1, 1)])
def test_a_job_is_posted_once_others_hold_it(quiet: App, peers: int, most: int, holders: int) -> None:
    market = Market(peers, 10**12, most)
    value = posting._publish(quiet, market, fields())  # type: ignore[arg-type]
    assert value == {"job": "ab" * 32, "height": 9, "holders": holders}
    assert market.calls[0] == "/orders"
    assert market.calls[-1] == f"/orders/{'ab' * 32}/post"


def test_a_job_that_nobody_holds_is_not_posted(quiet: App) -> None:
    market = Market(3, 10**12, 0)
    with pytest.raises(UnreachableError, match="none of 3 peers"):
        posting._publish(quiet, market, fields())  # type: ignore[arg-type]
    assert not any(path.endswith("/post") for path in market.calls)


def test_a_job_that_the_node_cannot_pay_is_not_announced(quiet: App) -> None:
    market = Market(3, 5, 9)
    with pytest.raises(InsufficientCreditsError):
        posting._publish(quiet, market, fields())  # type: ignore[arg-type]
    assert market.calls == []


# ---- processes of the demonstration


def script(member: Member, code: str) -> None:
    member.command = lambda *_: [sys.executable, "-c", code]  # type: ignore[method-assign]


def test_members_are_stopped_cleanly_and_killed_if_they_do_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polite, deaf = Member("polite", tmp_path), Member("deaf", tmp_path)
    ready = "print('ready', flush=True); "
    script(polite, f"import time; {ready}time.sleep(60)")
    ignore = "import signal; [signal.signal(getattr(signal, n), signal.SIG_IGN) for n in ('SIGTERM', 'SIGBREAK')"
    script(deaf, f"{ignore} if hasattr(signal, n)]; import time; {ready}time.sleep(60)")
    for member in (polite, deaf):
        member.start()
    processes.wait_until(
        "both listen",
        lambda: all("ready" in member.log.read_text() for member in (polite, deaf)),
        timeout_s=30,
        members=[polite, deaf],
    )
    monkeypatch.setattr(processes, "STOP_S", 0.3)
    stop_all([polite, deaf])
    assert not polite.alive
    assert not deaf.alive


def test_an_interrupt_while_stopping_leaves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member("one", tmp_path)
    script(member, "import time; time.sleep(60)")
    member.start()
    process = member._process
    assert process is not None

    def interrupted(until: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(member, "join", interrupted)
    monkeypatch.setattr(member, "ask_to_stop", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        stop_all([member])
    assert process.poll() is not None


def test_a_command_answers_in_json_or_its_log_is_named(tmp_path: Path) -> None:
    member = Member("one", tmp_path)
    script(member, "print('{\"a\": 1}')")
    assert member.run("x") == {"a": 1}
    script(member, "print('no json')")
    with pytest.raises(DemoError, match="printed no JSON"):
        member.run("x")
    script(member, "import sys; sys.exit(3)")
    with pytest.raises(DemoError, match=r"exited with 3.*one\.log"):
        member.run("x")


def test_settings_of_a_persons_own_node_do_not_reach_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_DATA_DIR", "/precious")
    monkeypatch.setenv("GDF_PASSPHRASE", "secret")
    kept = processes._environment()
    assert [name for name in kept if name.startswith("GDF_")] == ["GDF_LOG_LEVEL"]
