"""Fixtures for every test: a real Kafka, and what the summary says about it."""

import gc
import logging
import os
import re
import secrets
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Many tests put something else in the place of a part of the core, which compiled code would not notice. Those of the
# accelerator, `tests/unit/core/test_accelerator.py`, switch it on.
os.environ.setdefault("STATECHANNEL_ACCELERATOR", "off")

from statechannel.embedded import KafkaServer
from tests.support.judged_logs import judge_logs
from tests.support.kafka_lanes import Kafka, ask_patiently, embedded_options, serve_first, shared_kafka
from tests.support.lanes import FAST, LANES, LaneRecord, is_without, lanes_of, shorten
from tests.support.order import GroupScheduling, ordered

# The suite decides whether a change may land, so it tries the same examples each time; `make explore` looks for new ones.
# A machine that is slow for a moment is no finding.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("explore"), derandomize=True)
settings.load_profile("suite")

# A shell that begins the tests in the background has them, and all that they start, ignore Ctrl-C, which many are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).parent
_LANE = "kafka-lane"
_lane_of_this_process = pytest.StashKey[str]()
_JUDGED = "judged-logs"
_judged = pytest.StashKey[Counter[str]]()
_COLLECTED = "collected"
_record = pytest.StashKey[LaneRecord]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", action="append", default=[], choices=LANES, help="run tests of this lane (repeatable)")
    parser.addoption("--lane-record", type=Path, help="folder in which the run notes what it collected and ran")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("lane_record")
    if folder is not None and not hasattr(config, "workerinput"):
        config.stash[_record] = LaneRecord(folder, config.getoption("lane"))
        config.pluginmanager.register(config.stash[_record])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is collected stays: to look for garbage among it time and again takes as long as the collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A lane alone reads no folder that has none of its tests."""
    if not collection_path.is_dir() or not collection_path.is_relative_to(_HERE):
        return None
    folder = f"{collection_path.relative_to(_HERE.parent).as_posix()}/"
    return True if is_without(folder, config.getoption("lane")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests of the chosen lanes; where several workers run, long ones first."""
    collected = {item.nodeid: lanes_of(item) for item in items}
    if _record in config.stash:
        config.stash[_record].collected = collected
    if hasattr(config, "workeroutput"):
        config.workeroutput[_COLLECTED] = collected
    lanes = config.getoption("lane")
    if lanes:
        left_out = [item for item in items if not set(lanes) & set(collected[item.nodeid])]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if set(lanes) & set(collected[item.nodeid])]
    if lanes == [FAST]:
        shorten(items)
    if hasattr(config, "workerinput"):
        items[:] = ordered(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Whatever `--dist` says: files stay together."""
    return GroupScheduling(config, log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Kafka]:
    """A Kafka that all tests of the run share, those of other workers too; use `topic_prefix` to stay apart.

    It comes from STATECHANNEL_TEST_BOOTSTRAP, else the embedded broker, else a container. Without
    any of them the tests that want it fail.
    """
    folder = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):
        folder = folder.parent
    with shared_kafka(folder / "kafka", lambda used: _judge_logs(pytestconfig, used.bootstrap_servers)) as found:
        pytestconfig.stash[_lane_of_this_process] = found.lane
        yield found


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """What a test sends to its own standard error must not go there in the next: it is closed by then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _judge_logs(config: pytest.Config, bootstrap_servers: str) -> None:
    """Compare what both implementations of the rules say of the logs that tests have left behind."""
    judged = config.stash.setdefault(_judged, Counter())
    judged.update(judge_logs(bootstrap_servers))
    if hasattr(config, "workeroutput"):
        config.workeroutput[_JUDGED] = dict(judged)


def pytest_testnodedown(node: Any) -> None:
    """What a worker has judged, and collected."""
    noted = getattr(node, "workeroutput", {})
    node.config.stash.setdefault(_judged, Counter()).update(noted.get(_JUDGED, {}))
    if _record in node.config.stash and _COLLECTED in noted:
        node.config.stash[_record].collected = noted[_COLLECTED]


@pytest.fixture
def own_kafka(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """An embedded broker of this test's own, running, which it may stop, kill and start again."""
    server = KafkaServer(tmp_path / "own-kafka", options=embedded_options())
    server.start()
    serve_first(server.pid)
    try:
        yield server
        if server.is_ready():
            _judge_logs(pytestconfig, server.bootstrap_servers)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def lone_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka of this file's own, for commands that look at all topics: other tests come and go on the shared one."""
    with KafkaServer(tmp_path_factory.mktemp("lone-kafka"), options=embedded_options()) as server:
        serve_first(server.pid)
        yield Kafka(server.bootstrap_servers, "an embedded broker of its own")


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest) -> None:
    """Of tests on a Kafka that nobody takes away."""
    if not {"kafka", "lone_kafka"}.isdisjoint(request.fixturenames):
        ask_patiently(request.getfixturevalue("monkeypatch"))


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for the names of this test's topics that no other test has."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:40]
    return f"{readable}-{secrets.token_hex(4)}"


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note on which Kafka a test ran; user properties also travel from xdist's workers."""
    names: list[str] = getattr(item, "fixturenames", [])
    if "kafka" in names:
        if _lane_of_this_process not in item.config.stash:
            return  # none was found: the test has failed
        item.user_properties.append((_LANE, item.config.stash[_lane_of_this_process]))
    elif item.get_closest_marker("kafka") is not None:
        item.user_properties.append((_LANE, "embedded brokers of their own"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what ran on which Kafka, and note what ran in which lane, so that nothing can be missing unnoticed."""
    if _record in terminalreporter.config.stash:
        terminalreporter.config.stash[_record].write()
    lanes: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "teardown":
                lanes.update(value for name, value in report.user_properties if name == _LANE)
    for lane, count in sorted(lanes.items()):
        terminalreporter.write_line(f"real Kafka: {count} test{'s' * (count > 1)} ran on {lane}")
    judged = terminalreporter.config.stash.get(_judged, Counter())
    if judged:
        terminalreporter.write_line(
            f"logs left in Kafka: {judged['records']:,} records of {judged['partitions']} partitions judged by both "
            f"implementations, all alike; {judged['partitions left out']} partitions left out for their size"
        )
    if not lanes:
        terminalreporter.write_line("real Kafka: no test of this run used one")
