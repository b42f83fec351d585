"""Commands `statechannel kafka up|down|status` for the embedded Kafka, and `statechannel init` for a channel's topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.cli.kit.connection import embedded_folder, settings_of
from statechannel.cli.kit.contexts import context_in_use
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import Config, Connect, OutputAs, SettingFlags, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_facts, print_json, print_rows, say
from statechannel.clocks import duration
from statechannel.embedded import BrokerOptions, BrokerState, BrokerStatus, EmbeddedKafkaError, resume_hint
from statechannel.embedded import down as stop_broker
from statechannel.embedded import status as broker_status
from statechannel.embedded import up as start_broker
from statechannel.errors import ExitCode, NotFoundError
from statechannel.kafka.client_settings import names_servers, to_client
from statechannel.kafka.topics import create_topics, verify_topics
from statechannel.queries.live_log import notify_if_slow
from statechannel.settings import Settings, load

kafka_app = commands("The embedded Kafka broker of this machine.")

Folder = Annotated[Path | None, option("--folder DIR", "Data folder of the broker.")]
Port = Annotated[int | None, option("--port", "Port on 127.0.0.1.", min=1, max=65_535)]


@kafka_app.command()
def up(
    folder: Folder = None,
    port: Port = None,
    output: OutputAs = Output.TABLE,
    config: Config = None,
    flags: SettingFlags = None,
) -> None:
    """Start the embedded Kafka, unless it is running."""
    settings = _settings(config, flags, folder=folder, port=port)
    with _own_exit_code():
        broker, started = start_broker(
            embedded_folder(settings), port=settings.embedded.port, options=_options(settings), say=say
        )
    used = _used_address(config, flags)
    _show(broker, output, {"started": started, "used_address": used})
    if output is not Output.JSON:
        say("started" if started else "it was already running")
        _say_if_another(broker, used)


@kafka_app.command()
def down(
    folder: Folder = None, output: OutputAs = Output.TABLE, config: Config = None, flags: SettingFlags = None
) -> None:
    """Stop the embedded Kafka gracefully; its data stays."""
    settings = _settings(config, flags, folder=folder)
    place = embedded_folder(settings)
    with _own_exit_code():
        ran = stop_broker(place, options=_options(settings))
    if output is Output.JSON:
        print_json({"stopped": ran, "folder": str(place)})
    else:
        say("stopped" if ran else f"no broker was running in {place}")


@kafka_app.command()
def status(
    folder: Folder = None, output: OutputAs = Output.TABLE, config: Config = None, flags: SettingFlags = None
) -> None:
    """Show whether the embedded Kafka runs, and where."""
    settings = _settings(config, flags, folder=folder)
    place = embedded_folder(settings)
    if folder is not None and not place.is_dir():
        raise NotFoundError(
            f"the folder {place} does not exist",
            hint="Omit --folder for the default one, or start a Kafka there with `statechannel kafka up --folder DIR`.",
        )
    broker = broker_status(place)
    used = _used_address(config, flags)
    _show(broker, output, {"used_address": used})
    _say_if_another(broker, used)
    if broker.state is BrokerState.CRASHED:
        say(f"it ended unexpectedly; see {broker.log_path}; `statechannel kafka up` starts it again")
    if broker.state is BrokerState.SUSPENDED:
        say(f"its process is suspended: {resume_hint(broker)}")
    if broker.state in (BrokerState.STOPPED, BrokerState.CRASHED, BrokerState.SUSPENDED):
        raise typer.Exit(ExitCode.KAFKA_AWAY)


def _settings(config: Path | None, flags: list[str] | None, **embedded: Path | int | None) -> Settings:
    return load(config=config, flags=flags or (), overrides={"embedded": embedded})


def _used_address(config: Path | None, flags: list[str] | None) -> str | None:
    """Address of the Kafka that commands use by settings and context; None: the embedded one, where it runs."""
    _, context = context_in_use(None)
    settings = settings_of(None, None, config, None, None, flags, context)
    return to_client(settings).bootstrap_servers if names_servers(settings) else None


def _say_if_another(broker: BrokerStatus, used: str | None) -> None:
    if used not in (None, broker.bootstrap_servers):
        say(
            f"note: this is not the Kafka that your settings or context name: commands use {used}, which `statechannel doctor` "
            "checks"
        )


def _options(settings: Settings) -> BrokerOptions:
    embedded = settings.embedded
    return BrokerOptions(
        heap_mib=embedded.heap_mib,
        jars=embedded.jars,
        start_timeout_s=embedded.start_timeout_s,
        stop_timeout_s=embedded.stop_timeout_s,
        min_free_bytes=embedded.min_free_mib * 1024 * 1024,
    )


def _show(broker: BrokerStatus, output: Output, extra: dict[str, Any]) -> None:
    facts: dict[str, Any] = {
        "state": broker.state.value,
        "bootstrap_servers": broker.bootstrap_servers,
        "pid": broker.pid,
        "uptime_s": None if broker.uptime_s is None else round(broker.uptime_s, 1),
        "folder": str(broker.folder),
        "log": str(broker.log_path),
    }
    if output is Output.JSON:
        print_json(facts | extra)
        return
    facts["uptime_s"] = None
    rows = [(name.replace("_", " "), value) for name, value in facts.items() if value is not None]
    if broker.uptime_s is not None:
        rows.insert(2, ("up for", duration(broker.uptime_s * 1_000)))
    print_facts(rows)


@contextmanager
def _own_exit_code() -> Iterator[None]:
    """Convert the embedded broker's errors, adding exit codes."""
    try:
        yield
    except EmbeddedKafkaError as error:
        raise CommandError(str(error), hint=error.hint, code=ExitCode.LOCAL_KAFKA) from error


init_app = commands()


@init_app.command()
@with_connection
def init(
    connect: Connect,
    partitions: Annotated[
        int | None, option("--partitions", "Partitions of the channel's topic; fixed at creation.", min=1, max=1_000)
    ] = None,
    replication_factor: Annotated[
        int | None, option("--replication-factor", "Replicas of each topic. Default: the cluster's.", min=1, max=15)
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Create missing topics of a channel, and verify the settings of all."""
    connection = connect()
    chosen = connection.settings.channel
    with notify_if_slow(connection):
        create_topics(
            connection.client,
            connection.topics,
            partitions=partitions or chosen.partitions,
            replication_factor=replication_factor or chosen.replication_factor,
            timeout_s=connection.timeout_s,
        )
        topics = verify_topics(connection.client, connection.topics, timeout_s=connection.timeout_s)
    name, created = connection.topics.channel, list(topics.topics.values())
    if partitions is not None and topics.topics[name].partitions != partitions:
        say(f"note: {name} has {topics.topics[name].partitions} partitions; the number is fixed at creation")
    if output is Output.JSON:
        print_json(
            {
                "channel": name,
                "bootstrap_servers": connection.client.bootstrap_servers,
                "topics": [
                    {"name": info.name, "partitions": info.partitions, "replicas": info.replicas} for info in created
                ],
                "advice": [str(difference) for difference in topics.differences],
            }
        )
        return
    cleanup = Column("cleanup", of=lambda info: info.settings.get("cleanup.policy"))
    print_rows((Column("topic", of="name"), "partitions", "replicas", cleanup), created)
    for difference in topics.differences:
        say(f"advice: {difference}")
