"""What persons did to a channel: requests of all kinds, and what packages add (changes of policies). Pure.

A name is what the client said. Brokers request, too, in their own names: what their extensions decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

PERSONS_CLAIM: Final = (
    "Who requested something is the name that its client gave itself; Kafka's authorizer log knows the principal."
)


@dataclass(frozen=True, slots=True)
class PersonAction:
    """One thing that a person did.

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
        """For the JSON output."""
        return asdict(self)


def in_order(actions: Iterable[PersonAction]) -> list[PersonAction]:
    """By log time."""
    return sorted(actions, key=lambda action: (action.at_ms, action.topic, action.offset))
