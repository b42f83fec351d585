"""`drain`, `uncordon`, `rolling-restart`, and `transfer` and `unload` through the filters: what needs no Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from shedders.cli import transfer
from shedders.cli.drain import command, follower
from shedders.cli.drain.command import rate_of
from shedders.cli.drain.cordons import drain_id_of
from shedders.cli.drain.follower import DrainRequest, DrainResult, require_empty
from shedders.cli.drain.rolling import next_broker, split_command
from shedders.policies.book import PolicyBook
from shedders.policies.effective import Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author, PolicyKey, PolicyRecord, encode
from statechannel.broker.request_writer import may_be_asked_again
from statechannel.cli import main
from statechannel.cli.kit import requests
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import Output
from statechannel.cli.kit.registry import Registry
from statechannel.cli.kit.requests import (
    RequestAnswer,
    SentRequest,
)
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Undetermined, Unknown
from statechannel.engine.membership import Member
from tests.support import strategies

OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
COMMANDS = {
    "drain": "shedders.cli.drain.command:app",
    "uncordon": "shedders.cli.drain.command:uncordon_app",
    "rolling-restart": "shedders.cli.drain.command:rolling_restart_app",
    "transfer": "shedders.cli.transfer:app",
    "unload": "shedders.cli.transfer:unload_app",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = strategies.points(main.COMMANDS_GROUP, **COMMANDS)
    monkeypatch.setattr(main, "_registered", lambda: {point.name: point for point in points})


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["drain"], "BROKER", "--help"),
        (["drain", "b 1"], "`b 1` is not", ""),
        (["drain", "b1", "--rate", "fast"], "`fast` is not a valid rate", "20/s"),
        (["drain", "b1", "--rate", "0/s"], "`0/s` is not a valid rate", "at most 10000/s"),
        (["drain", "b1", "--rate", "20/min"], "`20/min` is not a valid rate", "20/s"),
        (["drain", "b1", "--rate", "1e3"], "`1e3` is not a valid rate", "20/s"),
        (["drain", "b1", "--rate", "99999"], "is not a valid rate", "at most"),
        (["uncordon", "b 1"], "`b 1` is not", ""),
        (["rolling-restart"], "either --command CMD or --manual is required", ""),
        (["rolling-restart", "--manual", "--command", "x {broker}"], "either --command", ""),
        (
            ["rolling-restart", "--command", "systemctl restart broker"],
            "--command has no {broker}",
            "for the broker's id",
        ),
        (
            ["rolling-restart", "--command", "/nonexistent/x {broker}"],
            "program /nonexistent/x not found or not executable here; nothing was drained",
            "PATH",
        ),
        (["rolling-restart", "--command", "ssh '{broker}"], "--command cannot be parsed", ""),
        (["rolling-restart", "--manual", "--broker", "b 1"], "`b 1` is not", ""),
        (["rolling-restart", "--manual", "--rate", "no"], "`no` is not a valid rate", ""),
    ],
)
def test_wrong_usage_is_told_before_kafka_is_asked(
    run: Callable[..., Result], args: list[str], error: str, hint: str
) -> None:
    result = run(*args, "-b", "127.0.0.1:1")
    assert result.exit_code == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert error in lines[0]
    assert hint in "".join(lines[1:])
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("args", [["drain", "b1"], ["uncordon", "b1"], ["rolling-restart", "--manual"]])
def test_kafka_away(run: Callable[..., Result], closed_port: int, args: list[str]) -> None:
    result = run(*args, "-b", f"127.0.0.1:{closed_port}", "--set", "kafka.command_timeout_s=1")
    assert result.exit_code == 10, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "rate_per_s"), [(None, None), ("20/s", 20.0), ("20", 20.0), ("0.5/s", 0.5), ("10000", 10_000.0)]
)
def test_rates(text: str | None, rate_per_s: float | None) -> None:
    assert rate_of(text) == rate_per_s


def test_a_command_is_taken_apart_as_a_shell_would() -> None:
    assert split_command("ssh {broker}.example 'systemctl restart broker'") == [
        "ssh",
        "{broker}.example",
        "systemctl restart broker",
    ]


@pytest.mark.parametrize(
    ("done", "begun", "leader", "held", "turn"),
    [
        (set(), {}, "b1", {}, "b2"),
        ({"b2"}, {}, "b1", {}, "b3"),
        ({"b2", "b3"}, {}, "b1", {}, "b1"),
        ({"b1", "b2", "b3"}, {}, "b1", {}, None),
        (set(), {"b3": "i"}, "b1", {}, "b3"),
        (set(), {"b1": "i"}, "b1", {}, "b1"),
        ({"b2"}, {"b2": "i"}, "b3", {}, "b1"),
        (set(), {}, None, {}, "b1"),
        (set(), {}, "b1", {"b2": 5, "b3": 4}, "b3"),
        (set(), {}, "b1", {"b1": 0, "b2": 5, "b3": 5}, "b2"),
        ({"b3"}, {}, None, {"b1": 7, "b2": 5}, "b1"),
    ],
)
def test_whose_turn_it_is(
    done: set[str], begun: Mapping[str, str], leader: str | None, held: Mapping[str, int], turn: str | None
) -> None:
    assert next_broker(["b3", "b1", "b2"], done, begun, leader, held) == turn


@pytest.mark.parametrize(
    ("by", "drain", "person"),
    [
        (f"system:drain/{OPERATION}/ann@desk", OPERATION, "ann@desk"),
        (f"system:drain/{OPERATION}/a/b", OPERATION, "a/b"),
        (f"system:drain/{OPERATION}", None, f"system:drain/{OPERATION}"),
        ("system:drain//ann", None, "system:drain//ann"),
        ("drain/x/ann", None, "drain/x/ann"),
        ("ann@desk", None, "ann@desk"),
        ("", None, ""),
    ],
)
def test_which_cordon_a_drain_has_written(by: str, drain: str | None, person: str) -> None:
    """A sentence such as `drain tonight: disks` makes no drain."""
    why = f"drain {OPERATION}: disks"
    entry = PolicyEntry(PolicyKey(PolicyKind.CORDON, "b1"), Force.IN_FORCE, 1, 1, {}, by, why)
    assert (drain_id_of(entry), entry.author.person) == (drain, person)
    assert Author.parse(entry.author.by) == entry.author
    assert drain_id_of(None) is None


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (None, True),
        (Unknown("1", "the broker that executed it has stopped"), True),
        (Undetermined("timed-out", ""), True),
        (Rejected("not-leader", ""), True),
        (Rejected("no-destination", ""), False),
        (Rejected("uncordoned", ""), False),
        (NotFound("unknown-bundle", ""), False),
        (Done("1", "drained"), False),
    ],
)
def test_when_it_is_asked_again(outcome: Outcome | None, again: bool) -> None:
    assert may_be_asked_again(outcome) is again


def test_what_is_left_ends_the_command() -> None:
    wished = DrainRequest("b1", OPERATION)
    require_empty(DrainResult(wished, {"left": [], "left_count": 0}, "b2", "drained"))
    left = [{"bundle": "t/n/0x0_0x1", "reason": "pin", "why": "it is pinned to b1"}]
    with pytest.raises(
        CommandError, match=r"b1 still has 1 bundle that no other broker may take; t/n/0x0_0x1: it is pinned"
    ):
        require_empty(DrainResult(wished, {"left": left, "left_count": 1}, "b2", "drained-in-part"))


@pytest.mark.parametrize(
    ("reason", "begun", "taken_back"),
    [
        ("no-destination", False, True),
        ("no-destination", True, True),
        ("no-extension", False, True),
        ("no-extension", True, False),
        ("bad-request", False, True),
        ("unknown-broker", False, False),
        ("not-cordoned", False, False),
        ("uncordoned", False, False),
        ("strategy-failed", False, False),
        ("internal-error", False, False),
    ],
)
def test_a_cordon_is_taken_back_only_where_nothing_has_left(
    reason: str, begun: bool, taken_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a broker that is half empty would be assigned bundles again."""
    done: list[str] = []
    monkeypatch.setattr(follower, "take_back", lambda _, broker, drain: done.append(f"{broker} {drain}") or True)
    connection: Any = None
    with pytest.raises(CommandError, match=f"rejected .{reason}.") as result:
        follower._result_of(
            connection,
            DrainRequest("b1", OPERATION),
            RequestAnswer("1", Rejected(reason, "said"), "b2"),
            newly_cordoned=True,
            begun=begun,
        )
    assert done == ([f"b1 {OPERATION}"] if taken_back else [])
    assert ("the cordon was removed" in str(result.value)) is taken_back


