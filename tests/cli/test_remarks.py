"""What policies add to `brokers` and `status`: an operator looks there first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli import plugins as of_policies
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyKey, PolicyRecord, encode
from statechannel.cli.kit import remarks
from statechannel.cli.kit.remarks import Remarks
from statechannel.errors import StateChannelError

NOW_MS = 1_000_000


def book(*records: PolicyRecord) -> PolicyBook:
    book = PolicyBook()
    for offset, record in enumerate(records):
        book.take(offset, NOW_MS, record.key.encode(), encode(record))
    return book


def record(kind: PolicyKind, name: str, *, until_ms: int | None = None, **value: Any) -> PolicyRecord:
    return PolicyRecord(PolicyKey(kind, name, until_ms is not None), value, "ann@desk", "new disks", until_ms, NOW_MS)


def said(monkeypatch: pytest.MonkeyPatch, *records: PolicyRecord) -> Remarks:
    monkeypatch.setattr(of_policies, "book_of", lambda _: book(*records))
    monkeypatch.setattr(of_policies, "now_ms", lambda: NOW_MS + 1)
    return of_policies.policy_remarks(SimpleNamespace())  # type: ignore[arg-type]


def test_nothing_is_laid_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch) == Remarks([], {})


def test_cordons_shedding_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = said(
        monkeypatch,
        record(PolicyKind.CORDON, "b2"),
        record(PolicyKind.SHEDDING, "cluster", until_ms=NOW_MS + 60_000, on=False),
        record(PolicyKind.CORDON, "b3", until_ms=NOW_MS),
    )
    assert remarks.brokers == {"b2": "cordoned (ann@desk: new disks)"}
    assert remarks.cluster[0].startswith("shedding is off")
    assert remarks.cluster[1:] == ["1 override is in force (`statechannel override list`)"]


def test_who_cannot_tell_keeps_nobody_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Remarks:
        raise StateChannelError("the topic is not there")

    points = [
        SimpleNamespace(name="b", load=lambda: lambda _: Remarks(["one"], {"b1": "two"})),
        SimpleNamespace(name="c", load=lambda: lambda _: Remarks((), {"b1": "three"})),
        SimpleNamespace(name="a", load=lambda: broken),
    ]
    monkeypatch.setattr(remarks, "entry_points", lambda group: points if group == remarks.GROUP else [])
    result = remarks.remarks(SimpleNamespace())  # type: ignore[arg-type]
    assert result == Remarks(["a could not be read: the topic is not there", "one"], {"b1": "two; three"})
