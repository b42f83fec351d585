"""`shed plan`, `place plan`, `split plan`, `snapshot`, `strategy`: what they print, and how they end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydantic import TypeAdapter

from shedders.conformance.checker import conform
from shedders.model.cluster import IsolationPolicy, Policies
from shedders.model.strategy import SHEDDING
from shedders.snapshots.cluster import snapshot_of
from shedders.snapshots.file import write_snapshot
from shedders.snapshots.plan_document import PlanDocument
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import parse_key, topic_hash
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared, install

SHAPE = Shape(brokers=6, bundles_each=12, hot=2, idle=1, topics_each=3)
Run = Callable[..., Result]
SHEDDERS = sorted(declared()[SHEDDING])
COMMANDS = [*((what, "plan", "--snapshot") for what in ("shed", "place", "split")), ("snapshot", "check")]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Our strategies and commands, and a snapshot in the current folder."""
    install(monkeypatch, shedding={"broken": "no.such.module:X", "raising": "tests.cli.raising_strategy:Raising"})
    write_snapshot(snapshot_of(cluster(7, SHAPE)), Path("s.json"))


def changed(**fields: Any) -> str:
    """The path of the snapshot with some of its fields changed by hand."""
    loaded = json.loads(Path("s.json").read_text())
    Path("changed.json").write_text(json.dumps(loaded | fields))
    return "changed.json"


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "\nhint: " in result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


# --- shed plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_shed_plan_of_every_strategy(strategy: str, run: Run) -> None:
    result = run("shed", "plan", "--strategy", strategy, "--snapshot", "s.json", "--cycles", 12, "--output", "json")
    assert result.exit_code == 0, result.stderr
    document = TypeAdapter(PlanDocument).validate_json(result.stdout)
    assert document.kind == "shed-plan"
    assert [cycle.cycle for cycle in document.cycles] == list(range(1, 13))
    assert any(cycle.moves for cycle in document.cycles)
    expected = run("shed", "plan", "-s", strategy, "--snapshot", "s.json", "--cycles", 12, "--output", "json").stdout
    assert result.stdout == expected


def test_shed_plan_has_the_distance_to_the_best(run: Run) -> None:
    asked = ("shed", "plan", "--strategy", "uniform", "--snapshot", "s.json")
    document = TypeAdapter(PlanDocument).validate_json(run(*asked, "--output", "json").stdout)
    assert document.kind == "shed-plan"
    distance = document.cycles[0].distance
    assert distance.any_load_bound <= distance.bound <= distance.largest_use
    assert distance.load_moved > 0
    assert distance.sentence in " ".join(run(*asked).stdout.split())


def test_shed_plan_as_a_table(run: Run) -> None:
    result = run("shed", "plan", "--strategy", "uniform", "--snapshot", "s.json", "--set", "max_bundles_per_cycle=1")
    lines = result.stdout.splitlines()
    assert "2023-11-14 22:13:20.000Z: Success, Overloaded" in lines[0]
    assert lines[1].split()[:3] == ["bundle", "from", "to"]
    assert lines[2].split()[1] == "b0:8080"
    assert "left alone" in run("shed", "plan", "--strategy", "threshold", "--snapshot", "s.json").stdout


def test_everything_that_is_left_alone_is_shown_if_wanted(run: Run) -> None:
    shown = run("shed", "plan", "-s", "threshold", "--snapshot", "s.json", "--left").stdout
    for broker in ("b2:8080", "b3:8080", "b4:8080"):
        assert f"\n{broker} " in shown


