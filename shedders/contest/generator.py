"""Scenarios drawn from stated distributions by a seed: not chosen by hand, to check a strategy that is frozen.

Scenario N of a seed depends on nothing else. The tables here are the distributions; design/reference/scenarios.md explains them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from shedders.contest.scenario import Scenario, ScenarioError
from shedders.contest.workload import scenario_trace

Fields = dict[str, Any]
Draw = np.random.Generator

TROUBLES: Final = ("wrong-figures", "bursts", "noise", "resources", "members", "policies")
"""Main trouble of a scenario, in turn; each of the others occurs with it by probability `BESIDE`."""
BESIDE: Final = 0.2
BROKERS: Final = (5, 24)
"""Evenly on a logarithmic scale, as the next two."""
BUNDLES_A_BROKER: Final = (8, 40)
TOPICS_A_BUNDLE: Final = (4, 12)
TENANTS: Final = (3, 9)
SHAPES: Final = (0.5, 0.3, 0.2)
"""Probability of one, two and three sizes of machines."""
CORES: Final = (4.0, 8.0, 12.0, 16.0)
HOURS: Final = (2.0, 2.5, 3.0, 4.0)
NOISE_HOURS: Final = (8.0, 12.0)
UTILISATION: Final = (0.35, 0.62)
ZIPF: Final = (0.0, 1.3)
TOPIC_MAX: Final = (0.06, 0.16)
OWNERS: Final = {"random": 0.4, "balanced": 0.2, "even": 0.2, "parts": 0.2}
KINDS: Final[Mapping[str, Mapping[str, float]]] = {
    "events": {"msg_bytes": 600, "fan_out": 1.5, "spread": 3.0},
    "chat": {"msg_bytes": 180, "fan_out": 1.2, "spread": 2.0},
    "intake": {"msg_bytes": 60_000, "fan_out": 0.3, "spread": 2.0},
    "broadcast": {"msg_bytes": 20_000, "fan_out": 6.0, "spread": 2.0, "sessions": 16},
    "lagging": {"msg_bytes": 8_000, "fan_out": 1.0, "spread": 2.0, "cache_s": 40.0},
}
"""Small messages fill the CPU, large ones the network, slow consumers the direct memory."""
ATTEMPTS_MAX: Final = 100
"""Draws that contradict themselves, such as too few topics for the load, are drawn again."""


def generated(seed: int, number: int) -> bytes:
    """Scenario file of a seed and a number, from 1.

    Raises:
        ScenarioError: No draw could be used: a bug.
    """
    problem: ScenarioError | None = None
    for attempt in range(ATTEMPTS_MAX):
        draw = np.random.Generator(np.random.PCG64([seed, number, attempt]))
        fields = _fields(draw, seed, number)
        try:
            scenario_trace(Scenario.model_validate(fields), 1)
        except ScenarioError as error:
            problem = error
            continue
        return _toml(fields).encode()
    raise ScenarioError(f"scenario {number} of seed {seed}", [f"no draw can be used: {problem}"])


def _fields(draw: Draw, seed: int, number: int) -> Fields:
    main = TROUBLES[(number - 1) % len(TROUBLES)]
    troubles = [trouble for trouble in TROUBLES if trouble == main or _chance(draw, BESIDE)]
    hours = _one_of(draw, NOISE_HOURS if main == "noise" else HOURS)
    fleet = list(_fleet(draw, "resources" in troubles))
    zone = fleet[-1]["group"] if "policies" in troubles and len(fleet) > 1 and fleet[-1]["count"] > 1 else None
    kinds = _kinds(draw, "resources" in troubles)
    spaces = list(_namespaces(draw, fleet, kinds, zone))
    fields: Fields = {
        "name": f"generated-{seed}-{number:02d}",
        "about": f"Drawn: {', '.join(troubles)}; {sum(group['count'] for group in fleet)} brokers.",
        "source": f"simulate generate --seed {seed}, number {number}",
        "generated_by_seed": seed,
        "hours": hours,
        "step_s": 30.0 if main == "noise" else 20.0,
        "utilisation": _between(draw, UTILISATION),
        "fleet": fleet,
        "kinds": [{"name": name, **KINDS[name]} for name in kinds],
        "namespaces": spaces,
        "noise": list(_noise(draw, "noise" in troubles)),
    }
    if _chance(draw, 0.3):
        fields["wave"] = {
            "height": _between(draw, (0.1, 0.4)),
            "period_h": _between(draw, (2.0, 24.0)),
            "start_h": _between(draw, (0.0, 24.0)),
            "spread_h": _between(draw, (0.0, 12.0)),
        }
    if "bursts" in troubles:
        fields["changes"] = list(_bursts(draw, spaces, hours))
    if "noise" in troubles:
        fields["spikes"] = [
            {
                "per_h": _between(draw, (2.0, 8.0)),
                "minutes": _between(draw, (3.0, 15.0)),
                "machine_part": _between(draw, (0.17, 0.25)),
            }
        ]
    events = list(_events(draw, fleet, troubles, hours))
    if events:
        fields["events"] = events
    if "policies" in troubles:
        fields["policies"] = _policies(draw, spaces, zone, fleet)
    return fields


def _fleet(draw: Draw, several: bool) -> Iterator[Fields]:
    """Groups of machines; with `several` resources they differ in shape, and have little direct memory."""
    brokers = _log_whole(draw, BROKERS)
    shapes = min(1 + int(np.searchsorted(np.cumsum(SHAPES)[:-1], draw.random(), side="right")), brokers // 2)
    cuts = sorted(int(cut) for cut in draw.choice(np.arange(1, brokers - 1), size=shapes - 1, replace=False))
    for place, (first, last) in enumerate(zip([0, *cuts], [*cuts, brokers], strict=True)):
        cores = _one_of(draw, CORES)
        skew = (0.6, 1.5) if several else (0.9, 1.1)
        yield {
            "group": "abc"[place],
            "count": last - first,
            "cores": cores,
            "direct_memory_mib": round(1_024 * cores * _between(draw, (0.4, 1.2) if several else (1.0, 1.5))),
            "bandwidth_in_mbit": round(1_250 * cores * _between(draw, skew)),
            "bandwidth_out_mbit": round(1_250 * cores * _between(draw, skew)),
            "domains": int(draw.integers(0, 4)),
        }


def _kinds(draw: Draw, several: bool) -> list[str]:
    if several:
        return [str(name) for name in draw.permutation(list(KINDS))[: int(draw.integers(3, 6))]]
    return ["events"] if _chance(draw, 0.5) else ["events", str(draw.choice(["chat", "intake", "broadcast"]))]


def _namespaces(draw: Draw, fleet: Sequence[Fields], kinds: Sequence[str], zone: str | None) -> Iterator[Fields]:
    """Tenants, each a group of one to four namespaces; with a zone, one in it with about its part of the load."""
    capacity = {group["group"]: group["count"] * group["cores"] for group in fleet}
    brokers = sum(group["count"] for group in fleet)
    tenants, bundles = int(draw.integers(TENANTS[0], TENANTS[1] + 1)), brokers * _log_whole(draw, BUNDLES_A_BROKER)
    topics = _log_whole(draw, TOPICS_A_BUNDLE)
    zoned = 0.0 if zone is None else capacity[zone] / sum(capacity.values()) * _between(draw, (0.6, 1.2))
    shares = draw.dirichlet(np.full(tenants, 3.0)) * (1 - zoned)
    parts = [float(share) for share in shares] + ([zoned] if zone is not None else [])
    for place, share in enumerate(parts):
        inside = zone is not None and place == tenants
        count = int(draw.integers(1, 5))
        each = max(2, round(bundles / len(parts) / count))
        owners = str(draw.choice(list(OWNERS), p=list(OWNERS.values())))
        groups = [str(zone)] if inside else [group["group"] for group in fleet if group["group"] != zone]
        yield {
            "group": "zoned" if inside else f"tenant-{place + 1}",
            "count": count,
            "bundles": each,
            "topics": each * topics,
            "zipf": _between(draw, ZIPF),
            "share": max(0.02, round(share, 4)),
            "topic_max": _between(draw, TOPIC_MAX),
            "kinds": [str(draw.choice(list(kinds)))] if len(kinds) > 2 else list(kinds),  # noqa: PLR2004 - a mixture
            "owners": owners,
            "owners_in": groups,
            **({"parts": [float(draw.integers(1, 6)) for _ in range(4)]} if owners == "parts" else {}),
        }


def _noise(draw: Draw, strong: bool) -> Iterator[Fields]:
    yield {"sd": _between(draw, (0.05, 0.2)), "every_s": float(draw.integers(6, 19) * 10)}
    if strong or _chance(draw, 0.3):
        yield {"sd": _between(draw, (0.15, 0.35)), "every_s": float(draw.integers(6, 31) * 60)}


def _bursts(draw: Draw, spaces: Sequence[Fields], hours: float) -> Iterator[Fields]:
    """One to three tenants are busier by the clock, again and again."""
    for _ in range(int(draw.integers(1, 4))):
        space = spaces[int(draw.integers(len(spaces)))]
        every_min = int(draw.integers(20, 61))
        yield {
            "group": space["group"],
            "namespace": int(draw.integers(1, space["count"] + 1)),
            "topics_share": 1.0,
            "times": _between(draw, (2.0, 4.0)),
            "at_min": float(draw.integers(10, int(hours * 30))),
            "rising_min": 1.0,
            "for_min": float(draw.integers(5, 1 + every_min // 2)),
            "every_min": float(every_min),
            "upsets": False,
        }


def _events(draw: Draw, fleet: list[Fields], troubles: Sequence[str], hours: float) -> Iterator[Fields]:
    machines = [(group["group"], number) for group in fleet for number in range(1, group["count"] + 1)]
    order = iter([machines[place] for place in draw.permutation(len(machines))])
    end_min = int(hours * 60)
    if "wrong-figures" in troubles:
        for _ in range(int(draw.integers(1, max(2, len(machines) // 4)))):
            group_name, machine = next(order)
            yield _wrong(draw, group_name, machine, end_min)
    if "members" in troubles:
        if _chance(draw, 0.6):
            group = dict(fleet[0], group="new", count=int(draw.integers(1, 1 + len(machines) // 2)))
            fleet.append(group)
            at_min, every_s = float(draw.integers(20, end_min // 2)), float(_one_of(draw, (0.0, 60.0, 600.0)))
            yield {"what": "join", "group": "new", "at_min": at_min, "every_s": every_s}
        for _ in range(int(draw.integers(1, 3))):
            group_name, machine = next(order)
            event = {"what": str(draw.choice(["lost", "leave"])), "group": group_name, "numbers": [machine]}
            event["at_min"] = float(draw.integers(20, end_min - 30))
            yield event | ({"for_min": float(draw.integers(3, 30))} if _chance(draw, 0.7) else {})


def _wrong(draw: Draw, group: str, machine: int, end_min: int) -> Fields:
    """A broker's figures are wrong, mostly from the start."""
    event: Fields = {"group": group, "numbers": [machine]}
    event["at_min"] = 0.0 if _chance(draw, 0.6) else float(draw.integers(10, end_min // 2))
    match int(draw.integers(6)):
        case 0:
            return {"what": "lying", **event, "factor": _between(draw, (0.3, 0.6))}
        case 1:
            return {"what": "lying", **event, "factor": _between(draw, (1.5, 2.2))}
        case 2:
            return {"what": "slow", **event, "factor": _between(draw, (0.35, 0.7))}
        case 3:
            network = {"resources": ["bandwidth-in", "bandwidth-out"]}
            return {"what": "slow", **event, "factor": _between(draw, (0.1, 0.5)), **network}
        case 4:
            return {"what": "lossy", **event, "factor": _between(draw, (0.3, 0.7))}
        case _:
            return {"what": "silent", **event, "for_min": float(draw.integers(15, 51))}


def _policies(draw: Draw, spaces: Sequence[Fields], zone: str | None, fleet: Sequence[Fields]) -> Fields:
    """A zone of its own for one tenant, where machines are of several groups; another tenant should not fail together."""
    policies: Fields = {}
    if zone is not None:
        isolation = {"name": "zone", "namespaces": ["zoned"], "primary": [zone], "min_available": 1}
        helpers = {"secondary": [fleet[0]["group"]]} if _chance(draw, 0.5) else {}
        policies["isolation"] = [isolation | helpers]
    policies["anti_affinity"] = [{"name": "apart", "namespaces": [spaces[0]["group"]]}]
    if zone is None or _chance(draw, 0.5):
        pin = {"group": spaces[0]["group"], "namespace": 1, "bundles": [1, 2], "broker": _machine(fleet[0], 1)}
        policies["pins"] = [pin]
    return policies


def _machine(group: Fields, number: int) -> str:
    return f"{group['group']}-{number:0{len(str(group['count']))}d}"


def _chance(draw: Draw, probability: float) -> bool:
    return bool(draw.random() < probability)


def _between(draw: Draw, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return round(low + (high - low) * float(draw.random()), 2)


def _log_whole(draw: Draw, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return min(high, int(low * ((high + 1) / low) ** float(draw.random())))


def _one_of(draw: Draw, values: Sequence[float]) -> float:
    return values[int(draw.integers(len(values)))]


def _toml(fields: Fields) -> str:
    """A scenario as TOML: plain values, then its tables and arrays of tables."""
    return "\n".join(_lines(fields, "")) + "\n"


def _lines(fields: Fields, prefix: str) -> Iterator[str]:
    tables = {name: value for name, value in fields.items() if _is_table(value)}
    yield from (f"{name} = {_value(value)}" for name, value in fields.items() if name not in tables)
    for name, value in tables.items():
        for table in value if isinstance(value, list) else [value]:
            inner = list(_lines(table, f"{prefix}{name}."))
            header = f"[[{prefix}{name}]]" if isinstance(value, list) else f"[{prefix}{name}]"
            yield from ("", header, *inner)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _value(value: Any) -> str:
    """Strings, booleans, numbers and lists of those are written in TOML as in JSON."""
    return orjson.dumps(value).decode()
