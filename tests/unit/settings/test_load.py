"""Settings: precedence, bounds, unknown names, relations."""

import dataclasses
import os
from pathlib import Path

import pytest
from pydantic_settings import EnvSettingsSource

from statechannel.engine.config import EngineConfig
from statechannel.settings import Settings, SettingsError, load, to_engine, to_identity
from statechannel.settings.load import _plain
from statechannel.settings.names import OTHER_VARIABLES, known
from statechannel.settings.relations import RELATIONS, require_relations
from statechannel.settings.tree import groups


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("STATECHANNEL_"):
            monkeypatch.delenv(name)


def refused(**given: object) -> SettingsError:
    with pytest.raises(SettingsError) as error:
        load(**given)  # type: ignore[arg-type]
    assert error.value.exit_code == 8
    assert error.value.hint
    return error.value


def test_flags_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[membership]\nexpiry_s = 7\ninterval_s = 0.5\n[safe_mode]\nafter_s = 3\nsettle_s = 20\n")
    monkeypatch.setenv("STATECHANNEL_MEMBERSHIP__INTERVAL_S", "0.75")
    monkeypatch.setenv("STATECHANNEL_SAFE_MODE__AFTER_S", "2.5")
    settings = load(config=file, flags=["safe_mode.after_s=2"])
    assert (settings.membership.expiry_s, settings.membership.interval_s) == (7, 0.75)
    assert (settings.safe_mode.after_s, settings.safe_mode.settle_s) == (2, 20)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[channel]\nname = "other"\n')
    monkeypatch.setenv("STATECHANNEL_CONFIG", str(file))
    assert load().channel.name == "other"


def test_overrides_that_are_none_were_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECHANNEL_CHANNEL__NAME", "mine")
    assert load(overrides={"channel": {"name": None}}).channel.name == "mine"
    assert load(overrides={"channel": {"name": "yours"}}).channel.name == "yours"


def test_values_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECHANNEL_SAFE_MODE__LEASE_S", "none")
    monkeypatch.setenv("STATECHANNEL_KAFKA__PROPERTIES", '{"sasl.password": "x"}')
    settings = load(flags=['lookups.bound_tenants=["a", "b"]', "membership.take_over=true", "embedded.port=none"])
    assert settings.lookups.bound_tenants == ("a", "b")
    assert settings.membership.take_over is True
    assert settings.safe_mode.lease_s is None
    assert settings.embedded.port is None
    assert settings.kafka.properties["sasl.password"].get_secret_value() == "x"
    assert "x" not in repr(settings.kafka.properties)


@pytest.mark.parametrize("text", ["17", "none", "None", '{"a": 1}', "", "true"])
def test_plain_variables_are_read_as_the_library_reads_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = EnvSettingsSource(
        Settings,  # type: ignore[arg-type]  # only its fields are read
        case_sensitive=False,
        env_prefix="STATECHANNEL_",
        env_nested_delimiter="__",
        env_parse_none_str="none",
    )
    for group, kind in groups().items():
        for name in kind.model_fields:
            if name in ("properties", "bound_tenants", "hosts", "trusted_proxies"):
                continue
            variable = f"STATECHANNEL_{group}__{name}"
            monkeypatch.setenv(variable.upper() if name < "m" else variable, text)
    plain = _plain({name: value for name, value in os.environ.items() if name.upper().startswith("STATECHANNEL_")})
    library.env_vars = library._load_env_vars()
    assert plain is not None
    assert plain == library()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("STATECHANNEL_LOOKUPS__BOUND_TENANTS", '["a"]'),
        ("STATECHANNEL_MEMBERSHIP", '{"expiry_s": 7}'),
        ("STATECHANNEL_KAFKA__PROPERTIES", "{}"),
        ("STATECHANNEL_EXTENSIONS__BALANCER__ENABLED", "false"),
    ],
)
def test_lists_mappings_and_groups_are_left_to_the_library(variable: str, text: str) -> None:
    assert _plain({"STATECHANNEL_CHANNEL__NAME": "mine", variable: text}) is None


