"""One run of the benchmark of servers: from a URL and a load to a report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import h11

from ferrum.bench.serve_client import Client, RequestFailed, get_json
from ferrum.bench.serve_load import run_load
from ferrum.bench.serve_options import USUAL_VOCABULARY, Arrivals, Level, Load, Target
from ferrum.bench.serve_plan import plan
from ferrum.bench.serve_report import VERSION, ServeOrigin, ServeReport, Summary
from ferrum.core.errors import ConfigError
from ferrum.engine.progress import BarFactory, progress_bar


def served_model(url: str, key: str | None) -> str:
    """The first model that a server lists.

    Raises:
        ConfigError: it lists none, or does not answer.
    """
    try:
        name: str = asyncio.run(get_json(url, "/models", key))["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, RequestFailed, h11.ProtocolError) as error:
        raise ConfigError(f"{url}/models: {type(error).__name__}: {error}", param="url") from None
    return name


def usual_vocabulary(url: str, key: str | None) -> int:
    """What prompts are made of where nobody says: a server of ferrum's tells how many tokens its model has."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, RequestFailed, h11.ProtocolError):
        return min(USUAL_VOCABULARY, int(asyncio.run(get_json(url, "/config", key))["model"]["vocab_size"]))
    return USUAL_VOCABULARY


def measure_server(
    target: Target,
    load: Load,
    *,
    level: Level,
    key: str | None,
    origin: Callable[[str | None], ServeOrigin],
    server: Sequence[str],
    bar: bool | BarFactory = True,
) -> ServeReport:
    """Put a load on a server, and sum up what was measured.

    Args:
        target: whom to ask.
        load: what for.
        level: what counts as well served.
        key: the API key, if one is needed.
        origin: of the report, from what the server calls its numerics.
        server: for the report: its name, and the options that it was started with.
        bar: shows progress; see `progress_bar`.

    Raises:
        ConfigError: the trace cannot be used.
    """
    planned = plan(load)
    shown = progress_bar(bar, len(planned), "requests")

    async def run() -> tuple[Any, ...]:
        began = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - began

        client = Client(target, key, clock)
        clients = load.clients if load.arrivals == Arrivals.CLOSED else None
        timelines = await run_load(planned, client, clock, clients=clients, done=lambda: shown.update(1))
        return timelines, client.fingerprint

    try:
        timelines, fingerprint = asyncio.run(run())
    finally:
        shown.close()
    return ServeReport(
        version=VERSION,
        target=target,
        load=load,
        level=level,
        origin=origin(fingerprint),
        server=tuple(server),
        summary=Summary.of(timelines[load.warmup :], level),
        timelines=timelines,
    )
