"""Paths of the admin API for the balancer, over a requests topic in memory: keys, and who asked."""

import asyncio
from types import SimpleNamespace

import pytest

from shedders import http_api as http_routes
from shedders.cli.drain import cordons
from shedders.http_api import BalancerAnswers, DrainBody, PolicyEndBody
from statechannel.cli.kit import requests
from statechannel.http_api.actions import operation_of
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.routes import ApiCall, Caller
from statechannel.operations.request_record import Request
from statechannel.queries import live_log as past_requests
from statechannel.settings.groups_cluster import AccessRole
from tests.support.http_fakes import http_settings
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


def test_a_drain_names_who_asked_for_it(world):
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
    assert refused.value.reason == "idempotency-key-reused"
    assert world.cordoned == []


def test_an_uncordon_names_who_asked_for_it_and_why_and_a_dry_run_is_checked(world, monkeypatch):
    asked = []
    monkeypatch.setattr(cordons, "uncordon", lambda _, broker, **facts: asked.append((broker, facts)))
    call = ApiCall(ANN, {"broker": "b1"}, None, PolicyEndBody(reason="back", dry_run=True), {})
    assert asyncio.run(world.answers.uncordon(call)).document["dry_run"] is True
    assert asked == [("b1", {"force": False, "by": "ann@192.0.2.1", "why": "back", "dry_run": True})]
