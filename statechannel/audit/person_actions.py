"""What persons did to a channel: requests of all kinds, acknowledgements, and what packages add (changes of policies). Pure.

A name is what the client said. Brokers request, too, in their own names: what their extensions decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statechannel.audit.acknowledgements import decode as decode_acknowledgement
from statechannel.broker import request_record
from statechannel.broker.request_record import Reply, Request, RequestCommand
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead

_ACTIONS_MAX = 100_000
_ELSEWHERE = frozenset(
    {"name", "namespace", "destination", "reason", "why", "extension", "ask", "to", "read_only", "decision", "settings"}
)
_DETAIL_MAX = 200
_QUESTIONS = frozenset({RequestCommand.LOOKUP.value})


@dataclass(frozen=True, slots=True)
class PersonAction:
    """One thing that a person did.

    Attributes:
        at_ms: Log time.
        by: The person, by their own account; empty: not recorded.
        what: Such as `transfer`, `create-namespace`, `set isolation`, `acknowledge`.
        name: What it concerns: a bundle, topic, namespace, broker, policy or record.
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
        """For the JSON output."""
        return asdict(self)


def requested_actions(records: Iterable[RecordRead], questions: Collection[str] = ()) -> list[PersonAction]:
    """Those in the requests topic, the newest `_ACTIONS_MAX`.

    Args:
        questions: What extensions are asked that changes nothing.
    """
    requests: dict[str, tuple[Request, RecordRead]] = {}
    results: dict[str, str | None] = {}
    others: list[PersonAction] = []
    for record in records:
        item = request_record.decode(record.value, record.timestamp_ms)
        if isinstance(item, Request):
            if item.id not in requests:
                remember(requests, item.id, (item, record._replace(value=None)), _ACTIONS_MAX)
        elif isinstance(item, Reply):
            if item.id in requests and item.id not in results:
                remember(results, item.id, _result(item.outcome), _ACTIONS_MAX)
        elif item is None:
            others += _acknowledged(record)
    asked = [
        _requested(request, record, results.get(identifier), questions)
        for identifier, (request, record) in requests.items()
    ]
    return asked + others[-_ACTIONS_MAX:]


def _result(outcome: Mapping[str, Any]) -> str | None:
    text = outcome.get("result") or outcome.get("reason") or outcome.get("outcome") or outcome.get("answer")
    return text if isinstance(text, str) else None


def _acknowledged(record: RecordRead) -> Iterator[PersonAction]:
    item = decode_acknowledgement(record.value, record.timestamp_ms)
    if item is not None:
        name = f"{item.topic} {item.partition}@{item.offset}"
        yield PersonAction(
            record.timestamp_ms,
            item.by,
            "acknowledge",
            name,
            None,
            item.reason,
            "",
            None,
            None,
            "requests",
            record.offset,
        )


def _requested(request: Request, record: RecordRead, result: str | None, questions: Collection[str]) -> PersonAction:
    args, ask = request.args, request.args.get("ask")
    what = request.asked
    if what == RequestCommand.EXTENSION and isinstance(ask, str) and ask:
        what = ask
    destination, reason = args.get("destination"), args.get("reason") or args.get("why")
    named = request.name or request.broker or ""
    details = ", ".join(
        f"{name}={value}"
        for name, value in sorted(args.items())
        if name not in _ELSEWHERE and value not in (None, "", named) and not isinstance(value, dict | list)
    )
    return PersonAction(
        record.timestamp_ms,
        request.by,
        what,
        named,
        destination if isinstance(destination, str) else None,
        reason if isinstance(reason, str) and reason else None,
        details[:_DETAIL_MAX],
        result or ("invalid" if request.problem else None),
        request.id,
        "requests",
        record.offset,
        question=what in _QUESTIONS or (request.asked == RequestCommand.EXTENSION and what in questions),
    )


def in_order(actions: Iterable[PersonAction]) -> list[PersonAction]:
    """By log time."""
    return sorted(actions, key=lambda action: (action.at_ms, action.topic, action.offset))
