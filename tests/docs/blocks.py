"""The generated parts of the documentation, each made from the code that it describes."""

import importlib
import json
import pkgutil
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import typer

from statechannel.errors import StateChannelError
from statechannel.kafka.acls import Role, rules_of
from statechannel.operations.table import ARGUMENTS, OPERATIONS
from statechannel.protocol import states
from statechannel.protocol.states import FORCED, MOVES, MoveCondition, State, Who
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from tests.bench import kept
from tests.docs import bounds_table, counterexamples, http_blocks, partition_blocks, record_blocks, scenario_blocks
from tests.docs import observability_blocks as observability
from tests.docs.reaction_table import rows
from tests.docs.tiny_log import TinyLog
from tests.faults.checker import RULES
from tests.faults.plan import KINDS as FAULT_KINDS
from tests.interleavings.state import Danger
from tests.mutants import PLANTED
from tests.mutation import kept as mutations

ROOT = Path(__file__).parents[2]
_CLEAN = {Verdict.ACCEPTED, Verdict.ASSERT_EQUAL}
_NEITHER = {Verdict.CONTROL, Verdict.UNSUPPORTED_FORMAT, Verdict.WRONG_PARTITION}


def table(head: Iterable[str], body: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in body]
    return "\n".join(lines)


def proof_figures() -> str:
    """The kept runs of the explorer."""
    rows = []
    for arguments, run in json.loads((ROOT / "design" / "evidence" / "proof-figures.json").read_text()).items():
        last, of_workers = run["levels"][-1], f"{run['seconds']:,} s, {run['workers']} processes"
        if "triples" in last:
            compared = sum(level["triples"] for level in run["levels"])
            what = f"{sum(level['joined'] for level in run['levels']):,} logs at whose end joins complete"
            unit = "triples"
        else:
            compared = sum(level["joined"] for level in run["levels"])
            cold = sum(level.get("cold", 0) for level in run["levels"])
            what = f"{sum(level['paths'] for level in run['levels']):,} paths, {cold:,} cold starts"
            unit = "readers"
        rows.append((f'`make proof ARGS="{arguments}"`', what, f"{compared:,} {unit}", 0, of_workers))
    return table(("command", "explored", "compared", "differences", "took"), rows)


def interleaving_figures() -> str:
    """The kept run of the search through all orders, a row for each flow."""
    kept = json.loads((ROOT / "design" / "evidence" / "interleavings-figures.json").read_text())["searches"]
    flows = dict.fromkeys(name.split()[0] for name in kept)
    rows = []
    for flow in flows:
        searches = {name.split()[1]: search for name, search in kept.items() if name.split()[0] == flow}
        sums = [f"{sum(s[what] for s in searches.values()):,}" for what in ("states", "moves", "recoveries")]
        slowest_s = max(search["slowest_recovery_s"] for search in searches.values())
        cut = ", ".join(scope for scope, search in searches.items() if not search["complete"])
        whole = ", ".join(scope for scope, search in searches.items() if search["complete"])
        rows.append((f"`{flow}`", whole, cut, *sums, f"{slowest_s:g} s"))
    return table(("flow", "searched to the end", "limited", "states", "moves", "recoveries", "longest recovery"), rows)


def interleaving_dangers() -> str:
    """How often the kept run went through each dangerous moment."""
    kept = json.loads((ROOT / "design" / "evidence" / "interleavings-figures.json").read_text())["searches"]
    seen = Counter[str]()
    for search in kept.values():
        seen.update(search["seen"])
    return table(("dangerous moment", "moves"), [(danger, f"{seen[danger]:,}") for danger in Danger])


