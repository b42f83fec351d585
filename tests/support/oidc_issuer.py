"""An OpenID Connect issuer on loopback: its documents, and tokens signed with its keys."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from tests.support import metric_servers

AUDIENCE = "statechannel-api"


def public(key: EllipticCurvePrivateKey) -> str:
    """As JWK."""
    return str(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))


class Issuer:
    """What it answers, and what it was asked.

    Attributes:
        keys: By id.
        bodies: Answers in place of those that it would have, by path.
        answers: Not set: it takes requests, and does not answer.
    """

    def __init__(self) -> None:
        self.url = ""
        self.keys = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.bodies: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()

    def answer(self, path: str, _: dict[str, list[str]]) -> tuple[int, bytes]:
        self.asked.append(path)
        self.answers.wait()
        listed = [json.loads(public(key)) | {"kid": name, "use": "sig"} for name, key in self.keys.items()]
        documents: dict[str, dict[str, Any]] = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": listed},
        }
        return self.bodies.get(path) or (200, json.dumps(documents[path]).encode())

    def token(
        self, key_id: str = "k1", *, key: Any = None, algorithm: str = "ES256", header: Any = None, **claims: Any
    ) -> str:
        """A token for `user-7`, for a minute; a claim of None is left out."""
        now_s = int(time.time())
        whole = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "user-7",
            "iat": now_s,
            "exp": now_s + 60,
            "roles": ["operate"],
        }
        claims = {name: value for name, value in (whole | claims).items() if value is not None}
        return jwt.encode(claims, key or self.keys[key_id], algorithm, headers={"kid": key_id, **(header or {})})


@contextmanager
def issuing() -> Iterator[Issuer]:
    """The issuer, which is asked in threads."""
    issuer = Issuer()
    with metric_servers.serving(issuer.answer) as issuer.url:
        yield issuer
