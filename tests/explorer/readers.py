"""What all readers make of one log: the reader of the whole log, every joiner, and those who joined earlier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

from statechannel.protocol.digest import digest
from statechannel.protocol.joiner import HeldRecord, Joiner
from statechannel.protocol.keys import KeyState
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from tests.explorer.world import KEYS, ROOT, Claim, KeyFacts, Letter
from tests.twin.judge import Judge
from tests.twin.wire import Line
from tests.unit.core import against_twin

POINTS = (0, 0x40000000, 0x80000000)
"""Hashes of three topics: in the two halves of the first bundle, and in the second bundle."""


class Difference(Exception):  # noqa: N818  # what the explorer looks for
    """Two readers of one log disagree, or a rule that holds at every offset does not."""


class JoinedEarlier(NamedTuple):
    """A reader that joined after the cleaner had removed tombstones: its debts may differ (protocol.md section 3, R6).

    Attributes:
        at: Offset through which it had read leniently.
        gone: Keys, and the offset of the tombstone that is gone: by then no replica of Kafka has what that hid (section 6).
    """

    at: int
    gone: frozenset[tuple[bytes, int]]


Helds = Mapping[int, HeldRecord | None]
"""What may be held, by offset; -1 is nothing."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What joiners may hold of one key, over everything that the cleaner may have removed.

    Attributes:
        if_last: After the last record, which is always there.
        if_hidden: After it, or without it: where another record of the key follows.
        last: Offset of the last record; -1: none.
        is_null: The last record is a tombstone.
    """

    if_last: Helds
    if_hidden: Helds
    last: int = -1
    is_null: bool = False

    def read(self, scratch: Joiner, offset: int, letter: Letter) -> Outcomes:
        """With one more record of the key. A joiner decides by the record that it holds, and by nothing else."""
        if_last: dict[int, HeldRecord | None] = {}
        for held in self.if_hidden.values():
            scratch.held.clear()
            if held is not None:
                scratch.hold(letter.key, held)
            scratch.read(offset, letter.key, letter.value)
            after = scratch.held.get(letter.key)
            if_last[-1 if after is None else after.offset] = after
        return Outcomes(if_last, {**if_last, **self.if_hidden}, offset, letter.value is None)


NOTHING_READ = Outcomes({-1: None}, {-1: None})


class Readers:
    """All readers of one log."""

    def __init__(self, log: Sequence[Letter] = (), joined: Sequence[JoinedEarlier] = ()) -> None:
        self.log: list[Letter] = []
        self.full = View(0, 1)
        self.judgement: Judgement | None = None
        self.outcomes: dict[bytes, Outcomes] = dict.fromkeys(KEYS, NOTHING_READ)
        self.claims: dict[bytes, dict[Claim, None]] = {key: {} for key in KEYS}
        self.accepted: dict[bytes, tuple[bytes, Record]] = {}
        self.accepted_ids: set[str] = set()
        self.joined: dict[JoinedEarlier, View] = {}
        self.tops: dict[int, tuple[int, str | None]] = dict.fromkeys(POINTS, (0, None))
        self._scratch = Joiner(0, 1)
        for key in KEYS:
            self._note_claim(key)
        for letter in log:
            self.read(letter, check=False)
            self.joined |= {one: self._join(one) for one in joined if one.at == self.full.applied}

    def mark(self, key: bytes) -> Callable[[], bool]:
        """Returns a function that takes the next record back, one of this key; it returns whether it could.

        A record that is not accepted changes what settles its own key, and nothing else.
        """
        outcomes, claims = self.outcomes[key], dict(self.claims[key])
        ledgers = [_mark_ledger(view, key) for view in self._views()]

        def take_back() -> bool:
            if self.judgement is None or self.judgement.verdict is Verdict.ACCEPTED:
                return False
            self.log.pop()
            self.outcomes[key], self.claims[key] = outcomes, claims
            for restore in ledgers:
                restore()
            return True

        return take_back

    def read(self, letter: Letter, *, check: bool = True) -> None:
        """Read one more record.

        Raises:
            Difference: Readers disagree about it, or a version shrinks.
        """
        self.judge(letter, check=check)
        self.follow()

    def judge(self, letter: Letter, *, check: bool = True) -> None:
        """The first half of `read`: what those say who judge strictly."""
        offset = len(self.log)
        self.log.append(letter)
        judgement = self.judgement = self.full.read(offset, letter.key, letter.value)
        for view in self.joined.values():
            other = view.read(offset, letter.key, letter.value)
            if check and not (_agree(other.verdict, judgement.verdict) and states_of(view) == states_of(self.full)):
                raise Difference(
                    f"who joined earlier says {other.verdict}, the reader of the whole log {judgement.verdict}"
                )

    def follow(self) -> None:
        """The second half: what joiners may hold from now on, and what processes may claim."""
        offset, letter, judgement = len(self.log) - 1, self.log[-1], self.judgement
        if judgement is None:
            raise ValueError("nothing was judged")
        self.outcomes[letter.key] = self.outcomes[letter.key].read(self._scratch, offset, letter)
        self._note_claim(letter.key)
        if judgement.verdict is Verdict.ACCEPTED:
            if letter.value is not None and judgement.record is not None:
                self.accepted[letter.key] = (letter.value, judgement.record)
                self.accepted_ids.add(judgement.record.id)
            self._raise_tops()
            for key in KEYS:
                self._note_claim(key)

    def _note_claim(self, key: bytes) -> None:
        self.claims[key][Claim.of(self.full.keys.get(key), self.outcomes[key].last)] = None

    def _raise_tops(self) -> None:
        """Versions grow for a topic with every record, whatever bundle it falls in; and the ring is covered exactly once."""
        root = self.full.keys[ROOT]
        if root.state is not State.ACTIVE or root.ring is None:
            return
        live = list(root.ring.live.values())
        if sum(bundle.upper - bundle.lower for bundle in live) != 0xFFFFFFFF:
            raise Difference("the ring is not covered exactly once")
        for bundle in live:
            for point in POINTS:
                if bundle.lower <= point < bundle.upper:
                    version, record_id = self.tops[point]
                    if bundle.version <= version and bundle.accepted_id != record_id:
                        raise Difference(
                            f"a topic's bundle had version {version}, and has version {bundle.version} now"
                        )
                    self.tops[point] = (bundle.version, bundle.accepted_id)

    # --- joins ------------------------------------------------------------------------------------------------------

    @property
    def debts(self) -> int:
        """Keys in debt, for the reader that sees fewest: where it sees none, it may vouch, and joins complete."""
        return min(len(view.ledger.open) for view in (self.full, *self.joined.values()))

    def check_joins(self) -> list[JoinedEarlier]:
        """Compare every joiner that begins its strict reading here; returns those with debts of their own.

        Raises:
            Difference: One holds other accepted states than the reader of the whole log.
        """
        truth, digest_of_truth = states_of(self.full), digest([self.full])
        others: dict[object, JoinedEarlier] = {}
        known = {ledger_of(view) for view in (self.full, *self.joined.values())}
        for joiner in self._joiners():
            for view in self._joined_views(joiner.gone):
                if states_of(view) != truth or digest([view]) != digest_of_truth:
                    raise Difference("a joiner holds other accepted states than the reader of the whole log")
                ledger = ledger_of(view)
                if ledger not in known:
                    others.setdefault(ledger, joiner)
        return list(others.values())

    def _joiners(self) -> Iterator[JoinedEarlier]:
        """Who may join here: on the word of a reader that sees no debt, with what that one found gone, and more."""
        vouching = [one.gone for one, view in self.joined.items() if not view.ledger.open]
        for gone in vouching if self.full.ledger.open else [frozenset[tuple[bytes, int]]()]:
            outcomes = self._outcomes_without(gone)
            nulls = [(key, outcomes[key].last) for key in KEYS if outcomes[key].is_null]
            for count in range(len(nulls) + 1):
                for more in combinations(nulls, count):
                    yield JoinedEarlier(self.full.applied, gone.union(more))

    def _outcomes_without(self, gone: frozenset[tuple[bytes, int]]) -> dict[bytes, Outcomes]:
        outcomes = dict(self.outcomes)
        for key, through in sorted(gone):
            after = NOTHING_READ
            for offset in range(through + 1, len(self.log)):
                if self.log[offset].key == key:
                    after = after.read(self._scratch, offset, self.log[offset])
            outcomes[key] = after
        return outcomes

    def _joined_views(self, gone: frozenset[tuple[bytes, int]]) -> Iterator[View]:
        outcomes = self._outcomes_without(gone)
        keys = [key for key in KEYS if outcomes[key].last >= 0]
        for helds in product(*(outcomes[key].if_last.values() for key in keys)):
            joiner = Joiner(0, 1)
            joiner.applied = self.full.applied
            for key, held in zip(keys, helds, strict=True):
                joiner._known(key)
                if held is not None:
                    joiner.hold(key, held)
                joiner.last[key] = outcomes[key].last
                if outcomes[key].is_null:
                    joiner.nulls.add(key)
            yield joiner.view()

    def _join(self, one: JoinedEarlier) -> View:
        return next(iter(self._joined_views(one.gone)))

    # --- what comes next --------------------------------------------------------------------------------------------

    def facts(self) -> Mapping[bytes, KeyFacts]:
        """What the next records depend on."""
        return {key: self._facts_of(key) for key in KEYS}

    def _facts_of(self, key: bytes) -> KeyFacts:
        keys = self.full.keys
        known = self._known_offsets(key)
        versions = {one.record.version for one in self.outcomes[key].if_hidden.values() if one is not None}
        versions |= {keys[name].version for name in KEYS if name in keys}
        for view in self._views():
            debt = view.ledger.open.get(view.keys[key]) if key in view.keys else None
            versions |= set() if debt is None else {debt.highest_version}
        claims = dict.fromkeys(
            claim._replace(seen=max((-1, *(one for one in known if one <= claim.seen)))) for claim in self.claims[key]
        )
        copy = self._copy_of(key)
        return KeyFacts(keys.get(key), known, versions, claims, () if copy is None else (copy[0],))

    def _copy_of(self, key: bytes) -> tuple[bytes, Record] | None:
        """The accepted record of a key, which a client may write again. Copies of older ones are no more than junk."""
        state, accepted = self.full.keys.get(key), self.accepted.get(key)
        if state is None or accepted is None or state.derived or state.record_id != accepted[1].id:
            return None
        return accepted

    def _views(self) -> tuple[View, ...]:
        return (self.full, *self.joined.values())

    def _known_offsets(self, key: bytes) -> list[int]:
        """Offsets that a later `covers` is compared with: what settled the key, its newest unclean record, what joiners hold."""
        known = set(self.outcomes[key].if_hidden)
        known.add(self.outcomes[key].last)
        for view in self._views():
            state = view.keys.get(key)
            if state is not None:
                known.add(state.settled)
                debt = view.ledger.open.get(state)
                if debt is not None:
                    known.add(debt.newest_offset)
        return sorted(offset for offset in known if offset >= 0)

    # --- classes ----------------------------------------------------------------------------------------------------

    def signature(self) -> object:
        """Equal for two logs if every continuation of the one is one of the other, up to names and offsets."""
        labels = Labels()
        return (
            tuple(self._signature_of(key, labels) for key in KEYS),
            tuple((version, labels.of(record_id)) for version, record_id in self.tops.values()),
            tuple(sorted(self._joined_signature(one, view, labels) for one, view in self.joined.items())),
        )

    def _signature_of(self, key: bytes, labels: Labels) -> object:
        outcomes = self.outcomes[key]
        known = self._known_offsets(key)

        def rank(offset: int) -> int:
            return sum(one <= offset for one in known)

        state = self.full.keys.get(key)
        debt = None if state is None else self.full.ledger.open.get(state)
        return (
            None if state is None else _state_signature(state, labels),
            0 if state is None else rank(state.settled),
            None if debt is None else (rank(debt.newest_offset), debt.highest_version),
            rank(outcomes.last),
            outcomes.is_null,
            tuple(self._held_signature(outcomes.if_hidden[one], rank, labels) for one in sorted(outcomes.if_hidden)),
            tuple(rank(one) for one in sorted(outcomes.if_last)),
            tuple(sorted({_claim_signature(claim, rank, labels) for claim in self.claims[key]})),
            None if (copy := self._copy_of(key)) is None else rank(copy[1].covers),
        )

    def _joined_signature(self, one: JoinedEarlier, view: View, labels: Labels) -> tuple[str, ...]:
        """What it knows of debts, and what those may hold that join on its word."""
        restricted = []
        for key, outcomes in self._outcomes_without(one.gone).items():
            known = self._known_offsets(key)
            restricted.append(
                [
                    self._held_signature(
                        held, lambda offset, known=known: sum(each <= offset for each in known), labels
                    )
                    for _, held in sorted(outcomes.if_hidden.items())
                ]
            )
        return (repr(self._ledger_signature(view)), repr(restricted))

    def _held_signature(self, held: HeldRecord | None, rank: Rank, labels: Labels) -> tuple[object, ...]:
        """Of a proposal that was rejected only what decides how long it is held.

        Whatever it says, a joiner that still holds it in the end is wrong: no accepted state has its id.
        """
        if held is None:
            return ()
        record = held.record
        if record.kind is Kind.PROPOSAL and record.id not in self.accepted_ids:
            return (rank(held.offset), record.version)
        children = None if record.children is None else tuple(record.children)
        ids = (labels.of(record.id if record.kind is Kind.PROPOSAL else None), labels.of(record.base))
        return (rank(held.offset), record.kind, record.version, record.state, record.from_, record.to, ids, children)

    def _ledger_signature(self, view: View) -> tuple[object, ...]:
        parts: list[object] = []
        for key in KEYS:
            state = view.keys.get(key)
            known = self._known_offsets(key)
            debt = None if state is None else view.ledger.open.get(state)
            parts.append(-1 if state is None else sum(one <= state.settled for one in known))
            parts.append(
                (-1, -1) if debt is None else (sum(one <= debt.newest_offset for one in known), debt.highest_version)
            )
        return tuple(parts)


def _mark_ledger(view: View, key: bytes) -> Callable[[], None]:
    applied, state = view.applied, view.keys.get(key)
    debt = None if state is None else view.ledger.open.get(state)
    kept = None if state is None else (state.settled, state.purged)
    owed = None if debt is None else (debt.newest_offset, debt.highest_version)

    def restore() -> None:
        view.applied = applied
        if state is None or kept is None:
            added = view.keys.pop(key, None)
            if added is not None:
                view.ledger.open.pop(added, None)
            return
        state.settled, state.purged = kept
        if debt is None or owed is None:
            view.ledger.open.pop(state, None)
            return
        debt.newest_offset, debt.highest_version = owed
        view.ledger.open[state] = debt

    return restore


_NULL = {Verdict.PURGED, Verdict.UNDECODABLE}


def _agree(first: Verdict, second: Verdict) -> bool:
    """Who does not know a debt takes a null for a purge."""
    return first is second or {first, second} == _NULL


def states_of(view: View) -> dict[bytes, tuple[object, ...]]:
    """Accepted states by key, with all that later verdicts depend on: of a namespace, what its ring counts as well."""
    return {
        key.key: (
            *(key.state, key.version, key.from_, key.to, key.accepted_id, key.derived),
            key.bounds and tuple(key.bounds),
            (key.ring.highest, key.ring.owned) if key.is_namespace and key.ring is not None else None,
        )
        for key in view.existing()
    }


def differs_from_twin(readers: Readers) -> str:
    """What the twin, a second implementation of the rules, says otherwise; empty if nothing."""
    twin = Judge(0, 1)
    said = [twin.read(Line(0, offset, 0, *letter)) for offset, letter in enumerate(readers.log)]
    last, judgement = said[-1], readers.judgement
    if last is None or judgement is None or last.verdict != str(judgement.verdict):
        return f"the twin says {last and last.verdict}, the view {judgement and judgement.verdict}"
    if twin.states() != against_twin.states_of(readers.full):
        return "the twin holds other accepted states"
    if twin.debts() != against_twin.debts_of(readers.full):
        return "the twin sees other debts"
    return ""


def ledger_of(view: View) -> tuple[object, ...]:
    """What settled each key, and its debt."""
    debts = {key.key: (debt.newest_offset, debt.highest_version) for key, debt in view.ledger.open.items()}
    return tuple((key, held.settled, debts.get(key)) for key in KEYS if (held := view.keys.get(key)) is not None)


Rank = Callable[[int], int]


class Labels:
    """Numbers for ids of records, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, record_id: str | None) -> tuple[int, str]:
        """The number of a record, and the range if the id is that of a derived state."""
        if record_id is None:
            return (-1, "")
        record, _, child = record_id.partition("/")
        return (self._numbers.setdefault(record, len(self._numbers)), child)


def _state_signature(state: KeyState, labels: Labels) -> tuple[object, ...]:
    bounds = state.bounds and tuple(state.bounds)
    return (state.state, state.version, state.from_, state.to, labels.of(state.accepted_id), bounds, state.purged)


def _claim_signature(claim: Claim, rank: Rank, labels: Labels) -> tuple[object, ...]:
    names = (claim.from_ or "", claim.to or "")
    return (claim.state, claim.version, rank(claim.seen), labels.of(claim.base), names, claim.children or ())
