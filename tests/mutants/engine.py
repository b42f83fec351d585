"""Planted bugs in brokers: reactions, duties, presence, answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statechannel.engine import context as context_module
from statechannel.engine import owner_cache
from statechannel.engine.cold_start import ColdStart
from statechannel.engine.commands import Owned, Undetermined
from statechannel.engine.context import Context, Mode
from statechannel.engine.inputs import Appended
from statechannel.engine.lease import Lease
from statechannel.engine.lookups import Lookups
from statechannel.engine.maintenance import Maintenance
from statechannel.engine.membership import Membership
from statechannel.engine.names import locate
from statechannel.engine.owner_cache import OwnerCache
from statechannel.engine.presence import Presence
from statechannel.engine.proposals import ProposalResult, Proposals, ProposalStatus
from statechannel.engine.provenance import OwnIds, Provenance
from statechannel.engine.reactions import DueReaction, Reactions, ServedBundle
from statechannel.engine.repair import Repair
from statechannel.engine.shutdown import Departure
from statechannel.engine.streams import Streams
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.keys import Writer
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import State
from statechannel.sim import wire
from tests.mutants.planting import Patcher, nothing, plant

ENGINE, INTERLEAVINGS = "engine", "interleavings"
OBSERVER_INCARNATION = "i0"


@plant(ENGINE, "nobody pays debts")
def _no_assert_paid(patcher: Patcher) -> None:
    patcher.bend(Maintenance, "_pay", nothing)


@plant(ENGINE, "heartbeats say clean although there is debt")
def _clean_heartbeat_in_debt(patcher: Patcher) -> None:
    def make(beat: Callable[..., Any]) -> Callable[..., Any]:
        def bent(duties: Any, replica: Any, **how: Any) -> None:
            ledger = replica.view.ledger
            before, ledger.open = ledger.open, {}
            beat(duties, replica, **how)
            ledger.open = before

        return bent

    patcher.bend(Maintenance, "_beat", make)


@plant(ENGINE, "nobody writes heartbeats")
def _no_heartbeats(patcher: Patcher) -> None:
    patcher.bend(Maintenance, "_beat", nothing)


class _AnyProcess(Writer):
    """A writer that equals every process of its broker."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Writer) and other.broker == self.broker

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.broker)


@plant(ENGINE, "a process serves by the record of another process of its broker id")
def _serving_by_anothers_record(patcher: Patcher) -> None:
    patcher.put(context_module, "Writer", _AnyProcess)
    patcher.bend(OwnIds, "issued", lambda _: lambda _ids, _record_id: True)  # its ids alone would show it as well


@plant(ENGINE, "a broker serves as soon as it is named, before the verdict on its own record")
def _serving_before_the_verdict(patcher: Patcher) -> None:
    def make(write: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, name: str, task: Any, key: Any) -> None:
            if task.due in (DueReaction.RETURN, DueReaction.RESUME):
                reactions.holdings[name] = ServedBundle(generation=key.version + 1)
            write(reactions, name, task, key)

        return bent

    patcher.bend(Reactions, "_write", make)


@plant(ENGINE, "a new process goes on at the generation of its predecessor")
def _resumed_at_the_same_generation(patcher: Patcher) -> None:
    def make(due: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, key: Any) -> Any:
            found = due(reactions, key)
            if found is DueReaction.RESUME:
                reactions.holdings[key.name] = ServedBundle(generation=key.version)
                return None
            return found

        return bent

    patcher.bend(Reactions, "due", make)


def _never_due(patcher: Patcher, *ignored: DueReaction) -> None:
    def make(due: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, key: Any) -> Any:
            found = due(reactions, key)
            return None if found in ignored else found

        return bent

    patcher.bend(Reactions, "due", make)


@plant(ENGINE, "a restarted process does not resume what its predecessor owned")
def _no_resume(patcher: Patcher) -> None:
    _never_due(patcher, DueReaction.RESUME)


@plant(ENGINE, "a restarted splitter does not give up")
def _split_never_given_up(patcher: Patcher) -> None:
    _never_due(patcher, DueReaction.GIVE_UP)


@plant(ENGINE, "a source keeps serving after it was told to let go")
def _source_serves_on(patcher: Patcher) -> None:
    def make(settle: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, name: str, key: Any) -> None:
            gone = key is None or key.to != reactions._context.identity.broker
            if gone and reactions.holdings.get(name, ServedBundle()).generation is not None:
                return
            settle(reactions, name, key)

        return bent

    patcher.bend(Reactions, "_settle", make)


