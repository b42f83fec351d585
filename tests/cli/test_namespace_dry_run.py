"""A dry run of `namespace create` makes the checks of the leader, and writes nothing."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from statechannel.audit.views import LogViews
from statechannel.cli import bundles
from statechannel.cli.kit import requests
from statechannel.errors import ExitCode
from statechannel.replay.auditor import audit_part
from tests.unit.audit.test_story import LOWER, NAMESPACE, UPPER, Log


@pytest.fixture
def create(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a dry run writes nothing")

    views = LogViews((audit_part(0, 1, log.records, observe=lambda *_: None),), (log.at_ms,))
    monkeypatch.setattr(bundles, "read_channel", lambda _: views)
    alive: Any = SimpleNamespace(members=SimpleNamespace(alive={"b1": None}))
    monkeypatch.setattr(bundles, "read_registry", lambda _: alive)
    monkeypatch.setattr(requests, "send", refuse)

    def create(name: str, *words: str) -> Result:
        return run("namespace", "create", name, "--dry-run", "-b", "127.0.0.1:1", "-o", "json", *words)

    return create


def test_what_would_be_created(create: Callable[..., Result]) -> None:
    document = json.loads(create("shop/new", "--bundles", "12").stdout)
    assert document["dry_run"] is True
    assert (document["namespace"], document["bundles"]) == ("shop/new", 12)
    assert document["would"] == ["shop/new would be created with 12 bundles"]
    assert json.loads(create("shop/new").stdout)["bundles"] == 4


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        (NAMESPACE, (), f"rejected (namespace-exists): {NAMESPACE} exists already, with 2 bundles"),
        (
            "brokers/b1",
            ("--set", 'lookups.bound_tenants=["brokers"]'),
            "rejected (bound-namespace): brokers/b1 belongs to",
        ),
    ],
)
def test_what_the_leader_would_refuse(create: Callable[..., Result], name: str, words: tuple[str, ...], sentence: str):
    refused = create(name, *words)
    assert refused.exit_code == ExitCode.REJECTED
    assert sentence in refused.stderr
