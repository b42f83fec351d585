"""Callers by tokens of an OpenID Connect issuer: its keys, kept and read again, and what a token must claim."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jwt

from statechannel import http_client
from statechannel.http_api.openapi import discovery_url
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.routes import Caller
from statechannel.logger import SafeLogger
from statechannel.settings.groups_cluster import AccessRole

if TYPE_CHECKING:
    from statechannel.settings.groups_cluster import HttpSettings

_log = SafeLogger(__name__)

# With a secret that both sides know (HS256) whoever verifies could sign, and `none` signs nothing.
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
_CLAIMS: Final = ["iss", "aud", "exp", "sub"]
_SUBJECT: Final = re.compile(r"[!-~]{1,255}", re.ASCII)
LEEWAY_S: Final = 30.0
_FETCH_S: Final = 5.0
_WAIT_S: Final = 2 * _FETCH_S
"""Longest wait of a request for keys: there are two documents to fetch."""
PAUSE_S: Final = 10.0
"""Minimum time between two fetches, so that forged tokens cause no more."""
_FRESH_S: Final = 600.0
KEYS_MAX_AGE_S: Final = 86_400.0
"""Keys are used for this time while the issuer cannot be reached; then it may have withdrawn them."""
_DOCUMENT_MAX_BYTES: Final = 262_144
_KEYS_MAX: Final = 100
_SHOWN_CHARS: Final = 200
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "token-expired",
    jwt.ImmatureSignatureError: "token-early",
    jwt.InvalidIssuerError: "token-issuer",
    jwt.InvalidAudienceError: "token-audience",
}


class OidcCallers:
    """Authenticates bearers of an issuer's tokens; in one loop, which no fetch blocks.

    Raises:
        OSError: The certificates of `http.oidc_ca` cannot be used.
    """

    def __init__(self, settings: HttpSettings, issuer: str, audience: str) -> None:
        ssl.create_default_context(cafile=settings.oidc_ca)
        self._issuer = issuer
        self._audience = audience
        self._role_claim = settings.oidc_role_claim
        self._ca = settings.oidc_ca
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_s = self._tried_s = -inf
        self._fetch: asyncio.Task[None] | None = None
        self._why = ""

    async def caller(self, token: str, address: str) -> Caller:
        """Authenticate the bearer of a token.

        Raises:
            ProblemError: `token-...`, `role-missing`, or `issuer-unavailable`.
        """
        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))[:_SHOWN_CHARS]
            if algorithm not in _ALGORITHMS:
                raise jwt.InvalidAlgorithmError(
                    f"the algorithm {algorithm!r} is none of {', '.join(sorted(_ALGORITHMS))}"
                )
            claims = jwt.decode(
                token,
                await self._key(header.get("kid")),
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": _CLAIMS, "enforce_minimum_key_length": True},
            )
            if not _SUBJECT.fullmatch(claims["sub"]):
                raise jwt.InvalidTokenError("its subject is not 1 to 255 printable characters of ASCII")
        except (jwt.PyJWTError, ValueError) as error:
            raise ProblemError(_REASONS.get(type(error), "token-invalid"), str(error)[:_SHOWN_CHARS]) from None
        return Caller(claims["sub"], self._role(claims), address)

    def _role(self, claims: Mapping[str, Any]) -> AccessRole:
        """The highest role of the claim: a list, or words of a text as in `scope`."""
        values = claims.get(self._role_claim, ())
        words = values.split() if isinstance(values, str) else values if isinstance(values, list) else ()
        roles = [role for role in AccessRole if role in words]
        if not roles:
            raise ProblemError(
                "role-missing",
                f"the claim {self._role_claim!r} of the token has no role",
                hint=f"The issuer has to put one of {', '.join(AccessRole)} there (http.oidc_role_claim).",
            )
        return roles[-1]

    def _known(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id or "")

    async def _key(self, key_id: str | None) -> jwt.PyJWK:
        """The issuer's key of this id. For old ones it is asked again; while it does not answer they are used as they are."""
        now_s = time.monotonic()
        if now_s - self._read_s > KEYS_MAX_AGE_S:
            self._keys = {}
        key, is_old = self._known(key_id), now_s - self._read_s > _FRESH_S
        is_due = now_s - self._tried_s >= PAUSE_S and (self._fetch is None or self._fetch.done())
        if (key is None or is_old) and is_due:
            self._tried_s = now_s
            self._fetch = asyncio.create_task(self._refresh())
        if self._fetch is not None and (key is None or (is_old and not self._why)):
            await asyncio.wait({self._fetch}, timeout=_WAIT_S)
            key = self._known(key_id)
        if key is not None:
            return key
        if self._why or self._fetch is None or not self._fetch.done():
            raise ProblemError("issuer-unavailable", self._why or f"{self._issuer} has not answered yet")
        raise ProblemError("token-key-unknown", f"{self._issuer} has no key {(key_id or '')[:_SHOWN_CHARS]!r}")

    async def _refresh(self) -> None:
        try:
            self._keys = await asyncio.to_thread(_keys_of, self._issuer, self._ca)
        except Exception as error:  # of foreign documents: callers learn of it, and others are served
            self._why = f"the keys of {self._issuer} cannot be read: {error}"[: 2 * _SHOWN_CHARS]
            _log.warning("http-oidc-keys-unusable", issuer=self._issuer, why=self._why)
        else:
            self._read_s, self._why = time.monotonic(), ""


def _keys_of(issuer: str, ca: Path | None) -> dict[str, jwt.PyJWK]:
    """Keys by their ids, as the issuer's discovery document leads to them; those of other kinds are left out.

    Raises:
        StateChannelError, ValueError: A document was not received, is too long, or is not one of this issuer.
    """
    about = _document(discovery_url(issuer), ca)
    if about.get("issuer") != issuer:
        raise ValueError(f"its discovery document is of {str(about.get('issuer'))[:_SHOWN_CHARS]!r}")
    uri = str(about.get("jwks_uri"))
    if not http_client.is_private_url(uri):
        raise ValueError(f"its keys are at {uri[:_SHOWN_CHARS]!r}, without TLS, where they could be replaced")
    listed = _document(uri, ca).get("keys")
    if not isinstance(listed, list) or not 0 < len(listed) <= _KEYS_MAX:
        raise ValueError(f"{uri} has not 1 to {_KEYS_MAX} keys")
    keys: dict[str, jwt.PyJWK] = {}
    for fields in listed:
        if isinstance(fields, dict) and fields.get("kty") in _KEY_TYPES and fields.get("use", "sig") == "sig":
            try:
                key = jwt.PyJWK(fields)
            except jwt.PyJWTError:  # of a curve or algorithm that is not known here: others may be used
                continue
            if key.algorithm_name in _ALGORITHMS:
                keys[str(fields.get("kid", ""))] = key
    return keys


def _document(url: str, ca: Path | None) -> dict[str, Any]:
    document = json.loads(http_client.get(url, timeout_s=_FETCH_S, max_bytes=_DOCUMENT_MAX_BYTES, ca=ca))
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object")  # noqa: TRY004 - of a foreign document
    return document
