"""The files that a start writes, and the record it leaves."""

import socket
import threading
from pathlib import Path

import pytest

from statechannel.embedded import BrokerOptions, BrokerStartError, KafkaServer, PortInUseError, process
from statechannel.embedded.layout import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    BrokerRecord,
    Layout,
    read_record,
    write_configuration,
    write_record,
)
from statechannel.embedded.process import is_locked, take_lock, wait_unlocked


def properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_configuration(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    options = BrokerOptions(fast_cleaner=True, properties={"num.io.threads": "1"})
    write_configuration(layout, port=15001, controller_port=15002, options=options)
    written = properties(layout.server_properties)
    assert written["listeners"] == "PLAINTEXT://127.0.0.1:15001,CONTROLLER://127.0.0.1:15002"
    assert written["controller.quorum.voters"] == "1@127.0.0.1:15002"
    assert written["log.cleaner.backoff.ms"] == "200"
    assert written["num.io.threads"] == "1", "options override"
    assert written["log.dirs"] == str(tmp_path / "log")
    assert properties(layout.log4j_properties)["appender.file.fileName"] == str(layout.broker_log)


def test_cleaner_is_not_hurried_unless_asked(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_configuration(layout, port=1, controller_port=2, options=BrokerOptions())
    assert "log.cleaner.backoff.ms" not in properties(layout.server_properties)


def test_a_busy_machine_does_not_fence_its_only_node(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_configuration(layout, port=1, controller_port=2, options=BrokerOptions())
    written = properties(layout.server_properties)
    assert (written["broker.session.timeout.ms"], written["broker.heartbeat.interval.ms"]) == ("6000", "500")
    assert SESSION_TIMEOUT_MS >= 10 * HEARTBEAT_INTERVAL_MS


def test_a_killed_broker_leaves_no_clean_mark(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert not layout.killed, "there was none"
    layout.log_dir.mkdir()
    layout.meta_properties.touch()
    assert layout.killed
    layout.clean_mark.touch()
    assert not layout.killed


def test_whoever_stops_a_broker_waits_for_its_lock(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    lock = take_lock(layout)
    holder = threading.Timer(0.3, lock.close)
    holder.start()
    wait_unlocked(layout)
    assert not is_locked(layout)
    holder.join()


def test_record_round_trip(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert read_record(layout) is None
    record = BrokerRecord(pid=7, started_at_s=1.5, port=15001, controller_port=15002)
    write_record(layout, record)
    assert read_record(layout) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": null}', "\x00"])
def test_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path)
    layout.record.write_text(text)
    assert read_record(layout) is None


def test_taken_port_is_refused_and_not_found_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not process.is_free(port)
        assert process.answers(port)
        with pytest.raises(PortInUseError, match=f"port {port} .* in use"):
            process.require_free(port)
    assert process.is_free(port)
    assert not process.answers(port)


def test_free_port_lies_below_those_of_outgoing_connections() -> None:
    first = process.find_free()
    assert 15_000 <= first <= 30_000
    assert process.find_free(other_than=first) != first


def test_full_disk_is_refused_before_anything_starts(tmp_path: Path) -> None:
    options = BrokerOptions(min_free_bytes=1 << 60)
    with pytest.raises(BrokerStartError, match=r"disk of .* has only \d+ MiB left") as error:
        KafkaServer(tmp_path / "kafka", options=options).start()
    assert "free some space" in error.value.hint


def test_folder_with_a_comma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerStartError, match="comma"):
        KafkaServer(tmp_path / "a,b").start()


def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerStartError, match="cannot be created"):
        KafkaServer(tmp_path / "file").start()
