"""History, rejections, differences, and what a compacted log still tells, against the dumb twin."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from statechannel.audit import local
from statechannel.audit.difference import StateDifferences
from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource, Wants
from statechannel.audit.moments import AsOf, LogWindow, parse_as_of
from statechannel.audit.rejections import NEWEST_MAX
from statechannel.audit.transfer.export_file import read_export
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import has_gaps, join_facts, known_of, story_facts
from tests.spark.asking import no_bar
from tests.twin import audit as twin
from tests.twin import judge, loggen
from tests.unit.core.against_twin import KNOBS, by_partition, record_of, seeds, words_of

LAG_MS = 3_600_000
CASES = [pytest.param(name, seed, id=f"{name}-{seed}") for name in ("honest", "junky", "wild") for seed in seeds(2)]


def ask(folder: Path, log: loggen.Log, wants: Wants, as_of: str | None = None) -> AuditResult:
    path = folder / "log.jsonl"
    path.write_text(log.export())
    moment = None if as_of is None else parse_as_of(as_of)
    return local.answer(AuditQuestion(ExportSource(path), as_of=moment, wants=wants), progress=no_bar)


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_rejections_add_up_to_the_twins(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 70, KNOBS[knobs])
    rejected = ask(tmp_path, log, Wants(rejected=True)).rejected
    expected = twin.audit(log.export(), lag_ms=LAG_MS).audit["rejected"]
    assert rejected is not None
    assert {row["reason"]: row["records"] for row in rejected["by_reason"]} == expected
    assert sum(row["records"] for row in rejected["by_writer"]) == rejected["records"] == sum(expected.values())
    assert Counter({row["reason"]: 0 for row in rejected["groups"]}) + Counter(
        reason for row in rejected["groups"] for reason in [row["reason"]] * row["records"]
    ) == Counter(expected)


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_the_newest_rejections_are_the_twins_over_all_partitions(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 370, replace(KNOBS[knobs], partitions=3, steps=400))
    result = ask(tmp_path, log, Wants(rejected=True)).rejected
    times = {(line.partition, line.offset): line.timestamp_ms for line in log.lines}
    rejected = [
        (times[verdict["partition"], verdict["offset"]], verdict["partition"], verdict["offset"])
        for verdict in twin.audit(log.export(), lag_ms=LAG_MS).verdicts
        if Verdict(verdict["verdict"]) in REJECTIONS
    ]
    assert result is not None
    newest = [(row["timestamp_ms"], row["partition"], row["offset"]) for row in result["newest"]]
    assert newest == sorted(rejected)[-NEWEST_MAX:]


def states_around(log: loggen.Log, key: str) -> dict[tuple[int, int], tuple[judge.State | None, judge.State | None]]:
    """The twin's states of a key before and after each record that has its key."""
    results = {}
    for number, lines in by_partition(log).items():
        reader = judge.Judge(number, len(log.end_offsets))
        for line in lines:
            own = line.key == key.encode()
            before = reader.states().get(key) if own else None
            reader.read(line)
            if own:
                results[number, line.offset] = before, reader.states().get(key)
    return results


def as_told(state: judge.State | None) -> tuple[Any, ...] | None:
    if state is None:
        return None
    owner = {"Assigned": state.to, "Releasing": state.source, "Splitting": state.source}.get(state.state)
    generation = {"Assigned": state.version, "Releasing": state.version - 1, "Splitting": state.version - 1}
    return state.state, owner, generation.get(state.state), state.to, state.version


def states_at(log: loggen.Log, partition: int, offset: int) -> dict[str, judge.State]:
    """The twin's states of a partition after the record at an offset."""
    reader = judge.Judge(partition, len(log.end_offsets))
    for line in by_partition(log)[partition]:
        if line.offset <= offset:
            reader.read(line)
    return dict(reader.states())


