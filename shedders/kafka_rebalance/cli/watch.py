"""`statechannel partitions watch`: the autopilot with brakes; one look, its status, or until interrupted."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.arguments import Exclude, PlanOptions, need_extra, parse_amount, request_of
from shedders.kafka_rebalance.cli.execution import State, Throttle, place_of
from shedders.model.amounts import count, size
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, duration, moment, print_facts, print_json, print_json_line, say, stdout
from statechannel.errors import ExitCode, StateChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shedders.kafka_rebalance.execution.session import ExecutionPlace
    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.settings import WatchSettings
    from shedders.kafka_rebalance.watch.live import LivePlans
    from shedders.kafka_rebalance.watch.topic import WatchBook
    from shedders.kafka_rebalance.watch.watcher import PartitionWatcher, WatchEvent

TICK_MAX_S = 5.0
ENDING_S = 60.0
"""How long the end of a plan under way is waited for at an interrupt, which restores throttles."""


@with_connection
def watch(
    connect: Connect,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, and end when what was started has ended; e.g. for cron.")
    ] = False,
    act: Annotated[bool, typer.Option("--act", help="Also execute plans; without it, only propose them.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look once and show what would be done; write and start nothing.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show the autopilot: who acts, reason to hold, budget left.")
    ] = False,
    goals: Annotated[
        list[str] | None,
        typer.Option("--goals", metavar="NAME[=RANGE],...", help="Goals in order, as for `partitions plan`."),
    ] = None,
    exclude: Exclude = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="AMOUNT", help="Most data to copy within the budget's window.")
    ] = None,
    throttle: Throttle = None,
    state: State = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Watch the cluster: propose plans at intervals and, with --act, execute them within a budget."""
    modes = [name for name, on in (("--once", once), ("--dry-run", dry_run), ("--status", status)) if on]
    if len(modes) > 1:
        raise CommandError(
            f"{' and '.join(modes)} are mutually exclusive", hint="Use one of them.", code=ExitCode.USAGE
        )
    need_extra()
    place = place_of(connect, state, throttle_bytes_per_s=throttle)
    brakes: dict[str, Any] = {"mode": "act"} if act else {}
    if budget is not None:
        brakes["budget_bytes"] = parse_amount(budget, "--budget")
    settings = place.settings.watch.model_copy(update=brakes)
    if status:
        _show_status(place, settings, output)
        return
    wanted = PlanOptions(goals=goals or settings.goals, exclude=exclude or ())
    request = request_of(wanted, place.settings)
    if dry_run:
        _preview(place, settings, request, output)
        say_dry_run(connect().cluster)
    else:
        _watch(place, settings, request, output, once=once)


def _watch(place: ExecutionPlace, settings: WatchSettings, request: PlanRequest, output: Output, *, once: bool) -> None:
    from shedders.kafka_rebalance.watch.topic import WatchTopic
    from shedders.kafka_rebalance.watch.watcher import BEATS

    over = threading.Event()
    with (
        _interrupts(over) as signals,
        WatchTopic(place.client, settings.topic, away_s=settings.away_s, timeout_s=place.timeout_s) as topic,
    ):
        topic.create(place.settings.replication_factor)
        alerts: list[WatchEvent] = []
        watcher, plans = _watcher(place, settings, request, topic, over, _printer(output, alerts))
        try:
            with _signs_of_life(watcher, settings.away_s / BEATS):
                _go_on(watcher, settings, over, once=once)
        finally:
            _end(watcher, plans)
    if signals:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if once and alerts:
        raise typer.Exit(ExitCode.REJECTED)


