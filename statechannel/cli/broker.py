"""Command `statechannel broker run`: a broker process that runs until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Annotated, Any

import structlog

from statechannel.api import BrokerHooks, StateChannel, StateChannelError, Stopped
from statechannel.api.channel import Opening
from statechannel.api.extensions import make_installed
from statechannel.broker.supervision import within
from statechannel.cli.brokers import dismiss
from statechannel.cli.kit.confirmation import count_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, commands, option, with_connection
from statechannel.cli.kit.output import print_json_line, say, silence_stdout
from statechannel.cli.pre_stop import pre_stop
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode, UsageError
from statechannel.logger import count_unwritten
from statechannel.printable import printable_lines
from statechannel.protocol.bundle import DOTS
from statechannel.protocol.codec import is_new_broker_id
from statechannel.settings import Settings
from statechannel.settings.groups_cluster import LogFormat

FINAL_LOG_S = 1.0
_STUCK = "the event loop is stuck; the process ends itself, and its bundles are repaired"

app = commands("Broker processes.")


app.command()(dismiss)
app.command("pre-stop")(pre_stop)


class SimulatedHooks(BrokerHooks):
    """Hooks of a simulated broker: configurable latencies, and a printed line for each call.

    Args:
        own_s: Simulated latency of preparing a bundle.
        release_s: Simulated latency of releasing a bundle.
        events: Write a line of JSON to standard output for each hook.
    """

    def __init__(self, *, own_s: float, release_s: float, events: bool) -> None:
        self._own_s = own_s
        self._release_s = release_s
        self.events = events

    async def on_own(self, bundle: str, generation: int) -> None:
        self.print_event("own", bundle, generation=generation)
        await asyncio.sleep(self._own_s)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.print_event("serve", bundle, generation=generation)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        await asyncio.sleep(self._release_s)
        self.print_event("release", bundle, generation=generation, destination=destination)

    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        self.print_event("moved", bundle, owner=owner, urls=dict(urls))

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        """It stores nothing that a split could lose: clients of the parent are answered until its parts are served."""

    def print_event(self, event: str, bundle: str, **facts: Any) -> None:
        if self.events:
            # The second clock is one for all processes of a machine, whatever their wall clocks say.
            at = {"at_ms": now_ms(), "mono_ns": time.monotonic_ns()}
            _print_event({"event": event, "bundle": bundle, **at, **facts})


@app.command()
@with_connection
def run(
    connect: Connect,
    broker_id: Annotated[str, option("--id ID", "Broker id, unique among live brokers.")],
    advertised: Annotated[
        list[str] | None,
        option(
            "--advertised --listen [PROTOCOL=]URL", "URL for clients, e.g. pulsar=pulsar://host:6650; may be repeated."
        ),
    ] = None,
    simulated: Annotated[
        bool, option("--simulated/--no-simulated", "Simulated broker without a data plane (the only kind available).")
    ] = True,
    own_ms: Annotated[int, option("--own-ms", "Simulated preparation time of a bundle.", min=0)] = 0,
    release_ms: Annotated[int, option("--release-ms", "Simulated release latency.", min=0)] = 0,
    events: Annotated[bool, option("--events", "Print a line of JSON for each hook call.")] = False,
    take_over: Annotated[
        bool | None, option("--take-over", "Start even if another process with this id may still be alive.")
    ] = None,
    accept_lost_head: Annotated[
        bool | None,
        option(
            "--accept-lost-head",
            "Start although records were deleted from the channel's log and no broker knows them any more.",
        ),
    ] = None,
    create_topics: Annotated[bool, option("--create-topics", "Create missing topics of the channel.")] = False,
    join_timeout: Annotated[float | None, option("--join-timeout", "Longest wait until caught up.", min=1)] = None,
    budget: Annotated[
        float | None,
        option(
            "--shutdown-budget",
            "Time for the hand-overs at shutdown. Default: hooks.shutdown_budget_s, and hooks.shutdown_bundle_s a bundle.",
            min=0,
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM; then it hands over its bundles, sends a goodbye and ends."""
    if not simulated:
        raise UsageError(
            "this command runs simulated brokers only",
            hint="A real broker embeds `statechannel.api.StateChannel` (README, Embed it).",
        )
    if not is_new_broker_id(broker_id):
        raise UsageError(
            f"--id {broker_id!r} is not a broker id",
            hint="1 to 128 of A-Za-z0-9_.:-, the first of them not -"
            + (", and not . or .. alone" if broker_id in DOTS else ""),
        )
    listeners = dict(_listener(text) for text in advertised or ())
    flags = {"membership.take_over=true": take_over, "leader.accept_lost_head=true": accept_lost_head}
    settings = connect(*(flag for flag, is_given in flags.items() if is_given)).settings
    set_up_logs(settings)
    hooks = SimulatedHooks(own_s=own_ms / 1_000, release_s=release_ms / 1_000, events=events)

    def open_channel() -> Opening:
        return StateChannel.open(
            settings,
            broker=broker_id,
            hooks=hooks,
            listeners=listeners,
            create_topics=create_topics,
            join_timeout_s=join_timeout,
            extensions=make_installed(settings),
            on_stuck=on_stuck(events=events),
        )

    _end(asyncio.run(_run(open_channel, broker_id, hooks, listeners, budget)), events=events)


