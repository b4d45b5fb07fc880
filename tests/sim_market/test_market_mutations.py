"""Each promise of the market, broken, must be noticed by the simulation: otherwise the simulation proves nothing."""

from __future__ import annotations

import pytest

from tests.sim_market.mutations import CASES, SEEDS, first_to_notice


@pytest.mark.parametrize("name", CASES)
def test_simulation_notices(name: str) -> None:
    assert first_to_notice(CASES[name]) is not None, f"{SEEDS} markets did not notice: {name}"
