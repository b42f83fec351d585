"""What is opened in one process is of no use in the child of a fork, nor can it be handed over."""

import os
import pickle

import pytest

from statechannel.broker.exits import ChannelStoppedError
from statechannel.broker.opening_process import OfOneProcess, OpeningProcess, PickledError, opening_process


def test_a_process_is_its_own_until_it_leaves() -> None:
    process = OpeningProcess()
    process.require()
    assert (process.pid, process.forked) == (os.getpid(), None)
    process.leave()
    with pytest.raises(ChannelStoppedError) as refused:
        process.require()
    assert refused.value.stopped == process.forked
    assert refused.value.stopped.reason == "forked"
    assert opening_process() is opening_process()
    assert opening_process().forked is None


def test_the_child_of_a_fork_is_another_process_from_its_first_question_on() -> None:
    parent = opening_process()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        own = opening_process()
        facts = (parent.forked is not None, own is not parent, own.forked is None, own.pid == os.getpid())
        os.write(write_end, bytes(facts))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert list(pipe.read()) == [1, 1, 1, 1]
    assert parent.forked is None
    assert opening_process() is parent


class Held(OfOneProcess):
    """Something of one process."""


def test_what_belongs_to_one_process_cannot_be_pickled() -> None:
    with pytest.raises(PickledError, match="Held"):
        pickle.dumps(Held())
