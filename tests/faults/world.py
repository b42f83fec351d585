"""The processes of one run, and what is asked of all of them together."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tests.faults.brokers import Brokers, Incarnation
from tests.faults.clients import Clients
from tests.faults.history import LeftInDebt
from tests.faults.kafka_nodes import KafkaNodes
from tests.faults.log_copy import LogCopy

REFUSED_AS_IN_USE = 15
ASK_S = 1.0
LEADER_S = 3.0
WAITS_S, LOOK_S = 60.0, 3.0
"""How long brokers may take to end, start and wait; an operator looks for the second before he acts."""


class World:
    """Kafka, brokers and clients of a run.

    Attributes:
        deleted_below: By partition of the channel, up to where a fault deleted its records.
        uncommitted: Values of records of transactions that are not known to be committed.
    """

    def __init__(self, kafka: KafkaNodes, brokers: Brokers, clients: Clients, copy: LogCopy) -> None:
        self.kafka, self.brokers, self.clients, self.copy = kafka, brokers, clients, copy
        self.left_in_debt: list[LeftInDebt] = []
        self.deleted_below: dict[int, int] = {}
        self.uncommitted: set[bytes] = set()

    # --- for faults -------------------------------------------------------------------------------------------------

    async def resolve(self, target: str) -> str:
        """The broker that a role means now; the first one where nobody has that role."""
        ids = self.brokers.ids
        if target in ids:
            return target
        until_s = time.monotonic() + LEADER_S
        while True:
            broker = await self._role(target)
            if broker is not None or time.monotonic() > until_s:
                return broker or ids[0]
            await asyncio.sleep(0.2)

    async def _role(self, target: str) -> str | None:
        answers = await self.ask_all("status" if target == "leader" else "serving")
        if target == "leader":
            return next((process.broker for process, answer in answers.items() if answer["status"]["leading"]), None)
        busiest = max(answers.items(), key=lambda item: len(item[1]["serving"]), default=None)
        return None if busiest is None or not busiest[1]["serving"] else busiest[0].broker

    def start_if_down(self, brokers: Iterable[str]) -> None:
        for broker in brokers:
            process = self.brokers.current.get(broker)
            if process is None or not process.running:
                self.brokers.start(broker)
            self.brokers.held_down.discard(broker)

    async def gone(self, victims: Sequence[Incarnation], timeout_s: float) -> None:
        """Wait until processes that were told to go have gone."""
        until_s = time.monotonic() + timeout_s
        while any(victim.running for victim in victims) and time.monotonic() < until_s:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)

    async def start_nodes(self) -> None:
        await asyncio.gather(*(node.start() for node in self.kafka.nodes if not node.alive))

    async def accept_loss(self) -> None:
        """What an operator does whose brokers all wait for records that none of them has: one is started to accept the loss."""
        until_s, waiting_s = time.monotonic() + WAITS_S, 0.0
        while time.monotonic() < until_s:
            answers = await self.ask_all("status")
            caught_up = [process for process, answer in answers.items() if answer["status"]["caught_up"]]
            if len(caught_up) == len(self.brokers.ids):
                return
            waiting = [process for process in self.brokers.running() if process.tells("log.restatement-awaited")]
            if caught_up or not waiting:
                waiting_s = 0.0
            elif (waiting_s := waiting_s or time.monotonic()) < time.monotonic() - LOOK_S:
                process = waiting[0]
                self.brokers.held_down.add(process.broker)
                process.kill()
                self.brokers.start(process.broker, "leader.accept_lost_head=true", "membership.take_over=true")
                return
            await asyncio.sleep(0.3)

    # --- asking all -------------------------------------------------------------------------------------------------

    async def ask_all(self, do: str, timeout_s: float = ASK_S) -> dict[Incarnation, dict[str, Any]]:
        """What every broker that is up answers; those that do not answer are missing."""
        asked = self.brokers.up()
        answers = await asyncio.gather(*(self.clients.ask(process.url or "", do, timeout_s) for process in asked))
        return {process: answer for process, answer in zip(asked, answers, strict=True) if answer.get("ok")}

    async def bundles(self) -> dict[str, list[Any]]:
        """Live bundles as any one broker knows them: state, owner, generation."""
        for process in self.brokers.up():
            answer = await self.clients.ask(process.url or "", "bundles", ASK_S)
            if answer.get("ok"):
                return answer["bundles"]
        return {}

    async def unwell(self) -> list[str]:
        """Why the cluster is not healthy; empty if it is. Says nothing about bundles."""
        self._accept_the_older()
        problems = [f"{double.name} still runs" for double in self._doubles()]
        answers = await self.ask_all("status")
        for broker in self.brokers.ids:
            process = self.brokers.current.get(broker)
            if process is None or process not in answers:
                problems.append(f"{broker} does not answer")
                continue
            status, heard = answers[process]["status"], answers[process]["heard"]
            if status["mode"] != "normal" or not status["caught_up"]:
                problems.append(
                    f"{process.name} is {status['mode']}, {[part['phase'] for part in status['partitions']]}"
                )
            if status["repair_paused"] and status["leading"]:
                problems.append(f"{process.name}: {status['repair_paused']}")
            wanted = {broker: self.brokers.current[broker].incarnation for broker in self.brokers.ids}
            if heard != wanted:
                problems.append(f"{process.name} hears {sorted(heard)}, some of them another process")
        leaders = [leader.name for leader, answer in answers.items() if answer["status"]["leading"]]
        if len(leaders) != 1:
            problems.append(f"leaders: {leaders}")
        return problems

    def _doubles(self) -> list[Incarnation]:
        return [
            process for process in self.brokers.running() if process is not self.brokers.current.get(process.broker)
        ]

    def _accept_the_older(self) -> None:
        """Where the new process under an id was refused since the old one woke in time, the old one is the broker."""
        for process in self._doubles():
            current = self.brokers.current[process.broker]
            if not current.running and current.process.returncode == REFUSED_AS_IN_USE and not process.paused:
                self.brokers.current[process.broker] = process

    async def unserved(self) -> list[str]:
        """What is wrong with bundles in a healthy cluster: not assigned, not served, or served by more than one."""
        pictures, serving = await self.ask_all("bundles"), await self.ask_all("serving")
        if len(pictures) < len(self.brokers.ids) or len(serving) < len(self.brokers.ids):
            return ["not everybody answers"]
        seen = list(pictures.values())
        if any(picture["bundles"] != seen[0]["bundles"] for picture in seen):
            return ["the brokers do not agree"]
        problems = []
        claims = {process.broker: answer["serving"] for process, answer in serving.items()}
        for bundle, (state, owner, generation) in seen[0]["bundles"].items():
            by = {broker: bundles[bundle] for broker, bundles in claims.items() if bundle in bundles}
            if state != "Assigned" or by != {owner: generation}:
                problems.append(f"{bundle} is {state} of {owner} at {generation}, served by {by}")
        strays = {bundle for bundles in claims.values() for bundle in bundles} - set(seen[0]["bundles"])
        return problems + [f"{bundle} is served and does not live" for bundle in sorted(strays)]

    async def look_up_all(self) -> None:
        """Have every bundle that nobody serves assigned, as a client that asks for one of its topics would."""
        known = await self.bundles()
        urls = [process.url for process in self.brokers.up() if process.url]
        wanted = [bundle for bundle, (state, _, _) in known.items() if state == "Unassigned"]
        if urls:
            asking = (
                self.clients.ask(urls[index % len(urls)], "lookup", 6.0, topic=bundle, wait_s=5.0)
                for index, bundle in enumerate(wanted)
            )
            await asyncio.gather(*asking)
