"""`statechannel policy export` and `policy import`: the policies of one channel, laid down in another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.cli.policy import transfer
from shedders.cli.policy.write import write_policy
from shedders.policies.topic import PolicyWritten
from statechannel.kafka.tail import append_and_wait
from statechannel.operations.outcomes import Answer
from tests.cli.test_cli_policy import Channel, channel, installed  # noqa: F401 - fixtures
from tests.support.kafka_lanes import Kafka


def without_places(policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{name: policy[name] for name in policy if name not in ("offset", "logged_at_ms")} for policy in policies]
    return sorted(kept, key=lambda line: (line["kind"], line["name"], line["override"]))


@pytest.fixture
def filled(channel: Channel) -> Channel:  # noqa: F811
    channel("policy", "set", "pin", "t/n", "b1", "--reason", "cache")
    channel("policy", "set", "shedding", "on")
    channel("override", "shedding", "off", "--for", "2h", "--reason", "release")
    channel("override", "cordon", "b2", "--for", "1s", "--reason", "short")
    channel("policy", "set", "isolation", "gold", "namespaces=t/.*", "primary=b[12]")
    append_and_wait(channel.client, channel.topics.name, 0, key=b"exclude/t/x", value=b"junk")
    return channel


@pytest.mark.kafka
def test_policies_are_laid_down_in_another_channel(
    filled: Channel, kafka: Kafka, topic_prefix: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled("policy", "export", "policies.jsonl")
    assert source["unreadable"] == ["exclude/t/x"]
    assert source["policies"] == len(Path("policies.jsonl").read_text().splitlines()) - 1
    other = Channel(kafka, f"{topic_prefix}-other", run)
    other("init")
    dry = other("policy", "import", "policies.jsonl", "--dry-run")
    assert (dry["written"], dry["found"], other("policy", "list")["policies"]) == (0, 0, [])

    # It ends in the middle, and goes on.
    writes: list[object] = []

    def dying(*args: Any, **options: Any) -> PolicyWritten:
        writes.append(args)
        return PolicyWritten(Answer.UNKNOWN, "no answer") if len(writes) == 3 else write_policy(*args, **options)

    monkeypatch.setattr(transfer, "write_policy", dying)
    _, error = other.lines("policy", "import", "policies.jsonl", code=13)
    assert "2 policies are written. Run the same command again" in error
    done = other("policy", "import", "policies.jsonl")
    assert done["found"] == 2
    assert done["written"] == dry["missing"] - 2 - (done["lapsed"] - dry["lapsed"])
    there, here = (item("policy", "list")["policies"] for item in (other, filled))
    assert without_places(there) == without_places([item for item in here if item["trouble"] is None])
    again = other("policy", "import", "policies.jsonl")
    assert (again["written"], again["missing"]) == (0, 0)

    other("policy", "set", "pin", "t/n", "b2", "--force")
    _, error = other.lines("policy", "import", "policies.jsonl", code=3)
    assert "existing policies differ from policies.jsonl: pin/t/n\n" in error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("{}\n", "line 1: the first line is not a header"),
        ("junk\n", "line 1: the first line is not a header"),
        ('{"policies": 1}\n{"key": "a", "key": "b"}\n', "line 2: not a JSON object with `key` and `value`"),
        ('{"policies": 1}\n[]\n', "line 2: not a JSON object with `key` and `value`"),
        ('{"policies": 1}\n{"key": "nonsense", "value": {}}\n', "line 2: the key 'nonsense' is not KIND/NAME"),
        ('{"policies": 1}\n{"key": "pin/t/n", "value": {}}\n', "line 2: format is not 1"),
    ],
)
def test_a_file_that_is_none(run: Callable[..., Result], text: str, why: str) -> None:
    Path("policies.jsonl").write_text(text)
    result = run("policy", "import", "policies.jsonl", "--output", "json")
    assert result.exit_code == 7
    assert why in json.loads(result.stdout)["error"]


def test_a_file_that_is_not_there(run: Callable[..., Result]) -> None:
    result = run("policy", "import", "none.jsonl")
    assert result.exit_code == 7
    assert "none.jsonl cannot be read" in result.stderr
