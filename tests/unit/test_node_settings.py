"""Settings: flag over environment over file over default, and every bad value named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdf_market.errors import UsageError
from gdf_market.node.settings import load_settings


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("UNITS", "MIN_PRICE", "BOOTSTRAP", "LISTEN_PORT"):
        monkeypatch.delenv(f"GDF_{name}", raising=False)
    return tmp_path / "config.toml"


def test_flag_over_environment_over_file_over_default(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(config).units == 1
    config.write_text("units = 2\nlisten_port = 4001\n", encoding="utf-8")
    assert load_settings(config).units == 2
    monkeypatch.setenv("GDF_UNITS", "3")
    assert load_settings(config).units == 3
    assert load_settings(config, units=4).units == 4
    assert load_settings(config, units=None).units == 3
    assert load_settings(config, units=4).listen_port == 4001


def test_rates_and_sizes_may_be_text(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_LIMIT_UP", "500k")
    config.write_text('limit_down = "1.5MB/s"\nblob_quota = "20GiB"\n', encoding="utf-8")
    found = load_settings(config)
    assert (found.limit_up, found.limit_down, found.blob_quota) == (500_000, 1_500_000, 20 << 30)
    assert load_settings(config, limit_up="0").limit_up == 0


def test_two_folders_do_not_mix(config: Path, tmp_path: Path) -> None:
    config.write_text("units = 2\n", encoding="utf-8")
    assert load_settings(config).units == 2
    assert load_settings(tmp_path / "elsewhere.toml").units == 1


def test_addresses_in_the_environment_are_separated_by_commas(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_BOOTSTRAP", "/ip4/10.0.0.1/tcp/1/p2p/a, /ip4/10.0.0.2/tcp/1/p2p/b,")
    assert load_settings(config).bootstrap == ["/ip4/10.0.0.1/tcp/1/p2p/a", "/ip4/10.0.0.2/tcp/1/p2p/b"]
    config.write_text('bootstrap = ["one", "two"]\n', encoding="utf-8")
    monkeypatch.delenv("GDF_BOOTSTRAP")
    assert load_settings(config).bootstrap == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("units = 'many'", ("units", "many")),
        ("limit_up = '2 bananas'", ("limit_up", "2 bananas", "1.5MB/s")),
        ("limit_down = 1000", ("limit_down", "1000", "64000")),
        ("blob_quota = '8Mbit'", ("blob_quota", "8Mbit", "20GiB")),
        ("units = 65", ("units", "65")),
        ("units = 1.5", ("units", "1.5")),
        ("min_price = 0", ("min_price", "0")),
        ("listen_port = 65536", ("listen_port", "65536")),
        ("bootstrap = 3", ("bootstrap", "3")),
        ("device_class = 'tpu'", ("tpu", "cpu-fp32", "cuda-fp32")),
        ("devices = ['gpu']", ("devices", "gpu")),
        ("devices = ['cuda:0']", ("cuda:0", "cpu-fp32", "device_class")),
        ("unit = 2", ("'unit'", "units")),
        ("units = ", ("not valid TOML",)),
        ("units = '\udcff'", ("not valid TOML",)),
    ],
)
def test_a_bad_file_names_the_setting(config: Path, text: str, words: tuple[str, ...]) -> None:
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        load_settings(config)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_bad_variable_names_the_setting(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDF_MIN_PRICE", "cheap")
    with pytest.raises(UsageError, match="min_price='cheap'"):
        load_settings(config)


def test_an_unreadable_file_is_named(config: Path) -> None:
    config.mkdir()
    with pytest.raises(UsageError, match=r"config\.toml"):
        load_settings(config)


def test_devices_are_of_the_class(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(config).torch_devices() == ("cpu",)
    assert load_settings(config, device_class="cuda-fp32").torch_devices() == ("cuda",)
    monkeypatch.setenv("GDF_DEVICES", "cuda:0, cuda:1")
    assert load_settings(config, device_class="cuda-fp32").torch_devices() == ("cuda:0", "cuda:1")
