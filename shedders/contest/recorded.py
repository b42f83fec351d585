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
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shedders.contest.demand_noise import DemandVariation, noise_layers
from shedders.contest.measures import RESOURCE_ROWS
from shedders.contest.scenario import SLOWEST, STEPS_MAX, TOPICS_MAX
from shedders.contest.trace import (
    Costs,
    Demand,
    Namespace,
    Trace,
    TraceEvent,
    TraceEventKind,
    TraceMachine,
    Units,
    scaled,
)
from shedders.model.cluster import Policies
from shedders.snapshots.file import FaultyFileError, sentences
from statechannel.files import new_file
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN, is_namespace
from statechannel.protocol.codec import is_broker_id
from statechannel.suggestions import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.contest.trace import Floats


KIND: Final = "statechannel-trace"
FORMAT: Final = 1
HEADER: Final = "header.json"
HEADER_MAX_BYTES: Final = 64 << 20
DEMAND_MAX_BYTES: Final = 8 << 30
"""Most bytes of all steps together, uncompressed."""
LEAST: Final = 1e-3
MOST: Final = 1e15
"""Bounds of machine limits, beyond which loads are not finite."""
AMOUNT_MAX: Final = 1e30
FACTOR_MAX: Final = 1e6
COST_MAX: Final = 3_600.0
_NPY_HEADER_MAX_BYTES: Final = 4_096
_NPY_VERSION: Final = (1, 0)
_ROWS: Final = len(Demand._fields)
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_LEVEL: Final = 1

Scalar = TypeVar("Scalar", bound=np.generic)
Finite = Annotated[float, Field(ge=0, le=1e15)]


class TraceFileError(FaultyFileError):
    """A trace file cannot be written or read, or is invalid."""

    usual_hint = "Record it again; see design/scenarios.md."


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


# --- writing ----------------------------------------------------------------------------------------------------------


