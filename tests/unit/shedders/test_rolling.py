"""A rolling restart, with a cluster that is made up: whose turn it is, when it stops, and how it goes on."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli.drain import rolling
from shedders.cli.drain.claim import RestartClaim, RestartUnderWayError
from shedders.cli.drain.follower import DrainRequest, DrainResult
from shedders.cli.drain.rolling import Restart, RestartRequest, read_progress
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import Author, PolicyKey
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.requests import RequestAnswer, SentRequest
from statechannel.engine.commands import Done, Outcome, Rejected, Unknown
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode, NotFoundError, UsageError
from statechannel.operations.request_record import Request
from statechannel.operations.table import RequestCommand
from tests.support.request_world import stories

RESTART = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


class World:
    """Brokers with their processes; a command restarts them unless the test wants otherwise."""

    def __init__(self, *brokers: str) -> None:
        self.processes = {name: f"{name}-1" for name in brokers}
        self.leader: str | None = "b1"
        self.cordons: dict[str, str] = {}
        self.requests: list[Request] = []
        self.done: list[str] = []
        self.left = 0
        self.stays: set[str] = set()
        self.exit_code = 0
        self.fresh_s = 5.0
        self.answers: list[Outcome | None] = []
        self.asked = 0
        self.held: dict[str, int] = {}
        self.holds: list[float] = []
        self.held_by: str | None = None
        self.released = 0
        self.done_before: dict[str, list[str]] = {}
        self.crashes: set[str] = set()
        self.claims: list[tuple[str, float]] = []
        self.refused_after: int | None = None

    def follow(self, *_: object) -> RequestAnswer:
        """Whoever is asked whether reports are fresh."""
        self.asked += 1
        return RequestAnswer("1", self.answers.pop(0) if self.answers else Done("1", "fresh", {"late": []}), "b1")

    def drain(self, _: object, asked: DrainRequest, __: object) -> DrainResult:
        self.done.append(f"drain {asked.broker}")
        self.cordons[asked.broker] = Author("me", asked.drain).by
        assert self.held_by is not None, "the balancer holds still"
        self.done_before[asked.broker] = (asked.extra or {})["done"]
        args = {"broker": asked.broker, "drain": asked.drain, **(asked.extra or {})}
        request = Request(asked.drain, RequestCommand.EXTENSION.value, 0, args, "me")
        self.requests.append(request)
        if asked.broker in self.crashes:
            self.processes[asked.broker] = f"{asked.broker}-9"
        left = [{"bundle": "t/n/x", "why": "it is pinned"}][: self.left]
        return DrainResult(asked, {"moved": 3, "left": left, "left_count": self.left}, "b2", "drained")

    def command(self, words: list[str], **_: object) -> Any:
        name = words[-1]
        self.done.append(f"restart {name}")
        if self.exit_code == 0 and name not in self.stays:
            self.processes[name] = f"{name}-{int(self.processes.get(name, 'x-1')[-1]) + 1}"
        return SimpleNamespace(returncode=self.exit_code)

    def registry(self, _: object, **__: object) -> Any:
        info = {"phase": "caught-up", "accepting": True, "mode": "normal"}
        alive = {name: Member(name, process, 0.0, 0, 0, info) for name, process in self.processes.items()}
        return SimpleNamespace(members=SimpleNamespace(alive=alive, lost={}), leader=alive.get(self.leader or ""))

    def effective(self, _: object) -> EffectivePolicies:
        entries = [
            PolicyEntry(PolicyKey(PolicyKind.CORDON, name), Force.IN_FORCE, 1, 1, {}, by, "disks")
            for name, by in self.cordons.items()
        ]
        return EffectivePolicies(entries=tuple(entries))

    def uncordon(self, _: object, broker: str, *, force: bool) -> None:
        assert not force
        self.done.append(f"uncordon {broker}")
        del self.cordons[broker]

    def hold(self, _: object, restart: str, within_s: float, *, by: str | None) -> bool:
        assert by is None
        self.holds.append(within_s)
        self.held_by = restart
        return True

    def claimed(self, _: object, restart: str, *__: object) -> Any:
        """The claim of one command, which another one takes over where the test wants that."""

        def hold(brokers: object, within_s: float) -> None:
            del brokers
            if self.refused_after is not None and len(self.claims) >= self.refused_after:
                holder = RestartClaim("01OTHER", "run", ("b1",), "you@there", 7, 0, 60_000)
                raise RestartUnderWayError("rolling restart 01OTHER is under way", holder, hint="Wait.")
            self.claims.append((restart, within_s))

        return SimpleNamespace(check=lambda: None, hold=hold, end=lambda: self.claims.append((restart, 0.0)))

    def release(self, _: object, restart: str) -> None:
        assert restart == RESTART
        self.held_by = None
        self.released += 1

    def run(self, *wanted: str, command: list[str] | None = None) -> list[dict[str, Any]]:
        words = ["restart", "{broker}"] if command is None else command
        request = RestartRequest(RESTART, words, back_s=0.05, fresh_s=self.fresh_s, leader_s=0.1)
        bar: Any = SimpleNamespace(show=lambda *_, **__: None, drop=lambda _: None, hidden=nullcontext)
        return Restart(None, request, bar).run(wanted)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World("b1", "b2", "b3")
    monkeypatch.setattr(rolling, "drain", world.drain)
    monkeypatch.setattr(rolling, "read_registry", world.registry)
    monkeypatch.setattr(rolling, "read_policies", world.effective)
    monkeypatch.setattr(rolling, "uncordon", world.uncordon)
    monkeypatch.setattr(rolling, "hold_balancing", world.hold)
    monkeypatch.setattr(rolling, "ClaimedRestart", SimpleNamespace(new=world.claimed))
    monkeypatch.setattr(rolling, "read_claims", lambda _: [])
    monkeypatch.setattr(rolling, "release_balancing", world.release)
    monkeypatch.setattr(rolling, "bundle_counts", lambda _: world.held)
    monkeypatch.setattr(rolling, "extension_requests", lambda *_: stories(*world.requests).values())
    monkeypatch.setattr(rolling, "send", lambda *_: SentRequest("1", 0, 1.0))
    monkeypatch.setattr(rolling, "follow", world.follow)
    monkeypatch.setattr(rolling, "AGAIN_S", 0.01)
    monkeypatch.setattr(rolling, "POLL_S", 0.01)
    monkeypatch.setattr(rolling.subprocess, "run", world.command)
    return world


def steps(*brokers: str) -> list[str]:
    return [f"{step} {name}" for name in brokers for step in ("drain", "restart", "uncordon")]


def test_one_after_the_other_the_leader_last(world: World) -> None:
    result = world.run()
    assert world.done == steps("b2", "b3", "b1")
    expected = [("b2", "b2-1", "b2-2", 3), ("b3", "b3-1", "b3-2", 3), ("b1", "b1-1", "b1-2", 3)]
    assert [(item["broker"], item["before"], item["after"], item["moved"]) for item in result] == expected
    assert read_progress(None, RESTART).brokers == ["b1", "b2", "b3"]  # type: ignore[arg-type]


def test_each_drain_knows_who_is_done_and_the_balancer_holds_still_until_the_last_one_is_back(world: World) -> None:
    world.run()
    assert world.done_before == {"b2": [], "b3": ["b2"], "b1": ["b2", "b3"]}
    assert (world.held_by, world.released) == (None, 1)
    assert min(world.holds) > rolling.MARGIN_S
    assert max(world.holds) == 1_800 + rolling.MARGIN_S, "the drain has the longest limit"


def test_the_claim_is_held_longer_than_each_step_and_ended(world: World) -> None:
    world.run()
    assert {restart for restart, _ in world.claims} == {RESTART}
    assert [within_s for _, within_s in world.claims[:-1]] == world.holds
    assert world.claims[-1][1] == 0.0


@pytest.mark.parametrize(("after", "done"), [(0, []), (1, []), (2, ["drain b2"]), (3, steps("b2"))])
def test_whoever_loses_the_claim_stops_and_leaves_the_override_to_the_other_one(
    world: World, after: int, done: list[str]
) -> None:
    world.refused_after = after
    with pytest.raises(RestartUnderWayError) as result:
        world.run()
    assert (result.value.holder.restart, result.value.code) == ("01OTHER", "restart-under-way")
    assert world.done == done
    assert world.released == 0
    assert (RESTART, 0.0) not in world.claims


def test_a_broker_that_comes_back_by_itself_during_its_drain_is_not_ended_again(world: World) -> None:
    """Else its second end would come when the next broker is drained already."""
    world.crashes = {"b2"}
    world.run()
    assert world.done == ["drain b2", "uncordon b2", *steps("b3", "b1")]


def test_a_balancer_that_was_held_goes_on_where_the_restart_stops(world: World) -> None:
    world.exit_code = 7
    with pytest.raises(CommandError):
        world.run()
    assert (world.held_by, world.released) == (None, 1)
    world.exit_code = 0
    world.run()
    assert world.done_before == {"b2": [], "b3": ["b2"], "b1": ["b2", "b3"]}


def test_the_first_one_has_the_fewest_bundles(world: World) -> None:
    """Those of the first broker move twice."""
    world.held = {"b1": 0, "b2": 9, "b3": 4}
    world.run()
    assert world.done == steps("b3", "b2", "b1"), "the leader is last nevertheless"


def test_only_those_that_are_named(world: World) -> None:
    world.run("b3", "b1")
    assert world.done == steps("b3", "b1")


def test_an_unknown_one_is_refused_before_anything_is_done(world: World) -> None:
    with pytest.raises(NotFoundError, match="broker b9 not found"):
        world.run("b2", "b9")
    assert world.done == []
    assert world.released == 0, "it holds nothing yet: a note about an override would be wrong where Kafka is away"


@pytest.mark.parametrize(
    ("trouble", "said", "code", "done"),
    [
        ({"left": 1}, "b2 cannot be drained: b2 still has 1 bundle", ExitCode.REJECTED, ["drain b2"]),
        ({"exit_code": 7}, "the command for b2 ended with 7: restart b2", ExitCode.FAILED, steps("b2")[:2]),
        (
            {"stays": {"b2"}},
            "b2 has not come back within 0.05 s: still the old process",
            ExitCode.UNDETERMINED,
            steps("b2")[:2],
        ),
    ],
)
def test_it_stops_at_the_first_trouble_and_goes_on_from_there(
    world: World, trouble: dict[str, Any], said: str, code: ExitCode, done: list[str]
) -> None:
    for name, value in trouble.items():
        setattr(world, name, value)
    with pytest.raises(CommandError, match="the remaining brokers were not restarted") as result:
        world.run()
    assert str(result.value).startswith(said)
    assert result.value.exit_code == code
    assert f"--operation {RESTART}" in result.value.hint
    assert world.done == done
    assert list(world.cordons) == ["b2"], "it stays cordoned"
    if not world.left:
        assert "; b2 stays cordoned; " in str(result.value)
        assert "`statechannel uncordon b2`" in result.value.hint

    world.left, world.exit_code, world.stays = 0, 0, set()
    world.done.clear()
    world.run()
    assert world.done == steps("b2", "b3", "b1")
    assert world.cordons == {}


def test_a_program_that_is_not_there_for_one_broker_is_told_before_the_first_drain(world: World) -> None:
    with pytest.raises(UsageError, match="program /nonexistent/b1 not found or not executable here"):
        world.run(command=["/nonexistent/{broker}"])
    assert world.done == []


@pytest.mark.parametrize(
    ("command", "refused"),
    [(["ssh", "{broker}", "restart"], True), (["ssh", "{broker}.example"], True), (["ssh", "root@{broker}"], False)],
)
def test_an_id_that_its_program_would_take_for_an_option_is_no_word_of_the_command(command: list[str], refused: bool):
    rolling.require_argument(command, "b-1")
    if not refused:
        rolling.require_argument(command, "-lroot")
        return
    with pytest.raises(UsageError, match="nothing was drained"):
        rolling.require_argument(command, "-lroot")


def test_such_an_id_stops_the_restart_before_the_first_drain(world: World) -> None:
    world.processes["-lroot"] = "-lroot-1"
    with pytest.raises(UsageError, match="begins with -"):
        world.run()
    assert world.done == []


def test_who_came_back_meanwhile_is_only_uncordoned(world: World) -> None:
    world.stays = {"b2"}
    with pytest.raises(CommandError):
        world.run()
    world.processes["b2"] = "b2-9"
    world.done.clear()
    world.run("b3")
    assert world.done == ["uncordon b2", *steps("b3", "b1")], "it keeps to the brokers that it began with"


def test_who_is_down_is_restarted_without_a_drain(world: World) -> None:
    world.stays = {"b2"}
    with pytest.raises(CommandError):
        world.run()
    del world.processes["b2"]
    world.stays.clear()
    world.done.clear()
    world.run()
    assert world.done == ["restart b2", "uncordon b2", *steps("b3", "b1")]


def test_who_is_done_is_left_alone(world: World) -> None:
    world.run()
    world.done.clear()
    assert world.run() == []
    assert world.done == []


def test_a_cordon_of_a_person_stays(world: World) -> None:
    world.run("b2")
    world.requests.clear()
    world.cordons["b2"] = "disk"
    real = world.drain

    def keep(connection: object, request: DrainRequest, bar: object) -> DrainResult:
        result = real(connection, request, bar)
        world.cordons["b2"] = "disk"
        return result

    rolling.drain = keep  # type: ignore[assignment]  # the fixture puts it back
    world.done.clear()
    world.run("b2")
    assert world.done == ["drain b2", "restart b2"]
    assert world.cordons == {"b2": "disk"}


def test_a_leader_that_changes_is_still_the_last(world: World) -> None:
    real = world.command

    def moved(words: list[str], **given: object) -> Any:
        world.leader = "b3"
        return real(words, **given)

    rolling.subprocess.run = moved  # type: ignore[assignment]  # the fixture puts it back
    world.run()
    assert world.done == steps("b2", "b1", "b3")


AGAIN: list[Outcome | None] = [
    Rejected("not-leader", "ask again"),
    Rejected("policies-unread", "not read yet"),
    Rejected("no-extension", "it has just begun to lead"),
    Unknown("1", "it has stopped"),
    None,
]


@pytest.mark.parametrize("answer", AGAIN)
def test_who_cannot_say_whether_reports_are_fresh_is_asked_again(world: World, answer: Outcome | None) -> None:
    world.answers = [answer] * 3
    assert [item["late_reports"] for item in world.run()] == [[], [], []]
    assert world.asked == 6
    assert world.done == steps("b2", "b3", "b1")


@pytest.mark.parametrize("answer", [*AGAIN, Rejected("unknown-ask", "an older version")])
def test_where_nobody_says_so_in_time_the_next_broker_is_left_alone(world: World, answer: Outcome | None) -> None:
    world.fresh_s = 0.1
    world.answers = [answer] * 1_000
    with pytest.raises(CommandError, match="b2 is back, but no broker reported within") as result:
        world.run()
    assert result.value.exit_code == ExitCode.UNDETERMINED
    assert f"--operation {RESTART}" in result.value.hint
    assert world.done == steps("b2")
    world.answers = [answer] * 1_000
    with pytest.raises(CommandError, match="b2 is back, but"):
        world.run()
    world.answers.clear()
    world.run()
    assert world.done == steps("b2", "b3", "b1"), "b2 is done"


def test_after_the_last_nobody_has_to_be_fresh(world: World) -> None:
    world.fresh_s = 0.1
    world.answers = [Rejected("unknown-ask", "an older version")]
    assert [item["late_reports"] for item in world.run("b3")] == [[]]
    assert world.done == steps("b3")


def test_whose_turn_it_is_waits_for_a_leader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is heard to lead, the broker that is about to lead must not be restarted first."""
    world.leader = None
    looks: list[int] = []

    def look(_: object, **__: object) -> Any:
        looks.append(1)
        if len(looks) > 4:
            world.leader = "b2"
        return world.registry(_)

    monkeypatch.setattr(rolling, "read_registry", look)
    world.run()
    assert world.done == steps("b1", "b3", "b2")


def test_without_a_leader_nobody_is_restarted(world: World) -> None:
    world.leader = None
    with pytest.raises(CommandError, match=r"no leader was elected within 0\.1 s") as result:
        world.run()
    assert result.value.exit_code == ExitCode.NO_BROKER
    assert world.done == []
    world.run("b2")
    assert world.done == steps("b2"), "one alone has no order"
