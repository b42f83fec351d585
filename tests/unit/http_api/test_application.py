"""The admin API over fakes: what it answers, what it refuses, and by which codes."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest

from statechannel.engine.commands import Done, Rejected
from statechannel.http_api.access import HttpAccessError, HttpCallers, digest_of, new_token
from statechannel.http_api.actions import operation_of
from statechannel.http_api.application import STRICT_HEADERS, RateLimit, application
from statechannel.http_api.openapi import document_of, public
from statechannel.http_api.problems import REASONS, ProblemError
from statechannel.operations.request_record import Request
from tests.http_fuzz import fuzz
from tests.support.http_fakes import BUNDLE, CLIENT, PATH, FakeRequests, Rig, accept, broker_row, http_settings, rigged

DESIGN = Path(__file__).parents[3] / "design"
MOVE = {"destination": "b2"}


def refused(answer: httpx.Response, reason: str) -> dict:
    """The problem, which is whole."""
    problem = answer.json()
    assert (problem["reason"], answer.status_code) == (reason, problem["status"]), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "message", "hint", "retryable", "instance"} <= problem.keys()
    assert "Traceback" not in answer.text
    return problem


def raw(content: bytes) -> dict:
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def allow(request):
    return Done(request.id, "allowed", {}) if request.args.get("ask") == "may-take" else accept(request)


async def test_rows_pages_and_tags():
    async with rigged() as (_, client):
        index = (await client.get("/v1")).json()
        assert (index["broker"], index["positions"], index["role"]) == ("b1", {"0": 9}, "force")
        assert [row["broker"] for row in (await client.get("/v1/brokers")).json()["brokers"]] == ["b1", "b2"]
        assert (await client.get("/v1/brokers/b2")).json()["broker"] == "b2"
        refused(await client.get("/v1/brokers/b9"), "broker-not-found")
        assert (await client.get("/v1/namespaces")).json()["namespaces"][0]["namespace"] == "t/n"
        assert (await client.get("/v1/namespaces/t/n")).json()["owners"] == {"b1": 1}
        refused(await client.get("/v1/namespaces/t/x"), "unknown-namespace")
        bundle = await client.get(PATH)
        assert (bundle.json()["bundle"], bundle.headers["etag"]) == (BUNDLE, '"7.7"')
        refused(await client.get("/v1/bundles", params={"namespace": "no/one"}), "unknown-namespace")
        assert (await client.get("/v1/lookup", params={"name": "t/n/orders"})).json()["broker"] == "b1"
        refused(await client.get("/v1/lookup", params={"name": "x/y/z"}), "unknown-namespace")
        head = await client.head("/v1/brokers")
        assert (head.status_code, head.content) == (200, b"")


async def test_every_answer_has_the_strict_headers():
    async with rigged() as (_, client):
        for path in ("/v1", "/v1/nowhere", "/nowhere"):
            answer = await client.get(path)
            assert {name: answer.headers[name] for name in STRICT_HEADERS} == STRICT_HEADERS
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "options", "reason"),
    [
        ("GET", "/nowhere", {}, "no-such-path"),
        ("GET", "/v1/../etc/passwd", {}, "no-such-path"),
        ("DELETE", "/v1/brokers", {}, "wrong-method"),
        ("PATCH", PATH, {}, "wrong-method"),
        ("TRACE", "/v1", {}, "wrong-method"),
        ("HEAD", "/v1/changes", {}, "wrong-method"),
        ("GET", "/v1/bundles", {"params": {"limit": 0}}, "bad-request"),
        ("GET", "/v1/bundles", {"params": {"colour": "red"}}, "bad-request"),
        ("GET", "/v1/bundles?limit=1&limit=2", {}, "bad-request"),
        ("GET", "/v1/brokers", {"params": {"limit": 1}}, "bad-request"),
        ("GET", f"/v1/bundles?after={'x' * 9_000}", {}, "bad-request"),
        ("GET", "/v1/bundles/t/n/all", {}, "bad-request"),
        ("GET", "/v1/changes", {"params": {"since": "yesterday"}}, "bad-request"),
        ("GET", "/v1/changes", {"params": {"since": "7:1"}}, "bad-request"),
        ("POST", f"{PATH}/transfer", {"content": b"{}"}, "wrong-media-type"),
        ("POST", f"{PATH}/transfer", raw(b"{"), "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": {}}, "bad-request"),
        ("POST", f"{PATH}/transfer", raw(b'{"destination":"b2","destination":"b3"}'), "bad-request"),
        ("POST", f"{PATH}/transfer", raw(b"[" * 5_000 + b"]" * 5_000), "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": [1]}, "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": {**MOVE, "sudo": True}}, "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": {**MOVE, "reason": "a\nb"}}, "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": MOVE, "headers": {"Idempotency-Key": "a b"}}, "bad-request"),
        ("POST", f"{PATH}/transfer", {"json": {**MOVE, "reason": "x" * 70_000}}, "body-too-large"),
        ("GET", "/v1", {"headers": {"Host": "evil.example"}}, "bad-host"),
        ("GET", "/v1", {"headers": {"Host": ""}}, "bad-host"),
        ("GET", "/v1", {"headers": {"Host": "0.0.0.0:80"}}, "bad-host"),
        ("POST", f"{PATH}/transfer", {"json": MOVE, "headers": {"Origin": "http://evil.example"}}, "foreign-page"),
        ("POST", f"{PATH}/transfer", {"json": MOVE, "headers": {"Origin": "null"}}, "foreign-page"),
        ("POST", f"{PATH}/transfer", {"json": MOVE, "headers": {"Sec-Fetch-Site": "cross-site"}}, "foreign-page"),
        ("GET", "/v1/operations/none", {}, "operation-not-found"),
    ],
)
async def test_what_is_refused_and_why(method, path, options, reason):
    async with rigged() as (rig, client):
        answer = await client.request(method, path, **options)
        if method == "HEAD":
            assert answer.status_code == REASONS[reason].status
        else:
            refused(answer, reason)
        assert not rig.requests.written


async def test_a_change_without_token_or_named_client_is_refused():
    rig = Rig(http_settings())
    async with rig.client() as client:
        problem = refused(await client.post(f"{PATH}/unload", json={}), "foreign-page")
        assert "Statechannel-Client" in problem["hint"]
        assert not rig.requests.written


async def test_a_chunked_body_without_length_is_bounded_too():
    async def endless():
        while True:
            yield b"x" * 10_000

    async with rigged() as (_, client):
        headers = {"Content-Type": "application/json"}
        refused(await client.post(f"{PATH}/unload", content=endless(), headers=headers), "body-too-large")


async def test_a_body_that_does_not_come_is_given_up():
    async def never():
        yield b"{"
        await asyncio.Event().wait()

    async with rigged(receive_timeout_s=0.05) as (_, client):
        headers = {"Content-Type": "application/json"}
        refused(await client.post(f"{PATH}/unload", content=never(), headers=headers), "receive-timeout")


def test_a_rate_is_an_average_with_a_burst():
    limit = RateLimit(2.0)
    assert [limit.wait_s("a", 0.0) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limit.wait_s("b", 0.0) == 0
    assert limit.wait_s("a", 0.6) == 0


async def test_too_many_requests_are_refused_and_others_are_not():
    rig = Rig(http_settings(requests_per_s=1))
    async with rig.client() as client:
        answers = [await client.get("/v1") for _ in range(4)]
    assert [answer.status_code for answer in answers[:2]] == [200, 200]
    assert int(refused(answers[-1], "too-many-requests") and answers[-1].headers["retry-after"]) >= 1


# --- actions ----------------------------------------------------------------------------------------------------------


async def test_a_transfer_is_checked_written_and_waited_for():
    async with rigged(allow) as (rig, client):
        answer = await client.post(f"{PATH}/transfer", json={**MOVE, "reason": "disks"}, headers={"Prefer": "wait=5"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["answer"], answer.json()["executed_by"]) == ("accepted", "b1")
        may_take, transfer = rig.requests.written
        assert (may_take.args["ask"], may_take.args["to"]) == ("may-take", "leader")
        assert transfer.args == {"name": BUNDLE, "destination": "b2", "reason": "disks", "force": False}
        assert transfer.by == "ann@127.0.0.1"
        shown = (await client.get(answer.headers["location"])).json()
        assert (shown["command"], shown["by"], shown["result"]) == ("transfer", "ann@127.0.0.1", "transferred")


@pytest.mark.parametrize("url", ["https://b1.example.org:8450", None])
async def test_without_waiting_it_is_under_way_and_says_where_the_leader_is(url):
    async with rigged(lambda request: None if request.asked == "split" else accept(request)) as (rig, client):
        rig.cluster.members[0]["api"] = url
        answer = await client.post(f"{PATH}/split", json={"parts": 4})
        assert (answer.status_code, answer.json()["answer"]) == (202, "pending")
        polled = await client.get(answer.headers["location"])
        assert (polled.json()["answer"], polled.json()["expired"]) == ("pending", False)
        assert (answer.json()["leader_api"], polled.json()["leader_api"]) == (url, url)


async def test_what_is_under_way_is_answered_also_where_no_leader_can_be_asked_for():
    async def late():
        raise ProblemError("answer-late", "the loop had no turn")

    async with rigged(lambda _: None) as (rig, _):
        rig.app = application(rig.routes, rig.settings.http, HttpCallers(rig.settings.http), (), late)
        async with rig.client(**CLIENT) as client:
            answer = await client.post("/v1/lookup", json={"name": "t/n/x"})
            assert (answer.status_code, answer.json()["leader_api"]) == (202, None)
            polled = await client.get(answer.headers["location"])
            assert (polled.status_code, polled.json()["leader_api"]) == (200, None)


async def test_a_call_whose_request_has_expired_is_said_to_have(monkeypatch):
    async with rigged(lambda _: None) as (rig, client):
        key = {"Idempotency-Key": "late"}
        assert (await client.post("/v1/lookup", json={"name": "t/n/x"}, headers=key)).json()["expired"] is False
        monkeypatch.setattr(rig.requests, "is_expired", lambda _: True)
        again = await client.post("/v1/lookup", json={"name": "t/n/x"}, headers=key)
        assert (again.status_code, again.json()["answer"], again.json()["expired"]) == (202, "pending", True)


async def test_the_same_call_twice_acts_once():
    async with rigged(allow) as (rig, client):
        headers = {"Idempotency-Key": "k1", "Prefer": "wait=5"}
        calls = [client.post(f"{PATH}/transfer", json=MOVE, headers=headers) for _ in range(20)]
        answers = await asyncio.gather(*calls)
        assert {answer.json()["operation"] for answer in answers} == {operation_of("ann", "k1")}
        assert {answer.status_code for answer in answers} == {200}
        again = await client.post(f"{PATH}/transfer", json=MOVE, headers=headers)
        assert again.json() == answers[0].json()
        assert rig.requests.acted.count(operation_of("ann", "k1")) == 1
        refused(
            await client.post(f"{PATH}/transfer", json={"destination": "b1"}, headers=headers), "idempotency-key-reused"
        )
        refused(await client.post(f"{PATH}/unload", json={}, headers=headers), "idempotency-key-reused")
        assert rig.requests.acted.count(operation_of("ann", "k1")) == 1


async def test_two_processes_that_get_the_same_call_at_once_act_once():
    """Neither has read what the other writes: the log's first request of an id counts, and both answer with its end."""
    rig = Rig(http_settings(), allow)
    other = Rig(rig.settings, allow)
    headers = {"Idempotency-Key": "k", "Prefer": "wait=5", **CLIENT}
    async with rig.client() as first, other.client() as second:
        one = await first.post(f"{PATH}/split", json={}, headers=headers)
        other.requests.fold.stories.update(rig.requests.fold.stories)
        two = await second.post(f"{PATH}/split", json={}, headers=headers)
    assert one.json() == two.json()
    assert not other.requests.written


