"""Pulsar's admin and lookup paths over fakes: Pulsar's forms and statuses; roles and checks are the admin API's."""

import asyncio
import contextlib
import json
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedders import http_api as balancer_routes
from shedders.policies.book import PolicyBook
from shedders.queries import policies as policy_queries
from statechannel.engine.commands import Done, Owned, Rejected, Unknown, Unowned
from statechannel.http_api.openapi import document_of, public
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.pulsar import documents
from statechannel.http_api.pulsar.documents import BundleSplitQuery, NewIsolation, NewNamespace
from statechannel.http_api.pulsar.form import REASON_HEADER
from statechannel.http_api.pulsar.paths import UNSUPPORTED
from statechannel.protocol.bundle import split_topic
from tests.support.http_fakes import BUNDLE, FakeRequests, Rig, accept, broker_row, http_settings

TOKEN = {"Authorization": "Bearer any"}
RANGE = BUNDLE.rpartition("/")[2]
NAMESPACE = "/admin/v2/namespaces/t/n"
ISOLATIONS = "/admin/v2/clusters/bundle-state/namespaceIsolationPolicies"
TOPIC = "/lookup/v2/topic/persistent/t/n/orders"
URLS = {"pulsar": "pulsar://h1:6650", "web": "http://h1:8080", "tls": "pulsar+ssl://h1:6651"}
MIN_AVAILABLE = {"policy_type": "min_available", "parameters": {"min_limit": "2", "usage_threshold": "100"}}
GOLD = {"namespaces": ["t/n.*"], "primary": ["h1"], "secondary": ["h2"], "auto_failover_policy": MIN_AVAILABLE}


@contextlib.asynccontextmanager
async def pulsar(answer=accept, *, headers=TOKEN, requests: FakeRequests | None = None, **http):
    rig = Rig(http_settings(pulsar_paths=True, **http), answer, requests=requests)
    rig.cluster.members = [broker_row("b1", urls=URLS), broker_row("b2"), broker_row("b3", state="lost")]
    async with rig.client(**headers) as client:
        yield rig, client


def refused(answer: httpx.Response, status: int, reason: str) -> str:
    """The sentence of a refusal in Pulsar's form."""
    assert (answer.status_code, answer.headers[REASON_HEADER]) == (status, reason), answer.text
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert list(answer.json()) == ["reason"]
    assert "Traceback" not in answer.text
    return answer.json()["reason"]


def done(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.content) == (204, b""), answer.text


async def test_they_are_off_by_default_and_not_in_the_description_of_the_api():
    rig = Rig(http_settings())
    async with rig.client(**TOKEN) as client:
        for path in ("/admin/v2/brokers", TOPIC):
            assert (await client.get(path)).json()["reason"] == "no-such-path"
    async with pulsar() as (_, client):
        document = (await client.get("/v1/openapi.json")).json()
        assert document == json.loads(json.dumps(document_of(public(rig.routes))))


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/admin/v2/brokers", ["b1", "b2"]),
        ("/admin/v2/brokers/bundle-state", ["b1", "b2"]),
        ("/admin/v2/brokers/leaderBroker", {"brokerId": "b1", "serviceUrl": "http://h1:8080"}),
        (
            "/admin/v2/brokers/bundle-state/b1/ownedNamespaces",
            {BUNDLE: {"broker_assignment": None, "is_controlled": False, "is_active": True}},
        ),
        ("/admin/v2/clusters", ["bundle-state"]),
        (
            "/admin/v2/clusters/bundle-state",
            {
                "serviceUrl": "http://h1:8080",
                "serviceUrlTls": None,
                "brokerServiceUrl": "pulsar://h1:6650",
                "brokerServiceUrlTls": "pulsar+ssl://h1:6651",
            },
        ),
        ("/admin/v2/tenants", ["t"]),
        ("/admin/v2/tenants/t", {"adminRoles": [], "allowedClusters": ["bundle-state"]}),
        ("/admin/v2/namespaces/t", ["t/n"]),
        (f"{NAMESPACE}/bundles", {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}),
        ("/admin/v2/brokers/?unknown=1", ["b1", "b2"]),
    ],
)
async def test_reads(path, document):
    async with pulsar() as (_, client):
        assert (await client.get(path)).raise_for_status().json() == document


