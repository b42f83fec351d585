"""The canary: asks brokers, as a client would, whether they serve a bundle, and compares the answers with the log.

Pure: what to ask next, and what an answer means. A single answer that does not fit proves nothing, since the bundle may just be
moving: it counts once the same broker, which has read more of the log since, answers so again, and this process has read all that
was written before that answer, with the record still the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from statechannel.engine.canary_finding import CanaryFinding, CanaryReason
from statechannel.engine.context import Mode
from statechannel.engine.freshness import keeps_up
from statechannel.protocol.bounded import remember
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.engine.context import Context
    from statechannel.engine.membership import Member
    from statechannel.protocol.keys import KeyState

RECENT_MAX = 1_000
FINDINGS_MAX = 100
SETTLE_S = 1.0
"""A broker that has just got or lost a bundle is asked after this time."""
RECENT_S = 10.0
"""For so long it is tried to ask it, if it is behind the log."""
TRIES = 10
ERROR_MAX = 200


class CanaryQuestion(NamedTuple):
    """Whether a broker serves a bundle.

    Attributes:
        broker: Who is asked.
        urls: Its listeners; `http` its endpoint for operators, empty without one.
        owner: By the log, with its generation; the record is at `offset`.
        applied: Offset through which the asked broker had read, by its last heartbeat.
        asked_s: When it is asked.
    """

    bundle: str
    broker: str
    incarnation: str
    urls: Mapping[str, str]
    http: str
    owner: str
    generation: int
    offset: int
    applied: int
    asked_s: float

    @property
    def subject(self) -> CanarySubject:
        return CanarySubject(self.bundle, self.broker)


class CanarySubject(NamedTuple):
    """A bundle, and the broker that is asked for it."""

    bundle: str
    broker: str


class CanaryAnswer(NamedTuple):
    """What came back.

    Attributes:
        generation: By which the broker serves the bundle; None: it does not.
        error: Why there is no answer; empty where there is one.
    """

    generation: int | None = None
    error: str = ""


class _Doubt(NamedTuple):
    """A contradiction. `answer` and `answered_s` are of a second look that this process has not read far enough to judge.

    Attributes:
        since_s: When the first answer came, `at_ms` by the wall clock; `at_s` is the time of the newest look.
        applied: Offset through which the asked broker had read, as far as was known by then.
    """

    question: CanaryQuestion
    reason: CanaryReason
    since_s: float
    at_s: float
    at_ms: int
    applied: int
    answer: CanaryAnswer | None = None
    answered_s: float = 0.0


class Canary:
    """Chooses questions, and judges answers; reads the engine's view between its steps.

    Args:
        draw: A random number below its argument.
        confirm_s: Before a contradiction is looked at a second time.
        by_hook: The embedder asks; else only brokers with an endpoint can be asked.

    Attributes:
        findings: Those that hold.
    """

    def __init__(self, context: Context, draw: Callable[[int], int], *, confirm_s: float, by_hook: bool) -> None:
        self._context = context
        self._draw = draw
        self._confirm_s = confirm_s
        self._by_hook = by_hook
        self._recent: dict[CanarySubject, tuple[float, float]] = {}
        self._doubts: dict[CanarySubject, _Doubt] = {}
        self._names: list[str] = []
        self.findings: dict[CanarySubject, CanaryFinding] = {}

    # --- what to ask ------------------------------------------------------------------------------------------------

    def moved(self, now_s: float, bundle: str, *brokers: str | None) -> None:
        """A bundle was assigned, or taken away: its former owner and the new one are asked soon."""
        for broker in brokers:
            if broker is not None:
                subject = CanarySubject(bundle, broker)
                self._recent.pop(subject, None)
                remember(self._recent, subject, (now_s + SETTLE_S, now_s + RECENT_S), RECENT_MAX)

    def next(self, now_s: float) -> CanaryQuestion | None:
        """The next question: first what is in doubt, then what has moved, then any bundle."""
        if self._context.mode is not Mode.NORMAL:
            return None
        for subject, doubt in list(self._doubts.items()):
            if doubt.answer is None and now_s - doubt.at_s >= self._confirm_s:
                question = self._question(now_s, subject)
                if question is None or question.offset != doubt.question.offset:
                    del self._doubts[subject]
                elif question.applied > doubt.applied or subject in self.findings:
                    self._doubts[subject] = doubt._replace(at_s=now_s)  # not asked again before the answer
                    return question
        for subject, (due_s, until_s) in list(self._recent.items()):
            if now_s >= due_s:
                question = self._question(now_s, subject)
                if question is not None or now_s >= until_s:
                    del self._recent[subject]
                if question is not None:
                    return question
        for _ in range(TRIES):
            question = self._question(now_s, CanarySubject(self._random_name(), ""))
            if question is not None and question.subject not in self._doubts:
                return question
        return None

    def _random_name(self) -> str:
        """Each bundle once in a round, in random order; empty where there is none."""
        names = self._names
        if not names:
            names += [key.name for replica in self._context.replicas for key in replica.view.live()]
            if not names:
                return ""
        place = self._draw(len(names))
        names[place], names[-1] = names[-1], names[place]
        return names.pop()

    def _question(self, now_s: float, subject: CanarySubject) -> CanaryQuestion | None:
        """None where the log, or what is known of the broker, gives no reason to expect a certain answer."""
        context, key = self._context, self._key(subject.bundle)
        if key is None or key.owner is None or key.generation is None or not keeps_up(context, key.namespace):
            return None
        member = context.members.alive.get(subject.broker or key.owner)
        if member is None or (member.broker == key.owner and not _is_process(key, member)):
            return None
        http = member.info.get("http")
        http = http if isinstance(http, str) else ""
        applied = self._applied(member, key)
        if applied < key.offset or not (http or self._by_hook):
            return None
        return CanaryQuestion(
            key.name,
            member.broker,
            member.incarnation,
            member.urls,
            http,
            key.owner,
            key.generation,
            key.offset,
            applied,
            now_s,
        )

    def _key(self, bundle: str) -> KeyState | None:
        """The bundle, if it is simply assigned."""
        key = self._context.key(bundle) if bundle else None
        return key if key is not None and key.state is State.ASSIGNED and not key.is_namespace else None

    def _applied(self, member: Member, key: KeyState) -> int:
        """Offset through which a broker has read the bundle's partition, by its last heartbeat."""
        partition = self._context.partition_of(key.namespace)
        applied = member.info.get("applied")
        offset = applied.get(str(partition)) if isinstance(applied, dict) else None
        return offset if type(offset) is int else -1

    # --- what an answer means ---------------------------------------------------------------------------------------

    def judge(self, now_s: float, wall_ms: int, question: CanaryQuestion, answer: CanaryAnswer) -> None:
        """Take an answer in; what it confirms `review` says."""
        subject, key = question.subject, self._key(question.bundle)
        doubt = self._doubts.get(subject)
        if key is None or key.offset != question.offset or key.owner != question.owner:
            self._forget(subject)  # it has moved since
            return
        reason = _contradiction(question, answer)
        if reason is None:
            self._forget(subject)
        elif doubt is None or doubt.question.offset != question.offset or doubt.reason is not reason:
            # What it has read since it was asked does not show that it lives now.
            member = self._context.members.alive.get(question.broker)
            applied = question.applied if member is None else max(question.applied, self._applied(member, key))
            remember(self._doubts, subject, _Doubt(question, reason, now_s, now_s, wall_ms, applied), RECENT_MAX)
            self.findings.pop(subject, None)
        elif question.applied > doubt.applied and question.asked_s - doubt.since_s >= self._confirm_s:
            self._doubts[subject] = doubt._replace(answer=answer, answered_s=now_s, at_s=now_s)

    def _forget(self, subject: CanarySubject) -> None:
        self._doubts.pop(subject, None)
        self.findings.pop(subject, None)

    def review(self, wall_ms: int) -> list[CanaryFinding]:
        """Findings that are new; those whose bundle or broker is not as it was are dropped.

        The asked broker may have read more than this process. So an answer counts once this process has read everything that
        was written before it came, and the record is still the same.
        """
        new = []
        for subject, doubt in list(self._doubts.items()):
            if doubt.answer is None:
                continue
            key = self._key(subject.bundle)
            if key is None or key.offset != doubt.question.offset:
                self._forget(subject)
                continue
            current_at_s = self._context.replicas[self._context.partition_of(key.namespace)].current_at_s
            if current_at_s is not None and current_at_s >= doubt.answered_s:
                finding = _finding(doubt, doubt.answer, wall_ms)
                new += [] if subject in self.findings else [finding]
                self.findings.pop(subject, None)
                remember(self.findings, subject, finding, FINDINGS_MAX)
                self._doubts[subject] = doubt._replace(answer=None)
        for subject, finding in list(self.findings.items()):
            key = self._key(subject.bundle)
            as_it_was = key is not None and key.owner == finding.owner and key.generation == finding.generation
            if not as_it_was or subject.broker not in self._context.members.alive:
                self._forget(subject)
        return new


def _finding(doubt: _Doubt, answer: CanaryAnswer, wall_ms: int) -> CanaryFinding:
    asked = doubt.question
    return CanaryFinding(
        doubt.reason,
        asked.bundle,
        asked.broker,
        asked.owner,
        asked.generation,
        answer.generation,
        answer.error[:ERROR_MAX],
        doubt.at_ms,
        wall_ms,
    )


def _is_process(key: KeyState, member: Member) -> bool:
    """Whether this process took the bundle: a restarted one has to resume it first."""
    return key.server is not None and key.server.incarnation == member.incarnation


def _contradiction(question: CanaryQuestion, answer: CanaryAnswer) -> CanaryReason | None:
    """None where the answer fits, or is newer than what this process has read."""
    if answer.generation is not None and answer.generation > question.generation:
        return None
    if question.broker != question.owner:
        return CanaryReason.SERVES_UNOWNED if answer.generation is not None else None
    if answer.error:
        return CanaryReason.NO_ANSWER
    return None if answer.generation == question.generation else CanaryReason.NOT_SERVING
