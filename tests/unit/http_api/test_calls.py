"""What calls of the admin API have: bodies or none, arguments by query, and checks that executing brokers make themselves."""

import json
import re
from dataclasses import fields

import pytest

from statechannel.engine.commands import NotFound, Rejected, Undetermined
from statechannel.http_api.openapi import document_of, public
from statechannel.http_api.routes import PENDING
from statechannel.operations import outcomes
from tests.support.http_fakes import BUNDLE, PATH, Rig, accept, broker_row, http_settings, rigged

MOVE = {"destination": "b2"}
OLD = {"namespace": "t/n", "reason": "old"}


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}])
async def test_no_body_is_one_without_members(headers):
    async with rigged() as (rig, client):
        for action in ("unload", "split"):
            answer = await client.post(f"{PATH}/{action}", headers={**headers, "Prefer": "wait=5"})
            assert answer.status_code == 200, answer.text
        assert rig.requests.written[-1].args == {"name": BUNDLE, "parts": 2}
        answer = await client.post(f"{PATH}/transfer", headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (400, "destination: Field required")


@pytest.mark.parametrize(("query", "body"), [("?reason=old", None), ("", {"reason": "old"}), ("?reason=old", {})])
async def test_arguments_of_delete_come_by_query_and_in_a_body_that_is_sent_count_as_well(query, body):
    async with rigged() as (rig, client):
        answer = await client.request("DELETE", f"/v1/namespaces/t/n{query}", json=body, headers={"Prefer": "wait=5"})
        assert (answer.status_code, rig.requests.written[-1].args) == (200, OLD)
        tried = await client.request("DELETE", f"/v1/namespaces/t/n{query}&dry_run=true".replace("n&", "n?"), json=body)
        assert (tried.json()["dry_run"], len(rig.requests.written)) == (True, 1)


@pytest.mark.parametrize("query", ["reason=a&reason=b", "dry_run=perhaps", "sudo=true", "reason="])
async def test_arguments_of_delete_are_checked_as_those_of_bodies(query):
    async with rigged() as (rig, client):
        for sent in (None, {"reason": "c"}):
            answer = await client.request("DELETE", f"/v1/namespaces/t/n?{query}", json=sent)
            assert (answer.status_code, answer.json()["reason"], rig.requests.written) == (400, "bad-request", [])


@pytest.mark.parametrize("reason", ["disks", "forced past the filters: not so"])
async def test_where_every_broker_checks_moves_itself_one_request_is_enough(reason):
    def filtered(request):
        return accept(request) if request.args["force"] else Rejected("filtered", "b2 is cordoned")

    async with rigged(filtered) as (rig, client):
        rig.cluster.checks = frozenset({"may-take"})
        wait = {"Prefer": "wait=5"}
        answer = await client.post(f"{PATH}/transfer", json={**MOVE, "reason": reason}, headers=wait)
        assert (answer.status_code, answer.json()["reason"]) == (409, "filtered")
        assert answer.json()["operation"] == rig.requests.written[0].id
        assert [(request.asked, request.args["force"]) for request in rig.requests.written] == [("transfer", False)]
        forced = await client.post(f"{PATH}/transfer", json={**MOVE, "force": True}, headers=wait)
        assert forced.status_code == 200
        assert rig.requests.written[-1].args["force"]


@pytest.mark.parametrize("name", ["t/..", "./n", "../.."])
async def test_a_namespace_that_clients_cannot_address_is_not_created(name):
    async with rigged() as (rig, client):
        answer = await client.post("/v1/namespaces", json={"namespace": name})
        assert (answer.status_code, answer.json()["reason"], rig.requests.written) == (400, "bad-request", [])


@pytest.mark.parametrize(
    ("name", "outcome", "status"),
    [
        ("x/nope/a", NotFound("unknown-namespace", "there is no namespace x/nope"), 404),
        (BUNDLE.replace("t/n", "x/nope"), NotFound("unknown-namespace", "there is no namespace x/nope"), 404),
        ("nonsense", NotFound("bad-name", "`nonsense` is not the name of a topic or bundle"), 404),
        ("t/n/a", Undetermined("replaying", "not read to its end"), 503),
    ],
)
async def test_what_the_page_does_not_find_has_the_code_and_words_of_lookups(name, outcome, status):
    async def lookup(_):
        return outcome

    async with rigged() as (rig, client):
        rig.cluster.lookup = lookup
        for path in ("page/bundle", "lookup"):
            problem = (await client.get(f"/v1/{path}", params={"name": name})).json()
            assert (problem["status"], problem["reason"], problem["message"]) == (
                status,
                outcome.reason,
                outcome.message,
            )


def test_the_description_is_enough_for_generated_clients():
    document = document_of(public(Rig(http_settings()).routes))
    named = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document)))
    assert named == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    calls = {call["operationId"]: call for path in document["paths"].values() for call in path.values()}
    assert not [path for path in document["paths"] if "/page/" in path]
    assert all(len(call["tags"]) == 1 and call["tags"][0].isalpha() for call in calls.values())
    takes = {
        header: {name for name, call in calls.items() if any(item["name"] == header for item in call["parameters"])}
        for header in ("Prefer", "Idempotency-Key")
    }
    by_key = {"transfer", "unload", "split", "assign", "create-namespace", "delete-namespace"}
    by_key |= {"resume-repair", "dismiss-broker"}
    assert takes == {"Prefer": by_key | {"show-operation"}, "Idempotency-Key": by_key | {"drain"}}
    schemas = {name: schema.get("properties", {}) for name, schema in document["components"]["schemas"].items()}
    for name, kind in outcomes._TYPES.items():
        assert name in schemas["ActionDocument"]["outcome"]["enum"]
        named = schemas["ActionDocument"].keys() & schemas["RequestDocument"].keys()
        assert {field.name for field in fields(kind)} <= named
    assert set(schemas["RequestDocument"]["answer"]["enum"]) == {*outcomes.Answer, PENDING}
    assert {"$ref": "#/components/schemas/State"} in schemas["BundleRow"]["state"]["anyOf"]
    untyped = [
        name
        for name, call in calls.items()
        for answer in (call["responses"][status]["content"] for status in ("200", "202") if status in call["responses"])
        if name != "openapi" and "$ref" not in answer.get("application/json", {"schema": {"$ref": ""}})["schema"]
    ]
    assert untyped == []
    assert not [name for name, call in calls.items() if not {"401", "403", "503", "504"} <= call["responses"].keys()]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_name_that_looks_like_bounds_is_looked_up_and_never_assigned(dry_run):
    async with rigged(lambda _: None) as (_, client):
        body = {"dry_run": dry_run}
        problem = (await client.post("/v1/lookup", json=body | {"name": "t/n/0X00000000_0X80000000"})).json()
        assert (problem["status"], problem["reason"]) == (404, "bad-name")
        assert "persistent://" in problem["hint"]
        answer = await client.post("/v1/lookup", json=body | {"name": "persistent://t/n/0X00000000_0X80000000"})
        assert answer.status_code in (200, 202)
        answer = await client.get("/v1/lookup", params={"name": "t/n/0X00000000"})
        assert answer.json()["bundle"].startswith("t/n/0x")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("path", "args", "status"),
    [
        ("brokers/b2/dismiss", {"broker": "b2", "reason": "gone"}, 200),
        ("brokers/b1/dismiss", {"broker": "b1", "reason": "gone"}, 409),
        ("repair/resume", {"reason": "gone"}, 200),
    ],
)
async def test_lost_brokers_are_dismissed_and_repair_is_resumed(path, args, status, dry_run):
    refused = Rejected("broker-not-lost", "b1 is not known as lost")
    async with rigged(lambda request: refused if status == 409 else accept(request)) as (rig, client):
        rig.cluster.members = [broker_row("b1"), broker_row("b2", state="lost")]
        body = {"reason": "gone", "dry_run": dry_run}
        answer = await client.post(f"/v1/{path}", json=body, headers={"Prefer": "wait=5"})
        assert answer.status_code == status
        assert [request.args for request in rig.requests.written] == ([] if dry_run else [args])
        assert [row["name"] for row in rig.requests.newest()] == ([] if dry_run else [args.get("broker", "")])
