"""The server of `ferrum launch`: one that runs, or one that is started and ends with the command.

The settings of clients are in `coding_agents`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ferrum.cli.coding_agents import Endpoint
from ferrum.core.config import child_environment
from ferrum.core.errors import ConfigError

POLL_SECONDS: Final = 0.1
"""Interval at which a starting server is asked whether it is ready."""

REPLY_SECONDS: Final = 10.0
"""How long a server may take to list its models."""

END_SECONDS: Final = (10.0, 10.0)
"""How long a server may take to end after the first signal, and after the second, which aborts its requests."""

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
"""Hosts that no proxy leads to."""


class NoServer(ConfigError):
    """A server that cannot be reached, is not ready, or refuses the key."""


def address(url: str) -> str:
    """Return the base URL of a server from a URL, or from its port on this machine.

    Raises:
        ConfigError: it is neither.
    """
    from urllib.parse import urlsplit

    text = f"http://127.0.0.1:{url}" if url.isdecimal() else url
    try:
        parts = urlsplit(text)
    except ValueError:  # such as a bracket that is not closed
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"must be a port or look like http://127.0.0.1:8000, not {url!r}", param="url")
    return text.rstrip("/").removesuffix("/v1")


class Loading(NoServer):
    """A server whose model is still loading."""


def find(url: str, key: str | None, model: str | None) -> Endpoint:
    """Return a model of a running server: the named one, or the first. Wait while the server loads it.

    Raises:
        NoServer: no server answers there, or it does not accept the key.
        ConfigError: it does not serve the model.
    """
    while True:
        try:
            listed = _models(url, key)
            break
        except Loading:
            time.sleep(POLL_SECONDS)
    names = [str(each["id"]) for each in listed]
    if not names or (model is not None and model not in names):
        served = ", ".join(names) or "no model"
        raise ConfigError(f"{url} does not serve {model or 'a model'}: it serves {served}", param="url")
    chosen = listed[0 if model is None else names.index(model)]
    context = chosen.get("max_model_len")
    return Endpoint(url, str(chosen["id"]), context if isinstance(context, int) else None, key)


def _models(url: str, key: str | None) -> list[Any]:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import ProxyHandler, Request, build_opener

    asked = Request(f"{url}/v1/models", headers={} if key is None else {"Authorization": f"Bearer {key}"})
    opener = build_opener(*([ProxyHandler({})] if urlsplit(url).hostname in LOCAL else []))
    try:
        with opener.open(asked, timeout=REPLY_SECONDS) as reply:
            return [each for each in json.load(reply)["data"] if each["id"]]
    except HTTPError as error:
        with error:
            loading = error.code == 503 and b"loading" in error.read()
            reason = f"it replied {error.code} {error.reason}"
        if loading:
            raise Loading("it is loading its model", param="url") from None
        if error.code == 401:
            reason = "it requires an API key: set FERRUM_API_KEY, or use --api-key"
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or str(cause)
    except (ValueError, TypeError, LookupError):
        reason = "its reply to /v1/models is no list of models"
    raise NoServer(f"no usable server at {url}: {reason}", param="url")


@contextmanager
def started(model: str, options: Sequence[str], key: str | None, log: Path) -> Iterator[Endpoint]:
    """Run a server of a model on a free port until the context ends; wait until it is ready.

    Args:
        model: directory, GGUF file or hub id of the model.
        options: options of `ferrum serve`.
        key: the API key that it accepts.
        log: receives its output.

    Raises:
        ConfigError: it ended before it was ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "ferrum", "serve", model, "--port", port, "--log-format", "text", *options]
    with log.open("wb") as output:
        # In a separate session Ctrl-C reaches the client only, which decides what it means.
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=child_environment({"FERRUM_API_KEY": key}),
            start_new_session=True,
        )
    try:
        yield _ready(server, f"http://127.0.0.1:{port}", key, log)
        if server.poll() is not None:
            print(f"ferrum: the server ended before the client: {_last_line(log, server)}", file=sys.stderr)
    finally:
        end(server)


def _ready(server: subprocess.Popen[bytes], url: str, key: str | None, log: Path) -> Endpoint:
    """Wait until a server has loaded its model. Raises ConfigError if it ends before."""
    while server.poll() is None:
        try:
            _models(url, key)  # one that dies while it loads must not be waited for
            return find(url, key, None)
        except NoServer:
            time.sleep(POLL_SECONDS)
    raise ConfigError(f"the server ended: {_last_line(log, server)}")


def _last_line(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Return the last line of an ended server's output, which has the reason."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("ferrum: ") if lines else f"its exit code is {server.returncode}"


def end(server: subprocess.Popen[bytes]) -> None:
    """End a server: the first signal finishes its requests, the second aborts them."""
    for seconds in END_SECONDS:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()
