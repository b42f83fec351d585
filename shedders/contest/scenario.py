"""Scenarios: TOML files that describe what happens to a simulated cluster (design/reference/scenarios.md), and their reader.

The models are the format. Times are in minutes from the start, since scenarios last hours.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loaddata.samples.strict_json import cut
from shedders.contest.trace import Costs
from shedders.snapshots.file import FaultyFileError, read_limited, sentences
from statechannel.suggestions import nearest, shown

_COSTS = Costs()

Name = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9][a-z0-9-]*$")]
Amount = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Minutes = Annotated[float, Field(ge=0, le=100_000)]
Length = Annotated[float, Field(gt=0, le=100_000)]

Owners = Literal["placed", "even", "random", "balanced", "one-broker", "parts"]


class ScenarioModel(BaseModel):
    """Base of all parts: unknown fields, numbers as text, and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Fleet(ScenarioModel):
    """A group of equal machines; they are called GROUP-1, GROUP-2, ..."""

    group: Name = Field(description="Name of the group.")
    count: int = Field(ge=1, le=2_000, description="How many.")
    cores: Amount = Field(8.0, description="CPU.")
    memory_mib: Amount = Field(8_192.0, description="Heap.")
    direct_memory_mib: Amount = Field(8_192.0, description="Memory outside the heap.")
    bandwidth_in_mbit: Amount = Field(10_000.0, description="Network, received.")
    bandwidth_out_mbit: Amount = Field(10_000.0, description="Network, sent.")
    idle_percent: float = Field(3.0, ge=0, le=50, description="CPU used without traffic, of all cores.")
    domains: int = Field(0, ge=0, le=100, description="Failure domains that they are dealt out to in turn; 0: none.")

    def machine_name(self, number: int) -> str:
        """Name of a machine; all of a group are of one length, so that they are sorted by number."""
        return f"{self.group}-{number:0{len(str(self.count))}d}"


class TopicKind(ScenarioModel):
    """A kind of topic: what a message of it costs. Small messages fill the CPU, large ones the network."""

    name: Name = Field(description="Name of the kind.")
    part: Amount = Field(1.0, description="How many topics are of this kind, against the parts of the others.")
    msg_bytes: float = Field(1_024.0, ge=1, le=1e8, description="Size of a message.")
    fan_out: float = Field(1.5, ge=0, le=10_000, description="Messages sent for each received.")
    spread: float = Field(
        1.0, ge=1, le=100, description="Each topic's size is drawn from `msg_bytes` / spread to `msg_bytes` * spread."
    )
    cpu_us: float = Field(25.0, ge=0, le=1e6, description="CPU of a message, received or sent, in microseconds.")
    cpu_ns_per_byte: float = Field(0.5, ge=0, le=1e6, description="CPU of a byte, received or sent, in nanoseconds.")
    cache_s: float = Field(0.5, ge=0, le=600, description="Direct memory: the bytes that come in within this time.")
    sessions: int = Field(4, ge=0, le=100_000, description="Producers and consumers of a topic.")


class Namespaces(ScenarioModel):
    """A group of equal namespaces; they are called sim/GROUP-1, sim/GROUP-2, ..."""

    group: Name = Field(description="Name of the group.")
    count: int = Field(1, ge=1, le=10_000, description="How many.")
    bundles: int = Field(ge=1, le=32_768, description="Bundles of each.")
    topics: int = Field(ge=1, le=1_000_000, description="Topics of each.")
    zipf: float = Field(
        1.0, ge=0, le=3, description="Load of the topic of rank r is as 1 / r ** zipf, in each namespace; 0: all alike."
    )
    share: Amount = Field(1.0, description="Load of the group, against the shares of the other groups.")
    topic_max: Share = Field(
        0.15, description="No topic begins with more than this part of an average machine (spikes and `hot` may)."
    )
    kinds: list[Name] = Field([], description="Kinds of its topics; empty: all.")
    owners: Owners = Field(
        "even",
        description="Owners of the bundles at the start. `placed`: none, they are looked up; `even`: dealt out in turn; "
        "`random`: drawn; `balanced`: by load; `one-broker`: the first; `parts`: by load, as `parts` says.",
    )
    owners_in: list[Name] = Field([], description="Groups of machines that have them; empty: all that are there.")
    parts: list[Amount] = Field(
        [], description="Load of each of those brokers against the others; repeated to the last."
    )
    created_at_min: Minutes | None = Field(
        None, description="They are created then, and looked up; not given: at the start."
    )
    created_every_s: float = Field(0.0, ge=0, le=1e6, description="Time between two of them.")