def test_the_snapshot_afterwards_goes_on_where_it_ended(run: Run) -> None:
    """Six cycles at once are three and three on the file that they left."""
    plan = ("shed", "plan", "-s", "transfer", "--output", "json", "--snapshot")
    at_once = json.loads(run(*plan, "s.json", "--cycles", 6).stdout)["cycles"]
    first = run(*plan, "s.json", "--cycles", 3, "--after", "next.json")
    assert "the snapshot after 3 cycles is in next.json" in first.stderr
    then = json.loads(run(*plan, "next.json", "--cycles", 3).stdout)["cycles"]
    both = [*json.loads(first.stdout)["cycles"], *then]
    assert [item | {"cycle": 0} for item in both] == [item | {"cycle": 0} for item in at_once]
    assert any(item["moves"] for item in then)


def test_profile_and_settings_are_told(run: Run) -> None:
    result = run(
        "shed", "plan", "--snapshot", "s.json", "--profile", "production", "--output", "json",
        "--set", "grace_s=5", "--set", "filters.max_topics=9", "--set", "placement.overloaded_percent=70",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert (document["strategy"], document["placement"]) == ("uniform", "least-long-term-rate")
    assert document["profile"] == "production"
    assert (document["settings"]["grace_s"], document["settings"]["max_bundles_per_cycle"]) == (5, 5)
    assert document["filters"]["max_topics"] == 9


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--snapshot", "none.json"), 7, ("none.json: it cannot be read: No such file",)),
        (
            ("--snapshot", "s.json", "-s", "treshold"),
            8,
            ("unknown shedding strategy `treshold`", "did you mean threshold?"),
        ),
        (("--snapshot", "s.json", "-s", "broken"), 1, ("`broken` cannot be imported: ModuleNotFoundError",)),
        (("--snapshot", "s.json", "-s", "raising"), 1, ("`raising` fails: ZeroDivisionError('oh')",)),
        (("--snapshot", "s.json", "--placement", "x"), 8, ("unknown placement strategy `x`",)),
        (("--snapshot", "s.json", "--profile", "x"), 8, ("unknown profile `x`", "production")),
        (("--snapshot", "s.json", "--set", "x=1"), 8, ("shedding.weighted-move has no setting `x`", "gap_percent")),
        (("--snapshot", "s.json", "--set", "x"), 8, ("--set x: not of the form name=value",)),
        (("--snapshot", "s.json", "--set", "filters.x=1"), 8, ("filters has no setting `x`",)),
        (("--snapshot", "s.json", "--cycles", "0"), 2, ("--cycles 0: too small",)),
        (("--snapshot", "s.json", "--after", "no/such/folder.json"), 7, ("it cannot be written",)),
        (("--snapshot", "s.json", "--strategy", ""), 8, ("unknown shedding strategy ``",)),
        (("--snapshot", "s.json", "--placement", ""), 8, ("unknown placement strategy ``",)),
        (("--snapshot", "s.json", "--profile", ""), 8, ("unknown profile ``",)),
        (("--snapshot", "s.json", "--set", "splitting.max_topics=1"), 8, ("does not use settings of splitting",)),
        ((), 2, ("Missing option '--snapshot'",)),
    ],
)
def test_what_cannot_be_planned(args: tuple[str, ...], code: int, words: tuple[str, ...], run: Run) -> None:
    result = run("shed", "plan", *args, "--output", "json")
    assert result.exit_code == code
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_snapshot_is_refused_by_every_command(command: tuple[str, ...], run: Run) -> None:
    path = changed(bundles={"t/n/0x00000000_0xffffffff": {"owner": "b9"}})
    refused(
        run(*command, path), ExitCode.BAD_EXPORT, ".owner: b9 is neither in brokers nor in gone", "design/snapshot.md"
    )


# --- place plan -------------------------------------------------------------------------------------------------------


