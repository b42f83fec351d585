"""Pins of bundles to brokers. A pin also holds for the parts of its bundle, which may have been split since."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shedders.model.cluster import Bundle, Policies
from statechannel.protocol.bundle import parse_key

_Parent = tuple[int, int, str]  # bounds and name of a bundle


def pin_of(policies: Policies, bundle: Bundle) -> str | None:
    """The broker that a bundle is pinned to: by itself, else by its namespace."""
    pins = policies.pins
    if not pins:
        return None
    return pins.get(bundle.name, pins.get(bundle.namespace))


def inherited(policies: Policies, bundles: Collection[str]) -> Policies:
    """The policies with each pin of a bundle that no longer exists extended to its parts.

    A part's own pin takes precedence over its parent's, and that of a smaller parent over that of a larger one.

    Args:
        bundles: Names of all that exist; searched only if there is such a pin.
    """
    gone = _gone(policies, bundles)
    if not gone:
        return policies
    pins = dict(policies.pins)
    for name in bundles:
        if name not in policies.pins and (around := _around(name, gone)):
            pins[name] = policies.pins[min(around, key=lambda parent: parent[1] - parent[0])[2]]
    return policies if len(pins) == len(policies.pins) else replace(policies, pins=pins)


def split_up(policies: Policies, bundles: Collection[str]) -> frozenset[str]:
    """Pins of bundles that no longer exist and whose parts are pinned (`inherited`)."""
    gone = _gone(policies, bundles)
    parts = [name for name in policies.pins if name in bundles] if gone else []
    return frozenset(parent for name in parts for _, _, parent in _around(name, gone))


def _gone(policies: Policies, bundles: Collection[str]) -> dict[str, list[_Parent]]:
    """By namespace, the pinned bundles that do not exist."""
    gone: dict[str, list[_Parent]] = {}
    for name in policies.pins:
        if name not in bundles:
            parts = parse_key(name.encode())
            if parts is not None and not parts.is_namespace:
                gone.setdefault(parts.namespace, []).append((parts.lower, parts.upper, name))
    return gone


def _around(name: str, gone: Mapping[str, Sequence[_Parent]]) -> list[_Parent]:
    parents = gone.get(name.rpartition("/")[0])
    parts = None if parents is None else parse_key(name.encode())
    if parents is None or parts is None:
        return []
    return [parent for parent in parents if parent[0] <= parts.lower and parts.upper <= parent[1]]
