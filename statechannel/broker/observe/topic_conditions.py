"""What Kafka says of the channel's topics while a member runs: changes become events, the rest is there to be shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from statechannel.conditions.facts import NO_TOPIC_FACTS
from statechannel.conditions.kinds import head_lost_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statechannel.broker.observe.metrics import Metrics
    from statechannel.conditions.facts import TopicFacts
    from statechannel.kafka.admin import Place
    from statechannel.kafka.topic_policy import TopicPolicy
    from statechannel.kafka.topic_watch import TopicFindings
    from statechannel.kafka.topics import TopicSettingDifference


class TopicConditions:
    """The topics of one member by the newest findings of its watch. They are taken in the reader's thread; read from any.

    Attributes:
        is_lost: Whether what was deleted from a partition of the channel below an offset is missing: brokers restate it.
        policies: Of the topics that this member uses, by name; of others nothing is asked.
        differences: Settings that differ from them, the hard ones first.
        first_offsets: Of partitions of the channel from whose heads records were deleted that no broker has restated.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.is_lost: Callable[[int, int], bool] = lambda *_: True
        self.policies: dict[str, TopicPolicy] = {}
        self.differences: tuple[TopicSettingDifference, ...] = ()
        self.first_offsets: Mapping[Place, int] = {}

    def take(self, findings: TopicFindings) -> None:
        """Log what has changed since the findings before."""
        if not findings.answered:
            return
        before, self.differences = self.differences, findings.differences
        headless = self.first_offsets
        self.first_offsets = {
            place: offset for place, offset in findings.first_offsets.items() if self.is_lost(place[1], offset)
        }
        log = self._metrics.log
        for name in findings.recreated:
            log.emit("topic.recreated", topic=name)
        for difference in findings.differences:
            if difference not in before:
                self._report(difference)
        differing = {(difference.topic, difference.setting) for difference in findings.differences}
        for topic, setting in dict.fromkeys((difference.topic, difference.setting) for difference in before):
            if (topic, setting) not in differing:
                log.emit("topic.mended", topic=topic, setting=setting)
        for (name, partition), offset in self.first_offsets.items():
            if headless.get((name, partition)) != offset:
                hint = head_lost_hint(name)
                log.emit("head-lost", topic=name, partition=partition, offset=offset, hint=hint)
        self._count()

    def _report(self, difference: TopicSettingDifference) -> None:
        log, topic, setting = self._metrics.log, difference.topic, difference.setting
        actual, wanted, hint = difference.actual, difference.wanted, difference.command
        if difference.hard:
            log.emit("topic.unfit", topic=topic, setting=setting, actual=actual, wanted=wanted, hint=hint)
        else:
            log.emit("topic.differs", topic=topic, setting=setting, actual=actual, wanted=wanted, hint=hint)

    def _count(self) -> None:
        hard = sum(difference.hard for difference in self.differences)
        self._metrics.set("topic_differences", hard, "hard")
        self._metrics.set("topic_differences", len(self.differences) - hard, "soft")
        self._metrics.set("heads_lost", len(self.first_offsets))

    def facts(self) -> TopicFacts:
        heads = {str(partition): offset for (_, partition), offset in self.first_offsets.items()}
        return {**NO_TOPIC_FACTS, "heads_lost": heads, "differences": [asdict(item) for item in self.differences]}