class Noise(ScenarioModel):
    """Independent noise of every topic; several layers add up."""

    sd: float = Field(ge=0, le=1, description="Standard deviation, in parts of the topic's load.")
    every_s: float = Field(
        60.0, gt=0, le=86_400, description="Time between two drawn values, with linear interpolation."
    )


class LoadWave(ScenarioModel):
    """All topics of a namespace rise and fall together."""

    height: float = Field(gt=0, lt=1, description="Height: load goes from 1 - height to 1 + height.")
    period_h: Length = Field(24.0, description="Length.")
    start_h: float = Field(0.0, ge=0, le=1_000, description="Where in the wave it starts; 0: at the mean, rising.")
    spread_h: float = Field(
        0.0, ge=0, le=1_000, description="Namespaces are apart by at most this, each by its own draw."
    )


class LoadChange(ScenarioModel):
    """Load of some topics changes; each of them by `times`, or to `machine_part`."""

    group: Name | None = Field(None, description="Group of namespaces; not given: any.")
    namespace: int | None = Field(None, ge=1, description="Number of the namespace in the group; not given: any.")
    topics: int | None = Field(None, ge=1, description="How many topics, drawn by the seed.")
    topics_share: Share | None = Field(None, description="The same as a part of all.")
    heaviest: bool = Field(False, description="The heaviest topics instead of drawn ones.")
    times: float | None = Field(None, ge=0, le=1e6, description="By which the load is multiplied.")
    machine_part: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Load each of them has then, in parts of an average machine; it never falls by this.",
    )
    at_min: Minutes = Field(0.0, description="When it begins.")
    rising_min: Minutes = Field(0.0, description="How long it rises; 0: it is sudden.")
    for_min: Length | None = Field(
        None, description="How long it lasts, until the load is as before; not given: to the end."
    )
    every_min: Length | None = Field(
        None, description="Time between repetitions, each for other topics; not given: once."
    )
    upsets: bool = Field(True, description="Balance is upset by it, so that time to settle is counted from its start.")


class Spikes(ScenarioModel):
    """Short spikes of single topics, at times and topics drawn by the seed; they do not count as disturbances."""

    per_h: float = Field(gt=0, le=10_000, description="How many an hour.")
    minutes: Length = Field(5.0, description="Length of each.")
    machine_part: float = Field(gt=0, le=10, description="Load of the topic, in parts of an average machine.")
    group: Name | None = Field(None, description="Group of namespaces; not given: any.")


class ScenarioEvent(ScenarioModel):
    """Something happens to machines of a group."""

    what: Literal["join", "lost", "leave", "slow", "silent", "lossy", "lying"] = Field(
        description="`join`: it is not there before. `lost`: it dies. `leave`: it hands over and goes. `slow`: it can do "
        "`factor` of what it promises. `silent`: no reports. `lossy`: `factor` of its reports are lost. `lying`: it reports "
        "`factor` times its load."
    )
    group: Name = Field(description="Group of machines.")
    numbers: list[Annotated[int, Field(ge=1)]] = Field([], description="Which of them; empty: all, or `pick`.")
    pick: int | None = Field(None, ge=1, description="How many of them, drawn by the seed; not given: all.")
    at_min: Minutes = Field(description="When.")
    every_s: float = Field(0.0, ge=0, le=1e6, description="Time from one to the next; 0: all at once.")
    for_min: Length | None = Field(None, description="After that the opposite happens; not given: never.")
    factor: float | None = Field(None, ge=0, le=1_000, description="See `what`; needed by slow, lossy and lying.")
    planned: bool = Field(
        False,
        description="leave with `for_min`: the machines are restarted by `statechannel rolling-restart`, which our balancer "
        "knows, and Pulsar has not.",
    )
    resources: list[Literal["cpu", "bandwidth-in", "bandwidth-out", "direct-memory"]] = Field(
        [],
        description="slow: what it has less of than it reports (a container on a large host, a wrong network speed); "
        "empty: CPU and network in both directions.",
    )


