"""`statechannel drain BROKER`, `statechannel uncordon BROKER` and `statechannel rolling-restart`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from shedders.cli.drain import cordons
from shedders.cli.drain.follower import (
    DrainRequest,
    DrainResult,
    broker_of,
    check,
    drain,
    new_id,
    require_empty,
    resumable,
)
from shedders.cli.drain.rolling import Restart, RestartRequest, read_progress, require_program, split_command
from shedders.model import plan
from shedders.model.amounts import are, count, were
from shedders.model.cluster import Bundle
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.options import By, Connect, OutputAs, Reason, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, say, stdout
from statechannel.cli.kit.progress import bar
from statechannel.errors import NotFoundError, StateChannelError, UsageError
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.stories.registry import Registry

if TYPE_CHECKING:  # plans and dry runs load it
    from shedders.decision.placing import Pipeline
    from shedders.model.cluster import Cluster

app = commands()
uncordon_app = commands()

RATE_MAX = 10_000.0
_PORTIONS = 64
"""Number of times at which a forecast counts the load that earlier moves have brought."""
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/s)?", re.ASCII)

BrokerWord = Annotated[str, argument("BROKER")]
Rate = Annotated[str | None, option("--rate N/s", "Bundles moved per second. Default: extensions.balancer.drain.")]
Force = Annotated[bool, option("--force", "Also move bundles that policies forbid on every other broker.")]


def _limit(name: str, what: str, most_s: int = 86_400) -> Any:
    return option(f"{name} SECONDS", f"Time limit {what}.", min=1, max=most_s)


@app.command("drain")
@with_connection
def drain_(
    connect: Connect,
    broker: BrokerWord,
    rate: Rate = None,
    force: Force = False,
    reason: Reason = None,
    by: By = None,
    operation: Annotated[str | None, option("--operation ID", "Id of a drain to continue or watch.")] = None,
    timeout: Annotated[float, _limit("--timeout", "for one broker")] = 1_800.0,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Cordon a broker and move all its bundles to other brokers.

    The broker stays cordoned until `statechannel uncordon`. Run the same command again to continue after a failure.
    """
    cordons.key_of(broker)
    rate_per_s = rate_of(rate)
    connection = connect()
    registry = check(connection, broker, force=force)
    if not confirm(
        lambda: effect_of(connection, registry, broker, force=force),
        connection=lambda: connection,
        yes=yes,
        dry_run=dry_run,
        output=output,
    ):
        return
    drain_id = _id_of(connection, broker, operation)
    request = DrainRequest(broker, drain_id, rate_per_s, force, reason or "", by, timeout)
    with bar(lines=True) as shown:
        drained = drain(connection, request, shown)
    _report(drained, output, _overfull_now(connection, drained))
    require_empty(drained)


def effect_of(connection: Connection, registry: Registry, broker: str, *, force: bool) -> Effect:
    """What the drain of a living broker would do, as policies and loads are now."""
    bundles = sorted(key.name for key in read_channel(connection).live() if key.owner == broker)
    others = sorted(name for name, member in registry.members.alive.items() if name != broker and member.accepting)
    expected = _expected(connection, broker, bundles) if bundles and others else DrainForecast()
    stays = {} if force else expected.stays
    moved = count(len(bundles) - len(stays), "bundle")
    sentences = [
        f"{broker} would be cordoned, and {'' if stays else 'its '}{moved} moved to {', '.join(others) or 'no broker'}; it stays "
        f"cordoned until `statechannel uncordon {broker}`"
    ]
    if stays:
        first = next(iter(stays))
        sentences.append(f"{count(len(stays), 'bundle')} would stay, as policies are now; {first}: {stays[first]}")
    if expected.overfull:
        sentences.append(f"over capacity after that: {_shares(expected.overfull)}; start another broker first")
    facts = {"broker": broker, "bundles": bundles, "others": others, "stays": stays, "overfull": expected.overfull}
    return Effect(sentences, facts)


@dataclass(frozen=True, slots=True)
class DrainForecast:
    """What a drain would do, by the newest load reports.

    Attributes:
        stays: Bundles that the filters let no other broker take, with why; each by itself.
        overfull: Share of its capacity that a broker would use, where it is above 1.
    """

    stays: Mapping[str, str] = field(default_factory=dict)
    overfull: Mapping[str, float] = field(default_factory=dict)


