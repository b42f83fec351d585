"""What belongs to the terminal: its screen, its streams, its colours; and lines of progress where there is none."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from statechannel.audit.errors import ExportFileError
from statechannel.audit.transfer import export_file
from statechannel.cli.kit import progress
from statechannel.cli.kit.output import Output
from statechannel.cli.kit.screen import screen
from statechannel.cli.status.tables import status_display
from statechannel.errors import ExitCode
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries import live_log
from statechannel.queries.connection import Notes
from tests.cli.test_status_view import AT, figures

WAIT_S = 60.0
CALL = "from statechannel.cli.start import main; main()"
ALTERNATE, BACK, SHOWN = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"

SCREEN = """
import time
from rich.text import Text
from statechannel.cli.kit.output import Output
from statechannel.cli.kit.screen import show_result
show_result(lambda: (lambda _: Text("drawn"), {}), Output.TABLE, watch=True, every_s=0.2, max_s=None)
"""


ODD = """
import sys
from statechannel.cli.kit.failures import guarded
from statechannel.cli.kit.output import print_facts, print_json
shown = {"reason": "f\u00fcr \U0001f600"}
sys.exit(guarded(lambda: print_json(shown) if sys.argv[1:] else print_facts(shown.items()), debug=False))
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_cannot_show_ends_no_command(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    facts, document = (
        subprocess.run(
            [sys.executable, "-c", ODD, *words], capture_output=True, env=environment, timeout=WAIT_S, check=False
        )
        for words in ([], ["json"])
    )
    assert (facts.returncode, document.returncode) == (0, 0), facts.stderr + document.stderr
    assert facts.stdout.startswith(b"reason")
    assert json.loads(document.stdout) == {"reason": "f\u00fcr \U0001f600"}


class PtyProcess:
    """A process on a terminal of a size."""

    def __init__(self, *words: str, rows: int = 24, columns: int = 80) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.seen = ""
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment | {"TERM": "xterm-256color"}
        )
        os.close(terminal)
        self._master = master

    def read_until(self, text: str) -> None:
        ends_s = time.monotonic() + WAIT_S
        while text not in self.seen:
            assert time.monotonic() < ends_s, self.seen
            self.seen += os.read(self._master, 65_536).decode(errors="replace")

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        with suppress(OSError):  # the terminal has no writer any more
            while data := os.read(self._master, 65_536):
                self.seen += data.decode(errors="replace")
        os.close(self._master)
        return code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_restores_the_terminal(number: signal.Signals, code: int) -> None:
    process = PtyProcess(sys.executable, "-c", SCREEN)
    process.read_until("drawn")
    process.process.send_signal(number)
    assert process.end() == code
    assert process.seen.rindex(BACK) > process.seen.rindex(ALTERNATE)
    assert process.seen.rindex(SHOWN) > process.seen.rindex("drawn")


def test_a_terminal_has_colours_unless_they_are_off() -> None:
    def printed(*words: str) -> str:
        process = PtyProcess(sys.executable, "-c", CALL, *words)
        assert process.end() == 0
        return process.seen

    assert "\x1b[1mname" in printed("strategy", "list")
    assert "\x1b[3" not in printed("strategy", "list", "--no-color")


def closed(shell: str) -> subprocess.CompletedProcess[str]:
    """A command line of a shell, in which `statechannel` is the command."""
    command = f"statechannel() {{ {sys.executable} -c '{CALL}' \"$@\"; }}; {shell}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize("stream", ["1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_a_closed_stream_changes_neither_the_exit_code_nor_the_other_stream(stream: str) -> None:
    well = closed(f"statechannel strategy list {stream}")
    assert (well.returncode, well.stderr) == (0, "")
    assert ("weighted-move" in well.stdout) == ("1>" not in stream)
    failed = closed(f"statechannel audit gaps --file nowhere.jsonl -o json {stream}")
    assert failed.returncode == 7
    assert ("nowhere.jsonl" in failed.stdout) == ("1>" not in stream)
    assert ("nowhere.jsonl" in failed.stderr) == ("2>" not in stream)


def test_files_do_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    script = tmp_path / "numbers.py"
    script.write_text(
        "import os\nfrom statechannel.cli.start import _open_closed_streams\n_open_closed_streams()\n"
        f"with open({str(script)!r}) as file:\n    raise SystemExit(file.fileno())\n"
    )
    ran = closed(f"{sys.executable} {script} 0<&- 1>&- 2>&-")
    assert ran.returncode == 3


