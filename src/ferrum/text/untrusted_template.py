"""Chat templates of strangers: a program that came with a request runs in a process of its own, within bounds.

The sandbox keeps a template from the machine and ends its loops. What memory it may take, no list of operations can
tell: a width in a format, a padded string, a text that is doubled again and again. The system's limits can.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate

MEMORY: Final = 512 << 20
"""Bytes of address space that a rendering may take."""
SECONDS: Final = 5
"""Processor time that it may take."""
LONGEST: Final = 1 << 22
"""Characters of a rendered text: those of a million tokens."""

_PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from ferrum.text.untrusted_template import child; child()"


class ForeignTemplate(ChatTemplate):
    """A chat template that came with a request. It renders as any other, but may take a tenth of a second for it."""

    def fill(self, name: str, variables: dict[str, Any]) -> str:
        """See `ChatTemplate`. Raises RequestError where it takes too much, too."""
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            input=json.dumps({"source": self.sources[name], "variables": variables}).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            start_new_session=True,  # Ctrl-C is its parent's business
        )
        if done.returncode:
            raise RequestError("it takes too much memory or time", param="chat_template")
        answer = json.loads(done.stdout)
        if "text" not in answer:
            raise RequestError(answer["message"], param=answer["param"])
        text: str = answer["text"]
        return text


def child() -> None:
    """Fill in the template on standard input, and write what became of it to standard output."""
    _bound()
    job = json.load(sys.stdin)
    try:
        text = ChatTemplate(job["source"]).fill("default", job["variables"])
        if len(text) > LONGEST:
            raise RequestError(f"it makes a text of more than {LONGEST} characters", param="chat_template")
        answer = {"text": text}
    except RequestError as error:
        answer = {"message": error.message, "param": error.param or "messages"}
    json.dump(answer, sys.stdout)


def _bound() -> None:
    """Set the limits of this process. Not every system knows all of them."""
    import resource

    bounds = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_CORE: 0}
    for kind, limit in bounds.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))
