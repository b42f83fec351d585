"""Moves where every live broker checks policies itself: they are written at once, and the refusal is their end."""

import pytest

from statechannel.engine.commands import Rejected
from tests.support.http_fakes import PATH, accept, rigged

MOVE = {"destination": "b2"}


@pytest.mark.parametrize("reason", ["disks", "forced past the filters: not so"])
async def test_where_every_broker_checks_moves_itself_one_request_is_enough(reason):
    def filtered(request):
        return accept(request) if request.args["force"] else Rejected("filtered", "b2 is cordoned")

    async with rigged(filtered) as (rig, client):
        rig.cluster.checks = frozenset({"may-take"})
        wait = {"Prefer": "wait=5"}
        answer = await client.post(f"{PATH}/transfer", json={**MOVE, "reason": reason}, headers=wait)
        assert (answer.status_code, answer.json()["reason"]) == (409, "filtered")
        assert answer.json()["operation"] == rig.requests.written[0].id
        assert [(request.asked, request.args["force"]) for request in rig.requests.written] == [("transfer", False)]
        forced = await client.post(f"{PATH}/transfer", json={**MOVE, "force": True}, headers=wait)
        assert forced.status_code == 200
        assert rig.requests.written[-1].args["force"]
