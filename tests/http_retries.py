"""Calls of the admin API that are retried while brokers are killed, and a checker: `make retries N=10000`.

Three broker processes serve the API on a real Kafka; one after the other is ended by kill -9 and started again. Clients send
each call to one broker after the other, with the same `Idempotency-Key`, until it has an end, and again after that. Then the log
is judged: each call acted at most once, exactly once where its answer says so, and all answers to a call are the same.
"""

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from typer.testing import CliRunner

from statechannel.audit.local import audit_export, read_log
from statechannel.cli.kit.progress import progress
from statechannel.cli.main import app
from statechannel.http_api.actions import IDEMPOTENCY_KEY, operation_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka, shared_kafka

CLIENT: Final = "retrier"
NAMESPACE: Final = "t/retries"
SERVED: Final = re.compile(r"http-served.*?url\W+(http://[0-9.:]+)")
BROKERS: Final = ("b1", "b2", "b3")
FLAGS: Final = ("http.port=0", "http.open_role=force", "http.requests_per_s=100000", "requests.remembered_max=1000000")
ACTS: Final = {
    "transfer": State.RELEASING,
    "unload": State.RELEASING,
    "split": State.SPLITTING,
    "assign": State.ASSIGNING,
}
"""By call, the state that its operation brings a bundle to first: an accepted record of it is the act."""
_SPLITS_MAX: Final = 40
_AGAIN_S: Final = 0.3
_CALL_S: Final = 60.0
_PENDING: Final = 202


class RetryAnswer(NamedTuple):
    """A final answer to a call.

    Attributes:
        kind: `accepted`, `rejected`, `unknown`; of a problem without an outcome its code.
        status: Of HTTP.
        text: What the answer says of the end: `result`, or the reason.
    """

    kind: str
    status: int
    operation: str
    text: str


@dataclass(slots=True)
class RetriedCall:
    """One call.

    Attributes:
        sent: How often it was sent.
        answers: Its final answers, in order; an answer of a check before anything was written is none.
        refused: By code, refusals before anything was written.
    """

    number: int
    act: str
    path: str
    body: dict[str, Any]
    sent: int = 0
    answers: list[RetryAnswer] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    trouble: Counter[str] = field(default_factory=Counter)

    @property
    def key(self) -> str:
        return f"call-{self.number}"


class RetryResult(NamedTuple):
    """What came of the calls.

    Attributes:
        ends: Number of calls by act and kind of the answer.
        faults: What may not be.
        kills: How many brokers were ended.
        sent: Requests, retries included.
    """

    calls: int
    sent: int
    kills: int
    acted: int
    trouble: Counter[str]
    ends: Counter[str]
    faults: list[str]
    took_s: float


class ServedCluster(BrokerCluster):
    """Brokers of which one after the other dies and comes back."""

    def __init__(self, kafka: Kafka, channel: str, folder: Path) -> None:
        super().__init__(kafka, channel, folder, FLAGS)
        self.urls: dict[str, str] = {}

    def served(self, name: str, starts: int) -> None:
        """Wait for the URL of a broker's newest process."""
        log = self.folder / f"{name}.log"
        self.wait(lambda: len(SERVED.findall(log.read_text())) >= starts)
        self.urls[name] = SERVED.findall(log.read_text())[-1]


