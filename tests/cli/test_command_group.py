"""How the command finds its commands, and how it ends."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import typer
from click.testing import Result

from statechannel.cli import main
from statechannel.cli.kit.failures import CommandError, guarded
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import print_json
from statechannel.errors import ExitCode
from tests.support.broker_cluster import COMMAND
from tests.support.waits import WAIT_S

NOT_FOR_LOOKUPS = {
    *("multiprocessing", "numpy", "prometheus_client", "pydantic_settings", "rich.live"),
    *("rich.progress", "sortedcontainers", "sqlite3", "structlog"),
    *("statechannel.api", "statechannel.audit", "statechannel.broker.handlers", "statechannel.broker.host"),
    *("statechannel.cli.audit", "statechannel.queries.audit", "statechannel.queries.channel_view"),
    *("statechannel.embedded", "statechannel.engine.engine", "statechannel.kafka.acls", "statechannel.kafka.reader"),
    *("statechannel.protocol.keys", "statechannel.protocol.resolver", "statechannel.protocol.view"),
    *("statechannel.replay", "statechannel.sim", "shedders", "loaddata", "spark"),
}
"""Modules that cost a lookup time and help it with nothing; the settings' library is for the environment's."""
LOADED = """
import atexit, sys
from statechannel.cli.start import main
atexit.register(lambda: print("loaded", *sys.modules))
main()
"""
"""A run of a command that ends with a line of all modules that it has loaded."""
PAGE = Path(__file__).parents[2] / "design" / "cli.md"


def points(*pairs: tuple[str, str]) -> dict[str, metadata.EntryPoint]:
    return {name: metadata.EntryPoint(name, value, main.COMMANDS_GROUP) for name, value in pairs}


def test_help_lists_every_command_in_a_section_with_its_whole_summary(run: Callable[..., Result]) -> None:
    installed = {point.name: point for point in metadata.entry_points(group=main.COMMANDS_GROUP)}
    listed = {name: text for section in main.SECTIONS.values() for name, text in section.items()}
    assert listed.keys() == installed.keys()
    for name, text in listed.items():
        assert text == main._summary(main._load(installed[name])), name
    result = run("--help")
    assert result.stderr == ""
    assert "..." not in result.stdout.partition("Look:")[2]
    assert max(map(len, result.stdout.splitlines())) <= 80
    for section in main.SECTIONS:
        assert f"\n{section}:\n" in result.stdout
    for words in (("-h",), ("help",)):
        assert run(*words).stdout == result.stdout
    assert run("help", "namespace").stdout == run("namespace", "-h").stdout


@pytest.mark.parametrize("last", [("--help",), ("--bootstrap-servers",)])
def test_a_lookup_loads_what_it_needs(last: tuple[str, ...], closed_port: int, tmp_path: Path) -> None:
    """Half of a lookup's time is that of loading modules."""
    address = () if last == ("--help",) else (f"127.0.0.1:{closed_port}",)
    ended = _lookup(tmp_path, "tenant/ns/topic", *last, *address)
    assert ended.returncode == (ExitCode.KAFKA_AWAY if address else ExitCode.OK), ended.stderr
    assert _unneeded(ended.stdout) == set()


def test_the_library_of_the_environments_settings_is_loaded_for_lists_and_mappings_only(closed_port: int, tmp_path):
    here = {"STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{closed_port}"}
    ended = _lookup(tmp_path, "tenant/ns/topic", **here)
    assert here["STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS"] in ended.stderr
    assert _unneeded(ended.stdout) == set()
    ended = _lookup(tmp_path, "tenant/ns/topic", **here, STATECHANNEL_LOOKUPS__BOUND_TENANTS='["a"]')
    assert _unneeded(ended.stdout) == {"pydantic_settings"}


def _lookup(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STATECHANNEL_")}
    environment |= {"STATECHANNEL_CONTEXTS": str(folder / "contexts.toml"), **settings}
    call = [sys.executable, "-c", LOADED, "lookup", *words]
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S)


def _unneeded(output: str) -> set[str]:
    words = output.splitlines()[-1].split()
    assert words[0] == "loaded"
    assert "statechannel.cli.lookup" in words
    return NOT_FOR_LOOKUPS.intersection(words)


def test_help_loads_no_command(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(point: metadata.EntryPoint) -> None:
        raise AssertionError(f"{point.name} was loaded")

    monkeypatch.setattr(main, "_load", load)
    assert "rolling-restart" in run("--help").stdout
    assert "Did you mean 'lookup'?" in run("lokup").stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statechannel look", {"lookup"}),
        ("statechannel why", {"why", "why-not"}),
        ("statechannel namespace de", {"delete"}),
        ("statechannel namespace delete --dry", {"--dry-run"}),
        ("statechannel context use ", {"lab"}),
        ("statechannel settings explain membership.exp", {"membership.expiry_s"}),
    ],
)
def test_shells_complete_commands_options_and_names(
    typed: str, meant: set[str], run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("contexts.toml").write_text('[contexts.lab]\nbootstrap_servers = "a:1"\n')
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    monkeypatch.setenv("_STATECHANNEL_COMPLETE", "complete_bash")
    assert set(run().stdout.split()) == meant


def test_the_script_for_a_shell_is_shown(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_STATECHANNEL_COMPLETE=complete_bash" in run("--show-completion", "bash").stdout


def test_a_package_may_add_a_command(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]) -> None:
    monkeypatch.setattr(main, "_registered", lambda: points(("hello", "tests.cli.plugin:app")))
    assert run("hello", "--name", "you").stdout == "hello you\n"


def test_a_command_of_this_wheel_is_found_in_its_own_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def registered() -> None:
        raise AssertionError("the metadata of all packages was read")

    monkeypatch.setattr(main, "_registered", registered)
    group = typer.main.get_command(main.app)
    assert group.get_command(None, "lookup").name == "lookup"  # type: ignore[attr-defined]


def test_a_broken_command_breaks_no_other(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]) -> None:
    both = points(("hello", "tests.cli.plugin:app"), ("bad", "no.such.module:app"))
    monkeypatch.setattr(main, "_registered", lambda: both)
    assert run("hello").exit_code == 0
    helped = run("--help")
    assert "hello" in helped.stdout
    assert "the command `bad` (no.such.module:app) cannot be loaded" in helped.stderr
    called = run("bad")
    assert called.exit_code == ExitCode.FAILED
    assert called.stderr.startswith("error: the command `bad`")


