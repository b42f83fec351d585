"""Trace files: any trace as one file, whose demand is the same bit for bit.

The file is a zip of arrays as numpy writes them (`.npz`, without pickled objects) and `header.json`. Each step is an array of its
own, so that neither writing nor reading needs more memory than one step.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shedders.contest.demand_noise import DemandVariation, noise_layers
from shedders.contest.scenario import STEPS_MAX, TOPICS_MAX
from shedders.contest.trace import Costs, Demand, Namespace, Trace, TraceEvent, TraceMachine, Units, scaled
from shedders.model.cluster import Policies
from shedders.snapshots.file import FaultyFileError, sentences
from statechannel.files import new_file
from statechannel.suggestions import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.contest.trace import Floats


KIND: Final = "statechannel-trace"
FORMAT: Final = 1
HEADER: Final = "header.json"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_LEVEL: Final = 1

Finite = Annotated[float, Field(ge=0, le=1e15)]


class TraceFileError(FaultyFileError):
    """A trace file cannot be written or read, or is invalid."""

    usual_hint = "Record it again; see design/reference/scenarios.md."


class TraceHeader(BaseModel):
    """`header.json` of a trace file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    kind: Literal["statechannel-trace"] = KIND
    format: Literal[1] = FORMAT
    name: Annotated[str, Field(min_length=1, max_length=200)]
    about: str
    seed: Annotated[int, Field(ge=0)]
    step_s: Annotated[float, Field(gt=0, le=86_400)]
    steps: Annotated[int, Field(ge=1, le=STEPS_MAX)]
    machines: list[TraceMachine]
    namespaces: list[Namespace]
    events: list[TraceEvent]
    disturbances: list[Finite]
    judged: list[tuple[Finite, Finite]]
    costs: Costs
    policies: Policies = Policies()
    units: Annotated[int, Field(ge=0, le=TOPICS_MAX)]
    proportional: bool = Field(description="Steps hold factors of `base` instead of the whole demand.")
    remarks: list[str] = []


_SHARED: Final = TraceHeader.model_fields.keys() & {field.name for field in fields(Trace)} - {"units"}
"""Fields of a trace that stand in the header as they are."""


# --- writing ----------------------------------------------------------------------------------------------------------


def save(trace: Trace, path: Path) -> None:
    """Write a trace; equal traces give equal files.

    Raises:
        TraceFileError: The trace cannot be represented.
        StateChannelError: The file cannot be written, or is a device or a pipe.
    """
    proportional, units = trace.base is not None, len(trace.units.position)
    header = TraceHeader(units=units, proportional=proportional, **{name: getattr(trace, name) for name in _SHARED})
    try:
        with new_file(path) as whole, zipfile.ZipFile(whole, "w") as file:
            _write(file, HEADER, orjson.dumps(header.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
            for name, array in _arrays(trace):
                _write(file, name, _packed(array))
    except (OSError, ValueError) as error:
        raise TraceFileError.unwritable(str(path), error) from error


def _arrays(trace: Trace) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, column in zip(Units._fields, trace.units, strict=True):
        yield f"units/{name}.npy", np.asarray(column, np.int64)
    if trace.base is not None:
        yield "base.npy", np.stack(list(trace.base))
    for step in range(trace.steps):
        yield _step_name(step), trace.rows(step)


def _step_name(step: int) -> str:
    return f"steps/{step:05d}.npy"


def _packed(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _write(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(entry, data, compresslevel=_LEVEL)


# --- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> Trace:
    """Read and check a trace file; its steps are read on demand.

    Raises:
        TraceFileError: The file cannot be read, is not a trace, or contradicts itself.
    """
    where = shown(os.fspath(path))
    try:
        file = zipfile.ZipFile(path)
    except (OSError, ValueError) as error:
        raise TraceFileError.unreadable(where, error) from error
    except zipfile.BadZipFile as error:
        hint = "`statechannel simulate` records traces; scenarios end with .toml."
        raise TraceFileError(where, ["not a trace file: not a zip archive"], hint=hint) from error
    try:
        return _opened(file, where)
    except BaseException:
        file.close()
        raise


def _opened(file: zipfile.ZipFile, where: str) -> Trace:
    try:
        header = TraceHeader.model_validate_json(_member(file, HEADER, where))
    except ValidationError as error:
        problems = [f"{HEADER}: {problem}" for problem in sentences(error, TraceHeader)]
        raise TraceFileError(where, problems) from error
    wrong = [f"{HEADER}: {fault}" for fault in _contradictions(header)]
    if wrong:
        raise TraceFileError(where, wrong)
    count = (header.units,)
    units = Units(*(_array(file, f"units/{name}.npy", count, np.int64, where) for name in Units._fields))
    whole = (len(Demand._fields), header.units)
    return Trace(
        units=units,
        rows=lambda step: _array(file, _step_name(step), count if header.proportional else whole, np.float64, where),
        base=Demand(*_array(file, "base.npy", whole, np.float64, where)) if header.proportional else None,
        **{name: getattr(header, name) for name in _SHARED},
    )


def _contradictions(header: TraceHeader) -> Iterator[str]:
    brokers = [machine.name for machine in header.machines]
    namespaces = {namespace.name for namespace in header.namespaces}
    if not brokers or brokers != sorted(set(brokers)):
        yield "machines: expected at least one, sorted by name, each once"
    if len(namespaces) < len(header.namespaces):
        yield "namespaces: a name is duplicated"
    known = {"", *brokers}
    for number, event in enumerate(header.events):
        if event.broker not in known or event.namespace not in {"", *namespaces}:
            yield f"events[{number}]: expected a broker or namespace of the trace"
    for number, space in enumerate(header.namespaces):
        if not known.issuperset(owner for owner in space.owners if owner is not None):
            yield f"namespaces[{number}].owners: a broker is not a machine of the trace"


def _array(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], kind: type[Any], where: str) -> NDArray[Any]:
    try:
        array = np.load(io.BytesIO(_member(file, name, where)), allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise TraceFileError(where, [f"{name}: not an array of numpy: {error}"]) from error
    if array.shape != shape or array.dtype != np.dtype(kind):
        raise TraceFileError(where, [f"{name}: expected {np.dtype(kind)} {shape}, got {array.dtype} {array.shape}"])
    if array.size and not (np.isfinite(array).all() and array.min() >= 0):
        raise TraceFileError(where, [f"{name}: expected finite numbers of at least 0"])
    return np.asarray(array)


def _member(file: zipfile.ZipFile, name: str, where: str) -> bytes:
    try:
        return file.read(name)
    except KeyError as error:
        raise TraceFileError(where, [f"{name} is missing"]) from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError) as error:
        raise TraceFileError(where, [f"{name}: corrupt: {error}"]) from error


AS_RECORDED: Final = 1
"""Seed without variation."""
NOISE: Final = ((0.05, 60.0), (0.1, 1_800.0))
"""Layers of day-to-day variation: standard deviation as a share of each unit's demand, and seconds between two draws."""


def varied(trace: Trace, seed: int) -> Trace:
    """Variation of a trace as on another day; only demand and seed differ."""
    if seed == AS_RECORDED:
        return trace
    units = len(trace.units.position)
    variation = DemandVariation(units, noise_layers(seed, NOISE, units))

    def rows(step: int) -> Floats:
        return np.stack(scaled(trace.demand(step), variation.at(step * trace.step_s)))

    return replace(trace, seed=seed, rows=rows, base=None)