def test_place_plan_places_what_nobody_serves(run: Run) -> None:
    base = cluster(7, SHAPE)
    names = sorted(base.bundles)[:4]
    base = replace(base, bundles={**base.bundles, **{name: replace(base.bundles[name], owner=None) for name in names}})
    write_snapshot(snapshot_of(base), Path("open.json"))
    document = json.loads(run("place", "plan", "--snapshot", "open.json", "--output", "json").stdout)
    assert TypeAdapter(PlanDocument).validate_python(document).kind == "place-plan"
    assert [item["bundle"] for item in document["placed"]] == names
    assert all(item["broker"] in base.brokers and item["broker"] in item["best"] for item in document["placed"])
    table = run("place", "plan", "--snapshot", "open.json").stdout
    assert all(name in table for name in names)


def test_place_plan_says_which_filter_removed_whom(run: Run) -> None:
    base = cluster(7, SHAPE)
    name = min(base.bundles)
    policies = Policies((IsolationPolicy("gold", (".*",), ("b[0-2]",)),), cordons={"b1:8080": "to be replaced"})
    write_snapshot(snapshot_of(replace(base, policies=policies)), Path("fenced.json"))
    (placed,) = json.loads(run("place", "plan", name, "--snapshot", "fenced.json", "--output", "json").stdout)["placed"]
    assert placed["broker"] in ("b0:8080", "b2:8080")
    assert {broker: what for broker, (what, _) in placed["removed"].items()} == {
        "b1:8080": "cordon", "b3:8080": "isolation", "b4:8080": "isolation", "b5:8080": "isolation",
    }  # fmt: skip
    shown = run("place", "plan", name, "--snapshot", "fenced.json", "--removed").stdout
    assert "1 by cordon, 3 by isolation" in shown
    assert "to be replaced" in shown


def test_plans_take_a_topic_for_its_bundle(run: Run) -> None:
    bundle = min(snapshot_of(cluster(7, SHAPE)).bundles)
    place = parse_key(bundle.encode())
    names = (f"{place.namespace}/topic-{number}" for number in range(1_000_000))
    topic = next(name for name in names if place.contains(topic_hash(f"persistent://{name}")))
    result = run("place", "plan", topic, "--snapshot", "s.json", "--output", "json")
    assert [placed["bundle"] for placed in json.loads(result.stdout)["placed"]] == [bundle]
    assert result.stderr.splitlines()[0] == f"{topic} is in {bundle}"
    refused(
        run("place", "plan", "no/where/topic", "--snapshot", "s.json"),
        ExitCode.NOT_FOUND,
        "no bundle of the snapshot holds",
    )


def test_place_plan_of_a_bundle_that_is_not_there(run: Run) -> None:
    refused(
        run("place", "plan", "t/n/0x0_0x1", "--snapshot", "s.json"), ExitCode.NOT_FOUND, "not a bundle of the snapshot"
    )


def test_place_plan_takes_settings_of_the_placement(run: Run) -> None:
    name = min(cluster(7, SHAPE).bundles)
    plan = ("place", "plan", name, "--snapshot", "s.json", "-s", "least-resource-usage", "--output", "json")
    document = json.loads(run(*plan, "--set", "difference_percent=99", "--set", "filters.max_topics=5").stdout)
    assert document["settings"]["difference_percent"] == 99
    assert document["filters"]["max_topics"] == 5


# --- split plan -------------------------------------------------------------------------------------------------------


def test_split_plan_carries_hits_on(run: Run) -> None:
    plan = ("split", "plan", "--snapshot", "s.json", "--set", "splitting.max_topics=2", "--output", "json")
    document = json.loads(run(*plan, "--cycles", 9).stdout)
    assert TypeAdapter(PlanDocument).validate_python(document).kind == "split-plan"
    splits = [sum(bool(split["positions"]) for split in cycle["splits"]) for cycle in document["cycles"]]
    assert splits == [*[0] * 8, 10]
    cut = document["cycles"][8]["splits"][0]
    assert (cut["reason"], len(cut["children"])) == ("Topics", 2)
    assert json.loads(run(*plan, "--set", "splitting.hit_threshold=0").stdout)["cycles"][0]["splits"][0]["positions"]