@plant(ENGINE, "writes are taken while a bundle is released or split")
def _writes_to_the_end(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, name: str) -> int | None:
            return reactions.generation(name)

        return bent

    patcher.bend(Reactions, "writing_generation", make)


@plant(ENGINE, "a hook that hangs holds its bundle for ever")
def _hook_deadline_ignored(patcher: Patcher) -> None:
    def make(tick: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any) -> None:
            for task in reactions.tasks.values():
                task.deadline_s = 1e12
            tick(reactions)

        return bent

    patcher.bend(Reactions, "tick", make)


@plant(ENGINE, "a hook that raises is logged, and nothing follows")
def _hook_failure_only_logged(patcher: Patcher) -> None:
    patcher.bend(Reactions, "_hooks_failed", nothing)


@plant(ENGINE, "reactions are not retried when their record came to nothing")
def _reaction_not_retried(patcher: Patcher) -> None:
    patcher.bend(Reactions, "tick", nothing)


@plant(ENGINE, "states that name this broker at the end of its join are not acted on")
def _reaction_lost_at_the_switch(patcher: Patcher) -> None:
    patcher.bend(Reactions, "view_replaced", nothing)


@plant(ENGINE, "a time-out of a lookup is answered with the last owner known")
def _stale_owner_on_time_out(patcher: Patcher) -> None:
    asked: dict[int, str] = {}

    def remember(look_up: Callable[..., Any]) -> Callable[..., Any]:
        def bent(lookups: Any, token: int, command: Any) -> None:
            asked[token] = command.name
            look_up(lookups, token, command)

        return bent

    def make(complete: Callable[..., Any]) -> Callable[..., Any]:
        def bent(context: Any, token: int, outcome: Any) -> None:
            if isinstance(outcome, Undetermined) and outcome.reason in ("timed-out", "owner-not-heard"):
                key: Any = locate(context, asked.pop(token))
                broker = getattr(key, "from_", None) or getattr(key, "to", None)
                if broker is not None:
                    outcome = Owned(key.name, broker, key.version)
            complete(context, token, outcome)

        return bent

    patcher.bend(Lookups, "look_up", remember)
    patcher.bend(Context, "complete", make)


@plant(ENGINE, "an answer from an old view names a lost owner")
def _lost_owner_named(patcher: Patcher) -> None:
    def make(owned: Callable[..., Any]) -> Callable[..., Any]:
        def bent(lookups: Any, key: Any) -> Any:
            answer = owned(lookups, key)
            context, age_s = lookups._context, lookups._stale_age_s(key.namespace)
            if age_s is None or None in (key.owner, key.generation) or key.owner in context.members.alive:
                return answer
            return Owned(key.name, key.owner, key.generation, {}, age_s), "", answer[2]

        return bent

    patcher.bend(Lookups, "_owned", make)


@plant(ENGINE, "an observer calls no broker lost", needs="observer")
def _observer_trusts_the_silent(patcher: Patcher) -> None:
    def make(expire: Callable[..., Any]) -> Callable[..., Any]:
        def bent(members: Any, now_s: float, *, keep: str, **how: Any) -> Any:
            return [] if keep == OBSERVER_INCARNATION else expire(members, now_s, keep=keep, **how)

        return bent

    patcher.bend(Membership, "expire", make)


@plant(ENGINE, "an observer takes itself for a member", needs="observer")
def _observer_announces_itself(patcher: Patcher) -> None:
    def make(announce: Callable[..., Any]) -> Callable[..., Any]:
        def bent(presence: Any, now_s: float) -> None:
            context = presence._context
            if context.config.observes and context.listening_since_s is not None:
                context.announced = True
                presence._send()
            announce(presence, now_s)

        return bent

    patcher.bend(Presence, "_maybe_announce", make)


@plant(ENGINE, "an append whose report is an error counts as not written")
def _unknown_treated_as_failed(patcher: Patcher) -> None:
    def make(failed: Callable[..., Any]) -> Callable[..., Any]:
        def bent(proposals: Any, report: Any) -> None:
            pending = proposals._pending.get(report.token)
            if pending is None:
                failed(proposals, report)
            else:
                proposals._finish(pending, ProposalResult(ProposalStatus.NOT_WRITTEN))

        return bent

    patcher.bend(Proposals, "append_failed", make)


@plant(ENGINE, "a delivery report counts as acceptance")
def _delivered_means_accepted(patcher: Patcher) -> None:
    def make(appended: Callable[..., Any]) -> Callable[..., Any]:
        def bent(proposals: Any, report: Any) -> None:
            pending = proposals._pending.get(report.token)
            if pending is None:
                appended(proposals, report)
            else:
                proposals._finish(pending, ProposalResult(ProposalStatus.ACCEPTED, None, report.offset))

        return bent

    patcher.bend(Proposals, "appended", make)


