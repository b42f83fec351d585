"""Planted bugs in what a caught-up reader does: verdicts, derivation, debts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statechannel.protocol import codec, resolver
from statechannel.protocol import joiner as joiner_module
from statechannel.protocol import view as view_module
from statechannel.protocol.debts import Debts
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from tests.mutants.planting import Patcher, nothing, plant

PROTOCOL = "protocol"


def _judge(patcher: Patcher, change: Callable[[Any, Verdict, Any, Any], Verdict]) -> None:
    """Let `change(judge, verdict, record, key)` say what the verdict is instead."""

    def make(judge: Callable[..., Any]) -> Callable[..., Any]:
        return lambda record, key: change(judge, judge(record, key), record, key)

    patcher.bend(view_module, "judge", make)


def _instead(patcher: Patcher, found: Verdict, said: Verdict) -> None:
    _judge(patcher, lambda _judge, verdict, _record, _key: said if verdict is found else verdict)


def _as_if(
    patcher: Patcher, of: tuple[Verdict, ...], field: str, value: Callable[[Any], Any], *, forced: bool = False
) -> None:
    """Where a verdict is one of these, judge again as if the record had this value."""

    def change(judge: Any, verdict: Verdict, record: Record, key: Any) -> Verdict:
        if verdict not in of or (forced and not record.forced):
            return verdict
        before = getattr(record, field)
        setattr(record, field, value(key))
        again: Verdict = judge(record, key)
        setattr(record, field, before)
        return again

    _judge(patcher, change)


@plant(PROTOCOL, "the base of a proposal is not compared")
def _base_unchecked(patcher: Patcher) -> None:
    _as_if(patcher, (Verdict.WRONG_BASE,), "base", lambda key: key.accepted_id)


@plant(PROTOCOL, "a forced proposal passes whatever its version")
def _forced_past_version(patcher: Patcher) -> None:
    of = (Verdict.VERSION_GAP, Verdict.STALE_VERSION)
    _as_if(patcher, of, "version", lambda key: key.version + 1, forced=True)


@plant(PROTOCOL, "versions may run ahead")
def _version_gap_accepted(patcher: Patcher) -> None:
    _as_if(patcher, (Verdict.VERSION_GAP,), "version", lambda key: key.version + 1)


@plant(PROTOCOL, "the brokers of a move are not compared with the accepted state")
def _wrong_broker_accepted(patcher: Patcher) -> None:
    _instead(patcher, Verdict.WRONG_BROKER, Verdict.ACCEPTED)


@plant(PROTOCOL, "a named broker cannot decline")
def _decline_refused(patcher: Patcher) -> None:
    def change(_judge: Any, verdict: Verdict, record: Record, key: Any) -> Verdict:
        declined = verdict is Verdict.ACCEPTED and key.state is State.ASSIGNING and record.state is State.UNASSIGNED
        return Verdict.ILLEGAL_MOVE if declined and not record.forced else verdict

    _judge(patcher, change)


@plant(PROTOCOL, "a namespace with owned bundles may be deleted")
def _deletion_with_owned_bundles(patcher: Patcher) -> None:
    _instead(patcher, Verdict.NAMESPACE_IN_USE, Verdict.ACCEPTED)


@plant(PROTOCOL, "deletion forgets the highest version of the bundles")
def _highest_version_forgotten(patcher: Patcher) -> None:
    def make(judge: Callable[..., Any]) -> Callable[..., Any]:
        def bent(record: Record, key: Any) -> Any:
            if key.ring is None or not key.is_namespace:
                return judge(record, key)
            before, key.ring.highest = key.ring.highest, key.version
            try:
                return judge(record, key)
            finally:
                key.ring.highest = before

        return bent

    patcher.bend(view_module, "judge", make)


@plant(PROTOCOL, "children need not reach the end of their parent")
def _ring_end_unchecked(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(record: Record, lower: int = 0, upper: int = 0, *, is_namespace: bool = False) -> bool:
            bounds = record.bounds()
            return bounds is not None and len(bounds) >= 3 - is_namespace and bounds[0] == lower and upper >= 0

        return bent

    patcher.bend(resolver, "children_fit", make)


@plant(PROTOCOL, "the duplicate of an accepted record leaves no debt")
def _duplicate_taken_for_clean(patcher: Patcher) -> None:
    _without_debt(patcher, Verdict.DUPLICATE)


@plant(PROTOCOL, "a stale assert leaves no debt")
def _stale_assert_taken_for_clean(patcher: Patcher) -> None:
    _without_debt(patcher, Verdict.ASSERT_STALE)


@plant(PROTOCOL, "a late proposal leaves no debt")
def _stale_version_taken_for_clean(patcher: Patcher) -> None:
    _without_debt(patcher, Verdict.STALE_VERSION)


@plant(PROTOCOL, "what cannot be decoded leaves no debt")
def _undecodable_taken_for_clean(patcher: Patcher) -> None:
    def make(unclean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ledger, key, offset, version: None if version < 0 else unclean(ledger, key, offset, version)

    patcher.bend(Debts, "unclean", make)


def _without_debt(patcher: Patcher, found: Verdict) -> None:
    last = [Verdict.ACCEPTED]

    def change(_judge: Any, verdict: Verdict, _record: Record, _key: Any) -> Verdict:
        last[0] = verdict
        return verdict

    def make(unclean: Callable[..., Any]) -> Callable[..., Any]:
        def bent(*args: Any) -> None:
            if last[0] is not found:
                unclean(*args)

        return bent

    _judge(patcher, change)
    patcher.bend(Debts, "unclean", make)


@plant(PROTOCOL, "any clean record pays, however little it covers")
def _paid_by_too_little(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(ledger: Debts, key: Any, offset: int, _covers: int, _version: int) -> None:
            key.settled = offset
            ledger.open.pop(key, None)

        return bent

    patcher.bend(Debts, "clean", make)


@plant(PROTOCOL, "a clean record need not cover the record that settled before")
def _settled_record_uncovered(patcher: Patcher) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def bent(ledger: Debts, key: Any, offset: int, covers: int, version: int) -> None:
            before, key.settled = key.settled, -1
            clean(ledger, key, offset, covers, version)
            key.settled = max(key.settled, before)

        return bent

    patcher.bend(Debts, "clean", make)


@plant(PROTOCOL, "a clean record of the same version as the unclean one pays without covering it")
def _paid_by_equal_version(patcher: Patcher) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ledger, key, offset, covers, version: clean(ledger, key, offset, covers, version + 1)

    patcher.bend(Debts, "clean", make)


@plant(PROTOCOL, "debts are forgotten with their namespace")
def _debts_die_with_namespace(patcher: Patcher) -> None:
    def make(end_ring: Callable[..., Any]) -> Callable[..., Any]:
        def bent(view: View, ring: Any) -> None:
            for member in (*ring.live.values(), *ring.parents):
                view.ledger.open.pop(member, None)
            end_ring(view, ring)

        return bent

    patcher.bend(View, "_end_ring", make)


@plant(PROTOCOL, "derivation pays the debts of the children")
def _derivation_pays(patcher: Patcher) -> None:
    def make(derive: Callable[..., Any]) -> Callable[..., Any]:
        def bent(view: View, parent: Any) -> Any:
            derived = derive(view, parent)
            for child in parent.ring.live.values() if parent.ring is not None else ():
                if child.record_id == parent.record_id:
                    view.ledger.open.pop(child, None)
            return derived

        return bent

    patcher.bend(View, "derive", make)


@plant(PROTOCOL, "children of a split begin at version 1")
def _children_at_version_one(patcher: Patcher) -> None:
    _derived_at_one(patcher, splits=True)


@plant(PROTOCOL, "bundles of a re-created namespace begin at version 1")
def _version_reset(patcher: Patcher) -> None:
    _derived_at_one(patcher, splits=False)


def _derived_at_one(patcher: Patcher, *, splits: bool) -> None:
    def make(derive: Callable[..., Any]) -> Callable[..., Any]:
        def bent(view: View, parent: Any) -> Any:
            derived = derive(view, parent)
            if parent.ring is None or (parent.lower >= 0) is not splits:
                return derived
            for child in parent.ring.live.values():
                if child.derived and child.record_id == parent.record_id:
                    child.version = 1
            return derived

        return bent

    patcher.bend(View, "derive", make)


@plant(PROTOCOL, "a null settles a key that exists")
def _null_settles_live_key(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(view: View, offset: int, key: Any) -> Judgement:
            view.applied = offset
            key.settled = offset
            view.ledger.open.pop(key, None)
            return Judgement(Verdict.PURGED, None, key)

        return bent

    patcher.bend(View, "_null", make)


@plant(PROTOCOL, "a null takes away a key that is in debt")
def _purge_of_indebted_key(patcher: Patcher) -> None:
    def make(null: Callable[..., Any]) -> Callable[..., Any]:
        def bent(view: View, offset: int, key: Any) -> Any:
            if key.state is None:
                view.ledger.open.pop(key, None)
            return null(view, offset, key)

        return bent

    patcher.bend(View, "_null", make)


@plant(PROTOCOL, "a record of a newer format is taken for junk")
def _newer_format_ignored(patcher: Patcher) -> None:
    patcher.bend(codec, "_unknown_format", lambda _: lambda _number, _newest: codec.Undecodable("not ours"))


@plant(PROTOCOL, "a record in the wrong partition counts")
def _wrong_partition_accepted(patcher: Patcher) -> None:
    def make(partition_of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda namespace, partitions: 0 if partitions > 1 else partition_of(namespace, partitions)

    patcher.bend(view_module, "partition_of", make)


@plant("engine", "a joiner takes children that do not cover their key")
def _joiner_takes_impossible(patcher: Patcher) -> None:
    patcher.bend(joiner_module, "possible", lambda _: lambda _record, _parts: True)


@plant(PROTOCOL, "a namespace's ring is not ended by its deletion")
def _ring_outlives_namespace(patcher: Patcher) -> None:
    patcher.bend(View, "_end_ring", nothing)
