"""Capacities of brokers from TOML: what is read, what is refused."""

from dataclasses import replace
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


def test_cruise_controls_file_is_read_in_its_units(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    path.write_text(
        """{"brokerCapacities": [
        {"brokerId": "-1", "capacity": {"DISK": "100000", "CPU": "80", "NW_IN": "10000", "NW_OUT": 20000}, "doc": "all"},
        {"brokerId": "0", "capacity": {"DISK": {"/d1": "250000", "/d2": "250000"}, "CPU": {"num.cores": "8"}}}]}"""
    )
    default = BrokerCapacity(
        disk_bytes=100_000 * 2**20, bytes_in_per_s=10_000 * 2**10, bytes_out_per_s=20_000 * 2**10, cpu=0.8
    )
    own = replace(default, disk_bytes=500_000 * 2**20, cpu=1.0)
    assert read_capacities(path) == Capacities(default=default, of={0: own})


def cruise(broker: str, capacity: str, more: str = "") -> str:
    return f'{{"brokerCapacities": [{{"brokerId": {broker}, "capacity": {{{capacity}}}}}{more}]}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[default]\ncpu = 80\n", "default.cpu: expected"),
        ("[brokers.3]\ncpu = 1.5\n", "brokers.3.cpu: expected"),
        (cruise('"-1"', '"CPU": "8000"'), "default.cpu: expected"),
        (cruise("4", '"NW_IN": "-3"'), "brokerCapacities[0].capacity.NW_IN"),
        (cruise("4", '"NW_IN": "1_000"'), "brokerCapacities[0].capacity.NW_IN"),
        (cruise("4", '"DISK": {"/a": "1e308", "/b": "1e308"}'), "brokerCapacities[0].capacity.DISK"),
        (cruise('"1_0"', '"NW_IN": "3"'), "brokerCapacities[0].brokerId"),
        ("[brokers.3]\ncpu = 0.5\n[brokers.03]\ncpu = 0.7\n", "brokers.03 is not a valid broker id"),
        ("[brokers.4294967296]\ncpu = 0.5\n", "brokers.4294967296 is not a valid broker id"),
        (cruise("4", '"DISK": "4TB"'), "brokerCapacities[0].capacity.DISK"),
        (cruise("4", '"DISK": "NaN"'), "brokerCapacities[0].capacity.DISK"),
        (cruise("4", '"MEMORY": "4"'), "brokerCapacities[0].capacity.MEMORY"),
        (cruise("-2", '"CPU": "4"'), "brokers.-2 is not a valid broker id"),
        (cruise("4", '"CPU": "4"', ',{"brokerId": 4, "capacity": {}}'), "4 is duplicated"),
        ('{"default": {}}', "brokerCapacities is missing"),
        ("disk = ", "is not valid TOML"),
        ("[default]\ndisk = 3\n", "default.disk is not a field of the format"),
        ("[defaults]\n", "defaults is not a field of the format"),
        ("[default]\ndisk_bytes = 0\n", "default.disk_bytes: expected"),
        ("[default]\ncpu = nan\n", "default.cpu: expected a finite number"),
        ('[default]\ndisk_bytes = "4TB"\n', "default.disk_bytes: expected a valid integer, found '4TB'"),
        ("[brokers.3]\nbytes_in_per_s = -1\n", "brokers.3.bytes_in_per_s: expected"),
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
