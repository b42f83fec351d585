"""Rules of client properties that the library checks for consumers only, or not at all; and the source of OAuth tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from typing import Any

from statechannel.kafka.errors import ClientSettingRefusedError

_log = logging.getLogger("statechannel.kafka")

_ANSWER_LIMIT = "receive.message.max.bytes"
_FETCH_LIMIT = "fetch.max.bytes"
_FETCH_MAX_BYTES = 52_428_800  # the library's default
_ANSWER_OVERHEAD_BYTES = 512


def refuse_small_answers(properties: Mapping[str, str]) -> None:
    """Refuse for every client what the library refuses for consumers: others would take each larger answer for an outage.

    Raises:
        ClientSettingRefusedError: An answer that Kafka may send is larger than the client may receive.
    """
    limit, fetched = (properties.get(key, "").strip() for key in (_ANSWER_LIMIT, _FETCH_LIMIT))
    least = (int(fetched) if fetched.isdecimal() else _FETCH_MAX_BYTES) + _ANSWER_OVERHEAD_BYTES
    if limit.isdecimal() and int(limit) < least:
        raise ClientSettingRefusedError(
            f"{_ANSWER_LIMIT} is {limit}, below {_FETCH_LIMIT} and {_ANSWER_OVERHEAD_BYTES} bytes of overhead: {least}.",
            hint=f"Remove {_ANSWER_LIMIT}, or raise it to {least}.",
        )


def refuse_no_tokens(properties: Mapping[str, str]) -> None:
    """Refuse OAUTHBEARER without a source of tokens: the library would wait for one without a word.

    Raises:
        ClientSettingRefusedError: There is none.
    """
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "")).strip().upper()
    is_sasl = properties.get("security.protocol", "").strip().lower().startswith("sasl")
    has_method = properties.get("sasl.oauthbearer.method", "").strip().lower() == "oidc"
    is_unsecured = properties.get("enable.sasl.oauthbearer.unsecure.jwt", "").strip().lower() in ("true", "t", "1")
    if is_sasl and mechanism == "OAUTHBEARER" and not has_method and not is_unsecured:
        raise ClientSettingRefusedError(
            "sasl.mechanism is OAUTHBEARER, and nothing makes tokens.",
            hint="Set sasl.oauthbearer.method=oidc with its properties, or kafka.oauth_callback, MODULE:FUNCTION of Python.",
        )


class TokenSource:
    """The function that makes tokens, `oauth_cb` of the clients. It remembers why it fails: the library drops that.

    Args:
        name: `MODULE:FUNCTION`.

    Attributes:
        failure: Why the last call failed; empty: it did not.

    Raises:
        ClientSettingRefusedError: It cannot be imported, or is not a function.
    """

    def __init__(self, name: str) -> None:
        self.failure = ""
        self._name = f"kafka.oauth_callback {name}"
        module, _, path = name.partition(":")
        try:
            self._make: Any = reduce(getattr, path.split("."), import_module(module))
        except Exception as error:  # whatever the module raises
            raise ClientSettingRefusedError(
                f"{self._name} cannot be imported: {type(error).__name__}: {error}.",
                hint="Give MODULE:FUNCTION of a module that this Python finds (PYTHONPATH).",
            ) from error
        if not callable(self._make):
            raise ClientSettingRefusedError(
                f"{self._name} is not a function.", hint="Give MODULE:FUNCTION, as in my_app.tokens:msk_token."
            )

    def __call__(self, config: str) -> Any:
        try:
            token = self._make(config)
        except Exception as error:
            self.failure = f"{self._name} failed: {type(error).__name__}: {error}"
            _log.warning("%s", self.failure)
            raise
        self.failure = ""
        return token
