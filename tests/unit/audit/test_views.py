"""The accepted states of compacted logs: the same, however early whoever listens is told of what happened."""

from pathlib import Path

import pytest

from statechannel.audit.transfer.export_file import read_export
from statechannel.audit.views import read_views
from statechannel.protocol.digest import digest

GOLDEN = Path(__file__).parents[2] / "golden" / "channel-record"
LOGS = sorted(GOLDEN.glob("compacted*.jsonl"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_whoever_listens_to_a_compacted_log_hears_more_and_sees_the_same(path: Path) -> None:
    export = read_export(path)
    results: list[int] = []
    quiet = read_views(export)
    listened = read_views(export, observers=[lambda record, judgement: results.append(record.offset)])
    assert digest(part.view for part in listened.parts) == digest(part.view for part in quiet.parts)
    assert listened.tentative == quiet.tentative
    assert len(results) >= sum(sum(part.verdicts.values()) for part in quiet.parts)


def test_some_of_them_are_told_more_than_the_newest_heartbeat_vouches_for() -> None:
    more = 0
    for path in LOGS:
        export = read_export(path)
        results: list[int] = []
        read_views(export, observers=[lambda record, judgement, item=results: item.append(record.offset)])  # type: ignore[misc]
        more += len(results) > sum(sum(part.verdicts.values()) for part in read_views(export).parts)
    assert more
