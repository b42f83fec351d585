"""Real logs in the terms of the model, with what the code made of each record.

Records are decoded by the twin, so that the codec is compared, too. What the code says comes from its `View`, which reads the
whole log strictly, and from its `Joiner`, which reads it leniently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

from statechannel.protocol.joiner import Joiner
from statechannel.protocol.keys import KeyState
from statechannel.protocol.view import View
from tests.support.model_checker import Checker
from tests.twin import wire
from tests.twin.loggen import Log
from tests.twin.wire import Line, Record

VERDICTS = {"control": "NotJudged"}
"""The model's words are those of the code in another spelling, but for this one."""
SETS = ("wrongVerdicts", "wrongAccepted", "wrongSettling", "wrongDebts", "wrongStates", "wrongTaken", "wrongSeen")
"""Sets of `trace.als`, which are empty where the model says what the code says."""
LENIENT = {"wrongTaken", "wrongSeen"}
SUBSETS = {"Elsewhere", "Forced", "Settling"}
Row = tuple[str, ...]


def word_of(verdict: str) -> str:
    """A verdict as the model spells it."""
    return VERDICTS.get(verdict) or "".join(part.capitalize() for part in verdict.split("-"))


@dataclass
class Trace:
    """One partition's log as an instance of the model.

    Attributes:
        whole: No offset is missing: the strict reader's verdicts and states are there, beside the lenient one's.
        strict_steps, lenient_steps: Records that each of them read.
        unread: Records behind one of a newer format, at which every reader stops.
        atoms: By signature.
        tuples: By field.
        offsets: Of the atoms of records, and of what was said of states.
    """

    name: str
    whole: bool
    strict_steps: int = 0
    lenient_steps: int = 0
    unread: int = 0
    atoms: dict[str, dict[str, None]] = field(default_factory=dict)
    tuples: dict[str, dict[Row, None]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)

    def atom(self, sig: str, atom: str) -> str:
        """Note an atom of this signature; its name."""
        self.atoms.setdefault(sig, {})[atom] = None
        return atom

    def put(self, name: str, *row: str | None) -> None:
        """Note a tuple of this field, unless something in it is missing."""
        if None not in row:
            self.tuples.setdefault(name, {})[row] = None  # type: ignore[index]


@dataclass(frozen=True)
class Step:
    """What the model does not share with the code: the set that names it, and where."""

    trace: str
    what: str
    offset: int | str


