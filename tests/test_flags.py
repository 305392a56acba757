"""The rules of flags are those by which the engine flags."""

from __future__ import annotations

import pytest

from ringmark import flags
from ringmark.bench import environment, nvml, timer


def test_a_complaint_of_the_machine_is_a_flag_wherever_it_is_asked() -> None:
    hot = {"gpu": {"throttle_reasons": ["gpu_idle", *flags.COMPLAINTS]}}
    cool = {"gpu": {"value": None, "reason": "the device is a CPU"}}
    found = {"before": {"ranks": [cool, hot]}, "after": {"ranks": [hot, cool]}}
    assert flags.throttled(found) == environment.throttled(found)
    assert len(flags.throttled(found)) == 2 * len(flags.COMPLAINTS)
    assert flags.COMPLAINTS == nvml.COMPLAINTS


@pytest.mark.parametrize("torn", [{}, {"before": 3}, {"after": {"ranks": [None, {"gpu": "x"}]}}])
def test_an_environment_without_states_complains_of_nothing(torn: dict) -> None:
    assert flags.throttled(torn) == []


def test_clocks_disagree_by_the_rule_of_the_timer() -> None:
    assert flags.DISAGREEMENT_ALLOWED == timer.DISAGREEMENT_ALLOWED
    assert flags.DISAGREEMENT_FLOOR_MS == timer.DISAGREEMENT_FLOOR_MS
    assert flags.of_clocks(0.021, 0.11) == ["clocks_disagree"]
    assert flags.of_clocks(0.021, 0.09) == flags.of_clocks(0.019, 5.0) == []
