"""A hook that fails is visible wherever people look: in the answer, `status`, `doctor`, `why`, the history, the log."""

import asyncio
import json
import sys
from typing import Any

from statechannel.api import BrokerHooks, StateChannel
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S

NAMESPACE = "a/raise"
BUNDLE = f"{NAMESPACE}/0x00000000_0xffffffff"
ERROR = "on_own raised RuntimeError: disk is on fire"


class FailingHooks(BrokerHooks):
    async def on_own(self, bundle: str, generation: int) -> None:
        raise RuntimeError("disk is on fire")


async def command(*words: str) -> tuple[int, Any, str]:
    """Its exit code, its JSON, and its standard error."""
    code = "from statechannel.cli.main import main; main()"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *words, "--output", "json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), WAIT_S)
    text = out.decode() or "null"
    return child.returncode or 0, json.loads(text), err.decode()


async def test_a_failing_hook_is_visible_everywhere(kafka: Kafka, topic_prefix: str) -> None:
    name = f"{topic_prefix}-failing"
    # Long enough that nothing asks it again meanwhile: the only broker is, after a sixth of it.
    settings = make_settings(kafka.bootstrap_servers, name, repair={"decline_memory_s": 3_600.0})
    where = ("--set", f"kafka.bootstrap_servers={kafka.bootstrap_servers}", "--set", f"channel.name={name}")
    with capture_logs() as lines:
        async with StateChannel.open(settings, broker="m1", hooks=FailingHooks(), create_topics=True) as channel:
            await created(channel, NAMESPACE, 1)
            answer = await channel.lookup(f"{NAMESPACE}/t", timeout_s=2)
            assert answer.reason == "declined"
            (declined,) = answer.declines
            assert (declined.broker, declined.reason) == ("m1", ERROR)
            assert 0 <= declined.ago_s <= WAIT_S
            assert 600 - WAIT_S <= declined.again_in_s <= 600
            assert answer.message.startswith(f"{NAMESPACE}/t: m1 declined ")
            assert f"{ERROR}; asked again in " in answer.message

            _, document, err = await command("lookup", f"{NAMESPACE}/t", "--timeout", "2", *where)
            assert ERROR in err + json.dumps(document)

            _, document, _ = await command("status", *where)
            (incident,) = [one for one in document["incidents"] if one["kind"] == "declined"]
            assert incident["message"] == f"m1 declined bundles once, {BUNDLE} the last: {ERROR}"

            _, document, _ = await command("doctor", *where)
            findings = [finding for finding in document["findings"] if finding["check"] == "declines"]
            assert [finding["severity"] for finding in findings] == ["critical", "warning"]
            assert all(ERROR in finding["what"] for finding in findings)

            _, document, _ = await command("why", f"{NAMESPACE}/t", *where)
            assert any(
                step["message"].startswith("m1 declined it") and ERROR in step["message"] for step in document["steps"]
            )

            _, document, _ = await command("audit", "history", BUNDLE, *where)
            assert ERROR in [row["reason"] for row in document["history"]]
    failures = [line for line in lines if line["event"].startswith("hook")]
    assert [line["event"] for line in failures] == ["hook.failed"]
    assert (failures[0]["hook"], failures[0]["bundle"], failures[0]["error"]) == ("on_own", BUNDLE, ERROR)
    assert (failures[0]["due"], failures[0]["generation"]) == ("return", 3)
    assert isinstance(failures[0]["raised"], RuntimeError)