UNKNOWN = {
    "[membership]\nexpiri_s = 7\n": "Did you mean `membership.expiry_s`?",
    "[membrship]\nexpiry_s = 7\n": "Did you mean `membership`?",
    "[repair]\nexpiry_s = 7\n": "`repair.expiry_s`",
    "membership = 7\n": "`membership`",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_names_in_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    error = str(refused(config=file))
    assert UNKNOWN[text] in error
    assert str(file) in error


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("STATECHANNEL_MEMBERSHIP__EXPIRI_S", "STATECHANNEL_MEMBERSHIP__EXPIRY_S"),
        ("STATECHANNEL_MEMBERSHIP_EXPIRY_S", "STATECHANNEL_MEMBERSHIP__EXPIRY_S"),
        ("STATECHANNEL_KAFKA_JAR", "STATECHANNEL_KAFKA_JARS"),
        ("statechannel_chanel__name", "STATECHANNEL_CHANNEL__NAME"),
    ],
)
def test_unknown_variables_also_at_the_top(monkeypatch: pytest.MonkeyPatch, variable: str, meant: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert f"unknown setting {variable}. Did you mean `{meant}`?" in str(refused())


@pytest.mark.parametrize("variable", OTHER_VARIABLES)
def test_known_variables_that_are_no_settings(monkeypatch: pytest.MonkeyPatch, variable: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.touch()
    monkeypatch.setenv(variable, str(file))
    assert isinstance(load(), Settings)


BAD_FLAGS = [
    *("membership.expiri_s=7", "expiry_s=7", "membership.expiry_s", "membership.expiry_s=soon", "channel.name=a b"),
    *("membership.expiry_s=-1", "membership.expiry_s=nan", "observe.log_level=loud"),
]


@pytest.mark.parametrize("flag", BAD_FLAGS)
def test_bad_flags(flag: str) -> None:
    assert flag.partition("=")[0] in str(refused(flags=[flag]))


def test_every_problem_is_named_at_once() -> None:
    error = refused(flags=["channel.name=a b", "limits.pending_max=0"])
    assert len(error.problems) == 2


def test_secrets_are_not_shown_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECHANNEL_KAFKA__PROPERTIES", '{"sasl.password": ["hunter2"]}')
    assert "hunter2" not in str(refused())


@pytest.mark.parametrize(
    ("name", "content"), [("missing.toml", None), ("broken.toml", b"[a\n"), ("binary.toml", b"\xff\xfe")]
)
def test_bad_files(tmp_path: Path, name: str, content: bytes | None) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    assert name in str(refused(config=file))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("\ufeff[channel]\nname = 'other'\n", encoding="utf-8")
    assert load(config=file).channel.name == "other"


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_alone_are_no_name_of_a_topic(name: str) -> None:
    assert "channel.name" in str(refused(flags=[f"channel.name={name}"]))


BREAKING: dict[tuple[str, str], list[str]] = {
    ("hooks.deadline_s", "repair.in_flight_limit_s"): ["hooks.deadline_s=30"],
    ("hooks.deadline_s", "hooks.shutdown_budget_s"): ["hooks.shutdown_budget_s=15"],
    ("kafka.delivery_timeout_ms", "channel.min_compaction_lag_ms"): ["channel.min_compaction_lag_ms=299999"],
    ("kafka.request_timeout_ms", "kafka.delivery_timeout_ms"): ["kafka.request_timeout_ms=30000"],
    ("kafka.delivery_timeout_ms", "limits.unknown_limit_s"): ["limits.unknown_limit_s=29"],
    ("kafka.session_timeout_ms", "repair.in_flight_limit_s"): ["kafka.session_timeout_ms=30001"],
    ("channel.min_compaction_lag_ms", "channel.max_compaction_lag_ms"): ["channel.max_compaction_lag_ms=3599999"],
    ("channel.max_compaction_lag_ms", "channel.delete_retention_ms"): ["channel.delete_retention_ms=172799999"],
    ("channel.segment_ms", "channel.max_compaction_lag_ms"): ["channel.segment_ms=86400001"],
    ("leader.debt_age_s", "channel.min_compaction_lag_ms"): [
        "leader.debt_age_s=31",
        "channel.min_compaction_lag_ms=305000",
    ],
    ("leader.purge_deleted_after_s", "channel.min_compaction_lag_ms"): ["leader.purge_deleted_after_s=3599"],
    ("leader.cold_start_after_s", "leader.heartbeat_interval_s"): ["leader.cold_start_after_s=2.9"],
    ("membership.interval_s", "membership.expiry_s"): ["membership.expiry_s=2.9"],
    ("membership.interval_s", "safe_mode.after_s"): ["safe_mode.after_s=1.9"],
    ("safe_mode.after_s", "membership.expiry_s"): ["safe_mode.after_s=6"],
    ("safe_mode.settle_s", "membership.interval_s"): ["safe_mode.settle_s=1.9"],
    ("safe_mode.lease_s", "membership.expiry_s"): ["safe_mode.lease_s=6"],
    ("safe_mode.lease_s", "membership.interval_s"): ["safe_mode.lease_s=1.9"],
    ("repair.mass_loss_window_s", "membership.interval_s"): ["membership.interval_s=2", "repair.mass_loss_window_s=1"],
    ("repair.interval_s", "repair.scan_interval_s"): ["repair.interval_s=31"],
    ("runtime.restart_longest_wait_s", "runtime.restart_window_s"): ["runtime.restarts_max=12"],
    ("runtime.restart_first_wait_s", "runtime.restart_longest_wait_s"): ["runtime.restart_first_wait_s=5.1"],
    ("requests.repeat_s", "limits.command_timeout_s"): ["limits.command_timeout_s=2"],
}


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_each_relation_is_checked(relation: object) -> None:
    pair = (relation.left, relation.right)  # type: ignore[attr-defined]
    error = refused(flags=BREAKING[pair])
    assert any(str(relation) in problem for problem in error.problems)
    assert pair[0] in str(error)


def test_the_defaults_hold_all_relations() -> None:
    require_relations(load())


def test_every_field_of_the_engine_has_a_setting_with_the_same_default() -> None:
    assert to_engine(load()) == EngineConfig()


def test_every_field_of_the_engine_follows_its_setting() -> None:
    """Change every number, and see every field of the engine change."""
    flags = []
    for group, kind in groups().items():
        for name, field in kind.model_fields.items():
            if group in ("membership", "leader", "lookups", "hooks", "safe_mode", "repair", "limits"):
                if type(field.default) is float:
                    flags.append(
                        f"{group}.{name}={field.default * 1.01 if field.default < 1 else field.default + 0.001}"
                    )
                elif type(field.default) is int:
                    flags.append(f"{group}.{name}={field.default + 1}")
    flags += [
        "membership.take_over=true",
        "leader.accept_lost_head=true",
        "safe_mode.lease_s=3",
        'lookups.bound_tenants=["x"]',
        "channel.partitions=3",
    ]
    flags += ["channel.min_compaction_lag_ms=3600001"]
    changed, plain = to_engine(load(flags=flags)), EngineConfig()
    same = [f.name for f in dataclasses.fields(plain) if getattr(changed, f.name) == getattr(plain, f.name)]
    # No settings: a version reads what its code reads, a broker has the hooks that it has, and is no observer.
    assert same == ["newest_format", "split_hooks", "observes", "tick_interval_s"]


def test_an_identity_is_new_each_time() -> None:
    first, second = (to_identity("b", listeners={"pulsar": "pulsar://h:1"}) for _ in range(2))
    assert first.incarnation != second.incarnation
    assert first.entropy != second.entropy
    assert (first.broker, first.listeners, len(first.entropy)) == ("b", {"pulsar": "pulsar://h:1"}, 10)


def test_names_end_in_their_unit() -> None:
    units = (
        "_s",
        "_ms",
        "_bytes",
        "_kib",
        "_mib",
        "_max",
        "_port",
        "_window",
        "_fraction",
        "_ratio",
        "_factor",
        "_records",
    )
    counts = {"channel.partitions", "lookups.default_bundles", "embedded.port", "http.port"}
    wrong = []
    for group, kind in groups().items():
        for name, field in kind.model_fields.items():
            numeric = any(word in str(field.annotation) for word in ("int", "float"))
            if numeric and not name.endswith(units) and f"{group}.{name}" not in counts:
                wrong.append(f"{group}.{name}")
    assert wrong == []


def test_every_setting_is_explained() -> None:
    for group, names in known(groups()).items():
        for name in names:
            description = groups()[group].model_fields[name].description
            assert description is not None, f"{group}.{name}"
            assert len(description) > 15, f"{group}.{name}"
