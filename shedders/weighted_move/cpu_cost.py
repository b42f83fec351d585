"""CPU cost of messages and bytes, estimated from the reports of all brokers at once. Pure.

The CPU of a single bundle is not measured. But brokers differ in their traffic, and so in their usage:

    cpu_b / limit_b  ~  idle + a * messages_b / limit_b + c * bytes_b / limit_b

is solved by least squares over all brokers. If they are too similar, a prior decides: half for messages, half for bytes, nothing
for idling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple

from loaddata.model.broker_load import BrokerLoad
from shedders.model.readings import LEAST_LIMIT, MOST

RIDGE = 0.005
"""Weight of the prior: as much as brokers that differ by the root of this (7 %)."""

_SINGULAR = 1e-12


class CpuCosts(NamedTuple):
    """CPU costs.

    Attributes:
        idle: Part of a broker's limit that is used without traffic.
        message, size: Percent of one core for a message and for a byte a second.
    """

    idle: float = 0.0
    message: float = 0.0
    size: float = 0.0

    def of(self, rate: float, throughput: float) -> float:
        """CPU of this traffic, in percent of one core."""
        return self.message * rate + self.size * throughput


def cpu_costs(loads: Iterable[BrokerLoad]) -> CpuCosts:
    """Estimate the costs from these reports."""
    rows = [
        (load.cpu.usage / load.cpu.limit, load.msg_rate / load.cpu.limit, load.msg_throughput / load.cpu.limit)
        for load in loads
        if load.cpu.limit >= LEAST_LIMIT
    ]
    if not rows:
        return CpuCosts()
    count = len(rows)
    used, messages, sizes = (fsum(row[column] for row in rows) / count for column in range(3))
    if used <= 0 or (messages <= 0 and sizes <= 0):
        return CpuCosts()
    both = messages > 0 and sizes > 0
    prior = (0.0, 0.5, 0.5) if both else (0.0, float(messages > 0), float(sizes > 0))
    # In parts of the means, so that all three are alike.
    scaled = [
        (1.0, rate / messages if messages > 0 else 0.0, size / sizes if sizes > 0 else 0.0, use / used)
        for use, rate, size in rows
    ]
    parts = [max(0.0, part) for part in _solved(scaled, prior)]
    if not prior[1]:
        parts[1] = 0.0
    if not prior[2]:
        parts[2] = 0.0
    whole = fsum(parts)
    if not parts[1] + parts[2] > 0 or not whole > 0:
        parts, whole = list(prior), 1.0
    idle, message, size = (part / whole * used for part in parts)
    return CpuCosts(idle, per(message, messages), per(size, sizes))


def per(amount: float, of: float) -> float:
    """The amount per unit; bounded, as the number of units may be nearly zero and products must stay finite."""
    return min(MOST, amount / of) if of > 0 else 0.0


def _solved(rows: Sequence[tuple[float, float, float, float]], prior: tuple[float, float, float]) -> Sequence[float]:
    """Least squares with a ridge towards the prior."""
    count = len(rows)
    matrix = [
        [fsum(row[i] * row[j] for row in rows) / count + (RIDGE if i == j else 0.0) for j in range(3)] for i in range(3)
    ]
    right = [fsum(row[i] * row[3] for row in rows) / count + RIDGE * prior[i] for i in range(3)]
    whole = _determinant(matrix)
    if not abs(whole) > _SINGULAR:
        return prior
    solution = []
    for column in range(3):
        replaced = [[right[i] if j == column else matrix[i][j] for j in range(3)] for i in range(3)]
        solution.append(_determinant(replaced) / whole)
    return solution


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )
