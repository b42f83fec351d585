"""The purpose of a plan: what is to be empty, lead nothing, or be online at its end; looked at again there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.values import named
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.model.amounts import count
from shedders.model.patterns import compiled

if TYPE_CHECKING:
    from loaddata.samples.partitions import ClusterLayout
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan

_SHOWN: Final = 5
_MODES: Final = frozenset({PlanMode.REMOVE_BROKERS, PlanMode.DEMOTE, PlanMode.FIX_OFFLINE, PlanMode.REMOVE_LOG_DIRS})


def has_purpose(plan: ReassignmentPlan) -> bool:
    return plan.request.get("mode") in _MODES or bool(plan.request.get("offline_brokers"))


def leaving_brokers(plan: ReassignmentPlan) -> frozenset[int]:
    """Brokers that the plan empties."""
    subjects = plan.request.get("subjects") or () if plan.request.get("mode") == PlanMode.REMOVE_BROKERS else ()
    return frozenset({*subjects, *(plan.request.get("offline_brokers") or ())})


def demoted_brokers(plan: ReassignmentPlan) -> frozenset[int]:
    """Brokers that are to lead nothing."""
    return frozenset(plan.request.get("subjects") or () if plan.request.get("mode") == PlanMode.DEMOTE else ())


def emptied_dirs(plan: ReassignmentPlan) -> tuple[tuple[int, str], ...]:
    """Log directories that the plan empties, by broker and path."""
    return tuple(sorted((int(broker), str(path)) for broker, path in plan.request.get("log_dirs") or ()))


def unmet(plan: ReassignmentPlan, layout: ClusterLayout) -> Iterator[str]:
    """Sentences about what was added since the plan was made; what the plan itself leaves there was accepted."""
    mode = plan.request.get("mode")
    left = {broker.id: broker.after for broker in plan.brokers}
    partitions = [((topic.name, partition.partition), partition) for topic, partition in layout.partitions()]
    stays = _staying(plan)
    for broker in sorted(leaving_brokers(plan)):
        keys = [key for key, partition in partitions if broker in partition.replicas]
        names = [named(key) for key in keys if not stays(key[0])]
        if names and len(keys) > (left[broker].replicas if broker in left else 0):
            yield f"broker {broker} still has {_listed(names, 'replica')}"
    for broker in sorted(demoted_brokers(plan)):
        keys = [key for key, each in partitions if each.leader == broker]
        names = [named(key) for key in keys if not stays(key[0])]
        if names and len(keys) > (left[broker].leaders if broker in left else 0):
            yield f"broker {broker} still leads {_listed(names, 'partition')}"
    accepted = {goal.name: goal.after.excess for goal in plan.infeasible if goal.after is not None}
    offline = [named(key) for key, partition in partitions for _ in partition.offline if not stays(key[0])]
    if mode == PlanMode.FIX_OFFLINE and len(offline) > accepted.get("offline-replicas", 0):
        yield f"{_listed(list(dict.fromkeys(offline)), 'partition')}: replicas are offline"
    held = {
        (broker.id, each.path): [named(key[:2]) for key in each.replicas if not stays(key[0])]
        for broker in layout.brokers
        for each in broker.log_dirs
    }
    going = {place: held[place] for place in emptied_dirs(plan) if held.get(place)}
    if sum(map(len, going.values())) > accepted.get("log-dirs-leave", 0):
        for (broker_id, path), names in going.items():
            yield f"log directory {path} of broker {broker_id} still has {_listed(names, 'replica')}"


def _staying(plan: ReassignmentPlan) -> Callable[[str], bool]:
    """Whether a topic may stay on what the plan empties."""
    texts = plan.request.get("staying_topics") or ()
    patterns = compiled(texts)
    return lambda topic: bool(texts) and not isinstance(patterns, str) and patterns.matches(topic)


def _listed(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{count(len(names), what)}: {', '.join(names[:_SHOWN])}{more}"


def cordon_hint(plan: ReassignmentPlan, layout: ClusterLayout) -> str:
    """How to keep Kafka from placing new replicas on what is to be emptied; empty: it does not, or it cannot be kept from it."""
    going: dict[int, list[str]] = {}
    subjects = leaving_brokers(plan)
    asked = emptied_dirs(plan)
    for broker in layout.brokers:
        for each in broker.log_dirs:
            if each.cordoned is False and (broker.id in subjects or (broker.id, each.path) in asked):
                going.setdefault(broker.id, []).append(each.path)
    values = {broker: "*" if broker in subjects else f"[{','.join(paths)}]" for broker, paths in going.items()}
    commands = [
        f"`kafka-configs --bootstrap-server ADDRESS --alter --entity-type brokers --entity-name {broker} "
        f"--add-config 'cordoned.log.dirs={value}'`"
        for broker, value in values.items()
    ]
    return f"{' and '.join(commands)} keeps Kafka from placing anything new there" if commands else ""


def next_plan(plan: ReassignmentPlan) -> str:
    """Command that plans what is unmet."""
    request, mode = plan.request, str(plan.request.get("mode"))
    if mode not in _MODES:
        mode = "offline-brokers"
    ids = request.get("offline_brokers" if mode == "offline-brokers" else "subjects") or ()
    dirs = [f"{broker}:{path}" for broker, path in emptied_dirs(plan)]
    values = [(mode, value) for value in dirs or [",".join(map(str, ids))]]
    values += [("may-stay", f"'{pattern}'") for pattern in request.get("staying_topics") or ()]
    options = " ".join(f"--{name} {value}".rstrip() for name, value in values)
    return f"Plan again: `statechannel partitions plan {options} --out PLAN`."
