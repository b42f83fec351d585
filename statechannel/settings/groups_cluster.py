"""Settings of what lies around an engine: Kafka, the channel's topics, the embedded broker, what is seen from outside."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr

from statechannel.settings.field import SettingsGroup, setting

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TOPIC_NAME = r"^[A-Za-z0-9._-]{1,200}$"


class KafkaSettings(SettingsGroup):
    """How Kafka is reached."""

    bootstrap_servers: str | None = setting(
        None, "Addresses, `host:port`, comma separated. None: the embedded broker that runs on this machine, if any."
    )
    properties_file: Path | None = setting(
        None, "librdkafka properties, one `key=value` a line, as kcat reads them: SASL, TLS. None: none are needed."
    )
    properties: dict[str, SecretStr] = setting(
        {}, "librdkafka properties, stronger than those of the file (`-X key=value`). Passed on untouched, never shown."
    )
    delivery_timeout_ms: int = setting(
        30_000,
        "After this long an append ends as unknown. Bridges the restart of a Kafka broker (4 to 19 s), and stays far "
        "below the compaction lag, on which the protocol rests.",
        pip_192="metadataStoreOperationTimeoutSeconds",
        ge=1_000,
        le=600_000,
    )
    request_timeout_ms: int = setting(
        5_000,
        "Time for one answer of a Kafka broker before its connection counts as dead. Long enough for a busy broker, "
        "short enough for several tries within the delivery time-out.",
        ge=100,
        le=300_000,
    )
    session_timeout_ms: int = setting(
        6_000,
        "A leader that falls silent for this long loses the election's seat. Kafka's own floor is 6 s unless "
        "group.min.session.timeout.ms is lowered.",
        ge=1_000,
        le=300_000,
    )
    producer_queue_records: int = setting(
        100_000,
        "Appends that may wait in the client before more are refused: a cold start of 65,000 bundles fits.",
        ge=100,
    )
    fetch_queue_kib: int = setting(
        16_384, "What the client may fetch ahead of its reader: a second of replay at full speed.", ge=64, le=2_097_151
    )
    command_timeout_s: float = setting(
        20.0, "Longest wait of one call to Kafka by a command or at start, its retries included.", gt=0, le=600
    )
    topic_grace_s: float = setting(
        2.0,
        "A topic that exists, and that a Kafka broker says it does not know, is asked for again for so long: the brokers "
        "hear of a new topic one by one.",
        ge=0,
        le=60,
    )
    stall_timeout_s: float = setting(
        10.0,
        "A consumer that gets nothing for so long, although Kafka says that there is something to read, is recreated and "
        "goes on where it was. Clients are known to stand still after a restart of Kafka.",
        ge=1,
        le=600,
    )


class ChannelSettings(SettingsGroup):
    """The channel and its topics (protocol.md section 6). Lags hold for topics that are created, and are verified at start."""

    name: str = setting(
        "bundle-state",
        "Name of the channel's topic, and prefix of its other topics and of its consumer group: several channels may "
        "live on one Kafka.",
        pip_192="loadbalancer-service-unit-state",
        pattern=TOPIC_NAME,
    )
    partitions: int = setting(
        1,
        "Partitions of the channel's topic, fixed at creation: a namespace lives in one. One carries 65,000 bundles.",
        ge=1,
        le=1_000,
    )
    replication_factor: int = setting(
        -1,
        "Replicas of the topics that are created. -1: the cluster's default. With 3, two must be in sync.",
        ge=-1,
        le=15,
    )
    min_compaction_lag_ms: int = setting(
        HOUR_MS,
        "No record is cleaned before this age: the time a reader may be away, or a join may take (half of it), or a "
        "debt may stay open, without harm.",
        ge=1_000,
    )
    max_compaction_lag_ms: int = setting(
        DAY_MS, "After this long the cleaner comes even to a quiet topic: bounds what a join has to read.", ge=1_000
    )
    segment_ms: int = setting(
        10 * MINUTE_MS, "Only closed segments are cleaned: heartbeats close one at least this often.", ge=1_000
    )
    segment_bytes: int = setting(64 * 1024 * 1024, "Closes a segment earlier when much is written.", ge=1_048_576)
    delete_retention_ms: int = setting(
        7 * DAY_MS,
        "How long a null outlives what it has deleted: a reader that was away less long still sees it, and every replica's "
        "cleaner has come by.",
        ge=1_000,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.1,
        "The cleaner comes when a tenth is dirty: joins stay short, and the cleaner is not always busy.",
        ge=0,
        le=1,
    )


class EmbeddedSettings(SettingsGroup):
    """The Kafka broker that comes with this package: for laptops, tests and the demo."""

    folder: Path | None = setting(None, "Data folder. None: one in the user's own data folder.")
    port: int | None = setting(None, "Port on 127.0.0.1. None: the last one, if it is free, else any.", ge=1, le=65_535)
    heap_mib: int = setting(128, "Java heap. 128 MiB serve millions of small records.", ge=64, le=65_536)
    jars: Path | None = setting(None, "Folder with Kafka's jars. None: the user's cache, filled once.")
    start_timeout_s: float = setting(
        120.0,
        "Longest wait until it serves. After a kill the old session has to end first: about 10 s, on a busy machine "
        "several times that (56 s were seen).",
        gt=0,
    )
    stop_timeout_s: float = setting(30.0, "Longest wait for an orderly stop before it is killed.", gt=0)
    min_free_mib: int = setting(64, "Free disk space without which it is not started: one segment.", ge=1)


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class ObserveSettings(SettingsGroup):
    """What is seen from outside. Logs go to standard error."""

    log_level: LogLevel = setting(LogLevel.INFO, "Info: what an operator would tell a colleague. Debug: every record.")
    log_format: LogFormat = setting(LogFormat.TEXT, "Text for people, json for log collectors.")
    events_per_second_max: int = setting(
        200,
        "Log lines of one event within a second; what is above is counted and summed up in one line, so that a flood of "
        "records is no flood of lines.",
        ge=1,
        le=1_000_000,
    )
    metrics_port: int | None = setting(
        None,
        "Port for /metrics, /healthz, /readyz, /digest and /dump. 0 takes a free one. None: no such endpoint.",
        ge=0,
        le=65_535,
    )
    metrics_address: str = setting(
        "127.0.0.1",
        "Address of that port. It asks nobody who they are: give it another one only in a network of your own.",
        pattern=r"^[A-Za-z0-9.:_-]{1,253}$",
    )
    http_connections_max: int = setting(
        8,
        "Connections to that port at the same time; one more displaces one that is silent, or is closed.",
        ge=1,
        le=1_000,
    )
    http_timeout_s: float = setting(
        15.0,
        "Longest time for one connection to that port, however slowly it asks or reads: a dump of 65,000 bundles takes "
        "two seconds.",
        gt=0,
        le=600,
    )
    traces: bool = setting(
        False,
        "Export each operation as an OpenTelemetry trace; needs the extra `otel`. Where to: the usual OTEL_... variables "
        "of the environment.",
    )
    debt_alarm_fraction: float = setting(
        0.25, "Share of the compaction lag after which an open debt raises the alarm (protocol, R3).", gt=0, lt=1
    )
