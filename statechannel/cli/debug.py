"""Command `statechannel debug bundle`: one archive with what a bug report needs, without secrets."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import orjson

from statechannel.cli.kit.connection import embedded_folder
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import Connect, OutputAs, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json, print_rows, say
from statechannel.cli.kit.progress import progress
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import check_writable, new_file
from statechannel.kafka.client_settings import is_secret
from statechannel.printable import REDACTED
from statechannel.settings import Settings

app = commands("Files for a bug report.", alone=True)

MIB: Final = 2**20
_LOG_MIB: Final = 2
_SECRET_MIN: Final = 4
_IN_USE: Final = "in use"
_ERRORS_MAX: Final = 2_000
_RUN: Final = "from statechannel.cli.start import main; main()"
COMMANDS: Final[Sequence[tuple[str, Sequence[str]]]] = (
    ("doctor.json", ("doctor", "--output", "json")),
    ("status.json", ("status", "--output", "json")),
    ("brokers.json", ("brokers", "--output", "json")),
    ("bundles.json", ("bundles", "--output", "json")),
    ("operations.json", ("operation", "list", "--output", "json")),
    ("policies.json", ("policy", "list", "--lapsed", "--output", "json")),
    ("decisions.json", ("decisions", "--since", "1d", "--output", "json")),
    ("audit.json", ("audit", "--output", "json")),
    ("gaps.json", ("audit", "gaps", "--output", "json")),
)
"""Parts that are the answers of other commands."""
_ANSWERS: Final = frozenset({ExitCode.OK, ExitCode.DOCTOR_WARNING, ExitCode.DOCTOR_ERROR, ExitCode.DOCTOR_CRITICAL})


@app.command()
@with_connection
def bundle(
    connect: Connect,
    file: Annotated[
        Path | None, argument("[FILE]", "Archive to write (.zip). Default: a name with the time, here.")
    ] = None,
    max_mib: Annotated[int, option("--max-mib", "Most content, in MiB before packing.", min=1, max=10_000)] = 100,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Longest time for all parts together.", min=1, max=3_600)
    ] = 120.0,
    no_export: Annotated[bool, option("--no-export", "Leave out the channel's records.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write an archive for a bug report: status, doctor, settings, decisions, gaps, records, versions, logs; no secrets.

    A part that fails is left out, and said so.
    """
    path = file or Path(f"statechannel-debug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    check_writable(path)
    settings = connect.settings()
    with new_file(path) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        collector = _Collector(archive, _secrets(connect), max_mib * MIB, time.monotonic() + timeout)
        _collect(collector, connect, settings, export=not no_export)
        collector.add("parts.json", lambda: _json({"parts": collector.parts}))
    size_bytes = path.stat().st_size
    if output is Output.JSON:
        print_json({"file": str(path), "size_bytes": size_bytes, "parts": collector.parts})
        return
    size = Column("size", of=lambda part: f"{part['size_bytes']:,} bytes")
    print_rows(("part", size, Column("took", of=lambda part: f"{part['took_s']:.1f} s"), "problem"), collector.parts)
    failed = sum(part["problem"] is not None for part in collector.parts)
    remark = f"; {failed} of {len(collector.parts)} parts have problems" if failed else ""
    say(f"{path} written ({size_bytes / 1_000:,.0f} kB){remark}")
    say("Passwords and tokens are replaced; names of brokers, namespaces and hosts are not: look before you send it.")


@dataclass
class _Collector:
    """Writes parts into the archive, within bounds of size and time.

    Attributes:
        secrets: Texts that no part may contain.
        ends_s: Monotonic time at which the bundle has to end.
        parts: What was written, and what failed.
    """

    archive: zipfile.ZipFile
    secrets: Sequence[str]
    left_bytes: int
    ends_s: float
    parts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_s - time.monotonic())

    def add(self, name: str, make: Callable[[], bytes]) -> None:
        """Add a part; a failure is noted and ends nothing."""
        began_s = time.monotonic()
        problem, content = None, b""
        try:
            content = self._redacted(make())
        except _PartFailedError as error:
            problem, content = str(error), self._redacted(error.content)
        except (StateChannelError, OSError) as error:
            problem = str(error)
        if len(content) > self.left_bytes:
            problem = f"cut off: {len(content)} bytes, of which {self.left_bytes} had room"
            content = content[: self.left_bytes]
        if content:
            self.archive.writestr(name, content)
            self.left_bytes -= len(content)
        part = {
            "part": name,
            "size_bytes": len(content),
            "took_s": round(time.monotonic() - began_s, 3),
            "problem": None if problem is None else self._redacted(problem.encode()).decode(),
        }
        self.parts.append(part)

    def _redacted(self, content: bytes) -> bytes:
        for secret in self.secrets:
            content = content.replace(secret.encode(errors="replace"), REDACTED.encode())
        return content