@pytest.mark.parametrize(
    ("answers", "begun"),
    [
        ([Done("1", "drained")], False),
        ([Rejected("no-extension", ""), Rejected("no-extension", ""), Done("1", "drained")], False),
        ([Rejected("not-leader", ""), Rejected("no-destination", "")], True),
        ([None, Done("1", "drained")], True),
    ],
)
def test_whether_a_leader_before_may_have_begun_it(
    answers: list[Outcome | None], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, nothing = list(answers), Any
    monkeypatch.setattr(follower, "send", lambda *_, **__: SentRequest("1", 0, 1.0))
    monkeypatch.setattr(follower, "follow", lambda *_: RequestAnswer("1", left.pop(0), "b2"))
    monkeypatch.setattr(follower, "BundleCounts", lambda _: nothing)
    monkeypatch.setattr(follower, "AGAIN_S", 0.0)
    monkeypatch.setattr(follower, "why_no_drain", lambda _: "")
    monkeypatch.setattr(follower, "read_registry", lambda *_, **__: None)
    connection: Any = None
    bar: Any = None
    watch = follower._Watch(connection, DrainRequest("b1", OPERATION), bar, begun=False)
    assert watch.until_answered(None, first=True).outcome == answers[-1]
    assert (watch.begun, left) == (begun, [])


def test_the_progress_of_a_drain_counts_from_all_bundles_that_the_broker_had_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = iter([7, 4, 0])

    class Counts:
        def __init__(self, _: object) -> None:
            self.counts = Counter[str]()

        def refresh(self) -> Counter[str]:
            self.counts = Counter(b1=next(counted))
            return self.counts

    def follow(_: object, __: object, show: Callable[[str | None], None]) -> RequestAnswer:
        show("b2")
        show("b2")
        return RequestAnswer("1", Done("1", "drained"), "b2")

    lines: list[tuple[int, int]] = []
    shown: Any = SimpleNamespace(
        seen=True, show=lambda _, __, done, total: lines.append((done, total)), drop=lambda _: None
    )
    for name, value in {
        "BundleCounts": Counts,
        "follow": follow,
        "newest": lambda *_: None,
        "cordon": lambda *_, **__: True,
    }.items():
        monkeypatch.setattr(follower, name, value)
    monkeypatch.setattr(follower, "send", lambda *_, **__: SentRequest("1", 0, 1.0))
    connection: Any = None
    follower.drain(connection, DrainRequest("b1", OPERATION), shown)
    assert lines[1:] == [(3, 7), (7, 7)]


def live(*extensions: list[str] | None) -> Any:
    """A registry of brokers with these extensions; the first leads."""
    members = {
        f"b{number}": Member(
            f"b{number}", "i", 0.0, 0, 0,
            {"phase": "caught-up", "mode": "normal", "accepting": True, "leading": number == 1}
            | ({} if names is None else {"extensions": names}),
        )
        for number, names in enumerate(extensions, 1)
    }  # fmt: skip
    return Registry(SimpleNamespace(alive=members, lost={}), 0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("registry", "why"),
    [
        (live([], []), "no broker runs the balancer"),
        (live([], ["balancer"]), "the leader b1 does not run the balancer"),
        (live(["balancer"], []), ""),
        (live(None, None), ""),
    ],
)
def test_a_drain_that_nobody_can_execute_is_refused_before_anything_is_written(
    registry: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "read_registry", lambda *_, **__: registry)
    monkeypatch.setattr(follower, "read_policies", lambda _: PolicyBook().at(0))
    connection: Any = None
    if not why:
        assert follower.check(connection, "b2", force=False) is registry
        return
    with pytest.raises(CommandError, match=f"b2 cannot be drained: {why}") as result:
        follower.check(connection, "b2", force=True)
    assert "extensions.balancer.enabled" in result.value.hint


@pytest.mark.parametrize(("extensions", "requests_sent"), [([], 1), (["balancer"], 2)])
def test_a_leader_without_the_balancer_is_asked_once(
    extensions: list[str], requests_sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Outcome] = [Rejected("no-extension", "none"), Done("1", "drained")]
    sent: list[int] = []
    monkeypatch.setattr(follower, "send", lambda *_, **__: sent.append(1) or SentRequest("1", 0, 1.0))
    monkeypatch.setattr(follower, "follow", lambda *_: RequestAnswer("1", answers.pop(0), "b1"))
    monkeypatch.setattr(follower, "BundleCounts", lambda _: None)
    monkeypatch.setattr(follower, "AGAIN_S", 0.0)
    monkeypatch.setattr(follower, "read_registry", lambda *_, **__: live(extensions))
    connection: Any = None
    bar: Any = None
    follower._Watch(connection, DrainRequest("b1", OPERATION), bar, begun=False).until_answered(None, first=True)
    assert len(sent) == requests_sent


def test_a_drain_that_no_leader_began_ends_with_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cordon is taken back then, and the reason is said."""
    monkeypatch.setattr(follower, "send", lambda *_, **__: SentRequest("1", 0, 1.0))
    monkeypatch.setattr(follower, "follow", lambda *_: RequestAnswer("1", Rejected("no-extension", "none"), "b1"))
    monkeypatch.setattr(follower, "BundleCounts", lambda _: None)
    monkeypatch.setattr(follower, "AGAIN_S", 0.05)
    monkeypatch.setattr(follower, "read_registry", lambda *_, **__: live(None))
    connection: Any = None
    bar: Any = None
    request = DrainRequest("b1", OPERATION, within_s=0.2)
    answer = follower._Watch(connection, request, bar, begun=False).until_answered(None, first=True)
    assert isinstance(answer.outcome, Rejected)
    assert answer.outcome.reason == "no-extension"


# --- transfer and unload --------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Requests that the commands made; what the extension answers is in `answers`."""
    results: list[tuple[str, dict[str, Any]]] = []

    def ask(_: object, word: Any, args: dict[str, Any], **__: object) -> RequestAnswer:
        results.append((str(word), args))
        if str(word) == "extension":
            return RequestAnswer("1", ANSWERS.pop(0), "b1", name=args["name"])
        return RequestAnswer("2", Done("2", "done"), "b1")

    monkeypatch.setattr(transfer, "ask", ask)
    monkeypatch.setattr(requests, "ask", ask)
    monkeypatch.setattr(transfer, "AGAIN_S", 0.0)
    return results


ANSWERS: list[Outcome] = []
PLACE = ["-b", "127.0.0.1:1"]
REFUSED = Rejected("filtered", "t/n/x may not go to b2: cordon: it is cordoned", "Use --force to do it nevertheless.")


def test_a_move_that_policies_allow_is_made(run: Callable[..., Result], asked: list[Any]) -> None:
    ANSWERS[:] = [Done("1", "may-take")]
    assert run("transfer", "t/n/x", "--dest", "b2", "--reason", "mine", *PLACE).exit_code == 0
    assert [word for word, _ in asked] == ["extension", "transfer"]
    assert asked[0][1] == {
        "extension": "balancer",
        "ask": "may-take",
        "to": "leader",
        "name": "t/n/x",
        "destination": "b2",
    }
    sent = {name: value for name, value in asked[1][1].items() if value is not None}
    assert sent == {"name": "t/n/x", "destination": "b2", "reason": "mine"}


def test_a_move_that_policies_forbid_is_not_made(run: Callable[..., Result], asked: list[Any]) -> None:
    for args in (["transfer", "t/n/x", "--dest", "b2"], ["unload", "t/n/x"], ["unload", "t/n/x", "--dest", "b2"]):
        ANSWERS[:] = [REFUSED]
        result = run(*args, *PLACE)
        assert result.exit_code == 3
        assert "error: rejected (filtered): t/n/x may not go to b2: cordon: it is cordoned" in result.stderr
        assert "--force" in next(line for line in result.stderr.splitlines() if line.startswith("hint: "))
    assert {word for word, _ in asked} == {"extension"}


def test_force_is_not_asked_and_stands_in_the_record(run: Callable[..., Result], asked: list[Any]) -> None:
    assert run("transfer", "t/n/x", "--dest", "b2", "--force", *PLACE).exit_code == 0
    assert run("unload", "t/n/x", "--force", "--reason", "I must", *PLACE).exit_code == 0
    assert [args["reason"] for _, args in asked] == ["forced past the filters", "forced past the filters: I must"]


@pytest.mark.parametrize("cordoned", [False, True])
def test_without_the_extension_it_works_and_says_that_policies_are_not_checked(
    run: Callable[..., Result], asked: list[Any], cordoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = PolicyBook()
    if cordoned:
        record = PolicyRecord(PolicyKey(PolicyKind.CORDON, "b2"), {}, "ann", "disks", None, 0)
        book.take(0, 0, record.key.encode(), encode(record))
    monkeypatch.setattr(transfer, "book_of", lambda _: book)
    ANSWERS[:] = [Rejected("no-extension", "this broker runs no extension balancer")]
    result = run("unload", "t/n/x", *PLACE)
    assert result.exit_code == 0
    assert [word for word, _ in asked] == ["extension", "unload"]
    note = "1 policy in force was not checked: the leader does not run the balancer"
    assert (note in result.stderr) is cordoned


def test_a_new_leader_is_asked_again_and_nobodys_answer_is_no_leave(
    run: Callable[..., Result], asked: list[Any]
) -> None:
    ANSWERS[:] = [Rejected("not-leader", "ask again"), Done("1", "may-take")]
    assert run("unload", "t/n/x", *PLACE).exit_code == 0
    ANSWERS[:] = [Rejected("not-leader", "this broker has lost the leadership", "Ask again.")] * 4
    result = run("unload", "t/n/x", *PLACE)
    assert result.exit_code == 3
    assert "not-leader" in result.stderr
    assert [word for word, _ in asked].count("unload") == 1


def test_a_drained_broker_stays_cordoned_and_the_drain_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"moved": 7, "left": [], "left_count": 0, "earlier_known": True, "reports_in_vain": 0, "leads": False}
    command._report(DrainResult(DrainRequest("b3", "op"), facts, "b1", "drained"), Output.TABLE, {})
    assert capsys.readouterr().out.splitlines() == [
        "b3: 7 bundles were moved, 0 are left (operation op, by b1)",
        "b3 stays cordoned until `statechannel uncordon b3`",
    ]