def test_split_plan_of_a_bundle_by_name(run: Run) -> None:
    name = min(cluster(7, SHAPE).bundles)
    by = ("--algorithm", "specified_positions_divide", "--set", "positions=[100]")
    result = run("split", "plan", name, "--snapshot", "s.json", *by)
    assert result.exit_code == 0, result.stderr
    assert f"{name}  0x00000064  Admin" in result.stdout


def test_split_plan_says_where_no_topics_are_known(run: Run) -> None:
    name = min(cluster(7, SHAPE).bundles)
    bundles = json.loads(Path("s.json").read_text())["bundles"]
    bare = changed(bundles={item: {**fields, "topics": []} for item, fields in bundles.items()})
    plan = ("split", "plan", name, "--algorithm", "topic_count_equally_divide", "--snapshot")
    said = "no topics of these bundles are known here; topic-count-equally-divide finds no split point in 1 bundle"
    result = run(*plan, bare)
    assert result.exit_code == 0, result.stderr
    assert said in result.stderr.replace("\n", " ")
    assert "topic-count-equally-divide finds no place, 0 of " in result.stdout
    assert [remark for remark in json.loads(run(*plan, bare, "--output", "json").stdout)["remarks"] if said in remark]
    assert "no topic of any bundle" not in run(*plan, "s.json").stderr
    halves = run("split", "plan", name, "--algorithm", "range_equally_divide", "--snapshot", bare)
    assert "no topic of any bundle" not in halves.stderr, "it needs none"


@pytest.mark.parametrize("option", [("--cycles", 3), ("--every", 5), ("--set", "splitting.max_topics=5")])
def test_no_option_of_split_plan_is_lost_in_silence(option: tuple[Any, ...], run: Run) -> None:
    """A named bundle is cut once, whether it should be split or not."""
    name = min(cluster(7, SHAPE).bundles)
    result = run("split", "plan", name, "--snapshot", "s.json", *option)
    refused(result, ExitCode.USAGE, f"{option[0]}", "has no effect if bundles are named")
    assert run("split", "plan", "--snapshot", "s.json", *option).exit_code == 0


def test_split_is_still_the_command_that_asks_the_brokers(run: Run) -> None:
    helped = run("split", "--help").stdout
    assert "Split a bundle in one record" in helped
    assert "--at" in helped
    assert "split plan" in helped
    result = run("split", "tenant/ns/0x00000000_0x80000000", "--at", "0x1", "--parts", "2")
    refused(result, ExitCode.USAGE, "--at and --parts exclude each other")
    assert "--algorithm" in run("split", "plan", "--help").stdout
    assert "Split a bundle; `split plan`" in run("--help").stdout


# --- snapshot ---------------------------------------------------------------------------------------------------------


def test_snapshot_check(run: Run) -> None:
    assert "6 brokers, 72 bundles, 4 namespaces, 216 topics" in run("snapshot", "check", "s.json").stdout
    brokers = {**json.loads(Path("s.json").read_text())["brokers"], "bx": {}}
    odd = run("snapshot", "check", changed(gone=["b9:8080"], brokers=brokers))
    assert odd.stderr == "note: broker bx has no load report\n"
    document = json.loads(run("snapshot", "check", "s.json", "--output", "json").stdout)
    assert (document["brokers"], document["strategies"]["shedding"], document["remarks"]) == (6, "weighted-move", [])


