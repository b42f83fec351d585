"""Where bundles are pinned to. A pin holds for the parts of its bundle, too: whoever pinned it did not know of the split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shedders.model.cluster import Bundle, Policies
from statechannel.protocol.bundle import parse_key

_Parent = tuple[int, int, str]
"""Bounds and name of a bundle."""


def pin_of(policies: Policies, bundle: Bundle) -> str | None:
    """Where a bundle is pinned to: by itself, else by its namespace."""
    pins = policies.pins
    if not pins:
        return None
    return pins.get(bundle.name, pins.get(bundle.namespace))


def inherited(policies: Policies, bundles: Collection[str]) -> Policies:
    """The policies with each pin of a bundle that is there no more laid on its parts as well.

    A part's own pin stands over its parent's, and that of a smaller parent over that of a larger one.

    Args:
        bundles: Names of all that are there; looked through only where such a pin exists.
    """
    gone = _gone(policies, bundles)
    if not gone:
        return policies
    found = dict(policies.pins)
    for name in bundles:
        if name not in policies.pins and (around := _around(name, gone)):
            found[name] = policies.pins[min(around, key=lambda one: one[1] - one[0])[2]]
    return policies if len(found) == len(policies.pins) else replace(policies, pins=found)


def split_up(policies: Policies, bundles: Collection[str]) -> frozenset[str]:
    """Pins of bundles that are there no more, and whose parts are pinned (`inherited`)."""
    gone = _gone(policies, bundles)
    parts = [name for name in policies.pins if name in bundles] if gone else []
    return frozenset(parent for name in parts for _, _, parent in _around(name, gone))


def _gone(policies: Policies, bundles: Collection[str]) -> dict[str, list[_Parent]]:
    """By namespace, the pinned bundles that are not there."""
    found: dict[str, list[_Parent]] = {}
    for name in policies.pins:
        if name not in bundles:
            parts = parse_key(name.encode())
            if parts is not None and not parts.is_namespace:
                found.setdefault(parts.namespace, []).append((parts.lower, parts.upper, name))
    return found


def _around(name: str, gone: Mapping[str, Sequence[_Parent]]) -> list[_Parent]:
    parents = gone.get(name.rpartition("/")[0])
    parts = None if parents is None else parse_key(name.encode())
    if parents is None or parts is None:
        return []
    return [one for one in parents if one[0] <= parts.lower and parts.upper <= one[1]]