class ScenarioIsolation(ScenarioModel):
    """Isolation policy: which machines some namespaces may use."""

    name: Name = Field(description="Name of the policy.")
    namespaces: list[Name] = Field(min_length=1, description="Groups of namespaces.")
    primary: list[Name] = Field(min_length=1, description="Groups of machines, or single machines (`GROUP-1`).")
    secondary: list[Name] = Field([], description="The same: those that help out.")
    min_available: int = Field(
        1, ge=1, le=2_000, description="With fewer primaries than this, secondaries may be used."
    )


class ScenarioAntiAffinity(ScenarioModel):
    """Namespaces that should not fail together."""

    name: Name = Field(description="Name of the anti-affinity group.")
    namespaces: list[Name] = Field(min_length=1, description="Groups of namespaces, all of which are in it.")


class ScenarioPin(ScenarioModel):
    """Namespaces or bundles that a machine has to have; they begin there."""

    group: Name = Field(description="Group of namespaces.")
    namespace: int | None = Field(None, ge=1, description="Number of the namespace in the group; not given: all.")
    bundles: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="Which bundles of each, counted along the ring; empty: the whole namespace."
    )
    broker: Name = Field(description="Machine, `GROUP-1`.")


class ScenarioPolicies(ScenarioModel):
    """Policies of operators, in force from the start."""

    isolation: list[ScenarioIsolation] = Field([], max_length=100, description="Isolation, `[[policies.isolation]]`.")
    anti_affinity: list[ScenarioAntiAffinity] = Field(
        [], max_length=100, description="Anti-affinity, `[[policies.anti_affinity]]`."
    )
    pins: list[ScenarioPin] = Field([], max_length=1_000, description="Pins, `[[policies.pins]]`.")


class CostsPart(ScenarioModel):
    """Costs for clients, and detection times."""

    transfer_gap_s: float = Field(_COSTS.transfer_gap_s, ge=0, le=600, description="A bundle unserved by a transfer.")
    unload_gap_s: float = Field(_COSTS.unload_gap_s, ge=0, le=600, description="By an unload, until it is looked up.")
    split_gap_s: float = Field(_COSTS.split_gap_s, ge=0, le=600, description="By a split.")
    loss_detect_s: float = Field(_COSTS.loss_detect_s, ge=0, le=3_600, description="Until a death is noticed.")
    reconnect_cpu_s: float = Field(
        _COSTS.reconnect_cpu_s, ge=0, le=10, description="CPU seconds of a session's reconnect."
    )
    overloaded: float = Field(_COSTS.overloaded, gt=0, le=10, description="Load from which a broker is overloaded.")


