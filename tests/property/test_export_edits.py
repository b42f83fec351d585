"""An export that was edited in any way is refused, or every parser still reads the same documents from it.

`EXPORT_EDITS=20000` tries more of them.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from spark.replay.export_rows import _is_whole, _parse
from spark.replay.fold import NOTE_PARTITION
from statechannel.audit.errors import ExportFileError
from statechannel.audit.replay_check import record_verdicts
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import BadLine, ExportHeader, parse_header
from statechannel.cli.audit.verify import verify_export
from statechannel.cli.kit.output import Output
from statechannel.cli.kit.progress import progress
from statechannel.errors import StateChannelError
from statechannel.protocol.log import RecordRead, Topic
from tests.support.report_logs import LogMaker

EDITS = int(os.environ.get("EXPORT_EDITS", "400"))
TOKENS = (
    *["1", "1.0", "1e0", "-0", "true", "null", '"x"', '"\\ud800"', '"\\u0000"', "[]", "{}"],
    "9" * 25,
    "[" * 999 + "]" * 999,
)
PIECES = (b"\xef\xbb\xbf", b"\x00", b"\xff", b"\xc2\x85", b"\r", b"\n", b" ", *rb'\u0041 \ud800 , " \ } 0 {}'.split())


class Raw(str):
    """A token as it stands."""


class Pairs(list):
    """An object, whose names may stand in it twice."""


def spelt(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{spelt(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spelt, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def objects(value: Any) -> Iterator[Pairs]:
    if isinstance(value, Pairs):
        yield value
    for item in [item for _, item in value] if isinstance(value, Pairs) else value if isinstance(value, list) else ():
        yield from objects(item)


def documents(raw: bytes, parse: Callable[[str], Any]) -> list[str]:
    """What a parser reads, in a form in which 1 is not 1.0, and the order of names does not count."""
    lines = [line for line in raw.decode().split("\n") if line.strip()]
    return [json.dumps(parse(line), sort_keys=True) for line in lines]


PARSERS: tuple[Callable[[str], Any], ...] = (
    orjson.loads,
    json.loads,
    lambda line: json.loads(line, object_pairs_hook=lambda pairs: dict(reversed(pairs))),
)


def field_edit(draw: random.Random, line: bytes) -> bytes:
    document = json.loads(line, object_pairs_hook=Pairs)
    pairs = draw.choice(list(objects(document)))
    names = [
        "verdict",
        "x",
        "headers",
        "key_base64",
        "value",
        "beside",
        "replay",
        "covered",
        *(name for name, _ in pairs),
    ]
    at = draw.randrange(len(pairs) + 1)
    other = draw.choice([Raw(draw.choice(TOKENS)), *(item for _, item in pairs)])
    match draw.randrange(5):
        case 0:
            pairs.insert(at, (draw.choice(names), other))
        case 1 if pairs:
            pairs.pop(at % len(pairs))
        case 2 if pairs:
            name, item = pairs[at % len(pairs)]
            spellings = [item + Raw(".0"), item + Raw("e0")] if isinstance(item, Raw) else [str(item), other]
            pairs[at % len(pairs)] = name, draw.choice(spellings)
        case 3 if pairs:
            pairs[at % len(pairs)] = draw.choice(names), pairs[at % len(pairs)][1]
        case _:
            draw.shuffle(pairs)
    return spelt(document).encode("utf-8", "surrogatepass")


def edited(draw: random.Random, raw: bytes) -> bytes:
    lines = raw.splitlines(keepends=True)
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    line = lines[at]
    spot = draw.randrange(len(line) + 1)
    match draw.randrange(8):
        case 0:
            lines[at] = line[:spot] + bytes([draw.randrange(256)]) + line[spot + draw.randrange(2) :]
        case 1:
            lines[at] = line[:spot] + draw.choice(PIECES) + line[spot + draw.randrange(4) :]
        case 2:
            lines[at], lines[other] = lines[other], line
        case 3:
            lines[at : at + draw.randrange(2)] = draw.choice([[], [line, line], [lines[other]], [b"\r\n"]])
        case 4:
            lines[at] = (
                json.dumps(json.loads(line), indent=draw.choice([None, 0])).replace("\n", "\r").encode() + b"\r\n"
            )
        case 5:
            lines[at] = line.replace(b'"', b'" '[: draw.randrange(3)], 1).replace(b"e", b"\\u0065", draw.randrange(4))
        case _:
            lines[at] = field_edit(draw, line.rstrip()) + b"\n"
    return b"".join(lines)


def records() -> Iterator[RecordRead]:
    log = LogMaker()
    for bundle in log.namespace("t/n", 3):
        log.assign(bundle, "b2", reason="grün \u2028")
    yield from log.records
    for number, key in enumerate((b"\xff", None, b"\0"), start=len(log.records)):
        yield RecordRead(Topic.CHANNEL, 0, number, 1, key, key)


@pytest.fixture
def exports(tmp_path: Path) -> dict[Path, tuple[bytes, str]]:
    """An export with verdicts, and a file beside it: bytes, and the digest that was kept."""
    log = list(records())
    at_ms, ends = 1_700_000_000_000, {0: len(log)}
    side = tmp_path / "ev.requests.jsonl"
    headers = (("by", b"ann@desk"), ("raw", b"\xfe"), ("none", None))
    beside = write_export(
        side,
        ExportHeader("c-requests", ends, 0),
        log,
        now_ms=lambda: at_ms,
        headers_of=lambda record: headers[: record.offset % 4],
    )
    header = ExportHeader("c", ends, 0, beside={"requests": beside.digest or ""}, positions_lost={0: 99})
    main = tmp_path / "ev.jsonl"
    write_export(main, header, log, now_ms=lambda: at_ms)
    record_verdicts(main, progress)
    digest = read_export(main).header.digest or ""
    return {path: (path.read_bytes(), digest) for path in (main, side)}


def spark_reads(raw: bytes) -> bool:
    """As the Spark job reads an export: in pieces, whose notes show whether it is whole."""
    lines = raw.split(b"\n")
    try:
        header = parse_header(lines[0])
    except BadLine:
        return False
    pieces = enumerate((lines[:3], lines[3:]))
    batches = (
        pa.record_batch({"value": pa.array(piece, pa.binary()), "start": [start] * len(piece)})
        for start, piece in pieces
    )
    rows = [row for batch in _parse(batches, header) for row in batch.to_pylist() if row["partition"] == NOTE_PARTITION]
    return _is_whole(header, sorted((orjson.loads(row["value"]) for row in rows), key=lambda note: note["start"]))


def test_an_edit_is_refused_or_nobody_reads_anything_else(
    exports: dict[Path, tuple[bytes, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (main, (_, digest)), _ = exports.items()
    verify_export(main, [digest], Output.JSON)
    outcomes = Counter[str]()
    for seed in range(EDITS):
        draw = random.Random(seed)
        path, (raw, _) = draw.choice(list(exports.items()))
        changed = raw
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            with suppress(ValueError):  # the line of an earlier edit is not JSON any more
                changed = edited(draw, changed)
        path.write_bytes(changed)
        try:
            read_export(path)
        except ExportFileError:
            assert not spark_reads(changed), (seed, path)
        else:
            assert spark_reads(changed), (seed, path)
        try:
            verify_export(main, [digest], Output.JSON)
        except StateChannelError:
            outcomes["refused"] += 1
        else:
            outcomes["unchanged" if changed == raw else "spelt otherwise"] += 1
            assert all(documents(changed, parse) == documents(raw, parse) for parse in PARSERS), (seed, path)
        path.write_bytes(raw)
    with capsys.disabled():
        print(dict(outcomes))
    assert outcomes["refused"] > EDITS / 2
    assert outcomes["spelt otherwise"]
