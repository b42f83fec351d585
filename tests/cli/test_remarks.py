"""What policies add to `brokers` and `status`: an operator looks there first."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli import plugins as of_policies
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author, PolicyKey, PolicyRecord, encode
from shedders.policies.topic import DeletionNote, PolicyChange, PolicyChanges, policy_changes
from shedders.queries import policies as cordon_queries
from shedders.queries.policies import unapplied
from statechannel.cli.doctor.checks import Severity
from statechannel.cli.kit import remarks
from statechannel.cli.kit.remarks import Remarks
from statechannel.conditions.facts import ConditionLimits
from statechannel.conditions.table import current
from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError
from statechannel.operations.request_record import Reply, Request
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings import load
from statechannel.stories.incident import IncidentKind
from tests.support.doctor_facts import healthy, with_standing
from tests.support.http_fakes import broker_row
from tests.support.request_world import stories
from tests.unit.audit.test_story import LOWER, UPPER

NOW_MS = 1_000_000


def book(*records: PolicyRecord) -> PolicyBook:
    book = PolicyBook()
    for offset, record in enumerate(records):
        book.take(offset, NOW_MS, record.key.encode(), encode(record))
    return book


def changes(*records: PolicyRecord) -> PolicyChanges:
    rows = [
        RecordRead(Topic.REQUESTS, 0, offset, NOW_MS, record.key.encode(), encode(record))
        for offset, record in enumerate(records)
    ]
    return policy_changes(rows, low=0, end=len(rows))


def record(kind: PolicyKind, name: str, *, until_ms: int | None = None, **value: Any) -> PolicyRecord:
    return PolicyRecord(PolicyKey(kind, name, until_ms is not None), value, "ann@desk", "new disks", until_ms, NOW_MS)


def said(
    monkeypatch: pytest.MonkeyPatch, *records: PolicyRecord, brokers: Mapping[str, Member] | None = None
) -> Remarks:
    monkeypatch.setattr(of_policies, "book_of", lambda _: book(*records))
    monkeypatch.setattr(of_policies, "changes_of", lambda _: (changes(*records), book(*records)))
    monkeypatch.setattr(of_policies, "now_ms", lambda: NOW_MS + 1)
    return of_policies.policy_remarks(SimpleNamespace(), brokers or {})  # type: ignore[arg-type]


def test_nothing_is_laid_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch) == Remarks([], {})


def test_cordons_shedding_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = said(
        monkeypatch,
        record(PolicyKind.CORDON, "b2"),
        record(PolicyKind.SHEDDING, "cluster", until_ms=NOW_MS + 60_000, on=False),
        record(PolicyKind.CORDON, "b3", until_ms=NOW_MS),
    )
    assert remarks.brokers == {"b2": "cordoned (ann@desk: new disks)"}
    assert remarks.cluster[0].startswith("shedding is off")
    assert remarks.cluster[1:] == ["1 override is in force (`statechannel override list`)"]


def alive(*extensions: list[str] | None) -> dict[str, Member]:
    infos = [{} if names is None else {"extensions": names} for names in extensions]
    return {f"b{number}": Member(f"b{number}", "i", 0.0, 0, 0, info) for number, info in enumerate(infos, 1)}


POLICY = record(PolicyKind.ISOLATION, "gold", namespaces=["t/n"], primary=["b2"], secondary=[])


@pytest.mark.parametrize(
    ("brokers", "sentences"),
    [
        ([[], []], ["no broker runs the balancer: policies are not applied, and a drain cannot work"]),
        ([[], ["balancer"]], ["b1 runs no balancer: assignments by them apply no policies"]),
        ([["balancer"], ["other", "balancer"]], []),
        ([None, None], []),  # brokers of older versions do not say
        ([], []),
    ],
)
def test_policies_that_no_broker_applies(brokers: list[list[str] | None], sentences: list[str]) -> None:
    assert list(unapplied(book(POLICY).at(NOW_MS + 1), alive(*brokers))) == sentences
    assert list(unapplied(book().at(NOW_MS + 1), alive(*brokers))) == [], "without policies there is nothing to apply"


def test_status_says_that_nobody_applies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(said(monkeypatch, POLICY, brokers=alive([], [])).cluster) == 1


DRAIN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
REFUSED = {"answer": "rejected", "reason": "no-extension"}


TIMED_OUT = {"answer": "unknown", "outcome": "undetermined", "reason": "timed-out", "message": "by then 0 bundles"}
IN_PART = {
    "answer": "accepted",
    "outcome": "done",
    "operation": DRAIN,
    "result": "drained-in-part",
    "facts": {"message": "gold forbids it"},
}


@pytest.mark.parametrize(
    ("asked", "end", "state"),
    [
        (("expired", None), "ended without an answer", "unanswered"),
        (("ended", REFUSED), "failed 1970-01-01 00:16:40.500Z", "failed"),
        (("ended", IN_PART), "has moved what it could 1970-01-01 00:16:40.500Z", "left-bundles"),
        (("ended", TIMED_OUT), "timed out 1970-01-01 00:16:40.500Z", "timed-out"),
        (("ended", {"answer": "accepted", "result": "drained"}), None, "drained"),
        (("open", None), None, "running"),
        (None, None, "forgotten"),
    ],
)
def test_a_cordon_that_a_failed_drain_left_is_named(
    asked: tuple[str, dict[str, Any] | None] | None, end: str | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    if asked is not None:
        request = Request(DRAIN, "extension", 0, {"extension": "balancer", "ask": "drain", "broker": "b2"}, "ann@desk")
        reply = None if asked[1] is None else Reply(DRAIN, "b1", "b1-i", asked[1])
        items = (request,) if reply is None else (request, reply)
        requests = list(stories(*items, at_ms=NOW_MS, step_ms=500).values())
    monkeypatch.setattr(cordon_queries, "extension_requests", lambda *_: iter(requests))
    monkeypatch.setattr(cordon_queries, "now_ms", lambda: NOW_MS + (90_000 if asked and asked[0] == "expired" else 500))
    by = Author("ann@desk", DRAIN).by
    left = PolicyRecord(PolicyKey(PolicyKind.CORDON, "b2"), {}, by, "new disks", None, NOW_MS)
    remarks, failed = said(monkeypatch, left), end is not None
    sentence = f"still cordoned by the drain of ann@desk that {end} (`statechannel uncordon b2`)"
    assert (remarks.brokers["b2"] == sentence) is failed
    (row,) = cordon_queries.cordon_rows(SimpleNamespace(), book(left).at(NOW_MS))  # type: ignore[arg-type]
    assert (row["drain"], row["drain_state"]) == (DRAIN, state)
    messages = {"left-bundles": "gold forbids it", "timed-out": "by then 0 bundles"}
    assert row["drain_message"] == messages.get(state)
    assert remarks.changes == (), "a drain is an incident of its own"
    facts = with_standing(healthy(), brokers=[broker_row("b2", bundles=6)])
    findings = list(of_policies.policies.look(replace(facts, connection=SimpleNamespace())))  # type: ignore[arg-type]
    (finding,) = [finding for finding in findings if "b2" in finding.what]
    assert finding.severity is (Severity.WARNING if failed else Severity.INFO)
    assert ("the drain of b2 " in finding.what and "6 bundles stayed there" in finding.what) is failed


def test_cordons_of_people_have_no_drain_and_expired_ones_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: Any) -> None:
        raise AssertionError("without drains the requests are not read")

    monkeypatch.setattr(cordon_queries, "extension_requests", unread)
    laid = book(
        record(PolicyKind.CORDON, "b2"),
        record(PolicyKind.CORDON, "b2", until_ms=NOW_MS + 60_000),
        record(PolicyKind.CORDON, "b3", until_ms=NOW_MS),
    )
    common = {"by": "ann@desk", "why": "new disks", "since_ms": NOW_MS, "broker": "b2"}
    nothing = dict.fromkeys(("drain", "drain_state", "drain_ended_ms", "drain_message"))
    override = {"override": True, "until_ms": NOW_MS + 60_000}
    assert cordon_queries.cordon_rows(SimpleNamespace(), laid.at(NOW_MS + 1)) == [common | nothing | override]  # type: ignore[arg-type]
    lapsed = {"override": False, "until_ms": None}
    assert cordon_queries.cordon_rows(SimpleNamespace(), laid.at(NOW_MS + 60_000)) == [common | nothing | lapsed]  # type: ignore[arg-type]


def test_policies_that_were_set_or_deleted_are_incidents() -> None:
    def change(at_ms: int, what: str, name: str = "gold", by: str = "ann") -> PolicyChange:
        key = PolicyKey(PolicyKind.ISOLATION, name)
        if what == "deleted":
            return PolicyChange(key, at_ms, at_ms, deleted_by=DeletionNote(by, ""))
        return PolicyChange(key, at_ms, at_ms, PolicyRecord(key, {}, by, "new disks", None, at_ms))

    old, start = 1_000, 10_000_000
    rows = [
        change(old, "set"),
        change(start, "set"),
        *(change(start + 100_000 + number, "set", f"p{number}", "bob") for number in range(3)),
        change(start + 200_000, "deleted"),
        PolicyChange(None, 9, start, trouble="unreadable"),
    ]
    incidents = of_policies.changes_lately(rows, start + 300_000)
    assert [incident.at_ms - start for incident in incidents] == [0, 100_000, 200_000]
    assert {incident.kind for incident in incidents} == {IncidentKind.POLICY}
    assert "isolation p2 and 2 more: new disks" in incidents[1].message


@pytest.mark.parametrize(
    ("primary", "cordons", "sentences"),
    [
        (["b2"], {}, ["t/n may be on b2 only (isolation `gold`, ann@desk): 2 bundles"]),
        (["b[23]"], {}, ["t/other may be on b1 only (the others are isolated for other namespaces): 1 bundle"]),
        (
            ["b.*"],
            {"b3": "disk"},
            ["t/other may be on no broker, as b3 is cordoned (the others are isolated for other namespaces): 1 bundle"],
        ),
        (
            ["b2"],
            {"b2": "drain"},
            ["t/n may be on no broker, as b2 is cordoned (isolation `gold`, ann@desk): 2 bundles"],
        ),
    ],
)
def test_namespaces_that_isolation_leaves_to_one_broker(
    primary: list[str], cordons: dict[str, str], sentences: list[str]
) -> None:
    policy = record(PolicyKind.ISOLATION, "gold", namespaces=["t/n"], primary=primary, secondary=[], min_available=1)
    effective = book(policy).at(NOW_MS + 1)
    bundles = [f"t/n/{LOWER}", f"t/n/{UPPER}", f"t/other/{LOWER}"]
    cluster = Cluster(
        {name: Broker(name) for name in ("b1", "b2", "b3")}, {name: Bundle(name, "b2") for name in bundles}
    )
    policies = replace(effective.policies, cordons=cordons)
    facts: Any = {"policies": effective, "cluster": replace(cluster, policies=policies), "alive": {}, "cordons": {}}
    found = current(facts, ConditionLimits.of(load()), of_policies.POLICY_KINDS)
    assert sorted(item.message for item in found if item.code == "isolated-to-one") == sentences


def test_who_cannot_tell_keeps_nobody_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Remarks:
        raise StateChannelError("the topic is not there")

    points = [
        SimpleNamespace(name="b", load=lambda: lambda *_: Remarks(["one"], {"b1": "two"}, {"b2"})),
        SimpleNamespace(name="c", load=lambda: lambda *_: Remarks((), {"b1": "three"}, {"b1"})),
        SimpleNamespace(name="a", load=lambda: broken),
    ]
    monkeypatch.setattr(remarks, "entry_points", lambda group: points if group == remarks.GROUP else [])
    result = remarks.remarks(SimpleNamespace(), {})  # type: ignore[arg-type]
    texts = ["a could not be read: the topic is not there", "one"]
    assert result == Remarks(texts, {"b1": "two; three"}, frozenset({"b1", "b2"}))