async def test_keys_of_two_callers_are_two_keys():
    assert operation_of("ann", "k") != operation_of("bob", "k")
    assert operation_of("ann", "k") == operation_of("ann", "k")
    assert len(operation_of("ann", "k")) <= 64


async def test_a_generation_that_has_changed_stops_it_but_not_its_repetition():
    async with rigged(allow) as (rig, client):
        headers = {"If-Match": '"6.6"', "Idempotency-Key": "k"}
        problem = await client.post(f"{PATH}/transfer", json=MOVE, headers=headers)
        refused(problem, "generation-changed")
        assert problem.headers["etag"] == '"7.7"'
        assert not rig.requests.written
        headers = {"If-Match": '"7.7"', "Idempotency-Key": "k2", "Prefer": "wait=5"}
        first = await client.post(f"{PATH}/transfer", json=MOVE, headers=headers)
        rig.cluster.row = {**rig.cluster.row, "generation": 9, "version": 9, "owner": "b2"}
        assert (await client.post(f"{PATH}/transfer", json=MOVE, headers=headers)).json() == first.json()


@pytest.mark.parametrize(("tag", "sent"), [('"7.7"', 7), ('"7.7", "9.9"', None), ("*", None), (None, None)])
async def test_the_generation_goes_to_the_executing_broker_whose_refusal_is_the_same(tag, sent):
    def late(request):
        if request.args.get("ask") == "may-take":
            return Done(request.id, "allowed", {})
        return Rejected("generation-changed", "it has the generation 9, not 7")

    async with rigged(late) as (rig, client):
        headers = {"Prefer": "wait=5", **({} if tag is None else {"If-Match": tag})}
        for action, body in (("transfer", MOVE), ("unload", {}), ("split", {})):
            problem = refused(await client.post(f"{PATH}/{action}", json=body, headers=headers), "generation-changed")
            assert (problem["status"], problem["operation"]) == (412, rig.requests.written[-1].id)
            assert rig.requests.written[-1].args.get("if_generation") == sent