@pytest.mark.parametrize(
    ("path", "text"),
    [("/admin/v2/brokers/health", "ok"), ("/admin/v2/brokers/health?brokerId=b2", "ok"), (f"{TOPIC}/bundle", RANGE)],
)
async def test_plain_texts(path, text):
    async with pulsar() as (_, client):
        assert (await client.get(path)).raise_for_status().text == text


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/admin/v2/brokers/elsewhere", 404, "bad-request"),
        ("GET", "/admin/v2/brokers/bundle-state/b9/ownedNamespaces", 404, "broker-not-found"),
        ("GET", "/admin/v2/brokers/bundle-state/b3/ownedNamespaces", 404, "broker-not-found"),
        ("GET", "/admin/v2/brokers/health?brokerId=b9", 404, "broker-not-found"),
        ("GET", "/admin/v2/clusters/elsewhere", 404, "bad-request"),
        ("GET", "/admin/v2/namespaces/nobody", 404, "unknown-namespace"),
        ("GET", "/admin/v2/namespaces/t/x/bundles", 404, "unknown-namespace"),
        ("GET", "/admin/v2/namespaces/t/%20/bundles", 412, "bad-request"),
        ("PUT", f"{NAMESPACE}/all/unload", 412, "bad-request"),
        ("PUT", f"{NAMESPACE}/0x00000000_0x80000000/unload", 412, "unknown-bundle"),
        ("PUT", f"/admin/v2/namespaces/t/x/{RANGE}/unload", 404, "unknown-namespace"),
        ("PUT", "/admin/v2/namespaces/t/x/unload", 404, "unknown-namespace"),
        ("PUT", f"{NAMESPACE}/LARGEST/split", 501, "not-supported"),
        ("PUT", f"{NAMESPACE}/{RANGE}/split?splitAlgorithmName=topic_count_equally_divide", 412, "bad-request"),
        ("PUT", f"{NAMESPACE}/{RANGE}/split?splitAlgorithmName=specified_positions_divide", 412, "bad-request"),
        ("PUT", f"{NAMESPACE}/{RANGE}/split?unload=maybe", 400, "bad-request"),
        ("DELETE", NAMESPACE, 501, "not-supported"),
        ("DELETE", f"{ISOLATIONS}/".replace("bundle-state", "other") + "p", 412, "bad-request"),
        ("GET", "/lookup/v2/topic/persistent/x/y/z", 404, "unknown-namespace"),
        ("GET", "/lookup/v2/topic/queue/t/n/z", 412, "bad-request"),
        ("PUT", "/admin/v2/namespaces/t/%2E%2E", 412, "bad-request"),
        ("GET", "/lookup/v2/destination/persistent/t/c/n/z", 501, "not-supported"),
        ("GET", "/admin/v3/functions", 501, "not-supported"),
        ("DELETE", f"{NAMESPACE}/{RANGE}", 501, "not-supported"),
        ("PATCH", "/admin/v2/brokers", 501, "not-supported"),
        ("OPTIONS", f"{NAMESPACE}/unload", 501, "not-supported"),
    ],
)
async def test_what_is_refused_has_pulsars_form_and_changes_nothing(method, path, status, reason):
    async with pulsar() as (rig, client):
        refused(await client.request(method, path), status, reason)
        assert rig.requests.written == []


async def test_each_path_of_the_table_that_is_not_supported_says_what_there_is_instead():
    async with pulsar() as (_, client):
        for unsupported in UNSUPPORTED:
            path = unsupported.path.replace("{rest:path}", "/x").replace("{cluster}", "bundle-state").replace("//", "/")
            path = path.replace("{tenant}", "t").replace("{namespace}", "n").replace("Backlog/", "Backlog")
            said = refused(await client.request(unsupported.method, path), 501, "not-supported")
            assert unsupported.instead in said


