"""`ferrum launch`: a coding agent on a model of this machine."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrum.cli.coding_agents import AGENTS, CodingAgent, Endpoint, Settings
from ferrum.cli.exit_codes import SIGNALLED
from ferrum.cli.options import MODEL_HELP, checked_engine, chosen, option_names, with_options
from ferrum.cli.serve import ENGINE_FIELDS
from ferrum.core.config import api_key_variable, child_environment
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import listed
from ferrum.server.server_config import ServerConfig

END_SECONDS: Final = 10.0
"""How long a client may take to end when the command is terminated."""


@with_options(ENGINE_FIELDS, "Model and engine of a started server")
def launch(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"The coding agent (one of {listed(AGENTS)}).")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Arguments of the client, after `--`.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help=f"{MODEL_HELP} On a running server: a name that it serves.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL, or port, of a running server (default: the one at 127.0.0.1:8000 if it serves the model, else "
            "start one).",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="API key of the server. Process lists show it: prefer FERRUM_API_KEY (default: none)."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Run a coding agent with a model: Claude Code, Codex or opencode. No file of yours is changed.

    A server is started for --model and ends with the client, unless one that serves it is running.
    """
    import shutil
    import tempfile

    if client not in AGENTS:
        raise ConfigError(f"must be one of {listed(AGENTS)}, not {client!r}", param="client")
    agent, key = AGENTS[client], api_key_variable() if api_key is None else api_key
    if key is not None and not re.fullmatch("[!-~]+", key):  # the value is a secret, and not repeated
        raise ConfigError("must be visible ASCII characters, at least one", param="api_key")
    program = shutil.which(agent.program)
    if program is None:
        raise ConfigError(f"{agent.title} is not installed: npm install --global {agent.package}")
    engine = checked_engine(model or "a model", chosen(ENGINE_FIELDS, options))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrum-launch-")))
        server = _server(stack, url, model, key, engine, directory)
        check_context(agent, server)
        settings = agent.settings(server, directory)
        report(agent, server, settings)
        command = [program, *settings.arguments, *(arguments or ())]
        environment = child_environment(settings.environment)
        code = run(command, {**environment, **reached_directly(server.url, environment)})
    raise typer.Exit(code)


def _server(
    stack: ExitStack, url: str | None, model: str | None, key: str | None, engine: Mapping[str, Any], directory: Path
) -> Endpoint:
    """Return the running server, or start one."""

    typed = [_typed(name, value) for name, value in engine.items()]
    if url is not None:
        if typed:
            raise ConfigError(f"has a server already, on which {typed[0]} has no effect: omit one of both", param="url")
        return find(address(url), key, model)
    usual = ServerConfig()
    try:
        if not typed:
            return find(f"http://{usual.host}:{usual.port}", key, model)
        problem = f"{typed[0]} is for a server that is started"
    except ConfigError as error:
        problem = error.message
    if model is None:
        raise ConfigError(f"{problem}; name a model to serve with --model, or a server with --url")
    log = directory / "server.log"
    typer.echo(f"Starting `ferrum serve {' '.join([model, *typed])}`; its log is {log}", err=True)
    return stack.enter_context(started(model, typed, key, log))


def _typed(name: str, value: Any) -> str:
    """Return an option as it is typed."""
    on, *off = option_names(next(field for field in ENGINE_FIELDS if field.name == name))
    return f"{on}={value}" if not off else on if value else off[0]


def check_context(agent: CodingAgent, server: Endpoint) -> None:
    """Refuse a context that the client's own prompts would fill.

    Raises:
        ConfigError: it is too short.
    """
    if server.context is not None and server.context < agent.least:
        raise ConfigError(
            f"{server.model} has a context of {server.context} tokens and {agent.title} needs {agent.least}: its first "
            f"prompt alone has about {agent.prompt}; raise --max-sequence-length and --kv-capacity of the server, or "
            "choose a model with a longer context"
        )


def report(agent: CodingAgent, server: Endpoint, settings: Settings) -> None:
    """Print what was done: the server, the model, its context, and the settings."""
    context = "unknown context" if server.context is None else f"context {server.context}"
    given = [each for each in settings.arguments if each.startswith("-")]
    given += [f"{name.partition('_')[0]}_* in its environment" for name in settings.environment]
    typer.echo(f"{agent.title} uses {server.model} ({context}) at {server.url}", err=True)
    typer.echo(f"Settings, for this run only: {', '.join(dict.fromkeys(given))}", err=True)


def reached_directly(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables by which no proxy of the user's stands between the client and the server."""
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    return {name: ",".join(filter(None, (environment.get(name), host))) for name in ("NO_PROXY", "no_proxy")}


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a client in this terminal and return its exit code; 128 and the number for a signal.

    Ctrl-C reaches the client too, which decides what it means. Other signals end it.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    try:
        client = subprocess.Popen(command, env=environment)
        try:
            code = client.wait()
        finally:
            _end(client)
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else SIGNALLED - code


def _end(client: subprocess.Popen[bytes]) -> None:
    """End a client that still runs, when a signal ends the command."""
    if client.poll() is None:
        client.terminate()
        try:
            client.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()


# ---- The server of `ferrum launch`: one that runs, or one that is started and ends with the command ----
#
# The settings of clients are in `coding_agents`.

POLL_SECONDS: Final = 0.1
"""Interval at which a starting server is asked whether it is ready."""

REPLY_SECONDS: Final = 10.0
"""How long a server may take to list its models."""

_STOP_SECONDS: Final = (10.0, 10.0)
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
    for seconds in _STOP_SECONDS:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()
