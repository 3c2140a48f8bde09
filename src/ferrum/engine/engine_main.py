"""The main function of an engine's process."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import sys
import threading
from functools import partial
from typing import Final

from ferrum.core.errors import as_step_error
from ferrum.core.logging import log_objects
from ferrum.engine import wire
from ferrum.engine.host import serve
from ferrum.engine.inbox import SocketInbox
from ferrum.engine.messages import Ended, Started
from ferrum.engine.progress import leave

SWITCH_SECONDS: Final = 0.0005
"""Thread switch interval of both processes. Python's default of 5 ms is as long as a step, and threads that only pass
messages on would wait that long while a prompt is encoded or pages are read from disk.
"""


def child(descriptor: int, as_objects: bool) -> None:
    """Run the engine process: read a recipe and messages from an inherited socket, and write reports to it."""
    # No other program configures logging in this process.
    if as_objects:
        log_objects(logging.INFO)
    else:
        logging.basicConfig(format="%(message)s", level=logging.INFO)
    os.set_inheritable(descriptor, False)
    end = socket.socket(fileno=descriptor)
    inbox = SocketInbox(end)
    loaded = threading.Event()
    try:
        import ferrum.runtime.load  # noqa: F401 - slow, so it is imported before the recipe arrives

        recipe = inbox.reader.wait()
        threading.Thread(target=_watch, args=(end, loaded), daemon=True).start()
        built = recipe()
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the parent raises it
        wire.send(end, Ended(as_step_error(error)))
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # these objects stay: examining them for garbage would delay steps
    loaded.set()
    with contextlib.suppress(OSError):  # the parent is gone
        wire.send(end, Started(built.info))
        serve(built, inbox, partial(wire.send, end))
    inbox.close()


def _watch(end: socket.socket, loaded: threading.Event) -> None:
    """End the process if its parent ends while the model loads. Later the inbox notices."""
    gone = select.poll()
    gone.register(end, 0)  # hang-ups are always reported
    gone.poll()
    if not loaded.is_set():
        leave(1)
