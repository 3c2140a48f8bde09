"""When garbage is searched for: while nobody is served.

A search stops every stream: for 10 to 100 ms among the objects of a hundred live requests. What our requests leave
needs none (`tests/serve/test_garbage.py`), so only the youngest objects are searched meanwhile, and seldom, and the
others in a pause; or after so long without one that an error's leavings might have gathered.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

NEVER: Final = 1 << 30
LOOK_SECONDS: Final = 0.5
YOUNG: Final = 20_000
"""So many more objects than at the last search have the youngest searched. It takes 1 to 3 ms beside an engine, because
all that have come since then and live are looked at: mostly those of running requests, however few more they are.
"""

FEW: Final = 700
"""So few new objects are worth no search in a pause."""

MOST_PUT_OFF: Final = 70
"""Searches of the youngest objects after which all are searched whoever is served."""


@contextmanager
def put_off() -> Iterator[None]:
    """Within the block Python searches the youngest objects alone, and those seldom."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, NEVER, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def search_in_pauses(num_live: Callable[[], int]) -> None:
    """Search all objects when nobody has been served for a while, if there are new ones. Runs until it is cancelled."""
    idle = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        new, young, _ = gc.get_count()
        was_idle, idle = idle, not num_live()
        paused = idle and was_idle and (young or new > FEW)
        if paused or young > MOST_PUT_OFF:
            gc.collect()
