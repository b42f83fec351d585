"""Tokens of an OpenID Connect issuer: who is admitted as whom, what is refused by which code, and an issuer that fails."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from statechannel.http_api import oidc
from statechannel.http_api.access import HttpAccessError, HttpCallers, new_token
from statechannel.http_api.extension import HttpExtraMissingError, make
from statechannel.stories.requests import RequestStory
from tests.support.http_fakes import PATH, Rig, http_settings
from tests.support.oidc_issuer import AUDIENCE, Issuer, issuing
from tests.support.waits import WAIT_S

LATER_S = 3_600


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


@pytest.fixture
def static(tmp_path) -> str:
    """A token of the file, by which `rita` reads."""
    token, digest = new_token()
    (tmp_path / "callers").write_text(f"rita read {digest}\n")
    return token


@pytest.fixture
def rig(issuer, static, tmp_path) -> Rig:
    return Rig(http_settings(oidc_issuer=issuer.url, oidc_audience=AUDIENCE, access_file=str(tmp_path / "callers")))


@pytest.fixture
def no_pause(monkeypatch) -> None:
    """Keys are asked for whenever one is not known."""
    monkeypatch.setattr(oidc, "PAUSE_S", 0.0)


async def called(rig: Rig, token: str, method: str = "GET", path: str = "/v1") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}".encode()}
    async with rig.client() as client:
        return await client.request(method, path, headers=headers, **({"json": {}} if method == "POST" else {}))


async def reason(rig: Rig, token: str) -> str | None:
    """Why it is refused; None if it is not."""
    answer = await called(rig, token)
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    return answer.json().get("reason")


async def test_a_subject_acts_by_its_role_beside_tokens_of_the_file(rig, issuer, static):
    assert (await called(rig, issuer.token(), "POST", f"{PATH}/split")).status_code == 202
    assert rig.requests.written[-1].by == "user-7@127.0.0.1"
    roles = {}
    for claim in (
        ["read"],
        ["other", "force", "read"],
        "openid operate",
        [],
        ["admin"],
        "reader",
        {"force": 1},
        None,
        [["read"]],
    ):
        document = (await called(rig, issuer.token(roles=claim))).json()
        roles[str(claim)] = document.get("role") or document["reason"]
    assert list(roles.values()) == ["read", "force", "operate"] + ["role-missing"] * 6
    refused = await called(rig, issuer.token(roles=["read"]), "POST", f"{PATH}/split")
    assert (refused.status_code, refused.json()["reason"]) == (403, "role-missing")
    assert (await called(rig, static)).json()["caller"] == "rita"
    assert len(issuer.asked) == 2, "its keys are kept"
    document = (await called(rig, static, path="/v1/openapi.json")).json()
    assert document["components"]["securitySchemes"]["issuer"]["openIdConnectUrl"].startswith(issuer.url)
    assert {"issuer": []} in document["security"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/page/stream", 200),
        ("GET", "/v1/changes", 200),
        ("GET", "/v1/operations/", 401),
        ("POST", f"{PATH}/split", 202),
    ],
)
@pytest.mark.parametrize("token_of", ["file", "issuer"])
async def test_a_long_answer_ends_with_its_token(issuer, tmp_path, method, path, status, token_of):
    """A reader whose token was withdrawn learns nothing more, however long it had asked for; who acted has the outcome."""
    mine, digest = new_token()
    (tmp_path / "callers").write_text(f"otto operate {digest}\n")
    names = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "access_file": str(tmp_path / "callers")}
    rig = Rig(http_settings(heartbeat_s=600, wait_max_s=600, **names), lambda _: None)
    ends = asyncio.Event()

    async def wait_ended(identifier: str, _: float) -> RequestStory:
        await ends.wait()
        return rig.requests.fold.stories[identifier]

    rig.hub.start()
    rig.feed.start()
    token = mine if token_of == "file" else issuer.token(exp=int(time.time()) - int(oidc.LEEWAY_S) + 3)
    headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=600"}
    async with rig.client(**headers) as client, asyncio.timeout(WAIT_S):
        if path.endswith("operations/"):
            path += (await client.post(f"{PATH}/split", json={}, headers={"Prefer": ""})).json()["operation"]
        rig.requests.wait_ended = wait_ended
        asked = asyncio.ensure_future(client.request(method, path, **({"json": {}} if method == "POST" else {})))
        await asyncio.sleep(0.5)
        assert not asked.done()
        if token_of == "file":
            (tmp_path / "callers").write_text("# nobody\n")
        if method == "POST":
            assert not (await asyncio.wait({asked}, timeout=6))[0], "it may be in the log"
            ends.set()
        assert (await asked).status_code == status
    await asyncio.gather(rig.hub.close(), rig.feed.close())


def segment(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def with_header(text: str):
    return lambda issuer: ".".join([segment(text), *issuer.token().split(".")[1:]])


def by_public_key(issuer: Issuer) -> str:
    """Signed with what everybody knows, as a secret."""
    pem = issuer.keys["k1"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return issuer.token(key=base64.b64encode(pem), algorithm="HS256")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda issuer: issuer.token(aud=["other", AUDIENCE]), None),
        (lambda issuer: issuer.token(exp=int(time.time()) - 3), None),
        (lambda issuer: issuer.token(exp=int(time.time()) - LATER_S), "token-expired"),
        (lambda issuer: issuer.token(nbf=int(time.time()) + LATER_S), "token-early"),
        (lambda issuer: issuer.token(iat=int(time.time()) + LATER_S), "token-early"),
        (lambda issuer: issuer.token(aud="other"), "token-audience"),
        (lambda issuer: issuer.token(iss="https://other.example"), "token-issuer"),
        (lambda issuer: issuer.token(iss=issuer.url + "/"), "token-issuer"),
        *(
            (lambda issuer, name=name: issuer.token(**{name: None}), "token-invalid")
            for name in ("iss", "aud", "exp", "sub")
        ),
        *(
            (lambda issuer, sub=sub: issuer.token(sub=sub), "token-invalid")
            for sub in ("", "a b", "a\n", "ä", "x" * 256, "rita")
        ),
        (lambda issuer: issuer.token(exp="soon"), "token-invalid"),
        (lambda issuer: issuer.token(key=ec.generate_private_key(ec.SECP256R1())), "token-invalid"),
        (lambda issuer: issuer.token(key=rsa.generate_private_key(65_537, 2_048), algorithm="RS256"), "token-invalid"),
        (lambda issuer: issuer.token(header={"kid": "k2"}), "token-key-unknown"),
        (lambda issuer: issuer.token(header={"crit": ["x"], "x": 1}), "token-invalid"),
        (lambda issuer: issuer.token()[:-4] + "AAAA", "token-invalid"),
        (by_public_key, "token-invalid"),
        (with_header('{"alg":"none","kid":"k1"}'), "token-invalid"),
        (with_header('{"alg":"ES256","kid":7}'), "token-invalid"),
        (with_header('{"alg":["ES256"]}'), "token-invalid"),
        (with_header("[" * 9_000), "token-invalid"),
        (with_header("[]"), "token-invalid"),
        (lambda _: "..", "token-invalid"),
        (lambda _: "ä.ö.ü", "token-invalid"),
        (lambda _: "no-such-token", "token-missing"),
    ],
)
async def test_a_token_counts_only_if_all_of_it_is_right(rig, issuer, make, why):
    assert await reason(rig, make(issuer)) == why


async def test_tokens_by_unknown_keys_do_not_make_it_ask_each_time(rig, issuer):
    assert await reason(rig, issuer.token()) is None
    for number in range(50):
        assert await reason(rig, issuer.token(header={"kid": f"x{number}"})) in ("token-key-unknown", None)
    assert len(issuer.asked) <= 4
    assert await reason(rig, issuer.token()) is None


@pytest.mark.usefixtures("no_pause")
async def test_keys_that_are_new_count_and_those_withdrawn_do_not(rig, issuer):
    old = issuer.token()
    assert await reason(rig, old) is None
    issuer.keys = {"k2": ec.generate_private_key(ec.SECP256R1())}
    assert await reason(rig, issuer.token("k2")) is None
    assert await reason(rig, old) == "token-key-unknown"


@pytest.mark.usefixtures("no_pause")
async def test_while_the_issuer_is_away_known_keys_count_for_a_time_and_others_wait(rig, issuer, static, monkeypatch):
    issuer.bodies["/keys"] = (500, b"out of order")
    answer = await called(rig, issuer.token())
    assert (answer.status_code, answer.json()["reason"], answer.json()["retryable"]) == (
        503,
        "issuer-unavailable",
        True,
    )
    assert "500" in answer.json()["message"]
    assert (await called(rig, static)).status_code == 200
    issuer.bodies.clear()
    assert await reason(rig, issuer.token()) is None
    issuer.bodies["/keys"] = (500, b"out of order")
    assert await reason(rig, issuer.token(header={"kid": "k2"})) == "issuer-unavailable"
    assert await reason(rig, issuer.token()) is None
    monkeypatch.setattr(oidc, "KEYS_MAX_AGE_S", 0.0)
    assert await reason(rig, issuer.token()) == "issuer-unavailable"


async def test_a_slow_issuer_holds_up_nobody_else(rig, issuer, static):
    issuer.answers.clear()
    waiting = [asyncio.create_task(called(rig, issuer.token())) for _ in range(5)]
    assert (await called(rig, static)).status_code == 200
    assert not any(task.done() for task in waiting)
    issuer.answers.set()
    assert {(await task).status_code for task in waiting} == {200}
    assert len(issuer.asked) == 2, "one asks for all"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/keys", (200, b"{" + b" " * 10_000_000 + b"}")),
        ("/keys", (200, json.dumps({"keys": [{"kty": "EC", "kid": str(number)} for number in range(1_000)]}).encode())),
        ("/keys", (200, b"[" * 100_000)),
        ("/keys", (200, b'{"keys": []}')),
        ("/keys", (302, b"https://127.0.0.1:1/keys")),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "https://other.example"}')),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "URL", "jwks_uri": "http://keys.example/"}')),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "URL", "jwks_uri": "file:///etc/passwd"}')),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "URL"}')),
        ("/.well-known/openid-configuration", (404, b"")),
    ],
)
async def test_documents_that_are_not_as_they_should_be_bring_no_keys(rig, issuer, path, body):
    issuer.bodies[path] = body[0], body[1].replace(b"URL", issuer.url.encode())
    assert await reason(rig, issuer.token()) == "issuer-unavailable"


async def test_keys_that_everybody_or_nobody_has_verify_nothing(rig, issuer):
    weak = rsa.generate_private_key(65_537, 1_024)
    numbers = weak.public_key().public_numbers()
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    number = base64.urlsafe_b64encode(numbers.n.to_bytes(128)).decode().rstrip("=")
    listed = [
        {"kty": "oct", "kid": "secret", "alg": "HS256", "k": secret},
        {"kty": "RSA", "kid": "weak", "n": number, "e": "AQAB"},
        {"kty": "EC", "kid": "odd", "crv": "P-0"},
        "no key",
    ]
    issuer.bodies["/keys"] = 200, json.dumps({"keys": listed}).encode()
    assert await reason(rig, issuer.token(header={"kid": "secret"})) == "token-key-unknown"
    assert await reason(rig, issuer.token(key=weak, algorithm="RS256", header={"kid": "weak"})) == "token-invalid"
    assert (
        await reason(rig, issuer.token(key=b"s" * 32, algorithm="HS256", header={"kid": "secret"})) == "token-invalid"
    )


def test_settings_that_would_admit_others_are_refused(monkeypatch):
    https = "https://issuer.example"
    HttpCallers(http_settings(address="0.0.0.0", oidc_issuer=https, oidc_audience="a").http)
    for wrong in ({}, {"oidc_issuer": "http://issuer.example"}, {"oidc_ca": "/no/such/file"}):
        values = {"oidc_issuer": https, "oidc_audience": "a", **wrong} if wrong else {"oidc_issuer": https}
        with pytest.raises(HttpAccessError, match=next(iter(wrong), "oidc_audience")):
            HttpCallers(http_settings(**values).http)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(HttpExtraMissingError) as missing:
        make(http_settings(oidc_issuer=https, oidc_audience="a"), {})
    assert "[oidc]" in missing.value.hint
