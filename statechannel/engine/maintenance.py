"""Keeping the log clean: heartbeats, payment of debts, purge (protocol.md sections 3 and 5). Asserts need no fencing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from statechannel.engine.proposals import ProposalResult, ProposalStatus
from statechannel.engine.seat import BACKUP_AFTER_INTERVALS
from statechannel.protocol import codec
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.record import Kind
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.engine.candidacy import Candidacy
    from statechannel.engine.context import Context
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.seat import Echo
    from statechannel.protocol.debts import Debts
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.replica import Replica

DEBT_SHARE_OF_LAG = 0.1
CLEAN_WITHIN_S = 5.0
JOINER_HEARTBEAT_GAP_S = 0.25
PAYER_GAP_S = 0.5
URGENT_GAP_S = 0.05
LOOKED_AT_A_TICK = 5_000


@dataclass(slots=True)
class _Quiet:
    """Since when nothing has happened on a key that does not exist: by this process's clock, as that of Kafka may leap.

    Attributes:
        round: The newest round of the purge that met the key.
    """

    settled: int
    since_s: float
    round: int


class Maintenance:
    """The duties of a caught-up member, in each partition."""

    def __init__(
        self, context: Context, presence: Presence, proposals: Proposals, echo: Echo, candidacy: Candidacy
    ) -> None:
        self._context = context
        self._presence = presence
        self._proposals = proposals
        self._echo = echo
        self._candidacy = candidacy
        self._paying: dict[KeyState, float] = {}
        self._outrun: dict[KeyState, int] = {}
        self._heartbeat_at_s = [0.0] * context.config.partitions
        self._heartbeat_read_s = [0.0] * context.config.partitions
        self._clean_at_s = [0.0] * context.config.partitions
        self._clean_sent_s = [0.0] * context.config.partitions
        self._just_read: dict[KeyState, Replica] = {}
        self._next_purge_s = 0.0
        self._quiet: dict[KeyState, _Quiet] = {}
        self._purging: dict[int, Iterator[KeyState]] = {}
        self._purge_round = 0
        self._purge_room = 0
        self._does: set[tuple[str, int]] = set()

    def heartbeat_read(self, partition: int, *, clean: bool) -> None:
        self._heartbeat_read_s[partition] = self._context.now.mono_s
        if clean:
            self._clean_at_s[partition] = self._context.now.mono_s

    def judged(self, replica: Replica, key: KeyState) -> None:
        """A record on this key was judged: its debt may have begun, or ended."""
        self._just_read[key] = replica

    def pay_what_was_read(self) -> None:
        """At the end of a step: where joins wait for it, debts are not left for the next tick, nor is a clean heartbeat."""
        if not self._just_read:
            return
        read, self._just_read = self._just_read, {}
        context = self._context
        if not context.acts_as_leader or not context.may_write:
            return
        now_s, joining = context.now.mono_s, self._joining
        urgent = [replica for replica in dict.fromkeys(read.values()) if self._is_urgent(replica, joining=joining)]
        for key, replica in read.items():
            debt = replica.view.ledger.open.get(key)
            if replica not in urgent or debt is None or not context.judges(replica.partition):
                continue
            if key not in self._outrun and now_s >= self._paying.get(key, 0.0):
                self._pay_one(replica, key, "joins wait for it")
        for replica in urgent:
            if not replica.view.ledger.open and context.judges(replica.partition):
                self._beat(replica, leading=True, joining=True)

    @property
    def _joining(self) -> bool:
        counts = self._context.members.counts
        return counts["caught_up"] < counts["alive"]

    def _is_urgent(self, replica: Replica, *, joining: bool) -> bool:
        """Whether a member joins, or nothing was clean for so long that the next one to join could have to wait."""
        context = self._context
        config = context.config
        # Not before the second heartbeat is late, however short the lag is.
        within_s = max(
            min(CLEAN_WITHIN_S, config.compaction_lag_s * DEBT_SHARE_OF_LAG), 2 * config.heartbeat_interval_s
        )
        since_s = max(self._clean_at_s[replica.partition], context.ready_since_s)
        return joining or context.now.mono_s - since_s > within_s

    def view_replaced(self, partition: int) -> None:
        """The keys of this partition's former view are gone."""
        partitions = self._context.config.partitions
        for table in (self._paying, self._outrun, self._quiet):
            for key in [k for k in table if partition_of(k.namespace, partitions) == partition]:
                del table[key]
        self._purging.pop(partition, None)
        self._note_debts(self._context.replicas[partition].view.ledger)

    def _note_debts(self, ledger: Debts) -> None:
        # The age is the debt's, not the key's: a key that was settled and is in debt again begins again, so that two payers
        # who answered one debt at the same moment do not answer each other's answers for ever.
        for debt in reversed(ledger.open.values()):
            if debt.seen_s is not None:
                return  # the older ones were seen before
            debt.seen_s = self._context.now.mono_s

    def oldest_debt_s(self) -> float:
        """Age of the oldest open debt that this process knows of; an alarm at a quarter of the compaction lag."""
        now_s = self._context.now.mono_s
        oldest = (replica.view.ledger.oldest for replica in self._context.replicas)
        seen = [debt.seen_s for debt in oldest if debt is not None and debt.seen_s is not None]
        return now_s - min(seen) if seen else 0.0

    def tick(self) -> None:
        """Pay what is due, then say how far the log is clean."""
        context = self._context
        leading = context.acts_as_leader
        joins = self._joining
        for replica in context.replicas:
            joining = self._is_urgent(replica, joining=joins)
            if not context.judges(replica.partition):
                self._off_duty("debts", replica.partition)
                self._off_duty("heartbeats", replica.partition)
                continue
            self._pay(replica, leading=leading, joining=joining)
            self._beat(replica, leading=leading, joining=joining)
            if not replica.view.ledger.open:
                self._off_duty("debts", replica.partition)
        if leading:
            self._purge_in_turn()

    # --- debts ------------------------------------------------------------------------------------------------------

    def _pay(self, replica: Replica, *, leading: bool, joining: bool) -> None:
        context = self._context
        now_s = context.now.mono_s
        debts = replica.view.ledger.open
        for key in [k for k in self._outrun if k not in debts and self._lies_in(replica, k)]:
            del self._outrun[key]
        if not debts:
            return
        self._note_debts(replica.view.ledger)
        if not context.may_write:
            return
        config = context.config
        rank = context.members.rank(context.identity.broker)
        patience_s = config.compaction_lag_s * DEBT_SHARE_OF_LAG + rank * config.heartbeat_interval_s
        if leading:
            patience_s = 0.0 if joining else config.debt_age_leader_s
        gap_s = PAYER_GAP_S * (1 + rank)
        room = config.debt_batch_max
        for key, debt in debts.items():
            age_s = now_s - (now_s if debt.seen_s is None else debt.seen_s)
            if room == 0 or age_s < patience_s:
                break  # the others are younger still
            if age_s < patience_s + gap_s * self._outrun.get(key, 0) or now_s < self._paying.get(key, 0.0):
                continue
            room -= 1
            if not self._pay_one(replica, key, _why(context) if leading else "no other member pays them"):
                break
        if room == 0 and joining and self._proposals.room > config.pending_max // 2:
            context.wake_soon(self.tick, URGENT_GAP_S)  # joins wait for the last of them

    def _pay_one(self, replica: Replica, key: KeyState, why: str) -> bool:
        context = self._context
        self._paying[key] = context.now.mono_s + self._proposals.patience_s()
        if self._proposals.restate(key, self._paid(key)) is None:
            return False
        self._on_duty("debts", replica.partition, why)
        return True

    def _lies_in(self, replica: Replica, key: KeyState) -> bool:
        return partition_of(key.namespace, self._context.config.partitions) == replica.partition

    def _paid(self, key: KeyState) -> Callable[[ProposalResult], None]:
        def done(result: ProposalResult) -> None:
            self._paying.pop(key, None)
            replica = self._context.replicas[self._context.partition_of(key.namespace)]
            debt = replica.view.ledger.open.get(key)
            if result.status is ProposalStatus.ACCEPTED and debt is not None and debt.since_offset == result.offset:
                # Another payer settled it first, so that ours, which had not seen that, is a debt itself. The member of the
                # lower rank goes first next time; else two in step would answer each other for ever.
                self._outrun[key] = self._outrun.get(key, 0) + 1

        return done

    # --- reports ----------------------------------------------------------------------------------------------------

    def _on_duty(self, duty: str, partition: int, why: str) -> None:
        if (duty, partition) not in self._does:
            self._does.add((duty, partition))
            self._context.emit("duty.began", duty=duty, partition=partition, why=why)

    def _off_duty(self, duty: str, partition: int) -> None:
        if (duty, partition) in self._does:
            self._does.discard((duty, partition))
            self._context.emit("duty.ended", duty=duty, partition=partition)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def _beat(self, replica: Replica, *, leading: bool, joining: bool) -> None:
        context = self._context
        now_s = context.now.mono_s
        partition = replica.partition
        interval_s = context.config.heartbeat_interval_s
        clean = not replica.view.ledger.open
        if leading:
            self._on_duty("heartbeats", partition, _why(context))
            due = now_s - self._heartbeat_at_s[partition] >= interval_s
            if joining and clean:
                due = due or now_s - self._clean_sent_s[partition] >= JOINER_HEARTBEAT_GAP_S
        else:
            rank = context.members.rank(context.identity.broker)
            patience_s = interval_s * (BACKUP_AFTER_INTERVALS + rank)
            quiet_since_s = max(
                self._heartbeat_read_s[partition], self._heartbeat_at_s[partition], context.ready_since_s
            )
            due = now_s - quiet_since_s >= patience_s
            if now_s - self._heartbeat_at_s[partition] > patience_s + interval_s:
                self._off_duty("heartbeats", partition)
        if (
            self._candidacy.must_probe(partition)
            or self._proposals.holds_back(partition)
            or self._proposals.awaits_proof(partition)
        ):
            # Only a record that is read back shows that this process can write again, whatever others write, and that one
            # which Kafka refused is not in the log; and after a silence nothing else may be written before one is read back.
            due = due or now_s - self._heartbeat_at_s[partition] >= interval_s
        if not due:
            return
        if not context.may_write:
            if not (context.announced and self._proposals.holds_back(partition)):
                return
            # In safe mode it vouches for nothing, but what it has let go of must not wait for the registry.
            clean = False
        self._heartbeat_at_s[partition] = now_s
        if clean:
            self._clean_sent_s[partition] = now_s
        self._on_duty("heartbeats", partition, "no other member writes them")
        identity, record_id = context.identity, self._proposals.new_id()
        self._echo.written(partition, record_id, now_s)
        summary = replica.summary()
        self._proposals.control(
            partition,
            codec.HEARTBEAT_KEY,
            {
                "format": self._presence.writes_format,
                "kind": Kind.HEARTBEAT,
                "id": record_id,
                "covers": replica.applied,
                "by": {"broker": identity.broker, "incarnation": identity.incarnation},
                "clean_to": replica.applied if clean else -1,
                "partitions": replica.partitions,
                "highest": replica.view.highest,
                **({} if summary is None else summary._asdict()),
                "written_at_ms": context.now.wall_ms,
            },
        )

    # --- purge ------------------------------------------------------------------------------------------------------

    def _purge_in_turn(self) -> None:
        """A round over all keys at each interval, a portion of them a tick."""
        context = self._context
        if context.now.mono_s >= self._next_purge_s:
            self._next_purge_s = context.now.mono_s + context.config.purge_interval_s
            self._purge_room = context.config.debt_batch_max
            self._purge_round += 1
            self._purging = {
                replica.partition: iter(list(replica.view.keys.values()))
                for replica in context.replicas
                if context.judges(replica.partition)
            }
        for partition, keys in list(self._purging.items()):
            portion = list(islice(keys, LOOKED_AT_A_TICK))
            self._purge(context.replicas[partition], portion)
            if len(portion) < LOOKED_AT_A_TICK:
                del self._purging[partition]
                self._forget_unseen(partition)

    def _forget_unseen(self, partition: int) -> None:
        """Forget the keys that this round did not meet: no view holds them any more."""
        partitions = self._context.config.partitions
        for key in [k for k, quiet in self._quiet.items() if quiet.round != self._purge_round]:
            if partition_of(key.namespace, partitions) == partition:
                del self._quiet[key]

    def _purge(self, replica: Replica, keys: list[KeyState]) -> None:
        """Nulls for keys that the tree does not reach: days after a deletion, or the lag after junk (R6)."""
        context = self._context
        now_s, lag_s, deleted_s = (
            context.now.mono_s,
            context.config.compaction_lag_s,
            context.config.purge_deleted_after_s,
        )
        open_debts = replica.view.ledger.open
        purged = 0
        for key in keys:
            if key.state is not None or key.purged or key in open_debts:
                self._quiet.pop(key, None)
                continue
            quiet = self._quiet.get(key)
            if quiet is None or quiet.settled != key.settled:
                self._quiet[key] = _Quiet(key.settled, now_s, self._purge_round)
                continue
            quiet.round = self._purge_round
            namespace = replica.view.get(key.namespace)
            outlived = namespace is not None and namespace.state is State.DELETED and not key.is_namespace
            wait_s = max(deleted_s, lag_s) if outlived else lag_s
            if now_s - quiet.since_s > wait_s and self._purge_room > 0 and context.may_write:
                self._purge_room -= 1
                self._proposals.purge(replica.partition, key.key)
                purged += 1
        if purged:
            context.emit("purge.wrote", partition=replica.partition, keys=purged)


def _why(context: Context) -> str:
    return "this broker leads" if context.leading else "no leader is heard"
