"""Optional accelerator of replays: plain moves of bundles, compiled. Install it beside `statechannel` to use it.

It applies the tables of `statechannel.protocol.states` to the same objects with the same results, or leaves a record to the
Python code, which stays the reference. Where it cannot be used its import fails, and the Python code does all.

`STATECHANNEL_ACCELERATOR=off` switches it off; it is read once, at import.
"""

import os

if os.environ.get("STATECHANNEL_ACCELERATOR", "").lower() in ("0", "false", "no", "off"):
    raise ImportError("switched off by STATECHANNEL_ACCELERATOR")
try:
    from statechannel_accelerator.plain_moves import take_plain_moves
except ValueError as error:  # what Cython raises for a class of another size
    raise ImportError("the accelerator is made for another version of statechannel") from error

__all__ = ["take_plain_moves"]
