"""Export files that somebody edited, for every reader of them."""

from collections.abc import Callable, Iterable
from pathlib import Path

from statechannel.audit.transfer.line import ExportHeader, format_header, format_record
from statechannel.protocol.log import RecordRead, Topic

Lines = list[dict]
_FOLLOW = "`chain` does not match"
_END = "the end of the chain does not match"


def records_of(*lengths: int) -> list[RecordRead]:
    """Records of partitions of these lengths, which mean nothing."""
    return [
        RecordRead(Topic.CHANNEL, partition, offset, 1_000 + offset, b"a/b", b'{"n": %d}' % offset)
        for partition, length in enumerate(lengths)
        for offset in range(length)
    ]


def write_plain(path: Path, header: ExportHeader, records: Iterable[RecordRead]) -> None:
    """An export file without a chain, as they were once."""
    path.write_bytes(format_header(header) + b"".join(format_record(record) for record in records))


def _with(number: int, **fields: object) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines[: number - 1], lines[number - 1] | fields, *lines[number:]]


def _without(number: int, name: str) -> Callable[[Lines], Lines]:
    def edit(lines: Lines) -> Lines:
        rest = {key: value for key, value in lines[number - 1].items() if key != name}
        return [*lines[: number - 1], rest, *lines[number:]]

    return edit


def _swapped(lines: Lines) -> Lines:
    """Two records change their contents; offsets still ascend."""
    two, three = lines[2], lines[3]
    return [*lines[:2], two | {"value": three["value"]}, three | {"value": two["value"]}, *lines[4:]]


def _moved(lines: Lines) -> Lines:
    """A line with its link stands in the place of another, under that one's offset."""
    return [*lines[:2], lines[3] | {"offset": 1}, lines[2] | {"offset": 2}, *lines[4:]]


EDITS: dict[str, tuple[int, str, Callable[[Lines], Lines]]] = {
    "a value": (3, _FOLLOW, _with(3, value='{"n": 7}')),
    "a time": (2, _FOLLOW, _with(2, timestamp_ms=7)),
    "the last value": (8, _FOLLOW, _with(8, value=None)),
    "the first record of a partition": (6, _FOLLOW, _with(6, key="a/c")),
    "a line out": (4, _FOLLOW, lambda lines: [*lines[:3], *lines[4:]]),
    "the first line out": (2, _FOLLOW, lambda lines: [lines[0], *lines[2:]]),
    "the end of a partition": (5, _FOLLOW, lambda lines: [*lines[:4], *lines[5:]]),
    "cut": (7, _END, lambda lines: lines[:7]),
    "cut to the header": (1, _END, lambda lines: lines[:1]),
    "contents swapped": (3, _FOLLOW, _swapped),
    "lines moved": (3, _FOLLOW, _moved),
    "a line twice": (4, "offset 1 follows offset 1", lambda lines: [*lines[:3], lines[2], *lines[3:]]),
    "the topic": (2, _FOLLOW, _with(1, topic="u")),
    "an end offset": (2, _FOLLOW, _with(1, end_offsets={"0": 4, "1": 9})),
    "the time of the export": (8, _END, _with(1, exported_at_ms=1_700_000_000_001)),
    "the digest": (8, _END, _with(1, digest="0" * 32)),
    "no digest": (2, "the header has no `digest`", _without(1, "digest")),
    "a digest that is none": (1, "`digest` is not a digest", _with(1, digest="none")),
    "no link": (5, "it has no `chain`", _without(5, "chain")),
    "a link that is none": (5, "`chain` is not a digest", _with(5, chain=None)),
    "a link": (5, _FOLLOW, _with(5, chain="0" * 32)),
}
"""By name: the line that is named, why it is refused, what is done to the lines of `records_of(4, 3)`."""
