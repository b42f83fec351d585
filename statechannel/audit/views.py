"""Accepted states of a log by partition, for read-only use; judged strictly if the log allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.errors import StateChannelError
from statechannel.protocol.bundle import parse_key, partition_of, split_topic, topic_hash
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.replay.auditor import audit_part
from statechannel.replay.part import Observer, PartitionAudit, each_of
from statechannel.replay.survey import STRICT, facts_of, known_of, story_facts

NAMESPACES = "`statechannel namespace list` lists all."


class NotInLogError(StateChannelError):
    """The log has no such namespace, bundle or topic."""


@dataclass(frozen=True, slots=True)
class LogViews:
    """Accepted states of a whole channel, by partition, and the log time of the newest record of each."""

    parts: tuple[PartitionAudit, ...]
    newest_ms: tuple[int, ...]

    @property
    def tentative(self) -> bool:
        """Whether a partition could only be read leniently: its states may be wrong."""
        return any(part.tentative for part in self.parts)

    def key(self, name: str) -> KeyState | None:
        """State of a namespace or bundle that exists."""
        parts = parse_key(name.encode())
        if parts is None:
            return None
        return self.parts[partition_of(parts.namespace, len(self.parts))].view.get(name)

    def existing(self) -> list[KeyState]:
        return sorted((key for part in self.parts for key in part.view.existing()), key=lambda key: key.key)

    def live(self) -> list[KeyState]:
        return [key for key in self.existing() if not key.is_namespace and key.state is not State.DELETED]

    def locate(self, name: str) -> KeyState:
        """The live bundle of a bundle key or a topic.

        Raises:
            NotInLogError: The name is neither, or it does not exist.
        """
        parts, topic = parse_key(name.encode()), split_topic(name)
        if parts is not None and not parts.is_namespace:
            owner, place = parts.namespace, None
        elif topic is not None:
            owner, place = topic[0], topic_hash(topic[1])
        else:
            raise NotInLogError(
                f"`{name}` is not the name of a topic or bundle",
                hint="Use tenant/namespace/topic or tenant/namespace/0x..._0x...",
            )
        namespace = self.key(owner)
        if namespace is None or namespace.ring is None:
            raise NotInLogError(f"namespace {owner} does not exist", hint=NAMESPACES)
        if place is not None:
            return namespace.ring.at(place)
        key = self.key(name)
        if key is None:
            raise NotInLogError(
                f"{name} is not a bundle of {owner}", hint=f"`statechannel bundles --namespace {owner}` lists them."
            )
        if key.state is State.DELETED:
            raise NotInLogError(
                f"{name} was split", hint=f"`statechannel bundles --namespace {owner}` lists its children."
            )
        return key


def read_views(
    export: ExportFile, *, compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS, observers: Sequence[Observer] = ()
) -> LogViews:
    """Read the whole log once, judging strictly if possible."""
    observe = each_of(observers)
    parts, newest = [], []
    partitions = len(export.header.end_offsets)
    for partition, end_offset in sorted(export.header.end_offsets.items()):
        records: Sequence[RecordRead] = export.partitions.get(partition, ())
        newest.append(records[-1].timestamp_ms if len(records) else 0)
        oldest_kept_ms = export.header.exported_at_ms - compaction_lag_ms
        first_offset = export.header.first_offsets.get(partition, 0)
        facts = facts_of(records, end_offset, oldest_kept_ms=oldest_kept_ms, first_offset=first_offset)
        if observers and facts != STRICT:  # observers get the whole available log, not only the last second
            facts = story_facts(facts, known_of(records, oldest_kept_ms=oldest_kept_ms))
        parts.append(audit_part(partition, partitions, records, facts, observe))
    return LogViews(tuple(parts), tuple(newest))
