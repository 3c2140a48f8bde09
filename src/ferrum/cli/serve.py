"""`ferrum serve`: an OpenAI-compatible server."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from ferrum.cli.options import MODEL_HELP, checked_engine, chosen, engine_fields, server_fields, with_options
from ferrum.core.config import HOSTS, api_key_variable
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.option_fields import listed

ENGINE_FIELDS: Final = [field for field in engine_fields() if field.name != "host"]
"""Options of the engine; here `--host` is the server's address and `--engine-host` the engine's host."""

ENGINE_HOST: Final = "process"
"""Default of `--engine-host`: bench/overhead.py measured that it costs the least throughput
(bench/results/qwen3-0.6b-int8-overhead.json).
"""


@with_options(server_fields(), "Server")
@with_options(ENGINE_FIELDS, "Model and engine")
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default="the built-in model")
    ] = None,
    engine_host: Annotated[
        str, typer.Option(help=f"Run the engine in a thread or in a process (one of {listed(HOSTS)}).")
    ] = ENGINE_HOST,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Accepted API key. Process lists show it: prefer FERRUM_API_KEY (default: none)."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Serve a model over HTTP. The first Ctrl-C or SIGTERM finishes running requests, the second aborts them."""
    from ferrum.server.server_config import ServerConfig

    config = ServerConfig(**chosen(server_fields(), options))
    if engine_host not in HOSTS:
        raise ConfigError(f"must be one of {listed(HOSTS)}, not {engine_host!r}", param="engine_host")
    of_engine = checked_engine(model or "the built-in model", {**chosen(ENGINE_FIELDS, options), "host": engine_host})
    with ExitStack() as stack:
        if engine_host == "process":  # it starts while this process imports the server
            from ferrum.client.engine_process import Child

            of_engine["child"] = stack.enter_context(Child(log_objects=not config.logs_text))
        try:
            from ferrum.server.launch import serve as run
        except ImportError as error:
            raise missing("serve", error) from None
        from ferrum.client.async_engine import AsyncEngine
        from ferrum.sources.hub import BUILT_IN

        key = api_key_variable() if api_key is None else api_key  # "" is refused: it is an unset variable
        run(lambda: AsyncEngine(BUILT_IN if model is None else model, **of_engine), config, key)


def missing(command: str, error: ImportError) -> Unsupported:
    """Return the error for a library that is not installed or does not load."""
    reason = str(error) if error.name is None else f"{error.name} is missing"
    return Unsupported(f"ferrum {command}", f"{reason}: pip install 'ferrum-llm[server]'")
