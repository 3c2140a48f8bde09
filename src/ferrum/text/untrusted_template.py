"""Untrusted chat templates: a template from a request runs in a separate process with limits.

The sandbox protects the machine and ends loops. It cannot bound memory (field widths, padding, repeated doubling), so
the operating system's limits do.
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
"""Maximum address space of a rendering, in bytes."""
SECONDS: Final = 5
"""Maximum processor time of a rendering."""
MAX_CHARACTERS: Final = 1 << 22
"""Maximum characters of a rendered text: those of a million tokens."""

_PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from {module} import child; child()"


class UntrustedTemplate(ChatTemplate):
    """A chat template from a request. Rendering starts a process and takes about 0.1 s."""

    def fill(self, name: str, variables: dict[str, Any]) -> str:
        """Render in a child process. Raises RequestError also if a limit is exceeded."""
        answer = run_bounded(__name__, {"source": self.sources[name], "variables": variables})
        if "text" not in answer:
            raise RequestError(answer["message"], param=answer["param"])
        text: str = answer["text"]
        return text


def run_bounded(module: str, job: dict[str, Any]) -> dict[str, Any]:
    """Call `child` of a module in a process with limits, and return what it writes.

    Args:
        module: its `child` calls `bounded_job`, and writes one JSON object to standard output.
        job: the JSON object that the child reads.

    Raises:
        RequestError: a limit is exceeded.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(path=sys.path, module=module)],
        input=json.dumps(job).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        start_new_session=True,  # the parent handles Ctrl-C
    )
    if done.returncode:
        raise RequestError(f"exceeds {MEMORY >> 20} MiB or {SECONDS} s", param="chat_template")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def bounded_job() -> Any:
    """Set the limits of this child process and return its job."""
    _bound()
    return json.load(sys.stdin)


def child() -> None:
    """Render the template on standard input; write the result or error to standard output."""
    job = bounded_job()
    try:
        text = ChatTemplate(job["source"]).fill("default", job["variables"])
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"renders more than {MAX_CHARACTERS} characters", param="chat_template")
        answer = {"text": text}
    except RequestError as error:
        answer = {"message": error.message, "param": error.param or "messages"}
    json.dump(answer, sys.stdout)


def _bound() -> None:
    """Set the limits of this process; systems lack some of them."""
    import resource

    bounds = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_CORE: 0}
    for kind, limit in bounds.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))
