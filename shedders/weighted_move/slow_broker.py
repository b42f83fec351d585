"""What a slow broker can do: its capacity, which is found in steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shedders.model.readings import numbers
from shedders.weighted_move.loads import OVERLOADED, RESOURCES

RETRY_S = 7_200.0  # time until a slow broker is tried with more load; doubled with each try that fails
RETRY_MAX_S = 86_400.0
STEP_S = 600.0  # the same after a try that succeeded
TRY_S = 150.0  # a try's load has to show within this time
TRIED = 1.2  # level of a try, in parts of the known capacity
ABOVE = 1.05  # usage above this part of the known capacity shows that it can do more
FULL = 0.95  # usage above this part of the capacity means that it may serve less than it is asked
RESOURCE_COUNT = len(RESOURCES)
NOTHING_BEYOND = (0.0,) * RESOURCE_COUNT
LEAST_SERVED = 0.05  # least assumed part of what it is asked that a broker serves


@dataclass(slots=True)
class SlowBroker:
    """What a slow broker can do.

    Attributes:
        capacity: Part of its reported limit that it can use.
        resource: Index of that resource (`shedders.weighted_move.loads.RESOURCES`).
        served: Part of what it is asked that it served when it was last full.
        waited_s: Since it was found slow, or since the last try began or ended.
        retry_s: Time until the next try.
        trying: It is being filled beyond its capacity.
        beyond: What it has used of its other resources beyond that part. Which resource limits it does not show: until then no
            resource counts with more than that part.
    """

    capacity: float
    resource: int = 0
    served: float = 1.0
    waited_s: float = 0.0
    retry_s: float = RETRY_S
    trying: bool = False
    beyond: Sequence[float] = NOTHING_BEYOND

    @classmethod
    def recall(cls, row: Any, passed_s: float) -> SlowBroker | None:
        """From JSON; None if it is not a row of `dumped`."""
        beyond = numbers(row[6:], RESOURCE_COUNT) if isinstance(row, list | tuple) else None
        values = numbers(row if beyond is None else row[:6], 6)
        if values is None or not 0 < values[0] <= 1 or not 0 < values[2] <= 1:
            return None
        capacity, resource, served, waited_s, retry_s, trying = values
        if resource not in range(RESOURCE_COUNT):
            return None
        return cls(
            capacity,
            int(resource),
            served,
            waited_s + passed_s,
            min(retry_s, RETRY_MAX_S),
            trying > 0,
            beyond or NOTHING_BEYOND,
        )

    def dumped(self) -> list[float]:
        parts = round(self.capacity, 4), self.resource, round(self.served, 4)
        beyond = [round(each, 4) for each in self.beyond] if any(self.beyond) else []
        return [*parts, round(self.waited_s, 1), self.retry_s, int(self.trying), *beyond]

    def watch(self, level: float, levels: Sequence[float] = ()) -> None:
        """Compare its capacity with its present usage of that resource, and begin or end a try.

        Args:
            levels: Its usage of all resources.
        """
        if any(each > self.capacity * ABOVE for each in levels):
            self.beyond = [
                max(before, min(1.0, each)) if place != self.resource and each > self.capacity * ABOVE else before
                for place, (before, each) in enumerate(zip(self.beyond, levels, strict=True))
            ]
        if level < self.capacity * FULL:
            self.served = 1.0
        if level > self.capacity * ABOVE:
            self.capacity = min(1.0, level)
            self.waited_s, self.retry_s, self.trying = 0.0, STEP_S, False
        elif self.trying and self.waited_s >= TRY_S:
            if level >= self.capacity * FULL:
                self.served = min(self.served, 1 / TRIED)
                self._back_off()
            # A try without the load that was to come has shown nothing.
            self.waited_s, self.retry_s, self.trying = 0.0, max(RETRY_S, self.retry_s), False
        elif not self.trying and self.waited_s >= self.retry_s:
            self.waited_s, self.trying = 0.0, True

    def assumed(self, level: float, resource: int | None = None) -> float:
        """The capacity to count with; in a try, that of which the cluster's level (`level`) is the usage to try.

        Args:
            resource: Of another resource.
        """
        beyond = 0.0 if resource is None or resource == self.resource else self.beyond[resource]
        if not self.trying or not level > 0:
            return max(self.capacity, beyond)
        return min(1.0, max(self.capacity, beyond, TRIED * self.capacity / level))

    def has_recovered(self, level: float) -> bool:
        """Whether its steps have brought it so far that it is not full at the cluster's level (`level`)."""
        return self.retry_s == STEP_S and self.capacity * OVERLOADED >= level

    def limited(self, resource: int, level: float, served: float) -> None:
        """It does not get beyond this usage of a resource, though more was moved there, of which it serves a part."""
        if self.trying:
            self._back_off()
        if resource != self.resource:
            self.beyond = [self.capacity if place == self.resource else each for place, each in enumerate(self.beyond)]
        self.capacity, self.resource = min(1.0, level), resource
        self.served = max(LEAST_SERVED, min(self.served, served))
        self.waited_s, self.trying = 0.0, False

    def relieved(self, part: float) -> None:
        """A plan takes this part of what it is asked from it."""
        self.served = min(1.0, self.served / max(0.05, 1 - part))

    def _back_off(self) -> None:
        """A try has failed."""
        self.retry_s = min(RETRY_MAX_S, max(RETRY_S, 2 * self.retry_s))
