"""One timed reading of a channel in a process of its own: `python -m tests.bench.spark_worker MODE BOOTSTRAP CHANNEL TABLE`.

Modes: `count` is a Spark job that only reads the topic and counts, `spark` and `local` are the engines of the audit;
`count-archive` and `spark-archive` read the archive of this table.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark.core.session import open_session
from spark.replay.audit_engine import answer_with
from spark.replay.logs import archive_log, topic_log
from statechannel.audit import local
from statechannel.audit.engine import ArchiveSource, AuditQuestion, LiveSource, Source
from statechannel.cli.kit.connection import connect
from statechannel.queries.live_log import live_source

STAGES_MAX = 100
HEAP = os.environ.get("BENCH_SPARK_HEAP", "1g")


class Watch:
    """Highest resident memory, and CPU time, of this process and of all that it has started; sampled."""

    def __init__(self) -> None:
        self.peak_mib: Counter[str] = Counter()
        self._cpu_s: dict[int, float] = {}
        self._watched_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self.look()
            self._watched_s = time.thread_time()

    def look(self) -> float:
        """CPU seconds so far, without those of looking; what a process did between the last look and its end is missing."""
        now: Counter[str] = Counter()
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            try:
                kind = "jvm" if process.name() == "java" else "driver" if process == own else "workers"
                now[kind] += process.memory_info().rss // 2**20
                times = process.cpu_times()
                self._cpu_s[process.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        now["all"] = sum(now.values())
        for kind, size in now.items():
            self.peak_mib[kind] = max(self.peak_mib[kind], size)
        return sum(self._cpu_s.values()) - self._watched_s

    def stop(self) -> dict[str, int]:
        self._stop.set()
        self._thread.join()
        return {f"{kind}_mib": size for kind, size in sorted(self.peak_mib.items())}


@contextmanager
def no_bar(doing: str, total: int | None, *, unit: str = "") -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def stages(session: Any) -> list[dict[str, Any]]:
    """What Spark says of its stages: seconds of all their tasks together, and MiB."""
    store = session.sparkContext._jsc.sc().statusStore()
    rows: list[dict[str, Any]] = []
    for number in range(STAGES_MAX):
        try:
            stage = store.lastStageAttempt(number)
        except Py4JJavaError:  # none of this number, or it was skipped
            continue
        if stage.numCompleteTasks():
            rows.append(
                {
                    "stage": stage.stageId(),
                    "tasks": stage.numCompleteTasks(),
                    "task_s": stage.executorRunTime() / 1e3,
                    "gc_s": stage.jvmGcTime() / 1e3,
                    "read_mib": stage.shuffleReadBytes() >> 20,
                    "write_mib": stage.shuffleWriteBytes() >> 20,
                    "write_s": stage.shuffleWriteTime() / 1e9,
                    "fetch_wait_s": stage.shuffleFetchWaitTime() / 1e3,
                    "spilled_mib": stage.diskBytesSpilled() >> 20,
                }
            )
    return rows


def main(mode: str, bootstrap: str, channel: str, table: str) -> None:
    begun_s = time.perf_counter()
    watch = Watch()
    source = live_source(connect(bootstrap, channel, None, None, None))
    facts: dict[str, Any] = {}
    session = None
    if mode != "local":
        conf = {"spark.master": "local[2]", "spark.driver.memory": HEAP}
        conf |= dict(pair.split("=", 1) for pair in os.environ.get("BENCH_SPARK_CONF", "").split() if pair)
        session = open_session("bench", conf=conf)
    ready_s, cpu_s = time.perf_counter(), watch.look()
    if session is None:
        facts["answer"] = local.answer(AuditQuestion(source), progress=no_bar).answer
    elif mode == "count":
        facts |= count(session, source)
    elif mode == "count-archive":
        facts |= count_archive(session, table)
    else:
        facts |= replay(session, ArchiveSource(table) if mode == "spark-archive" else source)
    facts |= {"wall_s": time.perf_counter() - ready_s, "cpu_s": watch.look() - cpu_s, "start_s": ready_s - begun_s}
    if session is not None:
        facts["stages"] = stages(session)
        session.stop()
    print(json.dumps(facts | watch.stop()))


def count(session: Any, source: LiveSource) -> dict[str, Any]:
    """As few rows and columns as a reader can do with, from as many tasks as the replay has."""
    client = connect(source.bootstrap_servers, None, None, None, None).client
    return {"records": topic_log(session, client, source.topic).rows.count()}


def count_archive(session: Any, table: str) -> dict[str, Any]:
    """The columns that a replay reads; a count alone would read none."""
    sizes = (F.sum(F.length(name)).alias(name) for name in ("key", "value"))
    rows = archive_log(session, table).rows
    return {"records": rows.agg(F.count("*").alias("records"), F.max("offset"), *sizes).collect()[0]["records"]}


def replay(session: Any, source: Source) -> dict[str, Any]:
    options = {"tasks": os.environ["BENCH_TASKS"]} if "BENCH_TASKS" in os.environ else {}
    return {"answer": answer_with(session, AuditQuestion(source), options).answer}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(*sys.argv[1:])
