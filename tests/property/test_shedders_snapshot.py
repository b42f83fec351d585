"""Snapshots: what is written is read again bit for bit; whatever is in a file, it is read or refused with a sentence."""

import json
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.booked_moves import Booked, adjusted, on_the_way
from shedders.decision.dry_run import decide
from shedders.decision.placing import Pipeline
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves, TopicLoad
from shedders.model.moved_cluster import MovedLoad, after_moves
from shedders.model.plan import BundleMove, Reason
from shedders.model.strategy import SHEDDING, find, make, shedding_maker
from shedders.snapshots.cluster import booked_of, cluster_of, snapshot_of
from shedders.snapshots.file import SnapshotError, parse_snapshot, snapshot_bytes
from shedders.snapshots.plan_document import cycle_part
from statechannel.protocol.bundle import FULL_UPPER, bundle_key
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared, install

SHEDDERS = sorted(declared()[SHEDDING])

seeds = st.integers(0, 2**32)
ODD = (0.0, -0.0, 5e-324, 1 / 3, 1.0, 0.1 + 0.2, 1e15, 2.0**53, 1.7e308)


class Drawn:
    """Anything that a leader could see, policies and bundles of gone brokers included; a seed each, as there are many numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        names = random.sample(["b-1:8080", "b.2", "c", "a:b:c", "x"], random.randrange(5))
        self.booked: list[Booked] = []
        brokers = {name: self.broker(name) for name in names}
        cuts = sorted(random.sample(range(1, FULL_UPPER), random.randrange(5)))
        keys = [bundle_key("t/n", *ends) for ends in zip([0, *cuts], [*cuts, FULL_UPPER], strict=True)]
        bundles = {key: self.bundle(key, [*names, "gone"]) for key in keys}
        self.cluster = Cluster(
            brokers,
            bundles,
            self.policies(keys, [*names, "gone"]),
            RecentMoves({key: self.amount() for key in keys if self.yes()}, {"c": self.amount()} if self.yes() else {}),
            self.count(),
            random.choice([None, None, None, "quorum lost"]),
        )
        for key, bundle in bundles.items():
            if bundle.owner in brokers and self.yes():
                cargo = MovedLoad(*self.rates(), self.count(), *(self.amount() for _ in range(6)))
                self.booked.append(Booked(key, bundle.owner or "", None, cargo, source_knows=self.yes()))

    def yes(self) -> bool:
        return self._random.random() < 0.5

    def amount(self) -> float:
        random = self._random
        return random.choice(ODD) if random.random() < 0.4 else random.uniform(0, 10.0 ** random.randrange(-5, 12))

    def count(self) -> int:
        return self._random.choice([0, 1, 2**53, self._random.randrange(2**53)])

    def rates(self) -> tuple[float, float, float, float]:
        return self.amount(), self.amount(), self.amount(), self.amount()

    def usage(self) -> ResourceUsage:
        return ResourceUsage(self.amount(), self.amount())

    def average(self) -> MessageAverage:
        return MessageAverage(*self.rates(), self.count())

    def broker(self, name: str) -> Broker:
        usages = [self.usage() for _ in range(5)]
        averages = [self.amount() for _ in range(5)]
        load = BrokerLoad(*usages, *self.rates(), self.count(), self.count(), *averages, self.count(), self.count())
        texts = [self._random.choice([None, "", "4.2.4", "h\u00e9\U0001f600", 'a"b\\n']) for _ in range(3)]
        flags = [self.yes() for _ in range(3)]
        return Broker(
            name,
            load if self.yes() else None,
            self.amount(),
            self.yes(),
            texts[0],
            self._random.choice(["extensible", "modular"]),
            *flags,
            *texts[1:],
        )

    def bundle(self, key: str, owners: Sequence[str]) -> Bundle:
        lower, upper = (int(text, 16) for text in key.rpartition("/")[2].split("_"))
        stats = BundleStats(*self.rates(), *(self.count() for _ in range(4)))
        places = [self._random.randrange(lower, upper) for _ in range(self._random.randrange(3))]
        topics = tuple(TopicLoad(f"persistent://t/n/{n}", place, *self.rates()) for n, place in enumerate(places))
        return Bundle(
            key,
            self._random.choice([None, *owners]),
            self.yes(),
            stats if self.yes() else None,
            BundleAverages(self.average(), self.average()),
            self.count() if self.yes() else None,
            topics,
            self.yes(),
            self.yes(),
        )

    def policies(self, keys: Sequence[str], brokers: Sequence[str]) -> Policies:
        choice = self._random.choice
        fences = [
            IsolationPolicy(name, ("t/.*",), (choice(["b.*", "[a-c]", ".*"]),), (), 2)
            for name in ("p", "q")
            if self.yes()
        ]
        return Policies(
            tuple(fences),
            {"t/n": "group"} if self.yes() else {},
            {choice(["t/n", *keys]): choice(brokers)} if self.yes() else {},
            {choice(brokers): "to be replaced"} if self.yes() else {},
            frozenset(["t/n"] if self._random.random() < 0.2 else []),
        )


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_what_is_written_is_read_again(seed: int) -> None:
    drawn = Drawn(seed)
    cluster = drawn.cluster
    written = snapshot_bytes(snapshot_of(cluster, booked=drawn.booked))
    again = parse_snapshot(written)
    assert cluster_of(again) == cluster
    # Equality does not tell 0.0 from -0.0, text does.
    assert repr(cluster_of(again).brokers) == repr({name: cluster.brokers[name] for name in cluster.broker_names})
    assert booked_of(again, cluster) == drawn.booked
    assert snapshot_bytes(again) == written


@settings(deadline=None)
@given(seeds)
def test_whatever_a_snapshot_holds_may_be_decided_on(seed: int) -> None:
    drawn = Drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        for name in SHEDDERS:
            strategy = find("shedding", name)
            line = Pipeline(make("placement", "least-resource-usage"), FilterSettings())
            decision = decide(
                drawn.cluster, shedding_maker(strategy, strategy.Settings()), {}, line, booked=drawn.booked
            )
            # And it may be told: an endless sum of finite numbers is no number of JSON.
            assert cycle_part(1, decision).cycle == 1
            assert all(move.destination not in (None, move.source) for move in decision.moves)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for name, child in inner for path in paths(child, (*at, name)))]


SMALL = orjson.loads(snapshot_bytes(snapshot_of(cluster(1, Shape(brokers=2, bundles_each=1, topics_each=1)))))
PLACES = paths(SMALL)[1:]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(PLACES), JSON)
def test_a_file_with_anything_anywhere_is_read_or_refused(place: tuple[Any, ...], value: object) -> None:
    spoilt = orjson.loads(orjson.dumps(SMALL))
    inner = spoilt
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with suppress(SnapshotError):
        snapshot = parse_snapshot(json.dumps(spoilt).encode())
        assert parse_snapshot(snapshot_bytes(snapshot)) == snapshot


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
@settings(max_examples=50, deadline=None)
def test_any_bytes_are_refused_with_a_sentence(raw: bytes) -> None:
    with pytest.raises(SnapshotError):
        parse_snapshot(raw)


@settings(deadline=None)
@given(st.integers(0, 99), st.data())
def test_booked_and_made_moves_neither_make_nor_lose_load(seed: int, data: st.DataObject) -> None:
    base = cluster(seed, Shape(brokers=4, bundles_each=5))
    chosen = data.draw(st.lists(st.sampled_from(sorted(base.bundles)), unique=True, max_size=6))
    moves = []
    for name in chosen:
        source = base.bundles[name].owner or ""
        destination = data.draw(st.sampled_from([item for item in base.broker_names if item != source]))
        moves.append(BundleMove(name, source, destination, Reason.ADMIN, 1.0, "drawn"))
    after = after_moves(base, moves)
    for field in ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out", "bundles", "topics"):
        before_sum = sum(getattr(broker.load, field) for broker in base.brokers.values())
        assert sum(getattr(broker.load, field) for broker in after.brokers.values()) == pytest.approx(before_sum)
    assert {name: bundle.owner for name, bundle in after.bundles.items()} == {
        **{name: bundle.owner for name, bundle in base.bundles.items()},
        **{move.bundle: move.destination for move in moves},
    }
    booked = [Booked(move.bundle, move.source, move.destination, MovedLoad()) for move in moves]
    assert adjusted(base, booked).bundles.keys() == base.bundles.keys()
    assert sorted(name for names in on_the_way(booked).values() for name in names) == sorted(chosen)
