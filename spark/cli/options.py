"""Options that the jobs share; one place for their names and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from spark.core.running import RETRIES, STOP_TIMEOUT_S
from spark.core.streaming import Streaming
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import BootstrapServers, Channel, ClientProperties, Config, SettingFlags, set_options
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from statechannel.cli.kit.connection import Connection

__all__ = [
    "Argument",
    "BootstrapServers",
    "Channel",
    "ClientProperties",
    "Config",
    "KafkaProperties",
    "Option",
    "SparkConf",
    "connection",
    "pairs",
    "streaming",
]

KafkaProperties = Annotated[
    list[str] | None,
    Option(
        "--kafka-option",
        metavar="KEY=VALUE",
        help="A property of Spark's own Kafka client (Java's names); may be repeated.",
    ),
]
SparkConf = Annotated[
    list[str] | None, Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]
Checkpoint = Annotated[
    str, Option("--checkpoint", metavar="DIR", help="Where Spark keeps how far it is: a folder, or a URI.")
]
Trigger = Annotated[
    float, Option("--trigger", metavar="SECONDS", min=0, max=86_400, help="Time between the beginnings of two batches.")
]
MaxOffsets = Annotated[
    int | None,
    Option("--max-offsets-per-trigger", metavar="N", min=1, help="Most records of a batch. Default: no bound."),
]
AvailableNow = Annotated[bool, Option("--available-now", help="End when all that is in the log now is read.")]
MetricsPort = Annotated[
    int | None,
    Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65_535,
        help="Serve figures for Prometheus on loopback; 0: any port.",
    ),
]
StopTimeout = Annotated[
    float,
    Option(
        "--stop-timeout-s",
        metavar="SECONDS",
        min=0,
        max=3_600,
        help="How long a running batch may take to end at a stop.",
    ),
]
Retries = Annotated[
    int,
    Option("--retries", metavar="N", min=0, max=1_000, help="Starts in a row because Kafka is away, before giving up."),
]


def streaming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a job's command the options of every streaming job; its first argument is a `Streaming`."""

    @wraps(command)
    def run(**values: Any) -> Any:
        common = {name: values.pop(name) for name in shared}
        return command(_streaming(**common), **values)

    shared = inspect.signature(_common, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    set_options(run, [*own, *shared.values()])
    return run


def _common(
    *,
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
    kafka_options: KafkaProperties = None,
    trigger: Trigger = 1.0,
    max_offsets_per_trigger: MaxOffsets = None,
    available_now: AvailableNow = False,
    conf: SparkConf = None,
    metrics_port: MetricsPort = None,
    stop_timeout_s: StopTimeout = STOP_TIMEOUT_S,
    retries: Retries = RETRIES,
) -> None:
    """The options themselves, as a signature."""


def _streaming(
    *,
    bootstrap_servers: str | None,
    channel: str | None,
    config: Path | None,
    properties: list[str] | None,
    flags: list[str] | None,
    kafka_options: list[str] | None,
    trigger: float,
    conf: list[str] | None,
    **same: Any,
) -> Streaming:
    java, settings = pairs(kafka_options, "--kafka-option"), pairs(conf, "--conf")
    place = connection(bootstrap_servers, channel, config, properties, flags)
    return Streaming(
        client=place.client,
        channel=place.settings.channel.name,
        kafka_properties=java,
        trigger_s=trigger,
        conf=settings,
        **same,
    )


def pairs(texts: Iterable[str] | None, option: str) -> Mapping[str, str]:
    """What a repeatable option NAME=VALUE says; the last one of a name counts.

    Raises:
        CommandError: One has no name, or no `=`.
    """
    by_name = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} {text}: this is not NAME=VALUE", code=ExitCode.USAGE)
        by_name[name.strip()] = value
    return by_name


def connection(
    bootstrap_servers: str | None,
    channel: str | None,
    config: Path | None,
    properties: list[str] | None = None,
    flags: list[str] | None = None,
) -> Connection:
    """Kafka and the channel: as given, else by the settings, else the embedded Kafka that runs here.

    Raises:
        CommandError: No address is given anywhere, and no embedded Kafka runs.
    """
    # Help is read on machines that have no Kafka client.
    from statechannel.cli.kit.connection import connect

    return connect(bootstrap_servers, channel, config, properties, flags)
