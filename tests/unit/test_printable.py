"""What others wrote does not steer the terminal of whoever reads: neither results nor the broker's own log."""

import io
import logging
import sys

import pytest

from statechannel.broker.observe.event_log import EventLog
from statechannel.cli import watch
from statechannel.cli.broker import set_up_logs
from statechannel.cli.kit.fitted_tables import cell
from statechannel.engine.effects import Emit
from statechannel.logger import SafeLogger
from statechannel.printable import one_line, printable, printable_lines
from statechannel.protocol.verdict import Verdict
from statechannel.settings import load
from statechannel.stories.bundle import HistoryLine
from tests.support.log_lines import capture_logs

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mFAKE\x9b31m\u202egnp\x7f\udc80"
CONTROLS = frozenset("\x1b\x07\x9b\u202e\x7f\udc80")


def test_one_table_for_results_and_log_lines() -> None:
    assert not CONTROLS & set(printable(EVIL))
    assert cell(EVIL) == printable(EVIL) == printable_lines(EVIL)
    assert printable("a\nb") == "a\ufffdb"
    assert one_line("  a\r\n\tb\x1b  c ") == "a b\ufffd c"
    assert printable_lines("a\n\tb") == "a\n\tb"
    assert printable("Zürich, 東京 🙂") == printable_lines("Zürich, 東京 🙂") == "Zürich, 東京 🙂"


def test_a_line_of_watch_has_none() -> None:
    line = HistoryLine(0, 1, 2, EVIL, Verdict.ACCEPTED, "change", reason=EVIL, note=EVIL)
    assert not CONTROLS & set(watch._text(line))


def test_values_within_values_are_made_harmless_and_others_left() -> None:
    result = printable_lines({"lost": {EVIL: [EVIL, 3, None]}, "count": 7})
    assert not CONTROLS & set(repr(result).replace("\\", ""))
    assert result["count"] == 7
    assert list(result["lost"].values()) == [[printable(EVIL), 3, None]]


def test_events_have_no_controls_whatever_the_embedder_does_with_them() -> None:
    facts = {"operation": EVIL, "flow": EVIL, "bundle": "b", "result": EVIL, "offset": 1}
    with capture_logs() as lines:
        EventLog("b1").take(Emit("operation.ended", facts))
        SafeLogger("x").warning("late", why=EVIL)
    assert [line["event"] for line in lines] == ["operation.ended", "late"]
    assert not CONTROLS & set("".join(str(value) for line in lines for value in line.values()))


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_brokers_own_log_has_none(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logs(load(flags=[f"observe.log_format={form}"]))
    SafeLogger("x").warning("late", why=EVIL)
    try:
        int(EVIL)
    except ValueError as error:
        error.args = (EVIL,)
        SafeLogger("x").exception("failed")
    logging.getLogger("librdkafka").warning("FAIL %s", EVIL)
    text = stream.getvalue()
    assert "late" in text
    assert "ValueError" in text
    assert "FAIL" in text
    assert not CONTROLS & set(text)
