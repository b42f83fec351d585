"""Local state of an execution: a folder of the plan with its journal, and a lock of the cluster.

STATE/PLAN-ID/plan.json            the plan
STATE/PLAN-ID/journal.jsonl        one event per line, on disk before the change that it describes
STATE/PLAN-ID/rollback-0001.json   replicas before the batch, for Kafka's own tool
STATE/CLUSTER-ID.lock              held while an executor of this machine works on the cluster
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from shedders.kafka_rebalance.errors import ExecutionRefusedError, PartitionsError, PlanUnknownError
from shedders.kafka_rebalance.execution.state_topic import StateTopic, lacking, record
from shedders.kafka_rebalance.execution.values import ExecutionEvent, OperatorRequests
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import KafkaAdapterError

JOURNAL: Final = "journal.jsonl"
PLAN: Final = "plan.json"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class StateFolderError(PartitionsError):
    """The state folder cannot be read or written."""


@contextmanager
def _state_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise StateFolderError(f"cannot {doing} {path}: {why}", hint="Name another folder with --state DIR.") from None


def folder_of(root: Path, plan_id: str) -> Path:
    """Folder of a plan; it need not exist."""
    if not _NAME.fullmatch(plan_id):
        raise PlanUnknownError(
            f"{plan_id!r} is not a valid plan id", hint="`statechannel partitions status` shows the ids."
        )
    return root / plan_id


def plan_ids(root: Path) -> list[str]:
    """Ids of the plans in this folder, newest journal first."""
    with _state_errors("read", root):
        if not root.exists():
            return []
        folders = [folder for folder in root.iterdir() if _NAME.fullmatch(folder.name) and (folder / PLAN).exists()]
        return [folder.name for folder in sorted(folders, key=_changed, reverse=True)]


def has_plan(folder: Path) -> bool:
    with _state_errors("read", folder):
        return (folder / PLAN).exists()


def _changed(folder: Path) -> float:
    journal = folder / JOURNAL
    return (journal if journal.exists() else folder / PLAN).stat().st_mtime


def write_durable(path: Path, raw: bytes) -> None:
    with _state_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Events in order; a torn last line is ignored."""
    path = folder / JOURNAL
    with _state_errors("read", path):
        raw = path.read_bytes() if path.exists() else b""
    return [event for event, _ in _events(raw, path)]


