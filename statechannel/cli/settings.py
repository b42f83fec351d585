"""Commands `statechannel settings list|explain`: all settings, from the same data as design/reference/settings.md."""

from __future__ import annotations

from typing import Annotated, Any

from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import Connect, OutputAs, argument, commands, with_connection
from statechannel.cli.kit.output import Output, print_json, print_rows, print_table, say, stdout
from statechannel.errors import NotFoundError
from statechannel.settings import Settings
from statechannel.settings.description import SettingText, default_text, every_setting
from statechannel.suggestions import nearest, shown

app = commands("Settings: list, explain.")


def _names(incomplete: str) -> list[str]:
    """Settings for shell completion."""
    return [setting.name for setting in every_setting() if setting.name.startswith(incomplete)]


@app.command("list")
def list_(
    group: Annotated[str | None, argument("[GROUP]", "Only settings whose names begin so, e.g. kafka.")] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the settings with their defaults; those of installed extensions included."""
    every = list(every_setting())
    rows = [setting for setting in every if group is None or _is_in(setting.name, group)]
    if not rows:
        groups = dict.fromkeys(setting.name.rpartition(".")[0] for setting in every)
        raise NotFoundError(f"no setting begins with `{shown(group or '')}`", hint=f"Groups: {', '.join(groups)}.")
    if output is Output.JSON:
        print_json({"settings": [setting.fields() for setting in rows]})
        return
    kind = Column("type", of=lambda setting: setting.type.replace("`", ""))
    print_rows((Column("setting", of="name"), "default", kind, "allowed"), rows)
    say("`statechannel settings explain NAME` explains one")


@app.command()
@with_connection
def explain(
    connect: Connect,
    name: Annotated[str, argument("NAME", "E.g. membership.expiry_s.", autocompletion=_names)],
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain a setting: meaning, default, bounds, how it is set, its value here; or all settings of a group."""
    every = list(every_setting())
    rows = [setting for setting in every if _is_in(setting.name, name)]
    if not rows:
        meant = nearest(name, [setting.name for setting in every], cutoff=0.5)
        raise NotFoundError(
            f"there is no setting `{shown(name)}`" + (f"; did you mean `{meant[0]}`?" if meant else ""),
            hint="`statechannel settings list` lists them.",
        )
    here = connect.settings()
    fields_of = [setting.fields() | {"value": _value(here, setting)} for setting in rows]
    if output is Output.JSON:
        print_json({"settings": fields_of})
        return
    for number, (setting, fields) in enumerate(zip(rows, fields_of, strict=True)):
        if number:
            stdout().print()
        _show(setting, fields)


def _is_in(name: str, group: str) -> bool:
    return name == group or name.startswith(f"{group.rstrip('.')}.")


def _value(settings: Settings, setting: SettingText) -> str | None:
    """The value that commands here use; None of what may be a secret, and of settings of extensions that are not given."""
    value: Any = settings.model_dump(mode="python")
    for part in setting.name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return None if isinstance(value, dict) else default_text(value)


def _show(setting: SettingText, fields: dict[str, Any]) -> None:
    group, _, name = setting.name.rpartition(".")
    print_table(
        ("setting", setting.name),
        [
            ("type", setting.type.replace("`", "")),
            ("default", setting.default),
            ("allowed", setting.allowed.replace("`", "")),
            ("value here", fields["value"]),
            ("option", f"--set {setting.name}=VALUE"),
            ("environment", setting.variable),
            ("file", f"[{group}] {name} = VALUE"),
            ("Pulsar", setting.upstream),
        ],
    )
    stdout().print(setting.about, markup=False)
    for relation in fields["relations"]:
        stdout().print(f"rule: {relation}", markup=False)