class Scribe:
    """Writes one trace."""

    def __init__(self, name: str, lines: Sequence[Line], partition: int, partitions: int, *, whole: bool) -> None:
        self.trace = Trace(name, whole)
        self.partition, self.partitions = partition, partitions
        self.lines = self._read_lines(lines)
        self.records = {line.offset: wire.decode(line.key, line.value) for line in self.lines}
        self.names = {line.offset: f"R{line.offset}" for line in self.lines}
        self.said: dict[Row, None] = {}
        self.versions: set[int] = {0}
        self.bundles: dict[str, tuple[int, int]] = {}
        self.later: list[tuple[str, Row, int]] = []

    def _read_lines(self, lines: Sequence[Line]) -> list[Line]:
        for index, line in enumerate(lines):
            if wire.read_key(line.key).kind != "control" and wire.newer_format(line.value) is not None:
                self.trace.unread = len(lines) - index - 1
                return [*lines[: index + 1]]
        return [*lines]

    def write(self) -> Trace:
        trace = self.trace
        trace.atom("Control", "Control")
        trace.atom("Code", "Code")
        for line in self.lines:
            self._record(line)
        if trace.whole:
            self._strictly()
        self._leniently()
        self._finish()
        return trace

    # --- records ----------------------------------------------------------------------------------------------------

    def _key(self, key: bytes | None) -> str:
        form = wire.read_key(key)
        if form.kind == "control":
            return "Control"
        if form.kind == "unknown":
            return self.trace.atom("Unknown", "Unknown")
        if wire.home(form.namespace, self.partitions) != self.partition:
            self.trace.atom("Elsewhere", form.text)
        if form.kind == "namespace":
            return self.trace.atom("Namespace", form.text)
        return self._bundle(form.namespace, form.range)

    def _bundle(self, namespace: str, range_: str) -> str:
        name = f"{namespace}/{range_}"
        if name not in self.bundles:
            self.bundles[name] = wire.bounds(range_)
            self.trace.atom("Bundle", name)
            self.trace.put("inside", name, self.trace.atom("Namespace", namespace))
            if wire.home(namespace, self.partitions) != self.partition:
                self.trace.atom("Elsewhere", name)
                self.trace.atom("Elsewhere", namespace)
        return name

    def _record(self, line: Line) -> None:
        trace, name, record = self.trace, self.names[line.offset], self.records[line.offset]
        key = self._key(line.key)
        trace.offsets[name] = line.offset
        trace.put("key", name, key)
        if key == "Control":
            if record is None:
                trace.atom("Mark", name)
                return
            trace.atom("Heartbeat", name)
            trace.put("cleanTo", name, self._newest(record.clean_to, line.offset))
        elif wire.newer_format(line.value) is not None:
            trace.atom("Newer", name)
        elif line.value is None:
            trace.atom("Null", name)
        elif record is None:
            trace.atom("Junk", name)
        else:
            self._change(name, record, line)

    def _newest(self, through: int, own: int) -> str | None:
        """The newest record up to an offset, at most the one that names it: no rule compares it with later ones."""
        offset = max((known for known in self.names if known <= min(through, own)), default=None)
        return None if offset is None else self.names[offset]

    def _change(self, name: str, record: Record, line: Line) -> None:
        trace, namespace = self.trace, wire.read_key(line.key).namespace
        trace.atom("Proposal" if record.kind == "proposal" else "Assert", name)
        if record.forced:
            trace.atom("Forced", name)
        trace.put("id", name, self._id(record.id))
        base, part = self._reference(record.refers, namespace)
        trace.put("base", name, base)
        trace.put("part", name, part)
        self._version("version", (name,), record.version)
        trace.put("state", name, record.state)
        trace.put("from", name, self._broker(record.source))
        trace.put("to", name, self._broker(record.to))
        for child in self._children(record.children, namespace):
            trace.put("children", name, child)
        trace.put("covers", name, self._newest(record.covers, line.offset))

    def _children(self, children: Iterable[str] | None, namespace: str) -> list[str]:
        """Bundles of a list without holes and in order; none of any other."""
        ranges = tuple(children or ())
        if not ranges or not wire.covers_exactly(ranges, (wire.bounds(ranges[0])[0], wire.bounds(ranges[-1])[1])):
            return []
        return [self._bundle(namespace, range_) for range_ in ranges]

    def _reference(self, reference: str | None, namespace: str) -> tuple[str | None, str | None]:
        if reference is None:
            return None, None
        record_id, _, range_ = reference.partition("/")
        return self._id(record_id), self._bundle(namespace, range_) if range_ else None

    def _id(self, record_id: str | None) -> str | None:
        return None if record_id is None else self.trace.atom("Id", f"id {record_id}")

    def _broker(self, broker: str | None) -> str | None:
        return None if broker is None else self.trace.atom("Broker", f"broker {broker}")

    def _version(self, name: str, row: Row, version: int) -> None:
        self.versions |= {version, version + 1}
        self.later.append((name, row, version))

    # --- what the code makes of them --------------------------------------------------------------------------------

    def _strictly(self) -> None:
        trace, view = self.trace, View(self.partition, self.partitions)
        for line in self.lines:
            name = self.names[line.offset]
            judgement = view.read(line.offset, line.key, line.value)
            trace.put("verdict", name, word_of(judgement.verdict))
            if judgement.key is not None and judgement.key.settled == line.offset:
                trace.atom("Settling", name)
            for key in view.existing():
                trace.put("accepted", name, key.name, self.names[key.offset])
                self._say(key)
            for key in view.ledger.open:
                trace.put("debts", "Code", name, key.name)
            trace.strict_steps += 1

    def _leniently(self) -> None:
        trace, joiner = self.trace, Joiner(self.partition, self.partitions)
        for line in self.lines:
            joiner.read(line.offset, line.key, line.value)
            if joiner.stopped:
                break
            name = self.names[line.offset]
            trace.put("left", "Joiner", name)
            held = joiner.held.get(line.key) if line.key is not None else None
            if held is not None and held.offset == line.offset:
                trace.put("took", "Joiner", name)
            trace.lenient_steps += 1
        if not trace.lenient_steps:
            return
        trace.atom("Joiner", "Joiner")
        trace.put("through", "Joiner", self.names[joiner.applied])
        for key in joiner.view().existing():
            trace.put("view", "Joiner", key.name, self.names[key.offset])
            self._say(key)

    def _say(self, key: KeyState) -> None:
        children = None if key.children is None else tuple(key.children)
        what: Any = (
            key.offset,
            key.name,
            key.version,
            key.state,
            key.from_,
            key.to,
            key.record_id,
            key.derived,
            children,
        )
        if what in self.said:
            return
        self.said[what] = None
        trace, name = self.trace, f"Said{len(self.said)}"
        trace.atom("Said", name)
        trace.offsets[name] = key.offset
        trace.put("holder", name, self.names[key.offset])
        of = self._key(key.key)
        trace.put("of", name, of)
        self._version("saidVersion", (name,), key.version)
        trace.put("saidState", name, str(key.state))
        trace.put("saidFrom", name, self._broker(key.from_))
        trace.put("saidTo", name, self._broker(key.to))
        base, part = self._reference(key.record_id, key.namespace)
        trace.put("saidId", name, base)
        trace.put("saidPart", name, of if key.derived else part)
        for child in self._children(children, key.namespace):
            trace.put("saidChildren", name, child)

    # --- order ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        trace = self.trace
        names = [self.names[line.offset] for line in self.lines]
        self._order("log/Ord", names)
        ranks = self._ranks()
        self._order("versions/Ord", [trace.atom("Version", f"v{rank}") for rank in range(max(ranks.values()) + 1)])
        for name, row, version in self.later:
            trace.put(name, *row, f"v{ranks[version]}")
        bounds = sorted({bound for pair in self.bundles.values() for bound in pair} | {*wire.RING})
        for lower in bounds[:-1]:
            trace.atom("Point", f"p{lower:08x}")
            for name, (first, last) in self.bundles.items():
                if first <= lower < last:
                    trace.put("points", name, f"p{lower:08x}")

    def _ranks(self) -> dict[int, int]:
        """Small numbers for versions: in the same order, and next to each other iff the versions are."""
        ranks: dict[int, int] = {}
        rank, before = -1, -1
        for version in sorted(self.versions):
            rank += 1 if version == before + 1 else 2
            ranks[version], before = rank, version
        return ranks

    def _order(self, sig: str, atoms: Sequence[str]) -> None:
        self.trace.put(f"{sig}.First", f"{sig}$0", atoms[0])
        for atom, other in pairwise(atoms):
            self.trace.put(f"{sig}.Next", f"{sig}$0", atom, other)


