"""Exported logs replayed by this version: verdicts and digest recorded in the export, or by an earlier version beside it."""

import gzip
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from statechannel.audit import replay_check
from statechannel.audit.errors import ExportFileError
from statechannel.audit.local import audit_export
from statechannel.audit.replay_check import compare_replay, record_verdicts
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.audit.verify import verify_export
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.progress import progress
from statechannel.cli.replay_check import app
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.testing import ChannelKit
from tests.support.report_logs import LogMaker

GOLDEN = Path("tests/golden/channel-record")
LOGS = sorted(path.name for path in GOLDEN.glob("*.jsonl") if ".verdicts." not in path.name)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def without_digests(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As an early version wrote them, so that they may be edited."""
    return [{name: value for name, value in line.items() if name not in {"chain", "digest"}} for line in lines]


def check(path: Path, **options: Any) -> replay_check.ReplayComparison:
    return compare_replay(path, verdicts=options.get("verdicts"), digest=options.get("digest"), progress=progress)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a kit: moves, a split, a killed broker."""
    path = tmp_path / "log.jsonl"

    async def story(kit: ChannelKit) -> list[RecordRead]:
        a = await kit.broker("a")
        await kit.broker("b")
        for bundle in await kit.namespace(bundles=4):
            await kit.own(bundle, "a")
            await kit.own(bundle, "b")
        await kit.split(bundle)
        await kit.own(next(iter(kit.owners())), "a")
        a.kill()
        await kit.settle()
        return kit.log.records()

    with ChannelKit() as kit:
        records = kit.run(story(kit))
    header = ExportHeader("kit", {0: records[-1].offset + 1}, records[-1].timestamp_ms)
    write_export(path, header, records, now_ms=lambda: records[-1].timestamp_ms)
    return path


@pytest.mark.parametrize("name", LOGS)
def test_recorded_verdicts_are_those_of_the_audit_and_change_nothing_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    copy(GOLDEN / name, path)
    before = read_export(path, made_here=True)
    records = {number: list(part) for number, part in before.partitions.items()}
    recorded = record_verdicts(path, progress)
    after = read_export(path)
    assert {number: list(part) for number, part in after.partitions.items()} == records
    assert replace(after.header, replay=None, digest=None) == before.header
    assert after.header.replay == recorded
    assert recorded.digest == audit_export(before if not path.exists() else after)["digest"]
    result = check(path)
    assert result.same
    assert result.compared == sum(recorded.verdicts.values())
    verdicts = GOLDEN / name.replace(".jsonl", ".verdicts.jsonl")
    if verdicts.exists():
        judged = {(line["partition"], line["offset"]): line["verdict"] for line in lines_of(verdicts)}
        found = {(line["partition"], line["offset"]): line.get("verdict") for line in lines_of(path)[1:]}
        assert {place: found[place] for place in judged} == judged


@pytest.mark.parametrize(
    "name", [name for name in LOGS if (GOLDEN / name.replace(".jsonl", ".verdicts.jsonl")).exists()]
)
def test_verdict_files_of_an_earlier_version_are_compared(name: str, tmp_path: Path) -> None:
    verdicts = GOLDEN / name.replace(".jsonl", ".verdicts.jsonl")
    lines = lines_of(verdicts)
    if len(lines) != sum(len(part) for part in read_export(GOLDEN / name).partitions.values()):
        with pytest.raises(ExportFileError, match="ends after"):
            check(GOLDEN / name, verdicts=verdicts)
        return
    result = check(GOLDEN / name, verdicts=verdicts)
    assert result.same
    assert result.compared == len(lines)
    assert result.recorded_digest is None
    lines[7]["verdict"] = "never-heard-of"
    lines[9]["verdict"] = "never-heard-of"
    other = tmp_path / "other.jsonl"
    rewrite(other, lines)
    changed = check(GOLDEN / name, verdicts=other)
    assert (changed.same, changed.differing) == (False, 2)
    assert (changed.first.offset, changed.first.recorded) == (lines[7]["offset"], "never-heard-of")
    for cut, words in (
        (lines[:-1], "ends after"),
        ([*lines, lines[-1]], "goes on after"),
        (lines[1:], "line 1: it is of offset"),
    ):
        rewrite(other, cut)
        with pytest.raises(ExportFileError, match=words):
            check(GOLDEN / name, verdicts=other)


def test_a_version_that_judges_differently_is_found(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_verdicts(log, progress)
    assert check(log).same
    read = View.read
    (place,) = [line["offset"] for line in lines_of(log)[1:] if line["verdict"] == "accepted"][4:5]

    def strange(view: View, offset: int, key: bytes | None, value: bytes | None) -> Judgement:
        judgement = read(view, offset, key, value)
        return judgement._replace(verdict=Verdict.STALE_VERSION) if offset == place else judgement

    monkeypatch.setattr(View, "read", strange)
    result = check(log)
    assert not result.same
    assert result.differing == 1
    assert (result.first.offset, result.first.recorded, result.first.now) == (place, "accepted", "stale-version")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), standalone_mode=False)
    if result.exception is not None:
        code = getattr(result.exception, "exit_code", result.exit_code)
        return int(code), result.stdout, str(result.exception)
    return int(result.return_value if isinstance(result.return_value, int) else result.exit_code), result.stdout, ""


