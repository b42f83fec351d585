"""`partition-plan/1`: written and read back, a line a move, and what is refused with which words."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan import GoalSpread
from shedders.kafka_rebalance.planning.plan_files import parse_plan, plan_bytes, read_plan, to_json, write_plan
from tests.unit.partitions.plans import MOVES, PLAN


def test_a_line_a_move(tmp_path: Path) -> None:
    lines = plan_bytes(PLAN).decode().splitlines()
    assert [line for line in lines if '"topic":"logs","partition":1' in line] == [
        ' {"topic":"logs","partition":1,"before":[2,1],"after":[1,2],"leader_before":2,"leader_after":1,'
        '"size_bytes":10485760,"goals":["disk"]},'
    ]


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_a_number_that_is_none_is_not_written(tmp_path: Path, number: float) -> None:
    broken = replace(PLAN.goals[0], after=GoalSpread(violations=0, excess=0, low=number, high=0, mean=0, std=0))
    with pytest.raises(ValueError, match="goal rack-awareness: a number is not finite"):
        write_plan(tmp_path / "plan.json", replace(PLAN, goals=(broken,)))
    assert not list(tmp_path.iterdir())


def _changed(change: Any) -> bytes:
    document = json.loads(plan_bytes(PLAN))
    change(document)
    return json.dumps(document).encode()


def _move(**values: object) -> bytes:
    return _changed(lambda document: document["moves"][0].update(values))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "is not JSON"),
        (b"null", "expected an object"),
        (b"[" * 50_000 + b"]" * 50_000, "is nested too deeply"),
        (b'{"a":' * 50_000, "is nested too deeply"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"{}", "is not a partition-plan: it has no format"),
        (to_json(MOVES), "kafka-reassign-partitions"),
        (_changed(lambda item: item.update(format="partition-plan/2")), "format partition-plan/2 is not known"),
        (_changed(lambda item: item.update(format=1)), "it has format 1"),
        (_changed(lambda item: item.pop("moves")), "moves is missing"),
        (_changed(lambda item: item.update(movez=[])), "movez is not a field of the format"),
        (_changed(lambda item: item.update(id="../../etc")), "id: expected 16 hex digits"),
        (_changed(lambda item: item.update(made_at_ms=10**18)), "made_at_ms: expected 0 to "),
        (_changed(lambda item: item.update(made_at_ms=-1)), "made_at_ms: expected 0 to "),
        (_changed(lambda item: item.update(complete=1)), "complete: expected a valid boolean, found 1"),
        (_changed(lambda item: item["goals"].append(item["goals"][0])), "goals: rack-awareness is duplicated"),
        (_changed(lambda item: item["goals"][0].update(status="fine")), "goals[0].status"),
        (_changed(lambda item: item["brokers"].append(item["brokers"][0])), "brokers: 1 is duplicated"),
        (_changed(lambda item: item["moves"].append(item["moves"][0])), "moves: logs-0 is duplicated"),
        (_changed(lambda item: item["topic_ids"].pop("orders")), "move of orders-0: the topic is not in topic_ids"),
        (_move(topic="a b"), "move of a b-0: the topic is not in topic_ids"),
        (_move(partition=-1), "not a valid partition number"),
        (_move(partition=1.0), "moves[0].partition: expected a valid integer, found 1.0"),
        (_move(after=[]), "after: expected broker ids"),
        (_move(after=[3, 3]), "after: broker 3 is duplicated"),
        (_move(after=[4, 2], leader_after=4), "after: broker 4 is not listed in brokers"),
        (_move(leader_after=2), "leader_after: expected the first of after, got 2"),
        (_move(leader_before=3), "leader_before: broker 3 has no replica"),
        (_move(before=[3, 2], leader_before=3), "no change"),
        (_move(size_bytes=-1), "size_bytes: expected 0 to"),
        (_move(size_bytes=2**70), "size_bytes: expected 0 to"),
        (plan_bytes(PLAN).replace(b"0.25", b"NaN"), "NaN is not a number"),
        (plan_bytes(PLAN).replace(b"0.25", b"1e999"), "expected a finite number"),
        (plan_bytes(PLAN).replace(b'"complete"', b'"id": "0", "complete"'), "the name 'id' appears twice"),
    ],
)
def test_what_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(PlanUnusableError) as result:
        parse_plan(raw, "plan.json")
    assert words in str(result.value)
    assert str(result.value).startswith("plan.json")
    assert len(str(result.value)) < 2_000
    assert result.value.hint
    assert result.value.exit_code == 7


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(2**31 + 1)
    with pytest.raises(PlanUnusableError, match="has more than 2147483648 bytes"):
        read_plan(tmp_path / "plan.json")
