"""The figures of the documentation are those that were measured: kept by lane, rounded, each with its command."""

from pathlib import Path

from tests.bench import kept
from tests.bench.measure import Figure


def test_a_lane_takes_the_place_of_itself_alone(tmp_path: Path):
    path = tmp_path / "figures.json"
    kept.keep("storm", [Figure("storm.64", 99.0, "ms")], path)
    kept.keep("replay", [Figure("replay.bare", 1_234_567.8, "records/s", aim="-", load="1 -> 2")], path)
    kept.keep("storm", [Figure("storm.64", 12.345, "ms", ratio=2.468), Figure("storm.256", 3.0, "x", 3.0)], path)
    assert list(kept.rows(path)) == [
        ("`replay.bare`", "1,235,000 records/s", "-", "1 -> 2", "`make bench ARGS=replay`"),
        ("`storm.64`", "12.3 ms, 2.47x", "", "", "`make bench ARGS=storm`"),
        ("`storm.256`", "3 x", "", "", ""),
    ]


def test_many_rounds_are_not_kept(tmp_path: Path):
    path = tmp_path / "figures.json"
    kept.keep("x", [Figure("few", 1, "ms", rounds=[1.23456] * 3), Figure("many", 1, "ms", rounds=[1.0] * 200)], path)
    assert '"rounds": [\n     1.235,' in path.read_text()
    assert path.read_text().count("rounds") == 1


def test_every_kept_lane_is_one_of_the_benchmarks():
    from tests.bench.__main__ import LANES, NAMED  # noqa: PLC0415 - a program

    commands = [row[4] for row in kept.rows() if row[4]]
    assert {command.removeprefix("`make bench ARGS=").removesuffix("`") for command in commands} <= {*LANES, *NAMED}
