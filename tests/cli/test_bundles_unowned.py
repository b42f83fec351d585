"""`statechannel bundles` names who declined a bundle that has no owner."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from statechannel.audit.views import LogViews
from statechannel.cli import bundles
from statechannel.replay.auditor import audit_part
from statechannel.replay.part import each_of
from tests.unit.audit.test_story import LOWER, NAMESPACE, UPPER, Log


def test_bundles_names_who_declined_one_without_an_owner(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    log.write(f"{NAMESPACE}/{LOWER}", "Assigning", to="b1")
    log.write(f"{NAMESPACE}/{LOWER}", "Unassigned", action="decline", reason="no disk", **{"from": "b1"})

    def read(_: object, observers: Any = ()) -> LogViews:
        return LogViews((audit_part(0, 1, log.records, observe=each_of(observers)),), (log.at_ms,))

    monkeypatch.setattr(bundles, "read_channel", read)
    place = ["-b", "127.0.0.1:1"]
    rows = json.loads(run("bundles", "-o", "json", *place).stdout)["bundles"]
    assert {row["bundle"].rpartition("/")[2]: row["declined_by"] for row in rows} == {LOWER: ["b1"], UPPER: []}
    assert "declined by" in run("bundles", *place).stdout
    rows = json.loads(run("bundles", "--unowned", "-o", "json", *place).stdout)["bundles"]
    assert [row["bundle"] for row in rows] == [f"{NAMESPACE}/{LOWER}"], "the other one nobody has asked for"
    log.write(f"{NAMESPACE}/{LOWER}", "Assigning", to="b2")
    assert len(json.loads(run("bundles", "--unowned", "-o", "json", *place).stdout)["bundles"]) == 1, "it is on its way"
    log.write(f"{NAMESPACE}/{LOWER}", "Assigned", to="b2", by="b2")
    assert run("bundles", "--unowned", *place).stdout == "every bundle that had an owner has one\n"
