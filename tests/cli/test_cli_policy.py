"""`statechannel policy` and `statechannel override`: what is refused before anything is written, and a policy's life on Kafka."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.cli.policy import command, write
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, encode, made_key
from shedders.policies.topic import DeletionNote, PolicyWritten, policy_changes, read_book
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli import main
from statechannel.cli.kit.listing import parse_length_ms, parse_until_ms
from statechannel.errors import UsageError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaClientError
from statechannel.kafka.tail import append_and_wait
from statechannel.kafka.topic_policy import policies_topic
from statechannel.operations.outcomes import Answer
from statechannel.protocol.log import RecordRead, Topic
from tests.cli.test_live import Cluster as LiveCluster
from tests.support import strategies
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

A = "t/n/0x00000000_0x80000000"
COMMANDS = {"policy": "shedders.cli.policy.command:policy_app", "override": "shedders.cli.policy.command:override_app"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    strategies.install(monkeypatch)
    points = strategies.points(main.COMMANDS_GROUP, **COMMANDS)
    monkeypatch.setattr(main, "_registered", lambda: {point.name: point for point in points})


# --- without a Kafka ------------------------------------------------------------------------------------------------


def test_kinds(run: Callable[..., Result]) -> None:
    result = run("policy", "kinds", "--output", "json")
    assert [kind["kind"] for kind in json.loads(result.stdout)["kinds"]] == [str(kind) for kind in PolicyKind]
    table = run("policy", "kinds")
    assert table.exit_code == 0
    assert "NAME" in table.stdout
    assert all(words in table.stdout for words in ("extensible|modular", "transfer|unload", "on|off"))


def history_of(monkeypatch: pytest.MonkeyPatch) -> None:
    key = made_key(PolicyKind.PIN, "t/n")
    value = encode(PolicyRecord(key, {"broker": "b1"}, "ann@desk", "ticket 7", None, 900))
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 + at, key.encode(), v) for at, v in ((4, value), (5, None))]
    monkeypatch.setattr(command, "changes_of", lambda _: (policy_changes(records, low=4, end=6), None))


def test_the_history_has_deleted_policies(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    history_of(monkeypatch)
    shown = run("policy", "history", "pin", "-b", "127.0.0.1:1")
    assert shown.exit_code == 0, shown.output
    _, was_set, deleted = shown.stdout.splitlines()[-3:]
    assert ("ann@desk" in was_set, "ticket 7" in was_set, " deleted " in deleted) == (True, True, True)
    assert "compaction" in shown.stderr
    document = json.loads(run("policy", "history", "-b", "127.0.0.1:1", "--output", "json").stdout)
    assert [change["what"] for change in document["changes"]] == ["set", "deleted"]
    assert document["whole"] is False
    assert (
        json.loads(run("policy", "history", "cordon", "-b", "127.0.0.1:1", "--output", "json").stdout)["changes"] == []
    )
    later = run("policy", "history", "-b", "127.0.0.1:1", "--since", "1005ms", "--output", "json")
    assert [change["offset"] for change in json.loads(later.stdout)["changes"]] == [5]
    missing = run("policy", "history", "pin", "t/m", "-b", "127.0.0.1:1")
    assert (missing.exit_code, "no record of pin t/m" in missing.stderr) == (5, True)


@pytest.mark.parametrize("exported", [True, False])
def test_the_history_of_a_file_names_who_deleted(run: Callable[..., Result], tmp_path: Path, *, exported: bool) -> None:
    """An export of an earlier version has no headers: it is read, and the command says what it lacks."""
    key = made_key(PolicyKind.PIN, "t/n")
    value = encode(PolicyRecord(key, {"broker": "b1"}, "ann@desk", "ticket 7", None, 900))
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 + at, key.encode(), v) for at, v in ((0, value), (1, None))]
    note = DeletionNote("bob@desk", "ticket 8").headers()
    write_export(
        tmp_path / "ev.policies.jsonl",
        ExportHeader("c-policies", {0: 2}, 0),
        records,
        now_ms=lambda: 2_000,
        headers_of=lambda record: note if exported and record.value is None else (),
    )
    result = run("policy", "history", "--file", str(tmp_path / "ev.jsonl"), "--output", "json")
    assert result.exit_code == 0, result.output
    deleted = json.loads(result.stdout)["changes"][1]
    assert (deleted["by"], deleted["why"]) == (("bob@desk", "ticket 8") if exported else (None, None))
    shown = run("policy", "history", "--file", str(tmp_path / "ev.jsonl"))
    # Ages count back from the export.
    write_export(tmp_path / "ev.jsonl", ExportHeader("c", {0: 0}, 0), [], now_ms=lambda: 61_001)
    lately = run("policy", "history", "--file", str(tmp_path / "ev.jsonl"), "--since", "1m", "--output", "json")
    assert [change["what"] for change in json.loads(lately.stdout)["changes"]] == ["deleted"]
    assert ("who deleted a policy is not in exports of earlier versions" in shown.stderr) is not exported


def test_a_history_of_what_is_no_export(run: Callable[..., Result], tmp_path: Path) -> None:
    for content, message in ((None, "cannot be read"), (b"", "is empty"), (b"no export", "not JSON")):
        path = tmp_path / "x.jsonl"
        if content is not None:
            path.write_bytes(content)
        result = run("policy", "history", "--file", str(path))
        assert (result.exit_code, message in result.stderr) == (7, True)
    write_export(path, ExportHeader("c", {0: 0}, 0), [], now_ms=lambda: 2_000)
    assert run("policy", "history", "--file", str(path)).exit_code == 5


def test_a_file_of_a_wrong_topic_is_no_file_of_policies(run: Callable[..., Result], tmp_path: Path) -> None:
    """It would be read as one without any records."""
    for name, topic in (("ev", "c"), ("ev.policies", "c-requests")):
        write_export(tmp_path / f"{name}.jsonl", ExportHeader(topic, {0: 0}, 0), [], now_ms=lambda: 2_000)
    for words in (("policy", "history", "--file"), ("audit", "verify-export")):
        result = run(*words, str(tmp_path / "ev.jsonl"))
        assert result.exit_code == 7, result.output
        assert "is an export of c-requests, not of c-policies" in result.stderr
    (tmp_path / "ev.policies.jsonl").unlink()
    (tmp_path / "ev.policies.jsonl").mkdir()
    for words in (("policy", "history", "--file"), ("audit", "verify-export")):
        result = run(*words, str(tmp_path / "ev.jsonl"))
        assert (result.exit_code, "Is a directory" in result.stderr) == (7, True)


def test_a_check_that_finds_nothing_says_so(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    book, key = PolicyBook(), made_key(PolicyKind.CORDON, "b9")
    monkeypatch.setattr(command, "book_of", lambda _: book)
    monkeypatch.setattr(write, "live_cluster", lambda _: Cluster({"b1": Broker("b1")}, {A: Bundle(A)}))
    args = ("policy", "list", "-b", "127.0.0.1:1")
    assert "no contradictions" in run(*args, "--check").stderr
    assert "contradicts" not in run(*args).stderr
    book.take(0, 0, key.encode(), encode(PolicyRecord(key, {}, "ann")))
    stderr = run(*args, "--check").stderr
    assert "is cordoned and not registered" in stderr
    assert "no contradictions" not in stderr


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [("90s", 90_000), ("30m", 1_800_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("1.5h", 5_400_000), ("5ms", 5)],
)
def test_lengths(text: str, length_ms: int) -> None:
    assert parse_length_ms(text, "--for") == length_ms


@pytest.mark.parametrize("text", ["", "30", "m", "-5m", "0s", "1e3s", "30 m", "30m!", "999999999d", "٣m"])
def test_no_lengths(text: str) -> None:
    with pytest.raises(UsageError):
        parse_length_ms(text, "--for")


@pytest.mark.parametrize(
    ("text", "until_ms"),
    [
        ("2025-06-15T15:06:41Z", 1_750_000_001_000),
        ("2025-06-15T17:06:41+02:00", 1_750_000_001_000),
        ("2025-06-15T15:06:41", 1_750_000_001_000),
        ("1750000001000ms", 1_750_000_001_000),
        ("30m", 1_750_001_800_000),
    ],
)
def test_moments(text: str, until_ms: int) -> None:
    assert parse_until_ms(text, 1_750_000_000_000) == until_ms


# --- with a Kafka ---------------------------------------------------------------------------------------------------


class Channel:
    """A channel on a real Kafka without brokers; the cluster is made up."""

    def __init__(self, kafka: Kafka, name: str, run: Callable[..., Result]) -> None:
        self.kafka, self.name, self._run = kafka, name, run
        self.place = ["--bootstrap-servers", kafka.bootstrap_servers, "--channel", name]
        self.client = ClientSettings(kafka.bootstrap_servers)
        self.topics = policies_topic(name)

    def __call__(self, *args: str, code: int = 0) -> Any:
        result = self._run(*args, *self.place, "--output", "json")
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return json.loads(result.stdout) if result.stdout else None

    def lines(self, *args: str, code: int = 0) -> tuple[str, str]:
        result = self._run(*args, *self.place)
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr
        return result.stdout, result.stderr

    def end(self) -> int:
        return read_book(self.client, self.topics).position


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Channel:
    made_up = Cluster({name: Broker(name) for name in ("b1", "b2")}, {A: Bundle(A)})
    monkeypatch.setattr(write, "live_cluster", lambda _: made_up)
    channel = Channel(kafka, topic_prefix, run)
    channel("init")
    return channel


@pytest.mark.kafka
def test_the_life_of_a_policy(channel: Channel) -> None:
    nothing = {"policies": [], "position": -1, "junk": {}, "closed": [], "contradictions": None}
    assert channel("policy", "list") == nothing
    assert "policy pin t/n not found" in channel.lines("policy", "get", "pin", "t/n", code=5)[1]

    done = channel("policy", "set", "pin", "t/n", "b1", "--reason", "cache", "--by", "ann")
    assert (done["outcome"], done["offset"], done["override"], done["replaced"]) == ("accepted", 0, False, None)
    assert (done["value"], done["by"], done["why"], done["until_ms"]) == ({"broker": "b1"}, "ann", "cache", None)
    changed = channel("policy", "set", "pin", "t/n", "b2")
    assert changed["replaced"]["value"] == {"broker": "b1"}
    assert "@" in changed["by"]

    [entry] = channel("policy", "get", "pin", "t/n")["entries"]
    assert (entry["state"], entry["value"], entry["offset"]) == ("in-force", {"broker": "b2"}, 1)
    table = channel.lines("policy", "list")[0]
    assert all(word in table for word in ("pin", "t/n", "b2", "in-force"))

    gone = channel("policy", "delete", "pin", "t/n", "--reason", "moved out", "--by", "carol@desk")
    assert (gone["outcome"], gone["deleted"]) == ("accepted", True)
    assert (gone["by"], gone["why"]) == ("carol@desk", "moved out")
    assert channel("policy", "list")["policies"] == []
    assert "not found" in channel.lines("policy", "delete", "pin", "t/n", code=5)[1]
    changes = channel("policy", "history", "pin", "t/n")["changes"]
    expected = ("deleted", "carol@desk", "moved out")
    assert [(change["what"], change["by"], change["why"]) for change in changes][-1] == expected
    assert {change["by"] for change in changes if change["what"] == "set"} != {None}


@pytest.mark.kafka
def test_an_override_lies_over_and_is_taken_back(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    channel("policy", "set", "shedding", "on")
    done = channel("override", "shedding", "off", "--for", "1h", "--reason", "release")
    assert done["override"] is True
    assert done["until_ms"] > done["logged_at_ms"]
    states = {policy["override"]: policy["state"] for policy in channel("policy", "list")["policies"]}
    assert states == {True: "in-force", False: "overridden"}
    assert [policy["why"] for policy in channel("override", "list")["policies"]] == ["release"]
    monkeypatch.setattr(command, "now_ms", lambda: done["until_ms"])
    assert [policy["state"] for policy in channel("policy", "list")["policies"]] == ["in-force"]
    assert channel("override", "list")["policies"] == []
    assert [policy["state"] for policy in channel("override", "list", "--lapsed")["policies"]] == ["lapsed"]
    assert channel.end() == 1  # nobody wrote anything


@pytest.mark.kafka
def test_overrides_of_each_sort_and_their_early_end(channel: Channel) -> None:
    more = ("--for", "30m", "--reason", "test")
    for args in (
        ("pin", A, "b2"),
        ("cordon", "b1"),
        ("exclude", "t/n"),
        ("shedding", "off"),
        ("threshold", "shedding.uniform.max_unload_share", "0.5"),
    ):
        assert channel("override", *args, *more)["outcome"] == "accepted"
    results = {policy["kind"]: policy["value"] for policy in channel("override", "list")["policies"]}
    assert results == {
        "cordon": {},
        "exclude": {},
        "pin": {"broker": "b2"},
        "setting": {"value": 0.5},
        "shedding": {"on": False},
    }
    ended = channel("override", "end", "shedding", "--reason", "enough")
    assert (ended["why"], "@" in ended["by"]) == ("enough", True)
    channel("override", "end", "threshold", "shedding.uniform.max_unload_share")
    channel("policy", "delete", "cordon", "b1", "--override")
    assert {policy["kind"] for policy in channel("override", "list")["policies"]} == {"exclude", "pin"}
    _, result = channel.lines("policy", "delete", "pin", A, code=5)
    assert f"override end pin {A}" in result


@pytest.mark.kafka
def test_settings_are_checked_by_their_model_before_they_are_written(channel: Channel) -> None:
    done = channel("policy", "set", "setting", "filters.max_topics", "100")
    assert (done["name"], done["value"]) == ("parts.filters.max_topics", {"value": 100})
    for name, value, words in (
        ("filters.max_topic", "1", "did you mean filters.max_topics?"),
        ("filters.max_topics", "value=-5", "parts.filters.max_topics"),
        ("shedding.unform.max_unload_share", "1", "did you mean uniform?"),
        ("shedding", "thresholt", "did you mean threshold?"),
    ):
        assert words in channel.lines("policy", "set", "setting", name, value, code=8)[1]
    assert channel.end() == 0
    assert channel("policy", "get", "setting", "filters.max_topics")["name"] == "parts.filters.max_topics"
    channel("policy", "delete", "setting", "filters.max_topics")


@pytest.mark.kafka
def test_policies_that_cannot_be_kept_together_are_refused_by_name_unless_forced(channel: Channel) -> None:
    channel("policy", "set", "isolation", "gold", "namespaces=t/n", "primary=b1")
    assert "no contradictions" in channel.lines("policy", "list", "--check")[1]
    _, result = channel.lines("policy", "set", "pin", A, "b2", code=3)
    assert f"contradict each other: pin {A} -> b2, isolation gold: no broker may take" in result
    assert "--force" in result
    assert channel.end() == 0
    assert (
        "contradict each other" in channel.lines("override", "cordon", "b1", "--for", "5m", "--reason", "x", code=3)[1]
    )
    assert channel.end() == 0
    assert "`b9`, which is not registered" in channel.lines("policy", "set", "pin", A, "b9", code=3)[1]

    forced = channel("policy", "set", "pin", A, "b2", "--force")
    assert len(forced["contradictions"]) == 1
    checked = channel("policy", "list", "--check")
    assert checked["contradictions"] == forced["contradictions"]
    # What was wrong before hinders nothing else.
    assert channel("policy", "set", "exclude", "t/n")["contradictions"] == []
    assert channel("policy", "set", "anti-affinity", "t/n", "north")["contradictions"] == []
    # What is no obstacle is a note.
    assert "is cordoned and not registered" in channel.lines("policy", "set", "cordon", "b7")[1]


@pytest.mark.kafka
def test_what_cannot_be_read_is_shown_and_can_be_deleted(channel: Channel) -> None:
    channel("policy", "set", "exclude", "t/n")
    append_and_wait(channel.client, channel.topics.name, 0, key=b"cordon/b1", value=b"{")
    append_and_wait(channel.client, channel.topics.name, 0, key=b"nonsense", value=b"{")
    result = channel("policy", "list")
    assert result["junk"] == {"key": 1, "not-json": 1}
    assert [policy["state"] for policy in result["policies"]] == ["unreadable", "in-force"]
    out, outcome = channel.lines("policy", "list")
    assert "unreadable" in out
    assert "the broker takes no bundles" in outcome
    channel("policy", "delete", "cordon", "b1")
    assert channel("policy", "list")["closed"] == []


@pytest.mark.kafka
def test_settings_that_mean_nothing_here_are_not_called_in_force_and_can_be_deleted(channel: Channel) -> None:
    channel("policy", "set", "exclude", "t/n")
    for name in ("nosuch", "filters.max_topics"):
        key = made_key(PolicyKind.SETTING, name)
        value = encode(PolicyRecord(key, {"value": 5}, "somebody"))
        append_and_wait(channel.client, channel.topics.name, 0, key=key.encode(), value=value)
    states = {policy["name"]: policy["state"] for policy in channel("policy", "list", "--kind", "setting")["policies"]}
    assert states == {"nosuch": "unknown", "filters.max_topics": "in-force"}
    assert "setting nosuch is unknown here" in channel.lines("policy", "list")[1]
    for name in ("nosuch", "filters.max_topics"):
        assert channel("policy", "get", "setting", name)["entries"][0]["value"] == {"value": 5}
        channel("policy", "delete", "setting", name)
    assert channel("policy", "list", "--kind", "setting")["policies"] == []


@pytest.mark.kafka
def test_more_policies_than_brokers_take_in_are_refused(channel: Channel) -> None:
    few = ("--set", "extensions.balancer.policies_max=10")
    for number in range(10):
        channel("policy", "set", "exclude", f"t/n{number}", *few)
    _, result = channel.lines("policy", "set", "exclude", "t/more", *few, code=3)
    assert "there would be 11 policies" in result
    assert "extensions.balancer.policies_max" in result
    channel("policy", "set", "exclude", "t/n3", "--reason", "still", *few)
    channel("policy", "delete", "exclude", "t/n0")
    channel("policy", "set", "exclude", "t/more", *few)


@pytest.mark.kafka
def test_rejected_and_unknown_are_told_apart(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {
        "rejected": PolicyWritten(Answer.REJECTED, "too large", error=KafkaClientError("too large", hint="cut")),
        "unknown": PolicyWritten(Answer.UNKNOWN, "no answer"),
    }
    for word, code, hint in (("rejected", 14, "cut"), ("unknown", 13, "policy get exclude t/n")):
        monkeypatch.setattr(write, "write_policy", lambda *_, word=word, **__: ends[word])
        assert channel("policy", "set", "exclude", "t/n", code=code)["outcome"] == word
        _, result = channel.lines("policy", "set", "exclude", "t/n", code=code)
        assert f"error: {word}: " in result
        assert hint in result


@pytest.mark.kafka
def test_a_channel_that_is_not_there(kafka: Kafka, topic_prefix: str, run: Callable[..., Result]) -> None:
    channel = Channel(kafka, topic_prefix, run)
    assert "does not exist" in channel.lines("policy", "list", code=12)[1]
    assert "does not exist" in channel.lines("policy", "set", "exclude", "t/n", code=12)[1]


@pytest.mark.kafka
def test_against_a_real_broker(kafka: Kafka, topic_prefix: str, tmp_path: Path, run: Callable[..., Result]) -> None:
    cluster = LiveCluster(kafka, topic_prefix, tmp_path, run)
    try:
        cluster("init")
        alone = cluster("policy", "set", "pin", "tenant/ns", "b1")
        assert alone["contradictions"] == ["no broker is alive, so these policies cannot be checked for contradictions"]
        assert "no broker is alive" in cluster.fails("policy", "list", "--check", code=6)
        cluster.start("b1")
        cluster.wait_alive("b1")
        cluster("namespace", "create", "tenant/ns", "--bundles", "2")
        assert cluster("policy", "list", "--check")["contradictions"] == []
        refused = cluster.fails("policy", "set", "isolation", "gold", "namespaces=tenant/.*", "primary=b2", code=3)
        assert "isolation gold" in refused
        assert "cordon b1" in cluster.fails("policy", "set", "cordon", "b1", code=3)
        forced = cluster("policy", "set", "cordon", "b1", "--force")
        assert forced["outcome"] == "accepted"
        assert any(
            "cordon b1" in contradiction for contradiction in cluster("policy", "list", "--check")["contradictions"]
        )
    finally:
        for process in cluster.processes.values():
            process.kill()
            process.wait(WAIT_S)
