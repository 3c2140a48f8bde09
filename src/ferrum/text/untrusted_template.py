"""Untrusted chat templates: a template from a request runs in a separate process with limits.

The sandbox protects the machine and ends loops. It cannot bound memory (field widths, padding, repeated doubling), so
the operating system's limits do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
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
        [answer] = self._answers(name, [variables])
        if "text" not in answer:
            raise RequestError(answer["message"], param=answer["param"])
        text: str = answer["text"]
        return text

    def fill_all(self, name: str, many: Sequence[dict[str, Any]]) -> list[str | None]:
        """Render several times in one child process."""
        try:
            return [answer.get("text") for answer in self._answers(name, many)]
        except RequestError:  # a limit is exceeded, for all together
            return [None] * len(many)

    def _answers(self, name: str, many: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        job = {"source": self.sources[name], "variables": list(many)}
        answers: list[dict[str, Any]] = run_bounded(__name__, job)
        return answers


def run_bounded(module: str, job: dict[str, Any]) -> Any:
    """Call `child` of a module in a process with limits, and return the JSON value that it writes.

    Args:
        module: its `child` calls `bounded_job` and writes to standard output.
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
    return json.loads(done.stdout)


def bounded_job() -> Any:
    """Set the limits of this child process and return its job."""
    _bound()
    return json.load(sys.stdin)


def child() -> None:
    """Render the template on standard input for each set of variables; write the results or errors as a list."""
    job = bounded_job()
    template = ChatTemplate(job["source"])
    json.dump([_answer(template, variables) for variables in job["variables"]], sys.stdout)


def _answer(template: ChatTemplate, variables: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.fill("default", variables)
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"renders more than {MAX_CHARACTERS} characters", param="chat_template")
    except RequestError as error:
        return {"message": error.message, "param": error.param or "messages"}
    return {"text": text}


def _bound() -> None:
    """Set the limits of this process; systems lack some of them."""
    import resource

    bounds = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_CORE: 0}
    for kind, limit in bounds.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))
