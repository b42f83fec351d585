"""Traces as files: the same bit for bit, and what is said of a file that is none."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import orjson
import pytest

from shedders.contest.contenders import contender
from shedders.contest.recorded import HEADER, TraceFileError, load, save
from shedders.contest.scenario import load_scenario, parse_scenario
from shedders.contest.trace import Trace
from shedders.contest.workload import scenario_trace
from shedders.contest.world import simulate
from statechannel.errors import StateChannelError
from tests.unit.simulate.test_workload import APP, BASE, DYNAMIC, equal


def plain(trace):
    """A trace that says all six numbers of each unit by itself."""

    def rows(step):
        return np.stack([item * (1 + number * step / 1000) for number, item in enumerate(trace.demand(step))])

    return replace(trace, rows=rows, base=None)


def lists(value):
    return orjson.loads(orjson.dumps(value))


@pytest.fixture(scope="module")
def short():
    return scenario_trace(parse_scenario((BASE.replace("hours = 2", "hours = 1") + DYNAMIC).encode()), 5)


@pytest.fixture
def saved(short, tmp_path):
    path = tmp_path / "short.npz"
    save(short, path)
    return path


@pytest.mark.parametrize("kind", [lambda trace: trace, plain])
def test_what_is_loaded_is_what_was_saved(short, tmp_path, kind):
    trace, path = kind(short), tmp_path / "a.npz"
    save(trace, path)
    loaded = load(path)
    for name in ("name", "about", "seed", "step_s", "steps", "machines", "namespaces", "events", "judged", "costs"):
        assert lists(getattr(loaded, name)) == lists(getattr(trace, name))
    assert lists(loaded.disturbances) == lists(trace.disturbances)
    assert equal(loaded.units, trace.units)
    for step in (0, trace.steps - 1, 7, 7, 3):
        assert equal(loaded.demand(step), trace.demand(step))
    with pytest.raises(IndexError):
        loaded.demand(trace.steps)


def test_what_is_saved_again_is_the_same_file(saved, tmp_path):
    again = tmp_path / "again.npz"
    save(load(saved), again)
    once_more = tmp_path / "more.npz"
    save(load(again), once_more)
    assert again.read_bytes() == once_more.read_bytes()
    assert equal(load(again).demand(9), load(saved).demand(9))


def test_numpy_reads_it_without_pickled_objects(saved):
    with np.load(saved, allow_pickle=False) as file:
        assert {"units/position", "base", "steps/00000"} <= set(file.files)


def test_events_and_later_namespaces_are_kept(tmp_path):
    for name in ("lookup-storm", "rolling-restart", "held-out/blind-growth"):
        trace = scenario_trace(load_scenario(name), 1)
        trace.steps = 3
        save(trace, tmp_path / "a.npz")
        assert load(tmp_path / "a.npz").events == list(trace.events)
        assert isinstance(load(tmp_path / "a.npz"), Trace)


def test_policies_and_wrong_limits_are_kept(tmp_path):
    for name in ("held-out/fenced", "held-out/weak-pair"):
        trace = scenario_trace(load_scenario(name), 201)
        trace.steps = 3
        save(trace, tmp_path / "a.npz")
        loaded = load(tmp_path / "a.npz")
        assert loaded.events == list(trace.events)
        assert (loaded.policies.pins, loaded.policies.anti_affinity) == (
            trace.policies.pins,
            trace.policies.anti_affinity,
        )
        assert [entry.name for entry in loaded.policies.isolation] == [entry.name for entry in trace.policies.isolation]
        assert simulate(loaded, contender("ours")).digest() == simulate(trace, contender("ours")).digest()


def test_where_nothing_can_be_written(short, tmp_path):
    with pytest.raises(StateChannelError, match=r"cannot be written: No such file"):
        save(short, tmp_path / "no" / "a.npz")


def changed(path, name, data):
    """The file with one member replaced (None: without it)."""
    out = path.with_name("changed.npz")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.namelist():
            if entry != name:
                new.writestr(entry, old.read(entry))
        if data is not None:
            new.writestr(name, data)
    return out


def with_header(path, **values):
    with zipfile.ZipFile(path) as file:
        header = orjson.loads(file.read(HEADER))
    return changed(path, HEADER, orjson.dumps(header | values))


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def read_whole(path):
    loaded = load(path)
    for step in range(loaded.steps):
        loaded.demand(step)


def refused(path):
    with pytest.raises(TraceFileError) as caught:
        read_whole(path)
    assert caught.value.exit_code == 7
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "x"}, "kind: expected 'statechannel-trace', got 'x'"),
        ({"extra": 1}, "extra is not a field of the format"),
        ({"steps": 10**9}, "steps: expected less than or equal to 50000"),
        ({"machines": []}, "owners: a broker is not a machine of the trace"),
        ({"machines": [{"name": "b-2"}, {"name": "b-1"}]}, "machines: expected at least one, sorted by name"),
        (
            {"events": [{"at_s": 1, "what": "lost", "broker": "b-9"}]},
            "events[0]: expected a broker or namespace of the trace",
        ),
        ({"events": [{"at_s": 1, "what": "melts", "broker": "b-1"}]}, "events[0].what"),
        ({"units": 3}, "units/namespace.npy: expected int64 (3,), got int64 (40,)"),
        ({"proportional": False}, "steps/00000.npy: expected float64 (6, 40), got float64 (40,)"),
    ],
)
def test_a_header_that_contradicts_itself(saved, values, said):
    assert said in refused(with_header(saved, **values))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (HEADER, None, "header.json is missing"),
        (HEADER, b"{", "header.json"),
        ("units/position.npy", npy(np.zeros(40)), "expected int64 (40,), got float64 (40,)"),
        ("steps/00009.npy", None, "steps/00009.npy is missing"),
        ("steps/00009.npy", b"x", "steps/00009.npy: not an array"),
        ("steps/00009.npy", npy(np.full(40, np.nan)), "steps/00009.npy: expected finite numbers of at least 0"),
        ("steps/00009.npy", npy(np.full(40, -1.0)), "steps/00009.npy: expected finite numbers of at least 0"),
        ("steps/00009.npy", npy(np.array([{}] * 40, dtype=object), allow_pickle=True), "steps/00009.npy: not an array"),
        ("steps/00009.npy", npy(np.ones(40))[:-8], "steps/00009.npy: not an array"),
    ],
)
def test_a_part_that_is_missing_or_wrong(saved, name, data, said):
    assert said in refused(changed(saved, name, data))


def test_files_that_are_no_trace(tmp_path):
    other = tmp_path / "a.toml"
    other.write_text(BASE + APP)
    assert "not a trace file: not a zip archive" in refused(other)
    assert "it cannot be read: No such file" in refused(tmp_path / "none.npz")


def test_a_damaged_file(saved):
    raw = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as file:
        start = file.getinfo("steps/00005.npy").header_offset
    raw[start + 60 : start + 200] = bytes(140)
    saved.write_bytes(raw)
    assert "steps/00005.npy: corrupt" in refused(saved)
