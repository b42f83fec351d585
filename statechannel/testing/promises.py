"""What a broker's hooks promise, and what a check found of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from statechannel.engine.effects import Hook
from statechannel.errors import StateChannelError


class HookPromise(StrEnum):
    """A promise of a broker's hooks (design/hooks.md); the value is its stable code."""

    RETURNS = "raised"
    ON_TIME = "late"
    YIELDS = "blocks-loop"
    OBEYS_CANCELLATION = "ignores-cancellation"
    WAITS_FOR_SERVE = "serves-before-on-serve"
    SERVES = "not-serving"
    CURRENT_GENERATION = "wrong-generation"
    STOPS = "serves-after-release"
    STOPS_ONLY_ITS_BUNDLE = "stops-another-bundle"
    STOPS_WRITES_FOR_SPLIT = "writes-during-split"
    PARENT_ENDS = "serves-split-parent"
    HAS_ON_SPLIT = "no-on-split"
    FENCES = "stale-write-accepted"
    TAKES_WRITES = "write-refused"
    KEEPS_WRITES = "write-lost"
    PROBE = "probe-raised"


HINTS: dict[HookPromise, str] = {
    HookPromise.RETURNS: (
        "Each hook has to stand this order of calls: what may be missing, or there already, must not raise (hooks.md, `What "
        "must be idempotent`)."
    ),
    HookPromise.ON_TIME: (
        "End within hooks.deadline_s, or raise the setting: a late hook counts as failed, and keeps its bundle's turn. "
        "If it waits for a thread of its own (`asyncio.wrap_future(pool.submit(...))`, `anyio.to_thread`), virtual time does not "
        "wait for that: use `asyncio.to_thread`, or `loop.run_in_executor(pool, ...)`, or test it in a kit with `real_time=True`."
    ),
    HookPromise.YIELDS: (
        "Await instead, or call what blocks in a thread (`asyncio.to_thread`), or use BlockingBrokerHooks: while the loop"
        " stands still this broker reads and writes nothing."
    ),
    HookPromise.OBEYS_CANCELLATION: (
        "Let `asyncio.CancelledError` through: while a late hook runs on, its bundle cannot come back here."
    ),
    HookPromise.WAITS_FOR_SERVE: (
        "Prepare in `on_own`, and serve from `on_serve` on: the record that makes this broker the owner may still be "
        "rejected."
    ),
    HookPromise.SERVES: "Serve from `on_serve` on, at each generation: clients are sent here.",
    HookPromise.CURRENT_GENERATION: (
        "Serve by the generation of the newest `on_serve`, also where it is below that of an `on_own` or `on_split` "
        "before it."
    ),
    HookPromise.STOPS: (
        "When `on_release` returns, no operation may begin any more, and nothing may start serving again later."
    ),
    HookPromise.STOPS_ONLY_ITS_BUNDLE: "Keep what is open by bundle: the hooks of one say nothing about the others.",
    HookPromise.STOPS_WRITES_FOR_SPLIT: (
        "Take no more writes to the parent once `on_split` returns, until an `on_serve` of the parent."
    ),
    HookPromise.PARENT_ENDS: "The parent is gone for ever with `on_split_done`: stop what reads it.",
    HookPromise.HAS_ON_SPLIT: (
        "A split calls no `on_release` for its parent: override `on_split` too. One that does nothing ends this finding."
    ),
    HookPromise.FENCES: (
        "Storage has to compare the generation of each write with the highest that it has seen, and refuse smaller ones: "
        "a paused process writes late."
    ),
    HookPromise.TAKES_WRITES: "The owner takes writes once `on_serve` has returned.",
    HookPromise.KEEPS_WRITES: (
        "What was acknowledged has to be there for the next owner, also after a split: open the data in `on_own`, copy it"
        " to the children before they are served, and drop the parent in `on_split_done` only."
    ),
    HookPromise.PROBE: "The probe is called at any time, for any bundle: it answers None where nothing is served.",
}
"""The next step for each broken promise."""


class HookFinding(NamedTuple):
    """A promise that hooks broke.

    Attributes:
        hook: The one that was called last for the bundle; None where none was.
        order: Name of the order of calls, or of the story with faults (test-kit.md).
    """

    code: HookPromise
    message: str
    hint: str
    hook: Hook | None
    bundle: str
    order: str
    times: int = 1


class HookPromiseError(StateChannelError, AssertionError):
    """Hooks broke promises."""

    def __init__(self, findings: Sequence[HookFinding]) -> None:
        lines = [f"{len(findings)} broken promise{'s' if len(findings) > 1 else ''} of these hooks:"]
        for finding in findings:
            lines += [f"- {finding.code}: {finding.message}", f"  {finding.hint}"]
        super().__init__("\n".join(lines))
        self.findings = tuple(findings)


class HookReport(NamedTuple):
    """Result of `check_hooks`.

    Attributes:
        findings: What is broken, each promise and hook once.
        orders: Names of the orders and stories that were run.
    """

    findings: tuple[HookFinding, ...]
    orders: tuple[str, ...]
    calls: int

    @property
    def codes(self) -> frozenset[HookPromise]:
        return frozenset(finding.code for finding in self.findings)

    def require(self) -> None:
        """Fail a test if anything is broken.

        Raises:
            HookPromiseError: With all findings.
        """
        if self.findings:
            raise HookPromiseError(self.findings)