@plant(ENGINE, "the periodic repair died of an exception that was only logged")
def _repair_died(patcher: Patcher) -> None:
    patcher.bend(Repair, "tick", nothing)


@plant(ENGINE, "what a shutdown leaves without an owner waits for a lookup", end="joint_shutdowns")
def _shutdown_leaves_bundles(patcher: Patcher) -> None:
    def make(orphaned: Callable[..., Any]) -> Callable[..., Any]:
        return lambda repair, key: None if key.state is State.UNASSIGNED else orphaned(repair, key)

    patcher.bend(Repair, "_orphaned", make)


@plant(ENGINE, "the registry is not expired at all")
def _nobody_expires(patcher: Patcher) -> None:
    patcher.bend(Membership, "expire", lambda _: lambda _members, _now_s, **_how: [])


@plant(ENGINE, "a member that was paused or cut off holds the silence against the others")
def _expiry_while_cut_off(patcher: Patcher) -> None:
    def make(check: Callable[..., Any]) -> Callable[..., Any]:
        return lambda presence, now_s: (
            None if presence._context.registry_mode is Mode.NORMAL else check(presence, now_s)
        )

    patcher.bend(Presence, "_check_mode", make)
    patcher.bend(Repair, "members_lost", nothing)  # the doubt at a mass loss would hide it


@plant(ENGINE, "a leader acts before its registry record is read back")
def _leader_before_its_term(patcher: Patcher) -> None:
    def make(changed: Callable[..., Any]) -> Callable[..., Any]:
        def bent(presence: Any, *, elected: bool) -> None:
            changed(presence, elected=elected)
            if elected:
                presence._context.term = 0

        return bent

    patcher.bend(Presence, "elected_changed", make)


@plant(ENGINE, "a process that lost its seat goes on leading")
def _leader_for_ever(patcher: Patcher) -> None:
    def make(changed: Callable[..., Any]) -> Callable[..., Any]:
        return lambda presence, *, elected: changed(presence, elected=elected) if elected else None

    patcher.bend(Presence, "elected_changed", make)


@plant(ENGINE, "the lease is not kept")
def _lease_ignored(patcher: Patcher) -> None:
    patcher.bend(Lease, "tick", nothing)


@plant(ENGINE, "nobody starts cold")
def _no_cold_start(patcher: Patcher) -> None:
    patcher.bend(ColdStart, "due", lambda _: lambda _cold_start: False)


