"""`statechannel simulate list|run|compare|generate`: simulation of strategies on the same traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shedders.cli.contest.compare import compare
from shedders.cli.contest.options import need_extra, write_plot
from shedders.cli.options import make_folder, say_written, show_grid, write_file
from statechannel.cli.kit.options import OutputAs, OutputBesideFile
from statechannel.cli.kit.output import Output, print_json, print_table, say, stdout
from statechannel.cli.kit.progress import progress

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Compare strategies on the same traces, in virtual time: list, run, compare, generate.",
)


@app.callback()
def group() -> None:
    """Compare strategies on the same traces, in virtual time: list, run, compare, generate."""


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the scenarios and the contenders."""
    need_extra()
    from shedders.contest.contenders import default_contenders
    from shedders.contest.scenario import HELD_OUT, load_scenario, scenarios

    shipped = [
        _scenario(name, load_scenario(name), held_out=name.startswith(HELD_OUT))
        for name in (*scenarios(), *scenarios(held_out=True))
    ]
    field = default_contenders()
    if output is Output.JSON:
        print_json(
            {
                "scenarios": shipped,
                "contenders": [
                    {
                        "name": contender.name,
                        "about": contender.about,
                        "manager": contender.manager,
                        "shedding": contender.shedding,
                        "placement": contender.placement,
                        "upstream": contender.upstream,
                        "settings": dict(contender.overrides),
                    }
                    for contender in field
                ],
            }
        )
        return
    columns = ("name", "hours", "brokers", "bundles", "topics", "about", "source")
    print_table(("scenario", *columns[1:]), [[row[column] for column in columns] for row in shipped])
    stdout().print()
    print_table(("contender", "about"), [(contender.name, contender.about) for contender in field])


def _scenario(name: str, scenario: Any, *, held_out: bool) -> dict[str, Any]:
    return {
        "name": name,
        "about": scenario.about,
        "source": scenario.source,
        "held_out": held_out,
        "hours": scenario.hours,
        "brokers": sum(fleet.count for fleet in scenario.fleet),
        "bundles": scenario.bundle_count,
        "topics": scenario.topic_count,
    }


@app.command()
def run(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO|FILE", help="Name of a scenario, or a scenario file; `simulate list` shows the names."
        ),
    ],
    contender: Annotated[
        str, typer.Option("--contender", metavar="NAME", help="Contender to run; `simulate list` shows the names.")
    ] = "ours",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**31, help="Random seed of the scenario.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for the outcome and its plot (SVG).")
    ] = None,
    output: OutputBesideFile = Output.TABLE,
) -> None:
    """Run one contender on one scenario and show the results."""
    need_extra()
    from shedders.contest import contenders
    from shedders.contest.scenario import load_scenario
    from shedders.contest.tables import outcome_grid
    from shedders.contest.workload import scenario_trace
    from shedders.contest.world import simulate

    who = contenders.contender(contender)
    trace = scenario_trace(load_scenario(scenario), seed)
    folder = None if out is None else make_folder(out)
    with progress(f"{who.name} on {trace.name}", 100) as shown:
        outcome = simulate(trace, who, progress=lambda part: shown(100 * part))
    written = []
    if folder is not None:
        from shedders.contest.plots import scenario_picture
        from shedders.contest.runner import file_name

        name = file_name(f"{outcome.scenario}-{outcome.seed}-{outcome.contender.replace('/', '-')}")
        document = folder / f"{name}.json"
        write_file(document, outcome.model_dump_json(indent=1).encode() + b"\n")
        picture = scenario_picture([outcome], title=f"{outcome.scenario}, seed {outcome.seed}")
        written = [document, write_plot(folder / f"{name}.svg", picture)]
    if output is Output.JSON:
        print_json({"digest": outcome.digest(), **outcome.model_dump(mode="json")})
    else:
        show_grid(outcome_grid(outcome), gap=False)
    say_written(written)
    if not outcome.steps:
        say("the trace has no step, so nothing was measured")


@app.command()
def generate(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the scenario files.")],
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", min=0, max=2**31, help="Random seed: the same files for the same seed."),
    ],
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=99, help="How many scenarios.")] = 12,
    output: OutputBesideFile = Output.TABLE,
) -> None:
    """Write scenarios drawn from stated distributions, to check a strategy on traces that were not chosen by hand."""
    need_extra()
    from shedders.contest.generator import generated
    from shedders.contest.scenario import parse_scenario

    folder = make_folder(out)
    rows = []
    with progress(f"{count} scenarios", count, unit="files") as shown:
        for number in range(1, count + 1):
            raw = generated(seed, number)
            scenario = parse_scenario(raw)
            path = folder / f"{scenario.name}.toml"
            write_file(path, raw)
            rows.append({"file": str(path), **_scenario(scenario.name, scenario, held_out=False)})
            shown(number)
    if output is Output.JSON:
        print_json({"seed": seed, "scenarios": rows})
        return
    columns = ("file", "hours", "brokers", "bundles", "topics", "about")
    print_table(columns, [[row[column] for column in columns] for row in rows])


app.command()(compare)
