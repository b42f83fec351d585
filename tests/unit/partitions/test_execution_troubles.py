"""What goes wrong around an execution: executors in turn, full disks, settings that cannot be read, plans changed by hand."""

import resource
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic, LogDir
from shedders.kafka_rebalance.cli.execution import as_before, who
from shedders.kafka_rebalance.errors import ExecutionRefusedError, PlanUnknownError, PlanUnusableError
from shedders.kafka_rebalance.execution import journal as journal_module
from shedders.kafka_rebalance.execution import overview, session
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.journal import (
    ExecutionLedger,
    HeartbeatSender,
    Journal,
    StateFolderError,
    folder_of,
    plan_ids,
    read_journal,
)
from shedders.kafka_rebalance.execution.session import (
    KEPT,
    ExecutionPlace,
    KnownPlan,
    _claim,
    _require_same_plan,
    host_name,
)
from shedders.kafka_rebalance.execution.state_topic import PlanBook, StateBook, merged, plan_records, record
from shedders.kafka_rebalance.execution.throttle import Copy, Throttling
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    ExecutionHistory,
    ExecutionRequest,
    JournalWrite,
    OperatorRequests,
    StopKind,
    recorded,
)
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import write_plan
from shedders.kafka_rebalance.settings import PaceSettings, PartitionsSettings
from statechannel.cli.kit.failures import CommandError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from tests.support.partition_twin import At, Ledger, Part, Twin, make_plan, move, run
from tests.support.waits import wait_until
from tests.unit.partitions.test_execution_state import FakeTopic

PACE = PaceSettings(throttle_bytes_per_s=1_000, moves_per_broker=2, broker_grace_s=20, urp_grace_s=20, settle_s=3)
RATE = "leader.replication.throttled.rate"


