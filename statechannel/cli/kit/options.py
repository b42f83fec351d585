"""Options that several commands have; one place for their names and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.cli.kit.output import Output

if TYPE_CHECKING:
    from statechannel.cli.kit.connection import Connection
    from statechannel.settings import Settings

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,...",
        help="Kafka's addresses. Default: the settings, else the embedded Kafka that runs here.",
    ),
]
Channel = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Name of the channel.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
ClientFile = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config", metavar="FILE", help="librdkafka properties, one KEY=VALUE a line: where passwords belong."
    ),
]
ClientProperties = Annotated[
    list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka property; may be repeated.")
]
SettingFlags = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="GROUP.NAME=VALUE", help="Any setting (design/settings.md); may be repeated."),
]
OutputAs = Annotated[Output, typer.Option("--output", help="A table for people, or JSON for programs.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="Longest wait for the answer.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="For people who read the log; nobody judges it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the request is written.")]


class Connect:
    """Puts the options together, once: commands look at their own arguments first."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._place = place
        self._known: dict[tuple[str, ...], Connection] = {}

    def __call__(self, *flags: str) -> Connection:
        """The connection.

        Args:
            flags: Settings that the command's own options stand for, behind those of `--set`.
        """
        # Help and export files are read on machines that have no Kafka client.
        from statechannel.cli.kit.connection import connection_of

        if flags not in self._known:
            self._known[flags] = connection_of(self.settings(*flags))
        return self._known[flags]

    def settings(self, *flags: str) -> Settings:
        """The settings alone, for what does not need Kafka; likewise."""
        from statechannel.cli.kit.connection import settings_of

        return settings_of(**{**self._place, "flags": [*(self._place["flags"] or ()), *flags]})


OWN_FLAGS = "own_flags"
"""A command with an argument of this name is given those of `--set` whose names have no group: they are its own."""


def reaching(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options by which Kafka and the channel are found; its first argument is a `Connect`.

    A command that looks at one of these options itself names it among its own.
    """

    @wraps(command)
    def run(**arguments: Any) -> Any:
        place = {name: arguments[name] for name in shared}
        if OWN_FLAGS in own:
            flags = place["flags"] or []
            arguments[OWN_FLAGS] = [flag for flag in flags if not _has_group(flag)]
            place["flags"] = [flag for flag in flags if _has_group(flag)]

        return command(Connect(place), **{name: value for name, value in arguments.items() if name in own})

    shared = inspect.signature(_place, eval_str=True).parameters
    own = dict(list(inspect.signature(command, eval_str=True).parameters.items())[1:])
    asked = [option for name, option in own.items() if name != OWN_FLAGS]
    wears(run, [*asked, *(option for name, option in shared.items() if name not in own)])
    return run


def _has_group(flag: str) -> bool:
    return "." in flag.partition("=")[0]


def wears(function: Callable[..., Any], options: list[inspect.Parameter]) -> None:
    """Make the command line read these options of a function; `--output` comes behind those that say where."""
    last = ["channel", "output", "config", "properties_file", "properties", "flags"]
    options = sorted(options, key=lambda option: last.index(option.name) if option.name in last else -1)
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    function.__annotations__ = {option.name: option.annotation for option in options}
    function.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]


def _place(
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    config: Config = None,
    properties_file: ClientFile = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """The options themselves, as a signature."""
