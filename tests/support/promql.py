"""Evaluates expressions of PromQL on series of a test: the part of the language that alert rules and panels use.

Rates are not extrapolated to the ends of their range, so that they are a little lower than Prometheus' own.
"""

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = Sequence[tuple[float, float]]
"""Times in seconds, and values."""
LOOKBACK_S = 300.0
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
    "avg": lambda values: sum(values) / len(values),
}


class Promql:
    """Series of a test, and what expressions say of them.

    Args:
        series: By name and labels.
    """

    def __init__(self, series: Mapping[tuple[str, Labels], Points]) -> None:
        self._series = series

    def ask(self, expr: str, at_s: float) -> Vector:
        """The vector at a moment; a scalar is one value without labels."""
        found = self._value(promql.parse(expr), at_s)
        return found if isinstance(found, dict) else {frozenset(): found}

    def _value(self, node: Any, at_s: float) -> Vector | float:
        match node:
            case promql.NumberLiteral():
                return float(node.val)
            case promql.ParenExpr():
                return self._value(node.expr, at_s)
            case promql.VectorSelector():
                return {labels: points[-1][1] for labels, points in self._range(node, at_s, LOOKBACK_S).items()}
            case promql.AggregateExpr():
                return self._aggregate(node, at_s)
            case promql.Call():
                return self._call(node, at_s)
            case promql.BinaryExpr():
                return self._binary(node, at_s)
        raise NotImplementedError(f"{node}")

    def _range(self, selector: Any, at_s: float, range_s: float) -> dict[Labels, Points]:
        found = {}
        for (name, labels), points in self._series.items():
            if name == selector.name and all(_matches(one, dict(labels)) for one in selector.matchers.matchers):
                inside = [point for point in points if at_s - range_s < point[0] <= at_s]
                if inside:
                    found[labels] = inside
        return found

    def _aggregate(self, node: Any, at_s: float) -> Vector:
        names = set(node.modifier.labels) if node.modifier else set()
        groups: dict[Labels, list[float]] = {}
        for labels, value in self._vector(node.expr, at_s).items():
            groups.setdefault(_only(labels, names), []).append(value)
        return {labels: _AGGREGATES[str(node.op)](values) for labels, values in groups.items()}

    def _call(self, node: Any, at_s: float) -> Vector | float:
        name, args = node.func.name, node.args
        if name == "time":
            return at_s
        if name == "vector":
            return {frozenset(): float(args[0].val)}
        if name == "absent":
            return {} if self._vector(args[0], at_s) else {frozenset(): 1.0}
        if name == "histogram_quantile":
            return _quantile(float(args[0].val), self._vector(args[1], at_s))
        range_s = args[0].range.total_seconds()
        over = {
            "last_over_time": lambda points: points[-1][1],
            "max_over_time": lambda points: max(value for _, value in points),
            "increase": _increase,
            "rate": lambda points: _increase(points) / range_s,
        }[name]
        return {labels: over(points) for labels, points in self._range(args[0].vector_selector, at_s, range_s).items()}

    def _binary(self, node: Any, at_s: float) -> Vector | float:
        left, right, op = self._value(node.lhs, at_s), self._value(node.rhs, at_s), str(node.op)
        if not isinstance(left, dict) and not isinstance(right, dict):
            return _ARITHMETIC[op](left, right)
        if not isinstance(left, dict):
            return {labels: value for labels, one in right.items() if (value := _applied(op, left, one)) is not None}
        if not isinstance(right, dict):
            return {labels: value for labels, one in left.items() if (value := _applied(op, one, right)) is not None}
        matching = node.modifier.matching if node.modifier else None

        def key(labels: Labels) -> Labels:
            return labels if matching is None else _only(labels, set(matching.labels))

        if op == "or":
            have = {key(labels) for labels in left}
            return left | {labels: value for labels, value in right.items() if key(labels) not in have}
        others = {key(labels): value for labels, value in right.items()}
        if op in {"and", "unless"}:
            return {labels: value for labels, value in left.items() if (key(labels) in others) == (op == "and")}
        pairs = (
            (labels, _applied(op, one, others[key(labels)])) for labels, one in left.items() if key(labels) in others
        )
        return {labels: value for labels, value in pairs if value is not None}

    def _vector(self, node: Any, at_s: float) -> Vector:
        found = self._value(node, at_s)
        if not isinstance(found, dict):
            raise TypeError(f"{node} is a scalar")
        return found


def _matches(matcher: Any, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(matcher.name, ""), matcher.value
    match str(matcher.op).rpartition(".")[2]:
        case "Equal":
            return value == wanted
        case "NotEqual":
            return value != wanted
        case "Re":
            return re.fullmatch(wanted, value) is not None
        case "NotRe":
            return re.fullmatch(wanted, value) is None
    raise NotImplementedError(f"{matcher.op}")


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset(one for one in labels if one[0] in names)


def _applied(op: str, left: float, right: float) -> float | None:
    """The result; None: a comparison drops the element."""
    if op in _COMPARED:
        return left if _COMPARED[op](left, right) else None
    return _ARITHMETIC[op](left, right)


def _increase(points: Points) -> float:
    """Of a counter, which starts over where it falls."""
    pairs = itertools.pairwise(points)
    return sum(after if after < before else after - before for (_, before), (_, after) in pairs)


def _quantile(share: float, buckets: Vector) -> Vector:
    """The upper bound of the bucket that holds the quantile."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = dict(labels)["le"]
        rest = frozenset(one for one in labels if one[0] != "le")
        groups.setdefault(rest, []).append((math.inf if bound == "+Inf" else float(bound), count))
    found = {}
    for labels, counts in groups.items():
        ordered = sorted(counts)
        if ordered[-1][1] > 0:
            found[labels] = next(bound for bound, count in ordered if count >= share * ordered[-1][1])
    return found
