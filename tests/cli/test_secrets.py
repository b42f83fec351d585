"""A password is in nothing that a command or a broker shows, whatever way it was given by and whatever went wrong."""

import io
import logging
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from spark.core.streaming import kafka_options
from statechannel.cli.kit.connection import connect
from statechannel.cli.main import app
from statechannel.embedded import BrokerOptions, BrokerSecurity
from statechannel.embedded.process import find_free
from statechannel.kafka.client_settings import ClientSettings

MARK = "Pa55-w0rd.Marked"
QUICK = ("--set", "kafka.command_timeout_s=0.3", "--set", "membership.interval_s=0.2")
SASL = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=u")
COMMANDS = (("status",), ("broker", "run", "--id", "b1"), ("transfer", "t/n/x", "--dest", "b1"))

Way = Callable[[Path, pytest.MonkeyPatch], list[str]]


def options(*words: str) -> Way:
    return lambda _folder, _patch: list(words)


def file_with(text: str) -> Way:
    def way(folder: Path, _patch: pytest.MonkeyPatch) -> list[str]:
        path = folder / "client.properties"
        path.write_text(text)
        return ["--kafka-config", str(path)]

    return way


def config_with(text: str) -> Way:
    def way(folder: Path, _patch: pytest.MonkeyPatch) -> list[str]:
        path = folder / "settings.toml"
        path.write_text(text)
        return ["--config", str(path)]

    return way


def environment(name: str, value: str) -> Way:
    def way(_folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
        patch.setenv(name, value)
        return []

    return way


WAYS: dict[str, Way] = {
    "an option": options(*SASL, "-X", f"sasl.password={MARK}"),
    "a file": file_with(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password={MARK}\n"
    ),
    "a setting": options(*SASL, "--set", f'kafka.properties={{"sasl.password": "{MARK}"}}'),
    "the environment": environment("STATECHANNEL_KAFKA__PROPERTIES", f'{{"sasl.password": "{MARK}"}}'),
    "a settings file": config_with(f'[kafka.properties]\n"sasl.password" = "{MARK}"\n'),
    "an address like a URL": options("--bootstrap-servers", f"sasl_ssl://u:{MARK}@127.0.0.1:9"),
    "an address with a name": options("--bootstrap-servers", f"u:{MARK}@127.0.0.1:9"),
    "an address among the properties": options("-X", f"bootstrap.servers=u:{MARK}@127.0.0.1:9"),
    "a mechanism that there is not": options("-X", "sasl.mechanism=NOPE", "-X", f"sasl.password={MARK}"),
    "a key": options("-X", "security.protocol=SSL", "-X", f"ssl.key.pem={MARK}"),
    "the password of a key": options("-X", "security.protocol=SSL", "-X", f"ssl.key.password={MARK}"),
    "a Java line": options("-X", f'sasl.jaas.config=Module required password="{MARK}";'),
    "a token": options("-X", "sasl.mechanism=OAUTHBEARER", "-X", f"sasl.oauthbearer.client.secret={MARK}"),
    "with the client's own debug lines": options(*SASL, "-X", f"sasl.password={MARK}", "-X", "debug=all"),
    "an option without =": options("-X", f"sasl.password:{MARK}"),
    "a fixed property beside it": options("-X", f"sasl.password={MARK}", "-X", "acks=0"),
    "a property that there is not": options("-X", f"sasl.pasword={MARK}"),
    "a setting that there is not": options("--set", f"kafka.sasl_password={MARK}"),
    "a setting without a group": options("--set", f"sasl.password={MARK}"),
    "a setting that is no mapping": options("--set", f"kafka.properties=sasl.password={MARK}"),
    "a setting of broken JSON": options("--set", f'kafka.properties={{"sasl.password": "{MARK}"'),
    "a setting of the wrong type": options("--set", f'kafka.properties={{"sasl.password": ["{MARK}"]}}'),
    "an environment of broken JSON": environment("STATECHANNEL_KAFKA__PROPERTIES", f'{{"sasl.password": "{MARK}"'),
    "an environment that is no mapping": environment("STATECHANNEL_KAFKA__PROPERTIES", f"sasl.password={MARK}"),
    "an environment that there is not": environment("STATECHANNEL_KAFKA__SASL_PASSWORD", MARK),
    "a settings file of broken TOML": config_with(f'[kafka.properties]\n"sasl.password" = "{MARK}\n'),
    "a settings file that is no mapping": config_with(f'[kafka]\nproperties = "sasl.password={MARK}"\n'),
    "a settings file with a group of its own": config_with(f'[sasl]\npassword = "{MARK}"\n'),
    "a settings file as the properties": config_with(f"sasl.password={MARK}\n"),
    "a file without =": file_with(f"sasl.password {MARK}\n"),
}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_no_output_has_it(way, tmp_path, monkeypatch, logged, capfd):
    monkeypatch.setenv("STATECHANNEL_EMBEDDED__FOLDER", str(tmp_path / "none"))
    given = way(tmp_path, monkeypatch)
    if not any(MARK in word and "127.0.0.1" in word for word in given):
        given += ["--bootstrap-servers", f"127.0.0.1:{find_free()}"]
    shown = ""
    commands = COMMANDS if way is WAYS["an option"] else COMMANDS[:1]
    for words in (*(["--debug", *command] for command in commands), ["status", "--output", "json"]):
        code, output = run([*words, *given, *QUICK])
        assert code != 0
        assert "error" in output
        shown += output
    seen = capfd.readouterr()
    everything = shown + seen.out + seen.err + logged.text
    assert MARK not in everything, [line for line in everything.splitlines() if MARK in line]
    assert "This is a bug" not in everything


def run(words: list[str]) -> tuple[int, str]:
    """The command as its console script runs it, to the end of the process."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), pytest.raises(SystemExit) as ended:
        app(words)
    return int(ended.value.code or 0), output.getvalue()


def test_no_repr_has_it(tmp_path):
    properties = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": MARK}
    client = ClientSettings("127.0.0.1:9", properties)
    security = BrokerSecurity(certificate_pem=tmp_path, authority_pem=tmp_path, superuser="u", password=MARK)
    connection = connect("127.0.0.1:9", None, None, [f"sasl.password={MARK}"], None)
    for thing in (
        client,
        client.redacted(),
        security,
        BrokerOptions(security=security),
        connection,
        connection.settings,
    ):
        assert MARK not in repr(thing)
        assert MARK not in str(thing)
    assert MARK in str(kafka_options(client, read_text=str))  # Spark needs it; its plans and tables redact it
    assert MARK not in connection.settings.model_dump_json()