async def test_a_transfer_an_unload_and_a_split_are_requests_that_are_waited_for():
    async with pulsar() as (rig, client):
        done(await client.put(f"{NAMESPACE}/{RANGE}/unload?destinationBroker=http%3A%2F%2Fb2&authoritative=false"))
        done(await client.put(f"{NAMESPACE}/{RANGE}/unload"))
        done(await client.put(f"{NAMESPACE}/unload"))
        done(await client.put(f"{NAMESPACE}/{RANGE}/split?unload=false", json=None))
        split_at = f"{NAMESPACE}/{RANGE}/split?splitAlgorithmName=specified_positions_divide"
        done(await client.put(split_at, json=[1, 3_000_000_000]))
        changed = [
            (request.asked, dict(request.args)) for request in rig.requests.written if request.asked != "extension"
        ]
        assert changed == [
            ("transfer", {"name": BUNDLE, "destination": "b2", "force": False}),
            ("unload", {"name": BUNDLE, "force": False}),
            ("unload", {"name": BUNDLE, "force": False}),
            ("split", {"name": BUNDLE, "parts": 2}),
            ("split", {"name": BUNDLE, "at": [1, 3_000_000_000]}),
        ]
        asked = [request.args["ask"] for request in rig.requests.written if request.asked == "extension"]
        assert asked == ["may-take"] * 3, "moves ask the leader whether policies allow them"
        assert {request.by for request in rig.requests.written} == {"unnamed@127.0.0.1"}


async def test_a_split_takes_ownership_first_as_pulsar_does():
    def answer(request):
        rig.cluster.row = {**rig.cluster.row, "state": "Assigned", "owner": "b1"}
        return Owned(BUNDLE, "b1", 8, {}) if request.asked == "lookup" else accept(request)

    async with pulsar(answer) as (rig, client):
        for key in ({}, {"Idempotency-Key": "k"}):
            rig.cluster.row = {**rig.cluster.row, "state": "Unassigned", "owner": None}
            done(await client.put(f"{NAMESPACE}/{RANGE}/split", headers=key))
            asked = [(request.asked, request.args["name"]) for request in rig.requests.written]
            assert asked[-2:] == [("lookup", BUNDLE), ("split", BUNDLE)]
        done(await client.put(f"{NAMESPACE}/{RANGE}/split", headers=key))
        assert len(rig.requests.written) == 4, "the same key acts once"


async def test_the_parts_of_a_split_are_unloaded_once_they_are_there():
    async with pulsar() as (rig, client):
        whole, looked = rig.cluster.row, []

        async def bundle(name):
            looked.append(name)
            if name == BUNDLE:
                return whole
            return {**whole, "bundle": name} if looked.count(name) > 1 else None  # read only a moment later

        rig.cluster.bundle = bundle
        done(await client.put(f"{NAMESPACE}/{RANGE}/split?unload=true", headers={"Idempotency-Key": "k"}))
        names = [request.args["name"] for request in rig.requests.written if request.asked != "extension"]
        parts = [f"t/n/{part}" for part in ("0x00000000_0x7fffffff", "0x7fffffff_0xffffffff")]
        assert (names[0], sorted(names[1:])) == (BUNDLE, parts)
        count = len(rig.requests.written)
        done(await client.put(f"{NAMESPACE}/{RANGE}/split?unload=true", headers={"Idempotency-Key": "k"}))
        assert len(rig.requests.written) == count, "the same key acts once"


