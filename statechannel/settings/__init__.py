"""Settings: one validated tree from flags, environment and a TOML file, in this order of precedence.

`load` reads them; `require_relations` checks those that a program made;
 `to_engine` and `to_identity` turn them into the plain values that the engine takes. Every setting has
its reason next to it; design/reference/settings.md is generated from them.
"""

from statechannel.settings.errors import SettingsError
from statechannel.settings.load import load, load_settings
from statechannel.settings.relations import require_relations
from statechannel.settings.tree import SettingGroups, Settings, to_engine, to_identity

__all__ = [
    "SettingGroups",
    "Settings",
    "SettingsError",
    "load",
    "load_settings",
    "require_relations",
    "to_engine",
    "to_identity",
]