def _listener(text: str) -> tuple[str, str]:
    protocol, equals, url = text.partition("=")
    if not equals:
        protocol, url = text.partition("://")[0], text
    if "://" not in url or not protocol:
        raise UsageError(
            f"--advertised {text!r} is not a URL", hint="Use PROTOCOL=URL, e.g. pulsar=pulsar://127.0.0.1:6650"
        )
    return protocol, url


async def _run(
    open_channel: Callable[[], Opening],
    broker: str,
    hooks: SimulatedHooks,
    listeners: Mapping[str, str],
    budget_s: float | None,
) -> Stopped:
    wanted = _signals()
    opening = open_channel()
    opened = asyncio.ensure_future(opening)
    stop = asyncio.ensure_future(wanted.wait())
    await asyncio.wait({opened, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        stopped = await opening.shutdown(budget_s)
        if stopped is None:
            opened.cancel()
        with contextlib.suppress(asyncio.CancelledError, StateChannelError):
            await opened
        return stopped or Stopped("closed", "stopped by a signal before it was heard")
    channel = await opened
    http = channel.identity.http
    say(f"broker {broker} is caught up and accepts bundles" + (f"; HTTP endpoint: {http}" if http else ""))
    hooks.print_event(
        "ready", "", broker=broker, incarnation=channel.identity.incarnation, urls=dict(listeners), http=http or None
    )
    ended = asyncio.ensure_future(channel.wait_stopped())
    await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        budget_s = channel.shutdown_budget_s if budget_s is None else budget_s
        bundles = count_of(len(channel.serving()), "bundle")
        say(f"broker {broker} hands {bundles} over (at most {budget_s:g} s; a second signal ends it at once)")
        return await channel.shutdown(budget_s)
    stop.cancel()
    return await ended


def _signals() -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT; the second ends the process."""
    wanted = asyncio.Event()

    def on_signal() -> None:
        if wanted.is_set():
            sys.stderr.write("error: ended before the hand-over was complete\n")
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        wanted.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return wanted


def on_stuck(*, events: bool) -> Callable[[], None]:
    """End the process if the loop is stuck: a process that only looks alive must not stay."""

    def say() -> None:
        if events:
            _print_end(Stopped("stuck", _STUCK))
        sys.stderr.write(f"error: {_STUCK}\nhint: The log above shows what it was doing; report that as a bug.\n")
        sys.stderr.flush()

    def end() -> None:
        within(FINAL_LOG_S, say)  # what holds the loop may be one of the pipes
        os._exit(ExitCode.BUG)

    return end


def _end(stopped: Stopped, *, events: bool) -> None:
    if events:
        _print_end(stopped)
    if stopped.clean:
        say(f"ended: {stopped.detail or stopped.reason}")
        return
    raise CommandError(
        f"the broker stopped ({stopped.reason}): {stopped.detail}",
        hint="The other brokers repair its bundles; start it again once the cause is fixed.",
        code=stopped.exit_code,
    )


def _print_end(stopped: Stopped) -> None:
    _print_event({"event": "stopped", "reason": stopped.reason, "detail": stopped.detail, "at_ms": now_ms()})


def _print_event(event: Mapping[str, Any]) -> None:
    try:
        print_json_line(event)
    except OSError:  # the watcher has gone; what is served goes on being served
        silence_stdout()


class LineHandler(logging.StreamHandler[Any]):
    """Writes log lines to standard error; one that cannot be written is counted."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        del record
        count_unwritten()


def _with_fields(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event and its fields, where the line has them, instead of its text."""
    record = line["_record"]
    return {**line, **getattr(record, "facts", {}), "event": getattr(record, "event", line["event"])}


def _harmless(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes control characters in messages of errors and libraries that bypass our logger."""
    for name, value in line.items():
        line[name] = printable_lines(value)
    return line


def set_up_logs(settings: Settings) -> None:
    """Send every log line to standard error, in the level and format of the settings."""
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if settings.observe.log_format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    handler = LineHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                _with_fields,
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _harmless, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.getLevelNamesMapping()[settings.observe.log_level.value.upper()])
