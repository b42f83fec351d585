"""What an operator does meanwhile: transfers, splits, unloads, namespaces that come and go, asked as commands ask."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from typing import Any

from statechannel.cli.kit.connection import connect
from statechannel.cli.kit.requests import ask
from statechannel.errors import StateChannelError
from statechannel.operations import outcomes
from statechannel.operations.table import RequestCommand as Command
from statechannel.queries.connection import Connection
from tests.faults.history import Asked, History

OPEN_MAX = 3
TIMEOUT_S = 12.0
INTERVAL_S = (0.3, 1.5)
BUNDLES_MAX = 60
CHURN = "churn"
_ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
_WEIGHTS = {"transfer": 10, "unload": 3, "split": 2, "create": 1, "delete": 1}


def make_connection(address: str, channel: str, settings: dict[str, Any]) -> Connection:
    flags = [f"{name}={value}" for name, value in settings.items()]
    return connect(address, channel, None, None, [*flags, "kafka.command_timeout_s=8"])


class Operations:
    """Asks for one thing after the other while it is let.

    Args:
        bundles: Live bundles as some broker knows them now: name to [state, owner, generation].
    """

    def __init__(
        self,
        connection: Connection,
        brokers: list[str],
        bundles: Callable[[], Any],
        history: History,
        rng: random.Random,
    ) -> None:
        self._connection, self._brokers, self._bundles = connection, brokers, bundles
        self._history, self._rng = history, rng
        self._created = 0
        self.allowed = asyncio.Event()
        self.open: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        while True:
            await self.allowed.wait()
            await asyncio.sleep(self._rng.uniform(*INTERVAL_S))
            if len(self.open) >= OPEN_MAX or not self.allowed.is_set():
                continue
            known: dict[str, list[Any]] = await self._bundles()
            chosen = self._choose(known)
            if chosen is not None:
                task = asyncio.create_task(self.ask(*chosen))
                self.open.add(task)
                task.add_done_callback(self.open.discard)

    async def quiet(self) -> None:
        """Ask for no more, and wait for what is open."""
        self.allowed.clear()
        if self.open:
            await asyncio.wait(set(self.open))

    def _choose(self, known: dict[str, list[Any]]) -> tuple[str, dict[str, Any]] | None:
        rng = self._rng
        kind = rng.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
        namespaces = {name.rpartition("/")[0] for name in known}
        churned = sorted(name for name in namespaces if CHURN in name)
        if kind == "create":
            if len(churned) > 3:
                return None
            self._created += 1
            name = f"faults/{CHURN}-{rng.randrange(4)}"
            return kind, {"namespace": name, "bundles": rng.choice([1, 2, 3])}
        if kind == "delete":
            return (kind, {"namespace": rng.choice(churned)}) if churned else None
        if not known or (kind == "split" and len(known) > BUNDLES_MAX):
            return None
        bundle = rng.choice(sorted(known))
        if kind == "transfer":
            others = [broker for broker in self._brokers if broker != known[bundle][1]]
            return kind, {"name": bundle, "destination": rng.choice(others)}
        return kind, {"name": bundle} | ({"parts": 2} if kind == "split" else {})

    async def ask(self, kind: str, args: dict[str, Any]) -> Asked:
        """Ask, and note what came back."""
        noted = Asked(kind, args, time.monotonic_ns())
        self._history.asked.append(noted)
        try:
            answer = await asyncio.to_thread(ask, self._connection, _COMMANDS[kind], args, timeout_s=TIMEOUT_S)
        except StateChannelError as error:
            noted.answer, noted.facts = "error", {"error": str(error)}
            match = _ULID.search(str(error))
            noted.operation = match.group() if match else None
        else:
            noted.operation, noted.started = answer.operation, dict(answer.started or {}) or None
            if answer.outcome is not None:
                noted.answer, noted.facts = outcomes.name_of(answer.outcome), outcomes.to_json(answer.outcome)
        noted.got_ns = time.monotonic_ns()
        return noted


_COMMANDS = {
    "transfer": Command.TRANSFER,
    "unload": Command.UNLOAD,
    "split": Command.SPLIT,
    "create": Command.CREATE_NAMESPACE,
    "delete": Command.DELETE_NAMESPACE,
}
