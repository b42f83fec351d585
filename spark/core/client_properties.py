"""How Spark's Kafka client, which is Java's, reaches the Kafka that the settings describe in librdkafka's words. Pure.

One place says how Kafka is reached, for every command and for the jobs. What has another name is translated, what has no
counterpart (tuning of librdkafka) is left out; anything else of the Java client comes with `--kafka-option`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark.errors import SparkJobError
from statechannel.kafka.client_settings import ClientSettings

_NAME_CHECK = "ssl.endpoint.identification.algorithm"
_SAME = {
    "security.protocol",
    "sasl.kerberos.service.name",
    "ssl.key.password",
    _NAME_CHECK,
    "client.rack",
}
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PEM = "PEM"


def kafka_options(
    client: ClientSettings, extra: Mapping[str, str] | None = None, *, read_text: Callable[[str], str]
) -> dict[str, str]:
    """Options of Spark's Kafka source and sink.

    Args:
        extra: Properties of the Java client, which win.
        read_text: Reads a file, for keys in PEM: Java takes their text.

    Raises:
        SparkJobError: A mechanism that needs properties of the Java client only, a certificate without its key, or a file
            that cannot be read.
    """
    given = client.properties
    # Java waits a minute before it reports that Kafka does not answer.
    patience_ms = client.tuning.request_timeout_ms * 2
    found = {"request.timeout.ms": str(patience_ms), "default.api.timeout.ms": str(2 * patience_ms)}
    found |= {name: value for name, value in given.items() if name in _SAME}
    found |= _sasl(given, extra or {})
    found |= _ssl(given, read_text)
    if "bootstrap.servers" in (extra or {}):
        raise SparkJobError(
            "--kafka-option bootstrap.servers would have Spark read another Kafka than the one that is checked",
            hint="Name it with --bootstrap-servers.",
        )
    found |= dict(extra or {})
    found["bootstrap.servers"] = client.bootstrap_servers
    return {f"kafka.{name}": value for name, value in found.items()}


def _sasl(given: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    found = {"sasl.mechanism": mechanism}
    module = _MODULES.get(mechanism.upper())
    if module is None:
        if "sasl.jaas.config" not in extra and mechanism.upper() != "GSSAPI":
            raise SparkJobError(
                f"the SASL mechanism {mechanism} cannot be translated for Spark's Kafka client",
                hint="Give its settings with --kafka-option sasl.jaas.config=... and whatever else it needs.",
            )
        return found
    user, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    found["sasl.jaas.config"] = f'{module} required username="{_quoted(user)}" password="{_quoted(password)}";'
    return found


def _ssl(given: Mapping[str, str], read_text: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    authority = _pem(given, "ssl.ca", read_text)
    if authority is not None:
        found |= {"ssl.truststore.type": _PEM, "ssl.truststore.certificates": authority}
    chain, key = _pem(given, "ssl.certificate", read_text), _pem(given, "ssl.key", read_text)
    if (chain is None) != (key is None):
        raise SparkJobError(
            f"a client certificate and its key belong together, and the {'certificate' if chain is None else 'key'} is missing",
            hint="Give both ssl.certificate.location and ssl.key.location (or their .pem forms).",
        )
    if chain is not None and key is not None:
        found |= {"ssl.keystore.type": _PEM, "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    if given.get(_NAME_CHECK) == "none":
        found[_NAME_CHECK] = ""  # Java's word for no check
    return found


def _pem(given: Mapping[str, str], name: str, read_text: Callable[[str], str]) -> str | None:
    """Text in PEM, given as such or as the name of a file."""
    text, location = given.get(f"{name}.pem"), given.get(f"{name}.location")
    if text or not location:
        return text or None
    try:
        return read_text(location)
    except (OSError, UnicodeDecodeError) as error:
        raise SparkJobError(
            f"{name}.location: {location} cannot be read: {error}",
            hint="Java's client is given the text of this file; name a readable file in PEM.",
        ) from error


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
