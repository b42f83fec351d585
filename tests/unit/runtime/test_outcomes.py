"""Every outcome survives JSON, and is one of three answers."""

from enum import IntEnum
from types import MappingProxyType

import orjson
import pytest

from statechannel.engine import commands
from statechannel.operations.outcomes import Answer, answer_of, from_json, plain, to_json
from statechannel.protocol.verdict import Verdict

CASES = [
    (commands.Owned("t/n/0x0_0x1", "b1", 4, {"pulsar": "x"}, 1.5), Answer.ACCEPTED),
    (commands.Unowned("b"), Answer.ACCEPTED),
    (commands.BoundTo("b1"), Answer.ACCEPTED),
    (commands.NotFound("unknown-namespace", "no"), Answer.REJECTED),
    (commands.Undetermined("timed-out", "d", "Try again."), Answer.UNKNOWN),
    (commands.Undetermined("declined", "d", "", (commands.Declined("b1", "no disk", 3.0, 27.0),)), Answer.UNKNOWN),
    (commands.Started("op", "b", 0, 3), Answer.ACCEPTED),
    (commands.Done("op", "split", {"children": ("x", "y")}), Answer.ACCEPTED),
    (commands.Rejected(Verdict.STALE_VERSION, "late", "Look.", winner="id", bundle="b"), Answer.REJECTED),
    (commands.Unknown("op", "d"), Answer.UNKNOWN),
]


@pytest.mark.parametrize(("outcome", "answer"), CASES, ids=lambda case: type(case).__name__)
def test_round_trip(outcome: commands.Outcome, answer: Answer) -> None:
    assert answer_of(outcome) is answer
    text = orjson.dumps(to_json(outcome))
    back = from_json(orjson.loads(text))
    assert type(back) is type(outcome)
    assert to_json(back) == to_json(outcome)


@pytest.mark.parametrize(
    ("former", "outcome"),
    [
        ({"outcome": "not-found", "why": "no x; look"}, commands.NotFound("not-found", "no x; look")),
        ({"outcome": "undetermined", "why": "busy", "detail": "d"}, commands.Undetermined("busy", "d")),
        (
            {"outcome": "rejected", "reason": "busy", "detail": "d", "winner": "w"},
            commands.Rejected("busy", "d", winner="w"),
        ),
        ({"outcome": "unknown", "operation": "o", "detail": "d"}, commands.Unknown("o", "d")),
    ],
)
def test_a_reply_of_an_earlier_version_is_read(former: dict, outcome: commands.Outcome) -> None:
    assert from_json(former) == outcome


@pytest.mark.parametrize("answer", [{}, {"outcome": "maybe"}, {"outcome": "done"}])
def test_what_is_no_outcome_is_refused(answer: dict) -> None:
    with pytest.raises(ValueError, match="outcome"):
        from_json(answer)


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, value) for value in (None, True, 0, 1.5, "", "text")),
        (Verdict.STALE_VERSION, "stale-version"),
        (Level.HIGH, "3"),
        ({1: ("x", None)}, {"1": ["x", None]}),
        (MappingProxyType({"a": Verdict.ACCEPTED}), {"a": "accepted"}),
        ([{2}], [[2]]),
        (frozenset({2}), [2]),
        (commands.BoundTo("b1"), {"broker": "b1", "urls": {}}),
        ({"which": commands.BoundTo}, {"which": str(commands.BoundTo)}),
    ],
    ids=repr,
)
def test_a_plain_value_is_of_json_alone(value: object, expected: object) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    assert orjson.loads(orjson.dumps(found)) == expected
