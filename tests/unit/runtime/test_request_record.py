"""Records of the requests topic: what is read from which bytes, and which command a request becomes."""

from typing import Any

import orjson
import pytest

from statechannel.engine import commands
from statechannel.errors import StateChannelError
from statechannel.operations.request_record import Progress, ProgressStage, Reply, Request, command_of, decode, encode
from statechannel.operations.table import ANSWER_PART, Addressee, ExtensionAsk
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN

BUNDLE = "a/b/0x00000000_0xffffffff"
AT_MS = 1_000_000
PROCESS = {"broker": "b1", "incarnation": "i1"}
REQUEST = {"format": 1, "id": "op1", "kind": "request", "command": "resume-repair"}
PROGRESS = {"format": 1, "id": "op1", "kind": "progress", "stage": "claimed", "by": PROCESS}
REPLY = {"format": 1, "id": "op1", "kind": "reply", "by": PROCESS, "outcome": {}}
ASK = {"extension": "balancer", "ask": "plan"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{",
        *(orjson.dumps(document) for document in (None, 1, [], [REQUEST], "format")),
        *(orjson.dumps(REQUEST | {"format": number}) for number in (0, 2, True, 1.0, "1", None)),
        *(orjson.dumps(REQUEST | {"id": name}) for name in (None, 7, "", "a b", "x" * 65, "\u00e9")),
        *(orjson.dumps(PROGRESS | {"kind": kind}) for kind in (None, "reply", "acknowledgement", 1)),
        *(orjson.dumps(REPLY | {"kind": kind}) for kind in (None, "progress", "acknowledgement")),
        *(
            orjson.dumps(item | {"by": by})
            for item in (PROGRESS, REPLY)
            for by in (None, "b1", {}, {"broker": "b1"}, {"incarnation": "i1"}, PROCESS | {"broker": 7})
        ),
        *(orjson.dumps(PROGRESS | {"stage": stage}) for stage in (None, "ended", 1, [])),
        *(orjson.dumps(PROGRESS | {"supersedes": offset}) for offset in (None, "7", 7.0, True)),
        *(orjson.dumps(PROGRESS | {"facts": facts}) for facts in (None, [], "x")),
        *(orjson.dumps(REPLY | {"outcome": outcome}) for outcome in (None, [], "done")),
    ],
)
def test_what_is_no_record_is_read_as_none(value: bytes | None) -> None:
    assert decode(value, AT_MS) is None


@pytest.mark.parametrize(
    "item",
    [
        Request("op1", "unload", 0, {"name": BUNDLE}, "cli@host"),
        Progress("op1", ProgressStage.CLAIMED, "b1", "i1"),
        Progress("x" * 64, ProgressStage.STARTED, "b1", "i1", 4, {"bundle": BUNDLE}),
        Reply("op-1", "b1", "i1", {"outcome": "done"}),
    ],
)
def test_what_is_written_is_read(item: Request | Progress | Reply) -> None:
    assert decode(encode(item, timeout_s=5), -5_000) == item


def test_a_claim_without_more_is_the_first_one() -> None:
    assert decode(orjson.dumps(PROGRESS), AT_MS) == Progress("op1", ProgressStage.CLAIMED, "b1", "i1", -1, {})


def test_records_are_plain_json_as_the_page_says() -> None:
    request = Request("op1", "unload", 0, {"name": BUNDLE}, "cli@host")
    assert orjson.loads(encode(request, timeout_s=5, at_ms=7)) == {
        "format": 1,
        "kind": "request",
        "id": "op1",
        "command": "unload",
        "args": {"name": BUNDLE},
        "timeout_s": 5,
        "by": "cli@host",
        "written_at_ms": 7,
    }


@pytest.mark.parametrize(
    ("timeout_s", "counted_s"),
    [(0.5, 0.5), (3600, 3600), *((other, 60) for other in (0, -1, 3600.001, True, "5", None, []))],
)
def test_the_deadline_counts_from_the_time_of_the_record(timeout_s: Any, counted_s: float) -> None:
    record = decode(orjson.dumps(REQUEST | {"timeout_s": timeout_s}), AT_MS)
    assert (record.deadline_ms, record.problem) == (AT_MS + counted_s * 1_000, "")


