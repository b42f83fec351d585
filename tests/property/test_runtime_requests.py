"""Whatever lies in the requests topic is a record, or nothing, or a request refused with a reason; nothing crashes a desk."""

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statechannel.broker.handlers import Handlers
from statechannel.broker.requests import RequestCoordinator
from statechannel.engine.commands import CreateNamespace
from statechannel.engine.inputs import PartitionOpened
from statechannel.errors import StateChannelError
from statechannel.operations.request_record import Request, RequestRecordKind, command_of, decode
from statechannel.operations.table import RequestCommand, check
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN, bounds_of, children_of
from statechannel.protocol.log import RecordRead, Topic

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, 1, FULL_UPPER, FULL_UPPER + 1])
PLAIN = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
JSON = st.recursive(
    PLAIN, lambda item: st.lists(item, max_size=3) | st.dictionaries(st.text(max_size=4), item, max_size=3)
)
NAMES = st.sampled_from(["a/b", "a/b/t", "a/b/0x00000000_0xffffffff", "", "b1"])
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | JSON,
        "namespace": NAMES | JSON,
        "bounds": st.lists(NUMBERS, max_size=5) | JSON,
        "bundles": NUMBERS | JSON,
        "at": st.lists(NUMBERS, max_size=5) | JSON,
        "parts": NUMBERS | JSON,
        "destination": NAMES | JSON,
        "broker": NAMES | JSON,
        "read_only": JSON,
        "reason": JSON,
        "budget_s": JSON,
    },
)
RECORDS = st.fixed_dictionaries(
    {"format": st.just(1) | JSON, "kind": st.sampled_from(list(RequestRecordKind)) | JSON, "id": st.just("op1") | JSON},
    optional={
        "command": st.sampled_from(list(RequestCommand)) | JSON,
        "args": ARGS | JSON,
        "timeout_s": JSON,
        "by": st.fixed_dictionaries({"broker": NAMES | JSON, "incarnation": NAMES | JSON}) | JSON,
        "stage": st.sampled_from(["claimed", "started"]) | JSON,
        "supersedes": JSON,
        "facts": JSON,
        "outcome": JSON,
    },
).map(orjson.dumps)


class Leader:
    """Leads, and owns nothing."""

    broker, incarnation, leading, acting = "b1", "i1", True, True

    def owner_of(self, name: str) -> str | None:
        assert isinstance(name, str)
        return None

    def is_alive(self, broker: str, incarnation: str | None = None) -> bool:
        return broker == self.broker and incarnation in (None, self.incarnation)


@given(st.binary(max_size=200) | RECORDS)
@example(b'{"format":1,"id":"op1","kind":"request","command":"shutdown","args":{"broker":"b1","budget_s":1e400}}')
@example(
    b'{"format":1,"id":"op1","kind":"request","command":"create-namespace","args":{"namespace":"a/b","bounds":[]}}'
)
def test_every_byte_string_decodes_or_is_refused(value: bytes) -> None:
    record = decode(value, 1_000_000)
    if isinstance(record, Request):
        assert record.deadline_ms > 1_000_000
        if not record.problem:
            check(command_of(record, 1.0))
        else:
            with pytest.raises(StateChannelError):
                command_of(record, 1.0)


@given(st.lists(RECORDS, max_size=8))
def test_a_desk_survives_them_and_answers_every_bad_request_with_its_reason(values: list[bytes]) -> None:
    log: list[bytes] = []
    given_: list[Any] = []

    def submit(command: Any, _tell: Any) -> None:
        check(command)
        given_.append(command)

    asks = Handlers(0).give
    desk = RequestCoordinator(Leader(), append=lambda _, value: log.append(value), submit=submit, ask_extension=asks)
    desk.opened(PartitionOpened(Topic.REQUESTS, 0, 0, 0))
    for offset, value in enumerate(values):
        desk.read(RecordRead(Topic.REQUESTS, 0, offset, 1_000_000, b"op1", value))
        desk.review(float(offset * 10))
    read = 0
    while read < len(log) < 100:
        desk.read(RecordRead(Topic.REQUESTS, 0, len(values) + read, 1_000_000, b"op1", log[read]))
        read += 1
        desk.review(1_000.0 + read)
    assert not any(b"internal-error" in value for value in log)


@pytest.mark.parametrize(
    "bounds",
    [
        [],
        [0],
        [0, FULL_UPPER + 1],
        [-1, FULL_UPPER],
        [1, FULL_UPPER],
        [0, FULL_UPPER - 1],
        [0, 10, 5, FULL_UPPER],
        [0, 5, 5, FULL_UPPER],
        [0, 0, FULL_UPPER],
        [0, 2**63, FULL_UPPER],
        [0, 5.0, FULL_UPPER],
        [0, True, FULL_UPPER],
        [0, None],
        "0,5",
        {"0": 5},
        [*range(MAX_CHILDREN + 1), FULL_UPPER],
    ],
)
def test_bounds_that_are_no_ring_are_refused_with_a_reason(bounds: Any) -> None:
    request = {"format": 1, "id": "op1", "kind": "request", "command": "create-namespace"}
    record = decode(orjson.dumps(request | {"args": {"namespace": "a/b", "bounds": bounds}}), 0)
    assert isinstance(record, Request)
    assert "bounds" in record.problem


def test_bounds_that_are_a_ring_are_taken_as_they_are() -> None:
    bounds = [*range(MAX_CHILDREN), FULL_UPPER]
    command = command_of(Request("op1", "create-namespace", 0, {"namespace": "a/b", "bounds": bounds}, ""), 1.0)
    assert isinstance(command, CreateNamespace)
    assert list(bounds_of(children_of(command.bounds)) or ()) == bounds


@pytest.mark.parametrize("number", [True, 1.0, "1", [1]])
def test_only_the_number_1_is_format_1(number: Any) -> None:
    request = {"format": number, "id": "op1", "kind": "request", "command": "resume-repair"}
    assert decode(orjson.dumps(request), 0) is None