def state_diagram() -> str:
    """States of a bundle and their moves."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Unassigned: namespace becomes Active (derived)"]
    lines += [f"    {before} --> {after}: {_label(move)}" for (before, after), move in MOVES.items()]
    lines += ["    Deleted --> [*]: its children begin Assigned (derived)", "```"]
    return "\n".join(lines)


def _label(move: states.Move) -> str:
    return str(move.action) + ("" if move.need is MoveCondition.NOTHING else f" ({move.need})")


def moves() -> str:
    """The table of moves."""
    body = [
        (f"{before} → {after}", move.action, _who(move.from_), _who(move.to), move.need or "-")
        for (before, after), move in MOVES.items()
    ]
    return table(("move", "action", "`from`", "`to`", "listed only if"), body)


def forced() -> str:
    """The table of forced moves."""
    body = [
        (f"any but {State.DELETED} → {after}", move.action, _who(move.from_), _who(move.to))
        for after, move in FORCED.items()
    ]
    return table(("move", "action", "`from`", "`to`"), body)


def _who(who: Who) -> str:
    return str(who).replace("acc.", "accepted ").replace("`from`", "its own `from`")


def verdicts() -> str:
    """Verdicts in the order in which they are looked for."""
    body = [
        (number, f"`{one}`", MEANING[one], "yes" if one in REJECTIONS else "-", _debt(one))
        for number, one in enumerate(Verdict, 1)
    ]
    return table(("#", "verdict", "meaning", "counts as rejected", "for the debt"), body)


def _debt(one: Verdict) -> str:
    if one in _NEITHER:
        return "-"
    if one is Verdict.PURGED:
        return "settles"
    return "clean" if one in _CLEAN else "unclean"


def reactions() -> str:
    """What a broker does about a state that names it."""
    body = []
    for row in rows():
        failing = row.raises if row.raises == row.hangs else f"raises: {row.raises}; hangs: {row.hangs}"
        hook = f"`{row.hooks}`" if row.hooks else "none"
        body.append((row.state, row.this_broker, hook, row.returns, failing if row.hooks else "-"))
    head = ("accepted state", "this broker is", "hook first", "then it writes", "if the hook raises or is late")
    return table(head, body)


SELECTED = (
    "transfer with",
    "assignment storm",
    "kill -9",
    "Kafka away",
    "memory of",
    "one decision",
    "balance:",
    "replay of",
)
"""Beginnings of the rows of performance.md that the README shows."""


def request_commands() -> Iterator[tuple[str, ...]]:
    """A row of each command of the requests topic."""
    for spec in OPERATIONS.values():
        ways = [f"`statechannel {spec.words}`"] if spec.words else []
        if spec.http is not None:
            ways.append(f"`{spec.http.method} {spec.http.path}`")
        yield f"`{spec.command}`", ", ".join(f"`{name}`" for name in spec.args), spec.executor, ", ".join(ways)


def request_arguments() -> Iterator[tuple[str, str]]:
    """A row of each argument of these commands."""
    for name, argument in ARGUMENTS.items():
        about = argument.about.removesuffix(".")
        yield f"`{name}`", about[:1].lower() + about[1:]


def selected_figures() -> str:
    """Some rows of the table of measurements, with links that lead from the README."""
    page = (ROOT / "design/evidence/performance.md").read_text(encoding="utf-8").splitlines()
    head = page.index("| what | here | for comparison | command |")
    rows = [line for line in page[head + 2 :] if line.startswith(tuple(f"| {name}" for name in SELECTED))]
    return "\n".join([*page[head : head + 2], *rows]).replace("](", "](design/evidence/").replace("evidence/../", "")


def registry_record() -> str:
    """A registry record as the engine writes it."""
    return "```json\n" + json.dumps(_registry_example(), indent=2) + "\n```"


@cache
def _registry_example() -> dict:
    log = TinyLog()
    log.open()
    log.wait(2)
    return {**log.registry[-1]}


def registry_fields() -> tuple[str, ...]:
    """Names of the fields of a registry record."""
    return tuple(_registry_example())


def layers() -> str:
    """The layers, from the contract that the import linter checks."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(one for one in found["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    body = [
        (number, f"`{name}`", _first_line(f"statechannel.{name}"))
        for number, layer in enumerate(contract["layers"], 1)
        for name in re.findall(r"\w+", layer)
    ]
    return table(("layer", "package", "what it is"), body)


