"""Settings of `statechannel partitions`, from those of the program (`extensions.partitions.*`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shedders.partitions.settings import NAME, PartitionsSettings, configured

if TYPE_CHECKING:
    from statechannel.settings import Settings


def partitions_settings(settings: Settings) -> PartitionsSettings:
    """What holds of them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return configured(settings.extensions.get(NAME, {}))
