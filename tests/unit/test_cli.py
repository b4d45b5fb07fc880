"""Bad input at the command line: one sentence, the right exit code, nothing changed."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import structlog

from gdf_market.commands import main
from gdf_market.demo.market import demo_folder
from gdf_market.node.datadir import DataDir


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path / "node"))
    monkeypatch.delenv("GDF_PASSPHRASE", raising=False)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["gdf-market", *arguments])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        shown = capsys.readouterr()
        return Result(code, shown.out, shown.err)

    yield run
    structlog.reset_defaults()  # a command pointed it at the stderr of this test


def one_sentence(result: Result) -> None:
    assert "Traceback" not in result.err
    assert len([line for line in result.err.splitlines() if line.startswith("Error: ")]) == 1


def test_init_makes_key_and_network_and_is_idempotent(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = cli("--json", "init", "--new-network", "home")
    assert first.code == 0
    genesis = (tmp_path / "node" / "genesis.json").read_bytes()
    again = cli("init", "--new-network", "other")
    assert again.code == 2
    one_sentence(again)
    assert (tmp_path / "node" / "genesis.json").read_bytes() == genesis


def test_join_refuses_the_invite_of_another_network(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import json

    invite = json.loads(cli("--json", "init", "--new-network", "one").out)["invite"]
    monkeypatch.setenv("GDF_DATA_DIR", str(tmp_path / "second"))
    assert cli("init", "--new-network", "two").code == 0
    before = DataDir(tmp_path / "second").genesis_file.read_bytes()
    result = cli("init", "--join", invite)
    assert result.code == 2
    one_sentence(result)
    assert "already belongs to network" in result.err
    assert DataDir(tmp_path / "second").genesis_file.read_bytes() == before


@pytest.mark.parametrize("invite", ["", "nonsense", "gdf1-!!!!", "gdf1-e30", "gdf1-" + "A" * 200_000])
def test_a_damaged_invite_is_one_sentence(cli, invite: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = cli("init", "--join", invite)
    assert result.code == 2
    one_sentence(result)
    assert not (tmp_path / "node" / "genesis.json").exists()


def test_without_key_exit_3(cli) -> None:  # type: ignore[no-untyped-def]
    result = cli("wallet", "show")
    assert result.code == 3
    one_sentence(result)
    assert "gdf-market init" in result.err


def test_wrong_passphrase_exit_3(cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GDF_PASSPHRASE", "tulip-43")
    assert cli("init", "--new-network", "home").code == 0
    monkeypatch.setenv("GDF_PASSPHRASE", "wrong")
    result = cli("key", "show")
    assert result.code == 3
    one_sentence(result)
    assert "tulip-43" not in result.err
    monkeypatch.delenv("GDF_PASSPHRASE")
    assert cli("key", "show").code == 3


def test_no_network_exit_2(cli) -> None:  # type: ignore[no-untyped-def]
    assert cli("init").code == 0
    result = cli("jobs", "ls")
    assert result.code == 2
    one_sentence(result)
    assert "--join" in result.err


def test_no_running_node_exit_4(cli) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    result = cli("status")
    assert result.code == 4
    one_sentence(result)


@pytest.mark.parametrize("amount", ["-1", "many", "1e999", "0.0000001", "0"])
def test_bad_amount_exit_2(cli, amount: str) -> None:  # type: ignore[no-untyped-def]
    account = "12D3KooWEYXdNqpdCfUwGUfHTSTXnjGb8GJ8PGQ9BJ7ACcuzQVpP"
    assert cli("init", "--new-network", "home").code == 0
    result = cli("wallet", "send", "--", account, amount)
    assert result.code == 2
    one_sentence(result)


def test_bad_account_exit_2(cli) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    result = cli("wallet", "send", "12D3KooWnobody", "1")
    assert result.code == 2
    one_sentence(result)
    assert "12D3KooWnobody" in result.err


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import does_not_exist\n", "does_not_exist"),
        ("x = 1\n", "declares no job"),
        ("def broken(:\n", "invalid syntax"),
        (
            "import torch\nfrom gdf_market import Job\n"
            "class M(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.w = torch.nn.Parameter(torch.ones(1))\n"
            "    def forward(self, a, b):\n"
            "        return torch.fft.fft(a * self.w).real.sum()\n"
            "job = Job(model=M(), data='abc' * 500, context=8)\n",
            "fft",
        ),
        (
            "import torch\nfrom gdf_market import Job\n"
            "class M(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.w = torch.nn.Parameter(torch.ones(1))\n"
            "    def forward(self, a, b):\n"
            "        if (self.w * a.sum()).item() > 3:\n"
            "            return self.w.sum()\n"
            "        return (2 * self.w).sum()\n"
            "job = Job(model=M(), data='abc' * 500, context=8)\n",
            "captur",
        ),
        (
            "import torch\nfrom gdf_market import Job\njob = Job(model=torch.nn.Linear(2, 2), data='missing.txt')\n",
            "missing.txt",
        ),
        ("import torch\nfrom gdf_market import Job\njob = Job(model=torch.nn.Linear(2, 2), data='')\n", "empty"),
    ],
)
def test_a_bad_job_file_is_refused_before_anything_is_signed(  # type: ignore[no-untyped-def]
    cli, tmp_path: Path, source: str, word: str
) -> None:
    assert cli("init", "--new-network", "home").code == 0
    file = tmp_path / "job.py"
    file.write_text(source, encoding="utf-8")
    result = cli("post", str(file))
    assert result.code == 2, result.err
    one_sentence(result)
    assert word in result.err
    assert str(file) in result.err or word in ("fft", "captur")
    assert not list((tmp_path / "node" / "blobs").glob("*"))


def test_a_missing_job_file_exit_2(cli) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    result = cli("post", "nowhere.py")
    assert result.code == 2
    one_sentence(result)
    assert "nowhere.py" in result.err


@pytest.mark.parametrize("price", ["0", "free", "-2"])
def test_a_bad_price_exit_2(cli, price: str) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    result = cli("post", "nowhere.py", f"--max-price={price}")
    assert result.code == 2
    one_sentence(result)


def test_a_port_in_use_names_the_port(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = cli("node", "run", "--listen", f"127.0.0.1:{port}")
    assert result.code == 1, result.err
    one_sentence(result)
    assert str(port) in result.err
    assert not (tmp_path / "node" / "node.lock").exists()


def test_a_second_node_on_one_folder_is_refused(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    with DataDir(tmp_path / "node").lock():
        result = cli("node", "run")
    assert result.code == 2
    one_sentence(result)
    assert "another gdf-market node" in result.err


def test_verify_names_a_file_that_is_no_export(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    missing = cli("ledger", "verify", str(tmp_path / "none"))
    assert missing.code == 2
    one_sentence(missing)
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"\x00\xff{}\n" * 10)
    result = cli("ledger", "verify", str(nonsense))
    assert result.code == 5
    one_sentence(result)


def test_a_second_demo_in_one_folder_is_refused(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "run"
    with demo_folder(folder):
        (folder / "alice.log").write_text("at work", encoding="utf-8")
        result = cli("demo", "--dir", str(folder))
        assert result.code == 2
        one_sentence(result)
        assert "another demo" in result.err
        assert (folder / "alice.log").read_text(encoding="utf-8") == "at work"
    with demo_folder(folder):
        assert not (folder / "alice.log").exists()
    assert [path.name for path in folder.iterdir()] == [".gdf-demo"]


@pytest.mark.parametrize("option", ["--join", "--new-network"])
def test_an_empty_value_is_no_network(cli, tmp_path: Path, option: str) -> None:  # type: ignore[no-untyped-def]
    result = cli("init", option, "")
    assert result.code == 2
    one_sentence(result)
    assert not (tmp_path / "node").exists()


def test_a_job_file_that_is_a_folder_or_binary_is_named(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    assert "is a folder" in cli("post", str(tmp_path)).err
    binary = tmp_path / "model.py"
    binary.write_bytes(b"\0\0\0")
    result = cli("post", str(binary))
    assert result.code == 2
    one_sentence(result)
    assert str(binary) in result.err


def test_demo_wipes_only_its_own_folder(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work", encoding="utf-8")
    result = cli("demo", "--dir", str(precious))
    assert result.code == 2
    one_sentence(result)
    assert (precious / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_bad_setting_names_it(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert cli("init", "--new-network", "home").code == 0
    (tmp_path / "node" / "config.toml").write_text("units = 'many'\n", encoding="utf-8")
    result = cli("node", "run")
    assert result.code == 2
    one_sentence(result)
    assert "units" in result.err