async def test_a_bundle_without_owner_has_nothing_to_unload():
    async with pulsar() as (rig, client):
        rig.cluster.row = {**rig.cluster.row, "state": "Unassigned", "owner": None}
        done(await client.put(f"{NAMESPACE}/{RANGE}/unload"))
        done(await client.put(f"{NAMESPACE}/unload"))
        assert rig.requests.written == []


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Rejected("unknown-destination", "broker b9 is not alive"), 409, "unknown-destination"),
        (Rejected("filtered", "isolation"), 409, "filtered"),
        (Unknown("x", "nobody knows"), 504, "unknown"),
        (None, 504, "answer-late"),
    ],
)
async def test_how_a_transfer_ends_is_said_and_an_unknown_end_is_no_success(outcome, status, reason):
    def answer(request):
        return Done(request.id, "allowed", {}) if request.args.get("ask") == "may-take" else outcome

    async with pulsar(answer) as (_, client):
        refused(await client.put(f"{NAMESPACE}/{RANGE}/unload?destinationBroker=b9"), status, reason)
        said = refused(await client.put(f"{NAMESPACE}/unload"), status, reason)
        assert said.startswith("0 of 1 bundles are unloaded")


async def test_a_namespace_is_created_and_deleted():
    async with pulsar() as (rig, client):
        done(await client.put("/admin/v2/namespaces/t/new"))
        body = {
            "bundles": {"numBundles": 4},
            "replication_clusters": ["bundle-state"],
            "offload_threshold": -1,
            "properties": {},
        }
        done(await client.put("/admin/v2/namespaces/t/new", json=body))
        done(await client.delete(f"{NAMESPACE}?force=true"))
        changed = [(request.asked, dict(request.args)) for request in rig.requests.written]
        default = rig.settings.lookups.default_bundles
        assert changed == [
            ("create-namespace", {"namespace": "t/new", "bundles": default, "defaults": ["bundles"]}),
            ("create-namespace", {"namespace": "t/new", "bundles": 4}),
            ("delete-namespace", {"namespace": "t/n"}),
        ]


# --- who may ------------------------------------------------------------------------------------------------------------


WRITES = [
    ("PUT", f"{NAMESPACE}/{RANGE}/unload", "operate"),
    ("PUT", f"{NAMESPACE}/{RANGE}/split", "operate"),
    ("PUT", f"{NAMESPACE}/unload", "operate"),
    ("PUT", NAMESPACE, "operate"),
    ("POST", f"{ISOLATIONS}/gold", "operate"),
    ("DELETE", f"{ISOLATIONS}/gold", "operate"),
    ("DELETE", f"{NAMESPACE}?force=true", "force"),
]


@pytest.mark.parametrize(("method", "path", "least"), WRITES)
async def test_roles_are_those_of_the_admin_api(method, path, least):
    role = "read" if least == "operate" else "operate"
    async with pulsar(open_role=role) as (rig, client):
        assert f"takes the role {least}" in refused(await client.request(method, path, json={}), 403, "role-missing")
        assert rig.requests.written == []


@pytest.mark.parametrize(("method", "path", "_least"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Origin": "http://evil.example", **TOKEN},
        {"Origin": "null", **TOKEN},
        {"Sec-Fetch-Site": "cross-site", **TOKEN},
    ],
)
async def test_a_page_of_another_site_changes_nothing(method, path, _least, headers):
    async with pulsar(headers={}) as (rig, client):
        refused(await client.request(method, path, headers=headers), 403, "foreign-page")
        assert rig.requests.written == []


async def test_a_lookup_assigns_only_for_who_may_and_for_no_image_of_a_page():
    async def unowned(_):
        return Unowned(BUNDLE)

    def assign(request):
        return Owned(BUNDLE, "b1", 8, URLS)

    async with pulsar(assign, headers={}) as (rig, client):
        assert (await client.get(TOPIC)).json()["httpUrl"] == "http://127.0.0.1:1", "one that is owned needs no proof"
        rig.cluster.lookup = unowned
        refused(await client.get(TOPIC), 403, "foreign-page")
        refused(await client.get(TOPIC, headers={"Sec-Fetch-Site": "cross-site", **TOKEN}), 403, "foreign-page")
        assert rig.requests.written == []
        document = (await client.get(TOPIC, headers=TOKEN)).raise_for_status().json()
        assert document == {
            "brokerUrl": "pulsar://h1:6650",
            "brokerUrlTls": "pulsar+ssl://h1:6651",
            "httpUrl": "http://h1:8080",
            "httpUrlTls": None,
            "nativeUrl": "pulsar://h1:6650",
        }
        (request,) = rig.requests.written
        assert (request.asked, request.args["name"]) == ("lookup", "persistent://t/n/orders")
    async with pulsar(assign, open_role="read") as (rig, client):
        rig.cluster.lookup = unowned
        refused(await client.get(TOPIC), 403, "role-missing")
        assert rig.requests.written == []


