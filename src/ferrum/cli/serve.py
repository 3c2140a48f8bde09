"""`ferrum serve`: an OpenAI-compatible server."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from ferrum.cli.bench_serve import missing
from ferrum.cli.options import chosen, engine_fields, server_fields, with_options
from ferrum.core.config import HOSTS, EngineConfig
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import help_of, listed

ENGINE_FIELDS: Final = [field for field in engine_fields() if field.name != "host"]
"""Options of the engine under their own names; `--host` is the server's address here."""

SERVED_FROM: Final = "process"
"""Where a server's engine runs: `ferrum bench overhead` found that it then loses the least
(bench/results/qwen3-0.6b-int8-overhead.json).
"""


@with_options(server_fields(), "Server")
@with_options(ENGINE_FIELDS, "Model and engine")
def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A directory or a hub id.", show_default="the built-in model")
    ] = None,
    engine_host: Annotated[
        str, typer.Option(help=f"{help_of(EngineConfig, 'host')} One of {listed(HOSTS)}.")
    ] = SERVED_FROM,
    **options: Any,
) -> None:
    """Serve a model over HTTP until it is told to stop: once to finish what runs, twice to stop at once."""
    from ferrum.server.server_config import ServerConfig

    config = ServerConfig(**chosen(server_fields(), options))
    if engine_host not in HOSTS:
        raise ConfigError(f"must be one of {listed(HOSTS)}, not {engine_host!r}", param="engine_host")
    of_engine = {**chosen(ENGINE_FIELDS, options), "host": engine_host}
    with ExitStack() as stack:
        if engine_host == "process":  # it starts while this one imports the server
            from ferrum.engine.hosts.process import Child

            of_engine["child"] = stack.enter_context(Child(log_objects=True))
        try:
            from ferrum.server.launch import serve as run
        except ImportError as error:
            raise missing("serve", error) from None
        from ferrum.engine.async_engine import AsyncEngine
        from ferrum.runtime.hub import BUILT_IN

        run(lambda: AsyncEngine(BUILT_IN if model is None else model, **of_engine), config)
