"""Names that look like a bundle's bounds, over the admin API."""

import pytest

from tests.support.http_fakes import rigged


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_name_that_looks_like_bounds_is_looked_up_and_never_assigned(dry_run):
    async with rigged(lambda _: None) as (_, client):
        body = {"dry_run": dry_run}
        problem = (await client.post("/v1/lookup", json=body | {"name": "t/n/0X00000000_0X80000000"})).json()
        assert (problem["status"], problem["reason"]) == (404, "bad-name")
        assert "persistent://" in problem["hint"]
        answer = await client.post("/v1/lookup", json=body | {"name": "persistent://t/n/0X00000000_0X80000000"})
        assert answer.status_code in (200, 202)
        answer = await client.get("/v1/lookup", params={"name": "t/n/0X00000000"})
        assert answer.json()["bundle"].startswith("t/n/0x")