async def test_what_only_the_leader_can_do_is_refused_with_the_address_of_its_api():
    def no_leader(request):
        if request.args.get("ask") == "may-take":
            return Rejected("not-leader", "this broker has lost the leadership")
        return accept(request)

    def silent(request):
        return None if request.args.get("ask") == "may-take" else accept(request)

    api = "https://b1.example.org:8450"
    for answer, reason, url in (
        (no_leader, "not-leader", api),
        (silent, "answer-late", api),
        (silent, "answer-late", None),
    ):
        async with rigged(answer) as (rig, client):
            rig.cluster.members[0]["api"] = url
            assert refused(await client.post(f"{PATH}/transfer", json=MOVE), reason)["leader_api"] == url
            assert refused(await client.get("/v1/brokers/b9"), "broker-not-found")["leader_api"] is None
            index, brokers = (await client.get("/v1")).json(), (await client.get("/v1/brokers")).json()
            assert (index["leader"], index["leader_api"], brokers["leader_api"]) == ("b1", url, url)


async def test_a_filter_refuses_a_move_and_force_takes_the_role():
    def filtered(request):
        if request.args.get("ask") == "may-take":
            return Rejected("filtered", "b2 is cordoned")
        return accept(request)

    async with rigged(filtered) as (rig, client):
        problem = refused(await client.post(f"{PATH}/transfer", json=MOVE), "filtered")
        assert problem["message"] == "b2 is cordoned"
        assert [request.asked for request in rig.requests.written] == ["extension"]
        forced = await client.post(f"{PATH}/transfer", json={**MOVE, "force": True}, headers={"Prefer": "wait=1"})
        assert forced.status_code == 200
        assert rig.requests.written[-1].args["reason"] == "forced past the filters"
    async with rigged(filtered, open_role="operate") as (rig, client):
        refused(await client.post(f"{PATH}/transfer", json={**MOVE, "force": True}), "role-missing")
        refused(await client.request("DELETE", "/v1/namespaces/t/n", json={}), "role-missing")
        assert not rig.requests.written
    async with rigged(filtered, open_role="read") as (rig, client):
        refused(await client.post(f"{PATH}/transfer", json=MOVE), "role-missing")


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("transfer", MOVE, None),
        ("unload", {}, None),
        ("split", {}, None),
        ("transfer", {"destination": "b1"}, "destination-is-owner"),
        ("transfer", {"destination": "b9"}, "unknown-destination"),
    ],
)
async def test_a_dry_run_says_what_would_happen_and_writes_no_action(path, body, reason):
    async with rigged(allow) as (rig, client):
        answer = await client.post(f"{PATH}/{path}", json={**body, "dry_run": True})
        if reason is not None:
            refused(answer, reason)
        else:
            assert answer.json()["dry_run"]
            assert "b1 would" in answer.json()["would"][0]
        assert all(request.args.get("ask") == "may-take" for request in rig.requests.written)


