"""Rows of brokers, namespaces and bundles as JSON has them: those of the command line and of the admin API are made here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from typing_extensions import TypedDict

from statechannel.engine.kafka_limits import QUOTAS
from statechannel.engine.membership import LostMember, Member, Membership
from statechannel.engine.replica_differences import reported_differences
from statechannel.engine.troubles import UnplacedCause
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import IN_FLIGHT, State

_AGO_MAX_MS: Final = 10**14


class BundleRow(TypedDict):
    """A live bundle: who serves it, who is to serve it next, and the record that made the state."""

    bundle: str
    state: str | None
    owner: str | None
    next: str | None
    generation: int | None
    version: int
    id: str | None
    operation: str | None
    flow: str | None
    offset: int


class NamespaceRow(TypedDict):
    """A namespace, with the numbers of its live bundles."""

    namespace: str
    version: int
    bundles: int
    served: int
    in_flight: int


class NamespaceDetails(TypedDict):
    """States and owners of a namespace's bundles, by number."""

    splits: int
    created_by: str | None
    operation: str | None
    states: dict[str, int]
    owners: dict[str, int]


class BrokerRow(TypedDict):
    """A broker that is alive, or lost and not back."""

    broker: str
    incarnation: str
    state: str
    mode: str | None
    phase: str | None
    accepting: bool
    draining: bool
    leading: bool
    bundles: int
    lag_records: int | None
    heard_ago_ms: int
    started_at_ms: int | None
    software: str | None
    extensions: list[str] | None
    urls: dict[str, str]
    http: str | None
    api: str | None
    blocked: dict[str, Any] | None
    hooks_failed: dict[str, dict[str, Any]]
    unplaced: dict[str, Any] | None
    throttled: dict[str, Any] | None
    refused: dict[str, Any] | None
    partitions: int | None
    differs: list[dict[str, Any]]


def bundle_row(key: KeyState) -> BundleRow:
    bound_for = key.bound_for
    return {
        "bundle": key.name,
        "state": None if key.state is None else key.state.value,
        "owner": key.owner,
        "next": bound_for if bound_for != key.owner else None,
        "generation": key.generation,
        "version": key.version,
        "id": key.accepted_id,
        "operation": key.operation,
        "flow": key.flow,
        "offset": key.offset,
    }


def was_asked_for(key: KeyState) -> bool:
    """Whether a bundle had an owner, or should have got one: nothing precedes its first lookup."""
    return key.state is not State.UNASSIGNED or key.from_ is not None


def namespace_row(key: KeyState) -> NamespaceRow:
    live = [] if key.ring is None else list(key.ring.live.values())
    return {
        "namespace": key.name,
        "version": key.version,
        "bundles": len(live),
        "served": sum(bundle.owner is not None for bundle in live),
        "in_flight": sum(bundle.state in IN_FLIGHT for bundle in live),
    }


def namespace_details(key: KeyState) -> NamespaceDetails:
    ring = key.ring
    live = [] if ring is None else list(ring.live.values())
    states = Counter(bundle.state.value for bundle in live if bundle.state is not None)
    owners = Counter(bundle.owner for bundle in live if bundle.owner is not None)
    return {
        "splits": 0 if ring is None else len(ring.parents),
        "created_by": None if key.writer is None else key.writer.broker,
        "operation": key.operation,
        "states": dict(sorted(states.items())),
        "owners": dict(sorted(owners.items())),
    }


def leader_of(members: Membership) -> str | None:
    """The broker that claims leadership; with two, the newest claim."""
    leading = [member for member in members.alive.values() if member.info.get("leading") is True]
    newest = max(leading, key=lambda member: member.heard_at_ms, default=None)
    return None if newest is None else newest.broker


def leader_api_of(members: Membership) -> str | None:
    """URL of the admin API of the leader; None where it serves none, or no leader is known."""
    leader = leader_of(members)
    return None if leader is None else members.alive[leader].api_url


def partitions_of(member: Member) -> int | None:
    """Over how many partitions of the channel it distributes keys."""
    applied = member.info.get("applied")
    return len(applied) if isinstance(applied, dict) and applied else None


def broker_rows(
    members: Membership,
    owned: Mapping[str, int],
    applied: Mapping[int, int],
    silent_ms: Callable[[Member | LostMember], int],
) -> list[BrokerRow]:
    """Every member, the lost ones last.

    Args:
        owned: Bundles that each broker serves.
        applied: Offset through which the reader has read each partition.
        silent_ms: Time since a member was last heard.
    """
    leader = leader_of(members)
    rows = [
        _alive(member, owned.get(name, 0), applied, max(0, silent_ms(member)), leading=name == leader)
        for name, member in sorted(members.alive.items())
    ]
    for name, lost in sorted(members.lost.items()):
        left = (lost.broker, lost.incarnation) in members.gone
        rows.append(_lost(lost, "left" if left else "lost", owned.get(name, 0), max(0, silent_ms(lost))))
    return rows


def _lost(lost: LostMember, state: str, bundles: int, silent_ms: int) -> BrokerRow:
    return {
        "broker": lost.broker,
        "incarnation": lost.incarnation,
        "state": state,
        "mode": None,
        "phase": None,
        "accepting": False,
        "draining": False,
        "leading": False,
        "bundles": bundles,
        "lag_records": None,
        "heard_ago_ms": silent_ms,
        "started_at_ms": None,
        "software": None,
        "extensions": None,
        "urls": {},
        "http": None,
        "api": None,
        "blocked": None,
        "hooks_failed": {},
        "unplaced": None,
        "throttled": None,
        "refused": None,
        "partitions": None,
        "differs": [],
    }