@pytest.mark.parametrize("fields", [{"args": []}, {"args": "x"}, {"by": 7}, {"by": None}, {"command": 7}, {}])
def test_a_request_of_another_form_is_still_one_to_be_answered(fields: dict[str, Any]) -> None:
    record = decode(orjson.dumps(REQUEST | fields), AT_MS)
    assert (record.args, record.by) == ({}, "")
    assert bool(record.problem) == ("command" in fields)
    assert decode(orjson.dumps(REQUEST), AT_MS) == Request("op1", "resume-repair", AT_MS + 60_000, {}, "")


def test_a_command_nested_as_deep_as_the_parser_allows_is_a_bad_request_and_stops_no_broker() -> None:
    value = b'{"format":1,"id":"deep","kind":"request","command":' + b"[" * 1_020 + b"]" * 1_020 + b"}"
    record = decode(value, 1_000)
    assert "unknown command" in record.problem


@pytest.mark.parametrize(
    ("args", "name", "broker"),
    [
        ({"name": "a/b/t", "namespace": "c/d", "broker": "b1"}, "a/b/t", "b1"),
        ({"namespace": "c/d"}, "c/d", None),
        ({"name": 7, "broker": 7}, "", None),
        ({}, "", None),
    ],
)
def test_what_and_which_broker_a_request_concerns(args: dict[str, Any], name: str, broker: str | None) -> None:
    request = Request("op1", "x", 0, args, "")
    assert (request.name, request.broker, request.addressee) == (name, broker, Addressee.LEADER)


OF_BUNDLE = {"name": BUNDLE, "destination": "b2", "reason": "full", "if_generation": 0}
REFUSED: dict[str, list[dict[str, Any]]] = {
    "dance": [{}],
    "": [{}],
    "lookup": [{"name": "a/b/t", "read_only": flag} for flag in ("yes", 1, None)],
    "create-namespace": [
        *({"namespace": name} for name in ("nope", "", 7, None)),
        *({"namespace": "a/b", "bundles": count} for count in (0, -1, True, 4.0, "4", None, MAX_CHILDREN + 1)),
        *(
            {"namespace": "a/b", "bounds": bounds}
            for bounds in (None, [], "0,5", {"0": 5}, [0, 5], [0, 5.0, FULL_UPPER])
        ),
        {"namespace": "a/b", "reason": 7},
    ],
    "delete-namespace": [{"namespace": "nope"}, {"namespace": "a/b", "reason": 7}],
    "transfer": [{"name": BUNDLE}, {"destination": "b2"}, OF_BUNDLE | {"destination": ""}],
    "unload": [{"name": ""}, {"name": 7}],
    "split": [
        *(OF_BUNDLE | {"at": at} for at in (None, 5, "5", {"5": 5}, [1.5], [True], list(range(MAX_CHILDREN)))),
        *(OF_BUNDLE | {"parts": parts} for parts in (None, True, 2.0, "2")),
    ],
    "dismiss-broker": [{"broker": ""}, {"broker": 7}],
    "shutdown": [{"broker": 7}, *({"broker": "b1", "budget_s": budget} for budget in (-1, True, "5", None))],
    "pre-stop": [
        *({"broker": "b1", "budget_s": budget} for budget in (-1, True, "5", None)),
        *({"broker": "b1", "notice_s": notice} for notice in (-1, True, "soon", None)),
    ],
    "undo-pre-stop": [{"broker": 7}],
    "extension": [
        {"extension": "balancer"},
        {"ask": "plan"},
        *(ASK | {"to": to} for to in ("all", None, 7, ["leader"], "owner", "broker")),
        ASK | {"to": "owner", "broker": "b1"},
        ASK | {"to": "broker", "name": BUNDLE},
    ],
}
for _name in ("transfer", "unload", "split"):
    REFUSED[_name] += [OF_BUNDLE | {"if_generation": number} for number in ("7", True, 7.0)]
    REFUSED[_name] += [OF_BUNDLE | {"reason": reason} for reason in (7, ["why"])]
for _name in REFUSED.keys() - {"dance", ""}:
    REFUSED[_name].append({})


