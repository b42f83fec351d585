"""Made-up runs of the contest: figures as a test wants them, for what works on outcomes whatever their simulation."""

from collections.abc import Sequence

from shedders.contest.contenders import Contender
from shedders.contest.outcome import (
    ContestRun,
    Measures,
    MoveMade,
    PlotSeries,
    RunOutcome,
    RunResult,
    SourceKind,
    Timing,
    TraceSource,
)

PLAIN = {
    "max_over_mean": 1.05,
    "max_over_mean_worst": 1.2,
    "max_over_bound": 1.04,
    "std": 0.02,
    "bound_over_mean": 1.01,
    "overloaded_broker_s": 0.0,
    "moved_share": 0.2,
    "moved_share_per_h": 0.005,
    "split_share": 0.0,
    "churn_share": 0.2,
    "returned_share_1h": 0.0,
    "returned_share_6h": 0.0,
    "returned_share_24h": 0.0,
    "returned_moves_1h": 0,
    "returned_moves_6h": 0,
    "returned_moves_24h": 0,
    "moves": 12,
    "returns": 0,
    "rounds": 3,
    "rounds_to_settle": 2.0,
    "settle_s": 180.0,
    "splits": 0,
    "unavailable_bundle_s": 1.0,
    "unavailable_share": 0.0,
    "refused_share": 0.0,
    "reconnects": 40,
    "misplaced_bundle_s": 0.0,
}


def contender(name: str = "ours", **more: object) -> Contender:
    """A contender; one of upstream if its name says so."""
    fields = {
        "about": f"about {name}",
        "manager": "extensible",
        "shedding": "transfer",
        "placement": "least-resource-usage",
        "upstream": name.endswith("@upstream"),
        **more,
    }
    return Contender(name, **fields)  # type: ignore[arg-type]


def source(name: str = "calm", **more: object) -> TraceSource:
    return TraceSource(SourceKind.SCENARIO, name, name, "0" * 64, f"about {name}", **more)  # type: ignore[arg-type]


def series(brokers: int, points: int, tilt: float) -> PlotSeries:
    """Loads that come together; the last broker is only there in the second half."""
    names = [f"b{number:03}" for number in range(brokers)]
    loads: dict[str, list[float | None]] = {name: [] for name in names}
    for point in range(points):
        left = 1.0 - point / points
        for number, name in enumerate(names):
            there = number < brokers - 1 or point >= points // 2
            level = 0.5 + tilt * left * (number - brokers / 2) / brokers + 0.01 * ((point * 7 + number * 3) % 5)
            loads[name].append(level if there else None)
    return PlotSeries(
        at_s=[30.0 * point for point in range(points)],
        loads=loads,
        max_over_mean=[1.0 + tilt * (1.0 - point / points) for point in range(points)],
        max_over_bound=[1.0 + tilt * (1.0 - point / points) for point in range(points)],
    )


def outcome(
    run: ContestRun,
    *,
    brokers: int = 4,
    points: int = 60,
    tilt: float = 0.5,
    remarks: Sequence[str] = (),
    **figures: object,
) -> RunOutcome:
    """An outcome with these measures."""
    return RunOutcome(
        scenario=run.source.name,
        seed=run.seed,
        contender=run.contender.name,
        steps=points,
        step_s=30.0,
        measures=Measures(**{**PLAIN, **figures}),  # type: ignore[arg-type]
        moves=[
            MoveMade(at_s=60.0 * n, bundle=f"t/n/0x{n:08x}_0xffffffff", source="b000", destination="b001", share=0.01)
            for n in range(5)
        ],
        series=series(brokers, points, tilt),
        remarks=list(remarks),
        timing=Timing(run_s=1.5, decisions=20, decision_ms_p50=0.5, decision_ms_max=3.0),
    )


def ran(
    name: str = "ours", seed: int = 1, of: TraceSource | None = None, *, who: Contender | None = None, **figures: object
) -> RunResult:
    """A run that went well."""
    run = ContestRun(of or source(), seed, who or contender(name))
    result = outcome(run, **figures)  # type: ignore[arg-type]
    return RunResult(run, result, digest=result.digest())


def failed(name: str, seed: int = 1, error: str = "ValueError: no", of: TraceSource | None = None) -> RunResult:
    return RunResult(ContestRun(of or source(), seed, contender(name)), None, error)


def field_of(seeds: Sequence[int] = (1, 2, 3), of: TraceSource | None = None) -> list[RunResult]:
    """Ours, two of upstream, one that is mended: figures differ by contender and seed."""
    results = []
    for seed in seeds:
        more = 0.001 * seed
        results += [
            ran("ours", seed, of, max_over_mean=1.04 + more, max_over_bound=1.04 + more),
            ran(
                "transfer@upstream",
                seed,
                of,
                max_over_mean=1.3 + more,
                max_over_bound=1.3,
                moved_share=0.1,
                churn_share=0.1,
                returns=2,
            ),
            ran(
                "threshold@upstream",
                seed,
                of,
                max_over_mean=1.2 + more,
                max_over_bound=1.2,
                moved_share=0.6,
                churn_share=0.6,
            ),
            ran("transfer", seed, of, max_over_mean=1.06 + more, max_over_bound=1.06, moved_share=0.3, churn_share=0.3),
        ]
    return results