def save(trace: Trace, path: Path) -> None:
    """Write a trace; equal traces give equal files.

    Raises:
        TraceFileError: The trace is too large, or cannot be represented.
        StateChannelError: The file cannot be written, or is a device or a pipe.
    """
    proportional, units = trace.base is not None, len(trace.units.position)
    size_bytes = trace.steps * units * 8 * (1 if proportional else _ROWS)
    if size_bytes > DEMAND_MAX_BYTES:
        raise TraceFileError(
            str(path),
            [f"{trace.steps:,} steps of {units:,} units are {size_bytes:,} bytes, more than {DEMAND_MAX_BYTES:,}"],
            hint="Record fewer hours, or use longer steps.",
        )
    header = TraceHeader(
        name=trace.name,
        about=trace.about,
        seed=trace.seed,
        step_s=trace.step_s,
        steps=trace.steps,
        machines=list(trace.machines),
        namespaces=list(trace.namespaces),
        events=list(trace.events),
        disturbances=list(trace.disturbances),
        judged=list(trace.judged),
        costs=trace.costs,
        policies=trace.policies,
        units=units,
        proportional=proportional,
        remarks=list(trace.remarks),
    )
    try:
        with new_file(path) as whole, zipfile.ZipFile(whole, "w") as file:
            _write(file, HEADER, orjson.dumps(header.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
            for name, array in _arrays(trace):
                _write(file, name, _packed(array))
    except (OSError, ValueError) as error:
        raise TraceFileError.unwritable(str(path), error) from error


def _arrays(trace: Trace) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for name, column in zip(Units._fields, trace.units, strict=True):
        yield f"units/{name}.npy", np.asarray(column, np.int64)
    if trace.base is not None:
        yield "base.npy", np.stack(list(trace.base))
    for step in range(trace.steps):
        yield _step_name(step), trace.rows(step)


def _step_name(step: int) -> str:
    return f"steps/{step:05d}.npy"


def _packed(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), _NPY_VERSION, allow_pickle=False)
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
    raw = _member(file, HEADER, HEADER_MAX_BYTES, where)
    try:
        header = TraceHeader.model_validate_json(raw)
    except ValidationError as error:
        problems = [f"{HEADER}: {problem}" for problem in sentences(error, TraceHeader)]
        raise TraceFileError(where, problems) from error
    wrong = [f"{HEADER}: {fault}" for fault in _contradictions(header)]
    if wrong:
        raise TraceFileError(where, wrong)
    count = (header.units,)
    units = Units(*(_array(file, f"units/{name}.npy", count, np.int64, where) for name in Units._fields))
    wrong = list(_unit_faults(units, len(header.namespaces)))
    if wrong:
        raise TraceFileError(where, wrong)
    base = Demand(*_amounts(file, "base.npy", (_ROWS, header.units), where)) if header.proportional else None
    shape = (header.units,) if header.proportional else (_ROWS, header.units)
    return Trace(
        name=header.name,
        about=header.about,
        seed=header.seed,
        step_s=header.step_s,
        steps=header.steps,
        machines=header.machines,
        namespaces=header.namespaces,
        units=units,
        rows=lambda step: _amounts(file, _step_name(step), shape, where),
        base=base,
        events=header.events,
        disturbances=header.disturbances,
        judged=header.judged,
        costs=header.costs,
        policies=header.policies,
        remarks=header.remarks,
    )


def _contradictions(header: TraceHeader) -> Iterator[str]:
    names = [machine.name for machine in header.machines]
    if not names:
        yield "machines: expected at least one"
    if names != sorted(set(names)):
        yield "machines: not sorted by name, or duplicated"
    for number, machine in enumerate(header.machines):
        if not is_broker_id(machine.name):
            yield f"machines[{number}].name: expected a broker id, got {shown(repr(machine.name))}"
        limits = (machine.cores, machine.bandwidth_in_kbit, machine.bandwidth_out_kbit, machine.direct_memory_mib)
        sound = all(LEAST <= limit <= MOST for limit in (*limits, machine.memory_mib))
        if not sound or not 0 <= machine.idle_percent <= 100:  # noqa: PLR2004
            yield f"machines[{number}]: expected limits from {LEAST:g} to {MOST:g}, and 0 to 100 % idle CPU"
    for number, space in enumerate(header.namespaces):
        yield from (f"namespaces[{number}]{fault}" for fault in _namespace_faults(space, set(names)))
    if len({namespace.name for namespace in header.namespaces}) != len(header.namespaces):
        yield "namespaces: a name is duplicated"
    yield from _event_faults(header, set(names))
    for name, cost in asdict(header.costs).items():
        if not 0 <= cost <= COST_MAX:
            yield f"costs.{name}: expected 0 to {COST_MAX:g}, got {cost:g}"
    if [event.at_s for event in header.events] != sorted(event.at_s for event in header.events):
        yield "events: not sorted by time"
    if any(from_s >= to_s for from_s, to_s in header.judged):
        yield "judged: a span ends before it begins"


def _event_faults(header: TraceHeader, brokers: set[str]) -> Iterator[str]:
    spaces, created = {namespace.name for namespace in header.namespaces}, set()
    for number, event in enumerate(header.events):
        where, factor = f"events[{number}]", event.factor
        known = event.namespace in spaces if event.what is TraceEventKind.CREATE else event.broker in brokers
        if not known or not 0 <= event.at_s < np.inf or not 0 <= factor < np.inf:
            yield f"{where}: expected a broker or namespace of the trace, a time, and a factor of at least 0"
        elif factor > FACTOR_MAX:
            yield f"{where}.factor: expected at most {FACTOR_MAX:g}"
        elif event.what is TraceEventKind.SLOW and factor < SLOWEST:
            yield f"{where}.factor: expected at least {SLOWEST:g}; for a broker that does nothing, use lost"
        elif event.what is TraceEventKind.LOSSY and factor > 1:
            yield f"{where}.factor: expected 0 to 1"
        elif not set(RESOURCE_ROWS).issuperset(event.resources):
            yield f"{where}.resources: expected some of {', '.join(RESOURCE_ROWS)}"
        elif event.what is TraceEventKind.CREATE:
            if event.namespace in created:
                yield f"{where}: {event.namespace} is created twice"
            created.add(event.namespace)


def _namespace_faults(space: Namespace, brokers: set[str]) -> Iterator[str]:
    if not is_namespace(space.name):
        yield f".name: expected tenant/namespace, got {shown(repr(space.name))}"
    if not 1 <= space.bundles <= MAX_CHILDREN:
        yield f".bundles: expected 1 to {MAX_CHILDREN}, got {space.bundles}"
    bounds = list(space.bounds)
    if bounds and (
        len(bounds) != space.bundles + 1
        or (bounds[0], bounds[-1]) != (0, FULL_UPPER)
        or any(pair >= other for pair, other in pairwise(bounds))
    ):
        yield f".bounds: expected {space.bundles + 1} ascending bounds of the whole ring"
    if space.owners and len(space.owners) != space.bundles:
        yield f".owners: expected one per bundle, got {len(space.owners)}"
    if not brokers.issuperset(owner for owner in space.owners if owner is not None):
        yield ".owners: a broker is not a machine of the trace"


def _unit_faults(units: Units, namespaces: int) -> Iterator[str]:
    for name, column, most in zip(Units._fields, units, (namespaces - 1, FULL_UPPER, TOPICS_MAX * 1_000), strict=True):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) <= most:
            yield f"units/{name}.npy: expected numbers from 0 to {most}"


def _amounts(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], where: str) -> Floats:
    array = _array(file, name, shape, np.float64, where)
    if array.size and not (np.isfinite(array).all() and 0 <= float(array.min()) <= float(array.max()) <= AMOUNT_MAX):
        raise TraceFileError(where, [f"{name}: expected finite numbers from 0 to {AMOUNT_MAX:g}"])
    return array


def _array(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], kind: type[Scalar], where: str) -> NDArray[Scalar]:
    """Read an array, after a check of its header, before memory is allocated."""
    size_bytes = int(np.prod(shape)) * 8
    raw = _member(file, name, size_bytes + _NPY_HEADER_MAX_BYTES, where)
    buffer = io.BytesIO(raw)
    try:
        if np.lib.format.read_magic(buffer) != _NPY_VERSION:
            raise ValueError("another version")  # noqa: TRY301 - reported as errors of numpy
        header, by_column, dtype = np.lib.format.read_array_header_1_0(buffer)
    except (ValueError, EOFError) as error:
        raise TraceFileError(where, [f"{name}: not a valid numpy array"]) from error
    start = buffer.tell()
    if header != shape or dtype != np.dtype(kind) or by_column or len(raw) - start != size_bytes:
        raise TraceFileError(where, [f"{name}: expected {np.dtype(kind)} {shape}, got {dtype} {header}"])
    return np.frombuffer(raw, np.dtype(kind), offset=start).reshape(shape)


def _member(file: zipfile.ZipFile, name: str, most_bytes: int, where: str) -> bytes:
    try:
        size_bytes = file.getinfo(name).file_size
        if size_bytes > most_bytes:
            raise TraceFileError(where, [f"{name}: {size_bytes:,} bytes, expected at most {most_bytes:,}"])
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
