"""Calls of the admin API that are drawn from its own description, and what may not come of them: `make fuzz N=20000`.

Each call is sent to the application over fakes: none may be answered with a server error that is no refusal, a traceback, or a
status or body that the description does not have, and the memory may not grow with the number of calls.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import jsonschema_rs
import psutil
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core import NotSet
from schemathesis.generation.case import Case

from statechannel.engine.commands import Done, NotFound, Outcome, Rejected, Undetermined, Unknown
from statechannel.http_api.openapi import document_of
from statechannel.http_api.problems import Problem
from statechannel.operations.request_record import Request
from statechannel.protocol.bundle import is_bundle
from statechannel.queries.channel_view import BundleRow
from tests.support.http_fakes import CLIENT, Rig, http_settings

REFUSALS = {503, 504}
"""Server errors that say `try again` or `not known`."""
NOT_SUPPORTED = 501
"""Of Pulsar's paths only."""
PULSAR = "pulsar-"
"""Prefix of the names of Pulsar's paths, which have Pulsar's form of refusals."""
_THERE = {
    "tenant": "t", "namespace": "n", "range": "0x00000000_0xffffffff", "bundle": "0x00000000_0xffffffff", "broker": "b1",
    "cluster": "bundle-state", "domain": "persistent",
}  # fmt: skip
_THERE_IN_QUERY = {"name": "t/n/orders", "namespace": "t/n"}
_QUARTERS = 4
_KEPT = 100
_STREAMS = {"follow-changes", "feed-page"}
_NO_TOPICS = {
    "list-operations",
    "list-policies",
    "list-overrides",
    "list-loads",
    "list-cordons",
    "list-decisions",
    "show-decision",
    "why",
    "why-not",
}
_NO_TOPICS |= {"pulsar-isolations", "pulsar-isolation"}
_NO_TOPICS |= {"audit", "audit-owner", "audit-history", "audit-gaps", "audit-diff"}
_WRITES = {"set-policy", "end-policy", "set-override", "end-override", "drain", "uncordon"}
_WRITES |= {"pulsar-set-isolation", "pulsar-delete-isolation"}


class FuzzResult(NamedTuple):
    """What came of the calls.

    Attributes:
        statuses: Number of answers by operation and status.
        tracebacks: Number of answers that have one.
        faults: What may not be, with the call.
        sizes_bytes: Memory of the process (RSS) at the begin and after each quarter of the calls, hypothesis included.
    """

    calls: int
    statuses: Mapping[str, Mapping[int, int]]
    tracebacks: int
    faults: list[str]
    sizes_bytes: list[int]