def test_the_command_says_what_differs_and_ends_with_a_code(log: Path) -> None:
    code, _, said = run(str(log))
    assert code == 4
    assert "nothing to compare with" in said
    recorded = record_verdicts(log, progress)
    code, out, _ = run(str(log))
    assert code == 0
    assert "the same" in out
    code, out, _ = run(str(log), "--digest", "0" * 64, "--output", "json")
    assert code == 1
    answer = orjson.loads(out)
    assert answer["digest"] == {"recorded": "0" * 64, "now": recorded.digest, "fast": recorded.digest}
    assert (answer["same"], answer["differing"], answer["first"]) == (False, 0, None)
    lines = lines_of(log)
    lines[3]["verdict"] = "purged"
    rewrite(log, lines)
    assert run(str(log))[0] == 7
    rewrite(log, without_digests(lines))
    code, out, _ = run(str(log), "--output", "json")
    assert code == 1
    first = orjson.loads(out)["first"]
    assert (first["offset"], first["recorded"]) == (lines[3]["offset"], "purged")
    code, out, _ = run(str(log))
    assert "purged then" in out
    code, _, said = run(str(log), "--digest", "abc")
    assert code == 2
    assert "is not a digest of states" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[0].update(replay=7), "line 1: `replay` is not an object"),
        (
            lambda lines: lines[0].update(replay={"software": "1", "digest": "d", "verdicts": {"accepted": -1}}),
            "`replay` is not",
        ),
        (lambda lines: lines[2].update(verdict=7), "line 3: `verdict` is not a text"),
        (lambda lines: lines.pop(2), "its `chain` does not match"),
        (lambda lines: lines.pop(0), "the first line is not the header"),
        (lambda lines: lines.clear(), "is empty"),
    ],
    ids=["replay", "counts", "verdict", "removed", "no-header", "empty"],
)
def test_broken_files_are_refused(log: Path, change: Any, words: str) -> None:
    record_verdicts(log, progress)
    lines = lines_of(log)
    change(lines)
    rewrite(log, lines)
    code, _, said = run(str(log))
    assert code == 7
    assert words in said


def test_verdicts_of_an_earlier_version_are_compared_and_not_called_unchanged(log: Path) -> None:
    header, *records = lines_of(log)
    header["replay"] = {"software": "0", "digest": "d", "verdicts": {"accepted": 1}}
    rewrite(log, [header, *(line | {"verdict": "accepted"} for line in records)])
    assert check(log).compared == len(records)
    with pytest.raises(CommandError) as unknown:
        verify_export(log)
    assert unknown.value.exit_code == 4
    header["replay"]["covered"] = True
    rewrite(log, [header, *records])
    with pytest.raises(ExportFileError, match="the end of the chain"):
        verify_export(log)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    code, _, said = run(str(tmp_path / "none.jsonl"))
    assert code == 7
    assert "cannot be read" in said


def test_an_unreadable_verdict_file_is_said(log: Path, tmp_path: Path) -> None:
    for text, words in (
        ("{", "not JSON"),
        ("[]", "it has no `partition`"),
        ('{"partition": 0}', "it has no `partition`"),
    ):
        (tmp_path / "verdicts").write_text(text)
        code, _, said = run(str(log), "--verdicts", str(tmp_path / "verdicts"))
        assert code == 7
        assert words in said
    code, _, said = run(str(log), "--verdicts", str(tmp_path / "none"))
    assert "cannot be read" in said


NEW_RING = {"version": 1, "base": None, "state": "Active", "children": ["0x00000000_0xffffffff"], "covers": -1}
BY = {"format": 1, "kind": "proposal", "by": {"broker": "b", "incarnation": "b-1"}, "from": None, "to": None}
NEWER = [
    ("t/n", BY | NEW_RING | {"id": "r0"}),
    ("t/n", BY | NEW_RING | {"id": "r1"}),
    ("t/m", BY | NEW_RING | {"id": "r2"}),
    ("t/n", {"format": 2}),
    ("t/k", BY | NEW_RING | {"id": "r4"}),
]


