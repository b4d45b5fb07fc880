"""Each rule of agreement, removed, must be noticed by the simulation: otherwise the simulation proves nothing."""

from __future__ import annotations

import pytest

from tests.sim.mutations import CASES, SEEDS, first_to_notice, run
from tests.simulator import cached_crypto


@pytest.mark.parametrize("name", CASES)
def test_simulation_notices(name: str) -> None:
    case = CASES[name]
    assert first_to_notice(case, case.first) is not None, f"{SEEDS} networks did not notice: {name}"


@pytest.mark.parametrize("name", CASES)
def test_unmutated_survives(name: str) -> None:
    with cached_crypto():
        run(CASES[name], CASES[name].first, sound=True)