class _PartFailedError(Exception):
    """A part is incomplete; `content` is what there is."""

    def __init__(self, problem: str, content: bytes = b"") -> None:
        super().__init__(problem)
        self.content = content


def _collect(collector: _Collector, connect: Connect, settings: Settings, *, export: bool) -> None:
    with _settings_file(connect) as options, progress("collecting", len(COMMANDS) + 5) as advance:
        collector.add("versions.json", _versions)
        collector.add("settings.json", lambda: _settings(connect, settings))
        advance(2)
        for number, (name, words) in enumerate(COMMANDS):
            collector.add(name, lambda words=words: _answer(words, options, collector.left_s))  # type: ignore[misc]
            advance(3 + number)
        collector.add("kafka.log", lambda: _log_of_kafka(settings))
        if export:
            collector.add("export.jsonl", lambda: _export(options, collector))
        advance(len(COMMANDS) + 5)


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str)


def _versions() -> bytes:
    accelerator = _accelerator()
    distributions = {point.metadata["Name"]: point.version for point in metadata.distributions()}
    return _json(
        {
            "statechannel": metadata.version("statechannel"),
            "python": sys.version,
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "accelerated": accelerator == _IN_USE,
            "accelerator": accelerator,
            "packages": dict(sorted(distributions.items())),
        }
    )


def _accelerator() -> str:
    try:
        from statechannel_accelerator import state
    except ImportError:
        return "not installed"
    return str(state())


def _settings(connect: Connect, settings: Settings) -> bytes:
    shown = _without_secrets(settings.model_dump(mode="json"))
    variables = sorted(name for name in os.environ if name.startswith("STATECHANNEL_"))
    client: dict[str, str] | None = None
    with contextlib.suppress(StateChannelError):
        client = connect().client.redacted()
    return _json({"settings": shown, "client": client, "variables": variables})


def _without_secrets(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: REDACTED if is_secret(name) and item else _without_secrets(item) for name, item in value.items()}


def _secrets(connect: Connect) -> list[str]:
    """Values that are replaced wherever they occur; the longest first, as one may contain another."""
    secrets: set[str] = set()
    with contextlib.suppress(StateChannelError):
        secrets |= set(connect().client.secrets())
    # One that is shorter is in every second word.
    return sorted((secret for secret in secrets if len(secret) >= _SECRET_MIN), key=len, reverse=True)


@contextlib.contextmanager
def _settings_file(connect: Connect) -> Iterator[Sequence[str]]:
    """Options by which a process of its own finds the same cluster; secrets are passed in a file, not on its command line."""
    with tempfile.TemporaryDirectory(prefix="statechannel-debug-") as folder:
        words: list[str] = []
        with contextlib.suppress(StateChannelError):
            connection = connect()
            path = Path(folder) / "client.properties"
            path.touch(mode=0o600)
            path.write_text(
                "".join(f"{key}={value}\n" for key, value in connection.client.properties.items()), encoding="utf-8"
            )
            words = ["-b", connection.client.bootstrap_servers, "--channel", connection.topics.channel]
            words += ["--kafka-config", str(path)]
        yield words


def _answer(words: Sequence[str], options: Sequence[str], left_s: float) -> bytes:
    """What a command prints, run in a process of its own, which can be ended.

    Raises:
        _PartFailedError: It failed, or did not end in time.
    """
    if left_s <= 0:
        raise _PartFailedError("not collected: the time was up (--timeout)")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, *words, *options],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=left_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _PartFailedError("did not end in time (--timeout)", error.stdout or b"") from error
    if done.returncode not in _ANSWERS:
        words_of_it = done.stderr.decode(errors="replace")[-_ERRORS_MAX:].strip()
        raise _PartFailedError(" ".join(words_of_it.split()) or f"exit code {done.returncode}", done.stdout)
    return done.stdout


def _log_of_kafka(settings: Settings) -> bytes:
    """The end of the log of the embedded Kafka; empty if there is none."""
    from statechannel.embedded import status

    path = status(embedded_folder(settings)).log_path
    return _tail(path, _LOG_MIB * MIB) if path.is_file() else b""


def _export(options: Sequence[str], collector: _Collector) -> bytes:
    """The channel's records; only the newest where there are too many."""
    with tempfile.TemporaryDirectory(prefix="statechannel-debug-") as folder:
        path = Path(folder) / "export.jsonl"
        _answer(("export", str(path)), options, collector.left_s)
        most_bytes = max(0, collector.left_bytes - MIB)
        if path.stat().st_size <= most_bytes:
            return path.read_bytes()
        raise _PartFailedError(
            f"only the newest records: {path.stat().st_size} bytes in all (--max-mib)", _tail(path, most_bytes)
        )


def _tail(path: Path, most_bytes: int) -> bytes:
    """The last whole lines of a file."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - most_bytes))
        content = file.read(most_bytes)
    return content if len(content) == size_bytes else content.partition(b"\n")[2]