async def test_who_advertises_no_http_address_has_that_of_its_api():
    cluster, leader = "/admin/v2/clusters/bundle-state", "/admin/v2/brokers/leaderBroker"
    async with pulsar() as (rig, client):
        for api, urls, service in (
            (None, {}, None),
            ("https://h1:8450", {}, "https://h1:8450"),
            ("https://h1:8450", {"web": "http://h1:8080"}, "http://h1:8080"),
        ):
            rig.cluster.members = [broker_row("b1", urls=urls, api=api), broker_row("b2")]
            assert (await client.get(leader)).json()["serviceUrl"] == service
        rig.cluster.members = [broker_row("b1", urls={}, api="http://h1:8450"), broker_row("b2", api="http://h2:8450")]
        assert (await client.get(cluster)).json()["serviceUrl"] == "http://h1:8450,h2:8450"

        async def lookup(_):
            return Owned(BUNDLE, "b2", 7, {"pulsar": "pulsar://h2:6650"})

        rig.cluster.lookup = lookup
        found = (await client.get(TOPIC)).json()
        assert (found["brokerUrl"], found["httpUrl"]) == ("pulsar://h2:6650", "http://h2:8450")
        rig.cluster.members = [broker_row("b1")]
        assert (await client.get(TOPIC)).json()["httpUrl"] is None


@pytest.mark.parametrize("path", ["/admin/v2/brokers", TOPIC, f"{NAMESPACE}/unload", "/admin/nowhere"])
async def test_a_foreign_host_and_too_many_requests_are_refused_in_pulsars_form(path):
    async with pulsar() as (_, client):
        refused(await client.get(path, headers={"Host": "evil.example"}), 421, "bad-host")
    async with pulsar(requests_per_s=0.1) as (_, client):
        assert (await client.get("/admin/v2/brokers")).status_code == 200
        answer = await client.get(path)
        refused(answer, 429, "too-many-requests")
        assert int(answer.headers["retry-after"]) >= 1


async def test_with_a_file_of_callers_a_token_of_it_is_needed(tmp_path):
    callers = tmp_path / "callers"
    callers.write_text("ann operate sha256:" + "0" * 64 + "\n")
    async with pulsar(access_file=str(callers)) as (rig, client):
        for method, path in (("GET", "/admin/v2/brokers"), ("PUT", f"{NAMESPACE}/unload"), ("GET", TOPIC)):
            refused(await client.request(method, path), 401, "token-missing")
        assert rig.requests.written == []


# --- names --------------------------------------------------------------------------------------------------------------


def raw_request(rig: Rig, method: str, path: str) -> httpx.Response:
    """An answer to a path that is sent as it is."""

    async def send() -> httpx.Response:
        async with rig.client(**TOKEN) as client:
            url = client.base_url.copy_with(raw_path=path.encode())
            return await client.send(client.build_request(method, url))

    return asyncio.run(send())


def test_a_topic_of_any_characters_arrives_as_it_is():
    """Encoded as Pulsar's client does it: the name as a form, then the path."""
    rig, asked = Rig(http_settings(pulsar_paths=True)), []

    async def lookup(name):
        asked.append(name)
        return Owned(BUNDLE, "b1", 7, {})

    rig.cluster.lookup = lookup

    @given(topic=st.text(min_size=1, max_size=40).filter(lambda text: text not in (".", "..")))
    def arrives(topic):
        asked.clear()
        encoded = quote_plus(topic.encode(errors="replace"))
        for path in (f"/lookup/v2/topic/persistent/t/n/{encoded}", f"/lookup/v2/topic/persistent/t/n/{encoded}/bundle"):
            answer = raw_request(rig, "GET", path)
            assert answer.status_code == 200, answer.text
        assert asked == ["persistent://t/n/" + topic.encode(errors="replace").decode()] * 2

    arrives()


