"""Asks from outside who serves a topic, and follows what changes. Run: python router.py HOST:PORT TENANT/NAMESPACE/TOPIC."""

import sys
from contextlib import suppress

from statechannel.router import BlockingRouter, Route

with BlockingRouter.open(kafka={"bootstrap_servers": sys.argv[1]}) as router:
    answer = router.wait(sys.argv[2], timeout_s=30, assign=True)
    if not isinstance(answer, Route):
        sys.exit(f"no owner: {answer}")
    print(f"{answer.broker} at {answer.urls}, generation {answer.generation}, {answer.age_s:.1f} s old", flush=True)
    with suppress(KeyboardInterrupt):
        for change in router.changes(since={answer.partition: answer.as_of + 1}):
            print(change, flush=True)
