"""The job table-view on a real Kafka where something is wrong: kills at every step, and each end that has an exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import structlog

from spark.channel import log as log_module
from spark.core.job_session import only_job
from spark.core.store import Folder
from spark.jobs.table_view import main
from statechannel.embedded import KafkaServer
from statechannel.errors import ExitCode, StateChannelError
from statechannel.protocol.codec import newer_format
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.spark.kafka_logs import UNCOMPILED, Job, LogInKafka
from tests.support.clean_logs import clean_lines, vouching
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until
from tests.twin import loggen
from tests.unit.audit.test_lost_head import head_mark
from tests.unit.core.against_twin import KNOBS, record_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]


def log_of(
    kafka: Kafka, name: str, seed: int, knobs: str = "junky", *, unused: int = 0
) -> tuple[LogInKafka, list[RecordRead]]:
    generated = loggen.generate(seed, replace(KNOBS[knobs], partitions=2))
    log = LogInKafka(kafka.bootstrap_servers, name, 2 + unused)
    log.create()
    return log, [record_of(line) for line in generated.lines]


def fails(job: Job, **options: object) -> StateChannelError:
    with pytest.raises(StateChannelError) as caught:
        job.run(**options)
    return caught.value


def arguments(job: Job) -> list[str]:
    return [
        *("--bootstrap-servers", job.log.bootstrap, "--channel", job.log.name, "--available-now"),
        *("--checkpoint", str(job.folder / "checkpoint"), "--table", str(job.folder / "table")),
        *("--conf", "spark.master=local[2]", "--max-offsets-per-trigger", "100", *UNCOMPILED),
    ]


def test_killed_behind_what_it_wrote(session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """The JVM dies between the records and its checkpoint; the next job goes on: nothing twice, nothing lost."""
    log, records = log_of(kafka, topic_prefix, 31)
    log.write(records)
    job = Job(session, log, tmp_path)
    command = [sys.executable, "-m", "tests.spark.dying_job", "table-view", *arguments(job)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True) if said else []
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert (said, process.returncode) == ("dies\n", ExitCode.SPARK_FAILED), err
    assert [text for text in ("This is a bug", "Traceback") if text in err] == [], err
    assert psutil.wait_procs(children, timeout=WAIT_S)[1] == []
    assert len({row["batch"] for row in job.rows()}) == 1
    assert 0 < sum(job.positions().values()) < len(records)
    job.run()
    job.check(records)


def foreign(checkpoint: Path) -> None:
    for name, content in (("offsets", '{"batchWatermarkMs":0}\n{"another":{"0":5}}'), ("commits", "{}")):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / "0").write_text(f"v1\n{content}")
    (checkpoint / "metadata").write_text('{"id":"00000000-0000-0000-0000-000000000000"}')


def in_every_folder(table: Path) -> None:
    for place in ("archive/dt=*/batch=*", "archive/dt=*", "archive", "view/v=*", "view"):
        for folder in table.glob(place):
            (folder / "x.parquet.tmp").write_text("somebody's")


def a_day_later(archive: Path) -> None:
    days = sorted(archive.glob("dt=*"))
    days[-1].rename(archive / f"dt={next(YEARS)}-01-01") if days else None


def files(folder: Path, name: str = "*") -> list[Path]:
    return [path for path in folder.rglob(name) if path.is_file()]


YEARS = count(1_800)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "an empty checkpoint": lambda job: [file.write_bytes(b"") for file in files(job / "checkpoint")],
    "half a pointer": lambda job: [file.write_bytes(file.read_bytes()[:40]) for file in files(job / "table", "LATEST")],
    "a gap in the checkpoint": lambda job: [file.unlink() for file in files(job / "checkpoint", "0")],
    "a day is over": lambda job: a_day_later(job / "table" / "archive"),
    "another's checkpoint": lambda job: foreign(job / "checkpoint"),
    "no pointer": lambda job: [file.unlink() for file in files(job / "table", "LATEST")],
    "files of others": lambda job: in_every_folder(job / "table"),
    "no checkpoint": lambda job: shutil.rmtree(job / "checkpoint", ignore_errors=True),
}
"""What disks, people, time and other jobs do to the folder of a job."""
ROUNDS = int(os.environ.get("SPARK_KILLS", "4"))
"""Two damages each; a hundred take some ten minutes."""


class DiedError(Exception):
    """Nothing reaches the disk from now on."""


def test_killed_at_random_and_damaged(
    session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start goes on, whatever was lost that it does not need: no record is lost, none is there twice."""
    left = sys.maxsize

    def mortal(real: Any) -> Any:
        def act(*args: Any) -> Any:
            nonlocal left
            left -= 1
            done = real(*args) if left >= 0 else None
            if left <= 0:
                raise DiedError
            return done

        return act

    for name in ("move_to", "remove", "write"):
        monkeypatch.setattr(Folder, name, mortal(getattr(Folder, name)))
    log, records = log_of(kafka, topic_prefix, 38, unused=1)
    records.sort(key=lambda record: record.offset)
    job, half = Job(session, log, tmp_path, {"max_offsets_per_trigger": 40}), len(records) // 2
    log.write(records[:half])  # a channel of this age uses the partitions that have records
    cuts = [half + (len(records) - half) * number // ROUNDS for number in range(ROUNDS + 1)]
    rng, killed = Random(38), 0
    kinds = cycle(DAMAGES)
    for number in range(ROUNDS):
        left = rng.randrange(1, 30)
        try:
            job.run()
        except DiedError:
            killed += 1
        left = sys.maxsize
        for how in islice(kinds, 2):
            DAMAGES[how](tmp_path)
            print(f"round {number}: {killed} killed; then {how}")
        log.write(records[cuts[number] : cuts[number + 1]])
    job.run()
    job.check(records)
    assert killed > 0


@pytest.fixture
def own_log() -> Iterator[None]:
    """What the program sets for its log is set back."""
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_log")
def test_two_jobs_on_one_checkpoint(kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_job("other", [tmp_path / "checkpoint"]):
        job = Job(None, LogInKafka(kafka.bootstrap_servers, "no-such"), tmp_path)  # type: ignore[arg-type]
        assert main(arguments(job)) == ExitCode.JOB_IN_USE
    assert "(job other)" in capsys.readouterr().err
    assert not (tmp_path / "table").exists()


def test_a_topic_that_was_made_anew_while_the_job_was_down(
    session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    log, records = log_of(kafka, topic_prefix, 32)
    log.write(records[:40])
    job = Job(session, log, tmp_path)
    before = job.run()
    log.delete()
    log.create()
    log.write(records)
    error = fails(job)
    assert error.exit_code == ExitCode.TOPIC_BROKEN
    assert before["topic_id"] in str(error)
    assert job.meta() == before


def test_a_topic_that_is_made_anew_beneath_the_job(
    session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    log, records = log_of(kafka, topic_prefix, 33)
    log.write(records[:40])
    job = Job(session, log, tmp_path)
    with job.failing() as ended:
        log.delete()
        log.create()
        log.write(records)
    assert [error.exit_code for error in ended] == [ExitCode.TOPIC_BROKEN], ended
    assert sum(job.positions().values()) == 40


def test_a_head_that_was_trimmed(session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """It stops and names what is missing; told to accept it, it joins behind, with what it has read before and without."""
    log = LogInKafka(kafka.bootstrap_servers, topic_prefix)
    log.create(cleanup_policy="compact,delete")
    lines = clean_lines(34, 150)
    records = [record_of(line) for line in lines]
    log.write(records[:40])
    job = Job(session, log, tmp_path / "first")
    job.run()
    log.write([*records[40:], vouching(len(records)), vouching(len(records) + 1)])
    log.trim(0, 60)
    error = fails(job)
    assert error.exit_code == ExitCode.TOPIC_BROKEN
    assert "offsets 40 to 59 were deleted" in str(error)
    accepts = replace(job, mine={"accept_lost_head": True})
    fresh = replace(accepts, folder=tmp_path / "fresh")
    assert "offsets 0 to 59 were deleted" in str(fails(replace(fresh, mine={})))
    for one, position in ((accepts, 40), (fresh, 0)):
        meta = one.run()
        (missing,) = meta["incomplete"]
        assert (missing["from_offset"], missing["to_offset"]) == (position, 59)
        offsets = [row["offset"] for row in one.rows()]
        assert offsets == [*range(position), *range(60, len(records) + 2)]
        assert meta["tentative"] is True, "no broker has restated what was deleted"
    restated = len(records) + 2
    log.write([RecordRead(Topic.CHANNEL, 0, restated, 0, *head_mark(restated - 1, 60)), vouching(restated + 1)])
    assert accepts.run()["tentative"] is False


def test_a_newer_format(session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    log, records = log_of(kafka, topic_prefix, 35, "newer")
    log.write(records)
    stop = next(r for r in records if newer_format(r.key, r.value))
    job = Job(session, log, tmp_path)
    for _ in range(2):
        error = fails(job)
        assert error.exit_code == ExitCode.NEWER_FORMAT
        assert f"offset {stop.offset} of {log.name}-{stop.partition} " in str(error)
    job.check(records)
    assert job.positions()[stop.partition] == stop.offset


AWAY_S = 8.0
"""The job itself asks so long, and what answers late on a busy machine is not away."""


def test_kafka_away(
    session: SparkSession, own_kafka: KafkaServer, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again so often, and then it is a clear end; what was published stays."""
    monkeypatch.setattr(log_module, "ChannelTopic", partial(log_module.ChannelTopic, timeout_s=AWAY_S))
    log, records = log_of(Kafka(own_kafka.bootstrap_servers, ""), topic_prefix, 36)
    log.write(records[:60])
    quick = {"default.api.timeout.ms": "3000", "request.timeout.ms": "2000"}
    job = Job(session, log, tmp_path, streaming={"kafka_properties": quick})
    with job.failing(retries=1) as ended:
        own_kafka.kill()
    assert [error.exit_code for error in ended] == [ExitCode.KAFKA_AWAY], ended
    assert "tried 2 times" in str(ended[0])
    assert sum(job.positions().values()) == 60


def compacted_log(kafka: Kafka, name: str) -> LogInKafka:
    """The cleaner leaves it alone until `keep_for` says otherwise; then it is cleaned within moments."""
    log = LogInKafka(kafka.bootstrap_servers, name)
    log.create(segment_ms="500", min_cleanable_dirty_ratio="0.01")
    return log


def test_the_real_cleaner_at_work_while_the_job_is_down(
    session: SparkSession, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """The view joins again, as soon as a young heartbeat vouches; the archive tells what it missed, and has nothing twice."""
    log = compacted_log(kafka, topic_prefix)
    records = [record_of(line) for line in clean_lines(37, 250)]
    view = View(0, 1)
    for record in records:
        view.read(record.offset, record.key, record.value)
    job = Job(session, log, tmp_path)
    log.write(records[:50])
    job.run()
    log.write(records[50:])
    log.keep_for(1)
    end = len(records)

    def beat() -> None:
        nonlocal end
        log.write([vouching(end)])
        end += 1

    def cleaned() -> bool:
        beat()
        left = {record.offset for record in log.read()}
        return len(left & set(range(50, len(records)))) < len(records) - 80

    wait_until(cleaned, pause_s=0.5)
    log.keep_for(10 * 60)  # a heartbeat stays young for longer than the slowest run of the job

    def joined() -> bool:
        beat()
        return not job.run()["tentative"]

    wait_until(joined)
    meta = job.meta()
    assert meta["digest"] == digest([view])
    first = meta["incomplete"][0]
    assert first["from_offset"] == 50
    assert all(one["strict_from"] is not None for one in meta["incomplete"])
    offsets = [row["offset"] for row in job.rows()]
    assert offsets == sorted(set(offsets))
    assert offsets[:50] == list(range(50))
    missing = set(range(end)) - set(offsets)
    assert missing
    assert all(any(one["from_offset"] <= n <= one["to_offset"] for one in meta["incomplete"]) for n in missing)
    assert {row["verdict"] for row in job.rows() if first["from_offset"] <= row["offset"] <= first["to_offset"]} <= {
        None
    }
