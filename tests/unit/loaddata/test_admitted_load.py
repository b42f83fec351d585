"""Load by admitted requests: rates between two readings."""

from loaddata.source import AdmittedLoad
from statechannel.api import AdmittedCounts

BUNDLE = "t/n/0x00000000_0xffffffff"


class Member:
    def __init__(self) -> None:
        self.counts: dict[str, AdmittedCounts] = {}
        self.served: dict[str, int] = {}

    def admitted(self):
        return dict(self.counts)

    def serving(self):
        return dict(self.served)


def test_rates_are_those_since_the_reading_before() -> None:
    member, now = Member(), [100.0]
    source = AdmittedLoad(member, lambda: now[0])
    member.served = {BUNDLE: 3}
    member.counts = {BUNDLE: AdmittedCounts(reads=20, read_bytes=4_000, writes=10, write_bytes=500)}
    now[0] += 10
    stats = source.bundles()[BUNDLE].stats
    assert (stats.msg_rate_out, stats.msg_throughput_out) == (2.0, 400.0)
    assert (stats.msg_rate_in, stats.msg_throughput_in) == (1.0, 50.0)
    now[0] += 10
    assert source.bundles()[BUNDLE].stats.msg_rate == 0.0
    assert source.topics(BUNDLE) == ()


def test_only_what_is_served_is_reported_and_no_rate_is_negative() -> None:
    member, now = Member(), [0.0]
    member.counts = {BUNDLE: AdmittedCounts(writes=10)}
    source = AdmittedLoad(member, lambda: now[0])
    now[0] += 1
    assert source.bundles() == {}
    member.served, member.counts = {BUNDLE: 1}, {}  # forgotten, as many others came
    assert source.bundles()[BUNDLE].stats.msg_rate == 0.0
