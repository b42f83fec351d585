"""What a member says of its topics: an event for each change, and what is so now for whoever looks."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from statechannel.broker.observe import health
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.observe.topic_conditions import TopicConditions
from statechannel.conditions.facts import NO_TOPIC_FACTS
from statechannel.conditions.kinds import head_lost_hint
from statechannel.engine.log_head import KEEP_RUNNING, RESTORE
from statechannel.kafka.topic_watch import TopicFindings
from statechannel.kafka.topics import TopicSettingDifference
from tests.support.log_lines import capture_logs
from tests.support.lone_member import lone_host

POLICY = TopicSettingDifference("c", "cleanup.policy", "delete", "compact", True, "kafka-configs.sh ...")
SEGMENT = TopicSettingDifference("c", "segment.bytes", "2", "at most 1", False, "kafka-configs.sh ...")


def seen(*differences: TopicSettingDifference, answered: bool = True, **found: object) -> TopicFindings:
    return TopicFindings(0.0, answered=answered, differences=differences, **found)  # type: ignore[arg-type]


class Told:
    """Conditions whose events are heard: `news` returns those since the last call."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines
        self._metrics = Metrics("c", "b1")
        self._read = 0
        self.conditions = TopicConditions(self._metrics)

    def news(self, findings: TopicFindings) -> list[tuple[str, str, object]]:
        self.conditions.take(findings)
        lines, self._read = self._lines[self._read :], len(self._lines)
        return [
            (line["event"], line["log_level"], line.get("setting") or line.get("offset") or line["topic"])
            for line in lines
        ]

    def gauge(self, name: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(
            f"statechannel_{name}", {"channel": "c", "broker": "b1", **labels}
        )


@pytest.fixture
def told() -> Iterator[Told]:
    with capture_logs() as lines:
        yield Told(lines)


def test_a_setting_that_changes_is_said_once_and_again_when_it_is_right(told: Told) -> None:
    assert told.news(seen()) == []
    assert told.news(seen(POLICY)) == [("topic.unfit", "error", "cleanup.policy")]
    assert told.news(seen(POLICY)) == []
    assert told.gauge("topic_differences", harm="hard") == 1
    assert told.news(seen()) == [("topic.mended", "info", "cleanup.policy")]
    assert told.gauge("topic_differences", harm="hard") == 0
    assert told.news(seen(POLICY)) == [("topic.unfit", "error", "cleanup.policy")]


def test_what_voids_no_guarantee_is_a_warning(told: Told) -> None:
    assert told.news(seen(SEGMENT)) == [("topic.differs", "warning", "segment.bytes")]
    assert told.gauge("topic_differences", harm="soft") == 1


def test_another_wrong_value_is_news_too_and_not_its_end(told: Told) -> None:
    told.news(seen(POLICY))
    other = TopicSettingDifference("c", "cleanup.policy", "delete,compact", "compact", True, "")
    assert told.news(seen(other)) == [("topic.unfit", "error", "cleanup.policy")]


def test_while_kafka_does_not_answer_nothing_changes(told: Told) -> None:
    told.news(seen(POLICY, first_offsets={("c", 0): 7}))
    assert told.news(seen(answered=False)) == []
    assert told.conditions.differences == (POLICY,)
    assert told.conditions.first_offsets == {("c", 0): 7}


def test_a_lost_head_is_said_and_again_when_more_is_deleted(told: Told) -> None:
    assert told.news(seen(first_offsets={("c", 0): 7})) == [("head-lost", "critical", 7)]
    assert told.news(seen(first_offsets={("c", 0): 7})) == []
    assert told.news(seen(first_offsets={("c", 0): 9})) == [("head-lost", "critical", 9)]
    assert told.gauge("heads_lost") == 1


def test_a_head_that_was_restated_is_lost_no_longer(told: Told) -> None:
    told.news(seen(first_offsets={("c", 0): 7}))
    told.conditions.is_lost = lambda _, first_offset: first_offset > 7
    assert told.news(seen(first_offsets={("c", 0): 7})) == []
    assert (told.gauge("heads_lost"), told.conditions.facts()) == (0, NO_TOPIC_FACTS | {"differences": []})
    assert told.news(seen(first_offsets={("c", 0): 9})) == [("head-lost", "critical", 9)]


@pytest.mark.parametrize(
    ("is_served", "keep_running", "restore"), [(None, True, True), (True, True, False), (False, False, True)]
)
def test_what_to_do_about_a_lost_head_depends_on_who_lives(is_served: bool | None, keep_running: bool, restore: bool):
    hint = head_lost_hint("c", is_served=is_served)
    assert (KEEP_RUNNING in hint, RESTORE in hint, "cleanup.policy of c" in hint) == (keep_running, restore, True)


def test_a_side_topic_that_was_made_anew_is_said(told: Told) -> None:
    assert told.news(seen(recreated=("c-side",))) == [("topic.recreated", "warning", "c-side")]


async def test_readiness_shows_the_conditions_and_does_not_depend_on_them() -> None:
    async with lone_host() as host:
        host.topics.take(seen(POLICY, SEGMENT, first_offsets={("c", 0): 7}))
        pages = health.routes(host, asyncio.get_running_loop(), timeout_s=5.0)
        document = json.loads(pages["/readyz"]().body)
        assert document["checks"]["topics"]["ok"]
        assert all(word in document["checks"]["topics"]["why"] for word in ("c-0", "7", "cleanup.policy", "delete"))
        rows = {row["code"]: row["next_step"] for row in document["conditions"]}
        assert list(rows) == ["head-lost", "topic-unfit", "topic-differs"]
        assert rows["topic-unfit"] == POLICY.command