async def test_dry_runs_that_ask_the_leader_have_the_bound_of_actions():
    async with rigged(lambda _: None, actions_max=1, answer_timeout_s=5.0) as (_, client):
        body = {"dry_run": True, "reason": "test"}
        first, second = await asyncio.gather(*(client.post(f"{PATH}/unload", json=body) for _ in range(2)))
        assert {first.json()["reason"], second.json()["reason"]} == {"answer-late", "too-busy"}


async def test_no_broker_no_action_and_a_refusal_is_a_conflict():
    async with rigged(lambda request: Rejected("bad-split", "not a hash of it")) as (rig, client):
        problem = await client.post(f"{PATH}/split", json={"at": [1]}, headers={"Prefer": "wait=5"})
        refused(problem, "bad-split")
        assert problem.json()["operation"]
        rig.cluster.members = [broker_row("b1", state="lost")]
        refused(await client.post(f"{PATH}/split", json={}), "no-broker")


async def test_namespaces_are_created_and_deleted():
    async with rigged() as (rig, client):
        headers = {"Prefer": "wait=1"}
        await client.post("/v1/namespaces", json={"namespace": "a/b", "bundles": 8}, headers=headers)
        await client.request("DELETE", "/v1/namespaces/t/n", json={"reason": "old"}, headers=headers)
        assert [(request.asked, dict(request.args)) for request in rig.requests.written] == [
            ("create-namespace", {"namespace": "a/b", "bundles": 8}),
            ("delete-namespace", {"namespace": "t/n", "reason": "old"}),
        ]
        refused(await client.post("/v1/namespaces", json={"namespace": "t/n", "dry_run": True}), "namespace-exists")
        refused(await client.post("/v1/namespaces", json={"namespace": "nothing"}), "bad-request")