class Scenario(ScenarioModel):
    """What happens to a simulated cluster. With a seed it makes a trace."""

    name: Name = Field(description="The file's name without `.toml`.")
    about: str = Field(min_length=1, max_length=400, description="What it shows.")
    source: str = Field(min_length=1, max_length=200, description="Where it comes from: an issue, a PIP, a page.")
    generated_by_seed: int | None = Field(
        None, ge=0, description="Seed of `simulate generate`, if that made it; results have such scenarios as a group."
    )
    seeds: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(
        [1, 2, 3, 4, 5], min_length=1, max_length=100, description="Seeds to run it with."
    )
    hours: float = Field(gt=0, le=24 * 31, description="How long it lasts.")
    step_s: float = Field(20.0, ge=1, le=600, description="Time between two looks at the demand.")
    utilisation: float = Field(
        0.5,
        gt=0,
        le=2,
        description="Mean demand of the start over the capacity of the machines there, in the tightest resource.",
    )
    fleet: list[Fleet] = Field(min_length=1, max_length=100, description="Machines.")
    kinds: list[TopicKind] = Field(
        [TopicKind(name="mixed")], min_length=1, max_length=100, description="Kinds of topics."
    )
    namespaces: list[Namespaces] = Field(min_length=1, max_length=1_000, description="Namespaces, bundles and topics.")
    noise: list[Noise] = Field([], max_length=4, description="Noise of single topics.")
    wave: LoadWave | None = Field(None, description="Daily wave of namespaces.")
    changes: list[LoadChange] = Field([], max_length=100, description="Topics that grow, get hot, or change otherwise.")
    spikes: list[Spikes] = Field([], max_length=10, description="Short spikes.")
    events: list[ScenarioEvent] = Field([], max_length=1_000, description="What happens to machines.")
    policies: ScenarioPolicies = Field(ScenarioPolicies(), description="Policies of operators.")
    disturbances_min: list[Minutes] | None = Field(
        None,
        description="When balance is upset; not given: the start, joins, losses, leaves, slow brokers, creations, and changes.",
    )
    settle_min: Minutes = Field(
        15.0, description="Balance is judged from this time after each of those until the next."
    )
    judged_min: list[Annotated[list[Minutes], Field(min_length=2, max_length=2)]] | None = Field(
        None, description="Spans in which balance is judged, [from, to]; not given: by `settle_min`."
    )
    costs: CostsPart = Field(CostsPart(), description="What things cost.")

    @property
    def bundle_count(self) -> int:
        """Bundles that it begins with, or creates."""
        return sum(group.count * group.bundles for group in self.namespaces)

    @property
    def topic_count(self) -> int:
        return sum(group.count * group.topics for group in self.namespaces)

    def namespace_names(self) -> list[tuple[str, int]]:
        """Name of each namespace, and index of its group."""
        return [
            (f"sim/{group.group}-{number}", index)
            for index, group in enumerate(self.namespaces)
            for number in range(1, group.count + 1)
        ]


SIZE_MAX_BYTES: Final = 1 << 20
SLOWEST: Final = 0.001
"""A slow broker can do this part of what its machine promises, or more."""
STEPS_MAX: Final = 50_000
BUNDLES_MAX: Final = 200_000
TOPICS_MAX: Final = 2_000_000
HELD_OUT: Final = "held-out/"
"""Prefix of the names of scenarios that were not used for tuning."""


class ScenarioError(FaultyFileError):
    """A scenario cannot be read or is invalid."""

    usual_hint = "design/reference/scenarios.md explains every field."


