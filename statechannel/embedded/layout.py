"""Options and security of an embedded broker, its data folder, and the files that it is started with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

MECHANISM = "SCRAM-SHA-512"
LISTENER = "SASL_SSL"
CONTROLLER = "CONTROLLER"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_FORBIDDEN = frozenset(',[]=;"\\\n\r')


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """Authentication of an embedded broker and its clients.

    Clients connect by TLS with a name and a password; ACLs grant rights, everything else is denied.
    The controller's port requires a certificate of the same authority with the superuser's common name.

    Attributes:
        certificate_pem: File with the broker's key (PKCS #8) and its certificates, the common name being `superuser`.
        authority_pem: File with the certificate of the authority that has signed it.
        superuser: User exempt from ACLs: it creates the other users and their ACLs.
    """

    certificate_pem: Path
    authority_pem: Path
    superuser: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for what, text in (("superuser", self.superuser), ("password", self.password)):
            if not text or _FORBIDDEN & set(text):
                # Kafka's own tool splits `name=..,password=..` at these, without a way to quote them.
                raise ValueError(
                    f"the {what} of a secured broker is empty, or has one of , [ ] = ; \" \\ or a line's end"
                )

    def properties(self, host: str, port: int, controller_port: int) -> dict[str, str]:
        """Kafka's settings for it; they hold the password."""
        jaas = f'{_LOGIN_MODULE} required username="{self.superuser}" password="{self.password}";'
        return {
            "listeners": f"{LISTENER}://{host}:{port},{CONTROLLER}://{host}:{controller_port}",
            "advertised.listeners": f"{LISTENER}://{host}:{port}",
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,{CONTROLLER}:SSL",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate_pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_pem),
            f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{self.superuser}",
        }

    def format_arguments(self) -> tuple[str, ...]:
        """Arguments for Kafka's tool that prepares the data folder: the first user must exist before the broker starts."""
        return ("--add-scram", f"{MECHANISM}=[name={self.superuser},password={self.password}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Options of one embedded broker.

    Attributes:
        heap_mib: Java heap. 128 serves millions of small records; more only helps page-heavy reads.
        jars: Folder with the jars; None takes STATECHANNEL_KAFKA_JARS, else the user's cache.
        start_timeout_s: Longest wait for the broker to serve. After a kill the old session has to
            end first: about 10 s, and a busy machine needs several times that (56 s were seen).
        stop_timeout_s: Longest wait for a clean stop before the broker is killed.
        min_free_bytes: Least free space on the disk of the data folder for a start: one log segment
            of a topic plus the internal topics.
        fast_cleaner: Wake the log cleaner every 0.2 s instead of 15 s, for tests that must see
            compaction.
        cluster_id: Id of the cluster, for several nodes that are to be one (with `properties` that name their voters);
            None makes a new one.
        properties: Kafka properties that override the ones made here.
        security: TLS, passwords and ACLs; None serves all clients on this machine. To be the same at every start on a
            data folder.
    """

    heap_mib: int = 128
    jars: Path | None = None
    start_timeout_s: float = 120.0
    stop_timeout_s: float = 30.0
    min_free_bytes: int = 64 * 1024 * 1024
    fast_cleaner: bool = False
    cluster_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    security: BrokerSecurity | None = None


NODE_ID = 1
LOOPBACK = "127.0.0.1"
SESSION_TIMEOUT_MS = 6_000
"""Silence after which Kafka's controller considers its broker dead. With 1 s the single node fenced itself repeatedly on a
busy machine, and did not serve meanwhile; with Kafka's own 9 s a broker killed with -9 needs 13 to 19 s to serve again, since
the next one may register only when the session of the one before has ended."""
HEARTBEAT_INTERVAL_MS = 500

# Small and quick: one broker, few internal partitions, a dedupe buffer for 150,000 keys.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
    "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS),
    # Members choose their session time-out; the broker's default floor of 6 s would forbid 1 s.
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths inside one data folder."""

    folder: Path

    @property
    def log_dir(self) -> Path:
        """Kafka's own data: the logs of all topics and the cluster's metadata."""
        return self.folder / "log"

    @property
    def meta_properties(self) -> Path:
        return self.log_dir / "meta.properties"

    @property
    def clean_mark(self) -> Path:
        """Written by Kafka after a clean stop."""
        return self.log_dir / ".kafka_cleanshutdown"

    @property
    def killed(self) -> bool:
        """Whether the last broker here crashed, or still runs: Kafka removes the mark at start."""
        return self.meta_properties.exists() and not self.clean_mark.exists()

    @property
    def server_properties(self) -> Path:
        """Rewritten at each start."""
        return self.folder / "server.properties"

    @property
    def format_arguments(self) -> Path:
        """Arguments of the tool that prepares the data folder; there only while it runs."""
        return self.folder / "format.arguments"

    @property
    def log4j_properties(self) -> Path:
        """Rewritten at each start."""
        return self.folder / "log4j2.properties"

    @property
    def broker_log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def console(self) -> Path:
        """What Java prints outside the log, e.g. when it cannot start at all."""
        return self.folder / "console.log"

    @property
    def record(self) -> Path:
        return self.folder / "broker.json"

    @property
    def lock(self) -> Path:
        """Held by the broker process itself for as long as it lives."""
        return self.folder / "broker.lock"


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """Which process serves, or last served, a data folder.

    Attributes:
        started_at_s: The process's start, seconds since the epoch; tells a reused pid apart.
        port: Port for clients on 127.0.0.1.
        controller_port: Port of the KRaft controller on 127.0.0.1.
    """

    pid: int
    started_at_s: float
    port: int
    controller_port: int


def write_record(layout: Layout, record: BrokerRecord) -> None:
    """Replace the record in one step, so that a reader never sees half of it."""
    _replace(layout.record, json.dumps(asdict(record)) + "\n", mode=0o666)


def read_record(layout: Layout) -> BrokerRecord | None:
    """Return the record of the last start, or None if there is none that can be read."""
    try:
        fields = json.loads(layout.record.read_text())
        return BrokerRecord(
            pid=int(fields["pid"]),
            started_at_s=float(fields["started_at_s"]),
            port=int(fields["port"]),
            controller_port=int(fields["controller_port"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_configuration(layout: Layout, *, port: int, controller_port: int, options: BrokerOptions) -> None:
    properties = {
        **_PROPERTIES,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        # A static voter, since the ports of a dynamic one could not change between two starts.
        "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller_port}",
        "log.dirs": str(layout.log_dir),
    }
    if options.fast_cleaner:
        properties["log.cleaner.backoff.ms"] = "200"
    if options.security is not None:
        properties |= options.security.properties(LOOPBACK, port, controller_port)
    properties |= options.properties
    _write_properties(layout.server_properties, properties)
    _write_properties(layout.log4j_properties, _log4j(layout.broker_log))


def _log4j(log: Path) -> dict[str, str]:
    return {
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": str(log),
        "appender.file.filePattern": f"{log}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %p %c{1} %m%n",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": "16MB",
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": "2",
        "rootLogger.level": "INFO",
        "rootLogger.appenderRef.file.ref": "file",
    }


def _write_properties(path: Path, properties: dict[str, str]) -> None:
    # A backslash would start an escape sequence in a Java properties file.
    lines = [f"{key}={value}".replace("\\", "\\\\") for key, value in properties.items()]
    write_private(path, "\n".join(lines) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a file that may hold a password, for its owner's eyes from the first byte on."""
    _replace(path, text, mode=0o600)


def _replace(path: Path, text: str, *, mode: int) -> None:
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)
