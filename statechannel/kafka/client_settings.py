"""Kafka clients: their properties (from a file, from `-X key=value`, and fixed ones), their creation, and their log lines.

User properties are passed to every client unchanged. Those on which the protocol depends (section 6)
are fixed here and refused from outside, so that no file can switch a guarantee off.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from confluent_kafka import KafkaException, ThrottleEvent

from statechannel.engine.kafka_limits import QUOTAS, AppendRefusal, ClientKind
from statechannel.files import UnreadableFileError, read_text
from statechannel.kafka.addresses import addresses_of
from statechannel.kafka.errors import ClientSettingRefusedError, refusal_of, translate
from statechannel.kafka.property_rules import TokenSource, refuse_no_tokens, refuse_small_answers
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.printable import REDACTED
from statechannel.settings.groups_cluster import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from confluent_kafka import KafkaError, Message

    from statechannel.settings import Settings

kafka_logger = logging.getLogger("statechannel.kafka")
client_logger = kafka_logger.getChild("client")

BROKER_CLIENT = "statechannel-"
"""A broker's `client.id` begins so, and ends with the broker's id, unless the properties give another one."""

_BOOTSTRAP_KEYS = ("bootstrap.servers", "metadata.broker.list")

_BY_PROTOCOL = "the protocol depends on it (section 6)"
_BY_DESIGN = "the adapter depends on it"
_BY_SETTING = "it has its own setting"

FIXED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "acks": _BY_PROTOCOL,
        "request.required.acks": _BY_PROTOCOL,
        "enable.idempotence": _BY_PROTOCOL,
        "transactional.id": _BY_PROTOCOL,
        "linger.ms": _BY_PROTOCOL,
        "queue.buffering.max.ms": _BY_PROTOCOL,
        "isolation.level": _BY_PROTOCOL,
        "auto.offset.reset": _BY_DESIGN,
        "enable.auto.commit": _BY_DESIGN,
        "auto.commit.enable": _BY_DESIGN,
        "enable.auto.offset.store": _BY_DESIGN,
        "enable.partition.eof": _BY_DESIGN,
        "enable.gapless.guarantee": _BY_DESIGN,
        "retries": _BY_DESIGN,
        "message.send.max.retries": _BY_DESIGN,
        "allow.auto.create.topics": _BY_DESIGN,
        "group.id": _BY_DESIGN,
        "group.instance.id": _BY_DESIGN,
        "group.protocol": _BY_DESIGN,
        "group.remote.assignor": _BY_DESIGN,
        "partition.assignment.strategy": _BY_DESIGN,
        "max.poll.interval.ms": _BY_DESIGN,
        "heartbeat.interval.ms": _BY_DESIGN,
        "session.timeout.ms": _BY_SETTING,
        "delivery.timeout.ms": _BY_SETTING,
        "message.timeout.ms": _BY_SETTING,
        "queue.buffering.max.messages": _BY_SETTING,
        "queued.max.messages.kbytes": _BY_SETTING,
    }
)
"""Properties that are refused from outside, each with the reason."""

_SECRET_KEY = re.compile(r"password|secret|\.pem$|^sasl\.oauthbearer\.|jaas|token", re.IGNORECASE)
_CALLBACK_KEY = re.compile(r"_cb$|^on_|^logger$|^opaque$")


def is_secret(key: str) -> bool:
    """Whether the value of this property must never be shown or logged."""
    return _SECRET_KEY.search(key) is not None


def parse_properties(text: str, origin: str) -> dict[str, str]:
    """Read `key=value` lines; empty lines and lines that start with `#` or `;` are skipped.

    Raises:
        ClientSettingRefusedError: A line is neither; the message names the line, never its value.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ClientSettingRefusedError(
                f"{origin}, line {number}: not of the form key=value.",
                hint="Write one librdkafka property per line; comments start with #.",
            )
        properties[key.strip()] = value.strip()
    return properties


def read_properties_file(path: Path) -> dict[str, str]:
    """Read a librdkafka properties file, as kcat and the Confluent tools write it."""
    try:
        return parse_properties(read_text(path), str(path))
    except UnreadableFileError as error:
        raise ClientSettingRefusedError(
            f"The Kafka properties file {path} {error}.", hint="Give a readable UTF-8 file of key=value lines."
        ) from error


def parse_override(option: str) -> tuple[str, str]:
    """Split one `-X key=value` option.

    Raises:
        ClientSettingRefusedError: There is no `=` or no key.
    """
    key, equals, value = option.partition("=")
    if not equals or not key.strip():
        raise ClientSettingRefusedError(
            "A -X option is not of the form key=value.", hint="Example: -X security.protocol=SASL_SSL"
        )
    return key.strip(), value


