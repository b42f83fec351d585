"""`drain`, `uncordon`, `rolling-restart`, and `transfer` and `unload` through the filters: what needs no Kafka."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from shedders.cli import transfer
from shedders.cli.drain import follower
from shedders.cli.drain.command import rate_of
from shedders.cli.drain.follower import DrainRequest, DrainResult, require_empty
from shedders.cli.drain.rolling import next_broker, split_command
from shedders.policies.book import PolicyBook
from shedders.policies.effective import Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author, PolicyKey, PolicyRecord, encode
from shedders.queries.policies import drain_id_of
from statechannel.broker.request_writer import may_be_asked_again
from statechannel.cli import main
from statechannel.cli.kit import requests
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.requests import RequestAnswer, SentRequest
from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Undetermined, Unknown
from statechannel.engine.membership import Member
from statechannel.stories.registry import Registry
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
    ("text", "rate_per_s"), [(None, None), ("20/s", 20.0), ("20", 20.0), ("0.5/s", 0.5), ("10000", 10_000.0)]
)
def test_rates(text: str | None, rate_per_s: float | None) -> None:
    assert rate_of(text) == rate_per_s


def test_a_command_is_taken_apart_as_a_shell_would() -> None:
    words = split_command("ssh {broker}.example 'systemctl restart broker'")
    assert words == ["ssh", "{broker}.example", "systemctl restart broker"]


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
    with pytest.raises(CommandError, match=r"t/n/0x0_0x1: it is pinned"):
        require_empty(DrainResult(wished, {"left": left, "left_count": 1}, "b2", "drained-in-part"))


def test_the_progress_of_a_drain_counts_from_all_bundles_that_the_broker_had_before_it(monkeypatch: pytest.MonkeyPatch):
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
def test_a_drain_that_nobody_can_execute_is_refused_before_anything_is_written(registry: Any, why: str, monkeypatch):
    monkeypatch.setattr(follower, "read_registry", lambda *_, **__: registry)
    monkeypatch.setattr(follower, "read_policies", lambda _: PolicyBook().at(0))
    connection: Any = None
    if not why:
        assert follower.check(connection, "b2", force=False) is registry
        return
    with pytest.raises(CommandError, match=f"b2 cannot be drained: {why}") as result:
        follower.check(connection, "b2", force=True)
    assert "extensions.balancer.enabled" in result.value.hint


def drained(
    monkeypatch: pytest.MonkeyPatch,
    *answers: Outcome | None,
    begun: bool = False,
    within_s: float = 30.0,
    leader: Any = None,
) -> list[str]:
    """What a drain does, by what leaders answer, the last one for ever; `begun`: an earlier command asked already."""
    done, left = list[str](), list(answers)
    for name, value in {
        "AGAIN_S": 0.02,
        "newest": lambda *_: SimpleNamespace(is_open=lambda _: False) if begun else None,
        "cordon": lambda *_, **__: True,
        "send": lambda *_, **__: done.append("asked") or SentRequest("1", 0, 1.0),
        "follow": lambda *_: RequestAnswer("1", left.pop(0) if left[1:] else left[0], "b2"),
        "read_registry": lambda *_, **__: leader or live(["balancer"]),
        "take_back": lambda *_: done.append("uncordoned") or True,
    }.items():
        monkeypatch.setattr(follower, name, value)
    bar: Any = SimpleNamespace(seen=False, show=lambda *_: None, drop=lambda _: None)
    connection: Any = None
    try:
        follower.drain(connection, DrainRequest("b1", OPERATION, within_s=within_s), bar)
    except CommandError as error:
        return [*done, str(error).partition(":")[0]]
    return [*done, "drained"]


NO_EXTENSION, NOT_LEADER, NOWHERE = (Rejected(why, "") for why in ("no-extension", "not-leader", "no-destination"))
DONE = Done("1", "drained")


@pytest.mark.parametrize(
    ("answers", "begun", "taken_back"),
    [
        ([NOWHERE], False, True),
        ([NOWHERE], True, True),
        ([Rejected("bad-request", "")], False, True),
        ([Rejected("bad-request", "")], True, False),
        ([NOT_LEADER, Rejected("bad-request", "")], False, False),
        *(([Rejected(why, "")], False, False) for why in ("unknown-broker", "uncordoned", "strategy-failed")),
    ],
)
def test_a_cordon_is_taken_back_only_where_nothing_has_left(
    answers: list[Outcome], begun: bool, taken_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a broker that is half empty would be assigned bundles again."""
    done = drained(monkeypatch, *answers, begun=begun)
    assert done.count("asked") == len(answers)
    assert ("uncordoned" in done) is taken_back
    assert done[-1].startswith("rejected (")


def test_a_drain_is_asked_again_until_a_leader_executes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drained(monkeypatch, None, NO_EXTENSION, DONE) == [*["asked"] * 3, "drained"]
    without = drained(monkeypatch, NO_EXTENSION, DONE, leader=live([]))
    assert without == ["asked", "uncordoned", "rejected (no-extension)"], "the leader will not start the balancer"
    *asked, uncordoned, end = drained(monkeypatch, NO_EXTENSION, within_s=0.1)
    assert (set(asked), uncordoned, end) == ({"asked"}, "uncordoned", "rejected (no-extension)")


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
    monkeypatch.setattr(requests, "_is_checked", lambda *_: CHECKED[0])
    CHECKED[0] = False
    return results


ANSWERS: list[Outcome] = []
CHECKED = [False]
"""Whether every broker checks moves itself."""
PLACE = ["-b", "127.0.0.1:1"]
REFUSED = Rejected("filtered", "t/n/x may not go to b2: cordon: it is cordoned", "Use --force to do it nevertheless.")


def test_a_move_that_policies_allow_is_made(run: Callable[..., Result], asked: list[Any]) -> None:
    ANSWERS[:] = [Done("1", "may-take")]
    assert run("transfer", "t/n/x", "--dest", "b2", "--reason", "mine", *PLACE).exit_code == 0
    assert [word for word, _ in asked] == ["extension", "transfer"]
    expected = {"extension": "balancer", "ask": "may-take", "to": "leader", "name": "t/n/x", "destination": "b2"}
    assert asked[0][1] == expected
    sent = {name: value for name, value in asked[1][1].items() if value is not None}
    assert sent == {"name": "t/n/x", "destination": "b2", "reason": "mine", "force": False}


def test_brokers_that_check_moves_themselves_are_not_asked_before(run: Callable[..., Result], asked: list[Any]) -> None:
    CHECKED[0] = True
    assert run("transfer", "t/n/x", "--dest", "b2", *PLACE).exit_code == 0
    assert run("unload", "t/n/x", "--force", *PLACE).exit_code == 0
    assert [(word, args["force"]) for word, args in asked] == [("transfer", False), ("unload", True)]


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


def test_no_answer_of_a_leader_is_no_leave(run: Callable[..., Result], asked: list[Any]) -> None:
    ANSWERS[:] = [Rejected("not-leader", "this broker has lost the leadership", "Ask again.")]
    result = run("unload", "t/n/x", *PLACE)
    assert result.exit_code == 3
    assert "not-leader" in result.stderr
    assert "unload" not in [word for word, _ in asked]
