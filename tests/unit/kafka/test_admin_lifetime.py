"""An admin client that nobody refers to any more is destroyed by a thread that is not its own.

The client library answers in a thread of the client, where Python may collect garbage. A client that is freed there aborts the
process, so each case runs in a process of its own.
"""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from statechannel.kafka.admin import AdminHandle
from statechannel.kafka.client_settings import ClientSettings
from tests.support.waits import WAIT_S, wait_until

PROLOGUE = """
import faulthandler, gc, socket, sys, threading, time
from confluent_kafka.admin import AdminClient
from statechannel.kafka.client_settings import ClientSettings

silent = socket.create_server(("127.0.0.1", 0))
settings = ClientSettings("127.0.0.1:%d" % silent.getsockname()[1])
gc.disable()
answered = threading.Event()

class Loop: pass

def abandon(futures, owner):
    '''The owner becomes garbage that only the collector finds, and the collector runs in the client's own thread.'''
    loop = Loop()
    loop.itself, loop.owner = loop, owner
    def collect(future):
        gc.collect()
        answered.set()
    for future in futures:
        future.add_done_callback(collect)
"""
EPILOGUE = f"""
assert answered.wait({WAIT_S})
deadline_s = time.monotonic() + {WAIT_S}
while any(isinstance(thing, AdminClient) for thing in gc.get_objects()):
    assert time.monotonic() < deadline_s, "a client is left"
    gc.collect()
    time.sleep(0.02)
print("lives")
"""
WATCH = """
from statechannel.kafka.topic_watch import TopicWatch

def begin():
    watch = TopicWatch(settings, (), interval_s=1.0, timeout_s=0.3)
    watch.poll(time.monotonic(), {("topic", 0): 0})
    abandon(watch._ends.values(), watch)

begin()
"""
BOUNDED = """
from statechannel.kafka.admin import BoundedAdmin
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

def begin():
    admin = BoundedAdmin(settings)
    abandon(admin._admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()}, request_timeout=0.3).values(), admin)

begin()
"""
BOUNDS = """
from statechannel.kafka.admin import BoundsAsker
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

def begin():
    asker = BoundsAsker(settings)
    abandon(asker._admin.client.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()}, request_timeout=0.3).values(), asker)

begin()
"""

NO_THREADS = """
def refuse(*_):
    raise RuntimeError("can't start new thread")

starts, threading._start_new_thread = threading._start_new_thread, refuse
"""
THREADS_AGAIN = f"""
assert answered.wait({WAIT_S})
threading._start_new_thread = starts
BoundedAdmin(settings)  # whose end takes the other client with it
"""


@pytest.mark.parametrize("begin", [WATCH, BOUNDED, BOUNDS], ids=["TopicWatch", "BoundedAdmin", "BoundsAsker"])
def test_garbage_collected_in_the_clients_own_thread_does_not_abort_the_process(begin: str) -> None:
    assert_lives(PROLOGUE + begin + EPILOGUE)


def test_a_client_waits_where_no_thread_can_be_started() -> None:
    assert_lives(PROLOGUE + NO_THREADS + BOUNDED + THREADS_AGAIN + EPILOGUE)


def assert_lives(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=3 * WAIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_callbacks_of_a_client_are_served_whenever_it_is_used() -> None:
    errors: list[KafkaError] = []
    handle = AdminHandle(ClientSettings("127.0.0.1:1"), errors.append)
    wait_until(lambda: handle.client is not None and bool(errors))