class _Ends:
    """Each kind of end at random: the same calls have the same ends."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def __call__(self, request: Request) -> Outcome | None:
        ends: tuple[Outcome | None, ...] = (
            Done(request.id, "done", {"x": 1}),
            Rejected("busy", "later"),
            Rejected("bad-split", "not so"),
            NotFound("unknown-bundle", "gone"),
            Undetermined("timed-out", "it goes on"),
            Unknown(request.id, "not known"),
            None,
        )
        return self._random.choice(ends)


class _Run:
    def __init__(self) -> None:
        self.rig = Rig(http_settings(answer_timeout_s=20, pulsar_paths=True), _Ends())
        self._add_parts()
        self.document = document_of(self.rig.routes)
        self.statuses: dict[str, Counter[int]] = {}
        self.faults: list[str] = []
        self.calls = self.tracebacks = 0
        self._validators: dict[tuple[str, str], Any] = {}
        self._problem = jsonschema_rs.validator_for(
            self._resolved({"$ref": f"#/components/schemas/{Problem.__name__}"})
        )

    def _add_parts(self) -> None:
        """Each part of the one bundle is live, too: a split that ends well is one whose parts are there."""
        row = self.rig.cluster.row

        async def bundle(name: str) -> BundleRow | None:
            known = is_bundle(name) and name.startswith("t/n/")
            return {**row, "bundle": name} if known else None

        self.rig.cluster.bundle = bundle  # type: ignore[method-assign]

    def operations(self) -> list[Any]:
        schema = schemathesis.openapi.from_dict(self.document)
        every = [result.ok() for result in schema.get_all_operations()]
        every = [operation for operation in every if "unsupported" not in operation.definition.raw["operationId"]]
        # Those that read topics, or are written to them, need a Kafka; a stream has no end.
        left_out = _STREAMS | _NO_TOPICS | _WRITES
        return [operation for operation in every if operation.definition.raw["operationId"] not in left_out]

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {**schema, "components": self.document["components"]}

    def forget(self) -> None:
        """Forget all requests but the newest, which are asked for."""
        requests = self.rig.requests
        del requests.written[:-_KEPT]
        requests.acted.clear()
        kept = {request.id for request in requests.written}
        for identifier in set(requests.fold.stories) - kept:
            del requests.fold.stories[identifier]

    def _there(self) -> Mapping[str, str]:
        written = self.rig.requests.written
        return {**_THERE, "operation": written[-1].id} if written else _THERE

    def _body(self, drawn: Any) -> Any:
        """The body with names of what is there, and of a namespace that is not."""
        there = {"namespace": f"t/n{self.calls}", "destination": "b2", "name": "t/n/orders", "timeout_s": 5}
        if not isinstance(drawn, dict):
            return drawn
        return {name: there.get(name, value) for name, value in drawn.items()}

    async def call(self, client: httpx.AsyncClient, case: Case) -> None:
        self.calls += 1
        name = case.operation.definition.raw["operationId"]
        headers = {key: value for key, value in (case.headers or {}).items() if _is_sendable(key, value)}
        path = case.path
        known = self._there() if self.calls % 2 else {}  # every other call is about what is there
        for part, value in (case.path_parameters or {}).items():
            path = path.replace("{" + part + "}", quote(str(known.get(part, value)), safe="") or "-")
        body: dict[str, Any] = {}
        if case.body is not None and not isinstance(case.body, NotSet):
            try:
                body = {
                    "content": json.dumps(self._body(case.body) if known else case.body).encode(),
                    "headers": {**headers, "Content-Type": "application/json"},
                }
            except (TypeError, ValueError):
                body = {}
        query = {str(key): str(value) for key, value in (case.query or {}).items()}
        query |= {name: value for name, value in _THERE_IN_QUERY.items() if known and name in query}
        response = await client.request(case.method, path, params=query, **({"headers": headers} | body))
        self.statuses.setdefault(name, Counter())[response.status_code] += 1
        fault = self._fault(name, case, response)
        if fault:
            self.faults.append(
                f"{case.method} {path} {query} {headers} {case.body!r}: {response.status_code} {fault}"[:1_000]
            )

    def _fault(self, name: str, case: Case, response: httpx.Response) -> str:
        kind, is_pulsar = response.headers.get("content-type", ""), name.startswith(PULSAR)
        refusals = REFUSALS | ({NOT_SUPPORTED} if is_pulsar else set())
        if response.status_code >= 500 and response.status_code not in refusals:
            return f"is a server error: {response.text[:300]}"
        if "Traceback" in response.text:
            self.tracebacks += 1
            return "has a traceback"
        if response.status_code >= 400 and is_pulsar:
            is_whole = kind == "application/json" and [type(text) for text in response.json().values()] == [str]
            return "" if is_whole and "reason" in response.json() else f"is no refusal of Pulsar's form but {kind}"
        if response.status_code >= 400:
            if kind != "application/problem+json":
                return f"is no problem document but {kind}"
            errors = [error.message for error in self._problem.iter_errors(response.json())]
            return f"is not a whole problem: {errors[0]}" if errors else ""
        described = case.operation.definition.raw["responses"].get(str(response.status_code))
        if described is None:
            return "has a status that is not described"
        schema = described["content"]["application/json"]["schema"]
        if schema.get("type") == "null":
            return "" if response.content == b"" else "has a body"
        if schema.get("type") == "string":
            return "" if kind.startswith("text/plain") else f"is no plain text but {kind}"
        key = (name, str(response.status_code))
        if key not in self._validators:
            self._validators[key] = jsonschema_rs.validator_for(self._resolved(schema))
        errors = [error.message for error in self._validators[key].iter_errors(response.json())]
        return f"is not as described: {errors[0]}" if errors else ""


def _is_sendable(name: str, value: object) -> bool:
    text = str(value)
    return (
        name.lower() not in ("host", "content-type") and text.isascii() and text.isprintable() and text == text.strip()
    )


def fuzz(calls: int, seed_number: int) -> FuzzResult:
    """Send so many calls, a share for each operation."""
    run = _Run()
    loop = asyncio.new_event_loop()
    client = run.rig.client(**CLIENT)
    # Those without anything to draw are exhausted by one call; the others have their share.
    operations = sorted(run.operations(), key=lambda operation: sum(1 for _ in operation.iter_parameters()))
    sizes = [psutil.Process().memory_info().rss]
    try:
        for quarter in range(_QUARTERS):
            left = calls * (quarter + 1) // _QUARTERS - run.calls
            for number, operation in enumerate(operations):
                before, most = run.calls, max(1, left // (len(operations) - number))

                @seed(seed_number + quarter)
                @settings(
                    max_examples=most, phases=[Phase.generate], database=None, deadline=None,
                    suppress_health_check=list(HealthCheck),
                )  # fmt: skip
                @given(
                    case=operation.as_strategy()
                    | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
                )
                def send(case: Case) -> None:
                    loop.run_until_complete(run.call(client, case))

                send()
                left -= run.calls - before
            run.forget()
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss)
    finally:
        loop.run_until_complete(client.aclose())
        loop.close()
    return FuzzResult(run.calls, run.statuses, run.tracebacks, run.faults, sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = fuzz(options.calls, options.seed)
    for name, statuses in sorted(result.statuses.items()):
        shown = ", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))
        sys.stdout.write(f"{name}: {shown}\n")
    errors = sum(
        count
        for statuses in result.statuses.values()
        for status, count in statuses.items()
        if status >= 500 and status not in REFUSALS | {NOT_SUPPORTED}
    )
    memory = " -> ".join(f"{size / 2**20:.1f}" for size in result.sizes_bytes)
    sys.stdout.write(
        f"{result.calls:,} calls, {errors} server errors, {result.tracebacks} tracebacks, {len(result.faults)} faults in all; "
        f"memory {memory} MiB\n"
    )
    sys.stdout.writelines(f"FAULT {fault}\n" for fault in result.faults[:20])
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