def test_a_bug_is_told_in_one_line_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oh")

    assert guarded(broken, debug=False) == ExitCode.BUG
    assert capsys.readouterr().err.splitlines()[0] == "error: ZeroDivisionError: oh"
    assert guarded(broken, debug=True) == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("x", code=ExitCode.NOT_FOUND), ExitCode.NOT_FOUND),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (typer.Exit(10), ExitCode.KAFKA_AWAY),
    ],
)
def test_how_commands_end(error: BaseException, code: ExitCode) -> None:
    def end() -> None:
        raise error

    assert guarded(end, debug=False) == code


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]) -> None:
    monkeypatch.setattr(main, "_registered", lambda: points(("wait", "tests.cli.plugin:interrupted")))
    result = run("wait")
    assert (result.exit_code, result.stderr) == (ExitCode.INTERRUPTED, "error: interrupted\n")
    document = json.loads(run("wait", "--output=json").stdout)
    assert (document["reason"], document["exit_code"]) == ("interrupted", ExitCode.INTERRUPTED)


def test_a_failure_is_a_document_where_json_is_asked_for(run: Callable[..., Result]) -> None:
    for args, code, reason in (
        (("bundles",), ExitCode.KAFKA_AWAY, "kafka-away"),
        (("transfer", "t/n/x"), ExitCode.USAGE, "usage"),
        (("namespace", "create", "nonsense"), ExitCode.USAGE, "usage"),
        (("audit", "--file", "none.jsonl"), ExitCode.BAD_EXPORT, "export-file"),
    ):
        for asked in (("--output", "json"), ("--output=json",)):
            result = run(*args, *asked)
            (line,) = result.stdout.splitlines()
            document = json.loads(line)
            assert document.keys() == {"error", "reason", "hint", "exit_code", "retryable"}
            assert (document["reason"], document["retryable"]) == (reason, code is ExitCode.KAFKA_AWAY)
            assert document["exit_code"] == result.exit_code == code
            assert f"error: {document['error']}\nhint: {document['hint']}\n" == result.stderr
        assert run(*args).stdout == ""


def test_a_failure_after_a_document_is_no_second_one(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        print_json({"answer": "rejected"})
        raise CommandError("no", code=ExitCode.REJECTED)

    for _ in range(2):
        assert guarded(refused, debug=False, json=True) == ExitCode.REJECTED
        assert json.loads(capsys.readouterr().out) == {"answer": "rejected"}


def test_exit_codes_are_on_the_page() -> None:
    page = PAGE.read_text()
    for code in ExitCode:
        assert f"| {code.value} | {code.name} |" in page


def test_verdicts_are_written_beside_the_answer(run: Callable[..., Result]) -> None:
    result = run("audit", "--file", "logs/junk-2.jsonl", "--verdicts", "out.jsonl", "--output", "json")
    assert result.exit_code == 0
    results = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    stored = [json.loads(line) for line in Path("logs/junk-2.verdicts.jsonl").read_text().splitlines()]
    assert results[:-1] == stored
    expected = json.loads(Path("logs/expected.json").read_text())["junk-2.jsonl"]["audit"]
    assert json.loads(result.stdout) == expected


def test_an_argument_that_is_no_unicode_is_wrong_usage_and_no_bug(run: Callable[..., Result]) -> None:
    result = run("lookup", "tenant/ns/\udcff")
    assert result.exit_code == ExitCode.USAGE
    assert "is not valid UTF-8" in result.stderr


@pytest.mark.parametrize("output", ["table", "json"])
def test_where_nobody_reads_any_more_the_command_ends_well(output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as after `... | head -n 1`
    with os.fdopen(writer, "wb") as pipe:
        command = [*COMMAND, "acl", "show", "--role", "broker", "--output", output]
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("output", ["table", "json"])
def test_where_the_output_has_no_room_that_is_said(output: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "acl", "show", "--role", "broker", "--output", output]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
    assert ended.returncode == ExitCode.FAILED
    assert b"error: the output cannot be written: No space left on device" in ended.stderr
    assert b"bug" not in ended.stderr


def test_a_variable_that_is_no_text_is_named_and_not_told(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    for name in ("STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS", "STATECHANNEL_EMBEDDED__FOLDER"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "secret\udcff:1")
            for command in (["status"], ["kafka", "status"]):
                result = run(*command, "--output", "json")
                assert result.exit_code == ExitCode.BAD_SETTINGS
                assert json.loads(result.stdout)["error"] == f"the environment: {name} is not valid UTF-8"
            result = run("doctor", "--output", "json")
            assert result.exit_code == ExitCode.DOCTOR_CRITICAL
            assert "secret" not in result.output


def test_what_is_no_text_ends_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"folder": "/x/\udcff", "more": [("\udcff", 1)]})
    assert json.loads(capsys.readouterr().out) == {"folder": "/x/?", "more": [["?", 1]]}
    assert cell("/x/\udcff") == "/x/\ufffd"


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    assert cell("a\x1b[31mb\x9bc") == "a\ufffd[31mb\ufffdc"
