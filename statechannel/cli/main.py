"""Entry point of the command line: finds subcommands by entry point, and loads only the called one."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from statechannel.cli.kit.failures import guarded
from statechannel.cli.kit.options import option
from statechannel.cli.kit.output import switch_colours_off
from statechannel.errors import StateChannelError, UsageError

COMMANDS_GROUP = "statechannel.commands"
"""Entry point group: name of the command = `module:app`, where `app` is a `typer.Typer` with one or more commands."""


_NO_COLOR = "--no-color"


class CommandLoadError(StateChannelError):
    """A registered command cannot be loaded."""


SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Look": {
        "status": "Show the state of the channel and its brokers, and the last incidents; with --watch continuously",
        "brokers": "List the live brokers, and those lost and not back; with --watch continuously",
        "bundles": "List the live bundles; with --watch continuously",
        "lookup": "Look up the broker that serves a topic or bundle; assigns the bundle if it has no owner",
        "namespace": "Namespaces: create, list, show, delete",
        "operation": "Operations and their results",
        "watch": "Print accepted changes as they happen, until interrupted; in JSON, one object per line",
        "why": "Explain why a bundle is where it is: its moves and splits, with times, decisions and loads",
        "why-not": "Explain why the balancer leaves a bundle where it is, by the newest decisions on it, its broker and "
        "the cluster",
        "doctor": "Check the channel, Kafka and this machine for problems; changes nothing",
    },
    "Move and split": {
        "transfer": "Transfer a bundle to a broker, if policies allow it",
        "unload": "Unload a bundle, if policies allow another broker; the next lookup assigns it again",
        "split": "Split a bundle; `split plan` shows which to split",
        "positions": "Show the hashes of topics in a bundle, and the position that halves them",
        "drain": "Cordon a broker and move all its bundles to other brokers",
        "uncordon": "Let a broker take bundles again, and end a running drain of it",
        "rolling-restart": "Restart brokers one after the other, the leader last: drain, restart, wait until it is back, "
        "uncordon",
        "repair": "Repair of bundles that lost their owner",
    },
    "Balance": {
        "policy": "Policies of balancing and placement: set, get, list, history, delete, kinds, export, import",
        "override": "Policies that expire: pin, cordon, exclude, shedding, threshold; list, end",
        "decisions": "List the balancer's decisions, or show one: show ID",
        "strategy": "Installed strategies: list, show, check",
        "shed": "Moves of bundles between brokers: plan",
        "place": "Destinations of bundles: plan",
        "simulate": "Compare strategies on the same traces, in virtual time: list, run, compare, generate",
        "snapshot": "Snapshots of a cluster: take, check, schema",
        "partitions": "Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back",
    },
    "Audit and keep": {
        "audit": "Audit the log: accepted states, verdicts, keys awaiting repair, owners, gaps in service and their causes",
        "export": "Export the channel's topic to a file, for `audit --file` and other programs",
        "replay-check": "Replay an exported log by this version, and compare verdicts and digest with those in the export",
        "import": "Import an exported channel into an empty one: same rings and owners, higher generations",
        "spark": "Tables, the audit archive and replays of a channel, by Spark",
        "debug": "Files for a bug report",
    },
    "Set up": {
        "demo": "Start Kafka and brokers, move and split bundles, kill a broker, audit everything; about a minute on an "
        "idle machine",
        "kafka": "The embedded Kafka broker of this machine",
        "init": "Create missing topics of a channel, and verify the settings of all",
        "broker": "Broker processes",
        "console": "Serve the admin API of a running cluster until interrupted: on the loopback and read-only, unless the "
        "settings say more",
        "acl": "Kafka ACLs of brokers, operators, auditors and Spark jobs: show, apply, check",
        "context": "Names for clusters: address, channel and settings file of each",
        "settings": "Settings: list, explain",
    },
}
"""Commands of this wheel by section, with the first sentence of their help: help and completion load no command.

