"""While Kafka is away the client library writes dozens of lines a second: one of a kind is enough."""

import logging

import pytest

from statechannel.kafka import client_log


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("statechannel.kafka.client", logging.ERROR, __file__, 1, text, (), None)


def test_one_line_of_a_kind_passes_and_the_next_tells_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(client_log.time, "monotonic", lambda: now_s[0])
    found = client_log.OncePerKind()
    assert found.filter(line("FAIL [b1#consumer-4] Connection refused (after 0ms)"))
    assert not found.filter(line("FAIL [b1#consumer-4] Connection refused (after 3ms)"))
    assert not found.filter(line("FAIL [b1#consumer-4] Connection refused (after 4ms)"))
    assert found.filter(line("FAIL [b1#consumer-3] Connection refused"))
    assert found.filter(line("SESSTMOUT [b1#consumer-4] session timed out"))
    now_s[0] = client_log.EVERY_S
    again = line("FAIL [b1#consumer-4] Connection refused")
    assert found.filter(again)
    assert again.getMessage().endswith("(and 2 like it before)")


def test_it_guards_the_logger_that_the_clients_are_given() -> None:
    assert any(isinstance(one, client_log.OncePerKind) for one in client_log.client_logger.filters)
