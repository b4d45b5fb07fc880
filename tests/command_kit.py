"""Calling the command line inside a test's own process."""

from __future__ import annotations

import sys

import pytest

from gdf_market.commands import main


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of ``gdf-market`` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["gdf-market", *arguments])
    code = 0
    try:
        main()
    except SystemExit as error:
        code = int(error.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err