def refuse_fixed(properties: Mapping[str, str], origin: str) -> None:
    """Refuse properties that the design fixes.

    Raises:
        ClientSettingRefusedError: Names every refused key and why; never a value.
    """
    refused = [
        f"{key} ({FIXED_KEYS.get(key, 'callbacks cannot be text')})"
        for key in properties
        if key in FIXED_KEYS or _CALLBACK_KEY.search(key)
    ]
    if refused:
        raise ClientSettingRefusedError(
            f"{origin} sets fixed properties: {', '.join(refused)}.",
            hint="Remove these properties; all others are passed on unchanged.",
        )


_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 200,  # of refused connections the library makes two in this time, and never fewer
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 30_000,
    }
)
# The library's own pause a second whenever its queue was full for a moment, and fetch 100,000 records of a flood ahead:
# heartbeats wait behind them, and a broker that does not read its own goes to safe mode.
_CONSUMER_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"fetch.queue.backoff.ms": 20, "fetch.error.backoff.ms": 100, "queued.min.messages": 20_000}
)
_GATHERING: Mapping[str, Any] = MappingProxyType({"queued.min.messages": 1, "fetch.message.max.bytes": 16 * 2**20})


class Throttle(NamedTuple):
    """Kafka delays the requests of a client on purpose: it exceeds a quota.

    Attributes:
        at_s: Monotonic.
    """

    client: str
    kind: ClientKind
    at_s: float
    throttle_s: float


_NOTES_MAX = 1_000
_LATELY_S = 30.0


