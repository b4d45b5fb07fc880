"""Settings of a node: flag over ``GDF_*`` environment over ``config.toml`` over default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from contracts.parameters import DEVICE_CLASSES
from gdf_market.errors import UsageError
from gdf_market.node.addresses import check_announce, is_loopback
from gdf_market.node.availability import Limits, parse_hours
from gdf_market.node.limits import MAX_ADDRESSES, MIN_RATE_BYTES_PER_S
from gdf_market.sizes import parse_bytes, parse_rate
from gdf_market.train.protocol import DEVICE_PATTERN, MAX_DEVICES
from gdf_market.units import CREDIT

Device = Annotated[str, Field(pattern=DEVICE_PATTERN)]

_config_file: list[Path] = []  # set around construction; pydantic-settings builds its sources in a class method


def default_data_dir() -> Path:
    """Return the platform's data folder for this program."""
    return Path(platformdirs.user_data_dir("gdf-market", appauthor=False))


def torch_device(device_class: str) -> str:
    """Return what torch calls the device of a class such as cuda-fp32."""
    return "cuda" if device_class.startswith("cuda") else "cpu"


def _number(parse: Callable[[str], int], given: object) -> object:
    """Return the number of a text; pydantic names the setting of a ValueError, and checks what is no text."""
    try:
        return parse(given) if isinstance(given, str) else given
    except UsageError as error:
        raise ValueError(str(error)) from None