def test_snapshot_check_names_policies_that_cannot_be_kept_together(run: Run) -> None:
    policies = {
        "isolation": [{"name": "gold", "namespaces": ["tenant/ns-0"], "primary": ["b1"]}],
        "pins": {"tenant/ns-0": "b2:8080"},
    }
    result = run("snapshot", "check", changed(policies=policies))
    refused(result, ExitCode.BAD_EXPORT, "policies: nobody: ", "pin tenant/ns-0 -> b2:8080", "isolation gold")
    planned = run("shed", "plan", "-s", "threshold", "--snapshot", "changed.json")
    assert planned.exit_code == 0
    assert "note: nobody: no broker may take" in planned.stderr


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"profile": "x"}, "unknown profile `x`"),
        ({"strategies": {"shedding": "x"}}, "unknown shedding strategy `x`"),
        ({"settings": {"shedding": {"uniform": {"x": 1}}}}, "shedding.uniform has no setting `x`"),
        ({"settings": {"parts": {"filters": {"max_topics": 0}}}}, "filters.max_topics: input should be greater"),
        ({"settings": {"parts": {"x": {}}}}, "settings.parts: x: unknown part"),
    ],
)
def test_snapshot_check_tries_strategies_and_settings(fields: dict[str, Any], words: str, run: Run) -> None:
    result = run("snapshot", "check", changed(**fields))
    assert result.exit_code in (ExitCode.BAD_SETTINGS, ExitCode.BAD_EXPORT)
    assert words in result.stderr


@pytest.mark.parametrize("document", ["snapshot", "plan"])
def test_snapshot_schema(document: str, run: Run) -> None:
    schema = json.loads(run("snapshot", "schema", document).stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"].lower() == document


# --- strategy ---------------------------------------------------------------------------------------------------------


def test_strategy_list(run: Run) -> None:
    shown = run("strategy", "list").stdout
    for name in (*SHEDDERS, "round-robin", "flow-or-qps-equally-divide", "upstream-defaults", "production"):
        assert f" {name} " in shown or f"\n{name} " in shown
    assert "unusable: shedding strategy `broken` cannot be imported" in shown
    document = json.loads(run("strategy", "list", "--output", "json").stdout)
    assert {strategy["kind"] for strategy in document["strategies"]} == {"shedding", "placement", "split"}
    assert {"default", "upstream-defaults", "upstream-extensible", "production"} <= {
        profile["name"] for profile in document["profiles"]
    }


def test_strategy_show(run: Run) -> None:
    shown = run("strategy", "show", "threshold").stdout
    assert shown.startswith("threshold (shedding)\nKeeps brokers within a threshold")
    assert "threshold_percent" in shown
    assert "loadBalancerBrokerThresholdShedderPercentage" in shown
    both = run("strategy", "show", "avg").stdout
    assert both.startswith("avg (shedding, placement)\n")
    document = json.loads(run("strategy", "show", "uniform", "--output", "json").stdout)
    assert document["settings"]["properties"]["max_unload_share"]["default"] == 0.2
    refused(run("strategy", "show", "x"), ExitCode.BAD_SETTINGS, "unknown strategy `x`", "Known strategies: avg")
    refused(run("strategy", "show", "uniform", "--kind", "x"), ExitCode.BAD_SETTINGS, "placement")


def test_strategy_check(run: Run) -> None:
    kept = run("strategy", "check", "range-equally-divide")
    assert kept.exit_code == 0
    assert kept.stdout.splitlines()[-1] == "all 6 rules passed"
    document = json.loads(run("strategy", "check", "range-equally-divide", "--output", "json").stdout)
    assert document["passed"]
    assert [finding["rule"] for finding in document["findings"]] == [
        *(finding.rule for finding in conform("split", "range-equally-divide", hashes=False)),
        "its answers do not depend on the hash seed",
    ]
    failed = run("strategy", "check", "raising", "--output", "json")
    assert failed.exit_code == ExitCode.FAILED
    assert not json.loads(failed.stdout)["passed"]
    assert "raises ZeroDivisionError('oh')" in failed.stdout


def test_what_a_snapshot_says_does_not_steer_the_terminal(run: Run) -> None:
    path = changed(safe="\x1b[31mred")
    assert "\x1b" not in run("shed", "plan", "--snapshot", path).stdout
    bad = changed(brokers={"\x1b[31m": {"x": 1}})
    assert "\x1b" not in run("shed", "plan", "--snapshot", bad).stderr