def test_a_namespace_of_any_characters_is_one_or_is_refused():
    rig = Rig(http_settings(pulsar_paths=True))

    @given(name=st.text(min_size=1, max_size=20).filter(lambda text: not {"/", "."} & set(text)) | st.just("n"))
    def is_one(name):
        rig.requests.written.clear()
        path = f"/admin/v2/namespaces/t/{quote(name.encode(errors='replace'), safe='')}/unload"
        answer = raw_request(rig, "PUT", path)
        valid = split_topic(f"t/{name}/x") is not None
        assert answer.status_code == ((204 if name == "n" else 404) if valid else 412), answer.text
        assert bool(rig.requests.written) == (name == "n")

    is_one()


# --- policies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def policies(monkeypatch):
    """Policies that are kept in a mapping in place of Kafka's topic."""
    kept = {}

    def document(*_):
        entries = [
            {"kind": kind, "name": name, "override": False, "value": value} for (kind, name), value in kept.items()
        ]
        return {"policies": [*entries, {"kind": "exclude", "name": "t/n", "override": False, "value": {}}]}

    def put(_, key, value, **facts):
        kept[str(key.kind), key.name] = value
        return SimpleNamespace(written=None, fields=lambda: {"by": facts["by"]})

    def take_away(_, key, **__):
        del kept[str(key.kind), key.name]
        return SimpleNamespace(written=None, fields=dict)

    monkeypatch.setattr(policy_queries, "book_of", lambda *_, **__: PolicyBook())
    monkeypatch.setattr(policy_queries, "policies_document", document)
    monkeypatch.setattr(balancer_routes, "put", put)
    monkeypatch.setattr(balancer_routes, "take_away", take_away)
    return kept


async def test_an_isolation_policy_is_written_read_and_deleted(policies):
    async with pulsar() as (_, client):
        done(await client.post(f"{ISOLATIONS}/gold", json=GOLD))
        value = {"namespaces": ["t/n.*"], "primary": ["h1"], "secondary": ["h2"], "min_available": 2}
        assert policies == {("isolation", "gold"): value}
        numbers = {**MIN_AVAILABLE, "parameters": {"min_limit": 2, "usage_threshold": 100}}
        done(await client.post(f"{ISOLATIONS}/gold", json={**GOLD, "auto_failover_policy": numbers}))
        assert (await client.get(f"{ISOLATIONS}/")).json() == {"gold": GOLD}
        assert (await client.get(f"{ISOLATIONS}/gold")).json() == GOLD
        refused(await client.get(f"{ISOLATIONS}/silver"), 404, "bad-request")
        done(await client.delete(f"{ISOLATIONS}/gold"))
        assert policies == {}


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"auto_failover_policy": None}, 412, "bad-request"),
        ({"auto_failover_policy": {"policy_type": "other", "parameters": {}}}, 412, "bad-request"),
        (
            {"auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "²"}}},
            412,
            "bad-request",
        ),
        (
            {"auto_failover_policy": {**MIN_AVAILABLE, "parameters": {"min_limit": "1", "usage_threshold": "80"}}},
            501,
            "not-supported",
        ),
        ({"unload_scope": "all_matching"}, 501, "not-supported"),
        ({"namespaces": "t/n"}, 400, "bad-request"),
        ({"auto_failover_policy": {**MIN_AVAILABLE, "parameters": {"min_limit": True}}}, 400, "bad-request"),
    ],
)
async def test_an_isolation_policy_that_cannot_be_expressed_is_refused(policies, change, status, reason):
    async with pulsar() as (_, client):
        sentence = refused(await client.post(f"{ISOLATIONS}/gold", json={**GOLD, **change}), status, reason)
        assert "openapi" not in sentence
        answer = await client.post(f"{ISOLATIONS}/gold", content=b"{}", headers={"Content-Type": "text/plain"})
        refused(answer, 415, "wrong-media-type")
        assert policies == {}


