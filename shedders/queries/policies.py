"""Policies and overrides, from their topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from shedders.balancer.active_strategies import is_known
from shedders.balancer.settings import NAME
from shedders.policies.book import PolicyBook
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.topic import PolicyChanges, read_book, read_changes
from statechannel.broker.request_writer import BALANCER
from statechannel.clocks import now_ms
from statechannel.engine.membership import Member
from statechannel.errors import StateChannelError
from statechannel.kafka.topic_policy import SideTopic, policies_topic
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit
from statechannel.operations.outcomes import Answer
from statechannel.protocol.log import Topic
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, extension_requests, notify_if_slow
from statechannel.queries.query import RequestModel, many, object_type
from statechannel.queries.registry import read_registry
from statechannel.stories.registry import Registry
from statechannel.stories.requests import RequestStory


class PoliciesQuery(RequestModel):
    """Which policies."""

    lapsed: bool = Field(False, description="Include expired overrides.")


POLICY = object_type(
    "PolicyRow", "A policy or override.", (PolicyKind, "kind"), (str, "name by why"), (bool, "override"), (Force, "state"),
    (dict[str, Any], "value"), (str | None, "drain trouble"), (int, "written_at_ms logged_at_ms offset"),
    (int | None, "until_ms"),
)  # fmt: skip
POLICIES = object_type(
    "PoliciesDocument", "Policies; the keys of `policy list`.", (many(POLICY), "policies"), (int, "position"),
    (dict[str, int], "junk"), (list[str], "closed notes"), (list[str] | None, "contradictions"),
)  # fmt: skip


def policies(connection: Connection, asked: PoliciesQuery) -> dict[str, Any]:
    """All policies."""
    effective = read_policies(connection)
    return policies_document(effective, selected(effective, None, overrides=False, lapsed=asked.lapsed), None)


def overrides(connection: Connection, asked: PoliciesQuery) -> dict[str, Any]:
    """Those that expire."""
    effective = read_policies(connection)
    return policies_document(effective, selected(effective, None, overrides=True, lapsed=asked.lapsed), None)


def selected(
    effective: EffectivePolicies, only: PolicyKind | None, *, overrides: bool, lapsed: bool
) -> list[PolicyEntry]:
    """The policies in force, with the overrides, or the overrides alone.

    Args:
        lapsed: Also overrides that have expired.
    """
    return as_known_here(
        entry
        for entry in (*effective.entries, *(effective.lapsed if lapsed else ()))
        if (only is None or entry.key.kind is only) and (entry.key.override or not overrides)
    )


def policies_document(
    effective: EffectivePolicies, entries: Iterable[PolicyEntry], troubles: list[str] | None
) -> dict[str, Any]:
    """The document of a list.

    Args:
        troubles: Contradictions; None: not looked for.
    """
    return {
        "policies": [entry.fields() for entry in entries],
        "position": effective.position,
        "junk": dict(effective.junk),
        "closed": list(effective.closed),
        "contradictions": troubles,
    }


def as_known_here(entries: Iterable[PolicyEntry]) -> list[PolicyEntry]:
    """The entries; settings of strategies that are not installed here are not marked as in force."""
    return [
        replace(entry, force=Force.UNKNOWN)
        if entry.key.kind is PolicyKind.SETTING and entry.force is Force.IN_FORCE and not is_known(entry.key.name)
        else entry
        for entry in entries
    ]


def read_policies(connection: Connection, *, create: bool = False) -> EffectivePolicies:
    """The policies as of now; raises as `book_of`."""
    return book_of(connection, create=create).at(now_ms())


def topic_of(connection: Connection) -> SideTopic:
    return policies_topic(connection.topics.channel)


def book_of(connection: Connection, *, create: bool = False) -> PolicyBook:
    """Read the policies; empty if their topic does not exist.

    Raises:
        TopicMissingError: The channel does not exist.
        TopicPolicyError: The topic of policies has invalid settings.
    """
    topic, timeout_s = topic_of(connection), connection.timeout_s
    with notify_if_slow(connection):
        if not _is_there(connection, topic, create=create):
            return PolicyBook()
        return read_book(connection.client, topic, timeout_s=timeout_s)


def changes_of(connection: Connection) -> tuple[PolicyChanges, PolicyBook]:
    """Read all records of the policies' topic, and the policies; empty if it does not exist.

    Raises:
        TopicMissingError: The channel does not exist.
        TopicPolicyError: The topic of policies has invalid settings.
    """
    topic = topic_of(connection)
    with notify_if_slow(connection):
        if not _is_there(connection, topic, create=False):
            return PolicyChanges((), is_whole=True), PolicyBook()
        return read_changes(connection.client, topic, timeout_s=connection.timeout_s)


def _is_there(connection: Connection, topic: SideTopic, *, create: bool) -> bool:
    """Whether the topic of policies exists, with valid settings; it is created on request."""
    timeout_s = connection.timeout_s
    names = [connection.topics.names[Topic.CHANNEL], topic.name]
    states = TopicAdmin(connection.client, timeout_s=timeout_s).describe(names)
    if connection.topics.channel not in states:
        describe_topic(connection, Topic.CHANNEL)  # its error says how to create a channel
    if topic.name in states:
        refuse_unfit(inspect(states, connection.client, topic), topic)
    elif create:
        factor = connection.settings.channel.replication_factor
        open_topics(connection.client, topic, create=True, replication_factor=factor, timeout_s=timeout_s)
    else:
        return False
    return True


DRAIN: Final = "drain"
"""The balancer's request."""
IN_PART: Final = "drained-in-part"
"""Its result where bundles were left."""