def _first_line(module: str) -> str:
    try:
        text = importlib.import_module(module).__doc__ or ""
    except ModuleNotFoundError:
        return "(comes later)"
    return _sentence(text)


def _sentence(text: str) -> str:
    flat = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.sub(r"\s*\((?:protocol|formats page)[^)]*\)", "", flat).rstrip(".")


def errors() -> str:
    """Every error of the packages, with its code."""
    for package in ("statechannel", "loaddata", "shedders", "spark"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    rows = [
        (
            f"`{error.code}`",
            "yes" if error.retryable else "",
            f"`{error.__module__}.{error.__name__}`",
            _sentence(error.__doc__),
        )
        for error in sorted(_subclasses(StateChannelError), key=lambda error: error.code)
    ]
    return table(("code", "retryable", "class", "meaning"), rows)


def _subclasses(base: type[StateChannelError]) -> set[type[StateChannelError]]:
    below = {error for error in base.__subclasses__() if error.__module__.partition(".")[0] != "tests"}
    return below.union(*(_subclasses(error) for error in below))


def acl_roles() -> str:
    """What each role may do, a row a topic or group."""
    channel = "NAME"
    rights: dict[tuple[str, str], dict[Role, list[str]]] = {}
    for role in Role:
        for rule in rules_of(role, channel):
            rights.setdefault((rule.resource, rule.name), {}).setdefault(role, []).append(rule.right)
    body = [
        (resource, f"`{name}`", *(", ".join(found.get(role, ())) or "-" for role in Role))
        for (resource, name), found in rights.items()
    ]
    return table(("", "name", *Role), body)


def command_list() -> str:
    """Every command with the first sentence of its help."""
    return table(("command", "what it does"), [(f"`{name}`", help_) for name, help_ in sorted(commands().items())])


@cache
def commands() -> dict[str, str]:
    """Every command that can be called, with the first sentence of its help."""
    found: dict[str, str] = {}
    for entry in metadata.entry_points(group="statechannel.commands"):
        try:
            command = typer.main.get_command(entry.load())
        except ModuleNotFoundError:
            continue
        _collect(f"statechannel {entry.name}", command, found)
    return found


def _collect(name: str, command: object, found: dict[str, str]) -> None:
    below = _below(command)
    if not below or getattr(command, "invoke_without_command", False):
        found[name] = " ".join((command.help or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    for part, one in below.items():
        _collect(f"{name} {part}", one, found)


@cache
def command_options() -> dict[str, set[str]]:
    """Options of every command."""
    found: dict[str, set[str]] = {}
    for entry in metadata.entry_points(group="statechannel.commands"):
        try:
            command = typer.main.get_command(entry.load())
        except ModuleNotFoundError:
            continue
        _collect_options(f"statechannel {entry.name}", command, found)
    return found


def _collect_options(name: str, command: object, found: dict[str, set[str]]) -> None:
    params = [*command.params, *getattr(getattr(command, "otherwise", None), "params", ())]
    own = {option for one in params for option in (*one.opts, *one.secondary_opts)}
    found[name] = own | {"--help"}
    for part, one in _below(command).items():
        _collect_options(f"{name} {part}", one, found)


def _below(command: object) -> dict[str, object]:
    """Commands of a group, also of one that loads them when they are called; a command has none."""
    if not hasattr(command, "list_commands"):
        return {}
    return {part: command.get_command(None, part) for part in command.list_commands(None)}


def planted_bugs() -> str:
    """The planted bugs of the simulator."""
    body = [(f"`{bug.name}`", bug.level, bug.what) for _, bug in sorted(PLANTED.items())]
    return table(("planted bug", "level", "what is wrong then"), body)


def fault_kinds() -> str:
    """The faults that the campaign may draw."""
    body = [
        (
            f"`{kind}`",
            f"{one.held_s[0]:g} to {one.held_s[1]:g} s",
            one.nodes or "1, 3",
            " ".join((one.__doc__ or "").split()),
        )
        for kind, one in sorted(FAULT_KINDS.items())
    ]
    return table(("fault", "for", "Kafka nodes", "what is done"), body)


def fault_rules() -> str:
    """The rules that the campaign's checker reads the evidence by."""
    body = [(f"`{name}`", " ".join((rule.__doc__ or "").split())) for name, rule in RULES.items()]
    return table(("rule", "what must hold"), body)


def bounds() -> str:
    """What waits or is kept, its bound, and what happens beyond it."""
    return table(("what waits or is kept", "bound", "beyond it", "what the caller sees"), bounds_table.rows())


def example(name: str) -> str:
    """A program of design/examples, which a test runs."""
    return "```python\n" + (ROOT / f"design/examples/{name}.py").read_text(encoding="utf-8").strip() + "\n```"


def figures() -> str:
    """What `make bench ARGS="... --keep"` measured last."""
    return table(("figure", "measured", "aim, or comparison", "load", "command"), kept.rows())


BLOCKS: dict[str, Callable[[], str]] = {
    "http-routes": lambda: table(
        ["method", "path", "what it does", "role", "idempotent", "codes of its own"], http_blocks.route_rows()
    ),
    "http-problems": lambda: table(["reason", "status", "retryable", "when"], http_blocks.problem_rows()),
    "pulsar-paths": lambda: table(["method", "path", "what it does", "role"], http_blocks.pulsar_rows()),
    "pulsar-unsupported": lambda: table(["method", "path", "instead"], http_blocks.unsupported_rows()),
    "state-diagram": state_diagram,
    "mutation-counts": mutations.table,
    "mutation-survivors": mutations.survivors,
    "mutation-equivalent": mutations.equivalent_table,
    "moves": moves,
    "forced": forced,
    "verdicts": verdicts,
    "selected-figures": selected_figures,
    "request-commands": lambda: table(["command", "args", "executed by", "written by"], request_commands()),
    "request-arguments": lambda: table(["arg", "meaning"], request_arguments()),
    "record-fields": record_blocks.fields,
    "record-examples": record_blocks.examples,
    "record-limits": record_blocks.limits,
    "counterexamples-states": partial(counterexamples.section, 2),
    "counterexamples-debts": partial(counterexamples.section, 3),
    "counterexamples-join": partial(counterexamples.section, 4),
    "counterexamples-outages": partial(counterexamples.section, 5),
    "interleaving-figures": interleaving_figures,
    "interleaving-dangers": interleaving_dangers,
    "proof-figures": proof_figures,
    "reactions": reactions,
    "registry-record": registry_record,
    "layers": layers,
    "errors": errors,
    "commands": command_list,
    "acl-roles": acl_roles,
    "example-broker": partial(example, "broker"),
    "example-router": partial(example, "router"),
    "example-test-kit": partial(example, "test_my_broker"),
    "example-store": partial(example, "sharded_store"),
    "example-notes-fastapi": partial(example, "notes_fastapi"),
    "example-client-requests": partial(example, "client_requests"),
    "example-json-lines": partial(example, "json_lines"),
    "partition-metrics": partition_blocks.metric_names,
    "planted-bugs": planted_bugs,
    "events": observability.events,
    "event-fields": observability.event_fields,
    "metrics": observability.metrics,
    "alerts": observability.alerts,
    "fault-kinds": fault_kinds,
    "fault-rules": fault_rules,
    "bounds": bounds,
    "figures": figures,
    "scenario-fields": scenario_blocks.fields,
    "scenarios": scenario_blocks.shipped,
    "scenarios-held-out": scenario_blocks.held_out,
    "partitions-check": partition_blocks.check,
    "partitions-generate": partition_blocks.generate,
    "partitions-uneven": partition_blocks.uneven,
}
