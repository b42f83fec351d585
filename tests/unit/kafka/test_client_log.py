"""While Kafka is away the client library writes dozens of lines a second: one of a kind is enough."""

import logging
import subprocess
import sys

import pytest

from statechannel.kafka import client_settings, light_topic
from tests.support.waits import WAIT_S


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("statechannel.kafka.client", logging.ERROR, __file__, 1, text, (), None)


def test_one_line_of_a_kind_passes_and_the_next_tells_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(client_settings.time, "monotonic", lambda: now_s[0])
    kind = client_settings.OncePerKind()
    assert kind.filter(line("FAIL [b1#consumer-4] Connection refused (after 0ms)"))
    assert not kind.filter(line("FAIL [b1#consumer-4] Connection refused (after 3ms)"))
    assert not kind.filter(line("FAIL [b1#consumer-4] Connection refused (after 4ms)"))
    assert kind.filter(line("FAIL [b1#consumer-3] Connection refused"))
    assert kind.filter(line("SESSTMOUT [b1#consumer-4] session timed out"))
    now_s[0] = client_settings.EVERY_S
    again = line("FAIL [b1#consumer-4] Connection refused")
    assert kind.filter(again)
    assert again.getMessage().endswith("(and 2 like it before)")


def test_a_member_that_closes_has_the_last_word() -> None:
    kind = client_settings.OncePerKind()
    kind.closing("b1", closes=True)
    assert not kind.filter(line("FAIL [b1#consumer-4] Connection refused"))
    assert kind.filter(line("FAIL [b10#consumer-4] Connection refused"))
    kind.closing("b1", closes=False)
    assert kind.filter(line("FAIL [b1#consumer-4] Connection refused"))


def test_kinds_are_remembered_up_to_a_bound() -> None:
    kind = client_settings.OncePerKind()
    for number in range(client_settings.KINDS_MAX):
        assert kind.filter(line(f"FAIL [client-{number}] refused"))
    assert not kind.filter(line("FAIL [client-0] refused"))
    assert kind.filter(line("FAIL [another] refused"))
    assert kind.filter(line("FAIL [client-0] refused")), "forgotten"


def test_only_lines_that_begin_so_are_counted() -> None:
    kind = client_settings.OncePerKind("reading ")
    expected = [True, False, True, True]
    assert [kind.filter(line(text)) for text in ("reading a", "reading a", "other", "other")] == expected


@pytest.mark.parametrize(("level", "passes"), [(logging.WARNING, False), (logging.INFO, True), (logging.DEBUG, True)])
def test_a_line_passes_where_the_level_lets_it(monkeypatch: pytest.MonkeyPatch, level: int, passes: bool) -> None:
    monkeypatch.setattr(client_settings.client_logger, "level", level)
    monkeypatch.setattr(client_settings.client_logger, "_cache", {})
    lines = client_settings.ClientLines()
    assert [lines.filter(line("FAIL [b1#consumer-4] refused")) for _ in range(2)] == [passes, False]
    quiet = line("CONNECT [b1#consumer-4] connecting")
    quiet.levelno = logging.DEBUG
    assert lines.filter(quiet) is (level == logging.DEBUG)
    assert quiet.levelno == logging.DEBUG, "none is raised to a higher level"


UNCONFIGURED = """
import logging, sys
from statechannel.kafka import client_settings, light_topic
SETUP
client_settings.client_logger.error("FAIL [b1#consumer-4] Connection refused")
"""


def test_a_line_of_the_library_becomes_a_sentence_at_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_settings.client_logger, "level", logging.INFO)
    monkeypatch.setattr(client_settings.client_logger, "_cache", {})
    raw = line(
        "GETPID [statechannel-b1#producer-3] [thrd:main]: Failed to acquire idempotence PID: Coordinator load in progress"
    )
    assert client_settings.ClientLines().filter(raw)
    assert (raw.levelname, raw.levelno) == ("INFO", logging.INFO)
    assert "GETPID: [thrd:main]: Failed to acquire idempotence PID" in raw.getMessage()
    assert vars(raw)["event"] == "kafka-client"
    assert vars(raw)["facts"]["client"] == "statechannel-b1#producer-3"
    other = line("something without a client")
    assert client_settings.ClientLines().filter(other)
    assert other.getMessage() == "kafka-client the Kafka library says something without a client"


def _printed(setup: str) -> list[str]:
    command = [sys.executable, "-c", UNCONFIGURED.replace("SETUP", setup)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    return [line for line in (ended.stdout + ended.stderr).splitlines() if "FAIL" in line]


@pytest.mark.parametrize("setup", ["", "logging.basicConfig(format='mine: %(message)s')"])
def test_an_embedder_who_sees_warnings_sees_none_of_the_library(setup: str) -> None:
    assert _printed(setup) == []


def test_one_who_wants_more_sees_it_once_by_his_own_logging() -> None:
    (line,) = _printed("logging.basicConfig(format='%(levelname)s: %(message)s', level=logging.INFO)")
    assert line.startswith("INFO: ")


def test_it_guards_the_logger_that_the_clients_are_given() -> None:
    assert any(isinstance(item, client_settings.OncePerKind) for item in client_settings.client_logger.filters)


def test_a_reader_whose_errors_take_turns_says_it_once(caplog):
    """Seen while Kafka was away for 20 s: several hundred lines of each broker."""
    log = logging.getLogger(light_topic.__name__)
    with caplog.at_level(logging.INFO, logger=log.name):
        for _ in range(20):
            log.info("reading %s: %s", "turns-a", "brokers are down")
            log.info("reading %s: %s", "turns-a", "connection refused")
            log.info("reading %s: %s", "turns-b", "connection refused")
            log.warning("%s is opened again from its beginning: %s", "turns-a", "it was created anew")
    said = [record.getMessage() for record in caplog.records]
    reading = [line for line in said if line.startswith("reading")]
    assert reading == ["reading turns-a: brokers are down", "reading turns-b: connection refused"]
    assert len(said) == 22
