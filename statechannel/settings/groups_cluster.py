"""Settings of Kafka, the channel's topics, the embedded broker, and observability."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr

from statechannel.settings.field import SettingsGroup, setting

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TOPIC_NAME = r"^[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"


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
    oauth_callback: str | None = setting(
        None,
        "`MODULE:FUNCTION` of Python that makes tokens for SASL OAUTHBEARER, as cloud IAM needs: confluent-kafka's `oauth_cb`. "
        "It takes the text of `sasl.oauthbearer.config`, and returns the token and its end in seconds since 1970. None: "
        "`sasl.oauthbearer.method=oidc`, or no OAUTHBEARER.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$",
        form="MODULE:FUNCTION",
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
        100_000, "Appends queued in the client before more are refused: a cold start of 65,000 bundles fits.", ge=100
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
        max_length=200,
        form="1 to 200 of A-Z a-z 0-9 . _ -, not dots alone",
    )
    partitions: int = setting(
        1,
        "Partitions of the channel's topic, fixed at creation: a namespace is in one of them. One is enough for 65,000 "
        "bundles.",
        ge=1,
        le=1_000,
    )
    replication_factor: int = setting(
        -1, "Replicas of the topics at creation. -1: the cluster's default. With 3, two must be in sync.", ge=-1, le=15
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
        0.1, "Compaction runs when a tenth is dirty: joins stay short, and the cleaner is not always busy.", ge=0, le=1
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
        8, "Concurrent connections to that port; one more displaces a silent one, or is closed.", ge=1, le=1_000
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


class AccessRole(StrEnum):
    """What a caller of the admin API may do; each includes those before it."""

    READ = "read"
    OPERATE = "operate"
    FORCE = "force"

    def includes(self, other: AccessRole) -> bool:
        order = list(AccessRole)
        return order.index(self) >= order.index(other)


class HttpSettings(SettingsGroup):
    """The admin API (http-api.md); needs the extra `http`. Brokers serve it if a port is set, `statechannel console` always."""

    port: int | None = setting(None, "Port of the admin API. 0 picks a free one. None: not served.", ge=0, le=65_535)
    address: str = setting(
        "127.0.0.1",
        "Address of that port. Another one than the loopback is refused without `http.access_file` or `http.oidc_issuer`.",
        pattern=r"^[A-Za-z0-9.:_-]{1,253}$",
        form="1 to 253 of A-Z a-z 0-9 . : _ -",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Host names by which clients may call it, in addition to the loopback's, the address, and this machine's name. Others "
        "are refused: a page of a foreign site could have its own name resolve to this address.",
    )
    advertised_url: str | None = setting(
        None,
        "URL by which others reach the API of this broker, e.g. `https://b1.example.org:8450`: named in its heartbeats, and a "
        "host name by which it may be called. None: `http.address` and the port; for a wildcard address this machine's name.",
        pattern=r"^https?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?$",
        form="http:// or https://, a host, and a port if it is not the scheme's; no path",
    )
    access_file: Path | None = setting(
        None,
        "File of those who may call it, one per line: `NAME ROLE sha256:HEX` (of a bearer token) or `NAME ROLE cert:COMMON-NAME`."
        " Read again when it changes. None: no such callers.",
    )
    oidc_issuer: str | None = setting(
        None,
        "OpenID Connect issuer whose tokens count as bearer tokens (https, or on the loopback); needs the extra `oidc`. With "
        "neither this nor `http.access_file` there is no authentication.",
        pattern=r"^https?://[!-~]{1,500}$",
        form="http:// or https://, a host, and what follows; the `iss` of tokens",
    )
    oidc_audience: str | None = setting(None, "Audience (`aud`) that its tokens must name: this API, and no other one.")
    oidc_role_claim: str = setting(
        "roles",
        "Claim of its tokens that has the role: `read`, `operate` or `force`, in a list or among the words of a text. The "
        "highest counts, other words do not; without any the token is refused.",
        max_length=255,
        form="the name of a claim, 1 to 255 characters",
        min_length=1,
    )
    oidc_ca: Path | None = setting(
        None, "Certificates (PEM) that sign that of the issuer. None: those of the usual authorities."
    )
    pulsar_paths: bool = setting(
        False, "Also answer a part of Pulsar's admin and lookup paths, for its own clients (pulsar-paths.md)."
    )
    open_role: AccessRole = setting(
        AccessRole.READ, "Role of every caller where there is no authentication. Read: nothing can be changed."
    )
    tls_certificate: Path | None = setting(None, "Certificate (PEM) of the port. None: no TLS.")
    tls_key: Path | None = setting(None, "Private key (PEM) of the certificate.")
    tls_client_ca: Path | None = setting(
        None, "Certificates (PEM) by which those of clients are signed. Set: clients must present one (mTLS)."
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Addresses and networks (`10.0.0.0/8`) of proxies before the port: the newest address of their `X-Forwarded-For` that is "
        "none of these is that of the client, for `requests_per_s` and in logs. From others the header does not count.",
    )
    requests_per_s: float = setting(
        50.0,
        "Requests per second of one address (IPv6: /64), on average; a burst may have twice that.",
        gt=0,
        le=100_000,
    )
    connections_max: int = setting(
        300, "Concurrent connections, readers of changes among them; further ones are closed.", ge=1, le=10_000
    )
    body_max_bytes: int = setting(65_536, "Largest body of a request.", ge=1_024, le=16_777_216)
    receive_timeout_s: float = setting(
        10.0,
        "Time in which the header, then the body, of a request must have arrived, and what is sent be taken.",
        gt=0,
        le=600,
    )
    answer_timeout_s: float = setting(
        30.0, "Time limit of an answer that is read from memory or from topics.", gt=0, le=600
    )
    wait_max_s: float = setting(60.0, "Longest wait for the end of an operation (`Prefer: wait`).", gt=0, le=600)
    page_max: int = setting(1_000, "Most rows of one page.", ge=1, le=100_000)
    topic_reads_max: int = setting(
        2, "Concurrent answers that are read from topics, such as decisions; further ones are refused.", ge=1, le=100
    )
    audit_records_max: int = setting(
        100_000,
        "Records of the log that one audit question over HTTP reads; the answer says where it stopped.",
        ge=1,
        le=10_000_000,
    )
    audit_read_s: float = setting(
        10.0, "Time for which such a question reads the log; the answer says where it stopped.", gt=0, le=600
    )
    actions_max: int = setting(
        64,
        "Concurrent requests that change something, those that wait included; further ones are refused.",
        ge=1,
        le=10_000,
    )
    readers_max: int = setting(
        250, "Concurrent readers of changes; further ones are refused. All of them share one follower.", ge=1, le=10_000
    )
    catch_ups_max: int = setting(
        2, "Of these, how many may read older changes from Kafka at the same time.", ge=1, le=100
    )
    changes_max: int = setting(
        10_000,
        "Newest changes kept in memory for readers; one that is further behind is cut off.",
        ge=100,
        le=1_000_000,
    )
    changes_max_mib: int = setting(32, "The same limit by their size (MiB).", ge=1, le=4_096)
    heartbeat_s: float = setting(
        15.0,
        "Time between two comments in a quiet stream of changes, by which both sides see that it is alive.",
        gt=0,
        le=600,
    )
    page_each_s: float = setting(
        0.25, "Time between two updates of open pages; all of them are sent the same.", ge=0.05, le=60
    )
    page_topics_s: float = setting(
        15.0,
        "Time between two reads of decisions, loads and cordons for open pages: once for all. While a drain runs, "
        "and after a decision, they are read with every eighth update (`page_each_s`).",
        ge=1,
        le=3_600,
    )
    page_column_s: float = setting(5.0, "Time that a column of the page's heat map stands for.", ge=0.1, le=3_600)
    page_history_max: int = setting(
        8_000,
        "Newest changes of bundles over which the page goes back in time from memory; it reads older ones from Kafka.",
        ge=100,
        le=1_000_000,
    )
    page_past_max: int = setting(
        50_000,
        "Records of the log that are read at start for the page's past; of a longer log it shows what comes from then on.",
        ge=0,
        le=10_000_000,
    )
    page_readers_max: int = setting(100, "Open pages; further ones are refused.", ge=1, le=10_000)
