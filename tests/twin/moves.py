"""Fields of proposals and asserts: legal moves on a view, and ways to spoil them."""

# ruff: noqa: SIM114  (one line per line of the normative page)
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

from tests.twin import junk, wire
from tests.twin.judge import State, live_bundles

MAX_INT = 2**53 - 1


def next_move(
    rng: Random, key: str, held: State | None, ring: dict[str, State], broker: Callable[[], str], *, draining: bool
) -> dict[str, Any]:
    """Return the fields of a proposal that is legal where `key` is in state `held`.

    Args:
        rng: picks among the legal moves.
        key: a namespace, or one of its live bundles.
        held: its accepted state.
        ring: all accepted states of the namespace.
        broker: picks a broker.
        draining: whether the namespace is on its way to being deleted.
    """
    if key.count("/") == 1:
        return _namespace_move(rng, held, ring)
    if held is None:
        raise ValueError(f"{key} is not in the ring")
    fields: dict[str, Any] = {"version": held.version + 1, "base": held.id}
    if rng.random() < 0.06:
        return fields | _forced(rng, broker)
    source, to, state = held.source, held.to, held.state
    roll = rng.random()
    if state == "Unassigned":
        return fields | _to("Assigning", None, broker(), "own", "assignment")
    if state == "Assigning":
        if draining or roll < 0.1:
            return fields | _to("Unassigned", to, None, "own", "assignment")
        return fields | _to("Assigned", source, to, "return", "assignment")
    if state == "Assigned":
        if draining or roll < 0.2:
            return fields | _to("Releasing", to, None, "unload", "unload")
        if roll < 0.5 and (other := broker()) != to:
            return fields | _to("Releasing", to, other, "transfer", "transfer")
        if roll < 0.65:
            return fields | _to("Assigned", None, to, "resume", "assignment")
        return fields | _to("Splitting", to, None, "split", "split")
    if state == "Releasing":
        if roll < 0.15 and not draining:
            return fields | _to("Assigned", None, source, "transfer", "transfer")
        if to is None:
            return fields | _to("Unassigned", source, None, "unload", "unload")
        return fields | _to("Assigning", source, to, "transfer", "transfer")
    children = cut(rng, key.rsplit("/", 1)[1], rng.choice([2, 2, 2, 3, 5]))
    if roll < 0.2 or len(children) < 2 or draining:
        return fields | _to("Assigned", None, source, "split", "split")
    return fields | _to("Deleted", source, None, "split", "split") | {"children": children}


def _to(state: str, source: str | None, to: str | None, action: str, flow: str) -> dict[str, Any]:
    return {"state": state, "action": action, "flow": flow, "from": source, "to": to}


def _forced(rng: Random, broker: Callable[[], str]) -> dict[str, Any]:
    lost = {"lost": {"broker": broker(), "incarnation": "i1", "last_heard_ms": 5}, "forced": True}
    source = rng.choice([None, broker()])
    if rng.random() < 0.5:
        return _to("Unassigned", source, None, "repair", "repair") | lost
    return _to("Assigning", source, broker(), "repair", "repair") | lost


def _namespace_move(rng: Random, held: State | None, ring: dict[str, State]) -> dict[str, Any]:
    if held is not None and held.state == "Active":
        versions = [state.version for state in live_bundles(ring).values()]
        version = 1 + max([held.version, *versions])
        return {"version": version, "base": held.id, "state": "Deleted", "action": "delete"}
    version = held.version + 1 if held else 1
    if held is None and rng.random() < 0.25:
        version = rng.choice([2, 40, rng.randint(1, 10**6), 10**15, MAX_INT - 9])
    count = rng.choice([1, 1, 2, 2, 3, 4, 8])
    children = cut(rng, "0x00000000_0xffffffff", count)
    if rng.random() < 0.003:
        children = junk.children_of_number(rng.choice([wire.MAX_CHILDREN, wire.MAX_CHILDREN + 1]))
    created = {"version": version, "base": held.id if held else None, "state": "Active"}
    return created | {"action": "create", "flow": "namespace", "children": children}