async def test_a_bug_is_a_problem_without_a_traceback():
    async with rigged() as (rig, client):
        rig.cluster.brokers = None
        problem = refused(await client.get("/v1/brokers"), "internal-error")
        assert "NoneType" not in json.dumps(problem)


# --- who may call -----------------------------------------------------------------------------------------------------


@pytest.fixture
def access_file(tmp_path):
    def write(*lines: str) -> Path:
        path = tmp_path / "callers"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        path.chmod(0o600)
        return path

    return write


async def test_tokens_have_names_and_roles_and_are_read_again(access_file):
    reader, operator = new_token(), new_token()
    path = access_file("# callers", f"rita read {reader[1]}", f"otto operate {operator[1]}  # the operator")
    rig = Rig(http_settings(access_file=str(path)), allow)
    async with rig.client(**CLIENT) as client:
        problem = await client.get("/v1")
        refused(problem, "token-missing")
        assert problem.headers["www-authenticate"] == "Bearer"
        refused(await client.get("/v1", headers={"Authorization": "Bearer wrong"}), "token-missing")
        refused(await client.get("/v1", headers={"Authorization": f"Basic {reader[0]}"}), "token-missing")
        as_reader, as_operator = ({"Authorization": f"Bearer {token}"} for token, _ in (reader, operator))
        assert (await client.get("/v1", headers=as_reader)).json()["caller"] == "rita"
        refused(await client.post(f"{PATH}/split", json={}, headers=as_reader), "role-missing")
        assert (await client.post(f"{PATH}/split", json={}, headers=as_operator)).status_code == 202
        assert rig.requests.written[-1].by == "otto@127.0.0.1"
        access_file(f"rita force {reader[1]}", "a broken line")
        assert (await client.get("/v1", headers=as_reader)).json()["role"] == "read"  # the last that was valid
        access_file(f"rita force {reader[1]}")
        assert (await client.get("/v1", headers=as_reader)).json()["role"] == "force"
        refused(await client.get("/v1", headers=as_operator), "token-missing")