def world(count: int = 6) -> tuple[Twin, ReassignmentPlan]:
    parts = {(f"t{n % 2}", n // 2): Part([1, 2], {1, 2}, 1) for n in range(count)}
    twin = Twin(parts, set(range(1, 6)), Random(1), speed_bytes=20)
    return twin, make_plan([move(key, (1, 2), (3, 2)) for key in parts])


# --- throttles ------------------------------------------------------------------------------------------------------------


def test_what_others_set_meanwhile_stays_also_where_it_was_read_long_ago() -> None:
    twin, plan = world()
    theirs = {("broker", "1"): {RATE: "55"}, ("topic", "t0"): {"leader.replication.throttled.replicas": "9:9"}}

    def set_theirs() -> None:
        twin.configs["broker", "1"][RATE] = "55"
        lists = twin.configs["topic", "t0"]
        lists["leader.replication.throttled.replicas"] += ",9:9"

    end, _ = run(twin, plan, PACE.model_copy(update={"throttle_bytes_per_s": 1_000}), At({6: set_theirs}))
    assert (end.stop.kind, end.throttles_left) == (StopKind.DONE, ())
    assert {key: value for key, value in twin.configs.items() if value} == theirs


REMOVED = {
    "rates of all": lambda twin: [twin.configs[item].clear() for item in list(twin.configs) if item[0] == "broker"],
    "a rate of one": lambda twin: twin.configs["broker", "3"].pop("follower.replication.throttled.rate"),
    "a list": lambda twin: twin.configs["topic", "t0"].pop("leader.replication.throttled.replicas", None),
    "lists of all": lambda twin: [twin.configs[item].clear() for item in list(twin.configs) if item[0] == "topic"],
}
WATCHED = PACE.model_copy(update={"full_look_s": 1.0, "settle_s": 1.0})


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("remove", REMOVED.values(), ids=REMOVED)
def test_a_throttle_that_another_tool_removes_is_put_back_with_a_remark(
    remove: Callable[[Twin], Any], paused: bool
) -> None:
    twin, plan = world()
    twin.speed_bytes = 6
    ledger = At({})

    def removing() -> None:
        remove(twin)
        ledger.asked = OperatorRequests(request=ExecutionRequest.PAUSE if paused else ExecutionRequest.GO)

    def goes_on() -> None:
        twin.unthrottled = 0
        ledger.asked = OperatorRequests(request=ExecutionRequest.GO)

    ledger._doing.update({8: removing, 12: goes_on})
    end, _ = run(twin, plan, WATCHED, ledger)
    assert (end.stop.kind, end.throttles_left, twin.unthrottled) == (StopKind.DONE, (), 0)
    remarks = [event["text"] for event in ledger.events if event["event"] == "remark"]
    assert remarks
    assert all("another tool removed" in text and "throttled" in text for text in remarks)
    assert not any(twin.configs.values())


def test_if_others_remove_it_again_nothing_new_starts_and_the_end_has_a_reason() -> None:
    twin, plan = world()
    twin.speed_bytes = 6
    started: list[int] = []

    def remove() -> None:
        started.append(sum(twin.set_out.values()))
        REMOVED["a rate of one"](twin)

    ledger = At({8: remove, 14: remove})
    end, _ = run(twin, plan, WATCHED, ledger)
    assert (end.stop.kind, end.throttles_left) == (StopKind.THROTTLE_REMOVED, ())
    assert "broker 3" in end.stop.reason
    assert started[0] == started[1] == sum(twin.set_out.values()) < len(plan.moves)
    assert not any(part.moving for part in twin.parts.values())
    assert run(twin, plan, WATCHED, ledger)[0].stop.kind is StopKind.DONE


def test_a_rate_that_others_raise_or_lower_stays_until_another_one_is_asked_for() -> None:
    twin, plan = world()
    twin.speed_bytes = 6
    seen: list[str] = []
    ledger = At({})

    def look() -> None:
        seen.append(twin.configs["broker", "1"][RATE])

    def ask() -> None:
        look()
        ledger.asked = OperatorRequests(throttle_changed=True, throttle_bytes_per_s=500)

    ledger._doing.update({8: lambda: twin.configs["broker", "1"].update({RATE: "55"}), 12: ask, 16: look})
    end, _ = run(twin, plan, WATCHED, ledger)
    assert (end.stop.kind, seen) == (StopKind.DONE, ["55", "500"])
    assert not [event for event in ledger.events if event["event"] == "remark"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_rate_that_others_have_set_is_replaced_by_a_later_executor_if_its_own_was_asked_for(asked: bool) -> None:
    twin, plan = world()
    twin.speed_bytes = 6
    ledger, seen = At({}), list[str]()

    def stop() -> None:
        twin.configs["broker", "1"].update({RATE: "55"})
        ledger.runner.interrupt("by me")

    ledger._doing.update({8: stop, 14: lambda: seen.append(twin.configs["broker", "1"][RATE])})
    assert run(twin, plan, WATCHED, ledger)[0].stop.kind is StopKind.INTERRUPTED
    ledger.events.append({"event": "begun", "throttle_asked": asked})
    assert run(twin, plan, WATCHED, ledger)[0].stop.kind is StopKind.DONE
    assert seen == ["1000" if asked else "55"]


def test_settings_that_cannot_be_read_hold_it_and_the_end_says_so() -> None:
    twin, plan = world()
    observe = twin.observe

    def blind(**asked: Any) -> Any:
        seen = observe(**asked)
        return replace(seen, configs={key: value for key, value in (seen.configs or {}).items() if key[0] != "broker"})

    twin.observe = blind  # type: ignore[method-assign]
    end, _ = run(twin, plan, PACE, Ledger())
    assert end.stop.kind is StopKind.HELD
    assert "throttle settings of broker 1" in end.stop.reason
    assert not twin.set_out


def test_what_a_throttle_replaces_is_written_down_also_where_the_step_that_wanted_it_was_broken_off() -> None:
    """An election that Kafka refuses breaks a step off before the throttle that comes behind it; the next step sets that."""
    parts = {("t0", 0): Part([1, 2], {1, 2}, 1), ("t1", 0): Part([1, 2], {1, 2}, 1, size_bytes=200)}
    twin = Twin(parts, {1, 2, 3}, Random(1))
    plan = make_plan([move(("t0", 0), (1, 2), (2, 1), 0), move(("t1", 0), (1, 2), (3, 2))])
    ledger, refusals = Ledger(), [CallOutcome.REJECTED] * 3
    elect, set_configs = twin.elect, twin.set_configs

    def refused_at_first(keys: Any) -> CallAnswer:
        return CallAnswer(outcome=refusals.pop()) if refusals else elect(keys)

    def watched(changes: Mapping[Any, Any]) -> CallAnswer:
        assert set(changes) <= set(ledger.recorded().throttle_before)
        return set_configs(changes)

    twin.elect, twin.set_configs = refused_at_first, watched  # type: ignore[method-assign]
    parts["t0", 0].replicas = [2, 1]  # only the election is missing
    end, _ = run(twin, plan, PACE, ledger)
    assert (end.stop.kind, refusals) == (StopKind.DONE, [])
    assert not any(twin.configs.values())


def test_what_is_put_back_is_left_to_do_until_that_is_written_down() -> None:
    """Else whoever goes on later would put back what was there long ago, over what an operator has set since."""
    _, plan = world(1)
    past = ExecutionHistory()
    throttling = Throttling(plan, PACE, past)
    configs: dict[tuple[str, str], dict[str, str]] = {item: {} for item in throttling.unknown}
    throttling.learn(configs)
    copies = [Copy(("t0", 0), frozenset({1, 2}), frozenset({3}))]
    effects = throttling.needed(0.0, copies, frozenset({1, 2, 3})) or []
    for effect in effects:
        if isinstance(effect, JournalWrite):
            past.take({"event": effect.event, **effect.facts})
    left = throttling.left
    assert ("topic", "t0") in left
    throttling.learn(configs)  # nothing of it is set any more
    for _ in range(2):  # a step that is broken off before it is written, and the next
        (result,) = throttling.restore(left)
        assert isinstance(result, JournalWrite)
        assert throttling.left == left
    past.take({"event": result.event, **result.facts})
    assert throttling.left == ()


class Admin:
    """An admin client that answers for configuration, as kafka-python does: a resource that failed comes back empty."""

    def __init__(self, answers: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        self._answers = answers

    def describe_configs(self, asked: Any, **_: Any) -> dict[str, dict[str, Any]]:
        results: dict[str, dict[str, Any]] = {"broker": {}, "topic": {}}
        for request in asked:
            kind = request.resource_type.name.lower()
            answer = self._answers.get((kind, request.name))
            source = f"DYNAMIC_{kind.upper()}_CONFIG"
            now = {} if answer is None else {"compression.type": "zstd", **answer}
            results[kind][request.name] = {name: {"value": now[name], "config_source": source} for name in now}
        return results


def test_a_resource_that_does_not_answer_is_not_taken_for_one_without_throttle() -> None:
    _, plan = world()
    admin = Admin({("broker", "1"): {RATE: "7"}, ("topic", "t0"): {}})
    port = ClusterPort(admin, plan, {})  # type: ignore[arg-type]
    partition = KafkaPartition(partition=0, replicas=(1,), leader=1, isr=(1,))
    topics = {name: KafkaTopic(name=name, partitions=(partition,), topic_id=name) for name in ("t0", "t1")}
    asked = (("broker", "1"), ("broker", "2"), ("broker", "3"), ("topic", "t0"), ("topic", "t1"), ("topic", "gone"))
    configs = port._configs(asked, frozenset({1, 2}), topics)
    assert configs == {("broker", "1"): {RATE: "7"}, ("topic", "t0"): {}, ("topic", "gone"): {}}


# --- the pace of whoever goes on ------------------------------------------------------------------------------------------


def test_the_pace_that_was_asked_for_holds_after_an_end_that_put_throttles_back() -> None:
    twin, plan = world()
    ledger = At({})
    ledger.write("begun", {"executor": "a", "pace": {"throttle_bytes_per_s": 1_000, "one_replica": True}})
    ledger._doing[5] = lambda: ledger.runner.interrupt("ended by SIGINT")
    end, _ = run(twin, plan, PACE.model_copy(update={"unthrottle": True}), ledger)
    assert end.stop.kind is StopKind.INTERRUPTED
    past = ledger.recorded()
    assert past.rate is None, "it was put back"
    place = ExecutionPlace(client=ClientSettings("127.0.0.1:9"), settings=PartitionsSettings(), root=Path())
    pace = as_before(place, past.pace).settings.pace
    assert (pace.throttle_bytes_per_s, pace.one_replica, pace.moves_per_broker) == (1_000, True, 5)
    with pytest.raises(CommandError, match="invalid pace settings"):
        as_before(place, {"moves_per_broker": 0})
    assert set(KEPT) <= set(PaceSettings.model_fields)


# --- executors in turn ----------------------------------------------------------------------------------------------------


def event(number: int, executor: str, name: str, **facts: Any) -> dict[str, Any]:
    return {"n": number, "executor": executor, "event": name, "at_ms": 0, **facts}


def test_events_of_two_executors_under_one_number_are_both_kept_in_turn() -> None:
    """The first one's last events did not reach the topic, so the second one counted on from an earlier number."""
    first = [event(1, "a", "begun"), event(2, "a", "throttle", rate=5, before={"broker/1": {}})]
    second = [
        event(2, "b", "begun"),
        event(3, "b", "throttle", rate=5, before={"broker/2": {}}),
        event(4, "b", "unthrottled", resources=["broker/2"]),
    ]
    both = merged(first, [first[0], *second])
    assert [(item["n"], item["executor"]) for item in both] == [(1, "a"), (2, "a"), (2, "b"), (3, "b"), (4, "b")]
    assert set(recorded(both).throttle_before) == {("broker", "1")}
    book = StateBook(10_000)
    for item in (*second, *first):
        book.take(0, record("events", "p", executor=item["executor"], events=[item]))
    assert book.book("p").in_order() == both


def test_who_has_waited_for_another_executor_is_told_so() -> None:
    topic = FakeTopic()
    assert not _claim(topic, "p", "a", ExecutionRequest.GO, topic.wait, 4.0)  # type: ignore[arg-type]
    topic.append("p", [record("claim", "p", executor="a", host="elsewhere", pid=1, wish="go")])
    topic.beating = record("leave", "p", executor="a")
    assert _claim(topic, "p", "b", ExecutionRequest.GO, topic.wait, 4.0)  # type: ignore[arg-type]


def test_a_process_id_of_another_container_means_nothing_here() -> None:
    space = Path("/proc/self/ns/pid")
    assert "".join(filter(str.isdigit, str(space.readlink()))) == host_name().rsplit("/", 1)[1]


# --- files ----------------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_of_an_event_and_the_topic_still_learns_of_it(tmp_path: Path) -> None:
    topic, before = FakeTopic(), resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path) as journal:
        ledger = ExecutionLedger(journal, topic, "p", "a", now_ms=lambda: 1, on_batch=lambda _: None)  # type: ignore[arg-type]
        ledger.write("begun", {})
        size = (tmp_path / "journal.jsonl").stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
            with pytest.raises(StateFolderError, match="cannot write"):
                ledger.write("ended", {"kind": "failed", "reason": "x" * 100})
            assert (tmp_path / "journal.jsonl").stat().st_size == size
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        ledger.write("begun", {})
    assert [entry["event"] for entry in read_journal(tmp_path)] == ["begun", "begun"]
    assert [item["event"] for item in topic.book.book("p").in_order()] == ["begun", "ended", "begun"]


def test_a_topic_that_fails_holds_nothing_up_and_is_created_again_with_all_if_others_have_deleted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Topic(FakeTopic):
        there, was_missing, tries = False, False, 0

        def append(self, plan_id: str, values: list[bytes]) -> None:
            self.tries += 1
            self.failing = not self.there
            if self.failing:
                raise KafkaUnavailableError("no such topic")
            super().append(plan_id, values)

        def create(self, replication_factor: int) -> None:
            self.there = self.was_missing = replication_factor == 3

    topic: Any = Topic()
    monkeypatch.setattr(journal_module, "BACKLOG_MAX", 1)
    with Journal(tmp_path) as journal:
        calls: Any = {"on_batch": lambda _: None, "on_new_topic": lambda: topic.append("p", plan_records("p", b"plan"))}
        ledger = ExecutionLedger(journal, topic, "p", "a", now_ms=lambda: 1, **calls)
        for event in ("begun", "stopping"):
            ledger.write(event, {})
        assert topic.tries == 1, "each try waits for the time limit of an answer"
        with HeartbeatSender(topic, "p", b"", every_s=0.01, replication_factor=3):
            wait_until(lambda: topic.there and not topic.failing)
        ledger.read_requests()
        topic.failing = True
        ledger.write("ended", {})
    book = topic.book.book("p")
    assert (book.plan_bytes(), [each["event"] for each in book.in_order()]) == (b"plan", ["begun", "stopping", "ended"])


@pytest.mark.parametrize(
    ("request_", "calls"),
    [
        ({"mode": "rebalance"}, []),
        ({"mode": "remove-brokers", "subjects": [1]}, [("submit", {("s", 0): (2, 3)}), ("elect", (("s", 0),))]),
        ({"mode": "demote", "subjects": [1]}, [("submit", {("s", 0): (2, 1)}), ("elect", (("s", 0),))]),
        ({"mode": "demote", "subjects": [1, 2]}, [("submit", {("s", 0): (3, 1)}), ("elect", (("s", 0),))]),
        ({"mode": "demote", "subjects": [2]}, []),
        ({"mode": "remove-log-dirs", "log_dirs": [[2, "/a"], [3, "/a"]]}, [("move_dirs", {("s", 0, 2): "/c"})]),
    ],
)
def test_the_state_topic_is_kept_off_what_a_plan_empties_or_demotes(
    request_: dict[str, Any], calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = (LogDir(path="/a"), LogDir(path="/b", cordoned=True), LogDir(path="/c"))
    brokers = tuple(KafkaBroker(id=number, log_dirs=dirs) for number in (1, 2, 3))
    part = KafkaPartition(partition=0, replicas=(1, 2), leader=1, isr=(1, 2))
    topics = {"s": KafkaTopic(name="s", partitions=(part,), topic_id="s")}
    layout = ClusterLayout(cluster_id="twin", brokers=brokers, topics=topics)
    asked: list[Any] = []

    class Port:
        def __getattr__(self, name: str) -> Any:
            return lambda what: asked.append((name, what))

    monkeypatch.setattr(session, "ClusterPort", lambda *_: Port())
    monkeypatch.setattr(session, "read_layout", lambda *_, **__: layout)
    session._keep_off(None, replace(world()[1], request=request_), "s")  # type: ignore[arg-type]
    assert asked == calls


def test_state_folders_that_cannot_be_read_are_an_error_with_a_hint(tmp_path: Path) -> None:
    assert plan_ids(tmp_path / "none") == []
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(StateFolderError, match="cannot read") as error:
            plan_ids(root)
        assert error.value.hint
    with pytest.raises(PlanUnknownError) as unknown:
        folder_of(tmp_path, "../x")
    assert unknown.value.exit_code == 5


def test_an_id_stands_for_one_plan(tmp_path: Path) -> None:
    _, plan = world()
    _require_same_plan(plan, tmp_path, PlanBook())
    write_plan(tmp_path / "plan.json", plan)
    _require_same_plan(replace(plan, took_s=3.0), tmp_path, PlanBook())
    tampered = replace(plan, moves=(*plan.moves[:-1], replace(plan.moves[-1], after=(4, 2), leader_after=4)))
    with pytest.raises(PlanUnusableError, match="other moves than those of this file") as error:
        _require_same_plan(tampered, tmp_path, PlanBook())
    assert "resume" in error.value.hint
    (tmp_path / "plan.json").write_text("{")
    _require_same_plan(plan, tmp_path, PlanBook())


def test_a_user_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert who().startswith("uid ")


# --- another cluster --------------------------------------------------------------------------------------------------------


def test_the_status_of_another_clusters_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topics may have the same names here."""
    twin, plan = world()

    class Here:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def observe(self, **asked: Any) -> Any:
            return twin.observe(**asked)

    monkeypatch.setattr(overview, "open_admin", lambda *_, **__: nullcontext())
    monkeypatch.setattr(overview, "ClusterPort", Here)
    place = ExecutionPlace(client=ClientSettings("127.0.0.1:9"), settings=PartitionsSettings(), root=Path())
    assert overview.status_of(
        place, KnownPlan(plan=plan, recorded=ExecutionHistory(), holder=None), now_ms=0
    ).progress.total == len(plan.moves)
    other = replace(plan, cluster_id="elsewhere")
    with pytest.raises(ExecutionRefusedError, match="is for cluster elsewhere, this is twin"):
        overview.status_of(place, KnownPlan(plan=other, recorded=ExecutionHistory(), holder=None), now_ms=0)