class Reader:
    """Asks the checker for all steps of a trace that the model does not share."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._skeleton = ET.tostring(checker.skeleton("Skeleton"))

    def differences(self, trace: Trace) -> list[Step]:
        """What the model says otherwise."""
        return self.ask(
            trace, SETS if trace.whole else [name for name in SETS if name in LENIENT or name == "wrongStates"]
        )

    def ask(self, trace: Trace, sets: Sequence[str]) -> list[Step]:
        """Where these sets of `trace.als` are not empty."""
        instance, names = self._instance(trace)
        answers = self._checker.evaluate(instance, sets)
        return [
            Step(trace.name, name, trace.offsets.get(names[atom], names[atom]))
            for name, atoms in zip(sets, answers, strict=True)
            for atom in atoms
        ]

    def _instance(self, trace: Trace) -> tuple[ET.Element, dict[str, str]]:
        """The trace as XML, and its atoms by the names that Alloy gives them: the signature, and a number in its order."""
        root = ET.fromstring(self._skeleton)
        sigs = {_plain(element.get("label")): element for element in root.iter("sig")}
        labels = {_plain(element.get("label")): element.get("label", "") for element in root.iter("atom")}
        names = {label: plain.removesuffix("$0") for plain, label in labels.items()}
        # Atoms of subsets are numbered as those of the signature that holds them.
        for sig, atoms in sorted(trace.atoms.items(), key=lambda item: item[0] in SUBSETS):
            for number, atom in enumerate(atoms if f"{sig}$0" not in labels else ()):
                # An atom's name may hold letters that Alloy has a use for.
                labels.setdefault(atom, f"A{len(labels):05}")
                sigs[sig].insert(number, ET.Element("atom", label=labels[atom]))
                names[f"{sigs[sig].get('label', '').removeprefix('this/')}${number}"] = atom
        owners = {element.get("ID"): _plain(element.get("label")) for element in root.iter("sig")}
        for element in root.iter("field"):
            name, owner = element.get("label", ""), owners[element.get("parentID")]
            for row in trace.tuples.get(f"{owner}.{name}" if owner.endswith("/Ord") else name, {}):
                given = ET.Element("tuple")
                for atom in row:
                    ET.SubElement(given, "atom", label=labels[atom] if atom in labels else labels[f"{atom}$0"])
                element.insert(0, given)
        return root, names


def _plain(label: str | None) -> str:
    """A name without that of the file in which Alloy found it."""
    return (label or "").removeprefix("this/").removeprefix("channel/")


def traces_of(name: str, log: Log) -> Iterator[Trace]:
    """A trace of each partition that has records."""
    partitions = len(log.end_offsets)
    for partition, end in sorted(log.end_offsets.items()):
        lines = sorted((line for line in log.lines if line.partition == partition), key=lambda line: line.offset)
        whole = [line.offset for line in lines] == [*range(end)]
        if lines:
            named = f"{name}/{partition}" if partitions > 1 else name
            yield Scribe(named, lines, partition, partitions, whole=whole).write()


@dataclass
class Tally:
    """What was compared, and what was not.

    Attributes:
        strict, lenient: Records of which the verdict and all that follows from it was compared, and those of which it was
            compared whether a joining reader takes them.
        states: Accepted states, as different records gave them, of which every field was compared.
        different: Where the model says otherwise than the code.
        left_out: What the model has no words for, with its number.
    """

    logs: int = 0
    strict: int = 0
    lenient: int = 0
    states: int = 0
    different: list[Step] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def matched(self) -> int:
        """Records that are not among the differences."""
        places = {(step.trace, step.offset, step.what in LENIENT) for step in self.different}
        return self.strict + self.lenient - len(places)

    def add(self, trace: Trace, different: Sequence[Step]) -> None:
        """Count one trace."""
        self.logs += 1
        self.strict += trace.strict_steps
        self.lenient += trace.lenient_steps
        self.states += len(trace.atoms.get("Said", {}))
        self.different += different
        self.left_out["records behind one of a newer format: no reader judges them"] += trace.unread
        if not trace.whole:
            self.left_out["logs with missing records: strict reading behind the lenient one"] += 1
        self.left_out[
            "marks of a cold start, and other control records: not judged, their effect on joins is not modelled"
        ] += len(trace.atoms.get("Mark", {}))


def bind(reader: Reader, logs: Iterable[tuple[str, Log]]) -> Tally:
    """Compare all of them."""
    tally = Tally()
    for name, log in logs:
        for trace in traces_of(name, log):
            tally.add(trace, reader.differences(trace))
    return tally
