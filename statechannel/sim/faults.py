"""Faults and total outages, planned from the seed; each fault has randomness of its own, so that it can be left out alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.commands import Shutdown
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.digest import first_count
from statechannel.protocol.log import Topic
from statechannel.sim import drafts
from statechannel.sim.drafts import Scribe
from statechannel.sim.process import ELECTION, READ, WRITE, SimLink

if TYPE_CHECKING:
    from statechannel.sim.checks import Forgeries
    from statechannel.sim.clients import Clients
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.election import Election
    from statechannel.sim.process import SimProcess


Fault = Callable[[Random], None]

BLACKOUTS_MAX = 2
SPANS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 8.5, 9.5, 10.5, 13.0, 17.0, 19.5, 20.5, 26.0, 40.0, 60.0)
"""On both sides of half the lag, of the lag, and several lags."""
EARLIEST = 0.3
LOSERS_SPANS_S = (13.0, 17.0, 19.5, 20.5, 26.0, 40.0)
"""Longer than half the lag: where late losers are the only unpaid debts, the log is not to vouch by itself."""
UNPAID = (0, 1, 1, 2, 4)
IN_THE_DARK = (0, 0, 1, 3)
BACK_WITHIN_S = 2.0


class Blackouts:
    """The total outages of a run.

    Attributes:
        total_s: The run takes so much longer.
    """

    def __init__(self, cluster: SimCluster, *, wanted: bool, losers: bool) -> None:
        self._cluster = cluster
        self._until_s = 0.0
        rng = Random(f"{cluster.seed}/blackouts")
        self._spans_s = [rng.choice(SPANS_S) for _ in range(rng.randint(1, BLACKOUTS_MAX))] if wanted else []
        self._rng = rng
        self._late = Random(f"{cluster.seed}/late losers")
        self._losers_s = self._late.choice(LOSERS_SPANS_S) if losers else 0.0
        self.total_s = sum(self._spans_s) + self._losers_s

    def plan(self, strike: Fault, lose: Fault) -> list[tuple[float, Fault]]:
        """When each begins, and what happens then.

        Args:
            strike: Writes a hostile record.
            lose: Writes a late proposal that has lost its race.
        """
        duration_s = self._cluster.options.duration_s
        blackouts = [
            (self._rng.uniform(EARLIEST * duration_s, duration_s), self._blackout(s, strike)) for s in self._spans_s
        ]
        if self._losers_s:
            blackouts.append(
                (self._late.uniform(0.9, 1.0) * duration_s, self._blackout(self._losers_s, lose, in_the_dark=False))
            )
        return blackouts

    def rest(self, span_s: float) -> None:
        """No blackout starts within this time."""
        self._until_s = max(self._until_s, self._cluster.events.now_s + span_s)

    @property
    def rest_s(self) -> float:
        return max(0.0, self._until_s - self._cluster.events.now_s)

    def _blackout(self, span_s: float, strike: Fault, *, in_the_dark: bool = True) -> Fault:
        def begin(rng: Random) -> None:
            cluster = self._cluster
            cluster.note(f"everybody dies, for {span_s:g} s")
            cluster.trace.count("blackouts")
            self.rest(span_s)
            for _ in range(rng.choice(UNPAID)):
                strike(rng)
            for process in cluster.alive():
                process.end("blackout")
            for _ in range(rng.choice(IN_THE_DARK) if in_the_dark else 0):
                cluster.events.after(rng.uniform(0.0, span_s), lambda: strike(rng) if cluster.faulty else None)

        return begin


SLEEPS = 2
NIGHTS = 3
NIGHT_S = (10.5, 11.0, 12.0, 14.0)
"""Longer than half the lag, shorter than the lag: nothing is cleaned away before the sleeper comes to it."""
NIGHT_OVER_S = 35.0
"""By then the last night has ended in a cold start, and its sleeper is awake."""
FORGERIES = 6
FALSE_MARKS = 6
TRANSACTIONS = 6
ADDED_PARTITIONS = 2
COPIED_ID = 0.4
SLEEP_AGAIN_S = 3.0
SLEEP_MAX_S = 45.0
REOPENED = 6
LEAVES_MEANWHILE = 0.3
PARTIAL_FAULTS = 4
WHOLE_SPANS_S = (0.3, 2.0, 5.0, 9.0, 15.0, 30.0)
PARTIAL_SPANS_S = (2.0, 7.0, 15.0, 30.0)
LAG_MAX_EXPIRIES = 3.0
ASKED_AFTER_S = (1.0, 4.0, 8.0, 12.0)
"""When a reader that lags is asked for owners."""


def sicknesses(cluster: SimCluster) -> list[list[SimLink]]:
    """Sets of connections that may be lost while all others work."""
    registry = [(Topic.REGISTRY, 0)]
    channel = [(Topic.CHANNEL, log.partition) for log in cluster.logs]
    cuts = [[SimLink(way, *place) for place in places] for way in (WRITE, READ) for places in (registry, channel)]
    cuts += [[SimLink(way, *place) for way in (WRITE, READ)] for place in channel]
    return [*cuts, [ELECTION]]


class Faults:
    """The plan of a run: faults and commands, numbered."""

    def __init__(
        self,
        cluster: SimCluster,
        skip: frozenset[int],
        *,
        election: Election[SimProcess],
        clients: Clients,
        blackouts: Blackouts,
        forgeries: Forgeries,
    ) -> None:
        self._cluster = cluster
        self._election = election
        self._clients = clients
        self._blackouts = blackouts
        self._forgeries = forgeries
        self._skip = skip
        self._stranger = Scribe("x", "i9")
        self._asleep: list[SimProcess] = []
        self._wake_late: set[SimProcess] = set()
        self.planned = 0

    def plan(self) -> None:
        cluster, options = self._cluster, self._cluster.options
        rng = Random(f"{cluster.seed}/plan")
        entries: list[tuple[float, Fault | None]] = []
        now_s = 1.0
        kinds = self._kinds()
        while kinds and now_s < options.duration_s:
            now_s += rng.expovariate(1 / options.fault_every_s)
            entries.append((now_s, rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]))
        now_s = 2.0
        while now_s < options.duration_s:
            now_s += rng.expovariate(1 / options.command_every_s)
            entries.append((now_s, None))
        entries.sort(key=lambda entry: entry[0])
        single = "single connections"
        sever, hang, lag, reopen = map(self._on_a_victim, (self._sever, self._hang, self._lag, self._reopen))
        times: dict[str, Random] = {}
        for name, wanted, strike, count in (
            ("sleepers", options.sleepers, self._sleep, SLEEPS),
            ("forgers", options.forgers, self._forge, FORGERIES),
            (single, options.links, sever, PARTIAL_FAULTS),
            (single, options.hangs, hang, PARTIAL_FAULTS),
            (single, options.lags, lag, PARTIAL_FAULTS),
            ("reopened", options.reopened, reopen, REOPENED),
            ("false marks", options.false_marks, self._mark, FALSE_MARKS),
            ("transactions", options.transactions, self._end_transaction, TRANSACTIONS),
            ("added partitions", options.added_partitions, self._add_partition, ADDED_PARTITIONS),
        ):
            times_s = times.setdefault(name, Random(f"{cluster.seed}/{name}"))
            entries += [(times_s.uniform(5.0, options.duration_s), strike) for _ in range(count if wanted else 0)]
        if options.late_returns:
            times_s = Random(f"{cluster.seed}/late returns")
            entries += [(times_s.uniform(0.4, 1.0) * options.duration_s, self._night) for _ in range(NIGHTS)]
        entries += self._blackouts.plan(self._hostile, self._lose)
        self.planned = len(entries)
        for number, (when_s, fault) in enumerate(entries):
            if number not in self._skip:
                self._put(number, when_s, fault)

    def _put(self, number: int, when_s: float, fault: Fault | None) -> None:
        cluster = self._cluster

        def happen() -> None:
            if not cluster.faulty:
                return
            rng = Random(f"{cluster.seed}/{number}")
            if fault is None:
                self._clients.random_command(rng, number)
            else:
                fault(rng)

        cluster.events.at(when_s, happen)

    def _kinds(self) -> list[tuple[Fault, float]]:
        on = self._cluster.options
        kinds: list[tuple[Fault, float, bool]] = [
            (self._on_a_victim(self._crash), 3.0, on.crashes),
            (self._outage, 1.0, on.outages),
            (self._on_a_victim(self._pause), 3.0, on.pauses),
            (self._on_a_victim(self._cut), 3.0, on.cuts),
            (self._on_a_victim(self._slow), 2.0, on.slow),
            (self._twin, 1.0, on.twins),
            (self._take_over, 1.0, on.take_overs),
            (self._on_a_victim(self._shutdown), 1.0, on.shutdowns),
            (self._newcomer, 1.0, on.newcomers),
            (self._rebalance, 1.5, on.elections),
            (self._hostile, 2.5, on.hostile),
            (self._broken, 2.5, on.junk),
            (self._replay, 2.0, on.replays),
            (self._fail_over, 1.0, on.copies > 1),
        ]
        return [(fault, weight) for fault, weight, wanted in kinds if wanted]

    def _victim(self, rng: Random) -> SimProcess | None:
        fit = [process for process in self._cluster.alive() if process.reachable]
        if not fit:
            return None
        holder = self._election.holder
        if holder in fit and rng.random() < 0.3:  # noqa: PLR2004
            return holder
        return rng.choice(fit)

    def _on_a_victim(self, strike: Callable[[Random, SimProcess], None]) -> Fault:
        def happen(rng: Random) -> None:
            victim = self._victim(rng)
            if victim is not None:
                strike(rng, victim)

        return happen

    def _later(self, after_s: float, cure: Callable[[], None]) -> None:
        """End a fault, unless all faults are over by then: who is sick at the end must stay sick."""
        self._cluster.events.after(after_s, lambda: cure() if self._cluster.faulty else None)

    # --- the last caught-up member is only paused -------------------------------------------------------------------

    def _sleep(self, rng: Random) -> None:
        """One sleeps, all others die: a process that starts then hears no member, and strangers have written meanwhile."""
        cluster = self._cluster
        fit = [process for process in cluster.alive() if process.reachable and process.engine.caught_up]
        if not fit:
            cluster.events.after(SLEEP_AGAIN_S, lambda: self._sleep(rng) if cluster.faulty else None)
            return
        sleeper = rng.choice(fit)
        cluster.note(f"{sleeper.name} falls asleep, all others die")
        cluster.trace.count("sleepers")
        sleeper.pause()
        self._asleep.append(sleeper)
        for process in cluster.alive():
            if process is not sleeper:
                process.end("outage")

        def stranger() -> None:
            if cluster.faulty and cluster.options.hostile:
                self._hostile(rng)

        for _ in range(rng.randint(0, 4)):
            cluster.events.after(rng.uniform(0.1, 4.0), stranger)
        self._later(SLEEP_MAX_S, sleeper.wake)

    def _night(self, rng: Random) -> None:
        """One sleeps, all others die, and no process comes back before the log has ceased to vouch by itself."""
        cluster = self._cluster
        self._sleep(rng)
        if self._asleep and self._asleep[-1].alive:
            cluster.trace.count("late returns")
            self._blackouts.rest(rng.choice(NIGHT_S))
            self._wake_late.add(self._asleep[-1])

    def cold_start_began(self, process: SimProcess) -> None:
        """A sleeper wakes at the same moment, the worst one."""
        if not self._asleep or not self._cluster.faulty:
            return
        rng = process.rng
        sleeper = self._asleep.pop()
        if sleeper in self._wake_late:
            self._later(rng.uniform(0.5, 6.0), sleeper.wake)  # its mark is in the log by then, most often
            return
        process.slow = rng.random() < 0.8  # noqa: PLR2004
        self._later(rng.uniform(0.0, 2.0), sleeper.wake)
        self._end_slow_spell(process, SLEEP_MAX_S)

    # --- processes --------------------------------------------------------------------------------------------------

    def process_ended(self, process: SimProcess) -> None:
        """Something starts it again after a while."""
        cluster = self._cluster
        if not cluster.faulty:
            return
        delay_s = process.rng.choice((0.1, 1.0, 4.0, 9.0, 15.0))
        cluster.events.after(delay_s, lambda: self._restart(process.broker))

    def _restart(self, broker: str) -> None:
        cluster = self._cluster
        rest_s = self._blackouts.rest_s
        if rest_s > 0:
            cluster.events.after(rest_s + cluster.rng.uniform(0.0, BACK_WITHIN_S), lambda: self._restart(broker))
        elif cluster.faulty and not any(process.broker == broker for process in cluster.alive()):
            cluster.spawn(broker)

    def _crash(self, rng: Random, victim: SimProcess) -> None:
        self._cluster.trace.count("crashes")
        victim.crash_after = rng.choice((0, 0, 1, 2, 3, 5, 8))

    def _outage(self, rng: Random) -> None:
        self._cluster.trace.count("outages")
        for process in self._cluster.alive():
            if rng.random() < 0.95:  # noqa: PLR2004
                process.end("outage")

    def _spell(self, span_s: float, what: str, counted: str, cure: Callable[[], None]) -> None:
        """Note a fault that begins now, and end it after this time."""
        self._cluster.note(f"{what} for {span_s} s")
        self._cluster.trace.count(counted)
        self._later(span_s, cure)

    def _pause(self, rng: Random, victim: SimProcess) -> None:
        self._spell(rng.choice(WHOLE_SPANS_S), f"{victim.name} is paused", "pauses", victim.wake)
        victim.pause()

    def _cut(self, rng: Random, victim: SimProcess) -> None:
        self._spell(rng.choice(WHOLE_SPANS_S), f"{victim.name} is cut off", "cuts", victim.heal)
        victim.cut_off()

    def _sever(self, rng: Random, victim: SimProcess) -> None:
        """One connection is away, or one kind of them, all else works."""
        links = rng.choice(sicknesses(self._cluster))
        what = f"{victim.name} loses {', '.join(map(str, links))}"
        self._spell(rng.choice(PARTIAL_SPANS_S), what, "single connections cut", victim.heal)
        victim.sever(links)

    def _hang(self, rng: Random, victim: SimProcess) -> None:
        self._spell(rng.choice(PARTIAL_SPANS_S), f"the loop of {victim.name} hangs", "hung loops", victim.wake)
        victim.hang()

    def _lag(self, rng: Random, victim: SimProcess) -> None:
        """Records of a topic, or of all, are delivered late; what is late stays in order."""
        topics = rng.choice(([Topic.REGISTRY], [Topic.CHANNEL], [Topic.CHANNEL], [Topic.REGISTRY, Topic.CHANNEL]))
        lag_s = rng.uniform(0.3, LAG_MAX_EXPIRIES) * victim.engine.config.member_expiry_s
        span_s = rng.choice(PARTIAL_SPANS_S)
        victim.lag_s.update(dict.fromkeys(topics, lag_s))
        for after_s in ASKED_AFTER_S:
            self._cluster.events.after(after_s, lambda: self._clients.ask_for_owners(victim))
        what = f"{victim.name} reads {', '.join(topics)} {lag_s:.1f} s late"
        self._spell(span_s, what, "readers that lag", victim.heal)

    def _leave(self, process: SimProcess, budget_s: float) -> None:
        if process.alive:
            self._cluster.trace.count("departures during a join")
            self._clients.ask(process, Shutdown(budget_s))

    def _reopen(self, rng: Random, victim: SimProcess) -> None:
        self._cluster.note(f"the reader of {victim.name} is opened anew")
        self._cluster.trace.count("readers opened anew")
        leaves = self._cluster.options.shutdowns and rng.random() < LEAVES_MEANWHILE
        if leaves:  # and the join takes a while
            victim.lag_s[Topic.CHANNEL] = rng.uniform(1.0, 6.0)
            self._later(rng.choice(PARTIAL_SPANS_S), victim.heal)
        victim.reopen()
        if leaves:
            budget_s = rng.choice((0.3, 5.0, 20.0))
            self._later(rng.uniform(0.1, 0.5), lambda: self._leave(victim, budget_s))

    def _slow(self, rng: Random, victim: SimProcess) -> None:
        self._cluster.note(f"{victim.name} is slow")
        self._cluster.trace.count("slow spells")
        victim.slow = True
        self._end_slow_spell(victim, rng.choice((2.0, 8.0, 20.0)))

    def _end_slow_spell(self, process: SimProcess, after_s: float) -> None:
        def over() -> None:
            process.slow = False

        self._cluster.events.after(after_s, over)

    def _twin(self, rng: Random) -> None:
        """A second process under the id of a paused or running one."""
        alive = self._cluster.alive()
        if alive:
            paused = [process for process in alive if process.paused]
            self._cluster.trace.count("twins")
            self._cluster.spawn(rng.choice(paused or alive).broker)

    def _take_over(self, rng: Random) -> None:
        alive = self._cluster.alive()
        if alive:
            self._cluster.trace.count("take-overs")
            self._cluster.spawn(rng.choice(alive).broker, take_over=True)

    def _shutdown(self, rng: Random, victim: SimProcess) -> None:
        self._clients.ask(victim, Shutdown(rng.choice((1.0, 5.0))))

    def _newcomer(self, rng: Random) -> None:  # noqa: ARG002
        cluster = self._cluster
        if len(cluster.brokers) < cluster.options.brokers + 2 and not self._blackouts.rest_s:
            cluster.spawn_newcomer()

    def _rebalance(self, rng: Random) -> None:  # noqa: ARG002
        self._election.push()

    # --- strangers --------------------------------------------------------------------------------------------------

    def _append(self, partition: int, write: drafts.JunkWrite) -> None:
        self._cluster.append("stranger", Topic.CHANNEL, partition, write.key, write.value)
        self._cluster.trace.count("junk records")

    def _hostile(self, rng: Random) -> None:
        cluster = self._cluster
        partition = rng.randrange(len(cluster.logs))
        view = cluster.truths[partition].view
        make = rng.choice((drafts.hostile, drafts.near_miss))
        self._append(partition, make(rng, view, cluster.namespaces, cluster.brokers, self._stranger))

    def _lose(self, rng: Random) -> None:
        """A proposal that was late: another one was accepted before at its version, which its writer had not seen."""
        cluster = self._cluster
        log = rng.choice(cluster.logs)
        write = drafts.loser(rng, cluster.truths[log.partition].view, self._stranger)
        if write is not None:
            cluster.trace.count("late losers")
            self._append(log.partition, write)

    def _forge(self, rng: Random) -> None:
        """A record in the name of a process that lives, or has lived until a moment ago."""
        cluster = self._cluster
        alive = cluster.alive()
        if not alive:
            return
        victim = rng.choice(alive)
        partition = rng.randrange(len(cluster.logs))
        mine = [
            record.id
            for entry in cluster.logs[partition].entries
            if (record := self._forgeries.own_record(victim, entry)) is not None
        ]
        copied = rng.choice(mine) if mine and rng.random() < COPIED_ID else None
        scribe = Scribe(victim.broker, victim.incarnation)
        write = drafts.forged(rng, cluster.truths[partition].view, cluster.namespaces, cluster.brokers, scribe, copied)
        self._forgeries.written(victim, write.key, write.value)
        cluster.append("forger", Topic.CHANNEL, partition, write.key, write.value)
        cluster.trace.count("forged records")

    def _mark(self, rng: Random) -> None:
        """What no process that started cold has written."""
        log = rng.choice(self._cluster.logs)
        incarnation = rng.choice(self._cluster.processes).incarnation
        self._append(log.partition, drafts.false_mark(rng, log.end, incarnation))

    def _end_transaction(self, rng: Random) -> None:
        """A transaction of a few records, or of none, and its marker."""
        for _ in range(rng.choice((0, 1, 1, 2)) if self._cluster.options.hostile else 0):
            self._hostile(rng)
        self._cluster.end_transaction(rng.choice(self._cluster.logs).partition)

    def _add_partition(self, rng: Random) -> None:
        """Kafka's topic gets a partition, once the channel has recorded its number; something may be written there, too."""
        cluster = self._cluster
        if first_count(cluster.logs[0].left()) is None:
            return
        cluster.add_partition()
        cluster.note("Kafka's topic gets a partition")
        cluster.trace.count("partitions added")
        if cluster.options.hostile:
            cluster.unused[-1].append(cluster.now_ms, b"t/one", bytes(rng.randrange(256) for _ in range(3)))

    def _broken(self, rng: Random) -> None:
        cluster = self._cluster
        partition = rng.randrange(len(cluster.logs))
        self._append(partition, drafts.broken(rng, cluster.truths[partition].view, cluster.namespaces))

    def _replay(self, rng: Random) -> None:
        log = rng.choice(self._cluster.logs)
        entries = [entry for entry in log.entries[-80:] if entry.key != HEARTBEAT_KEY]
        if entries:
            entry = rng.choice(entries)
            self._append(log.partition, drafts.JunkWrite("replay", entry.key or b"!", entry.value))

    def _fail_over(self, rng: Random) -> None:
        rng.choice(self._cluster.logs).fail_over()
