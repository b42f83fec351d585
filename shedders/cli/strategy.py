"""`statechannel strategy list|show|check`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from pydantic_core import PydanticUndefined
from rich.text import Text

from shedders.conformance.checker import conform
from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.model.profiles import PROFILES
from shedders.model.strategy import KINDS, available, find
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import OutputAs, argument, commands, option
from statechannel.cli.kit.output import Output, print_json, print_rows, print_table, stdout
from statechannel.errors import ExitCode

app = commands("Installed strategies: list, show, check.")

KindOption = Annotated[
    str | None, option("--kind KIND", "shedding, placement or split, if the name has several kinds.")
]


@dataclass(frozen=True, slots=True)
class InstalledStrategy:
    """Entry point of a strategy.

    Attributes:
        about: First line of the strategy's docstring.
        trouble: Reason why it cannot be used, or None.
    """

    kind: str
    name: str
    origin: str
    about: str
    trouble: str | None


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the strategies by kind, and the profiles."""
    installed = [_installed(kind, name) for kind, kind_info in KINDS.items() for name in available(kind_info.group)]
    profiles: list[dict[str, Any]] = [
        {
            "name": profile.name,
            "about": profile.about,
            "strategies": dict(profile.strategies),
            "settings": profile.settings,
            "departures": dict(profile.departures),
        }
        for profile in PROFILES.values()
    ]
    if output is Output.JSON:
        print_json({"strategies": [asdict(strategy) for strategy in installed], "profiles": profiles})
        return
    about = Column("about", text=True, of=lambda row: f"unusable: {row.trouble}" if row.trouble else row.about)
    print_rows(("kind", "name", Column("from", 4, of="origin"), about), installed, empty="no strategy is installed")
    stdout().print()
    print_rows(("profile", *KINDS, "about"), [{"profile": row["name"], **row["strategies"], **row} for row in profiles])


@app.command()
def show(name: Annotated[str, argument("NAME")], kind: KindOption = None, output: OutputAs = Output.TABLE) -> None:
    """Show the description and settings of a strategy."""
    kinds = _kinds_of(name, kind)
    strategies = [(each, find(each, name)) for each in kinds]
    if output is Output.JSON:
        print_json(
            {
                "name": name,
                "kinds": kinds,
                "about": inspect.getdoc(strategies[0][1]) or "",
                "settings": strategies[0][1].Settings.model_json_schema(),
            }
        )
        return
    for number, (own_kind, strategy) in enumerate(strategies):
        if number and strategy is strategies[0][1]:
            continue
        stdout().print(Text(f"{name} ({', '.join(kinds) if strategy is strategies[0][1] else own_kind})", style="bold"))
        stdout().print(Text(inspect.getdoc(strategy) or "It has no description."))
        stdout().print()
        settings = [
            (name, _default(field), field.description) for name, field in strategy.Settings.model_fields.items()
        ]
        print_table(("setting", "default", "explained"), settings, empty="no settings")


@app.command()
def check(name: Annotated[str, argument("NAME")], kind: KindOption = None, output: OutputAs = Output.TABLE) -> None:
    """Run the conformance suite on a strategy (design/writing-a-strategy.md)."""
    findings = [finding for each in _kinds_of(name, kind) for finding in conform(each, name)]
    failed = sum(not finding.passed for finding in findings)
    if output is Output.JSON:
        print_json({"name": name, "passed": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        print_rows(("kind", "rule", Column("kept", of="passed"), "how"), findings)
        stdout().print()
        stdout().print(f"{failed} of {len(findings)} rules broken" if failed else f"all {len(findings)} rules passed")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _installed(kind: str, name: str) -> InstalledStrategy:
    origin = available(KINDS[kind].group)[name].value
    try:
        text = inspect.getdoc(find(kind, name)) or ""
    except StrategyFailedError as error:
        return InstalledStrategy(kind, name, origin, "", str(error))
    return InstalledStrategy(kind, name, origin, text.partition("\n")[0], None)


def _kinds_of(name: str, kind: str | None) -> Sequence[str]:
    """Kinds under which a name is installed.

    Raises:
        UnknownStrategyError: The name is not installed.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownStrategyError("kind of", kind, list(KINDS))
    kinds = [
        each_kind for each_kind in KINDS if kind in (None, each_kind) and name in available(KINDS[each_kind].group)
    ]
    if not kinds:
        known = sorted({point for each in KINDS if kind in (None, each) for point in available(KINDS[each].group)})
        raise UnknownStrategyError(kind or "", name, known)
    return kinds


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