def _expected(connection: Connection, broker: str, bundles: Sequence[str]) -> DrainForecast:
    # Other uses of the command begin sooner without them.
    from shedders.queries.live_source import live_at
    from shedders.snapshots.cluster import cluster_of
    from shedders.snapshots.selection import pipeline_of

    snapshot = live_at(connection)
    return forecast(cluster_of(snapshot), pipeline_of(snapshot)[1], broker, bundles)


def forecast(cluster: Cluster, pipeline: Pipeline, broker: str, bundles: Sequence[str]) -> DrainForecast:
    """What a drain of these bundles would do: filters and placement choose as in a drain, in portions."""
    from shedders.balancer.drain_plan import traffic
    from shedders.filters.chain import Filters
    from shedders.model.moved_cluster import after_moves

    filters = Filters(cluster, pipeline.settings)
    waiting = [cluster.bundles.get(name) or Bundle(name, broker) for name in bundles]
    faults = {bundle.name: filters.cannot_leave(bundle) for bundle in waiting}
    stays = {name: fault for name, fault in faults.items() if fault is not None}
    policies = replace(cluster.policies, cordons={**cluster.policies.cordons, broker: "drain"})
    seen = replace(cluster, policies=policies)
    waiting = sorted(waiting, key=lambda bundle: (-traffic(bundle), bundle.name))
    receivers: set[str] = set()
    portion = -(-len(waiting) // _PORTIONS)
    for begin in range(0, len(waiting), max(1, portion)):
        moves = []
        for bundle in waiting[begin : begin + portion]:
            placed = pipeline.place(seen, bundle)
            if placed.broker is not None:
                receivers.add(placed.broker)
                moves.append(
                    plan.BundleMove(bundle.name, broker, placed.broker, plan.Reason.ADMIN, traffic(bundle), placed.why)
                )
        seen = after_moves(seen, moves)
    return DrainForecast(stays, overfull(seen, receivers))


def overfull(cluster: Cluster, names: Iterable[str]) -> dict[str, float]:
    """Share of its capacity that each of these brokers uses, by its report, where it is above 1."""
    loads = ((name, cluster.brokers[name].load) for name in sorted(names) if name in cluster.brokers)
    return {name: load.max_resource_usage for name, load in loads if load is not None and load.max_resource_usage > 1}


def _shares(overfull: Mapping[str, float]) -> str:
    return ", ".join(f"{name} at {share:.1%}" for name, share in overfull.items())


def _overfull_now(connection: Connection, drained: DrainResult) -> dict[str, float]:
    """Brokers over their capacity after a drain; none where their reports cannot be read."""
    from shedders.queries.live_source import live_at
    from shedders.snapshots.cluster import cluster_of

    if not drained.facts.get("moved"):
        return {}
    try:
        cluster = cluster_of(live_at(connection))
    except StateChannelError:
        return {}
    return overfull(cluster, cluster.brokers.keys() - {drained.request.broker})


@uncordon_app.command()
@with_connection
def uncordon(
    connect: Connect,
    broker: BrokerWord,
    force: Annotated[bool, option("--force", "Also end a cordon that was not set by a drain.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Let a broker take bundles again, and end a running drain of it."""
    cordons.key_of(broker)
    done = cordons.uncordon(connect(), broker, force=force)
    if output is Output.JSON:
        print_json(done.fields())
        return
    stdout().print(f"{broker} takes bundles again (offset {done.fields()['offset']})", markup=False)


def rate_of(text: str | None) -> float | None:
    """Parse bundles per second: `20`, `20/s`, `0.5/s`.

    Raises:
        UsageError: The text is not a rate.
    """
    if text is None:
        return None
    match = _RATE.fullmatch(text)
    rate_per_s = 0.0 if match is None else float(match[1])
    if not 0 < rate_per_s <= RATE_MAX:
        raise UsageError(
            f"`{text}` is not a valid rate",
            hint=f"Use bundles per second, e.g. 20/s or 0.5/s; at most {RATE_MAX:.0f}/s.",
        )
    return rate_per_s


def _id_of(connection: Connection, broker: str, operation: str | None) -> str:
    if operation is None:
        running = resumable(connection, broker)
        if running is not None:
            say(f"{broker} is being drained already (operation {running}); this command watches that drain")
        return running or new_id()
    about = broker_of(connection, operation)
    if about != broker:
        what = "is not a drain" if about is None else f"is a drain of {about}"
        raise NotFoundError(
            f"operation {operation} {what}",
            hint="`statechannel operation list` shows the newest; without --operation, a new drain starts.",
        )
    return operation


def _report(drained: DrainResult, output: Output, overfull: Mapping[str, float]) -> None:
    if output is Output.JSON:
        print_json(drained.fields() | {"overfull": overfull})
        return
    facts: dict[str, Any] = drained.fields()
    moved, left = facts["moved"], drained.left_count
    sentence = f"{facts['broker']}: {count(moved, 'bundle')} {were(moved)} moved, {left} {are(left)} left"
    stdout().print(f"{sentence} (operation {facts['operation']}, by {facts['executed_by']})", markup=False)
    stdout().print(f"{facts['broker']} stays cordoned until `statechannel uncordon {facts['broker']}`", markup=False)
    if drained.left:
        print_table(
            ("bundle", "reason", "why"),
            [(item.get("bundle"), item.get("reason"), item.get("why")) for item in drained.left],
        )
    if facts["earlier_known"] is False:
        say("note: another leader may have moved more; its decisions could not be read")
    if facts["reports_in_vain"]:
        say(f"note: {count(facts['reports_in_vain'], 'bundle')} went to brokers that did not report their load in time")
    if overfull:
        say(f"note: over capacity, by the newest load reports: {_shares(overfull)}; start another broker")
    if facts["leads"]:
        say(f"note: {facts['broker']} is the leader; another broker takes over when it stops")


rolling_restart_app = commands()


@rolling_restart_app.command()
@with_connection
def rolling_restart(
    connect: Connect,
    broker: Annotated[
        list[str] | None, option("--broker BROKER", "Brokers to restart; may be repeated. Default: all.")
    ] = None,
    command: Annotated[
        str | None,
        option("--command CMD", "Command that restarts one broker; {broker} is replaced by its id. No shell runs."),
    ] = None,
    manual: Annotated[bool, option("--manual", "Wait while you restart each broker yourself.")] = False,
    rate: Rate = None,
    force: Force = False,
    reason: Reason = None,
    by: By = None,
    operation: Annotated[str | None, option("--operation ID", "Id of a restart to continue.")] = None,
    instead_of: Annotated[
        str, option("--instead-of ID", "Id of a restart under way that this one replaces, with brokers of its own.")
    ] = "",
    back_within: Annotated[float, _limit("--back-within", "until a broker is back")] = 300.0,
    command_within: Annotated[float, _limit("--command-within", "of the command")] = 300.0,
    timeout: Annotated[float, _limit("--timeout", "for the drain of one broker")] = 1_800.0,
    fresh_within: Annotated[float, _limit("--fresh-within", "for fresh load reports", 3_600)] = 60.0,
    leader_within: Annotated[float, _limit("--leader-within", "until a leader is elected", 3_600)] = 60.0,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Restart brokers one after the other, the leader last: drain, restart, wait until it is back, uncordon.

    It stops at the first broker that cannot be drained or does not come back. With --operation it continues there; the
    command may then run a second time for that broker.
    """
    if (command is None) is not manual:
        raise UsageError("either --command CMD or --manual is required", hint="See --help.")
    words = None if command is None else split_command(command)
    if words is not None:
        require_program(words)
    for name in broker or ():
        cordons.key_of(name)
    rate_per_s = rate_of(rate)
    connection = connect()
    if operation is not None and not read_progress(connection, operation).brokers:
        raise NotFoundError(
            f"rolling restart {operation} not found",
            hint="It may have stopped before its first broker; start a new one without --operation.",
        )
    request = RestartRequest(
        operation or new_id(),
        words,
        rate_per_s,
        force,
        reason or "",
        by,
        back_s=back_within,
        command_s=command_within,
        drain_s=timeout,
        fresh_s=fresh_within,
        leader_s=leader_within,
        instead_of=instead_of,
    )
    with bar(lines=True) as shown:
        restart = Restart(connection, request, shown)
        with shown.hidden():
            if not confirm(
                lambda: _effect_of_restart(restart, broker or ()),
                connection=lambda: connection,
                yes=yes,
                dry_run=dry_run,
                output=output,
            ):
                return
        say(f"rolling restart {request.restart}")
        done = restart.run(broker or ())
    if output is Output.JSON:
        print_json({"operation": request.restart, "restarted": done})
        return
    names = ", ".join(str(result["broker"]) for result in done) or "no broker was left to restart"
    stdout().print(f"restarted: {names} (operation {request.restart})", markup=False)


def _effect_of_restart(restart: Restart, wanted: Sequence[str]) -> Effect:
    order = restart.order(wanted)
    sentence = f"{', '.join(order)} would be drained, restarted and uncordoned in this order, one at a time"
    return Effect([sentence if order else "no broker would be restarted"], {"order": order})
