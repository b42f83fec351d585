"""The requests topic: what was asked, who executes it, how it ended."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import orjson

from statechannel.engine.commands import Done
from statechannel.operations import outcomes, request_record
from statechannel.operations.outcomes import Answer
from statechannel.operations.request_record import Progress, ProgressStage, Request
from statechannel.operations.table import RequestCommand
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead

DEFAULTS: Final = "defaults"
"""Argument with the names of those that the caller left open: another process may have filled them in from other settings."""


@dataclass(slots=True)
class RequestStory:
    """One request. The first request and the first reply of an id count; nothing that follows the reply does.

    Attributes:
        id: Also the id of the operation.
        name: Bundle, topic or namespace that it concerns; `subject`: the same, or a broker.
        args: Empty in a fold that keeps no arguments; what is made of them is empty, too.
        digest: Of command and arguments: two requests of one id are the same if they have the same.
        problem: Why it cannot be executed; empty: it can.
        asked_ms: Log time of the request.
        deadline_ms: Log time after which brokers need not reply.
        changed_ms: Log time of the newest record.
        executed_by: Broker that has claimed it, or replied.
        started: Facts of its first accepted record; None before, and in a fold that keeps no arguments.
        outcome: Of the reply; None without one.
    """

    id: str
    command: str
    name: str
    subject: str
    by: str
    args: Mapping[str, Any]
    digest: str
    problem: str
    asked_ms: int
    deadline_ms: int
    offset: int
    changed_ms: int
    executed_by: str | None = None
    started: Mapping[str, Any] | None = None
    outcome: Mapping[str, Any] | None = None

    @property
    def broker(self) -> str | None:
        return self._text("broker")

    @property
    def destination(self) -> str | None:
        return self._text("destination")

    @property
    def reason(self) -> str | None:
        reason = self.args.get("reason") or self.args.get("why")
        return reason if isinstance(reason, str) and reason else None

    @property
    def flow(self) -> str:
        """The command; for an extension the extension's own command, as `extension` alone says nothing."""
        return self._text("ask") or self.command if self.command == RequestCommand.EXTENSION else self.command

    @property
    def result(self) -> Any:
        """Result or reason in the reply, else the kind of its outcome."""
        outcome = self.outcome or {}
        return outcome.get("result") or outcome.get("reason") or outcome.get("outcome")

    @property
    def answer(self) -> Any:
        """Whether it was accepted, as the reply says; anybody may write one."""
        return (self.outcome or {}).get("answer")

    @property
    def facts(self) -> Mapping[str, Any]:
        facts = (self.outcome or {}).get("facts")
        return facts if isinstance(facts, Mapping) else {}

    @property
    def bundle(self) -> str | None:
        """Bundle that was acted on, of a topic that was named."""
        bundle = (self.outcome or {}).get("bundle") or self.facts.get("bundle")
        return bundle if isinstance(bundle, str) and bundle else None

    @property
    def message(self) -> str | None:
        """What the reply says for people, if anything; of an operation that has ended, what it did only in part."""
        try:
            ended = None if self.outcome is None else outcomes.from_json(self.outcome)
        except ValueError:  # anybody may write a reply
            return None
        message: object = ended.facts.get("message") if isinstance(ended, Done) else getattr(ended, "message", None)
        return message if isinstance(message, str) else None

    @property
    def is_timed_out(self) -> bool:
        """Whether the reply says that the time of the request was over before its operation had ended."""
        outcome = self.outcome or {}
        return outcome.get("outcome") == "undetermined" and outcome.get("reason") == "timed-out"

    def is_open(self, at_ms: int) -> bool:
        return self.outcome is None and at_ms < self.deadline_ms

    def status(self, at_ms: int) -> str:
        """How far it is."""
        if self.outcome is not None:
            if self.answer == Answer.ACCEPTED:
                return "ended"
            return "failed" if self.answer == Answer.REJECTED else "timed-out" if self.is_timed_out else "unknown"
        if self.executed_by is not None:
            return "running"
        return "asked" if self.deadline_ms >= at_ms else "expired"

    def is_to(self, extension: str, ask: str) -> bool:
        return self.args.get("extension") == extension and self.args.get("ask") == ask

    def _text(self, name: str) -> str | None:
        value = self.args.get(name)
        return value if isinstance(value, str) else None


