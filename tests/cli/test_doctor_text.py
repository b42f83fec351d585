"""How the findings of `statechannel doctor` look."""

from dataclasses import replace

import pytest

from statechannel.cli.doctor import command
from statechannel.cli.doctor.checks import DoctorFinding, Severity, examine
from statechannel.cli.doctor.command import CHECKS
from tests.cli.test_doctor_checks import CHANNEL, debts, led
from tests.support.doctor_facts import with_topic

PICTURE = """\
critical topics: bundle-state: message.timestamp.type is CreateTime, required LogAppendTime
         With producer timestamps a slow clock voids the compaction lag, on which late joins depend. Brokers refuse to start \
with it.
         -> kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics --entity-name bundle-state --add-config \
message.timestamp.type=LogAppendTime
error    leader: no broker has led for 60.00 s
         Bundles are still served and moved, and brokers assign what is looked up, but nothing is repaired or balanced.
         -> An election takes up to kafka.session_timeout_ms. If it lasts longer: check that brokers are caught up \
(`statechannel brokers`), and their logs for the election's group.
ok       patience: time-outs match each other and the topic's lag
not checked: log, orphans (said in \ufffd[31m two lines)
1 critical, 1 error
"""


NARROW = """\
warning  awaiting-repair: keys awaiting repair: 1, the oldest
         for 10.00 s
         While a key awaits repair, no heartbeat is clean and
         no broker can join. The leader repairs it if it can.
         -> Check that there is a caught-up leader;
            `statechannel audit history t/n` shows the
            records.
1 warning
"""


def test_sentences_that_wrap_are_indented(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "62")
    command._show(examine([check for check in CHECKS if check.name == "debts"], debts(10_000)))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == NARROW.splitlines()


def test_people_see_the_worst_first_and_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    sick = with_topic(led(60), CHANNEL, message_timestamp_type="CreateTime")
    wanted = ("topics", "leader", "patience")
    findings = examine([check for check in CHECKS if check.name in wanted], replace(sick, wanted=sick.wanted[:1]))
    findings += [
        DoctorFinding(Severity.INFO, "said in \x1b[31m\n two lines", check=name, checked=False)
        for name in ("log", "orphans")
    ]
    command._show(findings)
    assert capsys.readouterr().out == PICTURE
