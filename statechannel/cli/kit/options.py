"""Options shared by several commands, with their names and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.cli.kit.contexts import ClusterContext, context_in_use
from statechannel.cli.kit.output import Output, choose, forget_said
from statechannel.errors import UsageError
from statechannel.protocol.record import REASON_MAX

if TYPE_CHECKING:
    from statechannel.queries.connection import Connection
    from statechannel.settings import Settings


def commands(about: str = "", *, alone: bool = False, **more: Any) -> typer.Typer:
    """A group of commands, or the only command of an entry point; `alone`: a group though it has one command only."""
    described: dict[str, Any] = {"help": about, **more} if about else more
    app = typer.Typer(add_completion=False, rich_markup_mode=None, **described)
    if alone:
        app.callback()(lambda: None)
    return app


def option(shown: str, about: str | None = None, **more: Any) -> Any:
    """An option, declared as help shows it: `--bundles -n N`; `more` is typer's."""
    words = shown.split()
    names = [word for word in words if word.startswith("-")]
    return typer.Option(*names, metavar=" ".join(words[len(names) :]) or None, help=about, **more)


def argument(shown: str, about: str | None = None, **more: Any) -> Any:
    """An argument, likewise."""
    return typer.Argument(metavar=shown, help=about, **more)


BootstrapServers = Annotated[
    str | None,
    option(
        "--bootstrap-servers -b HOST:PORT,...",
        "Kafka's addresses. Default: from the settings, else the embedded Kafka of this machine.",
    ),
]
Channel = Annotated[str | None, option("--channel NAME", "Name of the channel.")]
ContextName = Annotated[
    str | None,
    option("--context NAME", "Cluster, by its name in `statechannel context list`. Default: the current one."),
]
Config = Annotated[Path | None, option("--config FILE", "Settings file (TOML).")]
ClientFile = Annotated[
    Path | None, option("--kafka-config FILE", "librdkafka properties, one KEY=VALUE per line; use it for passwords.")
]
ClientProperties = Annotated[list[str] | None, option("-X KEY=VALUE", "librdkafka property; may be repeated.")]
SettingFlags = Annotated[
    list[str] | None, option("--set GROUP.NAME=VALUE", "Any setting of design/reference/settings.md; may be repeated.")
]
_FORMATS = "Output format: tables that fit the terminal, tables with all columns, or JSON for programs."
OutputAs = Annotated[Output, option("--output -o", _FORMATS, callback=choose)]
OutputBesideFile = Annotated[Output, option("--output", _FORMATS, callback=choose)]
"""The same for a command whose `-o` names a file."""
FileBeside = Annotated[
    Path | None, option("--file F", "Read this export, with the files of its other topics (`export --with-topics`).")
]
Timeout = Annotated[float | None, option("--timeout SECONDS", "Longest wait for the reply.", min=0.1, max=3600)]
_NAME_MAX = 256


def _checked_text(option: str, longest: int) -> Callable[[str | None], str | None]:
    """A check of a free text: one line, neither empty nor too long."""

    def check(text: str | None) -> str | None:
        if text is None:
            return None
        line = " ".join(text.split())
        if not line:
            raise UsageError(f"{option} is empty", hint="Write some words, or omit it.")
        if len(line) > longest:
            raise UsageError(
                f"{option} has {len(line)} characters, at most {longest} are allowed",
                hint="Shorten it: it stays in the log.",
            )
        if not line.isprintable():
            raise UsageError(f"{option} has control characters", hint="Use printable characters.")
        return line

    return check


_reason = option("--reason TEXT", "Why, for people; kept in the log.", callback=_checked_text("--reason", REASON_MAX))
IfGeneration = Annotated[
    int | None, option("--if-generation N", "Only while the bundle has this generation (JSON of `bundles`).", min=0)
]
Reason = Annotated[str | None, _reason]
RequiredReason = Annotated[str, _reason]
By = Annotated[
    str | None,
    option("--by NAME", "Author, for people. Default: user@host.", callback=_checked_text("--by", _NAME_MAX)),
]
NoWait = Annotated[bool, option("--no-wait", "Return as soon as the request is written.")]


