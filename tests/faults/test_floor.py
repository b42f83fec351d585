"""What the machine withheld is measured, so that a slow machine is not taken for a slow cluster."""

import os
from pathlib import Path

from tests.faults.floor import Floor, waited_s, withheld_s


def test_each_processor_is_measured():
    floor = Floor()
    floor.start()
    floor.stop()
    assert len(floor._processors) == len(os.sched_getaffinity(0))
    assert floor.summary()["max_ms"] >= 0


def test_the_thread_that_waited_longest_counts(tmp_path: Path):
    for thread, text in (("7", "1 2000000000 3"), ("8", "1 500000000 3"), ("9", "")):
        folder = tmp_path / "7" / "task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    before = waited_s([7, 4711], tmp_path)
    assert sorted(before.values()) == [0.5, 2.0]
    (tmp_path / "7/task/8/schedstat").write_text("1 4000000000 3")
    assert withheld_s(before, waited_s([7], tmp_path)) == 3.5
    assert withheld_s({}, {}) == 0


def test_this_process_has_threads_that_ran():
    assert waited_s([os.getpid()])