A command that is missing here, such as one of another package, is loaded and listed after them."""

OTHERS: Final = "Other commands"
_HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}


class LazyCommands(TyperGroup):
    """A group whose commands come from entry points; only the called one is loaded, for help only those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load_unlisted(ctx, report=True)
        known = _registered()
        return sorted({*self.commands, *(name for name in _summaries() if name in known)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load the command of that name; None if it does not exist."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        point = _own().get(cmd_name) or _registered().get(cmd_name)
        if point is None:
            # Typer looks for what was meant among these.
            if not getattr(ctx, "resilient_parsing", False) and not cmd_name.startswith("-"):
                self._name_all(ctx)
            return None
        command = _load(point)
        command.name = cmd_name
        self.commands[cmd_name] = command
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Commands by section, each with its whole summary."""
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        summaries = _summaries()
        others = {name: _summary(self.commands[name]) for name in names if name not in summaries}
        for title, listed in (*SECTIONS.items(), (OTHERS, others)):
            rows = [(name.ljust(width), text) for name, text in listed.items() if name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        self._name_all(ctx)
        return super().shell_complete(ctx, incomplete)

    def _load_unlisted(self, ctx: Any, *, report: bool) -> None:
        summaries = _summaries()
        for name in _registered():
            if name in summaries:
                continue
            try:
                self.get_command(ctx, name)
            except CommandLoadError as error:
                if report:  # one broken plug-in must not take the help of all others away
                    sys.stderr.write(f"warning: {error}\n")

    def _name_all(self, ctx: Any) -> None:
        """Give every command a place without loading those of this wheel: completion and suggestions need names only."""
        self._load_unlisted(ctx, report=False)
        registered = _registered()
        for name, text in _summaries().items():
            if name in registered:
                self.commands.setdefault(name, TyperCommand(name, short_help=text))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer would end an interrupted one without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Abort from interrupt

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
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]

        def run() -> Any:
            if not coloured:
                switch_colours_off()
            for word in words:
                if not word.isascii() and word.encode(errors="replace") != word.encode(errors="surrogatepass"):
                    raise UsageError(f"the argument {word!a} is not valid UTF-8")
            return super(LazyCommands, self).main(
                words, "statechannel", complete_var, False, windows_expand_args, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(guarded(run, debug="--debug" in words, json=_wants_json(words)))


def _summaries() -> Mapping[str, str]:
    return {name: text for listed in SECTIONS.values() for name, text in listed.items()}


def _summary(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    first = (command.help or "").partition("\n\n")[0]
    return " ".join(first.split()).removesuffix(".")


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON, even if others are invalid."""
    words = list(arguments)
    return not {"--output=json", "-ojson"}.isdisjoint(words) or any(
        flag in ("--output", "-o") and value == "json" for flag, value in pairwise(words)
    )


def _own() -> dict[str, metadata.EntryPoint]:
    """The commands of this wheel: its own metadata is read in a tenth of the time of all packages'."""
    try:
        points = metadata.distribution("statechannel").entry_points
    except metadata.PackageNotFoundError:
        return {}
    return {point.name: point for point in points if point.group == COMMANDS_GROUP}


def _registered() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=COMMANDS_GROUP)}


def _load(point: metadata.EntryPoint) -> Any:
    try:
        command = typer.main.get_command(point.load())
    except (ImportError, AttributeError) as error:
        raise CommandLoadError(
            f"the command `{point.name}` ({point.value}) cannot be loaded: {error}",
            hint="The package that registers it is broken or missing; reinstall it.",
        ) from error
    _describe_whole(command)
    return command


def _describe_whole(command: Any) -> None:
    """Let help list subcommands with their whole summaries; the library cuts them off at the width of the terminal."""
    for inner in getattr(command, "commands", {}).values():
        inner.short_help = _summary(inner)
        _describe_whole(inner)


app = typer.Typer(
    cls=LazyCommands,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings=_HELP_OPTIONS,
    pretty_exceptions_enable=False,
)


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"statechannel {metadata.version('statechannel')}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, option("--debug", "Show the traceback of an error.")] = False,
    no_color: Annotated[  # noqa: ARG001 - taken out of the words beforehand: it may stand anywhere
        bool, typer.Option(_NO_COLOR, help="Print without colours, as with NO_COLOR=1; may stand anywhere.")
    ] = False,
    _version_wanted: Annotated[
        bool, option("--version", "Show the version.", callback=lambda value: _version(wanted=value), is_eager=True)
    ] = False,
) -> None:
    """Bundle state channel on Apache Kafka: all brokers agree on the owner of each bundle."""
    if not gc.isenabled():  # the console script has switched it off: the command is loaded, and its modules stay
        gc.freeze()
        gc.enable()
    if not debug:
        # What the Kafka client logs reaches people as the error that it leads to; `broker run` sets up logs of its own.
        logging.getLogger().addHandler(logging.NullHandler())


def main() -> None:
    app()
