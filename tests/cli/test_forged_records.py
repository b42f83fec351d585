"""Records in a broker's name that it did not write: its event, and what status and the page say of them for an hour."""

from dataclasses import replace
from typing import Any

import pytest

from statechannel.audit.views import LogViews
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.cli.kit.remarks import Remarks
from statechannel.cli.status.figures import StatusInputs, figures, with_health
from statechannel.engine.context import Context
from statechannel.http_api.page.page_view import PageView
from statechannel.settings import load
from statechannel.stories.incident import FORGED_SHOWN_MS, ForgedRecords, forged_of
from tests.cli.test_status_view import LIMITS
from tests.support.doctor_facts import NOW_MS, healthy, heartbeat, registry
from tests.support.http_fakes import broker_row, look_of
from tests.unit.core.test_provenance import Served, heartbeats

SEEN = {"records": 2, "topic": "channel", "partition": 0, "offset": 1059}
HOUR_S = FORGED_SHOWN_MS / 1_000


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (SEEN, ForgedRecords(2, "channel", 0, 1059, 9)),
        (SEEN | {"timestamp_ms": 5}, ForgedRecords(2, "channel", 0, 1059, 5)),
        (SEEN | {"timestamp_ms": "5"}, ForgedRecords(2, "channel", 0, 1059, 9)),
        (SEEN | {"topic": "t" * 30}, ForgedRecords(2, "t" * 20, 0, 1059, 9)),
        (SEEN | {"records": 0}, None),
        (SEEN | {"topic": 7}, None),
        (SEEN | {"offset": -1}, None),
        (SEEN | {"records": True}, None),
        (SEEN | {"partition": None}, None),
        (None, None),
        ([], None),
    ],
)
def test_the_field_of_a_heartbeat(fields: Any, expected: ForgedRecords | None) -> None:
    assert forged_of({"forged": fields}, 9) == expected


def said(*beats: tuple[float, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What `status` and the page call a problem, by the heartbeats of so many seconds ago."""
    seen = registry(*beats)
    place = {"channel": "c", "bootstrap_servers": "k:1"}
    document = figures(LogViews((), ()), seen["registry"], StatusInputs(seen["story"]), Remarks(), **place)
    problems = with_health(document, LIMITS)["problems"]
    view = PageView(load())
    for ago_s, info in beats:
        found = forged_of(info, NOW_MS - round(ago_s * 1_000))
        forged = {} if found is None else {(info["broker"], info["incarnation"]): found}
        view.look(look_of([broker_row("b1", leading=True)], at_ms=NOW_MS)._replace(forged=forged))
    page = [problem for problem in view.sections()["problems"] if problem["kind"] == "forged"]
    assert all(problem["severe"] and problem["hint"] for problem in page)
    shown = [problem["message"] for problem in problems if problem["reason"] == "forged"]
    return shown, [problem["message"] for problem in page]


NOW = (0.4, heartbeat("b1"))
SENTENCE = (
    "b2 has read 2 records in its own name that it did not write, the newest in the channel at partition 0, offset 1059"
)


@pytest.mark.parametrize(
    "beats",
    [
        [(0.5, heartbeat("b2", forged=SEEN))],
        [(600.0, heartbeat("b2", forged=SEEN)), (590.0, heartbeat("b2", forged=SEEN, leaving=True))],
        [(600.0, heartbeat("b2", forged=SEEN)), (0.5, heartbeat("b2", incarnation="b2-again"))],
        [(HOUR_S, heartbeat("b2", forged=SEEN)), (0.5, heartbeat("b2", seq=2, forged=SEEN))],
    ],
    ids=["now", "left", "restarted", "an hour ago"],
)
def test_status_and_page_say_it_for_an_hour_also_of_a_process_that_has_ended(beats: list[tuple[float, dict[str, Any]]]):
    assert said(*beats, NOW) == ([SENTENCE], [SENTENCE])


def test_later_it_is_no_problem_any_more_though_the_process_goes_on() -> None:
    old = SEEN | {"timestamp_ms": NOW_MS - FORGED_SHOWN_MS - 1}
    assert said((0.5, heartbeat("b2", forged=old)), NOW) == ([], [])


def test_it_is_a_finding_though_nobody_is_alive() -> None:
    gone = registry((600.0, heartbeat("b2", forged=SEEN)), (590.0, heartbeat("b2", forged=SEEN, leaving=True)))
    findings = [item for item in examine(CHECKS, replace(healthy(), **gone)) if item.check == "forged"]
    assert [item.severity for item in findings] == [Severity.CRITICAL]


def test_a_broker_that_reads_one_raises_the_event_and_everybody_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, Any]] = []
    emit = Context.emit

    def spy(self: Context, event: str, **facts: Any) -> None:
        if event == "record.forged":
            events.append(facts)
        emit(self, event, **facts)

    monkeypatch.setattr(Context, "emit", spy)
    served = Served()
    served.forge("Assigned", version=1)
    served.world.run(2)
    assert [(facts["topic"], facts["partition"], facts["state"]) for facts in events] == [("channel", 0, "Assigned")]
    beat = heartbeats(served, served.owner)[-1]
    assert beat["forged"]["offset"] == events[0]["offset"]
    told = beat["forged"] | {"timestamp_ms": NOW_MS}
    sentence = f"{served.owner} has read 1 record in its own name that it did not write, the newest in the channel at "
    for messages in said((0.5, heartbeat(served.owner, forged=told)), NOW):
        assert [message.startswith(sentence) for message in messages] == [True]