class Connect:
    """Resolves the options when first called: commands check their own arguments before that."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._place = {name: value for name, value in place.items() if name != "context_name"}
        self._chosen: str | None = place.get("context_name")
        self._known: dict[tuple[str, ...], Connection] = {}

    def __call__(self, *flags: str) -> Connection:
        """The connection.

        Args:
            flags: Settings set by the command's own options; they override those of `--set`.
        """
        # Help and export files are read on machines that have no Kafka client.
        from statechannel.cli.kit.connection import connection_of

        if flags not in self._known:
            self._known[flags] = connection_of(self.settings(*flags), self.context)
        return self._known[flags]

    @property
    def context(self) -> str:
        """Name of the context in use; empty if none is."""
        return self._context[0]

    @cached_property
    def _context(self) -> tuple[str, ClusterContext]:
        return context_in_use(self._chosen)

    def settings(self, *flags: str) -> Settings:
        """The settings alone, for commands that do not need Kafka."""
        from statechannel.cli.kit.connection import settings_of

        flags = (*(self._place["flags"] or ()), *flags)
        return settings_of(**{**self._place, "flags": flags, "context": self._context[1]})


OWN_FLAGS = "own_flags"
"""A command with an argument of this name receives the `--set` flags without a group in their names: its own settings."""


def with_connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command; its first argument is a `Connect`.

    A command that reads one of these options itself declares it as its own.
    """
    return _with_place(command, dict(inspect.signature(_place, eval_str=True).parameters))


def with_kafka(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `with_connection`, for a command whose own settings are given by `--set`."""
    shared = dict(inspect.signature(_place, eval_str=True).parameters)
    del shared["flags"]
    return _with_place(command, shared)


def _with_place(command: Callable[..., Any], shared: Mapping[str, inspect.Parameter]) -> Callable[..., Any]:
    @wraps(command)
    def run(**arguments: Any) -> Any:
        forget_said()
        place = {"flags": None} | {name: arguments[name] for name in shared}
        if OWN_FLAGS in own:
            flags = place["flags"] or []
            arguments[OWN_FLAGS] = [flag for flag in flags if not _has_group(flag)]
            place["flags"] = [flag for flag in flags if _has_group(flag)]

        return command(Connect(place), **{name: value for name, value in arguments.items() if name in own})

    own = dict(list(inspect.signature(command, eval_str=True).parameters.items())[1:])
    asked = [option for name, option in own.items() if name != OWN_FLAGS]
    set_options(run, [*asked, *(option for name, option in shared.items() if name not in own)])
    return run


def _has_group(flag: str) -> bool:
    return "." in flag.partition("=")[0]


def set_options(function: Callable[..., Any], options: list[inspect.Parameter]) -> None:
    """Set the options of a function; `--output` comes after the connection options."""
    last = ["channel", "context_name", "output", "config", "properties_file", "properties", "flags"]
    options = sorted(options, key=lambda option: last.index(option.name) if option.name in last else -1)
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    if any(_has_short(option) for option in options if option.annotation is not OutputAs):
        options = [
            option.replace(annotation=OutputBesideFile) if option.annotation is OutputAs else option
            for option in options
        ]
    function.__annotations__ = {option.name: option.annotation for option in options}
    function.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]


def _has_short(option: inspect.Parameter) -> bool:
    """Whether a command's own option is called `-o`."""
    details = getattr(option.annotation, "__metadata__", ())
    # typer takes the first name for the default until it has read the signature.
    names = ((getattr(detail, "default", None), *(getattr(detail, "param_decls", None) or ())) for detail in details)
    return any("-o" in of_option for of_option in names)


def _place(
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    context_name: ContextName = None,
    config: Config = None,
    properties_file: ClientFile = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
) -> None:
    """The options themselves, as a signature."""


def options_used(context: typer.Context) -> list[str]:
    """Options of the command line, as a group that may run without a subcommand sees them."""
    names = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [
        names[name]
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