@pytest.mark.parametrize(("command", "args"), [(name, args) for name, many in REFUSED.items() for args in many])
def test_arguments_of_the_wrong_form_are_refused_with_a_reason(command: str, args: dict[str, Any]) -> None:
    with pytest.raises(StateChannelError):
        command_of(Request("op1", command, 0, args, ""), 10.0)
    record = decode(orjson.dumps(REQUEST | {"command": command, "args": args}), AT_MS)
    assert record.problem


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ("lookup", {"name": "a/b/t"}, commands.Lookup("a/b/t", 10.0, False)),
        ("lookup", {"name": "a/b/t", "read_only": True}, commands.Lookup("a/b/t", 10.0, True)),
        (
            "create-namespace",
            {"namespace": "a/b"},
            commands.CreateNamespace("a/b", (0, 1 << 30, 1 << 31, 3 << 30, FULL_UPPER), "op1", 10.0, None),
        ),
        (
            "create-namespace",
            {"namespace": "a/b", "bounds": [0, 5, FULL_UPPER], "bundles": "not read", "reason": "new"},
            commands.CreateNamespace("a/b", (0, 5, FULL_UPPER), "op1", 10.0, "new"),
        ),
        ("delete-namespace", {"namespace": "a/b"}, commands.DeleteNamespace("a/b", "op1", 10.0, None)),
        ("transfer", OF_BUNDLE, commands.Transfer(BUNDLE, "b2", "op1", 10.0, "full", if_generation=0)),
        ("unload", OF_BUNDLE, commands.Unload(BUNDLE, "op1", 10.0, "full", if_generation=0)),
        ("unload", {"name": BUNDLE, "if_generation": None}, commands.Unload(BUNDLE, "op1", 10.0, None)),
        ("split", {"name": BUNDLE}, commands.Split(BUNDLE, "op1", 10.0, (), 2)),
        ("split", OF_BUNDLE | {"at": [5, 7], "parts": 3}, commands.Split(BUNDLE, "op1", 10.0, (5, 7), 3, "full", 0)),
        ("resume-repair", {}, commands.ResumeRepair()),
        ("dismiss-broker", {"broker": "b1"}, commands.DismissBroker("b1")),
        ("shutdown", {"broker": "b1"}, commands.Shutdown(10.0)),
        ("shutdown", {"broker": "b1", "budget_s": 0}, commands.Shutdown(0.0)),
        ("pre-stop", {"broker": "b1"}, commands.PreStop(10.0 * ANSWER_PART, 0.0)),
        ("pre-stop", {"broker": "b1", "budget_s": 4, "notice_s": 2}, commands.PreStop(4.0, 2.0)),
        ("undo-pre-stop", {"broker": "b1"}, commands.UndoPreStop()),
        *(
            ("extension", ASK | to, ExtensionAsk("balancer", "plan", ASK | to, "op1", 10.0))
            for to in ({}, {"to": "leader"}, {"to": "owner", "name": BUNDLE}, {"to": "broker", "broker": "b1"})
        ),
    ],
)
def test_a_request_becomes_one_operation(command: str, args: dict[str, Any], expected: object) -> None:
    assert command_of(Request("op1", command, 0, args, ""), 10.0) == expected


@pytest.mark.parametrize("command", ["transfer", "unload", "split", "lookup"])
def test_an_argument_of_a_later_version_is_ignored(command: str) -> None:
    """As `force` is by versions before it."""
    plain, later = (Request("op1", command, 0, OF_BUNDLE | more, "") for more in ({}, {"later": {"x": [1]}}))
    assert command_of(later, 10.0) == command_of(plain, 10.0)


@pytest.mark.parametrize(
    ("args", "is_forced"),
    [
        ({}, False),
        ({"force": False}, False),
        ({"force": True}, True),
        ({"force": "yes"}, False),
        ({"reason": "full"}, False),
        ({"reason": "forced past the filters"}, True),
        ({"reason": "forced past the filters: full"}, True),
        ({"reason": "forced past the filters", "force": False}, False),
    ],
)
def test_a_move_is_forced_by_its_field_or_in_older_versions_by_its_reason(args: dict[str, Any], is_forced: bool):
    request = Request("op1", "transfer", 0, {"name": BUNDLE, "destination": "b2", **args}, "")
    assert request.checks == (() if is_forced else ("may-take",))
    assert command_of(request, 10.0) == commands.Transfer(BUNDLE, "b2", "op1", 10.0, args.get("reason"))


@pytest.mark.parametrize(("command", "checks"), [("transfer", ("may-take",)), ("split", ()), ("dance", ())])
def test_which_checks_a_command_has(command: str, checks: tuple[str, ...]) -> None:
    assert Request("op1", command, 0, {}, "").checks == checks