def cut(rng: Random, whole: str, count: int) -> list[str]:
    """Return up to `count` children that cover `whole`: even, ragged, or one of them tiny."""
    low, high = wire.bounds(whole)
    if rng.random() < 0.5:
        cuts = {low + (high - low) * index // count for index in range(count + 1)}
    elif rng.random() < 0.5:
        cuts = {low, high, min(low + 1, high), max(high - 1, low)}
    else:
        cuts = {low, high, *(rng.randint(low, high) for _ in range(count - 1))}
    ordered = sorted(cuts)
    return [f"0x{a:08x}_0x{b:08x}" for a, b in pairwise(ordered)]


def restated(key: str, held: State | None) -> dict[str, Any]:
    """Return the fields of the assert that restates `held`."""
    bundle = key.count("/") == 2
    if held is None:
        fields: dict[str, Any] = {"version": 0, "asserts": None, "state": "Absent"}
        return fields | ({"from": None, "to": None} if bundle else {})
    fields = {"version": held.version, "asserts": held.id, "state": held.state}
    if bundle:
        fields |= {"from": held.source, "to": held.to}
    if held.children is not None:
        fields["children"] = list(held.children)
    return fields


# Spoiling --------------------------------------------------------------------------------


def spoil(
    rng: Random, key: str, fields: dict[str, Any], states: dict[str, State], broker: str
) -> tuple[str, dict[str, Any]]:
    """Return the proposal with one thing wrong that still decodes."""
    fields = dict(fields)
    way = 8 if "children" in fields and rng.random() < 0.4 else rng.randrange(14)
    bundle = key.count("/") == 2
    version = fields["version"]
    if way == 0:
        fields["version"] = max(0, version - rng.choice([1, 1, 2, version]))
    elif way == 1:
        fields["version"] = min(MAX_INT, version + rng.choice([1, 1, 5, MAX_INT]))
    elif way == 2:
        fields["base"] = rng.choice([None, "zz", f"zz/{junk.RANGE}", fields["id"]])
    elif way == 3 and bundle:
        fields |= {"state": rng.choice(wire.BUNDLE_STATES[:5])}
    elif way == 4 and bundle:
        fields["from"] = rng.choice([None, broker, "nobody", fields["to"]])
    elif way == 5 and bundle:
        fields["to"] = rng.choice([None, broker, "nobody", fields["from"]])
    elif way == 6:
        fields["forced"] = True
    elif way == 7:
        key = _other_key(rng, key, states)
    elif way == 8 and not bundle and fields["state"] == "Active":
        fields["children"] = bad_children(rng, fields["children"])
    elif way in (8, 9) and "children" in fields and bundle:
        fields["children"] = bad_children(rng, fields["children"])
    elif way in (9, 10) and not bundle:
        other = "Deleted" if fields["state"] == "Active" else "Active"
        fields |= {"state": other, "children": ["0x00000000_0xffffffff"]}
    elif way == 11:
        fields["covers"] = rng.choice([-1, 0, MAX_INT, fields["covers"] + 5])
    elif way == 12:
        key, fields = _delete_in_use(rng, key, fields, states)
    else:
        key, fields = _crossed_move(rng, key, fields, states, broker)
    return key, fields


def _crossed_move(
    rng: Random, key: str, fields: dict[str, Any], states: dict[str, State], broker: str
) -> tuple[str, dict[str, Any]]:
    """Any move of any bundle of the ring, with the version and base that fit."""
    name = "/".join(key.split("/")[:2])
    bundles = [k for k in states if k.startswith(f"{name}/")]
    if not bundles:
        return key, fields
    key = rng.choice(sorted(bundles))
    held = states[key]
    brokers = [None, broker, held.source, held.to]
    head = {part: fields[part] for part in ("format", "kind", "id", "covers", "by")}
    head |= {"version": held.version + 1, "base": held.id, "forced": rng.random() < 0.2}
    state = rng.choice(wire.BUNDLE_STATES)
    head |= _to(state, rng.choice(brokers), rng.choice(brokers), "x", "y")
    children = cut(rng, key.rsplit("/", 1)[1], rng.choice([1, 2, 3]))
    return key, head | {"children": children}


def _other_key(rng: Random, key: str, states: dict[str, State]) -> str:
    name = "/".join(key.split("/")[:2])
    deleted = [k for k, state in states.items() if k.count("/") == 2 and state.state == "Deleted"]
    never = [f"{name}/0x00000000_0x00000001", f"{name}/0xffffffff_0x00000000"]
    never.append(f"{name}/0x80000000_0x80000000")
    same = [k for k in states if f"{k}/".startswith(f"{name}/") and k.count("/") == key.count("/")]
    return rng.choice([*never, *same, *deleted] if key.count("/") == 2 else [*same, "new/ns"])


def _delete_in_use(
    rng: Random, key: str, fields: dict[str, Any], states: dict[str, State]
) -> tuple[str, dict[str, Any]]:
    """Delete an Active namespace with the version and base that fit, in use or not."""
    name = "/".join(key.split("/")[:2])
    held = states.get(name)
    if held is None or held.state != "Active":
        return key, fields
    ring = {k: state for k, state in states.items() if k.startswith(f"{name}/")}
    head = {part: fields[part] for part in ("format", "kind", "id", "covers", "by")}
    return name, head | _namespace_move(rng, held, ring)


def bad_children(rng: Random, children: list[str]) -> list[str]:
    """Return children of the right letters that do not cover what they should."""
    if not children:
        return list(children)
    bent = list(children)
    at = rng.randrange(len(bent))
    way = rng.randrange(7)
    if way == 0:
        return []
    if way == 1:
        return bent[1:] if rng.random() < 0.5 else bent[:-1]
    if way == 2:
        return bent[::-1] + bent[:1]
    if way == 3:
        bent.insert(at, bent[at])
    elif way == 4:
        low, high = bent[at].split("_")
        bent[at] = f"{high}_{low}"
    elif way == 5:
        low, _ = bent[at].split("_")
        bent.insert(at, f"{low}_{low}")
    else:
        return [f"{bent[0].split('_')[0]}_{bent[-1].split('_')[1]}"]
    return bent


def lie(rng: Random, key: str, fields: dict[str, Any], states: dict[str, State], broker: str) -> dict[str, Any]:
    """Return an assert that restates what is not so."""
    fields = dict(fields)
    bundle = key.count("/") == 2
    way = rng.randrange(6)
    if way == 0:
        fields["version"] = rng.choice([0, fields["version"] + 1, fields["version"] + 50])
    elif way == 1:
        fields["asserts"] = rng.choice(["zz", f"zz/{junk.RANGE}", None])
    elif way == 2:
        fields |= {"state": "Absent", "version": rng.choice([0, 0, 3]), "asserts": None}
    elif way == 3 and bundle:
        fields |= {"state": rng.choice(wire.BUNDLE_STATES[:5]), "to": broker}
    elif way == 4 and bundle:
        fields |= {"from": broker}
    elif "children" in fields:
        fields["children"] = bad_children(rng, fields["children"])
    fields["covers"] = rng.choice([fields["covers"], fields["covers"], -1, MAX_INT])
    return fields
