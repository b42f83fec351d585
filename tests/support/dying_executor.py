"""Carries a plan out in lives of one process each; life N is killed with -9 at its Nth step: an event, an observation or a call.

    python -m tests.support.dying_executor ADDRESS STATE-DIR PLAN LIVES

Prints a line for each life: the number of the signal that ended it, or `done` and what the end was. Forked from a process that
has everything imported and no client open, so that a life takes as long as its execution.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka  # noqa: F401 - each life should find it loaded
import kafka  # noqa: F401

from shedders.kafka_rebalance.execution.runner import Runner
from shedders.kafka_rebalance.execution.session import ExecutionPlace, execute
from shedders.kafka_rebalance.planning.plan_files import read_plan
from shedders.kafka_rebalance.settings import PaceSettings, PartitionsSettings
from statechannel.kafka.client_settings import ClientSettings

STEPS = frozenset({"observe", "set_configs", "submit", "elect", "withdraw", "write"})
PACE = PaceSettings(
    poll_s=0.1, full_look_s=0.5, settle_s=1.0, moves_per_broker=2, throttle_bytes_per_s=2_000_000, executor_away_s=4.0
)


class Deadly:
    """A port or ledger whose user dies before the call whose number comes up, or after it where the number is even."""

    def __init__(self, inner: Any, count: list[int], at: int) -> None:
        self._inner, self._count, self._at = inner, count, at

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in STEPS:
            return call

        def called(*args: Any, **named: Any) -> Any:
            self._count[0] += 1
            dies = self._count[0] == self._at
            if dies and self._at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = call(*args, **named)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return called


def live(address: str, root: Path, plan_file: Path, at: int) -> str:
    """One life."""
    count = [0]

    def make_deadly(runner: Runner) -> None:
        runner._port = Deadly(runner._port, count, at)  # type: ignore[assignment]
        runner._ledger = Deadly(runner._ledger, count, at)  # type: ignore[assignment]

    place = ExecutionPlace(client=ClientSettings(address), settings=PartitionsSettings(pace=PACE), root=root)
    plan = read_plan(plan_file)
    end = execute(place, plan, accept_unmet=False, wait=time.sleep, by="test", runs=make_deadly)
    return f"{end.stop.kind} {end.stop.reason}"


def main(address: str, root: str, plan_file: str, lives: str) -> None:
    """See the module."""
    for at in range(1, int(lives) + 1):
        child = os.fork()
        if child == 0:
            try:
                print(f"done {live(address, Path(root), Path(plan_file), at)}", flush=True)
            except BaseException as error:  # it must not go on as the parent
                print(f"failed {type(error).__name__}: {error}", flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return
        print(f"killed {os.WTERMSIG(status)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
