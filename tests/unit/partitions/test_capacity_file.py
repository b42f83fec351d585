"""Capacities of brokers from TOML: what is read, what is refused."""

from pathlib import Path

import pytest

from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities, CapacityUnusableError, read_capacities


def test_a_broker_has_the_default_where_it_says_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[default]\nbytes_in_per_s = 100_000_000\n[brokers.3]\ndisk_bytes = 4_000\n[brokers.2]\ncpu = 0.5\n"
    )
    assert read_capacities(path) == Capacities(
        default=BrokerCapacity(bytes_in_per_s=100_000_000),
        of={
            2: BrokerCapacity(bytes_in_per_s=100_000_000, cpu=0.5),
            3: BrokerCapacity(bytes_in_per_s=100_000_000, disk_bytes=4_000),
        },
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("disk = ", "is not valid TOML"),
        ("[default]\ndisk = 3\n", "default.disk is not a field of the format"),
        ("[defaults]\n", "defaults is not a field of the format"),
        ("[default]\ndisk_bytes = 0\n", "default.disk_bytes: expected more than 0, got 0"),
        ("[default]\ncpu = nan\n", "default.cpu: expected a finite number"),
        ('[default]\ndisk_bytes = "4TB"\n', "default.disk_bytes: expected a valid integer, found '4TB'"),
        ("[brokers.3]\nbytes_in_per_s = -1\n", "brokers.3.bytes_in_per_s: expected more than 0, got -1"),
        ("[brokers.x]\ncpu = 0.1\n", "brokers.x is not a valid broker id"),
        ("[brokers]\n3 = 4\n", "brokers.3: expected an object"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(CapacityUnusableError) as result:
        read_capacities(tmp_path / "c.toml")
    assert words in str(result.value)
    assert result.value.hint
    assert result.value.exit_code == 7


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CapacityUnusableError, match="cannot be read"):
        read_capacities(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    with pytest.raises(CapacityUnusableError, match="is not valid TOML"):
        read_capacities(tmp_path / "binary.toml")
