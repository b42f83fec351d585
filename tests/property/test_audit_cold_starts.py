"""The audit against a broker that reads the same log: the same states, and the same keys that cold starts changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Replica
from statechannel.replay.auditor import audit, audit_part
from statechannel.replay.part import PartitionAudit
from statechannel.replay.survey import ReadFacts
from tests.support.cold_start_worlds import LAG_MS, ColdStartWorld

SEEDS = range(80)


def audited(records: Sequence[RecordRead], end: int, now_ms: int) -> tuple[dict, PartitionAudit]:
    parts: list[PartitionAudit] = []
    answer = audit(
        {0: records}, end_offsets={0: end}, read="auto", now_ms=now_ms, compaction_lag_ms=LAG_MS, each_part=parts.append
    )
    return answer, parts[0]


def broker(records: Sequence[RecordRead], end: int, now_ms: int) -> Replica:
    """A broker that has read the log now."""
    replica = Replica(0, 1, compaction_lag_s=LAG_MS / 1000, kept_records_max=10_000)
    replica.learn_clock(now_ms)
    for _ in range(2):  # at a gap it starts over
        replica.opened(0.0, records[0].offset if records else end, end)
        for record in records:
            replica.read(0.0, record)
        replica.reached(0.0, end)
    return replica


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_whole_log_the_audit_ends_as_a_broker_wherever_it_ends_and_names_what_cold_starts_changed(
    seed: int,
) -> None:
    world = ColdStartWorld(seed)
    for end in {len(world.records), *Random(seed).choices(range(len(world.records) + 1), k=5)}:
        records = world.records[:end]
        answer, part = audited(records, end, world.now_ms)
        replica = broker(records, end, world.now_ms)
        assert replica.caught_up
        assert answer["digest"] == digest([part.view]) == digest([replica.view])
        named = {row["offset"]: row["overruled"] for row in answer.get("cold_starts", ()) if row["overruled"]}
        expected = {offset: keys for offset, keys in world.overruled.items() if offset < end}
        assert named == {offset: [key._asdict() for key in keys] for offset, keys in expected.items()}
        judged = audit_part(0, 1, records, ReadFacts(), lambda *_: None)
        assert (digest([judged.view]), judged.verdicts) == (answer["digest"], part.verdicts)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_cleaned_log_the_audit_ends_as_a_broker_where_both_know(seed: int) -> None:
    world = ColdStartWorld(seed)
    records = world.cleaned(world.records)
    end = len(world.records)
    answer, _ = audited(records, end, world.now_ms)
    replica = broker(records, end, world.now_ms)
    if "tentative" not in answer and replica.caught_up:
        assert answer["digest"] == digest([replica.view])
    if "tentative" not in answer:
        assert answer["digest"] == digest([world.reader.view])
    for row in answer.get("cold_starts", ()):
        if row["overruled"] is not None:
            assert [key["key"] for key in row["overruled"]] == [
                key.key for key in world.overruled.get(row["offset"], ())
            ]


@pytest.mark.parametrize("seed", SEEDS)
def test_namespaces_that_are_read_separately_end_as_the_whole(seed: int) -> None:
    """As Spark and the timelines of a report read them: told where the cold starts are."""
    world = ColdStartWorld(seed)
    whole = audit_part(0, 1, world.records, ReadFacts())
    facts = ReadFacts(cold_starts=tuple(item._replace(overruled=None) for item in whole.cold_starts))
    chance = Random(seed)
    lines, overruled = [], Counter()
    for namespace in (b"t/n", b"t/m", b"!"):
        mine = [record for record in world.records if (record.key or b"").startswith(namespace)]
        observe = chance.choice([None, lambda *_: None])
        part = audit_part(0, 1, mine, facts, observe)
        lines += [key.name for key in part.view.existing()]
        for item in part.cold_starts:
            overruled.update((item.offset, state) for state in item.overruled or ())
        for key in part.view.existing():
            held = whole.view.get(key.name)
            assert held is not None
            assert (held.state, held.version, held.accepted_id) == (key.state, key.version, key.accepted_id)
    assert sorted(lines) == sorted(key.name for key in whole.view.existing())
    assert overruled == Counter((item.offset, state) for item in whole.cold_starts for state in item.overruled or ())


def test_the_logs_have_what_they_are_made_for() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        world = ColdStartWorld(seed)
        seen["cold starts that changed keys"] += len(world.overruled)
        records = world.cleaned(world.records)
        answer, part = audited(records, len(world.records), world.now_ms)
        seen["cleaned"] += len(records) < len(world.records)
        known = "tentative" not in answer
        seen["cleaned and known"] += known and len(records) < len(world.records)
        seen["tentative"] += not known
        for item in part.cold_starts:
            seen["not known what it changed" if item.overruled is None else "named"] += 1
            seen["named in a cleaned log"] += bool(item.overruled) and len(records) < len(world.records)
        seen["broker knows"] += broker(records, len(world.records), world.now_ms).caught_up
    kinds = ("cold starts that changed keys", "cleaned", "cleaned and known", "tentative", "broker knows")
    assert all(seen[kind] > 2 for kind in (*kinds, "not known what it changed", "named", "named in a cleaned log")), (
        seen
    )
