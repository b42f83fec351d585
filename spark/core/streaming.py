"""The options that all streaming jobs have, and their translation to Spark's.

Spark's Kafka client is Java's, and the settings describe Kafka in librdkafka's words. One place says how Kafka is reached, for
every command and for the jobs. What has another name is translated, what has no counterpart (tuning of librdkafka) is left out;
anything else of the Java client comes with `--kafka-option`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark.core.running import RETRIES, STOP_TIMEOUT_S
from spark.errors import SparkJobError
from statechannel.kafka.client_settings import ClientSettings


@dataclass(frozen=True, slots=True)
class Streaming:
    """Options of a streaming job.

    Attributes:
        channel: Name of the channel; the load topics' names begin with it.
        kafka_properties: Properties of Spark's own client only, by Java's names.
        checkpoint: Folder or URI for what Spark keeps of a run.
        trigger_s: Time from the beginning of a batch to that of the next.
        max_offsets_per_trigger: Most records of a batch; None: any number.
        available_now: End when all is read that was there at the start.
        metrics_port: Port on loopback for Prometheus; None serves nothing.
        stop_timeout_s: How long a running batch may take to end after a stop.
        retries: How often a query is started again because Kafka is away.
    """

    client: ClientSettings
    channel: str
    checkpoint: str
    kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    trigger_s: float = 1.0
    max_offsets_per_trigger: int | None = None
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # object stores have secrets in it
    metrics_port: int | None = None
    stop_timeout_s: float = STOP_TIMEOUT_S
    retries: int = RETRIES

    def trigger(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": f"{round(self.trigger_s * 1_000)} milliseconds"}

    def kafka(self) -> dict[str, str]:
        return kafka_options(self.client, self.kafka_properties)

    def source(self, *, may_lose: bool) -> dict[str, str]:
        """Options of a source, but for its topics and where it begins.

        Args:
            may_lose: Records that are gone from the log do not end it: retention may delete them, or the job looks itself.
        """
        options = self.kafka() | {"failOnDataLoss": str(not may_lose).lower(), "includeHeaders": "true"}
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return options


_NAME_CHECK = "ssl.endpoint.identification.algorithm"
_SAME = {"security.protocol", "sasl.kerberos.service.name", "ssl.key.password", _NAME_CHECK, "client.rack"}
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PEM = "PEM"


def kafka_options(
    client: ClientSettings,
    extra: Mapping[str, str] | None = None,
    *,
    read_text: Callable[[str], str] = lambda name: Path(name).read_text(encoding="utf-8"),
) -> dict[str, str]:
    """Options of Spark's Kafka source and sink.

    Args:
        extra: Properties of the Java client, which win.
        read_text: Reads a file, for keys in PEM: Java takes their text.

    Raises:
        SparkJobError: A mechanism that needs properties of the Java client only, a certificate without its key, or a file
            that cannot be read.
    """
    properties = client.properties
    # Java waits a minute before it reports that Kafka does not answer.
    patience_ms = client.tuning.request_timeout_ms * 2
    options = {"request.timeout.ms": str(patience_ms), "default.api.timeout.ms": str(2 * patience_ms)}
    options |= {name: value for name, value in properties.items() if name in _SAME}
    options |= _sasl(properties, extra or {})
    options |= _ssl(properties, read_text)
    if "bootstrap.servers" in (extra or {}):
        raise SparkJobError(
            "--kafka-option bootstrap.servers would have Spark read another Kafka than the one that is checked",
            hint="Name it with --bootstrap-servers.",
        )
    options |= dict(extra or {})
    options["bootstrap.servers"] = client.bootstrap_servers
    return {f"kafka.{name}": value for name, value in options.items()}


def _sasl(properties: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms"))
    if mechanism is None:
        return {}
    options = {"sasl.mechanism": mechanism}
    module = _MODULES.get(mechanism.upper())
    if module is None:
        if "sasl.jaas.config" not in extra and mechanism.upper() != "GSSAPI":
            raise SparkJobError(
                f"the SASL mechanism {mechanism} cannot be translated for Spark's Kafka client",
                hint="Give its settings with --kafka-option sasl.jaas.config=... and whatever else it needs.",
            )
        return options
    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    options["sasl.jaas.config"] = f'{module} required username="{_quoted(user)}" password="{_quoted(password)}";'
    return options


def _ssl(properties: Mapping[str, str], read_text: Callable[[str], str]) -> dict[str, str]:
    options: dict[str, str] = {}
    authority = _pem(properties, "ssl.ca", read_text)
    if authority is not None:
        options |= {"ssl.truststore.type": _PEM, "ssl.truststore.certificates": authority}
    chain, key = _pem(properties, "ssl.certificate", read_text), _pem(properties, "ssl.key", read_text)
    if (chain is None) != (key is None):
        raise SparkJobError(
            f"a client certificate and its key belong together, and the {'certificate' if chain is None else 'key'} is missing",
            hint="Give both ssl.certificate.location and ssl.key.location (or their .pem forms).",
        )
    if chain is not None and key is not None:
        options |= {"ssl.keystore.type": _PEM, "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    if properties.get(_NAME_CHECK) == "none":
        options[_NAME_CHECK] = ""  # Java's word for no check
    return options


def _pem(properties: Mapping[str, str], name: str, read_text: Callable[[str], str]) -> str | None:
    """Text in PEM, given as such or as the name of a file."""
    text, location = properties.get(f"{name}.pem"), properties.get(f"{name}.location")
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