class BrokerKiller(threading.Thread):
    """Kills one broker after the other, and starts it again.

    Args:
        pause_s: Shortest and longest time between a start and the next kill.
    """

    def __init__(self, cluster: ServedCluster, chance: random.Random, pause_s: tuple[float, float]) -> None:
        super().__init__(name="broker-killer")
        self._cluster, self._chance, self._pause_s = cluster, chance, pause_s
        self._ends = threading.Event()
        self._starts = dict.fromkeys(BROKERS, 1)
        self.kills = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Kill until `stop`."""
        try:
            while not self._ends.wait(self._chance.uniform(*self._pause_s)):
                self._replace(self._chance.choice(BROKERS))
        except BaseException as error:
            self.error = error

    def _replace(self, name: str) -> None:
        self._cluster.kill(name)
        self.kills += 1
        self._ends.wait(self._chance.uniform(0.0, 2.0))
        self._cluster.spawn(name)
        self._starts[name] += 1
        self._cluster.served(name, self._starts[name])

    def stop(self) -> None:
        self._ends.set()
        self.join()
        if self.error is not None:
            raise self.error


class RetryingClient:
    """Sends one call after the other for the bundles that it has to itself."""

    def __init__(self, cluster: ServedCluster, bundles: Sequence[str], numbers: range, seed: int, splits: int) -> None:
        self._cluster, self._bundles, self._numbers = cluster, list(bundles), numbers
        self._chance = random.Random(seed)
        self._splits = splits
        self._http = httpx.Client(headers={"Statechannel-Client": CLIENT, "Prefer": "wait=20"}, timeout=_CALL_S)
        self.calls: list[RetriedCall] = []

    def run(self) -> list[RetriedCall]:
        """Send all; returns them with their answers."""
        with self._http:
            for number in self._numbers:
                call = self._drawn(number)
                self.calls.append(call)
                self._send_until_ended(call)
                for _ in range(self._chance.randint(1, 2)):
                    self._send_until_ended(call)
        return self.calls

    def _drawn(self, number: int) -> RetriedCall:
        bundle = self._chance.choice(self._bundles)
        acts = ["transfer"] * 6 + ["unload"] + ["assign"] * 3 + (["split"] if self._splits else [])
        act = self._chance.choice(acts)
        if act == "assign":
            return RetriedCall(number, act, "/v1/lookup", {"name": bundle})
        body: dict[str, Any] = {} if act == "split" else {"force": True}
        if act == "transfer":
            body["destination"] = self._chance.choice(BROKERS)
        if act == "split":
            self._splits -= 1
            self._bundles.remove(bundle)
        return RetriedCall(number, act, f"/v1/bundles/{bundle}/{act}", body)

    def _send_until_ended(self, call: RetriedCall) -> None:
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            call.sent += 1
            url = self._cluster.urls[self._chance.choice(BROKERS)]
            try:
                answer = self._http.post(url + call.path, json=call.body, headers={IDEMPOTENCY_KEY: call.key})
            except httpx.HTTPError as error:
                call.trouble[type(error).__name__] += 1
                time.sleep(_AGAIN_S)
                continue
            document = answer.json()
            if answer.status_code == _PENDING:
                if document.get("expired"):
                    call.answers.append(RetryAnswer("expired", answer.status_code, document["operation"], ""))
                    return
                call.trouble["pending"] += 1
                continue
            if document.get("operation") is None and answer.status_code >= 500:
                call.trouble[document["reason"]] += 1
                time.sleep(_AGAIN_S)
                continue
            if document.get("operation") is None:
                call.refused[document["reason"]] += 1
                return
            text = str(document.get("result") or document.get("reason") or document.get("broker"))
            kind = str(document.get("answer") or document.get("reason"))
            call.answers.append(RetryAnswer(kind, answer.status_code, document["operation"], text))
            return
        call.trouble["no-end"] += 1


def acts_in(cluster: ServedCluster) -> tuple[Counter[tuple[str, State]], Counter[str]]:
    """Accepted records by operation and state, and requests by id, as the logs have them."""
    path = cluster.folder / "retries.jsonl"
    exported = CliRunner().invoke(app, ["export", str(path), *cluster.place])
    if exported.exit_code != 0:
        raise RuntimeError(exported.stderr)
    acts: Counter[tuple[str, State]] = Counter()

    def observe(_: RecordRead, judgement: Judgement) -> None:
        record = judgement.record
        operation = None if record is None else record.text("operation")
        if judgement.verdict is Verdict.ACCEPTED and record is not None and operation is not None:
            acts[operation, record.state] += 1

    audit_export(read_log(path, progress), observers=[observe])
    return acts, Counter(operation for operation, _ in acts)


def faults_of(call: RetriedCall, acts: Counter[tuple[str, State]]) -> list[str]:
    """What contradicts the promise of one call."""
    operation = operation_of(CLIENT, call.key)
    acted = acts[operation, ACTS[call.act]]
    shown = f"{call.key} ({call.act} {call.path} {call.body}): "
    faults = [f"{shown}acted {acted} times"] if acted > 1 else []
    faults += [
        f"{shown}answered as operation {answer.operation}" for answer in call.answers if answer.operation != operation
    ]
    if len(set(call.answers)) > 1:
        faults.append(f"{shown}was answered differently: {sorted(set(call.answers))}")
    if call.answers and call.refused:
        faults.append(f"{shown}was answered, and refused as {dict(call.refused)}")
    if call.trouble["no-end"]:
        faults.append(f"{shown}has no end: {dict(call.trouble)}")
    for answer in call.answers[:1]:
        done = answer.kind == "accepted"
        if done and call.act != "assign" and acted != 1:
            faults.append(f"{shown}was answered as done ({answer.text}), and acted {acted} times")
        if answer.kind == "rejected" and answer.text in NOT_BEGUN and acted:
            faults.append(f"{shown}was rejected as {answer.text}, and acted")
    if call.refused and not call.answers and acted:
        faults.append(f"{shown}was refused as {dict(call.refused)}, and acted")
    return faults


NOT_BEGUN: Final = frozenset(
    {"destination-is-owner", "not-assigned", "unknown-destination", "unknown-bundle", "in-flight", "busy", "bad-split"}
)
"""Reasons of rejections before the first record."""


def retry(
    kafka: Kafka, folder: Path, channel: str, *, calls: int, seed: int, pause_s: tuple[float, float]
) -> RetryResult:
    """Send so many calls while brokers die, and judge the log."""
    chance = random.Random(seed)
    began_s = time.monotonic()
    with broker_cluster(ServedCluster(kafka, channel, folder)) as cluster:
        cluster.start(*BROKERS)
        for name in BROKERS:
            cluster.served(name, 1)
        workers = min(16, max(2, calls // 40))
        cluster("namespace", "create", NAMESPACE, "--bundles", str(8 * workers), "--timeout", "60")
        bundles = sorted(cluster.owners())
        cluster.look_up(bundles)
        cluster.wait(lambda: all(cluster.owners().values()))
        share, clients = -(-calls // workers), []
        for number in range(workers):
            numbers = range(number * share, min(calls, (number + 1) * share))
            splits = min(5, _SPLITS_MAX // workers)
            clients.append(RetryingClient(cluster, bundles[number::workers], numbers, chance.randrange(2**32), splits))
        killer = BrokerKiller(cluster, random.Random(chance.randrange(2**32)), pause_s)
        killer.start()
        try:
            with ThreadPoolExecutor(workers) as pool:
                every = [
                    call for running in [pool.submit(client.run) for client in clients] for call in running.result()
                ]
        finally:
            killer.stop()
        acts, operations = acts_in(cluster)
        ends: Counter[str] = Counter()
        for call in every:
            end = call.answers[0].kind if call.answers else "refused" if call.refused else "none"
            why = f" {call.answers[0].text}" if end == "rejected" else ""
            ends[f"{call.act}: {end}{why}"] += 1
        faults = [fault for call in every for fault in faults_of(call, acts)]
        acted = sum(operations[operation_of(CLIENT, call.key)] > 0 for call in every)
        trouble = sum((call.trouble for call in every), Counter[str]())
        sent = sum(call.sent for call in every)
        return RetryResult(len(every), sent, killer.kills, acted, trouble, ends, faults, time.monotonic() - began_s)


@contextmanager
def _folder(given: Path | None) -> Any:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="statechannel-retries-") as made:
        yield Path(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where Kafka and the logs of the brokers go; kept")
    options = parser.parse_args()
    with _folder(options.folder) as folder, shared_kafka(folder / "kafka") as kafka:
        result = retry(kafka, folder, "retries", calls=options.calls, seed=options.seed, pause_s=(1.0, 4.0))
    for name, count in sorted(result.ends.items()):
        sys.stdout.write(f"{name}: {count:,}\n")
    sys.stdout.write(
        f"{result.calls:,} calls, sent {result.sent:,} times, {result.kills} brokers killed in {result.took_s:.0f} s; "
        f"{result.acted:,} acted; retried because of {dict(result.trouble)}; {len(result.faults)} faults\n"
    )
    sys.stdout.writelines(f"FAULT {fault}\n" for fault in result.faults[:20])
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
