"""What a broker goes by while policies come and go: its settings under theirs, and the strategies that both choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shedders.isolation import Isolation
from shedders.live.chosen import in_force, laid_down
from shedders.live.policy_standing import Standing
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from shedders.cluster import Policies
    from shedders.live.settings import BalancerSettings


class PoliciesUnusableError(StateChannelError):
    """Making strategies of what policies lay down failed by something that is no word about a setting: a plug-in, or a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"what the policies lay down cannot be used: {type(error).__name__}: {error}",
            hint="`statechannel policy list` shows the settings and who set them; delete the one that is meant.",
        )
        self.__cause__ = error


class InForce:
    """See the module. In the loop's thread.

    Args:
        configured: The broker's own settings.

    Attributes:
        settings: The balancer's, with what policies say in place of them.
        chosen: Strategies; the same as long as nothing changes for them, since they remember.
        unusable: Why the policies cannot be used as they stand; None if they can. Settings and strategies are those before then.

    Raises:
        StateChannelError: The broker's own settings cannot be used.
    """

    def __init__(self, configured: BalancerSettings) -> None:
        self._configured = configured
        self.settings, self.chosen = in_force(configured, None)
        self.unusable: str | None = None
        self._chosen_for = self._asked_for(Standing())
        self._isolation: tuple[Policies, Isolation] | None = None

    def follow(self, standing: Standing) -> StateChannelError | None:
        """Go by these policies from now on; what is wrong with them, if they are new and cannot be used."""
        asked_for = self._asked_for(standing)
        if asked_for == self._chosen_for:
            return None
        self._chosen_for = asked_for
        try:
            self.settings, self.chosen = in_force(self._configured, standing)
        except Exception as error:
            # Placements go on as before, and nothing is moved: who knows what the policy was to prevent.
            fault = error if isinstance(error, StateChannelError) else PoliciesUnusableError(error)
            self.unusable = str(fault)
            return fault
        self.unusable = None
        return None

    def keeps(self, standing: Standing | None, namespace: str) -> bool:
        """Whether the bundles of a namespace are kept from being shed for its policies' sake."""
        if standing is None:
            return False
        allowed = standing.shed_with_policies
        if self._configured.load.top_with_policies if allowed is None else allowed:
            return False
        policies = standing.policies
        if namespace in policies.anti_affinity:
            return True
        if self._isolation is None or self._isolation[0] is not policies:
            self._isolation = policies, Isolation(policies.isolation, {})
        zone = self._isolation[1].zone(namespace)
        return zone is not None and (zone.policy is not None or zone.broken is not None)

    def cool_down_s(self) -> float | None:
        """Of the shedding strategy; None: it has none."""
        found = getattr(self.chosen.settings["shedding"], "cool_down_s", None)
        return found if isinstance(found, int | float) else None

    def _asked_for(self, standing: Standing) -> tuple[object, ...]:
        """What strategies are chosen by."""
        return standing.settings, standing.manager or self._configured.manager, laid_down(standing)
