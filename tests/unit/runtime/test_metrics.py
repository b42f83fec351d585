"""What the engine tells, at the level at which an operator wants to hear it."""

import pytest

from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.context import Mode
from statechannel.engine.effects import Emit
from tests.support.log_lines import capture_logs


@pytest.mark.parametrize(
    ("before", "mode", "level"),
    [
        (Mode.STARTING, Mode.NORMAL, "info"),
        (Mode.SETTLING, Mode.NORMAL, "info"),
        (Mode.NORMAL, Mode.SAFE, "warning"),
        (Mode.SAFE, Mode.SETTLING, "warning"),
    ],
)
def test_only_a_mode_that_is_not_normal_is_a_warning(before: Mode, mode: Mode, level: str) -> None:
    with capture_logs() as lines:
        Metrics("c", "b1").take(Emit("mode.changed", {"before": before, "mode": mode}))
    assert [(line["event"], line["log_level"]) for line in lines] == [("mode.changed", level)]


def test_what_is_empty_is_not_said() -> None:
    with capture_logs() as lines:
        Metrics("c", "b1").take(
            Emit("replica.phase", {"partition": 0, "before": "closed", "phase": "reading", "why": ""})
        )
    assert "why" not in lines[0]
    assert lines[0]["partition"] == 0