async def test_two_tokens_are_none_and_two_keys_are_malformed(access_file):
    reader, operator = new_token(), new_token()
    path = access_file(f"rita read {reader[1]}", f"otto operate {operator[1]}")
    rig = Rig(http_settings(access_file=str(path)), allow)
    tokens = [("Authorization", f"Bearer {token}") for token in (operator[0], reader[0])]
    keys = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    async with rig.client() as client:
        refused(await client.get("/v1", headers=tokens), "token-missing")
        refused(await client.post(f"{PATH}/unload", json={}, headers=[tokens[0], *keys]), "bad-request")
        assert (await client.post(f"{PATH}/unload", json={}, headers=[tokens[0], keys[0]])).status_code == 202
    assert len({request.id for request in rig.requests.written}) == len(rig.requests.written)


async def test_certificates_have_names_and_roles_too(access_file):
    path = access_file(f"tom operate {new_token()[1]}", "carl force cert:carl.example")
    access = HttpCallers(http_settings(access_file=str(path)).http)
    assert (await access.caller({}, "carl.example", "10.0.0.1")).by == "carl@10.0.0.1"
    with pytest.raises(ProblemError):
        await access.caller({}, "other.example", "10.0.0.1")


@pytest.mark.parametrize(
    "line", ["ann", "ann read", "ann boss sha256:" + 64 * "0", "ann read token", "../x read cert:x"]
)
def test_a_malformed_file_is_refused_with_the_line(access_file, line):
    with pytest.raises(HttpAccessError, match="line 2"):
        HttpCallers(http_settings(access_file=str(access_file("", line))).http)


async def test_a_hash_within_the_name_of_a_certificate_begins_no_comment(access_file):
    path = access_file("# callers", "ann force cert:ops#1 # of the night shift")
    callers = HttpCallers(http_settings(access_file=str(path)).http)
    assert (await callers.caller({}, "ops#1", "")).name == "ann"
    with pytest.raises(ProblemError):
        await callers.caller({}, "ops", "")


async def test_a_problem_controls_no_terminal():
    async with rigged() as (_, client):
        problem = refused(await client.get("/v1/brokers/b%1b[2J%E2%80%AE"), "broker-not-found")
        assert problem["message"] == problem["detail"]
        assert problem["message"].isprintable()


def test_a_port_for_others_needs_callers(access_file):
    with pytest.raises(HttpAccessError, match=r"http\.address is 0\.0\.0\.0"):
        HttpCallers(http_settings(address="0.0.0.0").http)
    path = access_file(f"ann read sha256:{digest_of('x')}")
    HttpCallers(http_settings(address="0.0.0.0", access_file=str(path)).http).require_host("10.1.2.3:80", "10.1.2.3")
    path.chmod(0o666)
    with pytest.raises(HttpAccessError, match="everybody"):
        HttpCallers(http_settings(access_file=str(path)).http)
    advertised = http_settings(access_file=str(path), advertised_url="https://api.example.org").http
    path.chmod(0o600)
    HttpCallers(advertised).require_host("api.example.org")
    with pytest.raises(HttpAccessError, match="cannot be read"):
        HttpCallers(http_settings(access_file=str(path.with_name("none"))).http)
    with pytest.raises(HttpAccessError, match="tls_key"):
        HttpCallers(http_settings(tls_certificate="a.pem").http)


# --- the description --------------------------------------------------------------------------------------------------


def test_the_kept_description_is_current():
    rig = Rig(http_settings())
    kept = json.loads((DESIGN / "reference" / "openapi.json").read_text(encoding="utf-8"))
    assert kept == document_of(public(rig.routes))  # `make docs`


def test_routes_are_unique_and_their_codes_known():
    rig = Rig(http_settings())
    assert len({route.name for route in rig.routes}) == len(rig.routes)
    assert len({(route.method, route.path) for route in rig.routes}) == len(rig.routes)
    assert all(route.acts or route.method == "GET" for route in rig.routes)


def test_calls_drawn_from_the_description_find_no_fault():
    """`make fuzz N=20000` sends more."""
    result = fuzz(120, 7)
    assert result.faults == []
    assert result.calls > 75
    answered = Counter(status for statuses in result.statuses.values() for status in statuses.elements())
    assert {200, 202, 400, 404} <= answered.keys()


