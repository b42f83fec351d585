"""Commands `statechannel context list|use`: names for clusters, as other tools have contexts or profiles."""

from __future__ import annotations

from typing import Annotated

from statechannel.cli.kit.contexts import choose_context, contexts_file, read_contexts
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs, argument, commands
from statechannel.cli.kit.output import Output, print_json, print_table, stdout

app = commands("Names for clusters: address, channel and settings file of each.")


def _names(incomplete: str) -> list[str]:
    """Contexts for shell completion."""
    try:
        return [name for name in sorted(read_contexts().contexts) if name.startswith(incomplete)]
    except CommandError:
        return []


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the contexts; the current one is marked."""
    known = read_contexts()
    rows = [
        {"name": name, "current": name == known.current, **known.contexts[name].model_dump()}
        for name in sorted(known.contexts)
    ]
    if output is Output.JSON:
        print_json({"file": str(contexts_file()), "current": known.current, "contexts": rows})
        return
    print_table(
        ("", "context", "bootstrap servers", "channel", "config", "Kafka config"),
        [("*" if current else " ", name, *values) for name, current, *values in map(dict.values, rows)],
        empty=f"no contexts in {contexts_file()}",
    )


@app.command()
def use(name: Annotated[str, argument("NAME", autocompletion=_names)]) -> None:
    """Make a context the current one: commands use it unless an option or the environment says otherwise."""
    choose_context(name)
    stdout().print(f"context {name} is in use", markup=False)
