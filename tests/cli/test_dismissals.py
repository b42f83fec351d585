"""Lost brokers that an operator dismissed are no longer shown as lost, and it is said who dismissed them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from statechannel.cli import brokers
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.checks_channel import CHECKS
from statechannel.cli.kit.remarks import Remarks
from statechannel.cli.status.figures import StatusInputs, figures
from statechannel.engine.commands import Done, Outcome, Rejected
from statechannel.errors import ExitCode
from statechannel.operations import outcomes
from statechannel.operations.request_record import Reply, Request
from statechannel.stories.registry import Registry, still_lost
from statechannel.stories.requests import Dismissal, Dismissals, RequestFold
from tests.support.doctor_facts import NOW_MS, healthy, heartbeat, registry
from tests.support.request_world import logged

DISMISSED = Done("", "dismissed", {"incarnation": "b2-1", "last_heard_ms": 1})
ALIVE = Rejected("broker-alive", "b2 is alive")
BEATS = ((0.5, heartbeat("b1")), (300.0, heartbeat("b2")), (200.0, heartbeat("b3")))


def request(number: int, **args: Any) -> Request:
    return Request(f"id-{number}", "dismiss-broker", 0, args, "ann@desk")


def reply(number: int, outcome: Outcome) -> Reply:
    answer = outcomes.to_json(outcome) | {"answer": outcomes.answer_of(outcome).value}
    return Reply(f"id-{number}", "b1", "b1-1", answer)


def dismissals(*items: Request | Reply) -> Dismissals:
    fold = RequestFold()
    fold.take(logged(*items, at_ms=NOW_MS))
    return fold.dismissals


def lost() -> Registry:
    return registry(*BEATS)["registry"]


def lost_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the last minute are kept, too, as when the whole topic is read."""
    monkeypatch.setattr("statechannel.stories.registry._LEAST_WINDOW_S", 3_600.0)


@pytest.mark.parametrize(
    ("items", "dismissed"),
    [
        ([request(0, broker="b2", reason="disk gone"), reply(0, DISMISSED)], {("b2", "b2-1"): "disk gone"}),
        ([request(0, broker="b2"), reply(0, DISMISSED)], {("b2", "b2-1"): ""}),
        ([request(0, broker="b2")], {}),
        ([request(0, broker="b2"), reply(0, ALIVE), reply(0, DISMISSED)], {}),
        ([reply(0, DISMISSED)], {}),
        ([request(0, broker="b2"), reply(0, Done("", "dismissed"))], {}),
        ([Request("id-0", "resume-repair", 0, {"broker": "b2"}, "me"), reply(0, DISMISSED)], {}),
    ],
)
def test_those_that_the_leader_accepted(items: list[Request | Reply], dismissed: Mapping[Any, str]) -> None:
    found = dismissals(*items)
    assert {key: item.why for key, item in found.items()} == dismissed
    assert all((item.by, item.at_ms) == ("ann@desk", NOW_MS) for item in found.values())
    following = RequestFold(1, keeps_args=False)  # that of the page and the API
    following.take(logged(*items, request(9)))
    assert following.dismissals.keys() == dismissed.keys()


def test_one_that_was_lost_again_since_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_for_an_hour(monkeypatch)
    known = {key: Dismissal(*key, NOW_MS) for key in (("b2", "b2-1"), ("b3", "b3-0"))}
    seen = lost().without(known)
    assert set(seen.members.lost) == {"b3"}
    assert [item.broker for item in seen.dismissed] == ["b2"]
    members = lost().members
    assert (set(still_lost(members, known).lost), set(members.lost)) == ({"b3"}, {"b2", "b3"})


def test_status_and_doctor_say_who_dismissed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_for_an_hour(monkeypatch)
    known = dismissals(request(0, broker="b2", reason="disk gone"), reply(0, DISMISSED))
    seen = registry(*BEATS)
    facts = replace(healthy(), **seen | {"registry": seen["registry"].without(known)})
    (warning,) = (finding for finding in examine(CHECKS, facts) if "not back" in finding.what)
    assert "b3" in warning.what
    assert "b2" not in warning.what
    assert "`statechannel broker dismiss b3`" in warning.todo
    (info,) = (finding for finding in examine(CHECKS, facts) if "dismissed" in finding.what)
    assert info.severity is Severity.INFO
    assert info.what.startswith("b2 was dismissed by ann@desk: disk gone (")

    views: Any = type("Views", (), {"parts": (), "newest_ms": (), "tentative": False, "live": lambda _: []})()
    assert facts.registry is not None
    fields = figures(
        views, facts.registry, StatusInputs(seen["story"]), Remarks(), channel="c", bootstrap_servers="a:1"
    )
    assert [row["broker"] for row in fields["brokers"]] == ["b1", "b3"]
    assert fields["dismissed"] == [
        {"broker": "b2", "incarnation": "b2-1", "at_ms": NOW_MS, "by": "ann@desk", "reason": "disk gone"}
    ]
    assert (NOW_MS, "dismissed") in [(incident["at_ms"], incident["kind"]) for incident in fields["incidents"]]


def test_a_dry_run_refuses_as_the_leader_would(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    lost_for_an_hour(monkeypatch)
    monkeypatch.setattr(brokers, "read_registry", lambda *_, **__: lost())
    words = ("broker", "dismiss", "--dry-run", "-b", "127.0.0.1:1", "-o", "json")
    document = json.loads(run(*words, "b2").stdout)
    assert (document["broker"], document["incarnation"], document["dry_run"]) == ("b2", "b2-1", True)
    for broker, reason in (("b1", "broker-alive"), ("b9", "broker-not-lost")):
        refused = run(*words, broker)
        assert refused.exit_code == ExitCode.REJECTED
        assert reason in refused.stderr
