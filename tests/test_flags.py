"""What becomes a flag, by the rules that the engine and `ringmark check` share."""

from __future__ import annotations

import pytest

from ringmark import flags
from ringmark.bench import nvml


def test_a_complaint_of_the_machine_is_a_flag_wherever_it_is_asked() -> None:
    hot = {"gpu": {"throttle_reasons": ["gpu_idle", *flags.COMPLAINTS]}}
    cool = {"gpu": {"value": None, "reason": "the device is a CPU"}}
    found = {"before": {"ranks": [cool, hot]}, "after": {"ranks": [hot, cool]}}
    assert len(flags.throttled(found)) == 2 * len(flags.COMPLAINTS)
    assert set(flags.COMPLAINTS) < set(nvml.THROTTLE_BITS.values())


@pytest.mark.parametrize("torn", [{}, {"before": 3}, {"after": {"ranks": [None, {"gpu": "x"}]}}])
def test_an_environment_without_states_complains_of_nothing(torn: dict) -> None:
    assert flags.throttled(torn) == []


def test_clocks_disagree_above_two_percent_and_a_tenth_of_a_millisecond() -> None:
    assert flags.of_clocks(0.021, 0.11) == ["clocks_disagree"]
    assert flags.of_clocks(0.021, 0.09) == flags.of_clocks(0.019, 5.0) == []
