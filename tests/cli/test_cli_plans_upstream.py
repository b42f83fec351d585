"""`shed plan`, `place plan` and `split plan` under the profiles of upstream, and what splits remember in a snapshot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.snapshots.cluster import snapshot_of
from shedders.snapshots.file import write_snapshot
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import install

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Our strategies and commands, and a snapshot in the current folder."""
    install(monkeypatch)
    write_snapshot(
        snapshot_of(cluster(7, Shape(brokers=6, bundles_each=12, hot=2, idle=1, topics_each=3))), Path("s.json")
    )


def test_a_strategy_beside_an_upstream_profile_runs_its_own_way_and_says_so(run: Run) -> None:
    asked = ("shed", "plan", "--snapshot", "s.json", "--profile", "upstream-defaults")
    said = (
        "shedding strategy overload does not run as in Pulsar: profile upstream-defaults has settings of threshold only"
    )
    assert said in run(*asked, "--strategy", "overload").stderr
    document = json.loads(run(*asked, "--strategy", "overload", "--output", "json").stdout)
    expected = (False, document["remarks"][-1:])
    assert (document["settings"]["upstream"], [remark for remark in document["remarks"] if said in remark]) == expected
    for right in (asked, (*asked, "--strategy", "overload", "--set", "upstream=true")):
        assert "its own way" not in run(*right).stderr
    placing = ("place", "plan", "--snapshot", "s.json", "--profile", "upstream-extensible", "--strategy", "avg")
    assert "placement strategy avg does not run as in Pulsar" in run(*placing).stderr
    cutting = ("split", "plan", "--snapshot", "s.json", "--profile", "upstream-extensible", "--algorithm")
    assert "split strategy topic-count-equally-divide" in run(*cutting, "topic-count-equally-divide").stderr


@pytest.mark.parametrize(
    ("memory", "cut"),
    [
        ({"parts": {"splitting": {"hits": {"t/n/0x00000000_0xffffffff": 8}}}}, True),
        ({"split": {"range-equally-divide": {"hits": {"t/n/0x00000000_0xffffffff": 8}}}}, True),
        # The one that a plan itself writes stands over the other.
        (
            {"parts": {"splitting": {}}, "split": {"range-equally-divide": {"hits": {"t/n/0x00000000_0xffffffff": 8}}}},
            False,
        ),
        ({"split": {"topic-count-equally-divide": {"hits": {"t/n/0x00000000_0xffffffff": 8}}}}, False),
    ],
)
def test_what_splits_remember_is_read_of_the_part_else_of_the_algorithm(memory: dict[str, Any], cut: bool, run: Run):
    whole = {"owner": "a", "stats": {"topics": 2000}}
    Path("hot.json").write_text(
        json.dumps(
            {
                "kind": "statechannel-snapshot",
                "format": 1,
                "brokers": {"a": {}},
                "bundles": {"t/n/0x00000000_0xffffffff": whole},
                "memory": memory,
            }
        )
    )
    result = run("split", "plan", "--snapshot", "hot.json", "--output", "json")
    assert result.exit_code == 0, result.stderr
    (cycle,) = json.loads(result.stdout)["cycles"][0]["splits"]
    assert bool(cycle["positions"]) is cut
