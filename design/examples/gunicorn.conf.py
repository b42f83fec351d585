"""Workers of gunicorn as brokers: each has an id and a port of its own, beside the port that all share.

Run: gunicorn -c gunicorn.conf.py notes_fastapi:app, with NOTES_FILE and STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS.
"""

import os
import socket
from typing import Any

bind = "127.0.0.1:8100"
workers = 2
worker_class = "uvicorn.workers.UvicornWorker"
graceful_timeout = 90  # longer than hooks.shutdown_budget_s


def post_fork(_: Any, worker: Any) -> None:
    """The shared port leads to any worker; this one is where redirects lead, which name the owner."""
    own = socket.create_server(("127.0.0.1", 0))
    worker.sockets = [*worker.sockets, own]
    os.environ["NOTES_BROKER"] = f"{socket.gethostname()}-{worker.pid}"
    os.environ["NOTES_URL"] = f"http://127.0.0.1:{own.getsockname()[1]}"