@given(
    namespaces=st.lists(st.text(max_size=9)), primary=st.lists(st.text(max_size=9)), limit=st.integers(0, 2**31)
)  # fmt: skip
def test_a_policy_that_was_read_can_be_written_again(namespaces, primary, limit):
    value = {"namespaces": namespaces, "primary": primary, "secondary": [], "min_available": limit}
    document = documents.isolation_document(value)
    assert documents.isolation_value(NewIsolation.model_validate(document)) == value


@pytest.mark.parametrize(
    "wanted",
    [
        {"replication_clusters": ["elsewhere"]},
        {"retention_policies": {"retentionTimeInMinutes": 5}},
        {"deduplicationEnabled": True},
        {"bundles": {"numBundles": 2, "boundaries": ["0x00000000", "0x10000000", "0xffffffff"]}},
    ],
)
def test_settings_of_a_namespace_that_there_are_not_here_are_not_dropped(wanted):
    with pytest.raises(ProblemError) as problem:
        documents.new_bundles(NewNamespace.model_validate(wanted), "bundle-state")
    assert problem.value.reason == "not-supported"


def test_settings_that_are_nested_more_deeply_than_the_stack_are_read():
    unset, there = {}, {"x": 1}
    for _ in range(5_000):
        unset, there = {"x": unset}, {"x": there}
    assert documents.new_bundles(NewNamespace.model_construct(odd=unset), "bundle-state") is None
    with pytest.raises(ProblemError, match="has no odd"):
        documents.new_bundles(NewNamespace.model_construct(odd=there), "bundle-state")


@pytest.mark.parametrize(
    "boundaries",
    [
        ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        ["0x00000000", "0x40000000", "0x80000000", "0xC0000000", "0XFFFFFFFF"],
        ["0xffffffff", "0x0", "0x40000000", "0x080000000", "0xc0000000"],
    ],
)
def test_even_boundaries_may_be_given(boundaries):
    for bundles in ({"boundaries": boundaries}, {"boundaries": boundaries, "numBundles": 4}):
        assert documents.new_bundles(NewNamespace.model_validate({"bundles": bundles}), "bundle-state") == 4


@pytest.mark.parametrize("bound", ["40000000", "0x", "0x4_0000000", "0x140000000", "-0x1", "x"])
def test_a_boundary_that_is_no_hash_is_named(bound):
    wanted = NewNamespace.model_validate({"bundles": {"boundaries": ["0x00000000", bound, "0xffffffff"]}})
    with pytest.raises(ProblemError, match="boundary") as problem:
        documents.new_bundles(wanted, "bundle-state")
    assert problem.value.status == 412


def test_a_bundle_may_be_named_in_upper_case():
    path = {"tenant": "T", "namespace": "N", "bundle": "0x40000000_0XC0000000"}
    assert documents.bundle_of(path) == "T/N/0x40000000_0xc0000000"


@pytest.mark.parametrize(
    ("at", "parts"),
    [
        ([], ["0x00000000_0x08000000", "0x08000000_0x10000000"]),
        ([5, 1], ["0x00000000_0x00000001", "0x00000001_0x00000005", "0x00000005_0x10000000"]),
    ],
)
def test_the_parts_of_a_split(at, parts):
    query = BundleSplitQuery(splitAlgorithmName="specified_positions_divide" if at else "")
    body = documents.split_body(query, at)
    assert documents.parts_of("t/n/0x00000000_0x10000000", body) == [f"t/n/{part}" for part in parts]


def test_several_addresses_are_one_service_url():
    every = [{"a": "http://h1:1"}, {"b": "https://h2:2"}, {"c": "HTTP://h3:3"}]
    document = documents.cluster_document(every)
    assert (document["serviceUrl"], document["serviceUrlTls"]) == ("http://h1:1,h3:3", "https://h2:2")
    assert document["brokerServiceUrl"] is None
