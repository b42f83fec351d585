"""A drain, and its dry run, say when they fill a broker over its capacity."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loaddata.model.broker_load import BrokerLoad
from shedders.cli.drain import command
from shedders.cli.drain.command import DrainForecast, forecast, overfull
from shedders.cli.drain.follower import DrainRequest, DrainResult
from shedders.model.cluster import Cluster, Policies
from statechannel.cli.kit.output import Output
from tests.support import loads
from tests.support.drains import pipeline


def uneven(b1: float, b2: float, b3: float, *, policies: Policies | None = None) -> Cluster:
    """Three brokers by their use of CPU; that of b3 comes from four equal bundles."""
    bundles = [loads.bundle(number, "b3", bytes_per_s=1e6) for number in range(4)]
    brokers = [loads.broker("b1", b1), loads.broker("b2", b2), loads.broker("b3", b3, bytes_per_s=4e6)]
    return loads.cluster(brokers, bundles, policies=policies)


@pytest.mark.parametrize(
    ("shares", "full"),
    [
        ((0.3, 0.3, 0.6), []),
        ((0.9, 0.3, 0.4), []),  # all go to b2
        ((0.8, 0.8, 0.8), ["b1", "b2"]),
        ((1.2, 0.1, 0.2), []),  # b1 is full already, and gets nothing
    ],
)
def test_the_load_goes_with_the_bundles(shares: tuple[float, float, float], full: list[str]) -> None:
    cluster = uneven(*shares)
    expected = forecast(cluster, pipeline(), "b3", sorted(cluster.bundles))
    assert list(expected.overfull) == full
    assert expected.stays == {}
    assert all(share == pytest.approx(1.2, abs=0.01) for share in expected.overfull.values())


def test_bundles_that_stay_fill_nobody() -> None:
    cluster = uneven(0.9, 0.9, 0.8, policies=Policies(cordons={"b1": "disks", "b2": "disks"}))
    expected = forecast(cluster, pipeline(), "b3", sorted(cluster.bundles))
    assert expected.overfull == {}
    assert expected.stays.keys() == cluster.bundles.keys()
    assert forecast(cluster, pipeline(), "b3", []) == DrainForecast()


def test_the_dry_run_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    live = SimpleNamespace(live=lambda: [SimpleNamespace(name="t/n/x", owner="b3")])
    monkeypatch.setattr(command, "read_channel", lambda _: live)
    monkeypatch.setattr(command, "_expected", lambda *_: DrainForecast({}, {"b1": 1.126}))
    alive = {name: SimpleNamespace(accepting=True) for name in ("b1", "b3")}
    connection, registry = cast("Any", (None, SimpleNamespace(members=SimpleNamespace(alive=alive))))
    effect = command.effect_of(connection, registry, "b3", force=False)
    assert effect.sentences[-1] == "over capacity after that: b1 at 112.6%; start another broker first"
    assert effect.facts["overfull"] == {"b1": 1.126}


def test_the_drain_itself_names_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = uneven(1.126, 0.4, 0.0)
    brokers = {
        name: replace(cluster.brokers[name], load=BrokerLoad(max_resource_usage=share))
        for name, share in (("b1", 1.126), ("b2", 0.4), ("b3", 1.3))
    }
    full = overfull(replace(cluster, brokers=brokers), ["b1", "b2", "gone"])
    assert full == {"b1": 1.126}
    facts = {"moved": 3, "left": [], "left_count": 0, "earlier_known": True, "reports_in_vain": 0, "leads": False}
    drained = DrainResult(DrainRequest("b3", "op"), facts, "b1", "drained")
    command._report(drained, Output.TABLE, full)
    assert "over capacity, by the newest load reports: b1 at 112.6%; start another broker" in capsys.readouterr().err
