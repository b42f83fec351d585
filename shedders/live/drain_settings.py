"""Settings of drains: `extensions.balancer.drain.*`."""

from __future__ import annotations

from typing import Literal

from shedders.live.drain_plan import DrainRules
from statechannel.settings.field import Group, setting

HOUR_S = 3_600.0


class DrainSettings(Group):
    """How a broker is emptied for maintenance."""

    rate_per_s: float = setting(
        10.0,
        "Bundles a second that set out where the command does not say: clients look each of them up anew.",
        gt=0,
        le=10_000,
    )
    moves_at_once: int = setting(16, "Moves of one drain that are under way at the same time.", ge=1, le=10_000)
    ahead_max: int = setting(
        20, "Bundles that a broker is given before its load report counts any of them.", ge=1, le=100_000
    )
    report_wait_s: float = setting(
        30.0, "A receiver's report that does not come within this is waited for no longer.", ge=0, le=HOUR_S
    )
    attempts_max: int = setting(
        5, "So often a bundle is tried; then it stays, and the answer says why.", ge=1, le=1_000
    )
    retry_s: float = setting(1.0, "Wait before the second try of a bundle; it is doubled each time.", ge=0, le=600)
    patience_s: float = setting(
        5.0,
        "So long nothing can go before what is left is given up: a receiver may be about to come back.",
        ge=0,
        le=HOUR_S,
    )
    quiet_s: float = setting(
        1.5,
        "So long the broker has to be empty: brokers read of a cordon within a second, and may place a bundle there until then.",
        ge=0,
        le=600,
    )
    cordon_wait_s: float = setting(
        10.0, "The leader waits for so long until it has read that the broker is cordoned.", ge=0, le=600
    )
    order: Literal["largest", "name"] = setting(
        "largest", "Which bundles go first: those with most traffic, or by name."
    )

    def rules(self) -> DrainRules:
        """As the plan takes them."""
        return DrainRules(
            at_once=self.moves_at_once,
            attempts_max=self.attempts_max,
            retry_s=self.retry_s,
            patience_s=self.patience_s,
            quiet_s=self.quiet_s,
            largest_first=self.order == "largest",
        )