def scenarios(*, held_out: bool = False) -> list[str]:
    """Names of the built-in scenarios, sorted; held-out ones only on request."""
    folder = resources.files("shedders.contest") / "scenarios"
    prefix = ""
    if held_out:
        folder, prefix = folder / HELD_OUT.rstrip("/"), HELD_OUT
    return sorted(prefix + file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_scenario(path_or_name: str) -> Scenario:
    """Read and check a scenario: a built-in one by name, or a file.

    Raises:
        ScenarioError: It does not exist, cannot be read, is malformed, or contradicts itself.
    """
    known = [*scenarios(), *scenarios(held_out=True)]
    if path_or_name in known:
        shipped = resources.files("shedders.contest") / "scenarios"
        return parse_scenario((shipped / f"{path_or_name}.toml").read_bytes(), f"scenario {path_or_name}")
    if not path_or_name.endswith(".toml") and not path_or_name.startswith((".", "/", "~")):
        near = nearest(path_or_name, known)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ScenarioError(
            f"scenario {shown(path_or_name)}",
            ["unknown name"],
            hint=f"{meant}`statechannel simulate list` shows all; name a file by its path, which ends with .toml.",
        )
    raw = read_limited(Path(path_or_name), shown(path_or_name), SIZE_MAX_BYTES, ScenarioError)
    return parse_scenario(raw, path_or_name)


def parse_scenario(raw: bytes, where: str = "scenario") -> Scenario:
    """Parse a scenario.

    Raises:
        ScenarioError: As `load_scenario`.
    """
    try:
        value = tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ScenarioError(where, [f"it is not UTF-8: byte {error.start}"]) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ScenarioError(where, [f"it is not TOML: {cut(str(error))}"]) from error
    try:
        scenario = Scenario.model_validate(value)
    except ValidationError as error:
        raise ScenarioError(where, sentences(error, Scenario)) from error
    wrong = list(_contradictions(scenario))
    if wrong:
        raise ScenarioError(where, wrong)
    return scenario


def _contradictions(scenario: Scenario) -> Iterator[str]:
    yield from _twice(scenario)
    yield from _too_much(scenario)
    yield from _namespace_faults(scenario)
    for number, change in enumerate(scenario.changes):
        yield from _change_faults(f"changes[{number}]", change, scenario)
    groups = [namespace.group for namespace in scenario.namespaces]
    for number, spikes in enumerate(scenario.spikes):
        yield from _unknown(f"spikes[{number}].group", spikes.group, groups)
    for number, event in enumerate(scenario.events):
        yield from _event_faults(f"events[{number}]", event, scenario)
    yield from _policy_faults(scenario)
    end_min = scenario.hours * 60
    for index, (from_min, to_min) in enumerate(scenario.judged_min or []):
        if not from_min < to_min <= end_min:
            yield f"judged_min[{index}]: expected a span within the {end_min:g} minutes, got [{from_min:g}, {to_min:g}]"
    for index, at_min in enumerate(scenario.disturbances_min or []):
        if at_min >= end_min:
            yield f"disturbances_min[{index}]: {at_min:g} is after the end, {end_min:g}"


def _twice(scenario: Scenario) -> Iterator[str]:
    named = {
        "fleet": [fleet.group for fleet in scenario.fleet],
        "kinds": [kind.name for kind in scenario.kinds],
        "namespaces": [namespace.group for namespace in scenario.namespaces],
    }
    for field, names in named.items():
        for index, name in enumerate(names):
            if names.index(name) != index:
                yield f"{field}[{index}]: {name} duplicates {field}[{names.index(name)}]"


def _too_much(scenario: Scenario) -> Iterator[str]:
    counts = {
        "steps": (scenario.hours * 3_600 / scenario.step_s, STEPS_MAX, "raise step_s or lower hours"),
        "bundles": (scenario.bundle_count, BUNDLES_MAX, "lower count or bundles"),
        "topics": (scenario.topic_count, TOPICS_MAX, "lower count or topics"),
    }
    for what, (number, most, advice) in counts.items():
        if number > most:
            yield f"it has {number:,.0f} {what}, more than {most:,}: {advice}"
    if scenario.hours * 3_600 < scenario.step_s:
        yield f"hours: shorter than one step of {scenario.step_s:g} s"


def _namespace_faults(scenario: Scenario) -> Iterator[str]:
    fleets, kinds = [fleet.group for fleet in scenario.fleet], [kind.name for kind in scenario.kinds]
    joining = {
        event.group for event in scenario.events if event.what == "join" and not event.numbers and event.pick is None
    }
    for number, group in enumerate(scenario.namespaces):
        where = f"namespaces[{number}]"
        for kind in group.kinds:
            yield from _unknown(f"{where}.kinds", kind, kinds)
        for fleet in group.owners_in:
            yield from _unknown(f"{where}.owners_in", fleet, fleets)
            if fleet in joining:
                yield f"{where}.owners_in: {fleet} joins later, so it owns nothing at the start"
        if (group.owners == "parts") is not bool(group.parts):
            yield f'{where}.parts: required for owners = "parts", and only there'
        if group.created_at_min is not None and group.owners != "placed":
            yield f'{where}.owners: expected "placed", as it is created later'
        if group.created_at_min is not None and group.created_at_min >= scenario.hours * 60:
            yield f"{where}.created_at_min: {group.created_at_min:g} is after the end, {scenario.hours * 60:g}"


def _change_faults(where: str, change: LoadChange, scenario: Scenario) -> Iterator[str]:
    yield from _unknown(f"{where}.group", change.group, [namespace.group for namespace in scenario.namespaces])
    if (change.times is None) is (change.machine_part is None):
        yield f"{where}: expected either times or machine_part"
    if (change.topics is None) is (change.topics_share is None):
        yield f"{where}: expected either topics or topics_share"
    if change.namespace is not None:
        count = next((namespace.count for namespace in scenario.namespaces if namespace.group == change.group), 0)
        if change.namespace > count:
            yield (
                f"{where}.namespace: the group has {count}"
                if change.group
                else f"{where}.group: required with namespace"
            )
    if change.at_min >= scenario.hours * 60:
        yield f"{where}.at_min: {change.at_min:g} is after the end, {scenario.hours * 60:g}"
    if change.for_min is not None and change.for_min < change.rising_min:
        yield f"{where}.for_min: expected at least rising_min, {change.rising_min:g}"


def _event_faults(where: str, event: ScenarioEvent, scenario: Scenario) -> Iterator[str]:
    count = next((fleet.count for fleet in scenario.fleet if fleet.group == event.group), None)
    if count is None:
        yield from _unknown(f"{where}.group", event.group, [fleet.group for fleet in scenario.fleet])
        return
    if max([*event.numbers, event.pick or 0]) > count:
        yield f"{where}: {event.group} has {count} machines"
    if event.numbers and event.pick is not None:
        yield f"{where}: numbers or pick, not both"
    if (event.what in ("slow", "lossy", "lying")) is (event.factor is None):
        yield f"{where}.factor: required for slow, lossy and lying, and only there"
    if event.resources and event.what != "slow":
        yield f"{where}.resources: only for slow"
    if event.what == "slow" and event.factor is not None and event.factor < SLOWEST:
        yield f"{where}.factor: expected at least {SLOWEST:g}; for a broker that does nothing, use lost"
    if event.what == "lossy" and (event.factor or 0) > 1:
        yield f"{where}.factor: expected 0 to 1"
    if event.at_min >= scenario.hours * 60:
        yield f"{where}.at_min: {event.at_min:g} is after the end, {scenario.hours * 60:g}"


def _policy_faults(scenario: Scenario) -> Iterator[str]:
    policies, spaces = scenario.policies, {group.group: group for group in scenario.namespaces}
    groups = [fleet.group for fleet in scenario.fleet]
    machines = [fleet.machine_name(number) for fleet in scenario.fleet for number in range(1, fleet.count + 1)]
    named: list[tuple[str, Sequence[ScenarioIsolation | ScenarioAntiAffinity]]] = [
        ("isolation", policies.isolation),
        ("anti_affinity", policies.anti_affinity),
    ]
    for kind, entries in named:
        for index, entry in enumerate(entries):
            where = f"policies.{kind}[{index}]"
            for name in entry.namespaces:
                yield from _unknown(f"{where}.namespaces", name, list(spaces))
            if entry.name in [other.name for other in entries[:index]]:
                yield f"{where}: {entry.name} is duplicated"
    for index, isolation in enumerate(policies.isolation):
        for field, names in (("primary", isolation.primary), ("secondary", isolation.secondary)):
            for name in names:
                yield from _unknown(f"policies.isolation[{index}].{field}", name, [*groups, *machines])
    for index, pin in enumerate(policies.pins):
        where = f"policies.pins[{index}]"
        yield from _unknown(f"{where}.broker", pin.broker, machines)
        group = spaces.get(pin.group)
        if group is None:
            yield from _unknown(f"{where}.group", pin.group, list(spaces))
        elif max([1, *pin.bundles]) > group.bundles or (pin.namespace or 1) > group.count:
            yield f"{where}: {pin.group} has {group.count} namespaces of {group.bundles} bundles"


def _unknown(where: str, name: str | None, known: list[str]) -> Iterator[str]:
    if name is not None and name not in known:
        near = nearest(name, known)
        meant = f"; did you mean {near[0]}?" if near else f", only {', '.join(known)}"
        yield f"{where}: unknown name {cut(name)}{meant}"