@plant(ENGINE, "any member starts cold, although others are caught up")
def _cold_start_of_its_own(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda cold: any(replica.phase == "waiting" for replica in cold._context.replicas)

    patcher.bend(ColdStart, "due", make)


@plant(ENGINE, "a cold leader acts before its mark is in the log")
def _cold_start_unmarked(patcher: Patcher) -> None:
    def make(go_on: Callable[..., Any]) -> Callable[..., Any]:
        def bent(cold: Any, partition: int, run: Any) -> None:
            go_on(cold, partition, run)
            if partition in cold.running:
                cold._end(partition)

        return bent

    patcher.bend(ColdStart, "_continue", make)


@plant(ENGINE, "a mark of a cold start makes nobody start over", end="late_returns")
def _mark_ignored(patcher: Patcher) -> None:
    patcher.bend(ColdStart, "_judge_marks", lambda _: lambda cold: cold._doubtful.clear())


@plant(ENGINE, "a mark counts that somebody else's heartbeat came before")
def _void_mark_counts(patcher: Patcher) -> None:
    patcher.bend(Marks, "heartbeat_read", nothing)


@plant(ENGINE, "who was silent writes a heartbeat, and does not read it back before it writes anything else")
def _heartbeat_not_awaited(patcher: Patcher) -> None:
    def make(send: Callable[..., Any]) -> Callable[..., Any]:
        def bent(proposals: Any, held: Any) -> None:
            context, partition = proposals._context, held.append.partition
            if proposals._silence.is_silent(partition):
                proposals.duties._beat(context.replicas[partition], leading=True, joining=True)
                context.perform(held.append)
            else:
                send(proposals, held)

        return bent

    def known(init: Callable[..., Any]) -> Callable[..., Any]:
        def bent(duties: Any, context: Any, presence: Any, proposals: Any, echo: Any, candidacy: Any) -> None:
            init(duties, context, presence, proposals, echo, candidacy)
            proposals.duties = duties

        return bent

    patcher.bend(Proposals, "_send", make)
    patcher.bend(Maintenance, "__init__", known)


@plant(ENGINE, "one failed split commit loses the children it prepared")
def _children_not_prepared(patcher: Patcher) -> None:
    def make(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def bent(reactions: Any, task: Any, key: Any) -> None:
            prepare(reactions, task, key)
            task.children = task.children[:-1]

        return bent

    patcher.bend(Reactions, "_prepare_children", make)


@plant(ENGINE, "whatever bears this process's name counts as its own record")
def _forged_taken_for_own(patcher: Patcher) -> None:
    patcher.bend(OwnIds, "issued", lambda _: lambda _ids, _record_id: True)
    patcher.bend(Provenance, "is_copied", lambda _: lambda _provenance, _record_id: False)


@plant(ENGINE, "a copied id is taken for an own record")
def _copied_id_unnoticed(patcher: Patcher) -> None:
    patcher.bend(Provenance, "wrote", nothing)


@plant(ENGINE, "a process serves by a record that somebody else wrote in its name")
def _forged_record_served(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda provenance, key: key.writer == provenance._context.writer

    patcher.bend(Provenance, "is_own", make)


@plant(ENGINE, "a reader that is opened anew does not interrupt the stream of changes")
def _stream_goes_on_when_read_anew(patcher: Patcher) -> None:
    def make(check: Callable[..., Any]) -> Callable[..., Any]:
        def bent(streams: Any) -> None:
            if not any(replica.phase is Phase.READING for replica in streams._context.replicas):
                check(streams)

        return bent

    patcher.bend(Streams, "check", make)


@plant(ENGINE, "who leaves while a partition is joined anew has nothing to hand over")
def _left_while_joining(patcher: Patcher) -> None:
    def make(mine_in: Callable[..., Any]) -> Callable[..., Any]:
        return lambda departure, replica: mine_in(departure, replica) if replica.caught_up else []

    patcher.bend(Departure, "_mine_in", make)
    patcher.bend(Departure, "_rejoining", lambda _: lambda _departure: False)


@plant(ENGINE, "changes can be followed from the middle of a join on")
def _followed_while_joining(patcher: Patcher) -> None:
    patcher.bend(Streams, "closed_why", lambda _: lambda _streams: None)


@plant(ENGINE, "a delivery report that names no offset is read as offset 0")
def _no_offset_read_as_zero(patcher: Patcher) -> None:
    patcher.bend(
        wire, "delivery_report", lambda _: lambda token, offset, session: Appended(token, offset or 0, session)
    )


@plant(ENGINE, "who only reads never notices that nobody lives", needs="observer")
def _never_deserted(patcher: Patcher) -> None:
    patcher.put(Context, "deserted", property(lambda _: False))


@plant(ENGINE, "who only reads takes a log to which nobody writes for one that is away", needs="observer")
def _quiet_log_is_away(patcher: Patcher) -> None:
    patcher.bend(wire.Cursor, "ask_end", nothing)


@plant(ENGINE, "an owner that is cached stays the owner")
def _cached_for_ever(patcher: Patcher) -> None:
    patcher.bend(OwnerCache, "_holds", lambda _: lambda _cache, _basis: True)
    patcher.bend(OwnerCache, "_is_unchanged", lambda _: lambda _cache, _owner: True)


@plant(ENGINE, "the cache looks neither at the process of the owner nor at what this one serves")
def _cached_whoever_lives(patcher: Patcher) -> None:
    patcher.bend(OwnerCache, "_holds", lambda _: lambda _cache, basis: basis.replica.view is basis.view)
    patcher.bend(OwnerCache, "_is_unchanged", lambda _: lambda _cache, owner: owner.key.offset == owner.offset)


@plant(ENGINE, "the cache answers from a view that is old")
def _cached_at_any_age(patcher: Patcher) -> None:
    patcher.put(owner_cache, "current_until_s", lambda _context, _replica: float("inf"))


@plant(ENGINE, "a rejoin in a split lets go of its parts, and the parent is dropped before they are prepared again")
def _parts_let_go_in_a_split(patcher: Patcher) -> None:
    patcher.bend(Reactions, "_awaits_split", lambda _: lambda _reactions, _holding: False)
    patcher.bend(Reactions, "_replaced_by_children", lambda _: lambda _reactions, _parent, _key: True)


@plant(INTERLEAVINGS, "what waits for a heartbeat goes out although a cold start is in doubt")
def _released_in_doubt(patcher: Patcher) -> None:
    def make(release: Callable[..., Any]) -> Callable[..., Any]:
        def bent(proposals: Any, partition: int) -> None:
            context = proposals._context
            doubtful, context.doubtful = context.doubtful, ()
            release(proposals, partition)
            context.doubtful = doubtful

        return bent

    patcher.bend(Proposals, "release", make)