async def test_calls_that_are_repeated_under_deaths_act_once_each():
    """Five processes write to one log; any may die in the middle of a call, and callers repeat it until they know the end."""
    draw = random.Random(5)

    async def moment() -> None:
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)

    log = FakeRequests(lambda request: Done(request.id, "split", {}), moment)
    rigs = [Rig(http_settings(), requests=log) for _ in range(5)]
    repeated = 0

    async def call(number: int) -> str:
        nonlocal repeated
        headers = {**CLIENT, "Idempotency-Key": f"key-{number}", "Prefer": "wait=60"}
        while True:
            async with draw.choice(rigs).client() as client:
                asked = asyncio.ensure_future(
                    client.post(f"{PATH}/split", json={"parts": 2 + number % 7}, headers=headers)
                )
                if draw.random() < 0.7:
                    await moment()
                    asked.cancel()  # the process dies, or the connection does
                    repeated += 1
                    with contextlib.suppress(asyncio.CancelledError):
                        await asked
                    continue
                answer = await asked
                if answer.status_code == 200:
                    return answer.json()["operation"]
                repeated += 1

    numbers = range(300)
    operations = await asyncio.gather(*(call(number) for number in numbers))
    assert operations == [operation_of("ann", f"key-{number}") for number in numbers]
    assert sorted(log.acted) == sorted(operations)
    assert repeated > 300


async def test_a_default_of_another_process_is_not_another_request():
    requests = FakeRequests(accept)
    settings = http_settings()
    lookups = settings.lookups.model_copy(update={"default_bundles": settings.lookups.default_bundles + 1})
    rigs = [Rig(settings, requests=requests), Rig(settings.model_copy(update={"lookups": lookups}), requests=requests)]
    headers = {**CLIENT, "Idempotency-Key": "new", "Prefer": "wait=5"}
    answers = []
    for rig in rigs:
        async with rig.client(**headers) as client:
            answers.append(await client.post("/v1/namespaces", json={"namespace": "t/new"}))
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    assert len(requests.written) == 1
    async with rigs[1].client(**headers) as client:
        refused(await client.post("/v1/namespaces", json={"namespace": "t/other"}), "idempotency-key-reused")


async def test_an_operation_says_that_its_executor_is_lost_and_how_to_go_on():
    async with rigged(lambda _: None) as (rig, client):
        begun = (await client.post(f"{PATH}/unload", json={"force": True})).json()
        path = f"/v1/operations/{begun['operation']}"
        for _ in range(3):
            await asyncio.sleep(0)
        running = (await client.get(path)).json()
        assert (running["answer"], running["executed_by"], running["executor_lost"]) == ("pending", "b1", False)
        rig.cluster.members = [broker_row("b1", state="lost"), broker_row("b2")]
        lost = (await client.get(path)).json()
        assert (lost["answer"], lost["executor_lost"]) == ("pending", True)
        assert "poll again" in lost["hint"]


async def test_an_operation_that_another_client_of_the_log_has_just_written_is_known():
    """A drain's 202 names it as soon as Kafka has it; the broker's own reader may be later."""
    async with rigged(lambda _: None) as (rig, client):
        rig.requests.unread.append(Request("h-drain", "drain", 0, {"broker": "b2"}, "cli"))
        answer = await client.get("/v1/operations/h-drain")
        assert (answer.status_code, answer.json()["answer"]) == (200, "pending"), answer.text
        refused(await client.get("/v1/operations/none"), "operation-not-found")


@pytest.mark.parametrize(("reason", "again"), [("not-leader", True), ("bad-split", False)])
async def test_an_ended_operation_says_whether_to_ask_again(reason, again):
    async with rigged(lambda _: Rejected(reason, "so it ended")) as (_, client):
        begun = await client.post(f"{PATH}/unload", json={"force": True}, headers={"Prefer": "wait=5"})
        ended = (await client.get(f"/v1/operations/{begun.json()['operation']}")).json()
        assert (ended["answer"], ended["reason"], ended["retryable"], ended["executor_lost"]) == (
            "rejected", reason, again, False,
        )  # fmt: skip
        assert ended["hint"]
