"""Pages of strategies, made from their docstrings, and of the planner's goals, made from their table."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from pydantic import BaseModel

from shedders.kafka_rebalance.goals.table import OF_MODES, OWN, every, modes_text
from shedders.model.profiles import PROFILES
from shedders.model.strategy import KINDS, available, find
from tests.docs.settings_pages import MADE, table

_OWN = "shedders."
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns):\n")


def strategies_page() -> Iterator[str]:
    """Lines of design/reference/strategies.md."""
    strategies = {kind: own(kind) for kind in KINDS}
    models = [strategy.Settings for by_name in strategies.values() for strategy in by_name.values()]
    bases = _shared(models)
    yield "# Algorithms"
    yield ""
    yield f"{MADE} Each strategy with"
    yield "its formula, an example worked by hand (also a test), its settings and its source; `statechannel strategy show NAME`"
    yield "prints the same. More on [TransferShedder, filters and splits](strategy-details.md); and [how to write"
    yield "one](../writing-a-strategy.md)."
    for kind, by_name in strategies.items():
        yield ""
        yield f"## {kind.capitalize()}"
        for name, strategy in by_name.items():
            yield ""
            yield f"### `{name}`"
            yield ""
            yield from prose(inspect.getdoc(strategy) or "")
            yield ""
            yield from _settings(strategy.Settings, bases)
    yield ""
    yield from _departures()
    yield ""
    yield "## Settings that several strategies have"
    for base in bases:
        yield ""
        yield f"### {base.__name__}"
        yield ""
        yield " ".join((inspect.getdoc(base) or "").split())
        yield ""
        yield from table(_declared(base), upstream=False)


def _departures() -> Iterator[str]:
    """What the profiles of upstream do otherwise, on purpose: `Profile.departures`."""
    named = [profile for profile in PROFILES.values() if profile.departures]
    words = dict.fromkeys(word for profile in named for word in profile.departures)
    yield "## Where the upstream profiles differ from Pulsar"
    yield ""
    yield "On purpose, each with its reason; `strategy list --output json` has them, too. Everything else that such a profile"
    yield "decides is held against Pulsar 4.2.4's own classes."
    yield ""
    yield "| departure | profiles | reason |"
    yield "| --- | --- | --- |"
    for word in words:
        having = [profile for profile in named if word in profile.departures]
        names = ", ".join(f"`{profile.name}`" for profile in having)
        yield f"| `{word}` | {names} | {having[0].departures[word]} |"


def own(kind: str) -> Mapping[str, type[Any]]:
    """The strategies of this package, by name; plug-ins of others speak for themselves."""
    found = available(KINDS[kind].group)
    return {name: find(kind, name) for name in sorted(found) if found[name].value.startswith(_OWN)}


def prose(text: str) -> Iterator[str]:
    """A docstring as Markdown: indented paragraphs are formulas; what only callers need is left out."""
    paragraphs = takewhile(lambda one: not _SECTION.match(one), text.split("\n\n"))
    for number, (formula, group) in enumerate(groupby(paragraphs, key=lambda one: one.startswith("    "))):
        lines = "\n\n".join(group).splitlines()
        if number:
            yield ""
        yield from ["```text", *(line[4:] for line in lines), "```"] if formula else lines


def _shared(models: Sequence[type[BaseModel]]) -> Sequence[type[BaseModel]]:
    """Classes that declare settings and that more than one of these inherit, the most general first."""
    seen: dict[type[BaseModel], set[type[BaseModel]]] = {}
    for model in models:
        for base in reversed(model.__mro__):
            if issubclass(base, BaseModel) and base is not model and _declared(base):
                seen.setdefault(base, set()).add(model)
    return list(seen)


def _declared(model: type[BaseModel]) -> dict[str, Any]:
    names = inspect.get_annotations(model)
    return {name: field for name, field in model.model_fields.items() if name in names}


def _settings(model: type[BaseModel], bases: Sequence[type[BaseModel]]) -> Iterator[str]:
    mine = _declared(model)
    if mine:
        yield from table(mine, upstream=False)
        yield ""
    above = [base for base in bases if issubclass(model, base) and base is not model]
    links = ", ".join(f"[{base.__name__}](#{base.__name__.lower()})" for base in above)
    yield (
        f"Beside these: {links}." if mine and links else f"Settings: {links}." if links else "It has no other settings."
    )


def goals_page() -> Iterator[str]:
    """Lines of design/reference/partitions-goals.md."""
    goals = [goal for goal in every() if goal.name in OWN or goal.name in OF_MODES]
    yield "# Goals of the rebalance planner"
    yield ""
    yield MADE
    yield "`statechannel partitions goals explain NAME` prints the same. How plans are made: [partitions](../partitions.md)."
    yield ""
    yield "| goal | kind | range | needs | default of | about |"
    yield "|---|---|---|---|---|---|"
    for goal in goals:
        cells = (
            f"[`{goal.name}`](#{goal.name})",
            goal.kind,
            goal.range_text,
            goal.needs_text,
            modes_text(goal),
            goal.about,
        )
        yield f"| {' | '.join(cells)} |"
    for goal in goals:
        yield ""
        yield f"## {goal.name}"
        yield ""
        yield from prose(goal.text)
