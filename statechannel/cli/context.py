"""Commands `statechannel context list|use|show|set|delete`: names for clusters, as other tools have contexts or profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.cli.kit.contexts import (
    ClusterContext,
    Contexts,
    context_in_use,
    contexts_file,
    read_contexts,
    require_context_name,
    write_contexts,
)
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table, stdout
from statechannel.errors import ExitCode

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Names for clusters: address, channel and settings file of each.",
)


def _names(incomplete: str) -> list[str]:
    """Contexts for shell completion."""
    try:
        return [name for name in sorted(read_contexts().named) if name.startswith(incomplete)]
    except CommandError:
        return []


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_names)]


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the contexts; the current one is marked."""
    contexts = read_contexts()
    rows = [_fields(contexts, name) for name in sorted(contexts.named)]
    if output is Output.JSON:
        print_json({"file": str(contexts_file()), "current": contexts.current, "contexts": rows})
        return
    print_table(
        ("", "context", "bootstrap servers", "channel", "config", "Kafka config"),
        [
            (
                "*" if row["current"] else " ",
                row["name"],
                row["bootstrap_servers"],
                row["channel"],
                row["config"],
                row["kafka_config"],
            )
            for row in rows
        ],
        empty="no contexts; `statechannel context set NAME -b HOST:PORT` makes one",
    )


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=_names, help="Default: the one in use.")
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one context."""
    contexts = read_contexts()
    name = name or context_in_use(None)[0]
    if not name:
        raise CommandError(
            "no context is in use",
            hint="`statechannel context use NAME` chooses one; `statechannel context list` lists them.",
            code=ExitCode.NOT_FOUND,
        )
    contexts.get(name)
    fields = _fields(contexts, name)
    if output is Output.JSON:
        print_json(fields)
        return
    print_table(("context", name), [(key.replace("_", " "), value) for key, value in fields.items() if key != "name"])


@app.command()
def use(name: Name) -> None:
    """Make a context the current one: commands use it unless an option or the environment says otherwise."""
    contexts = read_contexts()
    contexts.get(name)
    write_contexts(replace(contexts, current=name))
    stdout().print(f"context {name} is in use", markup=False)


@app.command("set")
def set_(
    name: Name,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "-b", metavar="HOST:PORT,...", help="Kafka's addresses.")
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Name of the channel.")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file (TOML).")] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option("--kafka-config", metavar="FILE", help="librdkafka properties; the place for passwords."),
    ] = None,
) -> None:
    """Create a context, or change what is given of one; an empty text removes an entry. The first one is in use at once."""
    require_context_name(name)
    contexts = read_contexts()
    known = contexts.named.get(name, ClusterContext())
    options = {
        "bootstrap_servers": bootstrap_servers,
        "channel": channel,
        "config": _absolute(config),
        "kafka_config": _absolute(kafka_config),
    }
    changed = replace(known, **{key: value or None for key, value in options.items() if value is not None})
    _check(changed)
    current = contexts.current if contexts.named else name
    write_contexts(Contexts(current, {**contexts.named, name: changed}))
    note = "; it is in use" if current == name else f"; `statechannel context use {name}` makes it the current one"
    stdout().print(f"context {name} {'changed' if name in contexts.named else 'created'}{note}", markup=False)


@app.command()
def delete(name: Name) -> None:
    """Delete a context; the cluster is not touched."""
    contexts = read_contexts()
    contexts.get(name)
    rest = {other: context for other, context in contexts.named.items() if other != name}
    write_contexts(Contexts(None if contexts.current == name else contexts.current, rest))
    note = "; no context is in use now" if contexts.current == name else ""
    stdout().print(f"context {name} deleted{note}", markup=False)


def _fields(contexts: Contexts, name: str) -> dict[str, Any]:
    return {"name": name, "current": name == contexts.current, **contexts.named[name].fields()}


def _absolute(path: Path | None) -> str | None:
    """The path from any folder; empty where an empty text was given."""
    if path is None:
        return None
    return "" if str(path) in ("", ".") else str(path.absolute())


def _check(context: ClusterContext) -> None:
    """Refuse what no command could use."""
    from statechannel.kafka.addresses import addresses_of
    from statechannel.settings import load

    if context.bootstrap_servers is not None:
        addresses_of(context.bootstrap_servers)
    for file, option in ((context.config, "--config"), (context.kafka_config, "--kafka-config")):
        if file is not None and not Path(file).is_file():
            raise CommandError(f"{option}: there is no file {file}", hint="Give an existing file.", code=ExitCode.USAGE)
    load(config=None if context.config is None else Path(context.config), overrides=context.values())
