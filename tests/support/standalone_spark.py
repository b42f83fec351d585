"""A standalone Spark cluster on loopback: a master and workers as processes, and a Python for them without this project."""

import os
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from statechannel.embedded.java import find_java
from statechannel.embedded.process import find_free
from tests.support.waits import WAIT_S

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
_JAVA_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_DEPLOY = "org.apache.spark.deploy"


def package_zip(target: Path) -> Path:
    """The packages as a zip that Spark can ship, as a wheel under another name is one."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("spark", "statechannel", "loaddata"):
            for path in sorted((ROOT / name).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(ROOT))
    return target


def bare_python(folder: Path) -> Path:
    """A Python that has what this one has installed, but not what is installed for editing: not this project."""
    venv.create(folder, symlinks=True, with_pip=False)
    installed = sorted({path for path in sys.path if path.endswith("site-packages")})
    [own] = folder.glob("lib/python*/site-packages")
    (own / "installed.pth").write_text("\n".join(installed) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


@contextmanager
def standalone(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """Run a master and workers of one core each; yields the master's URL. Work of worker N lies in `folder/workN`."""
    port = find_free()
    master = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    address = ("--host", "127.0.0.1", "--webui-port", "0")
    try:
        started.append(_start(folder / "master.log", "master.Master", *address, "--port", str(port)))
        _wait_for(folder / "master.log", "I have been elected leader", started)
        for number in range(workers):
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work{number}"))
            log = folder / f"worker{number}.log"
            started.append(_start(log, "worker.Worker", *address, *size, master))
        for number in range(workers):
            _wait_for(folder / f"worker{number}.log", "Successfully registered with master", started)
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(WAIT_S)


def _start(log: Path, what: str, *arguments: str) -> subprocess.Popen[bytes]:
    # Not by spark-class, which starts a JVM only to find out how to start this one.
    command = [find_java().executable, *_JAVA_OPTIONS, "-cp", f"{SPARK_HOME}/jars/*", f"{_DEPLOY}.{what}", *arguments]
    environment = _environment() | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # What the script would have said to the worker, which builds the executors' command by it.
        "SPARK_SCALA_VERSION": next((SPARK_HOME / "jars").glob("spark-core_*")).name.split("_")[1].split("-")[0],
    }
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=log.parent, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _environment() -> dict[str, str]:
    """Of a node: nothing there leads to this project."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}


def _wait_for(log: Path, line: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    end_s = time.monotonic() + WAIT_S
    while line not in log.read_text("utf-8", "replace"):
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"{ended} ended: {log.read_text('utf-8', 'replace')[-2_000:]}"
        assert time.monotonic() < end_s, f"no {line!r} in {log}: {log.read_text('utf-8', 'replace')[-2_000:]}"
        time.sleep(0.05)