def request_digest(command: str, args: Mapping[str, Any]) -> str:
    """Digest of what the caller asked for."""
    filled = args.get(DEFAULTS)
    # Of a forced move the reason says so, too: that of a version without `force`.
    left_open = ["force", *(filled if isinstance(filled, list) else [])]
    content = orjson.dumps(
        [command, {name: value for name, value in args.items() if name not in left_open}], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(content).hexdigest()


class RequestFold:
    """Stories of the newest requests, by id.

    Args:
        remembered_max: How many; None: all.
        keeps_args: Whether their arguments are kept, and what is wrong with them, which may be large.
    """

    def __init__(self, remembered_max: int | None = None, *, keeps_args: bool = True) -> None:
        self._most = remembered_max
        self._keeps_args = keeps_args
        self.stories: OrderedDict[str, RequestStory] = OrderedDict()
        self.dismissals: dict[tuple[str, str], Dismissal] = {}  # that the leader has accepted; they outlast the stories

    def take(self, records: Iterable[RecordRead]) -> None:
        for record in records:
            item = request_record.decode(record.value, record.timestamp_ms)
            if isinstance(item, Request):
                self._begin(item, record)
            elif item is not None and (story := self.stories.get(item.id)) is not None and story.outcome is None:
                story.executed_by, story.changed_ms = item.broker, record.timestamp_ms
                story.outcome = None if isinstance(item, Progress) else item.outcome
                if self._keeps_args and isinstance(item, Progress) and item.stage is ProgressStage.STARTED:
                    story.started = item.facts
                incarnation = story.facts.get("incarnation")
                is_dismissed = story.command == RequestCommand.DISMISS_BROKER and story.answer == Answer.ACCEPTED
                if is_dismissed and story.subject and isinstance(incarnation, str):
                    dismissal = Dismissal(story.subject, incarnation, story.asked_ms, story.by, story.reason or "")
                    remember(self.dismissals, (story.subject, incarnation), dismissal, DISMISSALS_MAX)

    def _begin(self, request: Request, record: RecordRead) -> None:
        if request.id in self.stories:
            return
        self.stories[request.id] = RequestStory(
            request.id,
            request.asked,
            request.name,
            request.subject,
            request.by,
            request.args if self._keeps_args else {},
            request_digest(request.asked, request.args),
            request.problem if self._keeps_args else "",
            record.timestamp_ms,
            request.deadline_ms,
            record.offset,
            record.timestamp_ms,
        )
        if self._most is not None and len(self.stories) > self._most:
            self.stories.popitem(last=False)


def stories_of(records: Iterable[RecordRead], remembered_max: int | None = None) -> Mapping[str, RequestStory]:
    """Stories of the newest requests among these records, by id, the oldest first."""
    fold = RequestFold(remembered_max)
    fold.take(records)
    return fold.stories


class Dismissal(NamedTuple):
    """One lost broker that an operator dismissed: it will not come back.

    Attributes:
        at_ms: Log time of the request.
        by: Who asked for it; empty where the request does not say.
        why: The reason given; empty without one.
    """

    broker: str
    incarnation: str
    at_ms: int
    by: str = ""
    why: str = ""

    @property
    def sentence(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.broker} was dismissed{by}{f': {self.why}' if self.why else ''}"

    def fields(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "incarnation": self.incarnation,
            "at_ms": self.at_ms,
            "by": self.by or None,
            "reason": self.why or None,
        }


Dismissals = Mapping[tuple[str, str], Dismissal]
"""By broker and incarnation."""


DISMISSALS_MAX: Final = 1_000
PERSONS_CLAIM: Final = (
    "Who requested something is the name that its client gave itself; Kafka's authorizer log knows the principal."
)


@dataclass(frozen=True, slots=True)
class PersonAction:
    """One thing that a person did, by a request or by what packages add (changes of policies).

    A name is what the client said. Brokers request, too, in their own names: what their extensions decide.

    Attributes:
        at_ms: Log time.
        by: The person, by their own account; empty: not recorded.
        what: Such as `transfer`, `create-namespace`, `set isolation`.
        name: What it concerns: a bundle, topic, namespace, broker or policy.
        destination: Broker to which it was to go; None: none was named.
        details: Further arguments, for people.
        result: How it ended; None: not known.
        operation: Id of the request; None: it is none.
        topic, offset: Where its record is: the role of a topic, such as `requests`.
        question: It was to change nothing: a lookup, or what a command asks before it requests a move.
    """

    at_ms: int
    by: str
    what: str
    name: str
    destination: str | None
    reason: str | None
    details: str
    result: str | None
    operation: str | None
    topic: str
    offset: int
    question: bool = False

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def in_order(actions: Iterable[PersonAction]) -> list[PersonAction]:
    return sorted(actions, key=lambda action: (action.at_ms, action.topic, action.offset))