@dataclass(frozen=True, slots=True)
class ClientNotes:
    """Kafka's limits as the clients of one process meet them, the newest last; written and taken in any thread."""

    throttles: deque[Throttle] = field(default_factory=partial(deque, maxlen=_NOTES_MAX))
    refusals: deque[AppendRefusal] = field(default_factory=partial(deque, maxlen=_NOTES_MAX))

    def throttled(self, client: str, kind: ClientKind, event: ThrottleEvent) -> None:
        """Callback of the client library; the last event of a series has no time."""
        if event.throttle_time > 0:
            self.throttles.append(Throttle(client, kind, time.monotonic(), event.throttle_time))

    def throttled_lately(self) -> str:
        """The client that Kafka throttled within the last half minute, and what to do, as sentences; empty if there is none."""
        newest = self.throttles[-1] if self.throttles else None
        if newest is None or time.monotonic() - newest.at_s - newest.throttle_s > _LATELY_S:
            return ""
        return (
            f"Kafka answers, but throttles the {newest.kind} {newest.client} ({QUOTAS[newest.kind]}). Raise the quota of its "
            "user or client id: `kafka-configs.sh --entity-type users|clients`; it counts at once."
        )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a Kafka client. Its `repr` shows no secrets.

    Attributes:
        bootstrap_servers: `host:port`, comma separated.
        properties: librdkafka properties of the user, passed through untouched.
        client_id: Shown by the cluster's tools; brokers put their id here.
        tuning: Time-outs and queues.
        oauth_callback: Makes tokens for SASL OAUTHBEARER.
        notes: What Kafka's limits do to clients of these settings.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_id: str = "statechannel"
    tuning: KafkaSettings = field(default_factory=KafkaSettings, repr=False)
    oauth_callback: TokenSource | None = field(default=None, repr=False)
    notes: ClientNotes = field(default_factory=ClientNotes, repr=False, compare=False)

    def __post_init__(self) -> None:
        refuse_fixed(self.properties, "The Kafka configuration")
        if not self.bootstrap_servers.strip():
            raise ClientSettingRefusedError(
                "No Kafka address is given.",
                hint="Set kafka.bootstrap_servers (--bootstrap-servers, the variable STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS, in "
                "Python `kafka={'bootstrap_servers': ...}`), or start a Kafka here with `statechannel kafka up`.",
            )
        if "@" in self.bootstrap_servers:  # not shown: what stands before it is a name, and often a password
            raise ClientSettingRefusedError(
                "The Kafka address contains an @; Kafka addresses are HOST:PORT, without user name or password.",
                hint="Put sasl.username and sasl.password in a properties file (--kafka-config FILE).",
            )
        refuse_small_answers(self.properties)
        if self.oauth_callback is None:
            refuse_no_tokens(self.properties)
        addresses_of(self.bootstrap_servers, self.properties.get("security.protocol") or "plaintext")

    @classmethod
    def from_sources(
        cls,
        *,
        bootstrap_servers: str | None = None,
        file: Path | None = None,
        overrides: Iterable[str] = (),
        client_id: str = "statechannel",
        tuning: KafkaSettings | None = None,
        oauth_callback: TokenSource | None = None,
    ) -> Self:
        """Combine the file, `-X` overrides (higher precedence) and the bootstrap option (highest)."""
        properties: dict[str, str] = {}
        if file is not None:
            properties = read_properties_file(file)
            refuse_fixed(properties, f"The Kafka properties file {file}")
        options = dict(parse_override(option) for option in overrides)
        refuse_fixed(options, "A -X option")
        properties |= options
        addresses = [properties.pop(key) for key in _BOOTSTRAP_KEYS if key in properties]
        return cls(
            bootstrap_servers=bootstrap_servers or (addresses[0] if addresses else ""),
            properties=properties,
            client_id=properties.pop("client.id", client_id),
            tuning=tuning or KafkaSettings(),
            oauth_callback=oauth_callback,
        )

    def redacted(self) -> dict[str, str]:
        shown = {k: REDACTED if is_secret(k) else v for k, v in self.properties.items()}
        return {"bootstrap.servers": self.bootstrap_servers, **shown}

    def secrets(self) -> tuple[str, ...]:
        """The values that no message may contain."""
        return tuple(v for k, v in self.properties.items() if is_secret(k) and v)

    def refusal(
        self, problem: BaseException | KafkaError, topic: str, size_bytes: int | None = None, *, by_client: bool = False
    ) -> AppendRefusal | None:
        """Kafka's permanent refusal of a record, which is noted; None if another try may succeed. See `refusal_of`."""
        refusal = refusal_of(problem, topic, size_bytes, self.properties, by_client=by_client)
        if refusal is not None:
            self.notes.refusals.append(refusal)
        return refusal

    def producer_config(self) -> dict[str, Any]:
        """Idempotent, acks=all, linger 0 (protocol.md section 6)."""
        return self._client(
            {
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "delivery.timeout.ms": self.tuning.delivery_timeout_ms,
                "queue.buffering.max.messages": self.tuning.producer_queue_records,
            },
            {"request.timeout.ms": self.tuning.request_timeout_ms},
        )

    def consumer_config(self, group_id: str, gather_ms: int = 0) -> dict[str, Any]:
        """For explicit assignment: no commits, no silent reset of positions.

        Args:
            gather_ms: Pause between two fetches while records come all the time, one by one, of many writers; the first after
                a silence comes at once. 0: none.
        """
        # With a record in its queue the library fetches no more before its back-off has passed; then all that there is.
        gathering = {**_GATHERING, "fetch.queue.backoff.ms": gather_ms} if gather_ms else {}
        return self._client(
            {
                "group.id": group_id,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
                "queued.max.messages.kbytes": self.tuning.fetch_queue_kib,
            },
            {**_CONSUMER_DEFAULTS, **gathering},
        )

    def election_config(self, group_id: str) -> dict[str, Any]:
        """Classic group protocol, dynamic membership, sticky assignment."""
        session_ms = self.tuning.session_timeout_ms
        return self._client(
            {
                "group.id": group_id,
                "group.protocol": "classic",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(100, session_ms // 10),
                "max.poll.interval.ms": max(session_ms, 60_000),
                "auto.offset.reset": "latest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
            }
        )

    def admin_config(self) -> dict[str, Any]:
        """For AdminClient, without log lines: it is not polled for them."""
        config = {"log_level": 0, **self._client({})}
        del config["logger"]
        return config

    def _client(self, fixed: dict[str, Any], own_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Properties by precedence: fixed ones, then the user's, then defaults."""
        defaults = {
            **_DEFAULTS,
            "client.id": self.client_id,
            "socket.connection.setup.timeout.ms": max(1_000, self.tuning.request_timeout_ms),
            "logger": client_logger,
        }
        if self.oauth_callback is not None:
            defaults["oauth_cb"] = self.oauth_callback
        return {
            **defaults,
            **(own_defaults or {}),
            **self.properties,
            "bootstrap.servers": self.bootstrap_servers,
            "allow.auto.create.topics": False,  # a producer that looks for a deleted topic would create it, with other settings
            **fixed,
        }


def place_and_size(record: Message | None) -> tuple[str, int | None]:
    """Topic of a record of a delivery report, and the bytes of key and value; None: Kafka answered for none."""
    if record is None:
        return "any topic", None
    return record.topic() or "", len(record.key() or b"") + len(record.value() or b"")


Client = TypeVar("Client")


def make_client(
    kind: Callable[[dict[str, Any]], Client], config: dict[str, Any], settings: ClientSettings, doing: str
) -> Client:
    """A client of the library, of this class; `settings.notes` tells for how long Kafka throttles it.

    Raises:
        KafkaAdapterError: The library refuses a property.
    """
    role = (
        ClientKind.PRODUCER if "acks" in config else ClientKind.CONSUMER if "group.id" in config else ClientKind.ADMIN
    )
    try:
        return kind({**config, "throttle_cb": partial(settings.notes.throttled, config["client.id"], role)})
    except (KafkaException, TypeError, ValueError) as error:
        source = settings.oauth_callback
        doing += f" ({source.failure})" if source is not None and source.failure else ""
        raise translate(error, doing, secrets=settings.secrets()) from None


# --- from the tree of settings --------------------------------------------------------------------------------------


def to_client(settings: Settings, *, client_id: str = "statechannel") -> ClientSettings:
    """Client settings: the properties file, properties in the settings (higher precedence), the address (highest).

    Args:
        client_id: Shown by the cluster's tools.

    Raises:
        ClientSettingRefusedError: A property that the design fixes, a file that cannot be read, or no address at all.
    """
    kafka = settings.kafka
    return ClientSettings.from_sources(
        bootstrap_servers=kafka.bootstrap_servers,
        file=kafka.properties_file,
        overrides=[f"{key}={value.get_secret_value()}" for key, value in kafka.properties.items()],
        client_id=client_id,
        oauth_callback=None if kafka.oauth_callback is None else TokenSource(kafka.oauth_callback),
        tuning=kafka,
    )


def names_servers(settings: Settings) -> bool:
    """Whether a Kafka address is given, as a setting or as a librdkafka property."""
    kafka = settings.kafka
    keys = set(kafka.properties)
    if kafka.properties_file is not None:
        keys |= set(read_properties_file(kafka.properties_file))
    return kafka.bootstrap_servers is not None or bool(keys.intersection(_BOOTSTRAP_KEYS))


def to_topics(settings: Settings) -> ChannelTopics:
    return ChannelTopics(settings.channel.name, settings.channel)


# --- log lines of the library ----------------------------------------------------------------------------------------

EVERY_S = 10.0
KINDS_MAX = 256


class OncePerKind(logging.Filter):
    """Passes one line of a kind (its first two words: event and client) every `EVERY_S`, and counts the rest.

    Of a closing member no line passes: its final error says that Kafka is unreachable, and must stay visible.

    Args:
        prefix: Lines that begin otherwise all pass.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[float, int]] = {}
        self._closing: frozenset[str] = frozenset()

    def closing(self, client_id: str, *, closes: bool) -> None:
        """The clients of this id close, or new ones open."""
        with self._lock:
            name = {f"[{client_id}"}
            self._closing = self._closing | name if closes else self._closing - name

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        if not line.startswith(self._prefix):
            return True
        kind = " ".join(line.split(maxsplit=2)[:2])
        if kind.partition(" ")[2].rpartition("#")[0] in self._closing:
            return False
        now_s = time.monotonic()
        with self._lock:
            at_s, left_out = self._passed.get(kind, (float("-inf"), 0))
            if now_s - at_s < EVERY_S:
                self._passed[kind] = at_s, left_out + 1
                return False
            if len(self._passed) >= KINDS_MAX:
                self._passed.clear()
            self._passed[kind] = now_s, 0
        if left_out:
            record.msg, record.args = f"{line} (and {left_out} like it before)", ()
        return True


class ClientLines(OncePerKind):
    """The lines of the client library as sentences of ours, one of a kind, and at `info` at most.

    The library calls each lost connection an error. What it means for a member is an event of ours (`kafka.away`), at the level
    that alerts may rely on; of what a command waits for, its error.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        level = min(record.levelno, logging.INFO)
        if not client_logger.isEnabledFor(level) or not super().filter(record):
            return False
        record.levelno, record.levelname = level, logging.getLevelName(level)
        kind, _, rest = record.getMessage().partition(" ")
        client, _, text = rest.partition("] ")
        if client.startswith("["):
            facts = {"client": client[1:], "kind": kind, "text": text}
            record.msg, record.args = f"kafka-client {facts['client']} of the Kafka library says {kind}: {text}", ()
        else:
            facts = {"text": record.getMessage()}
            record.msg, record.args = f"kafka-client the Kafka library says {facts['text']}", ()
        record.event, record.facts = "kafka-client", facts
        return True


once_per_kind = ClientLines()
client_logger.addFilter(once_per_kind)
