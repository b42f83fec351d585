"""Offsets as Spark tells them, and how far a query is behind."""

import pytest

from spark.core.metrics import lags, parse_offsets


@pytest.mark.parametrize(
    ("read_to", "end", "lag"),
    [
        ('{"a":{"0":40,"1":7}}', '{"a":{"0":100,"1":7}}', {("a", 0): 60, ("a", 1): 0}),
        ('{"a":{"0":40}}', '{"a":{"0":3}}', {("a", 0): 0}),
        ('{"a":{"0":40}}', '{"a":{"0":50,"1":5}}', {("a", 0): 10}),
    ],
    ids=["what is left", "a log that was cut short", "a partition that was not read"],
)
def test_lag(read_to, end, lag):
    assert lags(read_to, end) == lag


@pytest.mark.parametrize(
    "text", [None, "null", "12", "{", '{"a":1}', '{"a":{"x":1}}', '[{"a":{"0":1}}]', '{"a":{"0":"1"}}']
)
def test_what_is_no_offset_of_kafka_is_nothing(text):
    """Other sources tell other things, and a first batch has no offsets."""
    assert parse_offsets(text) == {}
    assert lags(text, '{"a":{"0":50}}') == {}
