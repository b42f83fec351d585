"""The least that any plan copies which brings every goal as far as a given plan; the most even layout: integer programs.

`partition_bounds` looks at one goal after the other and cuts replicas in pieces; here all goals are looked at together and
replicas stay whole. A variable says whether a partition has a replica on a broker at the end, and another whether it leads there:

- replicas go to new brokers only, if the plan is for new ones; each partition keeps its number of replicas, one leads;
- partitions are as well spread over racks as the plan spreads them;
- each cell of each goal (a broker, or a topic on it) lies in its range, or is as near to it as the plan has brought it. A plan
  that leaves other cells as far out, so that the goal stands as well in sum, may copy less: it is not among those looked at.

The most even layout has the least fullest disk of all that spread each partition over racks as well as can be.

What a solver could not end within its time is still a bound: it then is what the solver has proven.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import highspy
import numpy as np

from loaddata.samples.partitions import ClusterLayout, PartitionLoads
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest
from tests.twin import partition_measures as measures
from tests.twin.partition_state import Key, State, allowed_brokers, free, state_of

TOLERANCE = 1e-6
"""Of a row, to its largest value: what the solver takes for kept."""
GAP = 0.005
Row = dict[int, float]


@dataclass(slots=True)
class Program:
    """Columns are numbers from 0, whole unless said otherwise; each row has a least and a greatest value."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[Row, float, float]] = field(default_factory=list)

    def column(self, cost: float = 0.0, upper: float = 1.0, *, whole: bool = True) -> int:
        self.costs.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, values: Mapping[int, float], low: float, high: float) -> None:
        """Scaled, so that bytes and replicas are alike to the solver."""
        entries = {column: value for column, value in values.items() if value}
        if entries:
            scale = max(abs(value) for value in entries.values())
            self.rows.append(({c: v / scale for c, v in entries.items()}, low / scale, high / scale))

    def least(self, time_limit_s: float) -> float:
        """What is proven of the least cost."""
        return max(0.0, float(self.solved(time_limit_s).getInfo().mip_dual_bound))

    def solved(self, time_limit_s: float, gap: float = GAP) -> highspy.Highs:
        """The solver, at its end.

        Args:
            gap: Between the solution and what is proven, in parts of it.
        """
        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 1),
            ("time_limit", time_limit_s),
            ("mip_rel_gap", gap),
            ("primal_feasibility_tolerance", TOLERANCE),
            ("mip_feasibility_tolerance", TOLERANCE),
        ):
            solver.setOptionValue(name, value)
        solver.passModel(self._model())
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            # What is held against it is a solution, so this is a bug of the program.
            raise AssertionError("no plan reaches what the plan has reached")
        return solver

    def _model(self) -> highspy.HighsLp:
        model = highspy.HighsLp()
        count = len(self.costs)
        model.num_col_, model.num_row_ = count, len(self.rows)
        model.col_cost_ = np.array(self.costs)
        model.col_lower_, model.col_upper_ = np.zeros(count), np.array(self.upper)
        model.row_lower_ = np.array([low - TOLERANCE for _, low, _ in self.rows])
        model.row_upper_ = np.array([high + TOLERANCE for _, _, high in self.rows])
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        model.integrality_ = [kinds[whole] for whole in self.whole]
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *(len(row) for row, _, _ in self.rows)])
        model.a_matrix_.index_ = np.array([column for row, _, _ in self.rows for column in row])
        model.a_matrix_.value_ = np.array([value for row, _, _ in self.rows for value in row.values()])
        return model


def least_copied(
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
    after: State,
    shares: Mapping[str, float],
    *,
    time_limit_s: float = 20.0,
) -> int:
    """Bytes that no plan for new brokers stays below if it is as good as this one.

    Args:
        layout: The cluster before.
        loads: Of its partitions.
        request: For new brokers, or a rebalance.
        after: Where the plan has brought it.
        shares: Range of each goal that counts.
        time_limit_s: For the solver.
    """
    program, before = Program(), state_of(layout)
    may, new = free(layout, request), set(allowed_brokers(layout, request))
    if request.mode is PlanMode.ADD_BROKERS:
        new &= set(request.subjects)
    on: dict[Key, dict[int, int]] = {}
    leads: dict[Key, dict[int, int]] = {}
    unit = max(1, sum(measures.size_of(loads, key, request) * len(before[key][0]) for key in may)) / 1e6
    for key in sorted(may):
        size = measures.size_of(loads, key, request)
        replicas = before[key][0]
        on[key] = {one: program.column() for one in replicas}
        on[key] |= {one: program.column(size / unit) for one in sorted(new - set(replicas))}
        leads[key] = {one: program.column() for one in on[key]}
        program.row(dict.fromkeys(on[key].values(), 1), len(replicas), len(replicas))
        program.row(dict.fromkeys(leads[key].values(), 1), 1, 1)
        for one, column in leads[key].items():
            program.row({column: 1, on[key][one]: -1}, -1, 0)
    _keep_racks(program, layout, request, after, on)
    for goal, share in shares.items():
        if goal in measures.MEASURED and goal not in measures.BY_PARTITION:
            _keep_cells(program, goal, share, layout, loads, request, after, on, leads)
    return int(program.least(time_limit_s) * unit * (1 - TOLERANCE))


