"""Ports on the loopback address: checks whether a port is free or answers, and search for a free one."""

import errno
import random
import socket

from statechannel.embedded.errors import PortInUseError
from statechannel.embedded.layout import LOOPBACK

# Below the range from which Linux and macOS take the ports of outgoing connections: a client that
# keeps trying to reach a stopped broker could otherwise be given the broker's own port.
_FIRST, _LAST = 15_000, 30_000
_TRIES = 200
_CONNECT_TIMEOUT_S = 1.0


def require_free(port: int) -> None:
    """Make sure that a port is free.

    Raises:
        PortInUseError: The port is in use, or this user may not use it.
    """
    try:
        _bind(port)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"is unusable: {error.strerror}"
        raise PortInUseError(
            f"port {port} on {LOOPBACK} {reason}",
            hint="stop the program that listens there, or choose another port with --port",
        ) from error


def find_free(*, other_than: int | None = None) -> int:
    """Return a port that was free a moment ago.

    Raises:
        PortInUseError: Many tries found none.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        if port == other_than:
            continue
        try:
            _bind(port)
        except OSError:
            continue
        return port
    raise PortInUseError(
        f"no free port found between {_FIRST} and {_LAST} on {LOOPBACK}",
        hint="name a port with --port",
    )


def is_free(port: int) -> bool:
    try:
        _bind(port)
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    """Return whether a process accepts connections on a port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _bind(port: int) -> None:
    with socket.socket() as probe:
        # As the broker does; otherwise connections that just ended would count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