@pytest.mark.parametrize(
    ("recorded", "verdicts", "compared", "differing", "first"),
    [
        (True, {}, 4, 0, None),
        (False, dict.fromkeys(range(5)), 0, 0, None),
        (True, {0: None}, 4, 1, (0, "t/n", None, "accepted")),
        (True, {1: "accepted"}, 4, 1, (1, "t/n", "accepted", "stale-version")),
        (True, {4: "accepted"}, 5, 1, (4, "", "accepted", None)),
        (True, {2: "purged", 4: "accepted"}, 5, 2, (2, "t/m", "purged", "accepted")),
    ],
)
def test_what_counts_as_recorded(
    recorded: bool,
    verdicts: dict[int, str | None],
    compared: int,
    differing: int,
    first: tuple[Any, ...] | None,
    tmp_path: Path,
) -> None:
    """A line without a verdict was not judged, if the header says that verdicts were recorded; what follows a stop is not."""
    log = LogMaker()
    for key, value in NEWER:
        log.put(key, value)
    path = log.export(tmp_path / "log.jsonl")
    record_verdicts(path, progress)
    header, *lines = lines_of(path)
    if not recorded:
        del header["replay"]
    for offset, verdict in verdicts.items():
        lines[offset].pop("verdict", None)
        lines[offset] |= {} if verdict is None else {"verdict": verdict}
    rewrite(path, without_digests([header, *lines]))
    result = check(path)
    assert (result.records, result.compared, result.differing) == (5, compared, differing)
    found = result.first
    assert (found and (found.offset, found.key, found.recorded, found.now)) == first
    assert result.same is (first is None)
    assert (bool(result.software), result.recorded_digest is None) == (recorded, not recorded)
    assert result.fast_digest == result.digest


def test_a_given_digest_takes_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    log = LogMaker()
    log.namespace("t/n", 2)
    path = log.export(tmp_path / "log.jsonl")
    recorded = record_verdicts(path, progress)
    other = check(path, digest="0" * 64)
    assert (other.same, other.differing, other.recorded_digest) == (False, 0, "0" * 64)
    assert check(path, digest=recorded.digest).same
    same = tmp_path / "verdicts.jsonl"
    rewrite(same, [{"partition": 0, "offset": 0, "verdict": "accepted"}])
    with_file = check(path, verdicts=same)
    assert (with_file.same, with_file.software, with_file.recorded_digest) == (True, "", recorded.digest)


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([{"partition": 0, "offset": 0, "verdict": "accepted"}], 2),
        ([{"partition": "0", "offset": 0, "verdict": "accepted"}] * 2, 1),
        ([{"partition": 0, "offset": 0.0, "verdict": "accepted"}] * 2, 1),
        ([{"partition": 0, "offset": 0, "verdict": None}] * 2, 1),
        ([{"partition": 0, "offset": at, "verdict": "accepted"} for at in range(3)], 3),
        ([{"partition": at, "offset": 0, "verdict": "accepted"} for at in range(2)], 2),
    ],
)
def test_a_verdict_file_has_a_line_for_each_record(lines: list[dict[str, Any]], number: int, tmp_path: Path) -> None:
    log = LogMaker()
    log.namespace("t/n", 1)
    log.namespace("t/m", 1)
    verdicts = tmp_path / "verdicts.jsonl"
    rewrite(verdicts, lines)
    with pytest.raises(ExportFileError) as refused:
        check(log.export(tmp_path / "log.jsonl"), verdicts=verdicts)
    assert refused.value.line == number


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.replace(b'"accepted"', b'"purged"', 1),
        lambda raw: raw.replace(b'"key":"t/n"', b'"key":"t/m"', 1),
        lambda raw: raw.replace(b',"version"', b', "version"', 1),
        lambda raw: raw.replace(b'{"partition"', b'{"verdict":"purged","partition"', 1),
        lambda raw: raw.replace(b'"digest":"', b'"digest":"0', 1),
        lambda raw: raw + b"\n",
        lambda raw: raw[raw.index(b"\n") + 1 :],
    ],
)
def test_a_verdict_file_that_was_edited_is_refused(edit: Any, tmp_path: Path) -> None:
    log = LogMaker()
    log.namespace("t/n", 2)
    path, verdicts = log.export(tmp_path / "log.jsonl"), tmp_path / "verdicts.jsonl"
    audit_export(read_export(path), verdicts=verdicts)
    assert check(path, verdicts=verdicts).same
    edited = edit(verdicts.read_bytes())
    assert edited != verdicts.read_bytes()
    verdicts.write_bytes(edited)
    with pytest.raises(ExportFileError):
        check(path, verdicts=verdicts)
    verdicts.write_bytes(gzip.compress(edited))
    with pytest.raises(ExportFileError, match="gzip"):
        check(path, verdicts=verdicts)


def test_a_record_without_a_key_is_compared_like_others(tmp_path: Path) -> None:
    log = LogMaker()
    log.namespace("t/n", 1)
    log.records.append(log.records[0]._replace(offset=1, key=None))
    verdicts = tmp_path / "verdicts.jsonl"
    rewrite(verdicts, [{"partition": 0, "offset": at, "verdict": "accepted"} for at in range(2)])
    first = check(log.export(tmp_path / "log.jsonl"), verdicts=verdicts).first
    assert (first.offset, first.key, first.recorded) == (1, "", "accepted")