def most_even(
    layout: ClusterLayout, loads: PartitionLoads, request: PlanRequest, *, time_limit_s: float = 20.0
) -> float:
    """Bytes that the fullest disk has in every layout with as few replicas of a partition in one rack as can be.

    Args:
        layout: The cluster before, of which everything may move.
        loads: Of its partitions.
        request: A rebalance.
        time_limit_s: For the solver.
    """
    program, rack_of = Program(), measures.racks_of(layout)
    brokers = allowed_brokers(layout, request)
    whole = sum(measures.size_of(loads, key, request) * len(held) for key, (held, _) in state_of(layout).items())
    fullest = program.column(cost=1_000.0, upper=float("inf"), whole=False)  # in means
    disks: dict[int, Row] = {one: {fullest: -whole / len(brokers)} for one in brokers}
    for key, (replicas, _) in sorted(state_of(layout).items()):
        on = {one: program.column() for one in brokers}
        program.row(dict.fromkeys(on.values(), 1), len(replicas), len(replicas))
        most = measures.most_in_rack(len(replicas), layout, request)
        for rack in sorted({rack_of[one] for one in brokers}):
            program.row({on[one]: 1 for one in brokers if rack_of[one] == rack}, 0, most)
        for one in brokers:
            disks[one][on[one]] = measures.size_of(loads, key, request)
    for row in disks.values():
        program.row(row, -float("inf"), 0)
    return program.least(time_limit_s) / 1_000 * whole / len(brokers)


def _keep_racks(
    program: Program, layout: ClusterLayout, request: PlanRequest, after: State, on: Mapping[Key, Mapping[int, int]]
) -> None:
    """No partition has more replicas beyond what has to share a rack than the plan leaves it with."""
    before, rack_of = state_of(layout), measures.racks_of(layout)
    for key, columns in on.items():
        replicas = before[key][0]
        most = measures.most_in_rack(len(replicas), layout, request)
        beyond = {}
        for rack in sorted({rack_of[one] for one in columns}):
            mine = {column: 1.0 for one, column in columns.items() if rack_of[one] == rack}
            if len(mine) > most:
                more = program.column(upper=len(mine))
                beyond[more] = 1.0
                program.row(mine | {more: -1.0}, 0, most)
        program.row(beyond, 0, measures.rack_excess(after[key][0], layout, request))


def _keep_cells(
    program: Program,
    goal: str,
    share: float,
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
    after: State,
    on: Mapping[Key, Mapping[int, int]],
    leads: Mapping[Key, Mapping[int, int]],
) -> None:
    before = state_of(layout)
    reached = measures.cells(goal, after, layout, loads, request)
    within = measures.ranges(goal, layout, loads, request, share)
    fixed = {key: state for key, state in before.items() if key not in on}
    still = measures.cells(goal, fixed, layout, loads, request)
    rows: dict[Hashable, Row] = {cell: {} for cell in reached}
    for key, columns in on.items():
        load, replicas = measures.load_of(loads, key, request.completeness_min), len(before[key][0])
        follows = measures.weight(goal, load, replicas, leads=False)
        more = measures.weight(goal, load, replicas, leads=True) - follows
        for one in columns:
            cell = (key[0] if goal in measures.BY_TOPIC else "", one)
            if cell in rows:
                rows[cell][columns[one]] = follows
                rows[cell][leads[key][one]] = more
    for cell, row in rows.items():
        low, high = within[cell]
        program.row(row, min(low, reached[cell]) - still[cell], max(high, reached[cell]) - still[cell])