def _changed(row: dict[str, Any], name: str) -> bool:
    return row["key"] == name or any(child["key"] == name for child in (row["children"] or {}).get("of_this", ()))


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_the_owner_then_is_the_twins_and_that_of_the_history(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 270, KNOBS[knobs])
    path = tmp_path / "log.jsonl"
    path.write_text(log.export())
    export, rng, owned = read_export(path), Random(seed), 0
    for _ in range(25):
        partition = rng.choice(sorted(log.end_offsets))
        offset = rng.randrange(max(1, log.end_offsets[partition]))
        live = judge.live_bundles(states_at(log, partition, offset))
        if not live:
            continue
        name, state = rng.choice(sorted(live.items(), key=lambda pair: pair[0]))
        then = local.owner_then(export, name, AsOf(offset=offset))
        key = then.key
        told = (key.state, key.owner, key.generation, key.to, key.version)
        assert told == as_told(state)
        rows = ask(tmp_path, log, Wants(history=name), str(offset)).history or ()
        changes = [row for row in rows if row["verdict"] == "accepted" and _changed(row, name)]
        assert then.changed == changes[-1]
        last = changes[-1]["after"]
        if changes[-1]["key"] != name:  # its state is that with which it was created, or split off
            last = next(child for child in changes[-1]["children"]["of_this"] if child["key"] == name)
        assert told == (last["state"], last["owner"], last["generation"], last["to"], last["version"])
        if key.owner is not None:
            owned += 1
            assert then.since is not None
            since = states_at(log, partition, then.since["since_offset"])[name]
            assert (since.state, since.version) == ("Assigned", key.generation)
    assert owned


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_what_a_broker_wrote_is_all_that_names_it_in_every_namespace(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 470, replace(KNOBS[knobs], partitions=2))
    every = list(ask(tmp_path, log, Wants(all_records=True)).history or ())
    heartbeats = sum(line.key == b"!heartbeat" for line in log.lines)
    assert len(every) == len(log.lines) - heartbeats
    assert [row["timestamp_ms"] for row in every] == sorted(row["timestamp_ms"] for row in every)
    verdicts = {
        (one["partition"], one["offset"]): one["verdict"] for one in twin.audit(log.export(), lag_ms=LAG_MS).verdicts
    }
    writers = {row["by"] for row in every} - {None}
    assert len(writers) > 1
    for broker in writers:
        rows = list(ask(tmp_path, log, Wants(all_records=True, by=broker)).history or ())
        assert rows == [row for row in every if row["by"] == broker]
        assert all(verdicts[row["partition"], row["offset"]] == row["verdict"] for row in rows)
    first, last = LogWindow(AsOf(offset=10)), LogWindow(None, AsOf(offset=30))
    for window, kept in ((first, lambda offset: offset >= 10), (last, lambda offset: offset <= 30)):
        rows = list(ask(tmp_path, log, Wants(all_records=True, window=window)).history or ())
        assert rows == [row for row in every if kept(row["offset"])]
        rejected = ask(tmp_path, log, Wants(rejected=True, window=window)).rejected
        assert rejected is not None
        assert rejected["records"] == sum(Verdict(row["verdict"]) in REJECTIONS for row in rows)


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_history_has_the_twins_verdicts_and_states(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 170, KNOBS[knobs])
    keys = [line.key.decode() for line in log.lines if line.key and (p := parse_key(line.key)) and not p.is_namespace]
    name = Counter(keys).most_common(1)[0][0]
    wanted = parse_key(name.encode())
    assert wanted is not None
    rows = list(ask(tmp_path, log, Wants(history=name)).history or ())
    expected = []
    for verdict in twin.audit(log.export(), lag_ms=LAG_MS).verdicts:
        parts = parse_key(verdict.get("key", "").encode() if verdict.get("key") else b"")
        if parts is None or parts.namespace != wanted.namespace:
            continue
        upper, end = (item.upper + (item.upper == 0xFFFFFFFF) for item in (parts, wanted))
        if parts.is_namespace or (parts.lower < end and wanted.lower < upper):
            expected.append((verdict["partition"], verdict["offset"], verdict["verdict"]))
    assert [(row["partition"], row["offset"], row["verdict"]) for row in rows] == expected
    around = states_around(log, name)
    for row in rows:
        if row["relation"] == "own" and row["verdict"] == "accepted":
            before, after = around[row["partition"], row["offset"]]
            assert tuple((row["before"] or {}).values()) == (as_told(before) or ())
            assert tuple(row["after"].values()) == as_told(after)
        elif row["verdict"] != "accepted":
            assert (row["before"], row["after"]) == (None, None)