class Settings(BaseSettings):
    """One field per setting; the same names serve as ``GDF_<NAME>`` and in ``config.toml``."""

    model_config = SettingsConfigDict(env_prefix="GDF_", extra="ignore")

    listen_host: str = "127.0.0.1"
    listen_port: int = Field(default=0, ge=0, le=65_535)
    bulk_port: int = Field(default=0, ge=0, le=65_535)
    bootstrap: Annotated[list[str], NoDecode] = []  # multiaddrs of peers; in GDF_BOOTSTRAP separated by commas
    announce: Annotated[list[str], NoDecode] = Field(default=[], max_length=MAX_ADDRESSES)  # docs/network.md
    lan: bool = True  # find nodes on the local network, and be found, unless listen_host is loopback
    relay: bool = True  # pass bytes for members that cannot be dialled, if this node can be
    device_class: str = "cpu-fp32"
    devices: Annotated[list[Device], NoDecode] = Field(default=[], max_length=MAX_DEVICES)  # none: that of the class
    memory_bytes: int = Field(default=0, ge=0)  # of a unit, per device; 0: what is sensible here
    threads: int = Field(default=0, ge=0, le=1_024)  # torch threads; 0 lets torch choose
    min_price: int = Field(default=CREDIT // 10, ge=1)  # micro-credits per unit this worker asks for
    units: int = Field(default=1, ge=1, le=64)  # units per round this worker offers
    work_hours: str = ""  # 22:00-07:00,12:30-13:30 in local time; nothing: at any time
    on_battery: bool = False  # work while the machine is not plugged in
    max_temperature_c: int = Field(default=0, ge=0, le=120)  # of a GPU, in degrees Celsius; 0: no limit
    leave_free_bytes: int = Field(default=0, ge=0)  # of a GPU's memory, for its owner's programs
    metrics_port: int = Field(default=0, ge=0, le=65_535)  # Prometheus on 127.0.0.1; 0: none
    notify: Annotated[list[str], NoDecode] = Field(
        default=[], max_length=32
    )  # program and arguments; a sentence is added
    sync: Literal["full", "snapshot"] = "full"  # how a new ledger begins: every block, or a peer's verified snapshot
    keep_epochs: int = Field(default=0, ge=0)  # epochs whose blocks stay when older ones are deleted; 0 keeps all
    max_blob_bytes: int = Field(default=4 << 30, ge=1 << 20)
    limit_up: int = Field(default=0, ge=0)  # bytes a second to all peers together, or text such as 500k; 0: no limit
    limit_down: int = Field(default=0, ge=0)  # the same from all peers
    blob_quota: int = Field(default=0, ge=0)  # bytes of blobs on this disk, or text such as 20GiB; 0: what is sensible
    blob_copies: int = Field(default=3, ge=1, le=16)  # nodes that should hold what a job needs (docs/blobs.md)
    blob_keep_days: int = Field(default=7, ge=0, le=365)  # for so long the blobs of a job that ended stay
    log_level: str = "warning"

    @field_validator("work_hours")
    @classmethod
    def _check_hours(cls, given: str) -> str:
        parse_hours(given)
        return given

    @field_validator("announce", "bootstrap", "devices", "notify", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given

    @field_validator("limit_up", "limit_down", mode="before")
    @classmethod
    def _rate(cls, given: object) -> object:
        return _number(parse_rate, given)

    @field_validator("blob_quota", mode="before")
    @classmethod
    def _bytes(cls, given: object) -> object:
        return _number(parse_bytes, given)

    @field_validator("limit_up", "limit_down")
    @classmethod
    def _least(cls, rate: int) -> int:
        if 0 < rate < MIN_RATE_BYTES_PER_S:
            raise ValueError(f"at least {MIN_RATE_BYTES_PER_S} bytes a second are needed; 0 is no limit")
        return rate

    @field_validator("announce")
    @classmethod
    def _check_announced(cls, given: list[str]) -> list[str]:
        try:
            return [check_announce(address) for address in given]
        except UsageError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _devices_of_class(self) -> Settings:
        if self.device_class not in DEVICE_CLASSES:
            raise ValueError(f"device_class {self.device_class!r} is none of {', '.join(DEVICE_CLASSES)}")
        kind = torch_device(self.device_class)
        for device in self.devices:
            if not device.startswith(kind):
                raise ValueError(f"device {device} is not of the class {self.device_class}; set device_class, too")
        return self

    def work_limits(self) -> Limits:
        """Return when this machine may be lent.  Raises UsageError for hours that are none."""
        return Limits(
            hours=parse_hours(self.work_hours),
            on_battery=self.on_battery,
            max_temperature_c=self.max_temperature_c,
            leave_free_bytes=self.leave_free_bytes,
        )

    def uses_lan(self) -> bool:
        """Say whether this node announces itself on the local network: not if it listens to this machine alone."""
        return self.lan and not is_loopback(self.listen_host)

    def torch_devices(self) -> tuple[str, ...]:
        """Return the devices on which a unit is computed, as torch names them; at least one."""
        return tuple(self.devices) or (torch_device(self.device_class),)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _TomlSource(settings_cls))


class _TomlSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise AssertionError("values come from __call__")

    def __call__(self) -> dict[str, Any]:
        path = _config_file[-1] if _config_file else None
        if path is None:
            return {}
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not valid TOML: {error}") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        for name in found:
            if name not in self.settings_cls.model_fields:
                known = ", ".join(sorted(self.settings_cls.model_fields))
                where = f"{path}{_line_of(path, name)}"
                raise UsageError(f"{where}: there is no setting {name!r}; the settings are {known}")
        return found


def _line_of(path: Path, name: str) -> str:
    """Return ", line N" where the file sets a setting first; "" if it does not."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    found = (number for number, line in enumerate(lines, 1) if line.split("=")[0].strip().strip("\"'") == name)
    number = next(found, 0)
    return f", line {number}" if number else ""


def load_settings(config: Path, **flags: Any) -> Settings:
    """Return the settings for a data folder; ``flags`` that are None count as not given.

    Raises UsageError naming the setting and the value that does not fit.
    """
    _config_file.append(config)
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        where = f"setting {name}={first['input']!r}" if name else "settings"
        key = str(first["loc"][0]) if name else ""
        elsewhere = flags.get(key) is not None or f"GDF_{key.upper()}" in os.environ  # these win over the file
        line = "" if elsewhere else _line_of(config, key)
        raise UsageError(f"{where}{f' ({config}{line})' if line else ''}: {first['msg']}") from None
    except SettingsError as error:
        raise UsageError(f"a setting in the environment is unusable: {error}") from None
    finally:
        _config_file.pop()
