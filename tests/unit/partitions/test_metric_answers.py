"""Addresses and answers of servers of metrics that cannot be used: a reason, and never another exception."""

import orjson
import pytest

from loaddata.samples.prometheus_source import AnswerError, checked_url, make, part_of, vector_of
from loaddata.samples.sources import SourceError, SourceOptions


@pytest.mark.parametrize("url", ["http://h h/", "http://h\n/", "http://h/\u20ac", "http://h/\x1b[31m"])
def test_an_address_that_no_request_can_hold_is_refused_at_once(url: str) -> None:
    with pytest.raises(SourceError, match="is not an address of metrics"):
        checked_url(url)


def test_a_partition_of_absurdly_many_digits_is_none() -> None:
    assert part_of({"topic": "t", "partition": "1" * 5_000}) is None
    assert part_of({"topic": "t", "partition": "7"}) == ("t", 7)
    with pytest.raises(SourceError, match="is not an address of metrics"):
        make(SourceOptions(endpoints=("1" * 5_000 + "=http://h/",)))


@pytest.mark.parametrize("metric", [{"instance": 5}, {"topic": None}, {"partition": {"a": 1}}])
def test_labels_that_are_no_texts_are_no_answer(metric: dict[str, object]) -> None:
    body = orjson.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": [0, "1"]}]}}
    )
    with pytest.raises(AnswerError, match="a label is not text"):
        vector_of(body)
