"""Count the stations of one streamed chat: the files and functions of ferrum that it runs through.

    python bench/path.py            a table per room
    python bench/path.py --list     every function too
    python bench/path.py --max-files 55 --max-functions 400     fail above these limits

A real HTTP server serves the built-in model with the engine in a thread. After a first request has warmed up caches, a
profile hook in every thread records each distinct (file, function) of ferrum from the request to the end of its reply.
Loading the model does not count, nor do functions that an idle server calls, such as its watch for signals.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import ferrum
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.client_base import build
from ferrum.text.chat_template import ChatTemplate
from script import needs, positive, run_script

with needs("'ferrum-llm[server]'"):
    from ferrum.server.app import create_app
    from ferrum.server.common.service import State
    from ferrum.server.launch import Server
    from ferrum.server.server_config import ServerConfig

SOURCE: Final = str(Path(ferrum.__file__).parent) + "/"
MODEL: Final = "ferrum-tiny"
TEMPLATE: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TOKENS: Final = 4
NOT_FUNCTIONS: Final = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<module>"}
SETTLE_SECONDS: Final = 0.5
"""The engine's thread comes to rest in this time after a reply; also how long an idle server is watched."""


class Profile:
    """Distinct functions called while `active`; install it before the threads start that it is to see."""

    def __init__(self) -> None:
        self.active = False
        self.functions: set[tuple[str, str]] = set()
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; the signature is that of `sys.setprofile` hooks."""
        if self.active and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(SOURCE) and code.co_name not in NOT_FUNCTIONS:
                self.functions.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))
                self.calls += 1


@contextmanager
def serving(template: str = TEMPLATE) -> Iterator[int]:
    """Serve the built-in model; yield the port."""

    def make() -> AsyncEngine:
        return AsyncEngine.from_parts(replace(build(MODEL), chat_template=ChatTemplate(template)))

    config = ServerConfig(port=0)
    app = create_app(make, config)
    server = Server(app, config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while app.state.service.state is State.LOADING or not server.started:
            time.sleep(0.01)
        if app.state.service.failure is not None:
            raise app.state.service.failure
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def send(port: int, body: Mapping[str, Any]) -> bytes:
    """Return the reply to a chat; end the program if it is an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    whole = json.dumps({"model": MODEL, "max_tokens": TOKENS, **body})
    connection.request("POST", "/v1/chat/completions", whole, {"content-type": "application/json"})
    response = connection.getresponse()
    reply = response.read()
    connection.close()
    if response.status != http.client.OK:
        raise SystemExit(f"the chat failed with status {response.status}: {reply[-256:]!r}")
    return reply


def chat(port: int, text: str) -> None:
    """Stream one chat to its end."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "ignore_eos": True, "stream": True}
    reply = send(port, body)
    if not reply.endswith(b"data: [DONE]\n\n"):
        raise SystemExit(f"the chat ended early: {reply[-256:]!r}")


def measure() -> Profile:
    """Return the profile of one warm request."""
    profile = Profile()
    threading.setprofile(profile)
    with serving() as port:
        chat(port, "One request warms up what is computed once.")
        time.sleep(SETTLE_SECONDS)
        profile.active = True
        time.sleep(SETTLE_SECONDS)
        idle, profile.functions, profile.calls = profile.functions, set(), 0
        chat(port, "How do you do?")
        time.sleep(SETTLE_SECONDS)
        profile.active = False
    profile.functions -= idle
    threading.setprofile(None)
    return profile


def main() -> None:
    """Print the number of files and functions, per room and in all."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--list", action="store_true", help="print every file with its functions")
    arguments.add_argument("--max-files", type=positive, help="fail if there are more files")
    arguments.add_argument("--max-functions", type=positive, help="fail if there are more functions")
    options = arguments.parse_args()
    profile = measure()
    files: dict[str, list[str]] = {}
    for file, name in sorted(profile.functions):
        files.setdefault(file, []).append(name)
    rooms: dict[str, list[int]] = {}
    for file, names in files.items():
        counts = rooms.setdefault(file.partition("/")[0], [0, 0])
        counts[0] += 1
        counts[1] += len(names)
    print(f"{'room':<12}{'files':>7}{'functions':>11}")
    for room, (number, functions) in sorted(rooms.items()):
        print(f"{room:<12}{number:>7}{functions:>11}")
    print(f"{'all':<12}{len(files):>7}{len(profile.functions):>11}   {profile.calls} calls for {TOKENS} tokens")
    if options.list:
        for file, names in files.items():
            print(f"\n{file} ({len(names)})")
            print("".join(f"  {name}\n" for name in names), end="")
    for number, limit, what in (
        (len(files), options.max_files, "files"),
        (len(profile.functions), options.max_functions, "functions"),
    ):
        if limit is not None and number > limit:
            sys.exit(f"{number} {what} on the path, limit {limit}")


if __name__ == "__main__":
    run_script(main)
