"""What Kafka says of the channel's topics while a member runs: changes become events, the rest is there to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.log_head import KEEP_RUNNING, RESTORE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statechannel.broker.observe.metrics import Metrics
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

    def sentences(self) -> list[str]:
        """What is wrong, the worst first."""
        heads = [head_lost_sentence(*place, offset) for place, offset in self.first_offsets.items()]
        return heads + [str(difference) for difference in self.differences]


def head_lost_sentence(topic: str, partition: int | str, first_offset: int) -> str:
    """Why a first offset above 0 is a loss."""
    return f"{topic}-{partition} begins at offset {first_offset}: the log has lost its head, as compaction never moves its start"


def positions_lost_sentence(topic: str, partition: int | str, known: int) -> str:
    """Why the log lacks what brokers have read."""
    return (
        f"brokers have read {topic}-{partition} through offset {known}, which this log does not have: the topic was deleted and "
        "created again, or lost records at its end"
    )


def head_lost_hint(topic: str, *, is_served: bool | None = None) -> str:
    """What to do about it.

    Args:
        is_served: Whether a broker is caught up, and so knows what was deleted; None: that is unknown.
    """
    policy = (
        f"Set cleanup.policy of {topic} to compact, and find out who may change it or delete records "
        f"(`kafka-acls.sh --list --topic {topic}`)."
    )
    if is_served is None:
        return f"{KEEP_RUNNING} If none is alive: {RESTORE} {policy}"
    return f"{KEEP_RUNNING} {policy}" if is_served else f"No broker knows what was deleted: {RESTORE} {policy}"
