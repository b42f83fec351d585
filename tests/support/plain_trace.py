"""A trace that is written down unit by unit: demand as given, times a factor by step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shedders.contest.trace import Namespace, Trace, TraceMachine, Units


def plain_trace(
    machines: Sequence[TraceMachine],
    namespaces: Sequence[Namespace],
    throughput: Sequence[Sequence[float]],
    *,
    factor: Callable[[int], float] = lambda _step: 1.0,
    cpu_per_mb: float = 1.0,
    memory_per_mb: float = 1.0,
    **more: Any,
) -> Trace:
    """A trace of 60 steps of 20 s, unless `more` has others.

    Args:
        throughput: Bytes a second in of each unit, spread evenly over the ring; as many go out; a message has 1,000 bytes.
    """
    rates = np.concatenate([np.array(units, np.float64) for units in throughput])
    places = [np.arange(1, 2 * len(units), 2) * 2**32 // (2 * len(units)) for units in throughput]
    units = Units(
        np.repeat(np.arange(len(throughput)), [len(units) for units in throughput]),
        np.concatenate(places),
        np.full(len(rates), 3, dtype=np.int64),
    )
    base = np.stack([rates / 1e3, rates / 1e3, rates, rates, rates / 1e6 * cpu_per_mb, rates / 1e6 * memory_per_mb])
    usual: dict[str, Any] = {"name": "plain", "about": "written down", "seed": 1, "steps": 60, "step_s": 20.0}
    return Trace(
        machines=machines,
        namespaces=namespaces,
        units=units,
        rows=lambda step: base * factor(step),
        **{**usual, **more},
    )
