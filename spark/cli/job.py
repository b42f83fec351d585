"""What turns a function with options into a job: a command of `statechannel spark run`, and a program of its own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer import Option

from spark.core.running import RETRIES, STOP_TIMEOUT_S
from spark.core.streaming import Streaming
from statechannel.cli.kit.failures import CommandError, guarded
from statechannel.cli.kit.options import BootstrapServers, Channel, ClientProperties, Config, SettingFlags, set_options
from statechannel.errors import ExitCode

__all__ = [
    "AcceptNewTopic",
    "CompactHistory",
    "KafkaProperties",
    "Option",
    "SparkConf",
    "job_app",
    "job_main",
    "pairs",
    "streaming",
]

Own = TypeVar("Own")

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
CompactHistory = Annotated[
    bool, Option("--compact/--no-compact", help="Put the history's batches of days that are over into one.")
]
AcceptNewTopic = Annotated[
    bool, Option("--accept-new-topic", help="Continue with a topic that was created again under the old name.")
]


def job_app(command: Callable[..., Any]) -> typer.Typer:
    """The app that an entry point of the group `spark.jobs` names; the command's docstring is its help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return app


def job_main(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a job as a program: `python -m spark.jobs.NAME`, or from `spark-submit`.

    Args:
        argv: Arguments; None takes those of the process. `--debug` shows where in the code an error happened.

    Returns:
        The exit code; an error is printed on standard error.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]

    def run() -> Any:
        return typer.main.get_command(app).main(words, name, standalone_mode=False)

    return guarded(run, debug=debug)


def streaming(options: type[Own]) -> Callable[[Callable[[Streaming, Own], Any]], Callable[..., Any]]:
    """Give a job's command the options of every streaming job, and its own.

    Args:
        options: A dataclass whose fields are annotated as options.
    """

    def decorated(command: Callable[[Streaming, Own], Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**values: Any) -> Any:
            common = {name: values.pop(name) for name in shared}
            return command(_streaming(**common), options(**values))

        shared = inspect.signature(_streaming, eval_str=True).parameters
        types = get_type_hints(options, include_extras=True)
        own = inspect.signature(options).parameters
        set_options(run, [*(own[name].replace(annotation=types[name]) for name in own), *shared.values()])
        return run

    return decorated


def _streaming(
    *,
    checkpoint: Annotated[
        str, Option("--checkpoint", metavar="DIR", help="Scratch of Spark's, for one run: a folder, or a URI.")
    ],
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
    kafka_options: KafkaProperties = None,
    trigger: Annotated[
        float,
        Option("--trigger", metavar="SECONDS", min=0, max=86_400, help="Time between the beginnings of two batches."),
    ] = 1.0,
    max_offsets_per_trigger: Annotated[
        int | None,
        Option("--max-offsets-per-trigger", metavar="N", min=1, help="Most records of a batch. Default: no bound."),
    ] = None,
    available_now: Annotated[
        bool, Option("--available-now", help="End when all that is in the log now is read.")
    ] = False,
    conf: SparkConf = None,
    metrics_port: Annotated[
        int | None,
        Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve figures for Prometheus on loopback; 0: any port.",
        ),
    ] = None,
    stop_timeout_s: Annotated[
        float,
        Option(
            "--stop-timeout-s",
            metavar="SECONDS",
            min=0,
            max=3_600,
            help="How long a running batch may take to end at a stop.",
        ),
    ] = STOP_TIMEOUT_S,
    retries: Annotated[
        int,
        Option(
            "--retries", metavar="N", min=0, max=1_000, help="Starts in a row because Kafka is away, before giving up."
        ),
    ] = RETRIES,
) -> Streaming:
    # Help is read on machines that have no Kafka client.
    from statechannel.cli.kit.connection import connect

    java, settings = pairs(kafka_options, "--kafka-option"), pairs(conf, "--conf")
    connection = connect(bootstrap_servers, channel, config, properties, flags)
    return Streaming(
        client=connection.client,
        channel=connection.settings.channel.name,
        checkpoint=checkpoint,
        kafka_properties=java,
        trigger_s=trigger,
        max_offsets_per_trigger=max_offsets_per_trigger,
        available_now=available_now,
        conf=settings,
        metrics_port=metrics_port,
        stop_timeout_s=stop_timeout_s,
        retries=retries,
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
