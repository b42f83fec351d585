"""An event-sourced bundle state channel on Apache Kafka.

A message-broker cluster spreads topics over bundles. Who owns which bundle is a replicated state
machine: every broker reads one compacted Kafka topic and accepts or rejects each record by the same
rules, so all of them agree without a lock service (the model is Pulsar's PIP-192).
"""

from typing import TYPE_CHECKING

try:  # the optional package of the folder `accelerator`: the same core, compiled
    from statechannel_accelerator import load as _load
except ImportError:
    pass
else:
    _load(__path__[0])

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - a tenth of a second that few need

        return version("statechannel")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
