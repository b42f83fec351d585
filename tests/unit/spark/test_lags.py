"""Offsets as Spark tells them, and how far a query is behind."""

import pytest

from spark.core.metrics import lags, parse_offsets


def test_lag_is_what_is_left_of_each_partition():
    read_to = '{"bundle-state":{"0":40,"1":7}}'
    assert lags(read_to, '{"bundle-state":{"0":100,"1":7}}') == {("bundle-state", 0): 60, ("bundle-state", 1): 0}


def test_a_log_that_was_cut_short_has_no_negative_lag():
    assert lags('{"a":{"0":40}}', '{"a":{"0":3}}') == {("a", 0): 0}


def test_a_partition_that_was_not_read_is_left_out():
    assert lags('{"a":{"0":40}}', '{"a":{"0":50,"1":5}}') == {("a", 0): 10}


@pytest.mark.parametrize(
    "text", [None, "null", "12", "{", '{"a":1}', '{"a":{"x":1}}', '[{"a":{"0":1}}]', '{"a":{"0":"1"}}']
)
def test_what_is_no_offset_of_kafka_is_nothing(text):
    """Other sources tell other things, and a first batch has no offsets."""
    assert parse_offsets(text) == {}
    assert lags(text, '{"a":{"0":50}}') == {}