class DrainState(StrEnum):
    """What has become of the drain that wrote a cordon.

    Attributes:
        FORGOTTEN: The requests topic no longer has it.
    """

    RUNNING = "running"
    DRAINED = "drained"
    LEFT_BUNDLES = "left-bundles"
    TIMED_OUT = "timed-out"
    FAILED = "failed"
    UNANSWERED = "unanswered"
    FORGOTTEN = "forgotten"


class CordonRow(TypedDict):
    """A broker that takes no bundles, as an operator or a drain wants it.

    `drain` is the id of the drain that wrote the cordon, null where a person did; the fields of the drain are null then.
    """

    broker: str
    by: str
    why: str
    override: bool
    since_ms: int
    until_ms: int | None
    drain: str | None
    drain_state: DrainState | None
    drain_ended_ms: int | None
    drain_message: str | None


class CordonsDocument(TypedDict):
    """Brokers that take no bundles, by an operator's wish or for a drain."""

    cordons: list[CordonRow]
    notes: list[str]


def cordons(connection: Connection, _: object) -> dict[str, Any]:
    """The cordons in force."""
    return {"cordons": cordon_rows(connection, read_policies(connection))}


def cordon_rows(connection: Connection, effective: EffectivePolicies) -> list[CordonRow]:
    """The cordons in force, those that cannot be read among them, by broker.

    Raises:
        StateChannelError: The requests cannot be read.
    """
    heads: dict[str, PolicyEntry] = {}
    for entry in effective.entries:
        if entry.key.kind is PolicyKind.CORDON and entry.force in (Force.IN_FORCE, Force.UNREADABLE):
            heads.setdefault(entry.key.name, entry)
    requests = _requests_of(connection, effective)
    return [_row(entry, *requests.get(broker, (None, None))) for broker, entry in sorted(heads.items())]


def _row(entry: PolicyEntry, cordon: PolicyEntry | None, request: RequestStory | None) -> CordonRow:
    ended = request if request is not None and request.outcome is not None else None
    return {
        "broker": entry.key.name,
        "by": entry.author.person,
        "why": entry.why or entry.trouble,
        "override": entry.key.override,
        "since_ms": entry.logged_at_ms,
        "until_ms": entry.until_ms,
        "drain": drain_id_of(cordon),
        "drain_state": None if cordon is None else _state_of(request),
        "drain_ended_ms": None if ended is None else ended.changed_ms,
        "drain_message": None if ended is None else ended.message,
    }


def _requests_of(
    connection: Connection, effective: EffectivePolicies
) -> dict[str, tuple[PolicyEntry, RequestStory | None]]:
    """Cordons that drains wrote, by broker, each with the newest request of its drain."""
    left = {
        entry.key.name: entry
        for entry in effective.entries
        if entry.key.kind is PolicyKind.CORDON and drain_id_of(entry) is not None and entry.force is not Force.LAPSED
    }
    if not left:
        return {}
    newest: dict[str, RequestStory] = {}
    for request in extension_requests(connection, BALANCER, DRAIN):
        newest[str(request.args.get("drain") or request.id)] = request
    return {broker: (entry, newest.get(drain_id_of(entry) or "")) for broker, entry in left.items()}


def _state_of(request: RequestStory | None) -> DrainState:
    if request is None:
        return DrainState.FORGOTTEN
    if request.outcome is None:
        return DrainState.RUNNING if request.is_open(now_ms()) else DrainState.UNANSWERED
    if request.answer == Answer.ACCEPTED:
        return DrainState.LEFT_BUNDLES if request.result == IN_PART else DrainState.DRAINED
    return DrainState.TIMED_OUT if request.is_timed_out else DrainState.FAILED


def drain_id_of(entry: PolicyEntry | None) -> str | None:
    """Id of the drain that wrote a cordon; None: an operator did, or there is none."""
    return None if entry is None else entry.author.drain


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
