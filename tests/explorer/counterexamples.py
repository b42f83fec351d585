"""Shortest logs that show why a rule is needed: found by the searches, kept as files, shown in design/protocol.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from itertools import combinations
from pathlib import Path as File
from typing import Any, NamedTuple

import orjson

from statechannel.protocol.joiner import Joiner
from statechannel.protocol.view import View
from tests.explorer import outages
from tests.explorer.outages import LANDS, Property
from tests.explorer.paths import Entry, Path, Point, Session
from tests.explorer.readers import states_of
from tests.explorer.search import begin, explore
from tests.explorer.world import Letter
from tests.mutants import planted

FOLDER = File(__file__).parent / "shortest"
RECORDS_MAX = 5
EVENTS_MAX = 4


class Rule(NamedTuple):
    """A rule of the protocol that can be taken away.

    Attributes:
        plant: The planted bug that takes it away.
        section: Of design/protocol.md.
        start: Name of what the search begins with; empty: `empty`, and over outages `awake`.
        outage: Of a search over outages: the properties that may show it.
        name: Of its file.
    """

    plant: str
    section: int
    text: str
    start: str = ""
    outage: Collection[Property] = ()
    name: str = ""

    @property
    def path(self) -> File:
        """Its file."""
        return FOLDER / f"{self.name or self.plant}.jsonl"

    @property
    def begins(self) -> str:
        """Name of what the search begins with."""
        return self.start or ("awake" if self.outage else "empty")


_ANY = (Property.STATES, Property.COLD_START)
_ABANDONED = (Property.OVERTURNED, Property.HISTORIES, Property.STATES)
RULES = (
    Rule("version-reset", 2, "Versions go on through a deletion of the namespace."),
    Rule("highest-version-forgotten", 2, "The deletion of a namespace has a version above those of all its bundles.", "owned"),
    Rule("children-at-version-one", 2, "Versions go on through a split.", "splitting"),
    Rule("stale-version-taken-for-clean", 3, "A rejected record puts its key in debt."),
    Rule("stale-assert-taken-for-clean", 3, "So does an assert that does not restate the accepted state."),
    Rule("duplicate-taken-for-clean", 3, "So does a second record with the accepted id: its other fields may differ."),
    Rule("undecodable-taken-for-clean", 3, "So do bytes that are no record."),
    Rule("null-settles-live-key", 3, "So does a null on a key that exists."),
    Rule(
        "paid-by-too-little", 3,
        "A clean record settles its key only if it covers the newest unclean record, or has a version above all of them.",
    ),
    Rule("paid-by-equal-version", 3, "An equal version is not above it."),
    Rule(
        "settled-record-uncovered", 3,
        "A clean record settles its key only if it covers the record that settled the key before.",
    ),
    Rule("derivation-pays", 3, "A state that is derived pays no debt of its key."),
    Rule("debts-die-with-namespace", 3, "Debts outlive their namespace."),
    Rule("covers-ignored", 4, "A joining member takes a record that covers the held one, whatever its version."),
    Rule("versions-ignored", 4, "It takes a record of a higher version, whatever it covers."),
    Rule("strict-joiner", 4, "Versions that are missing between the two do not matter."),
    Rule("stale-children-believed", 4, "A derived state stands unless the key's own record has at least its version."),
    Rule("settled-lost-at-join", 5, "After a join the last record of each key counts as the one that settled it."),
    Rule("gaps-judged-strictly", 5, "A log with a gap is read leniently.", outage=_ANY),
    Rule("clean-to-ignored", 5, "A heartbeat vouches through its `clean_to`, and for no more.", outage=_ANY),
    Rule("old-heartbeat-believed", 5, "A heartbeat that ends a wait vouches for all that was there at the start.", outage=_ANY),
    Rule("kept-records-lost", 5, "What was read above N counts.", outage=_ANY),
    Rule("all-kept-leniently", 5, "What was read above N is judged strictly.", outage=_ANY),
    Rule("any-age-believed", 5, "A log vouches for itself only while nothing above M is as old as half the lag.", outage=_ANY),
    Rule("age-from-the-newest-record", 5, "How old that is counts by Kafka's clock, not from the newest record.", outage=_ANY),
    Rule(
        "log-not-believed", 5, "A log that vouches for itself needs no heartbeat (third edition: a member waits).",
        outage=(Property.WAITS,), name="third-edition-join",
    ),
    Rule(
        "log-not-believed", 5, "A log that vouches for itself needs no cold start (third edition: junk becomes the truth).",
        outage=_ANY, name="third-edition-cold-start",
    ),
    Rule(
        "every-gap-is-compaction", 5, "A missing offset that cannot have been cleaned never held a record: a reader goes on.",
        "faults", (Property.RESTARTS,),
    ),
    Rule("no-gap-is-compaction", 5, "Any other missing offset was cleaned.", "faults", (Property.STATES,)),
    Rule(
        "other-numbers-ignored", 5, "The number of partitions is the one that heartbeats name, not Kafka's.",
        "faults", (Property.STATES,),
    ),
    Rule(
        "lost-head-joined", 5, "A log that begins above offset 0 is joined only behind a mark that restates what was deleted.",
        "faults", (Property.HEADLESS,),
    ),
    Rule("head-marked-at-once", 5, "That mark follows the asserts of what was deleted.", "faults", (Property.STATES,)),
    Rule(
        "voucher-not-compared", 5, "A joining member that holds other states than its voucher waits.",
        "faults", (Property.UNNOTICED,),
    ),
    Rule(
        "views-not-compared", 5, "A caught-up member compares what it holds with what heartbeats name.",
        "faults", (Property.UNNOTICED,),
    ),
    Rule("cold-start-unmarked", 5, "No member acts before the mark of its cold start.", "abandoned", _ABANDONED),
    Rule("mark-ignored", 5, "A caught-up member starts over at another process's mark that counts.", "abandoned", _ABANDONED),
    Rule("void-mark-counts", 5, "A mark is void if a heartbeat lies between N and it.", "abandoned", _ABANDONED),
    Rule(
        "late-assert-settles-anything", 5, "An assert that a mark makes count settles its key only if it would where it stands.",
        "abandoned", (Property.STATES,),
    ),
    Rule(
        "heartbeat-not-awaited", 5, "After a silence a member reads a heartbeat of its own back before it writes anything else.",
        "abandoned", _ABANDONED,
    ),
    Rule(
        "cold-start-at-the-same-versions", 5, "A cold start raises bundles above every version that can have been accepted.",
        "abandoned", (Property.GENERATIONS,),
    ),
)  # fmt: skip


class Found(NamedTuple):
    """A log, and what has to be removed of it for the reader that goes wrong.

    Attributes:
        begin: End of the log when that reader began; None where no join, or no single reader, is needed to see what is wrong.
        first: First offset of the log at the end.
        events: What happened after the start, in a search over outages; `ticks`: when each record came, in halves of the lag.
        shows: What is wrong, in words.
        voucher: Begin, and what had been removed, of the member that vouches; None: the reader of the whole log does.
    """

    log: Sequence[Letter]
    begin: int | None
    removed: Sequence[int]
    shows: str
    events: Sequence[str] = ()
    ticks: Sequence[int] = ()
    paused: int | None = None
    voucher: list[Any] | None = None
    first: int = 0


def search(rule: Rule, executor: Executor | None = None) -> Found | None:
    """The shortest log on which readers without this rule differ; None if none is short enough."""
    return _search_outages(rule, executor) if rule.outage else _search_logs(rule, executor)


def _search_logs(rule: Rule, executor: Executor | None) -> Found | None:
    for records in range(1, RECORDS_MAX + 1):
        for level in explore(records, [begin(rule.begins)], executor, rule.plant):
            if level.counterexample is not None:
                return witness(rule.plant, [*level.counterexample.log], level.counterexample.why)
    return None


def _search_outages(rule: Rule, executor: Executor | None) -> Found | None:
    for tally in outages.explore(EVENTS_MAX, executor, properties=rule.outage, without=rule.plant, start=rule.begins):
        if tally.wrong is not None:
            path, session, what = tally.wrong
            # What processes write depends on the rule, too: no reader alone shows it.
            of_log = what in (Property.OVERTURNED, Property.HISTORIES, Property.GENERATIONS) or LANDS in path.events
            of_log = of_log or rule.begins == "faults"
            return Found(
                [Letter(entry.key, entry.value) for entry in path.log],
                None if of_log else session.opened.end,
                sorted(session.removed),
                what,
                list(path.events),
                [*(entry.at for entry in path.log), path.now],
                None if session.paused is None else session.paused.end,
                first=path.first,
            )
    return None


def witness(plant: str, log: Sequence[Letter], shows: str) -> Found:
    """With the latest joiner that goes wrong, the fewest removed records, and who vouched for it."""
    with planted(plant):
        for end in range(len(log), 0, -1):
            for removed in removals(log[:end]):
                found = Found(log, end, removed, shows)
                if goes_wrong(found):
                    return found
                for begun in range(1, end):
                    for earlier in removals(log[:begun]):
                        vouched = found._replace(voucher=[begun, earlier])
                        if _hidden_by_gone_nulls(log[:begun], earlier) <= {*removed} and goes_wrong(vouched):
                            return vouched
    return Found(log, None, [], shows)


def removals(log: Sequence[Letter]) -> list[list[int]]:
    """What may be removed of a log: what a later record hides, and all records of a key whose last one is a null."""
    last = {letter.key: offset for offset, letter in enumerate(log)}
    hidden = [offset for offset, letter in enumerate(log) if offset < last[letter.key]]
    found = [list(some) for count in range(len(hidden) + 1) for some in combinations(hidden, count)]
    nulls = [key for key, offset in last.items() if log[offset].value is None]
    gone = [[offset for offset, letter in enumerate(log) if letter.key == key] for key in nulls]
    return found + [sorted({*some, *all_of_it}) for all_of_it in gone for some in found]


def _hidden_by_gone_nulls(log: Sequence[Letter], removed: Collection[int]) -> set[int]:
    """What no replica has any more once a null is gone."""
    last = {letter.key: offset for offset, letter in enumerate(log)}
    gone = {log[offset].key for offset in removed if last[log[offset].key] == offset}
    return {offset for offset, letter in enumerate(log) if letter.key in gone and offset < last[letter.key]}


def goes_wrong(found: Found) -> bool:
    """Whether the joiner ends with other states: it may begin there, since a reader sees no debt."""
    if found.begin is None:
        return False
    full, joined = _joined(found.log, found.begin, found.removed)
    vouching = full
    if found.voucher is not None:
        begun, removed = found.voucher
        before, vouching = _joined(found.log, begun, removed)
        if before.ledger.open:
            return False
        for offset, letter in enumerate(found.log[begun : found.begin], begun):
            vouching.read(offset, *letter)
    if vouching.ledger.open:
        return False
    for offset, letter in enumerate(found.log[found.begin :], found.begin):
        full.read(offset, *letter)
        joined.read(offset, *letter)
    return states_of(full) != states_of(joined)


def _joined(log: Sequence[Letter], begin_at: int, removed: Collection[int]) -> tuple[View, View]:
    full, joiner = View(0, 1), Joiner(0, 1)
    for offset, letter in enumerate(log[:begin_at]):
        full.read(offset, *letter)
        if offset not in removed:
            joiner.read(offset, *letter)
    return full, joiner.view()


def path_of(found: Found) -> tuple[Path, Session]:
    """The path and the reader of a search over outages."""
    log = tuple(Entry(*letter, at) for letter, at in zip(found.log, found.ticks, strict=False))
    now = found.ticks[-1]
    path = Path(tuple(found.events), log, (Point(len(log), now),), now)
    begun = found.begin or 0
    opened = Point(begun, now if begun == len(log) else log[begun].at)
    paused = None if found.paused is None else Point(found.paused, log[found.paused].at)
    return path, Session(opened, frozenset(found.removed), paused)


def save(rule: Rule, found: Found) -> None:
    """Write it to its file."""
    head: dict[str, Any] = {"rule": rule.text, "without": rule.plant}
    head |= {name: value for name, value in found._asdict().items() if name != "log" and value not in (None, (), [], 0)}
    lines = [head]
    lines += [
        {"offset": offset, "key": letter.key.decode(), "value": None if letter.value is None else letter.value.decode()}
        for offset, letter in enumerate(found.log)
    ]
    FOLDER.mkdir(exist_ok=True)
    rule.path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def load(rule: Rule) -> Found:
    """Read its file."""
    head, *lines = (orjson.loads(line) for line in rule.path.read_bytes().splitlines())
    log = [Letter(line["key"].encode(), None if line["value"] is None else line["value"].encode()) for line in lines]
    fields = {name: head[name] for name in Found._fields if name in head}
    return Found(log=log, **{"begin": None, "removed": [], **fields})