def _events(raw: bytes, path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Events with the offsets of their ends."""
    at = 0
    while (end := raw.find(b"\n", at)) >= 0:
        try:
            event = orjson.loads(raw[at:end])
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            raise StateFolderError(
                f"{path} is corrupt at byte {at}",
                hint="Move the folder away; `statechannel partitions resume` then continues from the state topic.",
            )
        at = end + 1
        yield event, at


class Journal:
    """Append-only journal of events. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        with _state_errors("write", self._path):
            folder.mkdir(parents=True, exist_ok=True)
            raw = self._path.read_bytes() if self._path.exists() else b""
        whole = 0
        self.events: list[dict[str, Any]] = []
        for event, whole in _events(raw, self._path):  # noqa: B007 - the last end is used
            self.events.append(event)
        with _state_errors("write", self._path):
            self._file = self._path.open("ab", buffering=0)
            if whole < len(raw):  # torn by a crash of the last executor
                self._file.truncate(whole)
            _sync_folder(folder)
        self._whole = whole

    def append(self, event: Mapping[str, Any]) -> None:
        """Append an event and sync it to disk. A failed append leaves no partial line, so later ones can succeed."""
        line = orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
        with _state_errors("write", self._path):
            try:
                written = 0
                while written < len(line):
                    written += self._file.write(line[written:])
                os.fsync(self._file.fileno())
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._whole)
                raise
        self._whole += len(line)
        self.events.append(dict(event))

    def close(self) -> None:
        with suppress(OSError):  # each line is on disk already
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def cluster_lock(root: Path, cluster_id: str) -> Iterator[None]:
    """Lock held by one executor of this machine, until its process ends."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id) or "unknown"
    path = root / f"{name}.lock"
    with _state_errors("lock", path):
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise ExecutionRefusedError(
                f"another executor of this machine works on cluster {cluster_id} ({holder})",
                hint="`statechannel partitions status` shows its progress; `pause` and `cancel` control it.",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


BACKLOG_MAX: Final = 10_000
EVENTS_AT_ONCE: Final = 50
BEATS: Final = 4
"""Heartbeats per executor timeout."""


class ExecutionLedger:
    """Ledger of an execution: journal first, then the state topic.

    Args:
        on_batch: Called before a batch is recorded, for rollback files.
        on_new_topic: Called after the topic was created, before all events are written to it.
    """

    def __init__(
        self,
        journal: Journal,
        topic: StateTopic,
        plan_id: str,
        executor: str,
        *,
        now_ms: Callable[[], int],
        on_batch: Callable[[Mapping[str, Any]], None],
        on_new_topic: Callable[[], None] = lambda: None,
    ) -> None:
        self._journal, self._topic = journal, topic
        self._plan_id, self._executor = plan_id, executor
        self._now_ms, self._on_batch, self._on_new_topic = now_ms, on_batch, on_new_topic
        self._number = max((int(event["n"]) for event in journal.events), default=0)
        self._backlog: list[dict[str, Any]] = []
        self._heard = OperatorRequests()

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """Write an event durably. What the topic did not accept is sent again with the next event; the journal has it."""
        if event == "batch":
            self._on_batch(facts)
        self._number += 1
        whole = {"n": self._number, "at_ms": self._now_ms(), "executor": self._executor, "event": event, **facts}
        try:
            self._journal.append(whole)
        finally:  # on a full disk, the topic is the only place that records the end
            self._backlog.append(whole)
            self._topic.failing &= event != ExecutionEvent.ENDED  # the last try
            self.flush()

    def flush(self) -> None:
        """Send events to the topic that it has not accepted yet; while it fails, heartbeats find out when it no longer does."""
        while self._backlog and not self._topic.failing:
            part = self._backlog[:EVENTS_AT_ONCE]
            try:
                self._topic.append(
                    self._plan_id, [record("events", self._plan_id, executor=self._executor, events=part)]
                )
            except KafkaAdapterError:
                break
            del self._backlog[: len(part)]
        del self._backlog[:-BACKLOG_MAX]

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Queue events that the journal has and the topic lacks."""
        self._backlog = [*events, *lacking(self._backlog, events)]
        self.flush()

    def read_requests(self) -> tuple[OperatorRequests, str]:
        """Requests of operators, and the executor that has taken over, if any; the last ones while the topic cannot be read."""
        if self._topic.was_missing and not self._topic.failing:
            with suppress(StateChannelError):  # tried again with the next observation
                self._on_new_topic()
                self.publish(self._journal.events)
        try:
            book = self._topic.read()
        except KafkaAdapterError:
            return self._heard, ""
        self._heard = book.book(self._plan_id).asked
        holder = book.holder
        other = "" if holder is None or holder.executor == self._executor else f"{holder.executor} on {holder.host}"
        return self._heard, other


class HeartbeatSender:
    """Heartbeats of this executor on the topic, from a separate thread; a context manager. A topic that is gone is created."""

    def __init__(
        self, topic: StateTopic, plan_id: str, beat: bytes, *, every_s: float, replication_factor: int
    ) -> None:
        self._topic, self._plan_id, self._beat, self._every_s = topic, plan_id, beat, every_s
        self._replication_factor = replication_factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partitions-heart", daemon=True)

    def __enter__(self) -> HeartbeatSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=self._every_s + 5.0)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._topic.append(self._plan_id, [self._beat])
            except KafkaAdapterError:
                # Retried with the next heartbeat; without any, others treat this executor as dead.
                with suppress(StateChannelError):
                    self._topic.create(self._replication_factor)