@contextmanager
def _signs_of_life(watcher: PartitionWatcher, every_s: float) -> Iterator[None]:
    """Beats from a thread: reading and planning a large cluster takes minutes, and no other watcher is to take over meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            with suppress(StateChannelError):  # repeated with the next one
                watcher.beat()

    thread = threading.Thread(target=run, name="partitions-watch-beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(every_s)


def _go_on(watcher: PartitionWatcher, settings: WatchSettings, over: threading.Event, *, once: bool) -> None:
    """Tick until interrupted; with `once`, until nothing is executed.

    Raises:
        StateChannelError: With `once`: Kafka is out of reach.
    """
    from shedders.kafka_rebalance.execution.checks import now_ms

    trouble = ""
    while not over.is_set():
        try:
            watcher.tick(now_ms())
            trouble = ""
        except StateChannelError as error:
            if once and not watcher.driving:
                raise
            if str(error) != trouble:  # once for each outage
                trouble = str(error)
                say(cell(f"note: no look: {error}"))
        if once and not watcher.executing and not trouble:
            return
        over.wait(min(TICK_MAX_S, settings.away_s / 8, settings.interval_s))


def _end(watcher: PartitionWatcher, plans: LivePlans) -> None:
    if plans.running:
        plans.interrupt("the watcher was interrupted")
        say("ending: throttles are removed; the plan stays open, and the next watcher continues it")
        if not plans.wait_end(ENDING_S):
            return  # others continue it when this process is silent
    try:
        watcher.leave()
    except StateChannelError as error:
        say(cell(f"note: the end of this watcher is not in the topic, so others wait for its silence: {error}"))


def _watcher(
    place: ExecutionPlace,
    settings: WatchSettings,
    request: PlanRequest,
    topic: Any,
    over: threading.Event,
    report: Callable[[WatchEvent], None],
) -> tuple[PartitionWatcher, LivePlans]:
    from shedders.kafka_rebalance.watch.live import LiveCluster, LivePlans
    from shedders.kafka_rebalance.watch.topic import WatcherIdentity
    from shedders.kafka_rebalance.watch.watcher import PartitionWatcher

    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    plans = LivePlans(place, f"watcher {name}", over)
    watcher = PartitionWatcher(
        WatcherIdentity.of_this_process(name), settings, topic, LiveCluster(place, request), plans, report
    )
    return watcher, plans


@contextmanager
def _interrupts(over: threading.Event) -> Iterator[list[int]]:
    """Let signals end the watcher in order; a second one ends it at once."""
    signals: list[int] = []

    def handle(number: int, _frame: object) -> None:
        signals.append(number)
        over.set()
        if len(signals) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _printer(output: Output, alerts: list[WatchEvent]) -> Callable[[WatchEvent], None]:
    """A function that prints events, and keeps alerts."""
    from shedders.kafka_rebalance.watch.watcher import WatchEventKind

    def show(event: WatchEvent) -> None:
        if event.kind is WatchEventKind.ALERT:
            alerts.append(event)
        now_ms = time.time_ns() // 1_000_000
        if output is Output.JSON:
            print_json_line(_event_fields(event) | {"at_ms": now_ms})
            return
        line = f"{moment(now_ms)}  {event.message}{f' ({event.code})' if event.code else ''}"
        stdout().print(cell(line), markup=False)
        if event.hint:
            stdout().print(cell(f"  {event.hint}"), markup=False)

    return show


def _event_fields(event: WatchEvent) -> dict[str, Any]:
    fields = asdict(event)
    return {
        "event": str(event.kind),
        "code": str(event.code) or None,
        "message": fields["message"],
        "hint": fields["hint"] or None,
        "plan": fields["plan_id"] or None,
        "path": fields["path"] or None,
    }


def _preview(place: ExecutionPlace, settings: WatchSettings, request: PlanRequest, output: Output) -> None:
    from shedders.kafka_rebalance.watch.live import present_ms
    from shedders.kafka_rebalance.watch.topic import WatchTopic

    events: list[WatchEvent] = []
    with WatchTopic(place.client, settings.topic, away_s=settings.away_s, timeout_s=place.timeout_s) as topic:
        book = topic.read() if topic.exists() else None
        watcher, _ = _watcher(place, settings, request, topic, threading.Event(), events.append)
        at_ms, clock_trouble = present_ms(place, book)
        watcher.preview(at_ms, book)
    if output is Output.JSON:
        shown = [_event_fields(event) for event in events]
        print_json({"events": shown, "read_at_ms": at_ms, "clock_trouble": clock_trouble or None})
        return
    _say_clock(clock_trouble)
    for event in events:
        stdout().print(cell(f"{event.message}{f' ({event.code})' if event.code else ''}"), markup=False)
        if event.hint:
            stdout().print(cell(f"  {event.hint}"), markup=False)


# --- status -----------------------------------------------------------------------------------------------------------


def _read_book(place: ExecutionPlace, settings: WatchSettings) -> WatchBook | None:
    """Contents of the autopilot's topic; None: it does not exist.

    Raises:
        KafkaAdapterError: The topic cannot be read.
    """
    from shedders.kafka_rebalance.watch.topic import WatchTopic

    with WatchTopic(place.client, settings.topic, away_s=settings.away_s, timeout_s=place.timeout_s) as topic:
        return topic.read() if topic.exists() else None


def _say_clock(trouble: str) -> None:
    if trouble:
        say(cell(f"note: times are by this machine's clock, as Kafka's could not be read: {trouble}"))


def autopilot_of(place: ExecutionPlace) -> tuple[dict[str, Any] | None, str]:
    """Status of the autopilot, beside that of a plan: None where it never ran; and why it could not be read, for people."""
    from shedders.kafka_rebalance.watch.live import present_ms

    settings = place.settings.watch
    try:
        book = _read_book(place, settings)
        facts = status_fields(book, settings, *present_ms(place, book))
    except StateChannelError as error:
        return None, str(error)
    return (None if facts["watcher"] is None else facts), ""


def autopilot_line(facts: dict[str, Any]) -> str:
    """Who acts, the last look, why nothing is started, and what is left of the budget."""
    rows = dict(_status_rows(facts))
    seen = moment(facts["seen_at_ms"])
    acts = f"{facts['watcher']} acts" if facts["alive"] else f"none acts, {facts['watcher']} was last seen {seen}"
    doing = [] if facts["execution"] is None else [rows["does"]]
    holds = [] if rows["holds"] is None else [f"holds: {rows['holds']}"]
    return "; ".join([acts, f"last look {rows['last look']}", *doing, *holds, f"budget left {rows['budget left']}"])


def _show_status(place: ExecutionPlace, settings: WatchSettings, output: Output) -> None:
    from shedders.kafka_rebalance.watch.live import present_ms

    book = _read_book(place, settings)
    facts = status_fields(book, settings, *present_ms(place, book))
    if output is Output.JSON:
        print_json(facts)
        return
    if book is None or book.holder is None:
        never = "none: the autopilot has never run on this cluster"
        print_facts([("watcher", never), ("next", "Start it with `statechannel partitions watch`.")])
        return
    _say_clock(facts["clock_trouble"] or "")
    print_facts(_status_rows(facts))


def status_fields(
    book: WatchBook | None, settings: WatchSettings, now_ms: int, clock_trouble: str = ""
) -> dict[str, Any]:
    """What the topic says of the autopilot; `settings` are those of this command; time and trouble: see `live.present_ms`."""
    from shedders.kafka_rebalance.watch.values import WatchState

    if book is not None:
        book.require_known()
    holder = None if book is None else book.holder
    live = None if book is None else book.alive(now_ms)
    alive = live is not None and not live.watcher.is_dead()
    state = (None if book is None else book.state) or WatchState()
    document = replace(state, moved={}).to_json()
    return {
        "watcher": None if holder is None else holder.watcher.name,
        "alive": alive,
        "generation": None if holder is None else holder.generation,
        "seen_at_ms": None if holder is None else holder.seen_at_ms,
        "looked_at_ms": state.looked_at_ms or None,
        "hold": document["hold"],
        "execution": document["execution"],
        "proposal": state.proposal_id or None,
        "proposed_at_ms": state.proposed_at_ms or None,
        "imbalanced_since_ms": state.imbalanced_since_ms or None,
        "budget_bytes": settings.budget_bytes,
        "budget_left_bytes": state.left_bytes(now_ms, settings),
        "budget_window_s": settings.budget_window_s,
        "resting": len(state.resting(now_ms, settings.cooldown_s)),
        "blocked": document["blocked"],
        "blocked_until_ms": state.blocked_until_ms if state.blocked else None,
        "read_at_ms": now_ms,
        "clock_trouble": clock_trouble or None,
    }


def _status_rows(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    hold, execution = facts["hold"], facts["execution"]
    seen = moment(facts["seen_at_ms"])
    doing = "nothing"
    if execution is not None:
        how = "cancels" if execution["giving_up"] else "has paused" if execution["paused"] else "executes"
        doing = f"{how} plan {execution['plan_id']}"
    budget = f"{size(facts['budget_left_bytes'])} of {size(facts['budget_bytes'])}"
    return [
        ("watcher", facts["watcher"]),
        ("alive", f"yes, generation {facts['generation']}" if facts["alive"] else f"no, last seen {seen}"),
        ("last look", moment(facts["looked_at_ms"])),
        ("does", doing),
        ("holds", None if hold is None else f"{hold['message']} ({hold['code']}, since {moment(hold['since_ms'])})"),
        ("proposal", facts["proposal"] and f"{facts['proposal']}, {moment(facts['proposed_at_ms'])}"),
        ("imbalance since", moment(facts["imbalanced_since_ms"])),
        ("budget left", f"{budget} within {duration(facts['budget_window_s'] * 1_000)}"),
        ("resting", count(facts["resting"], "partition")),
        ("starts none until", moment(facts["blocked_until_ms"])),
    ]
