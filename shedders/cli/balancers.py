"""Which live brokers run the balancer: without it they apply no policies, and no drain can work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from shedders.balancer.settings import NAME
from shedders.policies.effective import EffectivePolicies, Force
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.registry import Registry, read_registry
from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError

RUN_IT: Final = (
    f"`statechannel broker run` runs it unless extensions.{NAME}.enabled is false; a program that embeds the channel passes it "
    "to StateChannel.open(extensions=...)."
)


def none_runs_it(alive: Mapping[str, Member]) -> bool:
    """Whether brokers are alive, and all of them say that they run no balancer."""
    return bool(alive) and all(_runs_none(member) for member in alive.values())


def why_no_drain(registry: Registry) -> str:
    """Why no drain can work, as a sentence; empty if one may."""
    if none_runs_it(registry.members.alive):
        return "no broker runs the balancer, which executes drains"
    leader = registry.leader
    if leader is not None and _runs_none(leader):
        return f"the leader {leader.broker} does not run the balancer, which executes drains"
    return ""


def unapplied(effective: EffectivePolicies, alive: Mapping[str, Member]) -> Iterator[str]:
    """Which brokers apply none of the policies in force, as a sentence; nothing without policies."""
    if not any(entry.force is Force.IN_FORCE for entry in effective.entries):
        return
    without = sorted(name for name, member in alive.items() if _runs_none(member))
    if none_runs_it(alive):
        yield "no broker runs the balancer: policies are not applied, and a drain cannot work"
    elif without:
        verb = "runs" if len(without) == 1 else "run"
        yield f"{', '.join(without)} {verb} no balancer: assignments by them apply no policies"


def unapplied_at(connection: Connection, effective: EffectivePolicies) -> list[str]:
    """The same for the brokers that are alive now; nothing where the registry cannot be read."""
    if not effective.entries:
        return []
    with suppress(StateChannelError):
        return list(unapplied(effective, read_registry(connection, listen=False).members.alive))
    return []


def _runs_none(member: Member) -> bool:
    return member.extensions is not None and NAME not in member.extensions
