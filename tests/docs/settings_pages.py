"""Pages of settings, made from their models: of brokers, of the balancer, of the rebalance planner."""

from collections.abc import Iterator, Mapping
from textwrap import fill

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shedders.balancer.active_strategies import BALANCER
from shedders.balancer.settings import BalancerSettings
from shedders.kafka_rebalance.settings import NAME as PARTITIONS
from shedders.kafka_rebalance.settings import PartitionsSettings
from statechannel.settings.description import bounds_text, default_text, type_text, upstream_text
from statechannel.settings.names import ENV_DELIMITER, ENV_PREFIX
from statechannel.settings.relations import RELATIONS
from statechannel.settings.tree import groups

MADE = "Made from the code by `make docs`; a test compares. Do not edit by hand."


def settings_page() -> Iterator[str]:
    """Lines of design/reference/settings.md."""
    yield "# Settings"
    yield ""
    yield MADE
    yield ""
    yield "Flags (`--set group.name=value`, and named options) override the environment"
    yield f"(`{ENV_PREFIX}GROUP{ENV_DELIMITER}NAME`), which overrides the file (`--config FILE` or"
    yield "`STATECHANNEL_CONFIG`; TOML, one table per group). Unknown names are refused, with a suggestion."
    yield "In code the groups are arguments of `StateChannel.open` (`kafka={...}, repair={...}`; the group `hooks` is"
    yield "`hook_settings={...}`) or of `load_settings`, and take the place of flags; `extensions` only of the latter."
    yield "The unit is the last word of a name. `none` stands for None. The last column names the nearest setting or"
    yield "constant of Pulsar's load manager extension (PIP-192 as built)."
    for name, group in groups().items():
        yield ""
        yield f"## {name}"
        yield ""
        yield " ".join((group.__doc__ or "").split())
        yield ""
        yield from table(group.model_fields)
    yield ""
    yield "## Relations"
    yield ""
    yield "Checked at start; all violations are reported."
    yield ""
    yield "| rule | why |"
    yield "|---|---|"
    for relation in RELATIONS:
        yield f"| `{relation.left}` {relation.relation} `{relation.right}` | {relation.why} |"


def table(fields: Mapping[str, FieldInfo], *, upstream: bool = True) -> Iterator[str]:
    """Table of settings, one row each; also used for pages of other packages.

    Args:
        upstream: With a column for Pulsar's names.
    """
    headers = ["setting", "type", "default", "bounds", "why", "PIP-192"][: None if upstream else -1]
    yield f"| {' | '.join(headers)} |"
    yield "|---" * len(headers) + "|"
    for name, field in fields.items():
        yield f"| {' | '.join(_row(name, field)[: len(headers)])} |"


def _row(name: str, field: FieldInfo) -> list[str]:
    upstream = upstream_text(field)
    cells = [
        f"`{name}`",
        type_text(field.annotation),
        f"`{default_text(field.get_default(call_default_factory=True))}`",
        bounds_text(field),
        field.description or "",
        f"`{upstream}`" if upstream and " " not in upstream else upstream,
    ]
    return [cell.replace("|", "\\|") for cell in cells]


def balancer_page() -> Iterator[str]:
    """Lines of design/reference/balancer-settings.md."""
    prefix = "extensions.balancer"
    yield "# Settings of the balancing extension"
    yield ""
    yield MADE
    yield ""
    yield f"Given like all others (settings.md), below `{prefix}`: `--set {prefix}.interval_s=30`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{prefix}]"
    yield "interval_s = 30"
    yield ""
    yield f"[{prefix}.load]"
    yield "top_bundles_max = 20"
    yield "```"
    yield ""
    names = ", ".join(f"`{name}`" for name in BALANCER)
    yield fill(
        "They apply to one broker, from its start. A policy of kind `setting` (policies.md) can change on all running brokers: "
        f"profile, strategies, their settings, and of the balancer {names} and `budget.*`.",
        width=128,
        break_on_hyphens=False,
    )
    yield from group_tables(prefix, BalancerSettings)


def partitions_page() -> Iterator[str]:
    """Lines of design/reference/partitions-settings.md."""
    prefix = f"extensions.{PARTITIONS}"
    yield "# Settings of the rebalance planner"
    yield ""
    yield MADE
    yield ""
    yield f"Set like all others (settings.md), under `{prefix}`, for the commands of `statechannel partitions`; options of a"
    yield f"command override them: `--set {prefix}.pace.moves_per_broker=10`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{prefix}.pace]"
    yield "moves_per_broker = 10"
    yield "throttle_bytes_per_s = 50_000_000"
    yield ""
    yield f"[{prefix}.plan]"
    yield 'excluded_topics = ["tmp-.*"]'
    yield "```"
    yield ""
    yield "Brokers of the channel check them if their file has them, but do not use them."
    yield from group_tables(prefix, PartitionsSettings, upstream=False)


def group_tables(path: str, model: type[BaseModel], *, upstream: bool = True) -> Iterator[str]:
    """A table of a group's own settings, and one of each group in it, as lines of Markdown.

    Args:
        upstream: With a column for the names of Pulsar's settings.
    """
    inner = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    yield ""
    yield f"## {path}"
    yield ""
    yield " ".join((model.__doc__ or "").split())
    yield ""
    own = {name: field for name, field in model.model_fields.items() if name not in inner}
    yield from table(own, upstream=upstream)
    for name, group in inner.items():
        yield from group_tables(f"{path}.{name}", group, upstream=upstream)
