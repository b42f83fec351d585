"""Where searches begin, and which faults may come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from statechannel.engine.commands import Command, CreateNamespace, Shutdown, Split, Transfer, Unload
from statechannel.engine.inputs import CommandReceived
from statechannel.protocol.bundle import FULL_LOWER, FULL_UPPER
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.sim.options import EngineOptions, engine_config
from tests.interleavings.automaton import Automaton
from tests.interleavings.cluster import LOOKUP_TOKEN, PATIENCE_S, Cluster
from tests.interleavings.log import empty_log
from tests.interleavings.recovery import Recovery
from tests.interleavings.state import Budget, ClusterState, Setting, new_process

NAMESPACE = "t/n"
BUNDLE = f"{NAMESPACE}/0x{FULL_LOWER:08x}_0x{FULL_UPPER:08x}"
REST_S = 15.0
LONG_S = 60.0
BUDGET_S = 20.0
OPERATION = "op-flow"
RIVAL = "op-rival"
FLOW_TOKEN, RIVAL_TOKEN, SETUP_TOKEN = 1, 2, 100
LEADER, FOLLOWER = "leader", "follower"


class Flow(NamedTuple):
    """One flow.

    Attributes:
        owner: Which of the processes owns the bundle at the start.
        asked: Which of them gets the command.
        command: Of the destination of a transfer; None: nobody asks for anything.
        scopes: Faults, by name.
        rival: Another command, given to the other process at the same time.
        brokers: How many processes there are.
        lease: Owners serve by a lease.
        fine: See `Setting`.
        cold: All processes have died long ago, and what starts finds a log that does not vouch for itself.
        asleep: The owner has slept since the command was given; the others have died, and started cold meanwhile.
    """

    owner: str
    asked: str
    command: Callable[[str], Command] | None
    scopes: Mapping[str, Budget]
    rival: Callable[[str], Command] | None = None
    brokers: int = 2
    lease: bool = False
    fine: bool = False
    cold: bool = False
    asleep: bool = False


class Start(NamedTuple):
    """Where a search begins."""

    setting: Setting
    state: ClusterState
    automaton: Automaton


def start_of(flow: Flow, scope: str) -> Start:
    """A cluster that is well, with the bundle where the flow wants it, and the command just given."""
    automaton = Automaton()
    config = engine_config(EngineOptions(lease=flow.lease, split_hooks=True), take_over=False)
    setting = Setting(config, fine=flow.fine)
    names = [chr(ord("a") + index) for index in range(flow.brokers)]
    processes = tuple(new_process(automaton, config, name, 1, 0.0) for name in names)
    state = ClusterState(0.0, empty_log(), empty_log(), processes, Budget())
    state = _recover(automaton, setting, state)
    bounds = (FULL_LOWER, FULL_UPPER)
    state = _ask(automaton, setting, state, 0, CreateNamespace(NAMESPACE, bounds, "op-create", PATIENCE_S))
    state = _recover(automaton, setting, state)
    leader = _leader(automaton, state)
    roles = {LEADER: leader, FOLLOWER: (leader + 1) % flow.brokers}
    owner = roles[flow.owner]
    if _owner(state) != names[owner]:
        holder = names.index(_owner(state))
        state = _ask(automaton, setting, state, holder, Transfer(BUNDLE, names[owner], "op-place", PATIENCE_S))
        state = _recover(automaton, setting, state)
    state = _recover(automaton, setting, state, REST_S)
    if _owner(state) != names[owner] or _leader(automaton, state) != leader:
        raise AssertionError("the start is not what the flow wants")
    asked = roles[flow.asked]
    orders = [
        (FLOW_TOKEN, OPERATION, flow.command, asked),
        (RIVAL_TOKEN, RIVAL, flow.rival, (asked + 1) % flow.brokers),
    ]
    given = [(token, operation, command, slot) for token, operation, command, slot in orders if command is not None]
    setting = Setting(
        config,
        {token: frozenset({operation}) for token, operation, _, _ in given},
        {token: state.processes[slot].name for token, _, _, slot in given}
        | {LOOKUP_TOKEN + slot: f"{name}#{2 if flow.cold else 1}" for slot, name in enumerate(names)},
        flow.fine,
    )
    destination = names[(owner + 1) % flow.brokers]
    cluster = Cluster(automaton, setting, state)
    for token, _, command, slot in given:
        cluster.command(slot, CommandReceived(token, command(destination)))
    state = cluster.freeze()
    if flow.cold:
        state = _let_all_die(automaton, setting, state)
    if flow.asleep:
        state = _start_cold_without(automaton, setting, state, owner)
    return Start(setting, state._replace(budget=flow.scopes[scope]), automaton)


def _let_all_die(automaton: Automaton, setting: Setting, state: ClusterState) -> ClusterState:
    """All die at once; long after, new ones find a cleaned log in which nothing is young."""
    cluster = Cluster(automaton, setting, state)
    for slot in range(len(state.processes)):
        cluster.crash(slot)
    cluster.channel = cluster.channel.clean()
    cluster.time_s += LONG_S
    cluster.holder = None
    for slot in range(len(state.processes)):
        cluster.start(slot, 2)
    return cluster.freeze()


def _start_cold_without(automaton: Automaton, setting: Setting, state: ClusterState, sleeper: int) -> ClusterState:
    """The sleeper has a hook under way; the others die, and long after new ones begin to take a cleaned log for the truth."""
    cluster = Recovery(automaton, setting, state._replace(budget=Budget(periods=100)))
    cluster.deliver_all(cluster.alive(), hooks=False)
    others = [slot for slot in cluster.alive() if slot != sleeper]
    for slot in others:
        cluster.crash(slot)
    cluster.channel = cluster.channel.clean()
    cluster.holder = None
    cluster.time_s += LONG_S
    for slot in others:
        cluster.start(slot, 2)
    while not any(cluster.facts(slot).cold for slot in others):
        cluster.deliver_all(others)
        cluster.pass_time(spent=("periods",), asleep=sleeper)
    # It wakes, reads to the end and wants to write, but has heard no heartbeat for long, and hears nothing of the registry.
    cluster.land(others[0])
    cluster.cut_off(sleeper)
    cluster.read(sleeper)
    for hook in cluster.processes[sleeper].hooks:
        cluster.finish_hook(sleeper, hook)
    cluster.pass_time(spent=("periods",), cut=sleeper, stalled=others[0], most_s=1.0)
    cluster.deliver_all(others)
    while not any(record.key == COLD_START_KEY for record in cluster.channel.records()):
        cluster.pass_time(spent=("periods",), asleep=sleeper)
        cluster.deliver_all(others)
    return cluster.freeze()


def _recover(automaton: Automaton, setting: Setting, state: ClusterState, at_least_s: float = 0.0) -> ClusterState:
    recovery = Recovery(automaton, setting, state)
    recovery.run(at_least_s)
    return recovery.freeze()


def _ask(automaton: Automaton, setting: Setting, state: ClusterState, slot: int, command: Command) -> ClusterState:
    cluster = Cluster(automaton, setting, state)
    cluster.command(slot, CommandReceived(SETUP_TOKEN + state.channel.end, command))
    return cluster.freeze()


def _leader(automaton: Automaton, state: ClusterState) -> int:
    return next(slot for slot, process in enumerate(state.processes) if automaton.facts[process.state].leading)


def _owner(state: ClusterState) -> str:
    key = state.channel.truth.view.keys[BUNDLE.encode()]
    if key.owner is None:
        raise AssertionError(f"no broker owns {key!r}")
    return key.owner


def _transfer(destination: str) -> Command:
    return Transfer(BUNDLE, destination, OPERATION, PATIENCE_S)


def _unload(_: str) -> Command:
    return Unload(BUNDLE, OPERATION, PATIENCE_S)


def _unload_too(_: str) -> Command:
    return Unload(BUNDLE, RIVAL, PATIENCE_S)


def _transfer_too(destination: str) -> Command:
    return Transfer(BUNDLE, destination, RIVAL, PATIENCE_S)


def _split(_: str) -> Command:
    return Split(BUNDLE, OPERATION, PATIENCE_S)


def _shut_down(_: str) -> Command:
    return Shutdown(BUDGET_S)


_FAULTS: Mapping[str, Budget] = {
    "none": Budget(periods=2),
    "late": Budget(timeouts=1, periods=1),
    "death": Budget(crashes=1, starts=1, periods=2),
    "sleep": Budget(sleeps=1, periods=4),
    "cut": Budget(cuts=1, periods=4),
    "seat": Budget(pushes=1, periods=1),
    "hook": Budget(hook_errors=1, stalls=1, periods=1),
    "hang": Budget(hook_hangs=1, periods=2),
    "lookup": Budget(lookups=1, periods=1),
}

_FINE_FAULTS: Mapping[str, Budget] = {
    "none": Budget(periods=1),
    "late": Budget(timeouts=1, periods=1),
    "seat": Budget(pushes=1),
}

_COLD_FAULTS: Mapping[str, Budget] = {
    "none": Budget(periods=6),
    "death": Budget(crashes=1, starts=1, periods=7),
    "sleep": Budget(sleeps=1, periods=7),
    "seat": Budget(pushes=1, periods=6),
}

_WAKING_FAULTS: Mapping[str, Budget] = {"cut": Budget(periods=1)}

_LOSS_FAULTS: Mapping[str, Budget] = {
    "death": Budget(crashes=1, starts=1, periods=4),
    "sleep": Budget(sleeps=1, periods=4),
    "cut": Budget(cuts=1, periods=4),
}

_SPLIT_FAULTS: Mapping[str, Budget] = {**_FAULTS, "rejoin": Budget(reopens=1, periods=1)}

_LEASE_FAULTS: Mapping[str, Budget] = {"sleep": Budget(sleeps=1, periods=4), "cut": Budget(cuts=1, periods=4)}

FLOWS: Mapping[str, Flow] = {
    "transfer": Flow(FOLLOWER, LEADER, _transfer, _FAULTS),
    "transfer-of-leader": Flow(LEADER, LEADER, _transfer, _FAULTS),
    "transfer-fine": Flow(FOLLOWER, LEADER, _transfer, _FINE_FAULTS, fine=True),
    "transfer-and-unload": Flow(FOLLOWER, LEADER, _transfer, _FAULTS, rival=_unload_too),
    "split-and-transfer": Flow(FOLLOWER, LEADER, _split, _FAULTS, rival=_transfer_too),
    "unload": Flow(FOLLOWER, LEADER, _unload, _FAULTS),
    "split": Flow(FOLLOWER, LEADER, _split, _SPLIT_FAULTS),
    "split-fine": Flow(FOLLOWER, LEADER, _split, _FINE_FAULTS, fine=True),
    "split-with-lease": Flow(FOLLOWER, LEADER, _split, _LEASE_FAULTS, lease=True),
    "split-by-leader": Flow(LEADER, FOLLOWER, _split, _FAULTS),
    "shutdown": Flow(FOLLOWER, FOLLOWER, _shut_down, _FAULTS),
    "shutdown-of-leader": Flow(LEADER, LEADER, _shut_down, _FAULTS),
    "loss": Flow(FOLLOWER, LEADER, None, _LOSS_FAULTS),
    "loss-of-leader": Flow(LEADER, LEADER, None, _LOSS_FAULTS),
    "loss-with-lease": Flow(FOLLOWER, LEADER, None, _LOSS_FAULTS, lease=True),
    "loss-of-leader-with-lease": Flow(LEADER, LEADER, None, _LOSS_FAULTS, lease=True),
    "loss-among-three": Flow(FOLLOWER, LEADER, None, _LOSS_FAULTS, brokers=3),
    "transfer-among-three": Flow(FOLLOWER, LEADER, _transfer, _FAULTS, brokers=3),
    "cold-start": Flow(FOLLOWER, LEADER, _transfer, _COLD_FAULTS, cold=True),
    "waking-behind-a-cold-start": Flow(FOLLOWER, LEADER, _unload, _WAKING_FAULTS, fine=True, asleep=True),
    "cold-start-in-a-split": Flow(LEADER, LEADER, _split, _COLD_FAULTS, cold=True),
}
