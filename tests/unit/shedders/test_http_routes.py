"""Paths of the admin API for the balancer, over a requests topic in memory: keys, and who asked."""

import asyncio
from types import SimpleNamespace

import pytest

from shedders import http_api as http_routes
from shedders.cli.drain import cordons
from shedders.cli.policy.write import PolicyChecks, PolicyWriteResult
from shedders.decisions.builder import place_record
from shedders.decisions.explanation import why_not
from shedders.decisions.history import DecisionBook
from shedders.http_api import BalancerAnswers, DrainBody, PolicyEndBody, routes
from shedders.model.plan import Left, Placed
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyKey, PolicyRecord, encode
from shedders.policies.topic import PolicyWritten
from shedders.queries import decisions
from shedders.queries.policies import policies_document
from shedders.queries.table import QUERIES
from statechannel.cli.kit import requests
from statechannel.http_api.actions import operation_of
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.routes import ApiCall, Caller
from statechannel.operations.outcomes import Answer
from statechannel.operations.request_record import Request
from statechannel.queries import live_log as past_requests
from statechannel.replay.auditor import audit_part
from statechannel.settings.groups_cluster import AccessRole
from tests.support.decision_records import AT_MS, WHOLE, ChannelLog, decision, move, occasion, record
from tests.support.http_fakes import described, http_settings
from tests.support.request_world import stories

ANN = Caller("ann", AccessRole.FORCE, "192.0.2.1")
KEY = {"idempotency-key": "k"}


@pytest.fixture
def world(monkeypatch):
    """Answers whose requests and cordons are kept in lists."""
    written, cordoned = [], []

    def write(_client, _topics, request, **_):
        written.append(request)
        return len(written)

    monkeypatch.setattr(requests, "write_request", write)
    for module in (http_routes, past_requests):
        monkeypatch.setattr(module, "read_requests", lambda _: stories(*written))
    monkeypatch.setattr(http_routes.follower, "check", lambda *_, **__: None)
    monkeypatch.setattr(cordons, "cordon", lambda _, broker, drain, **facts: cordoned.append((broker, drain, facts)))
    answers = BalancerAnswers(SimpleNamespace(settings=http_settings()))
    return SimpleNamespace(answers=answers, written=written, cordoned=cordoned)


def drain(world, broker="b1", headers=KEY, **body):
    call = ApiCall(ANN, {"broker": broker}, None, DrainBody(**body), headers)
    return asyncio.run(world.answers.drain(call))


def test_a_drain_names_who_asked_for_it_and_its_dry_run_what_would_stay(world, monkeypatch):
    monkeypatch.setattr(http_routes.command, "effect_of", lambda *_, **__: SimpleNamespace(sentences=("6 stay",)))
    assert drain(world, dry_run=True).document["would"] == ["6 stay"]
    answer = drain(world, reason="test")
    (request,) = world.written
    assert (request.by, request.id, answer.document["operation"]) == ("ann@192.0.2.1", request.id, request.id)
    assert world.cordoned == [("b1", request.id, {"why": "test", "by": "ann@192.0.2.1"})]


def test_the_same_drain_twice_is_asked_for_once(world):
    assert drain(world).document == drain(world).document
    assert len(world.written) == len(world.cordoned) == 1


@pytest.mark.parametrize("other", [{"broker": "b2"}, {"rate_per_s": 2.0}, {"force": True}])
def test_another_drain_under_the_same_key_is_refused(world, other):
    drain(world)
    with pytest.raises(ProblemError) as refused:
        drain(world, **other)
    assert refused.value.reason == "idempotency-key-reused"
    assert len(world.written) == len(world.cordoned) == 1


def test_a_drain_under_the_key_of_a_transfer_cordons_nothing(world):
    world.written.append(Request(operation_of("ann", "k"), "transfer", 0, {"name": "t/n/0x0_0x1"}, ANN.by))
    with pytest.raises(ProblemError) as refused:
        drain(world)
    assert (refused.value.reason, world.cordoned) == ("idempotency-key-reused", [])


def test_an_uncordon_names_who_asked_for_it_and_why_and_a_dry_run_is_checked(world, monkeypatch):
    asked = []
    monkeypatch.setattr(cordons, "uncordon", lambda _, broker, **facts: asked.append((broker, facts)))
    call = ApiCall(ANN, {"broker": "b1"}, None, PolicyEndBody(reason="back", dry_run=True), {})
    assert asyncio.run(world.answers.uncordon(call)).document["dry_run"] is True
    assert asked == [("b1", {"force": False, "by": "ann@192.0.2.1", "why": "back", "dry_run": True})]


NOTES = {"notes": []}
DESCRIBED = {query.name: described(query.document) for query in QUERIES}


def test_decisions_and_their_explanations_have_the_keys_that_are_described():
    log = ChannelLog()
    log.created()
    log.assigned(WHOLE)
    decided = record(moves=[move()], left=[Left("b2", "not-over", "it is light")], scores={"b1": 0.8})
    placed = place_record(occasion(2), decision().cluster, [Placed(WHOLE, "b1", "least", ("b1",))])
    book = DecisionBook()
    for entry in (decided, placed):
        book.add(entry)
        DESCRIBED["show-decision"](decisions.decision_fields(book, entry) | NOTES)
    DESCRIBED["list-decisions"](decisions.decisions_document(book, [decided, placed], 0) | NOTES)
    story = decisions.story_of(WHOLE)
    audit_part(0, 1, log.records, observe=story.observe)
    views = SimpleNamespace(parts=[SimpleNamespace(strict_from=0)], tentative=False)
    DESCRIBED["why"](decisions.explanation_of(story, views, book, {}, WHOLE, 20)[1] | NOTES)
    answer = why_not(WHOLE, "b1", book, now_ms=AT_MS)
    assert answer.verdicts
    DESCRIBED["why-not"]({"asked": WHOLE, **answer.to_json()} | NOTES)


def test_policies_and_their_changes_have_the_keys_that_are_described():
    key, book = PolicyKey(PolicyKind.CORDON, "b1"), PolicyBook()
    policy = PolicyRecord(key, {}, "ann")
    for offset, value in ((0, encode(policy)), (1, b"junk")):
        book.take(offset, AT_MS, key.encode() if offset == 0 else b"cordon/b2", value)
        effective = book.at(AT_MS)
        DESCRIBED["list-policies"](policies_document(effective, effective.entries, ["none"]) | NOTES)
    changes = {route.name: described(route.answer) for route in routes(SimpleNamespace(settings=http_settings()))}
    accepted, entry = PolicyWritten(Answer.ACCEPTED, "", 7, AT_MS), effective.entries[0]
    for written, now in ((None, policy), (accepted, policy), (accepted, None)):
        change = PolicyWriteResult(key, now, written, entry, PolicyChecks()).fields()
        for name in ("set-policy", "end-policy", "set-override", "end-override", "uncordon"):
            changes[name](change)
    changes["uncordon"]({"dry_run": True, "would": ["b1 would take bundles again"], **NOTES})
