"""Client side of a drain: cordons the broker, sends the request to the leader, watches it, and retries after failures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ulid import ULID

from shedders.cli.drain.cordons import cordon, cordon_of, take_back
from shedders.model.amounts import count
from shedders.queries.policies import DRAIN, RUN_IT, drain_id_of, read_policies, why_no_drain
from statechannel.broker.next_steps import hint_for
from statechannel.broker.request_writer import BALANCER, NO_EXTENSION, balancer_args, may_be_asked_again
from statechannel.cli.kit import requests
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import say
from statechannel.cli.kit.progress import ProgressBars
from statechannel.cli.kit.requests import RequestAnswer, SentRequest, follow
from statechannel.clocks import now_ms
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected
from statechannel.errors import ExitCode, NotFoundError
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.operations.request_record import TIMEOUT_MAX_S
from statechannel.operations.table import Addressee, RequestCommand
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import Topic
from statechannel.protocol.states import State
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, extension_requests, open_tail
from statechannel.queries.registry import read_registry
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import facts_of
from statechannel.stories.registry import Registry
from statechannel.stories.requests import RequestStory

AGAIN_S: Final = 1.0
NOTHING_MOVED: Final = "no-destination"
"""The rejection of a whole drain, by any leader: no bundle has moved."""
NOT_BEGUN: Final = frozenset({"bad-request", "unknown-ask", NO_EXTENSION})
"""Rejections by a broker that did not start the drain; another leader may have started it before."""
EXTENSION_WAIT_S: Final = 15.0
"""How long a new leader may take to start its extension."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """Request to drain a broker.

    Attributes:
        drain: Id of the drain, in its cordon, its moves and all its requests.
        within_s: Time limit of the whole drain.
        extra: Further arguments of the request: the state of a `rolling-restart`.
    """

    broker: str
    drain: str
    rate_per_s: float | None = None
    force: bool = False
    why: str = ""
    by: str | None = None
    within_s: float = 1_800.0
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DrainResult:
    """Result of a drain.

    Attributes:
        facts: Answer of the leader: `moved`, `left`, `left_count`, ...
        executed_by: The leader.
    """

    request: DrainRequest
    facts: Mapping[str, Any]
    executed_by: str | None
    result: str

    @property
    def left(self) -> list[Mapping[str, Any]]:
        """The first bundles that are left, with reasons."""
        items = self.facts.get("left")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    @property
    def left_count(self) -> int:
        count_left = self.facts.get("left_count")
        return count_left if isinstance(count_left, int) else len(self.left)

    def fields(self) -> dict[str, Any]:
        known = ("moved", "began_with", "earlier_known", "left", "left_count", "reports_in_vain", "leads", "took_s")
        return {
            "operation": self.request.drain,
            "broker": self.request.broker,
            "executed_by": self.executed_by,
            "answer": "accepted",
            "result": self.result,
            **{name: self.facts.get(name) for name in known},
        }


def check(connection: Connection, broker: str, *, force: bool) -> Registry:
    """Reject drains that cannot succeed, before anything is written.

    Raises:
        CommandError: The broker is unknown or dead, or the only one that takes bundles.
    """
    registry = read_registry(connection)
    alive = registry.members.alive
    require_alive(registry)
    if broker not in alive:
        if broker not in registry.members.lost:
            raise broker_not_found(broker)
        if not force:
            raise CommandError(
                f"broker {broker} is not alive; the leader reassigns its bundles automatically",
                hint=f"Use --force to drain and cordon it anyway; see `statechannel bundles --broker {broker}`.",
                code=ExitCode.REJECTED,
            )
    impossible = why_no_drain(registry)
    if impossible:
        raise CommandError(f"{broker} cannot be drained: {impossible}", hint=RUN_IT, code=ExitCode.REJECTED)
    cordons = read_policies(connection).policies.cordons
    others = [name for name, other in alive.items() if name != broker and other.accepting and name not in cordons]
    if not others and not force:
        raise CommandError(
            f"{broker} is the only broker that takes bundles: no other broker could take its bundles or new ones",
            hint="Start another broker, or `statechannel uncordon` one; --force cordons it anyway.",
            code=ExitCode.REJECTED,
        )
    return registry


def require_alive(registry: Registry) -> None:
    if not registry.members.alive:
        raise CommandError(
            "no broker is alive", hint="Start one with `statechannel broker run --id ID`.", code=ExitCode.NO_BROKER
        )


def broker_not_found(broker: str) -> NotFoundError:
    return NotFoundError(f"broker {broker} not found", hint="`statechannel brokers` lists them.")


def resumable(connection: Connection, broker: str) -> str | None:
    """Id of the running drain of this broker, or None.

    A drain that has ended is not resumed: the next drain of the broker starts from the beginning.
    """
    drain = drain_id_of(cordon_of(read_policies(connection), broker))
    if drain is None:
        return None
    request = newest(connection, drain)
    return drain if request is not None and request.is_open(now_ms()) else None


def newest(connection: Connection, drain: str) -> RequestStory | None:
    every = [
        request
        for request in extension_requests(connection, BALANCER, DRAIN)
        if drain in (request.id, request.args.get("drain"))
    ]
    return every[-1] if every else None


def broker_of(connection: Connection, drain: str) -> str | None:
    request = newest(connection, drain)
    return None if request is None else request.broker


def new_id() -> str:
    return str(ULID())


def send(
    connection: Connection,
    ask: str,
    args: Mapping[str, Any],
    wait_s: float,
    *,
    identifier: str | None = None,
    by: str | None = None,
) -> SentRequest:
    """Write a request for the balancer of the leader.

    Args:
        by: Who asks; None: who runs the command.
    """
    within_s = min(TIMEOUT_MAX_S, max(1.0, wait_s))
    asked = balancer_args(ask, Addressee.LEADER, args)
    return requests.send(connection, RequestCommand.EXTENSION, asked, within_s, identifier=identifier, by=by)


def drain(connection: Connection, request: DrainRequest, bar: ProgressBars) -> DrainResult:
    """Drain a broker; returns when no further bundle can be moved, even if some are left.

    Raises:
        CommandError: The drain was rejected, or did not end in time.
    """
    under_way = newest(connection, request.drain)
    # A changed rate or force needs a new request of the same drain; without a change this command only watches.
    changes = request.force or request.rate_per_s is not None
    is_followed = under_way is not None and under_way.is_open(now_ms()) and not changes
    sent = SentRequest.again(under_way) if under_way is not None and is_followed else None
    newly_cordoned = cordon(connection, request.broker, request.drain, why=request.why, by=request.by)
    bar.show(request.broker, f"draining {request.broker}", 0, 1)
    watch = _Watch(connection, request, bar, begun=under_way is not None)
    watch.count()
    try:
        answer = watch.until_answered(sent, first=under_way is None)
    except KeyboardInterrupt:
        say(
            f"the drain continues without this command: `statechannel drain {request.broker} --operation {request.drain}` "
            f"watches it again, `statechannel uncordon {request.broker}` ends it"
        )
        raise
    finally:
        bar.drop(request.broker)
    return _result_of(connection, request, answer, newly_cordoned=newly_cordoned, begun=watch.begun)


def is_retried(outcome: Outcome | None, begun_s: float) -> bool:
    """Whether a request is to be retried, with another leader or the same.

    Args:
        begun_s: When it was first sent.
    """
    if isinstance(outcome, Rejected) and outcome.reason == NO_EXTENSION:
        return time.monotonic() - begun_s < EXTENSION_WAIT_S
    return may_be_asked_again(outcome)


class _Watch:
    """Watch of one drain until its end.

    Attributes:
        begun: Another leader may have started the drain before the one that answered.
    """

    def __init__(self, connection: Connection, request: DrainRequest, bar: ProgressBars, *, begun: bool) -> None:
        self.begun = begun
        self._connection = connection
        self._request = request
        self._bar = bar
        self._counts = BundleCounts(connection)
        self._total = 0
        self._begun_s = time.monotonic()
        self._ends_s = self._begun_s + request.within_s

    def until_answered(self, sent: SentRequest | None, *, first: bool) -> RequestAnswer:
        """Send the request, and retry until a leader answers it."""
        answer = RequestAnswer("", None)
        while True:
            left_s = self._ends_s - time.monotonic()
            if left_s <= 0:
                if not self.begun and _is_not_started(answer.outcome):
                    return answer
                raise self._timeout_error(answer)
            if sent is None:
                sent = self._send(left_s, first=first)
            first = False
            answer = follow(self._connection, sent, self._show)
            if not is_retried(answer.outcome, self._begun_s) or self._is_hopeless(answer.outcome):
                return answer
            sent = None
            self.begun = self.begun or not _is_not_started(answer.outcome)
            time.sleep(min(AGAIN_S, max(0.0, self._ends_s - time.monotonic())))

    def _is_hopeless(self, outcome: Outcome | None) -> bool:
        """Whether the leader says that it will not start the balancer, so that there is nothing to wait for."""
        if not isinstance(outcome, Rejected) or outcome.reason != NO_EXTENSION:
            return False
        return bool(why_no_drain(read_registry(self._connection, listen=False)))

    def _send(self, left_s: float, *, first: bool) -> SentRequest:
        request = self._request
        args = {
            "broker": request.broker,
            "rate_per_s": request.rate_per_s,
            "force": request.force,
            "drain": request.drain,
            **(request.extra or {}),
        }
        return send(self._connection, DRAIN, args, left_s, identifier=request.drain if first else None)

    def count(self) -> None:
        """Count the bundles of the broker, for its progress: before the drain moves the first of them."""
        if self._bar.seen:
            self._count_left()

    def _count_left(self) -> int:
        with suppress(KafkaAdapterError):  # the leader continues; only the progress is not shown
            self._counts.refresh()
        left = self._counts.counts[self._request.broker]
        self._total = max(self._total, left)
        return left

    def _show(self, leader: str | None) -> None:
        if not self._bar.seen:
            return
        left = self._count_left()
        by = f" (by {leader})" if leader else " (no broker has started it yet)"
        self._bar.show(
            self._request.broker, f"draining {self._request.broker}{by}", self._total - left, max(1, self._total)
        )

    def _timeout_error(self, answer: RequestAnswer) -> CommandError:
        left = self._counts.refresh(force=True)[self._request.broker]
        progress = f"last executed by {answer.claimed_by}" if answer.claimed_by else "no broker has started it"
        return CommandError(
            f"{self._request.broker} has {count(left, 'bundle')} left after {self._request.within_s:g} s; {progress}",
            hint=f"It is still cordoned; continue with `statechannel drain {self._request.broker} "
            f"--operation {self._request.drain}`.",
            code=ExitCode.UNDETERMINED if answer.claimed_by else ExitCode.NO_BROKER,
        )


def _is_not_started(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Rejected) and str(outcome.reason) in NOT_BEGUN


def _result_of(
    connection: Connection, request: DrainRequest, answer: RequestAnswer, *, newly_cordoned: bool, begun: bool
) -> DrainResult:
    outcome = answer.outcome
    if isinstance(outcome, Done):
        return DrainResult(request, outcome.facts, answer.claimed_by, outcome.result)
    if not isinstance(outcome, Rejected | NotFound):
        raise CommandError(f"the leader answered with {cell(str(outcome))}", code=ExitCode.UNKNOWN)
    reason = str(outcome.reason)
    message, hint = outcome.message, hint_for(outcome, operation=request.drain)
    if reason == NO_EXTENSION:
        message, hint = (f"the leader {answer.claimed_by} does not run the balancer, which executes drains", RUN_IT)
    nothing = reason == NOTHING_MOVED or (not begun and _is_not_started(outcome))
    # Otherwise a broker that is half empty would be assigned bundles again.
    if newly_cordoned and nothing and take_back(connection, request.broker, request.drain):
        message += " (the cordon was removed)"
    raise CommandError(f"rejected ({reason}): {message}", hint=hint, code=ExitCode.REJECTED)


def require_empty(drained: DrainResult) -> None:
    """Fail if bundles are left.

    Raises:
        CommandError: Bundles are left; the message has the reason.
    """
    if not drained.left_count:
        return
    first = drained.left[0] if drained.left else {}
    example = f"{first.get('bundle')}: {first.get('why')}" if first else ""
    raise CommandError(
        f"{drained.request.broker} still has {count(drained.left_count, 'bundle')} that no other broker may take; {example}",
        hint="Change the policies, start another broker, or repeat the drain with --force.",
        code=ExitCode.REJECTED,
    )


_REST = 4.0
_LEAST_WAIT_S = 0.5


class BundleCounts:
    """Bundle counts by broker, read again in at most a fifth of the time.

    Attributes:
        counts: Bundles that each broker serves or is about to get, as of the last refresh.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._partitions: int | None = None
        self._next_s = 0.0
        self.counts: Counter[str] = Counter()

    def refresh(self, *, force: bool = False) -> Counter[str]:
        """Read the counts again if the last reading is long enough ago, or with `force`.

        Raises:
            KafkaAdapterError: Kafka is out of reach, or the topic is missing.
        """
        begun_s = time.monotonic()
        if not force and begun_s < self._next_s:
            return self.counts
        self.counts = self._read()
        took_s = time.monotonic() - begun_s
        self._next_s = begun_s + took_s + max(_LEAST_WAIT_S, _REST * took_s)
        return self.counts

    def _read(self) -> Counter[str]:
        if self._partitions is None:
            self._partitions = describe_topic(self._connection, Topic.CHANNEL).partitions
        lag_ms = self._connection.settings.channel.min_compaction_lag_ms
        counts: Counter[str] = Counter()
        for partition in range(self._partitions):
            with open_tail(self._connection, Topic.CHANNEL, partition) as tail:
                span = tail.span()
                records = list(tail.records(span))
            facts = facts_of(records, span.end, oldest_kept_ms=now_ms() - lag_ms)
            part = audit_part(partition, self._partitions, records, facts)
            counts.update(name for key in part.view.existing() for name in _holders(key))
        return counts


def _holders(key: KeyState) -> set[str]:
    if key.is_namespace or key.state is State.DELETED:
        return set()
    return {name for name in (key.owner, key.bound_for) if name is not None}
