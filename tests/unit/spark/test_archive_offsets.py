"""Which offsets an archive has to hold, against counting them one by one."""

from collections import Counter
from random import Random

import pytest

from spark.core import archive
from spark.core.archive import Counted, Cover, Stretch, covers_of, doubled, missing, why_gapped


@pytest.fixture
def bucket(monkeypatch):
    """Buckets that are small enough for borders to be met."""
    monkeypatch.setattr(archive, "BUCKET", 8)
    return 8


def counted(held: Counter[int], cover: Cover, bucket: int) -> dict[tuple[int, int], Counted]:
    results = {}
    for number in {offset // bucket for offset in held}:
        inside = {offset: times for offset, times in held.items() if offset // bucket == number}
        needed = sum(not any(stretch.first <= offset < stretch.end for stretch in cover.gapped) for offset in inside)
        results[0, number] = Counted(sum(inside.values()), len(inside), needed)
    return results


def test_what_is_missing_and_what_is_there_twice(bucket):
    for seed in range(300):
        check_offsets(bucket, Random(seed))


def check_offsets(bucket, rng):
    position = rng.randint(0, 40)
    bounds = sorted(rng.sample(range(position + 1), min(position + 1, rng.choice([0, 2, 4])) // 2 * 2))
    cover = Cover(position, tuple(Stretch(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True)))
    legal = {offset for stretch in cover.gapped for offset in range(stretch.first, stretch.end)}
    held = Counter({offset: 1 for offset in range(position) if rng.random() < rng.choice([0.5, 0.95, 1])})
    held.update({offset: 1 for offset in held if rng.random() < rng.choice([0, 0, 0.1])})
    away = [offset for offset in range(position) if offset not in held and offset not in legal]
    twice = sorted(offset for offset, times in held.items() if times > 1)

    buckets = counted(held, cover, bucket)
    lacking = missing({0: cover}, buckets)
    assert {number: wrong.amount for number, wrong in lacking.items()} == ({0: len(away)} if away else {})
    if away:
        first = cover.first_missing(lacking[0].bucket, held.keys())
        assert first == away[0]
        last = cover.last_missing(first, min((offset for offset in held if offset > first), default=None))
        assert list(range(first, last + 1)) == away[: last - first + 1]
        assert last + 1 not in away
    wrong = doubled(buckets)
    assert {number: (item.bucket, item.amount) for number, item in wrong.items()} == (
        {0: (twice[0] // bucket, len(twice))} if twice else {}
    )


def test_stretches_of_the_pointer_are_put_in_order_and_together():
    stretches = [(0, 9, 12), (1, 0, 4), (0, 2, 3), (0, 4, 5), (0, 11, 19)]
    meta = {
        "partitions": {"0": {"position": 30}, "1": {"position": 5}, "2": {"position": 0}},
        "incomplete": [{"partition": p, "from_offset": a, "to_offset": b} for p, a, b in stretches],
    }
    covers = covers_of(meta)
    assert covers == {0: Cover(30, (Stretch(2, 6), Stretch(9, 20))), 1: Cover(5, (Stretch(0, 5),)), 2: Cover(0)}
    assert why_gapped(covers[0]).startswith("is incomplete from offset 2 to 5, from offset 9 to 19, where")
    assert why_gapped(covers[2]) == ""
    assert missing(covers, {}).keys() == {0}
