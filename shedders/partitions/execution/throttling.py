"""Keeps the throttle of one execution: what was there before, what is set now, what is still to be put back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shedders.partitions.execution import events
from shedders.partitions.execution.seen import Answer, Effect, Outcome, Record, SetConfigs
from shedders.partitions.execution.throttle import (
    RATES,
    TOPIC,
    Copy,
    missing,
    own_entries,
    resources_of,
    restoration,
    wanted,
)

if TYPE_CHECKING:
    from shedders.partitions.execution.events import Recorded
    from shedders.partitions.execution.seen import Configs, Resource
    from shedders.partitions.plan import Plan


class Throttling:
    """See the module. Pure: configurations come in by `learn`, changes go out as effects.

    Args:
        plan: What is carried out.
        rate: Bytes a second of each broker; None: no throttle.
        recorded: What earlier executors have left, and what this one has written since: whoever owns it adds that.

    Attributes:
        refusals: So often in a row a change was not accepted; the newest `reason`.
    """

    def __init__(self, plan: Plan, rate: int | None, recorded: Recorded) -> None:
        self._own = own_entries(plan)
        self._rate = rate
        # Grow and shrink with what is written down, never before: a step may be broken off between wanting and writing.
        self._before = recorded.throttle_before
        self._rates = recorded.rates
        self._known: dict[Resource, dict[str, str | None]] = {}
        self._resources = frozenset(resources_of(plan))
        self._fresh: frozenset[Resource] = frozenset()
        self.refusals = 0
        self.reason = ""

    @property
    def rate(self) -> int | None:
        """The one that is to hold."""
        return self._rate

    @property
    def left(self) -> tuple[Resource, ...]:
        """What is still to be put back."""
        return tuple(sorted(self._before))

    @property
    def unknown(self) -> tuple[Resource, ...]:
        """Whose configuration has to be looked at before anything is changed."""
        wanted_ones = self._resources if self._rate is not None else frozenset[tuple[str, str]]()
        return tuple(sorted((wanted_ones | set(self._before)) - set(self._known)))

    def change(self, rate: int | None) -> None:
        """From now on this rate."""
        self._rate = rate

    def learn(self, configs: Configs) -> None:
        """What the cluster has now, of some; called at each look, also if it asked for none."""
        self._fresh = frozenset(configs)
        self._known.update({resource: dict(settings) for resource, settings in configs.items()})

    def told(self, effect: SetConfigs, answer: Answer) -> None:
        """How a change ended: what was accepted is known, all else has to be looked at again."""
        for resource, changes in effect.changes.items():
            if answer.outcome is Outcome.ACCEPTED and resource not in answer.refused:
                self._known.setdefault(resource, {}).update(changes)
            else:
                self._known.pop(resource, None)
        failed = answer.outcome is not Outcome.ACCEPTED or bool(answer.refused)
        self.refusals = self.refusals + 1 if failed else 0
        if failed:
            self.reason = answer.reason or "; ".join(sorted(set(answer.refused.values())))

    def needed(self, copies: Iterable[Copy], alive: frozenset[int]) -> list[Effect] | None:
        """Effects that throttle these copies, in order; None: not all that has to be known is, so nothing may set out."""
        if self._rate is None:
            return []
        needed = wanted(self._rate, copies, alive)
        for resource in self._before:
            if resource[0] != TOPIC and resource in self._known and int(resource[1]) in alive:
                needed[resource] = dict.fromkeys(RATES, str(self._rate))
        changes = missing(needed, self._known)
        if not changes:
            return []
        if not self._seen_now(changes):
            return None
        before = {
            events.resource_text(one): {name: self._known[one].get(name) for name in needed[one]}
            for one in changes
            if one not in self._before
        }
        facts = {"rate": self._rate, "before": before}
        return [Record(event=events.THROTTLE, facts=facts), SetConfigs(changes=changes)]

    def restore(self, resources: Iterable[Resource]) -> list[Effect]:
        """Effects that put these back; again until `left` has none of them.

        Each is looked at once more before it is changed.
        """
        back: list[Resource] = []
        changes: dict[Resource, Mapping[str, str | None]] = {}
        for resource in resources:
            if resource not in self._before or resource not in self._known:
                continue
            own = self._own.get(resource[1], frozenset()) if resource[0] == TOPIC else frozenset[str]()
            change = restoration(resource, self._before[resource], self._known[resource], frozenset(self._rates), own)
            if not change:
                back.append(resource)
            elif self._seen_now([resource]):
                changes[resource] = change
        found: list[Effect] = []
        if back:
            texts = [events.resource_text(one) for one in back]
            found.append(Record(event=events.UNTHROTTLED, facts={"resources": texts}))
        if changes:
            found.append(SetConfigs(changes=changes))
        return found

    def _seen_now(self, resources: Iterable[Resource]) -> bool:
        """Whether this look told them all: others may have changed since what an earlier one told. Else the next look does."""
        wanted_ones = set(resources)
        fresh = wanted_ones <= self._fresh
        if not fresh:  # all of them, so that the next look tells them together
            for one in wanted_ones:
                self._known.pop(one, None)
        return fresh
