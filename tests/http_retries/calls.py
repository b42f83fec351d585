"""Calls that change something, and clients that send each again, at any broker, until they have its answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

import httpx

from statechannel.protocol.states import State

NAMESPACE: Final = "retries/all"
WAIT: Final = {"Statechannel-Client": "retries", "Prefer": "wait=10"}
CALL_TIMEOUT_S: Final = 20.0
AGAIN_S: Final = 0.2
CALL_ENDS_S: Final = 180.0
"""A call without an answer after this time is given up: nobody knows how it ended."""
TWICE_SHARE: Final = 0.3
"""Of the calls: sent to two brokers at once; and, of those that are answered, once more afterwards."""
LIST_EVERY: Final = 50
FIRST_STATE: Final = {
    "transfer": State.RELEASING,
    "unload": State.RELEASING,
    "split": State.SPLITTING,
    "create": State.ACTIVE,
}
"""By kind of call the state of the record that begins it; a call that acted twice has two of them accepted."""
KINDS: Final = ("transfer",) * 9 + ("unload",) * 5 + ("lookup",) * 5 + ("create",)
SPLIT_EVERY: Final = 100


class Answer(NamedTuple):
    """What came back for one attempt.

    Attributes:
        operation: Of the request in the log; None: the call was refused before one was written.
        end: Status and code by which it ended; None while it goes on.
    """

    broker: str
    operation: str | None
    end: tuple[int, str] | None


@dataclass(slots=True)
class RetriedCall:
    """One call, under one `Idempotency-Key`, and all its answers."""

    number: int
    kind: str
    path: str
    body: Mapping[str, Any]
    answers: list[Answer] = field(default_factory=list)
    attempts: int = 0
    given_up: bool = False

    @property
    def key(self) -> str:
        return f"call-{self.number}"

    @property
    def ends(self) -> list[Answer]:
        """The answers that say how the logged request ended."""
        return [answer for answer in self.answers if answer.operation is not None and answer.end is not None]


class RetryingClients:
    """Clients that share a list of calls.

    Args:
        urls: Address of each broker's API; a dead one refuses connections.
        plant_new_keys: Break the rule: each attempt has a key of its own.
    """

    def __init__(self, urls: Mapping[str, str], seed: int, *, plant_new_keys: bool = False) -> None:
        self._urls = dict(urls)
        self._rng = Random(f"{seed}/calls")
        self._plant = plant_new_keys
        self._bundles: list[str] = []
        self._client = httpx.AsyncClient(timeout=CALL_TIMEOUT_S, limits=httpx.Limits(max_connections=200))
        self.calls: list[RetriedCall] = []
        self.troubles: Counter[str] = Counter()

    async def close(self) -> None:
        await self._client.aclose()

    async def run(self, calls: int, at_once: int) -> None:
        """Make so many calls, some at a time."""
        numbers = iter(range(calls))
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._work(numbers))

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % LIST_EVERY == 0 or not self._bundles:
                await self._list()
            call = self._draw(number)
            self.calls.append(call)
            await self._make(call)

    async def _list(self) -> None:
        """The bundles of now, as any broker has them."""
        for _ in range(round(CALL_ENDS_S / AGAIN_S)):
            broker = self._rng.choice(sorted(self._urls))
            try:
                bundles: list[str] = []
                after: str | None = ""
                while after is not None:
                    query = {"namespace": NAMESPACE, "limit": 1_000, "after": after}
                    page = await self._client.get(f"{self._urls[broker]}/v1/bundles", params=query)
                    document = page.raise_for_status().json()
                    bundles += [row["bundle"] for row in document["bundles"]]
                    after = document["next"]
            except httpx.HTTPError:
                await asyncio.sleep(AGAIN_S)
                continue
            if bundles:
                self._bundles = bundles
                return
        raise TimeoutError(f"no broker lists the bundles of {NAMESPACE} within {CALL_ENDS_S:g} s")

    def _draw(self, number: int) -> RetriedCall:
        rng = self._rng
        kind = "split" if number % SPLIT_EVERY == SPLIT_EVERY - 1 else rng.choice(KINDS)
        bundle = rng.choice(self._bundles)
        if kind == "create":
            return RetriedCall(number, kind, "/v1/namespaces", {"namespace": f"retries/n{number}", "bundles": 1})
        if kind == "lookup":
            return RetriedCall(number, kind, "/v1/lookup", {"name": bundle})
        body: dict[str, Any] = {} if kind == "split" else {"force": rng.random() < 0.5}
        if kind == "transfer":
            body["destination"] = rng.choice(sorted(self._urls))
        return RetriedCall(number, kind, f"/v1/bundles/{bundle}/{kind}", body)

    async def _make(self, call: RetriedCall) -> None:
        """Send it until one attempt says how it ended, or that it was refused before anything was written."""
        rng = self._rng
        try:
            async with asyncio.timeout(CALL_ENDS_S):
                while True:
                    brokers = rng.sample(sorted(self._urls), 2 if rng.random() < TWICE_SHARE else 1)
                    answers = await asyncio.gather(*(self._attempt(call, broker) for broker in brokers))
                    if any(answer is not None and answer.end is not None for answer in answers):
                        break
                    await asyncio.sleep(AGAIN_S)
                if rng.random() < TWICE_SHARE:
                    await self._attempt(call, rng.choice(sorted(self._urls)))
        except TimeoutError:
            call.given_up = True

    async def _attempt(self, call: RetriedCall, broker: str) -> Answer | None:
        call.attempts += 1
        key = f"{call.key}-{call.attempts}" if self._plant else call.key
        headers = {**WAIT, "Idempotency-Key": key}
        try:
            response = await self._client.post(
                f"{self._urls[broker]}{call.path}", json=dict(call.body), headers=headers
            )
            document = response.json()
        except (httpx.HTTPError, ValueError) as error:
            self.troubles[type(error).__name__] += 1
            return None
        answer = answer_of(broker, response.status_code, document)
        call.answers.append(answer)
        if answer.end is None:
            self.troubles[str(document.get("reason") or "pending")] += 1
        return answer


def answer_of(broker: str, status: int, document: Mapping[str, Any]) -> Answer:
    """What an answer says: a refusal that may be tried again, and a request without an end, are no end."""
    operation = document.get("operation")
    pending = status == httpx.codes.ACCEPTED or (operation is None and document.get("retryable") is True)
    code = document.get("reason") or document.get("result") or document.get("outcome")
    return Answer(broker, operation, None if pending else (status, str(code)))


def counts(calls: Sequence[RetriedCall]) -> dict[str, int]:
    """Numbers for the report."""
    answered = [call for call in calls if call.ends]
    return {
        "calls": len(calls),
        "attempts": sum(call.attempts for call in calls),
        "sent more than once": sum(call.attempts > 1 for call in calls),
        "ended in the log": len(answered),
        "refused before they were written": sum(not call.ends and not call.given_up for call in calls),
        "given up": sum(call.given_up for call in calls),
        "answered by more than one broker": sum(len({end.broker for end in call.ends}) > 1 for call in answered),
    }
