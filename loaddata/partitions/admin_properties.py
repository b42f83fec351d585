"""How the admin client (kafka-python) reaches the Kafka that the settings describe in librdkafka's words.

One place says how Kafka is reached, for every command. What has another name is translated; what only tunes librdkafka is
left out; what would change who is trusted or who asks, and cannot be translated, is refused.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import ClientSettingRefusedError

_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"})
_UNTRANSLATED: Final = (
    "ssl.keystore.location",
    "ssl.engine.location",
    "ssl.providers",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)
"""Properties that say who is trusted or who asks, in forms that Python's TLS does not take."""
_HINT: Final = "Keys and certificates are given as PEM: ssl.ca.location, ssl.certificate.location, ssl.key.location."


def admin_config(settings: ClientSettings, *, timeout_s: float) -> dict[str, Any]:
    """Keyword arguments of `KafkaAdminClient`.

    Args:
        settings: How Kafka is reached.
        timeout_s: Bound of the first connection.

    Raises:
        ClientSettingRefusedError: What cannot be translated, or a file of keys that cannot be used.
    """
    given = settings.properties
    timeout_ms = max(1, round(timeout_s * 1_000))
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    config: dict[str, Any] = {
        "bootstrap_servers": addresses(settings.bootstrap_servers),
        "client_id": settings.client_id,
        "security_protocol": protocol,
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": min(timeout_ms, max(1_000, settings.tuning.request_timeout_ms)),
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
    }
    if protocol.startswith("SASL_"):
        config |= _sasl(given)
    if protocol.endswith("SSL"):
        config["ssl_context"] = tls_context(given)
    return config


def addresses(servers: str) -> list[str]:
    """`host:port` of each address; librdkafka also takes them with the protocol in front."""
    return [one.rpartition("://")[2].strip() for one in servers.split(",") if one.strip()]


def _sasl(given: Mapping[str, str]) -> dict[str, Any]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in _MECHANISMS:
        raise ClientSettingRefusedError(
            f"The SASL mechanism {mechanism} cannot be used by the rebalance planner.",
            hint=f"It knows {', '.join(sorted(_MECHANISMS))}.",
        )
    if mechanism == "GSSAPI":
        return {
            "sasl_mechanism": mechanism,
            "sasl_kerberos_service_name": given.get("sasl.kerberos.service.name", "kafka"),
        }
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": given.get("sasl.username", ""),
        "sasl_plain_password": given.get("sasl.password", ""),
    }


def tls_context(given: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust and who asks, from librdkafka's `ssl.*` properties.

    Raises:
        ClientSettingRefusedError: A form that cannot be translated, or a file that holds no key or certificate.
    """
    refused = [name for name in _UNTRANSLATED if given.get(name)]
    if refused:
        raise ClientSettingRefusedError(f"The rebalance planner cannot use {', '.join(refused)}.", hint=_HINT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and certificates
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _trust(context, given)
        _identify(context, given)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ClientSettingRefusedError(
            f"The ssl.* properties of the Kafka client cannot be used: {error}", hint=_HINT
        ) from error
    return context


def _trust(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """Only whom the properties name; the system's authorities where they name nobody."""
    text, location = given.get("ssl.ca.pem"), given.get("ssl.ca.location")
    if text:
        context.load_verify_locations(cadata=text)
    elif not location or location == "probe":
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)


def _identify(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    password = given.get("ssl.key.password")
    certificate, key = given.get("ssl.certificate.location"), given.get("ssl.key.location")
    if certificate:
        context.load_cert_chain(certificate, key, password)
    chain, key_text = given.get("ssl.certificate.pem"), given.get("ssl.key.pem")
    if chain and key_text:
        # Python reads a key from files only; this one is the owner's alone and gone at once.
        handle, name = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(f"{key_text}\n{chain}\n")
            context.load_cert_chain(name, password=password)
        finally:
            Path(name).unlink()
