"""A pause of the garbage collector while a million objects are made: it would walk all of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: of a large snapshot everything lives on, and the search took most of the time.

    For seconds only, and not around anything that waits. Where others do the same at once, it ends with the first of them.
    What was made counts as old then, so that the next search does not begin with it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                # Both together move everything to the oldest generation, without looking at it. What somebody else has
                # frozen would come back, too.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
