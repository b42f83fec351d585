"""The protocol level: scripted writers with lagging views, a nasty cleaner, and joins at any moment.

Each step draws its randomness from the seed and its own number, so that steps can be left out without changing the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol.bundle import partition_of
from statechannel.protocol.codec import HEARTBEAT_KEY, encode
from statechannel.protocol.digest import digest
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.sim import drafts
from statechannel.sim.drafts import Scribe, pick_move
from statechannel.sim.log import CleanerSettings, SimLog
from statechannel.sim.options import NAMESPACES, ProtocolOptions
from statechannel.sim.trace import SimTrace, Violation
from statechannel.sim.truth import Truth, accepted_of, compare, counting_marks, vouched_to

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement


_FULL_CHECK_EVERY = 16


class SimReader:
    """One reader of one partition.

    Attributes:
        pace: How many records it may read at a time.
    """

    def __init__(self, name: str, log: SimLog, truth: Truth, partitions: int, trace: SimTrace) -> None:
        self.name = name
        self.log = log
        self.truth = truth
        self.replica = Replica(
            log.partition, partitions, compaction_lag_s=log.settings.lag_ms / 1000, kept_records_max=100_000
        )
        self.position = 0
        self.pace: tuple[int, ...] = (1, 2, 5, 20, 1000)
        self._trace = trace
        self._since_check = 0
        self._starts = 0
        self._now_ms = 0
        self._waits = False

    @property
    def caught_up(self) -> bool:
        return self.replica.caught_up

    def open(self, now_ms: int) -> None:
        """Start, or start over, at the beginning."""
        self.position = 0
        self._starts += 1
        self._trace.count("joins")
        if self._starts > 1:
            self._trace.count("started over")
        self.replica.learn_clock(0.0)  # the log's clock is the only one here
        self.replica.opened(now_ms / 1000, 0, self.log.end)
        self._after(None, None)

    def read(self, now_ms: int, most: int) -> None:
        self._now_ms = now_ms
        if self.replica.phase is Phase.CLOSED:
            self.open(now_ms)
        for _ in range(most):
            record = self.log.next(self.position)
            if record is None:
                if self.position < self.log.end:
                    self.position = self.log.end
                self.replica.reached(now_ms / 1000, self.log.end)
                self.replica.complete_as_of(now_ms / 1000)
                self._after(None, None)
                break
            self.position = record.offset + 1
            judgement = self.replica.read(now_ms / 1000, record)
            self._after(record, judgement)
            if self.replica.phase is Phase.STOPPED:
                break
        if self.replica.phase is Phase.START_OVER:
            self._trace.add(f"{self.name} starts over: {self.replica.why}")
            if self.replica.has_met_gap:
                self._trace.count("gaps met")
            self.open(now_ms)
        if self.replica.phase is Phase.BROKEN:
            raise Violation("broken", f"{self.name}: {self.replica.why}")

    def _after(self, record: RecordRead | None, judgement: Judgement | None) -> None:
        replica = self.replica
        if replica.phase is Phase.STOPPED:
            if self.truth.stopped_at < 0 or self.truth.stopped_at > self.position:
                raise Violation("stop", f"{self.name} stopped at {self.position}: {replica.why}")
            return
        if not replica.caught_up:
            self._since_check = -1
            if replica.phase is Phase.WAITING and not self._waits:
                self._check_wait()
            self._waits = replica.phase is Phase.WAITING
            return
        if self._since_check < 0:
            self._trace.count("strict from the start" if replica.strict else "joins completed")
            self._trace.add(f"{self.name} caught up at {replica.view.applied}: {replica.why}")
            self._check()
        elif record is not None and judgement is not None:
            self._check_one(record, judgement)

    def _check_wait(self) -> None:
        """Nobody waits for a word where the log leaves nothing to guess, or vouches by itself."""
        log, replica = self.log, self.replica
        if not log.cleaned and not log.markers:
            raise Violation("lenient", f"{self.name} waits with {log.end} records of a whole log: {replica.why}")
        vouched = vouched_to(log, replica.position, self._now_ms, marks=counting_marks(log.entries))
        if vouched >= 0:
            raise Violation("wait", f"{self.name} waits although the log vouches through {vouched}: {replica.why}")

    def _check(self) -> None:
        self._since_check = 0
        compare(self.name, self.replica.view, self.truth)
        self._trace.count("comparisons")

    def _check_one(self, record: RecordRead, judgement: Judgement) -> None:
        truth = self.truth
        if truth.stopped_at >= 0 and record.offset >= truth.stopped_at:
            raise Violation("stop", f"{self.name} judged {record.offset} beyond the newer format at {truth.stopped_at}")
        want = truth.verdicts[record.offset]
        if judgement.verdict is not want:
            raise Violation(
                "verdict", f"{self.name} says {judgement.verdict} at {record.offset}, the truth says {want}"
            )
        key = judgement.key
        if key is not None and key.state is not None:
            expected = truth.states[record.offset].get(key.key)
            if accepted_of(key) != expected:
                raise Violation("history", f"{self.name} at {record.offset} holds {key!r} instead of {expected}")
        self._since_check += 1
        if self._since_check >= _FULL_CHECK_EVERY or (
            want is Verdict.ACCEPTED and key is not None and key.is_namespace
        ):
            self._check()


LAG_MS = 100_000
SETTLE_ROUNDS = 12
OUTAGES = (0.005, 0.03, 0.1, 0.3, 0.45, 0.55, 0.7, 0.95, 1.05, 1.5, 2.5, 4.0)
"""Lengths, in lags."""
OUTAGE_STEPS = (4, 10, 25)


class Late(NamedTuple):
    partition: int
    what: str
    key: bytes
    value: bytes | None


class ScriptedMember:
    """A scripted writer with its own, perhaps lagging, readers."""

    def __init__(self, name: str, readers: list[SimReader]) -> None:
        self.name = name
        self.readers = readers
        self.scribe = Scribe(name, "i1")
        self.asleep_until = -1

    def caught_up(self) -> bool:
        return all(reader.caught_up for reader in self.readers)


class ProtocolWorld:
    def __init__(
        self, seed: int, options: ProtocolOptions, trace: SimTrace, skip: frozenset[int] = frozenset()
    ) -> None:
        self.seed = seed
        self.options = options
        self.trace = trace
        self.skip = skip
        self.now_ms = 1_000_000
        settings = CleanerSettings(LAG_MS, 40 * LAG_MS, options.segment_ms)
        self.logs = [SimLog(Topic.CHANNEL, p, settings, options.copies) for p in range(options.partitions)]
        self.truths = [Truth(p, options.partitions) for p in range(options.partitions)]
        self.namespaces = NAMESPACES[: options.namespaces]
        self.brokers = [f"b{index}" for index in range(options.members)]
        self.members = [ScriptedMember(name, self._readers(name)) for name in self.brokers]
        self.probes: list[SimReader] = []
        self.late: list[Late] = []
        self.stopped = False
        self._stranger = Scribe("x", "i9")
        self._probes_made = 0
        self._debt_since: dict[tuple[int, bytes], int] = {}
        self._steps = self._weighted()

    def _readers(self, name: str) -> list[SimReader]:
        count = self.options.partitions
        return [SimReader(name, self.logs[p], self.truths[p], count, self.trace) for p in range(count)]

    def _weighted(self) -> list[tuple[Callable[[Random], None], float]]:
        on = self.options
        return [
            (self._propose, 10.0),
            (self._read, 9.0),
            (self._pay, 3.0),
            (self._beat, 3.0),
            (self._deliver, 3.0 if on.delays else 0.0),
            (self._hostile, 2.5 if on.hostile else 0.0),
            (self._broken, 1.5 if on.junk else 0.0),
            (self._replay, 1.0 if on.replays else 0.0),
            (self._end_transaction, 1.0 if on.transactions else 0.0),
            (self._purge, 1.0 if on.purges else 0.0),
            (self._pause, 0.7 if on.pauses else 0.0),
            (self._clean, 5.0 if on.cleaner else 0.0),
            (self._join, 1.5 if on.joins else 0.0),
            (self._probe, 8.0 if on.joins else 0.0),
            (self._jump, 0.4 if on.jumps else 0.0),
            (self._fail_over, 0.5 if on.copies > 1 else 0.0),
            (self._outage, 0.4 if on.outages else 0.0),
        ]

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for member in self.members:
            for reader in member.readers:
                reader.read(self.now_ms, 1)
        actions = [action for action, _ in self._steps]
        weights = [weight for _, weight in self._steps]
        for number in range(self.options.steps):
            if number in self.skip:
                continue
            rng = Random(f"{self.seed}.{number}")
            self._advance(int(rng.expovariate(1 / self.options.step_ms)), rng)
            rng.choices(actions, weights)[0](rng)
            if self.options.newer and number == self.options.steps - 30 and not self.stopped:
                self._stop_all(rng)
        self._settle(Random(f"{self.seed}.settle"))

    def _append(self, partition: int, who: str, what: str, key: bytes, value: bytes | None) -> None:
        self._appended(partition, who, what, self.logs[partition].append(self.now_ms, key, value))

    def _end_transaction(self, rng: Random) -> None:
        """The marker of a transaction, whatever was written in it; members that are awake keep up.

        One of them knows the history: a member that slept starts over at the marker, and no member starts cold in this simulator.
        """
        log = rng.choice(self.logs)
        if self.truths[log.partition].stopped_at >= 0:
            return
        followers = [member for member in self.members if member.asleep_until < self.now_ms]
        for member in followers:
            member.readers[log.partition].read(self.now_ms, 100_000)
        if not any(member.readers[log.partition].caught_up for member in followers):
            return
        self._appended(log.partition, "stranger", "marker", log.end_transaction(self.now_ms))
        for member in followers:
            member.readers[log.partition].read(self.now_ms, 100_000)
        self.trace.count("transactions")

    def _appended(self, partition: int, who: str, what: str, offset: int) -> None:
        log = self.logs[partition]
        judgement = self.truths[partition].read(log.entries[offset])
        verdict = "unjudged" if judgement is None else judgement.verdict
        self.trace.add(f"{self.now_ms} {who} {partition}/{offset} {log.entries[offset].key!r} {what}: {verdict}")
        self.trace.count(f"verdict {verdict}")
        self._note_debts(partition)

    def _note_debts(self, partition: int) -> None:
        truth = self.truths[partition]
        open_now = truth.debts[-1] if truth.debts else frozenset()
        for name in open_now:
            self._debt_since.setdefault((partition, name), self.now_ms)
        for place in [p for p in self._debt_since if p[0] == partition and p[1] not in open_now]:
            del self._debt_since[place]

    def _advance(self, by_ms: int, rng: Random) -> None:
        """Let time pass; no debt may get older than the lag allows, so a process pays before."""
        oldest = min(self._debt_since.values(), default=self.now_ms)
        if self.now_ms + by_ms - oldest > LAG_MS // 3:
            self._pay_all(rng)
        self.now_ms += by_ms

    def _pay_all(self, rng: Random) -> None:
        for partition in range(self.options.partitions):
            if self.truths[partition].stopped_at >= 0:
                self._debt_since = {p: since for p, since in self._debt_since.items() if p[0] != partition}
                continue
            if not self.truths[partition].debts or not self.truths[partition].debts[-1]:
                continue
            payer = self._somebody(rng, partition)
            reader = payer.readers[partition]
            reader.read(self.now_ms, 100_000)
            if not reader.caught_up:
                self._recover(payer, partition)
            self._pay_debts(payer, partition)

    def _somebody(self, rng: Random, partition: int) -> ScriptedMember:
        caught_up = [member for member in self.members if member.readers[partition].caught_up]
        fit = [member for member in caught_up if member.asleep_until < self.now_ms] or caught_up
        if not fit:
            raise Violation("simulator", "no member is caught up")
        return rng.choice(fit)

    def _recover(self, payer: ScriptedMember, partition: int) -> None:
        """The payer met a gap: another member that has seen all must be there."""
        for member in self.members:
            reader = member.readers[partition]
            if member is not payer:
                reader.read(self.now_ms, 100_000)
            if reader.caught_up:
                self._pay_debts(member, partition)
                self._heartbeat(member, partition)
        payer.readers[partition].read(self.now_ms, 100_000)

    # --- what members do --------------------------------------------------------------------------------------------

    def _active(self, rng: Random) -> ScriptedMember | None:
        awake = [member for member in self.members if member.asleep_until < self.now_ms]
        return rng.choice(awake) if awake else None

    def _read(self, rng: Random) -> None:
        member = self._active(rng)
        if member is not None:
            for reader in member.readers:
                reader.read(self.now_ms, rng.choice((1, 3, 10, 1000)))

    def _write(self, rng: Random, who: str, late: Late) -> None:
        if self.options.delays and rng.random() < 0.25:  # noqa: PLR2004
            self.late.append(late)
            self.trace.count("late records")
            return
        self._append(late.partition, who, late.what, late.key, late.value)
        if self.options.replays and rng.random() < 0.04:  # noqa: PLR2004
            self._append(late.partition, who, f"{late.what} (twice)", late.key, late.value)

    def _propose(self, rng: Random) -> None:
        member = self._active(rng)
        namespace = rng.choice(self.namespaces)
        if member is None:
            return
        partition = partition_of(namespace, self.options.partitions)
        reader = member.readers[partition]
        if rng.random() < 0.6:  # noqa: PLR2004
            reader.read(self.now_ms, 1000)
        if not reader.caught_up:
            return
        view = reader.replica.view
        chosen, fields = pick_move(
            rng,
            view,
            namespace,
            self.brokers,
            bundles=self.options.bundles,
            splits=self.options.splits,
            deletion=self.options.deletion,
        )
        key = KeyState(chosen, -1, -1) if isinstance(chosen, str) else chosen
        record = member.scribe.proposal(key, view.applied, fields)
        if rng.random() < 0.05:  # noqa: PLR2004 - an honest but slow writer: it covers less than it could
            record["covers"] = max(-1, view.applied - rng.randint(0, 30))
        what = f"{record['state']} v{record['version']} on {record['base']} covers {record['covers']}"
        self._write(rng, member.name, Late(partition, what, key.key, encode(record)))

    def _pay(self, rng: Random) -> None:
        member = self._active(rng)
        if member is None:
            return
        for partition, reader in enumerate(member.readers):
            if rng.random() < 0.7:  # noqa: PLR2004
                reader.read(self.now_ms, 1000)
            if reader.caught_up:
                self._pay_debts(member, partition, rng)

    def _pay_debts(self, member: ScriptedMember, partition: int, rng: Random | None = None) -> None:
        view = member.readers[partition].replica.view
        for key in list(view.ledger.open):
            self.trace.count("asserts")
            late = Late(
                partition,
                f"assert v{key.version} covers {view.applied}",
                key.key,
                member.scribe.restate(key, view.applied),
            )
            if rng is None:
                self._append(partition, member.name, late.what, late.key, late.value)
            else:
                self._write(rng, member.name, late)

    def _beat(self, rng: Random) -> None:
        member = self._active(rng)
        if member is None:
            return
        for partition, reader in enumerate(member.readers):
            reader.read(self.now_ms, rng.choice((0, 1000)))
            if reader.caught_up:
                self._heartbeat(member, partition)

    def _heartbeat(self, member: ScriptedMember, partition: int) -> None:
        view = member.readers[partition].replica.view
        clean_to = -1 if view.ledger.open else view.applied
        self.trace.count("clean heartbeats" if clean_to >= 0 else "heartbeats in debt")
        self._append(partition, member.name, f"clean to {clean_to}", HEARTBEAT_KEY, member.scribe.heartbeat(view))

    def _purge(self, rng: Random) -> None:
        """A null for a key that the tree does not reach; never the key of a namespace that existed."""
        member = self._active(rng)
        if member is None or not member.caught_up():
            return
        reader = rng.choice(member.readers)
        view = reader.replica.view
        stray = sorted(
            key.name
            for key in view.keys.values()
            if key.state is None and key not in view.ledger.open and key.settled >= 0
        )
        if stray:
            self.trace.count("purges")
            self._write(rng, member.name, Late(reader.log.partition, "purge", rng.choice(stray).encode(), None))

    def _pause(self, rng: Random) -> None:
        awake = [member for member in self.members if member.asleep_until < self.now_ms]
        if len(awake) > 1:
            member = rng.choice(awake)
            member.asleep_until = self.now_ms + rng.choice((LAG_MS // 10, LAG_MS // 2, 2 * LAG_MS, 5 * LAG_MS))
            self.trace.add(f"{self.now_ms} {member.name} sleeps until {member.asleep_until}")
            self.trace.count("pauses")

    # --- what strangers and the platform do -------------------------------------------------------------------------

    def _deliver(self, rng: Random) -> None:
        if self.late:
            late = self.late.pop(rng.randrange(len(self.late)))
            self._append(late.partition, "late", late.what, late.key, late.value)

    def _hostile(self, rng: Random) -> None:
        partition = rng.randrange(self.options.partitions)
        view = self.truths[partition].view
        make = rng.choice((drafts.hostile, drafts.near_miss))
        write = make(rng, view, self.namespaces, self.brokers, self._stranger)
        self._append(partition, "stranger", write.what, write.key, write.value)

    def _broken(self, rng: Random) -> None:
        partition = rng.randrange(self.options.partitions)
        if self.options.false_marks and rng.random() < 0.3:  # noqa: PLR2004
            write = drafts.false_mark(rng, self.logs[partition].end, "i1")
        else:
            write = drafts.broken(rng, self.truths[partition].view, self.namespaces)
        self._append(partition, "stranger", write.what, write.key, write.value)

    def _replay(self, rng: Random) -> None:
        partition = rng.randrange(self.options.partitions)
        entries = [entry for entry in self.logs[partition].entries[-60:] if entry.key != HEARTBEAT_KEY]
        if entries:
            entry = rng.choice(entries)
            self._append(partition, "replay", f"of {entry.offset}", entry.key or b"", entry.value)

    def _clean(self, rng: Random) -> None:
        log = rng.choice(self.logs)
        self._guard(rng, log.partition)
        removed = log.clean(self.now_ms, rng)
        if removed:
            self.trace.add(f"{self.now_ms} cleaner took {removed}")
            self.trace.count("records cleaned", removed)

    def _guard(self, rng: Random, partition: int) -> None:
        """Some caught-up member is never behind the cleaner: without any, only a cold start would help."""
        readers = [member.readers[partition] for member in self.members]
        rng.shuffle(readers)
        for reader in readers:
            if reader.caught_up:
                reader.read(self.now_ms, 100_000)
            if reader.caught_up:
                return

    def _fail_over(self, rng: Random) -> None:
        rng.choice(self.logs).fail_over()
        self.trace.count("fail-overs")

    def _jump(self, rng: Random) -> None:
        """A quiet time longer than the lag: everything gets old enough for the cleaner."""
        self._pay_all(rng)
        self._advance(rng.choice((LAG_MS, 3 * LAG_MS)), rng)
        self.trace.count("quiet times")
        for log in self.logs:
            log.append(self.now_ms, b"!note", b"{}")
            self.truths[log.partition].read(log.entries[-1])
            if self.options.cleaner and rng.random() < 0.5:  # noqa: PLR2004
                self._guard(rng, log.partition)
                log.clean_all(self.now_ms, rng)

    def _outage(self, rng: Random) -> None:
        """No process writes or pays any more; strangers and the cleaner go on, and some join, whichever process vouches."""
        span_ms = int(LAG_MS * rng.choice(OUTAGES))
        until_ms = self.now_ms + span_ms
        self.trace.add(f"{self.now_ms} nobody writes until {until_ms}")
        self.trace.count("outages")
        for _ in range(rng.randint(0, 3)):
            self._hostile(rng)
        steps_ms = max(1, span_ms // rng.choice(OUTAGE_STEPS))
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + int(rng.expovariate(1 / steps_ms)) + 1)
            for act in rng.sample((self._clean, self._clean, self._join, self._probe, self._probe, self._probe), 3):
                act(rng)
            if rng.random() < 0.2:  # noqa: PLR2004
                rng.choice((self._hostile, self._broken))(rng)
        self._pay_all(rng)

    def _stop_all(self, rng: Random) -> None:
        self.stopped = True
        for log in self.logs:
            write = drafts.newer_format(rng, self.namespaces)
            self._append(log.partition, "stranger", write.what, write.key, write.value)

    # --- joins ------------------------------------------------------------------------------------------------------

    def _join(self, rng: Random) -> None:
        self._probes_made += 1
        log = rng.choice(self.logs)
        name = f"joiner-{self._probes_made}"
        probe = SimReader(name, log, self.truths[log.partition], self.options.partitions, self.trace)
        if rng.random() < 0.4:  # noqa: PLR2004 - so slow that the cleaner may overtake it
            probe.pace = (1, 1, 2, 4)
        probe.read(self.now_ms, 1)
        self.probes.append(probe)
        if len(self.probes) > 5:  # noqa: PLR2004
            del self.probes[0]

    def _probe(self, rng: Random) -> None:
        for probe in self.probes:
            if rng.random() < 0.7:  # noqa: PLR2004
                probe.read(self.now_ms, rng.choice(probe.pace))

    # --- liveness ---------------------------------------------------------------------------------------------------

    def _settle(self, rng: Random) -> None:
        """Faults are over: every debt is paid, every reader catches up, all agree."""
        while self.late:
            self._deliver(rng)
        for number, log in enumerate(self.logs):
            for _ in range(2):
                name = f"last-{number}"
                self.probes.append(SimReader(name, log, self.truths[number], self.options.partitions, self.trace))
        readers = [reader for member in self.members for reader in member.readers] + self.probes
        for _ in range(SETTLE_ROUNDS):
            self.now_ms += 500
            for reader in readers:
                reader.read(self.now_ms, 100_000)
            for partition in range(self.options.partitions):
                fit = [member for member in self.members if member.readers[partition].caught_up]
                if not fit:
                    continue
                payer = fit[0]
                self._pay_debts(payer, partition)
                payer.readers[partition].read(self.now_ms, 100_000)
                self._heartbeat(payer, partition)
        self._check_end(readers)

    def _check_end(self, readers: list[SimReader]) -> None:
        for reader in readers:
            truth = reader.truth
            if truth.stopped_at >= 0:
                if reader.caught_up:
                    raise Violation("stop", f"{reader.name} did not stop at {truth.stopped_at}: {reader.replica.why}")
                continue
            reader.read(self.now_ms, 100_000)
            if not reader.caught_up:
                raise Violation("join", f"{reader.name} is {reader.replica.phase}: {reader.replica.why}")
            compare(reader.name, reader.replica.view, truth)
            if digest([reader.replica.view]) != digest([truth.view]):
                raise Violation("digest", f"{reader.name} differs from the truth")
        for truth in self.truths:
            if truth.stopped_at < 0 and truth.debts and truth.debts[-1]:
                raise Violation("debt", f"{sorted(truth.debts[-1])} are not paid")
        live = sum(1 for truth in self.truths for key in truth.view.live() if key.state is not State.UNASSIGNED)
        self.trace.count("owned bundles at the end", live)