def test_no_color_may_stand_anywhere_but_after_two_dashes(run: Callable[..., Result]) -> None:
    assert run("--no-color", "strategy", "list").exit_code == 0
    assert run("strategy", "--no-color", "list").exit_code == 0
    assert run("strategy", "list", "--no-color").exit_code == 0
    assert run("strategy", "show", "--", "--no-color").exit_code != 0


def test_a_pipe_is_wide_and_has_no_trailing_blanks(run: Callable[..., Result]) -> None:
    lines = run("strategy", "list").stdout.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert max(map(len, lines)) > 160, "nothing is wrapped"
    assert run("strategy", "list", "-o", "wide").stdout.splitlines() == lines


def test_lines_of_progress_are_printed_where_there_is_no_terminal(capsys, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    with progress.bar(lines=True) as shown:
        shown.show("b1", "draining b1", 0, 4)
        shown.show("b1", "draining b1", 1, 4)  # too soon
        now_s[0] += 2
        shown.show("b1", "draining b1", 2, 4)
        shown.show("b1", "waiting for b1", 0, 1, left=", 300 s at most")
        now_s[0] += 2
        shown.show("b1", "waiting for b1", 0, 1, left=", 298 s at most")
        now_s[0] += 9
        shown.show("b1", "waiting for b1", 0, 1, left=", 289 s at most")
        shown.drop("b1")
    shown_lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"\d+", line)[1:] for line in shown_lines] == [["0", "4"], ["2", "4"], ["300"], ["289"]]
    with progress.bar() as shown:
        shown.show("b1", "draining b1", 0, 4)
    assert capsys.readouterr().err == ""


EXPORT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from statechannel.stories.processes import WritersHeard
from statechannel.queries import live_log, registry

def export(_, path, **__):
    path.write_text("line\\n" * 20_000)
    return SimpleNamespace(topic="t", end_offsets={0: 20000}, digest="d", replay=None)

live_log.export_live = export
registry.live_writers = lambda _: WritersHeard()
sys.argv[1:] = ["export", "-", "--bootstrap-servers", "127.0.0.1:9"]
from statechannel.cli.start import main
main()
"""


def test_an_export_to_standard_output_is_the_file_and_its_digest_a_remark(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        ended = _export_to(out)
    assert (tmp_path / "out").read_text() == "line\n" * 20_000
    written, note = ended.stderr.splitlines()
    assert (ended.returncode, written) == (0, "t written to standard output (end offsets 0: 20000; digest d)")
    assert note.startswith("note: ")


def test_an_export_to_a_full_standard_output_is_one_plain_line() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = _export_to(full)
    assert ended.returncode == ExitCode.BAD_EXPORT
    error, hint = ended.stderr.splitlines()
    assert error.endswith("No space left on device")
    assert hint.startswith("hint: ")


def _export_to(out: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"STATECHANNEL_CONTEXTS": os.devnull}
    call = [sys.executable, "-c", EXPORT]
    return subprocess.run(
        call, stdout=out, stderr=subprocess.PIPE, env=environment, text=True, check=False, timeout=WAIT_S
    )


class OpenTail:
    """A reader whose records may not be left unread when it is closed, as of Kafka."""

    def __init__(self) -> None:
        self.open = True

    def span(self) -> Any:
        return SimpleNamespace(low=0, start=0, end=9)

    def records(self, _: Any) -> Iterator[RecordRead]:
        try:
            for offset in range(9):
                yield RecordRead(Topic.CHANNEL, 0, offset, 1, b"k", b"{}")
        finally:
            assert self.open, "closed before its records"


def test_an_export_that_cannot_be_written_ends_its_readers_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tail = OpenTail()

    @contextmanager
    def opened(*_: Any) -> Iterator[OpenTail]:
        try:
            yield tail
        finally:
            tail.open = False

    def full(_: Path, __: Any, records: Iterator[RecordRead], **___: Any) -> None:
        next(records)
        raise ExportFileError("no space left")

    unraised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    monkeypatch.setattr(live_log, "describe_topic", lambda *_: SimpleNamespace(name="t", partitions=1))
    monkeypatch.setattr(live_log, "open_tail", opened)
    monkeypatch.setattr(export_file, "write_export", full)
    with pytest.raises(ExportFileError):
        live_log.export_live(SimpleNamespace(reporter=Notes()), tmp_path / "x.jsonl")  # type: ignore[arg-type]
    assert unraised == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_go_back_is_shown_picture_after_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with screen(Output.TABLE) as draw:
        draw(partial(status_display, figures()), {}, AT)
        draw(partial(status_display, figures()), {}, AT)
    assert terminal.getvalue().count("bundle-state at kafka:9092") == 2