@pytest.mark.parametrize(("knobs", "seed"), CASES)
def test_a_difference_is_the_twins(knobs: str, seed: int, tmp_path: Path) -> None:
    log = loggen.generate(seed + 270, KNOBS[knobs])
    random = Random(seed)
    t1, t2 = sorted(random.sample(range(max(log.end_offsets.values())), 2))
    sides = [ask(tmp_path, log, Wants(states=True), str(at)).states or () for at in (t1, t2)]
    rows = list(StateDifferences(len(log.end_offsets)).rows(*sides))
    before, after = (twin.audit(log.export(), as_of=str(at), lag_ms=LAG_MS).states for at in (t1, t2))
    expected = {
        key for key in before.keys() | after.keys() if digest_line(before.get(key)) != digest_line(after.get(key))
    }
    assert [row["key"] for row in rows] == sorted(expected)
    for row in rows:
        was, now = before.get(row["key"]), after.get(row["key"])
        live = [state is not None and state.state != "Deleted" for state in (was, now)]
        change = {(False, True): "came", (True, False): "went"}.get((live[0], live[1]), "changed")
        assert row["change"] == ("came-and-went" if was is None and not live[1] else change)
        for side, state in (("before", was), ("after", now)):
            result = (
                None
                if row[side] is None
                else [row[side][name] for name in ("state", "owner", "generation", "to", "version")]
            )
            assert result == (None if state is None else list(as_told(state) or ()))


def digest_line(state: judge.State | None) -> object:
    return None if state is None else (state.version, state.state, state.source, state.to, state.id)


def verdicts_of(records: list[RecordRead], partition: int, partitions: int, facts: Any = None) -> dict[int, Any]:
    results: dict[int, Any] = {}

    def observe(record: RecordRead, judgement: Judgement) -> None:
        results[record.offset] = words_of(judgement)

    audit_part(partition, partitions, records, *((facts,) if facts else ()), observe=observe)
    return results


def test_a_compacted_log_tells_from_its_first_sure_heartbeat_on_what_the_whole_log_tells() -> None:
    """Also from where on it does: earlier than a joining broker would judge, which takes the newest heartbeat."""
    from statechannel.replay.survey import STRICT  # noqa: PLC0415

    earlier = result = 0
    for seed in seeds(20):
        knobs = replace(KNOBS["honest"] if seed % 2 else KNOBS["junky"], steps=200, beat=6.0, pay=6.0)
        log = loggen.generate(seed + 500, knobs)
        whole, left = by_partition(log), by_partition(log.compacted(seed, knobs))
        oldest_kept_ms = log.exported_at_ms - LAG_MS
        for number, lines in left.items():
            records = [record_of(line) for line in lines]
            if not has_gaps(records, log.end_offsets[number], oldest_kept_ms=oldest_kept_ms):
                continue
            facts = join_facts(records, oldest_kept_ms=oldest_kept_ms)
            known = known_of(records, oldest_kept_ms=oldest_kept_ms)
            assert facts.tentative == (known is None)
            if known is None:
                continue
            story = story_facts(facts, known)
            assert story.lenient_to <= facts.lenient_to
            partitions = len(log.end_offsets)
            full = verdicts_of([record_of(line) for line in whole[number]], number, partitions, STRICT)
            verdicts = verdicts_of(records, number, partitions, story)
            assert verdicts == {offset: words for offset, words in full.items() if offset > story.lenient_to}
            earlier += story.lenient_to < facts.lenient_to
            result += 1
    assert result > 3
    assert earlier > 1


@pytest.mark.parametrize("seed", seeds(6))
def test_a_moment_before_that_is_incomplete_and_names_no_owner(seed: int, tmp_path: Path) -> None:
    knobs = replace(KNOBS["honest"], steps=250, beat=6.0, pay=6.0, partitions=1)
    log = loggen.generate(seed + 900, knobs).compacted(seed, knobs)
    whole = ask(tmp_path, log, Wants(owned=True))
    if not whole.complete:
        return
    known = whole.complete["complete_from"]["0"]
    for at in {0, known["offset"] // 2, known["offset"] - 1, known["offset"], log.end_offsets[0] - 1} if known else ():
        result = ask(tmp_path, log, Wants(owned=True), str(at))
        gapped = bool(result.complete)
        assert bool(result.complete.get("incomplete")) == ("tentative" in result.answer)
        if at >= known["offset"]:
            assert not result.complete.get("incomplete"), (at, known)
        elif gapped and result.complete.get("incomplete"):
            assert result.complete["complete_from"] == {"0": known}
    assert json.dumps(whole.complete)
