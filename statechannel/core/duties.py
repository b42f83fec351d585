"""Keeping the log clean: heartbeats, payment of debts, purge (protocol sections 3 and 5). Asserts need no fencing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from statechannel.core import codec
from statechannel.core.bundle import partition_of
from statechannel.core.proposals import Result, Status
from statechannel.core.record import Kind
from statechannel.core.states import State

if TYPE_CHECKING:
    from statechannel.core.engine import Engine
    from statechannel.core.keys import KeyState
    from statechannel.core.ledger import Debt
    from statechannel.core.replica import Replica

# A member that does not lead steps in for the heartbeats after so many silent intervals, one more for each rank.
BACKUP_AFTER_INTERVALS = 3
DEBT_SHARE_OF_LAG = 0.1
JOINER_HEARTBEAT_GAP_S = 0.25
PAYER_GAP_S = 0.5


class Duties:
    """The duties of a caught-up member, in each partition."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._debt_since: dict[KeyState, tuple[int, float]] = {}
        self._paying: dict[KeyState, float] = {}
        self._outrun: dict[KeyState, int] = {}
        self._heartbeat_at_s = [0.0] * engine.config.partitions
        self._heartbeat_read_s = [0.0] * engine.config.partitions
        self._next_purge_s = 0.0
        self._quiet_since_ms: dict[KeyState, tuple[int, int]] = {}

    def heartbeat_read(self, partition: int) -> None:
        """Somebody's heartbeat came by."""
        self._heartbeat_read_s[partition] = self._engine.now.mono_s

    def view_replaced(self, partition: int) -> None:
        """The keys of this partition's former view are gone."""
        held = self._engine.replicas[partition].view
        partitions = self._engine.config.partitions
        for table in (self._debt_since, self._paying, self._outrun, self._quiet_since_ms):
            for key in [k for k in table if partition_of(k.namespace, partitions) == partition]:
                del table[key]
        self._note_debts(held.ledger.open)

    def _note_debts(self, open_debts: Mapping[KeyState, Debt]) -> None:
        # The age is the debt's, not the key's: a key that was settled and is in debt again begins anew, so that two payers
        # who answered one debt at the same moment do not answer each other's answers for ever.
        now_s = self._engine.now.mono_s
        for key, debt in open_debts.items():
            known = self._debt_since.get(key)
            if known is None or known[0] != debt.since_offset:
                self._debt_since[key] = (debt.since_offset, now_s)

    def oldest_debt_s(self) -> float:
        """Age of the oldest open debt that this process knows of; an alarm at a quarter of the compaction lag."""
        now_s = self._engine.now.mono_s
        return max((now_s - since_s for _, since_s in self._debt_since.values()), default=0.0)

    def tick(self) -> None:
        """Pay what is due, then say how far the log is clean."""
        engine = self._engine
        leading = engine.leading
        joining = any(not member.caught_up for member in engine.presence.members.alive.values())
        for replica in engine.replicas:
            if not engine.judges(replica.partition):
                continue
            self._pay(replica, leading=leading, joining=joining)
            self._beat(replica, leading=leading, joining=joining)
        if leading and engine.now.mono_s >= self._next_purge_s:
            self._next_purge_s = engine.now.mono_s + engine.config.purge_interval_s
            for replica in engine.replicas:
                if engine.judges(replica.partition):
                    self._purge(replica)

    # --- debts ------------------------------------------------------------------------------------------------------

    def _pay(self, replica: Replica, *, leading: bool, joining: bool) -> None:
        engine = self._engine
        now_s = engine.now.mono_s
        debts = replica.view.ledger.open
        if len(self._debt_since) > len(debts) * 2 + 16 or not debts:
            self._forget_settled()
        if not debts:
            return
        self._note_debts(debts)
        if not engine.may_write:
            return
        config = engine.config
        rank = engine.presence.members.rank(engine.identity.broker)
        patience_s = config.compaction_lag_s * DEBT_SHARE_OF_LAG + rank * config.heartbeat_interval_s
        if leading:
            patience_s = 0.0 if joining else config.debt_age_leader_s
        gap_s = PAYER_GAP_S * (1 + rank)
        room = config.debt_batch_max
        for key in debts:
            if room == 0:
                break
            if now_s - self._debt_since[key][1] < patience_s + gap_s * self._outrun.get(key, 0):
                continue
            if now_s < self._paying.get(key, 0.0):
                continue
            room -= 1
            self._paying[key] = now_s + config.retry_interval_s * 4
            if engine.proposals.restate(key, self._paid(key)) is None:
                break

    def _paid(self, key: KeyState) -> Callable[[Result], None]:
        def done(result: Result) -> None:
            self._paying.pop(key, None)
            replica = self._engine.replicas[self._engine.partition_of(key.namespace)]
            if result.status is Status.ACCEPTED and key in replica.view.ledger.open:
                # Another payer settled it first, so that ours, which had not seen that, is a debt itself. Whoever has the
                # lower rank goes first next time; else two in step would answer each other for ever.
                self._outrun[key] = self._outrun.get(key, 0) + 1

        return done

    def _forget_settled(self) -> None:
        for key in list(self._debt_since):
            replica = self._engine.replicas[self._engine.partition_of(key.namespace)]
            if key not in replica.view.ledger.open:
                del self._debt_since[key]
                self._paying.pop(key, None)
                self._outrun.pop(key, None)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def _beat(self, replica: Replica, *, leading: bool, joining: bool) -> None:
        engine = self._engine
        now_s = engine.now.mono_s
        partition = replica.partition
        interval_s = engine.config.heartbeat_interval_s
        clean = not replica.view.ledger.open
        if leading:
            wait_s = min(JOINER_HEARTBEAT_GAP_S, interval_s) if joining and clean else interval_s
            due = now_s - self._heartbeat_at_s[partition] >= wait_s
        else:
            rank = engine.presence.members.rank(engine.identity.broker)
            patience_s = interval_s * (BACKUP_AFTER_INTERVALS + rank)
            quiet_since_s = max(
                self._heartbeat_read_s[partition], self._heartbeat_at_s[partition], engine.ready_since_s
            )
            due = now_s - quiet_since_s >= patience_s
        if not due or not engine.may_write:
            return
        self._heartbeat_at_s[partition] = now_s
        identity = engine.identity
        engine.proposals.control(
            partition,
            codec.HEARTBEAT_KEY,
            {
                "format": engine.presence.writes_format,
                "kind": Kind.HEARTBEAT,
                "id": engine.proposals.new_id(),
                "covers": replica.applied,
                "by": {"broker": identity.broker, "incarnation": identity.incarnation},
                "clean_to": replica.applied if clean else -1,
                "written_at_ms": engine.now.wall_ms,
            },
        )

    # --- purge ------------------------------------------------------------------------------------------------------

    def _purge(self, replica: Replica) -> None:
        """Nulls for keys that the tree does not reach: days after a deletion, or the lag after junk (R6)."""
        engine = self._engine
        lag_ms = engine.config.compaction_lag_s * 1000
        deleted_ms = engine.config.purge_deleted_after_s * 1000
        room = engine.config.debt_batch_max
        stray: set[KeyState] = set()
        for key in replica.view.keys.values():
            if key.state is not None or key.purged or key in replica.view.ledger.open:
                continue
            stray.add(key)
            settled, since_ms = self._quiet_since_ms.get(key, (-1, 0))
            if settled != key.settled:
                self._quiet_since_ms[key] = (key.settled, replica.timestamp_ms)
                continue
            namespace = replica.view.get(key.namespace)
            outlived = namespace is not None and namespace.state is State.DELETED and not key.is_namespace
            wait_ms = max(deleted_ms, lag_ms) if outlived else lag_ms
            if replica.timestamp_ms - since_ms > wait_ms and room > 0 and engine.may_write:
                room -= 1
                engine.proposals.purge(replica.partition, key.key)
        for key in [k for k in self._quiet_since_ms if k not in stray]:
            if partition_of(key.namespace, engine.config.partitions) == replica.partition:
                del self._quiet_since_ms[key]
