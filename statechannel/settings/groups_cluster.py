"""Settings of Kafka, the channel's topics, the embedded broker, and observability."""

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
    """Connection to Kafka."""

    bootstrap_servers: str | None = setting(
        None, "Addresses, `host:port`, comma separated. None: the embedded broker of this machine, if it runs."
    )
    properties_file: Path | None = setting(
        None, "File of librdkafka properties, one `key=value` per line, as for kcat: SASL, TLS. None: no file."
    )
    properties: dict[str, SecretStr] = setting(
        {}, "librdkafka properties (`-X key=value`); they override those of the file. Passed on unchanged, never shown."
    )
    delivery_timeout_ms: int = setting(
        30_000,
        "Time after which an append ends as unknown; its session ends a tenth earlier. Bridges the restart of a Kafka broker "
        "(4 to 19 s), and stays far below the compaction lag, on which the protocol depends.",
        pip_192="metadataStoreOperationTimeoutSeconds",
        ge=1_000,
        le=600_000,
    )
    request_timeout_ms: int = setting(
        5_000,
        "Time for one answer of a Kafka broker before its connection is considered dead. Long enough for a busy broker, "
        "short enough for several tries within the delivery time-out.",
        ge=100,
        le=300_000,
    )
    session_timeout_ms: int = setting(
        6_000,
        "Session time-out of the election: a leader that is silent for this time loses leadership. Kafka's minimum is 6 s unless "
        "group.min.session.timeout.ms is lowered.",
        ge=1_000,
        le=300_000,
    )
    producer_queue_records: int = setting(
        100_000,
        "Appends queued in the client before more are refused: a cold start of 65,000 bundles fits.",
        ge=100,
    )
    fetch_queue_kib: int = setting(
        16_384,
        "KiB that the client may fetch ahead of its reader: a second of replay at full speed.",
        ge=64,
        le=2_097_151,
    )
    command_timeout_s: float = setting(
        20.0, "Time-out of one call to Kafka by a command or at start, including retries.", gt=0, le=600
    )
    refused_wait_s: float = setting(
        1.5,
        "A command that begins retries for this time where every Kafka address refuses the connection or does not resolve. "
        "Brokers, and commands that have reached Kafka once, retry longer.",
        ge=0,
        le=600,
    )
    topic_grace_s: float = setting(
        2.0,
        "Retry time for a topic that exists, but is unknown to a Kafka broker: the brokers "
        "learn of a new topic one after the other.",
        ge=0,
        le=60,
    )
    stall_timeout_s: float = setting(
        10.0,
        "A consumer that receives nothing for this time, although Kafka has more records, is recreated and "
        "resumes. Clients are known to hang after a restart of Kafka.",
        ge=1,
        le=600,
    )


class ChannelSettings(SettingsGroup):
    """The channel and its topics (protocol.md section 6). Settings of topics apply at creation, and are verified at start."""

    name: str = setting(
        "bundle-state",
        "Name of the channel's topic, and prefix of its other topics and of its consumer group: one Kafka may "
        "host several channels.",
        pip_192="loadbalancer-service-unit-state",
        pattern=TOPIC_NAME,
        form="1 to 200 of A-Z a-z 0-9 . _ -",
    )
    partitions: int = setting(
        1,
        "Partitions of the channel's topic, fixed at creation: a namespace is in one of them. One is enough for 65,000 "
        "bundles.",
        ge=1,
        le=1_000,
    )
    replication_factor: int = setting(
        -1,
        "Replicas of the topics at creation. -1: the cluster's default. With 3, two must be in sync.",
        ge=-1,
        le=15,
    )
    min_compaction_lag_ms: int = setting(
        HOUR_MS,
        "No record is compacted before this age: the time a reader may be offline, or a join may take (half of it), or a "
        "debt may stay open, without harm.",
        ge=1_000,
    )
    max_compaction_lag_ms: int = setting(
        DAY_MS, "Time after which even a quiet topic is compacted: bounds what a join has to read.", ge=1_000
    )
    segment_ms: int = setting(
        10 * MINUTE_MS, "Only closed segments are compacted: heartbeats close one at least this often.", ge=1_000
    )
    segment_bytes: int = setting(64 * 1024 * 1024, "Closes a segment earlier under heavy writes.", ge=1_048_576)
    delete_retention_ms: int = setting(
        7 * DAY_MS,
        "Retention of a tombstone: a reader that was offline for less still sees it, and every replica's "
        "cleaner has run.",
        ge=1_000,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.1,
        "Compaction runs when a tenth is dirty: joins stay short, and the cleaner is not always busy.",
        ge=0,
        le=1,
    )


class EmbeddedSettings(SettingsGroup):
    """The embedded Kafka broker: for laptops, tests and the demo."""

    folder: Path | None = setting(None, "Data folder. None: one in the user's data folder.")
    port: int | None = setting(None, "Port on 127.0.0.1. None: the last one, if it is free, else any.", ge=1, le=65_535)
    heap_mib: int = setting(128, "Java heap. 128 MiB serve millions of small records.", ge=64, le=65_536)
    jars: Path | None = setting(None, "Folder with Kafka's jars. None: the user's cache, filled once.")
    start_timeout_s: float = setting(
        120.0,
        "Longest wait until it serves. After a kill the old session has to end first: about 10 s, on a busy machine "
        "several times that (56 s were seen).",
        gt=0,
    )
    stop_timeout_s: float = setting(30.0, "Longest wait for a clean stop before it is killed.", gt=0)
    min_free_mib: int = setting(64, "Minimum free disk space for a start: one segment.", ge=1)


class LogLevel(StrEnum):
    """Log level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class ObserveSettings(SettingsGroup):
    """Observability. Logs go to standard error."""

    log_level: LogLevel = setting(LogLevel.INFO, "Info: changes that matter to an operator. Debug: every record.")
    log_format: LogFormat = setting(LogFormat.TEXT, "Text, or json for log collectors.")
    events_per_second_max: int = setting(
        200,
        "Log lines of one event per second; further ones are only counted, in one line, so that a flood of "
        "records does not flood the log.",
        ge=1,
        le=1_000_000,
    )
    metrics_port: int | None = setting(
        None,
        "Port for /metrics, /healthz, /readyz, /digest and /dump. 0 picks a free one. None: no endpoint.",
        ge=0,
        le=65_535,
    )
    metrics_address: str = setting(
        "127.0.0.1",
        "Address of that port. It has no authentication: use another address only in a private network.",
        pattern=r"^[A-Za-z0-9.:_-]{1,253}$",
        form="1 to 253 of A-Z a-z 0-9 . : _ -",
    )
    http_connections_max: int = setting(
        8,
        "Concurrent connections to that port; one more displaces a silent one, or is closed.",
        ge=1,
        le=1_000,
    )
    http_timeout_s: float = setting(
        15.0,
        "Time limit of one connection to that port, however slow it is: a dump of 65,000 bundles takes two seconds.",
        gt=0,
        le=600,
    )
    traces: bool = setting(
        False,
        "Export each operation as an OpenTelemetry trace; needs the extra `otel`. Target: the usual OTEL_... variables "
        "of the environment.",
    )
    in_flight_slow_s: float = setting(
        5.0,
        "A bundle in flight for longer makes `status` degraded and is a warning of the doctor: a hook has not returned, and "
        "lookups wait. Commands read it, brokers do not.",
        gt=0,
        le=3_600,
    )
    debt_alarm_fraction: float = setting(
        0.25,
        "Fraction of the compaction lag after which an open debt raises the alarm (protocol.md, section 3).",
        gt=0,
        lt=1,
    )
