"""Entry point of the command line: finds subcommands by entry point, and loads only the called one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from statechannel.cli.kit.failures import CommandError, guarded
from statechannel.cli.kit.output import switch_colours_off
from statechannel.errors import ExitCode, StateChannelError

COMMANDS_GROUP = "statechannel.commands"
"""Entry point group: name of the command = `module:app`, where `app` is a `typer.Typer` with one or more commands."""


_NO_COLOR = "--no-color"


class CommandLoadError(StateChannelError):
    """A registered command cannot be loaded."""


class LazyCommands(TyperGroup):
    """A group whose commands come from entry points; help loads all of them, a call only its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load_all(ctx, report=True)
        return sorted(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load the command of that name; None if it does not exist."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        registered = _registered()
        if cmd_name not in registered:
            # Typer looks for what was meant among the loaded ones.
            if not getattr(ctx, "resilient_parsing", False) and not cmd_name.startswith("-"):
                self._load_all(ctx, report=False)
            return None
        command = _load(registered[cmd_name])
        command.name = cmd_name
        self.commands[cmd_name] = command
        return command

    def _load_all(self, ctx: Any, *, report: bool) -> None:
        for name in _registered():
            try:
                self.get_command(ctx, name)
            except CommandLoadError as error:
                if report:  # one broken plug-in must not take the help of all others away
                    sys.stderr.write(f"warning: {error}\n")

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,  # noqa: ARG002 - the name is always ours
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line, and end the process unless `standalone_mode` is off."""
        words = list(sys.argv[1:] if args is None else args)
        ours = words.index("--") if "--" in words else len(words)
        coloured = _NO_COLOR not in words[:ours]
        words = [word for number, word in enumerate(words) if word != _NO_COLOR or number > ours]

        def run() -> Any:
            if not coloured:
                switch_colours_off()
            for word in words:
                if not word.isascii() and word.encode(errors="replace") != word.encode(errors="surrogatepass"):
                    raise CommandError(f"the argument {word!a} is not valid UTF-8", code=ExitCode.USAGE)
            return super(LazyCommands, self).main(
                words, "statechannel", complete_var, False, windows_expand_args, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(guarded(run, debug="--debug" in words, json=_wants_json(words)))


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON, even if others are invalid."""
    words = list(arguments)
    return not {"--output=json", "-ojson"}.isdisjoint(words) or any(
        flag in ("--output", "-o") and value == "json" for flag, value in pairwise(words)
    )


def _registered() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=COMMANDS_GROUP)}


def _load(point: metadata.EntryPoint) -> Any:
    try:
        return typer.main.get_command(point.load())
    except (ImportError, AttributeError) as error:
        raise CommandLoadError(
            f"the command `{point.name}` ({point.value}) cannot be loaded: {error}",
            hint="The package that registers it is broken or missing; reinstall it.",
        ) from error


app = typer.Typer(cls=LazyCommands, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"statechannel {metadata.version('statechannel')}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    no_color: Annotated[  # noqa: ARG001 - taken out of the words beforehand: it may stand anywhere
        bool, typer.Option(_NO_COLOR, help="Print without colours, as with NO_COLOR=1; may stand anywhere.")
    ] = False,
    _version_wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda value: _version(wanted=value), is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Bundle state channel on Apache Kafka: all brokers agree on the owner of each bundle."""
    if not debug:
        # What the Kafka client logs reaches people as the error that it leads to; `broker run` sets up logs of its own.
        logging.getLogger().addHandler(logging.NullHandler())


def main() -> None:
    """Entry point of the console script."""
    app()