def _alive(member: Member, bundles: int, applied: Mapping[int, int], silent_ms: int, *, leading: bool) -> BrokerRow:
    info = member.info
    started_ms = info.get("started_at_ms")
    return {
        "broker": member.broker,
        "incarnation": member.incarnation,
        "state": "draining" if info.get("draining") is True else "alive",
        "mode": _text(info.get("mode")),
        "phase": _text(info.get("phase")),
        "accepting": member.accepting,
        "draining": info.get("draining") is True,
        "leading": leading,
        "bundles": bundles,
        "lag_records": _lag(info.get("applied"), applied),
        "heard_ago_ms": silent_ms,
        "started_at_ms": started_ms if type(started_ms) is int else None,
        "software": _text(info.get("software")),
        "extensions": None if member.extensions is None else sorted(member.extensions),
        "urls": dict(member.urls),
        "http": _text(info.get("http")),
        "api": member.api_url,
        "blocked": _blocked(info, silent_ms),
        "hooks_failed": _hooks_failed(info, silent_ms),
        "unplaced": _unplaced(info, silent_ms),
        "throttled": _throttled(info, silent_ms),
        "refused": _refused(info, silent_ms),
        "partitions": partitions_of(member),
        "differs": reported_differences(info.get("differs")),
    }


def _blocked(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """How often the event loop was blocked, and how long ago, by the broker's own clock and the time since it was heard."""
    blocked, sent_ms = info.get("blocked"), info.get("sent_at_ms")
    if not isinstance(blocked, dict) or type(sent_ms) is not int or type(blocked.get("at_ms")) is not int:
        return None
    times, blocked_s, place, hook = (blocked.get(name) for name in ("times", "seconds", "place", "hook"))
    if type(times) is not int or not isinstance(blocked_s, int | float) or not isinstance(place, str):
        return None
    return {
        "times": times,
        "seconds": blocked_s,
        "place": place,
        "hook": hook if isinstance(hook, str) else None,
        "ago_ms": _ago_ms(sent_ms, blocked["at_ms"], silent_ms),
    }


def _hooks_failed(info: Mapping[str, Any], silent_ms: int) -> dict[str, dict[str, Any]]:
    """Failures by hook, as far as they are well-formed."""
    hooks = info.get("hooks_failed")
    failures = (
        {name: _aged(info, fields, silent_ms) for name, fields in hooks.items()} if isinstance(hooks, dict) else {}
    )
    return {
        name: failed
        for name, failed in failures.items()
        if failed is not None and _has(failed, {"times": int, "since_ms": int, "bundle": str, "error": str})
    }


def _unplaced(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """Bundles for which its placement found no broker."""
    fields = _aged(info, info.get("unplaced"), silent_ms)
    kinds = {"bundles": int, "bundle": str, "reason": str, "message": str, "since_ms": int}
    if fields is None or not _has(fields, kinds):
        return None
    known = [cause for cause in UnplacedCause if cause == fields.get("cause")]  # brokers of older versions do not say
    return fields | {"cause": known[0] if known else UnplacedCause.POLICIES}


def _throttled(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """Its client that Kafka throttles most."""
    fields = _aged(info, info.get("throttled"), silent_ms)
    kinds = {"client": str, "kind": str, "throttled_ms": int, "window_ms": int, "since_ms": int}
    return fields if fields is not None and _has(fields, kinds) and fields["kind"] in QUOTAS else None


def _refused(info: Mapping[str, Any], silent_ms: int) -> dict[str, Any] | None:
    """The records that Kafka last refused for good."""
    fields = _aged(info, info.get("refused"), silent_ms)
    kinds = {"reason": str, "code": str, "topic": str, "message": str, "times": int, "since_ms": int}
    return fields if fields is not None and _has(fields, kinds) else None


def _aged(info: Mapping[str, Any], fields: object, silent_ms: int) -> dict[str, Any] | None:
    """The fields with `ago_ms` in place of `at_ms`, by the broker's own clock and the time since it was heard."""
    sent_ms = info.get("sent_at_ms")
    if not isinstance(fields, dict) or type(sent_ms) is not int or type(fields.get("at_ms")) is not int:
        return None
    kept = {name: value for name, value in fields.items() if name != "at_ms"}
    return kept | {"ago_ms": _ago_ms(sent_ms, fields["at_ms"], silent_ms)}


def _ago_ms(sent_ms: int, at_ms: int, silent_ms: int) -> int:
    """Bounded, as numbers of JSON are: both times come from the registry, to which anybody may write."""
    return min(_AGO_MAX_MS, max(0, sent_ms - at_ms) + silent_ms)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _has(fields: Mapping[str, Any], kinds: Mapping[str, type]) -> bool:
    return all(type(fields.get(name)) is kind for name, kind in kinds.items())


def _lag(reported: object, applied: Mapping[int, int]) -> int | None:
    """Records between the member's last heartbeat and the end of the log; heartbeats on the channel count."""
    if not isinstance(reported, dict):
        return None
    lag = 0
    for partition, through in applied.items():
        at = reported.get(str(partition))
        lag += max(0, through - max(at, -1)) if type(at) is int else 0
    return lag
