"""One run of `ferrum bench serve`: from a URL and a load to a report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime

from ferrum.bench.serve_client import Client, Clock, NoConnection, NotOpenAI, RequestFailed, Send, Timeline, get_json
from ferrum.bench.serve_options import USUAL_VOCABULARY, Arrivals, Level, Load, Planned, Target, plan
from ferrum.bench.serve_report import ServeReport, Summary
from ferrum.core.errors import ConfigError
from ferrum.core.version import installed_version
from ferrum.engine.progress import BarFactory, progress_bar

# ---- Sends planned requests at their due times and collects every timeline ----


async def run_load(
    plan: Sequence[Planned],
    send: Send,
    clock: Clock,
    *,
    clients: int | None = None,
    done: Callable[[], object] = lambda: None,
) -> tuple[Timeline, ...]:
    """Send every request and wait for the last one.

    In an open loop latency counts from the moment a request is due, including the client's own delay. A server that
    stalls does not thereby get fewer requests (Schroeder, Wierman and Harchol-Balter, "Open Versus Closed", NSDI 2006).

    Args:
        plan: requests in the order of their due times.
        send: sends one.
        clock: seconds since the start.
        clients: None: an open loop; else the number of concurrent requests, each due when a client is free.
        done: called after each request.

    Returns:
        Timelines in the order of the plan.
    """
    free = None if clients is None else asyncio.Semaphore(clients)

    async def follow(one: Planned) -> Timeline:
        async with AsyncExitStack() as stack:
            due = one.at
            if free is not None:
                await stack.enter_async_context(free)
                due = clock()
            timeline = await send(one, due)
        done()
        return timeline

    async with asyncio.TaskGroup() as group:
        tasks = []
        for one in plan:
            if free is None:
                await asyncio.sleep(max(0.0, one.at - clock()))
            tasks.append(group.create_task(follow(one)))
    return tuple(task.result() for task in tasks)


def completed(target: Target, key: str | None) -> Target:
    """Ask the server for the model and the vocabulary that the options leave out.

    Raises:
        ConfigError: the server does not answer or lists no model.
    """
    if target.model is None:
        try:
            name = str(asyncio.run(get_json(target.url, "/models", key))["data"][0]["id"])
        except (*NoConnection, *NotOpenAI, RequestFailed) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise ConfigError(f"{target.url}/models does not answer ({reason})", param="url") from None
        target = replace(target, model=name)
    if target.vocabulary is None:
        size = USUAL_VOCABULARY
        with suppress(*NoConnection, *NotOpenAI, RequestFailed):  # only ferrum reports its vocabulary
            size = min(size, int(asyncio.run(get_json(target.url, "/config", key))["model"]["vocab_size"]))
        target = replace(target, vocabulary=size)
    return target


def measure_server(
    target: Target,
    load: Load,
    *,
    level: Level,
    key: str | None,
    processor: str,
    bar: bool | BarFactory = True,
) -> ServeReport:
    """Send a load to a server and summarise the result.

    Args:
        target: the server.
        load: the requests.
        level: the service level for goodput.
        key: the API key, if any.
        processor: the client's CPU, for the report.
        bar: see `progress_bar`.

    Raises:
        ConfigError: the server does not answer, or the trace is invalid.
    """
    planned = plan(load)
    target = completed(target, key)
    progress = progress_bar(bar, len(planned), "requests")

    async def run() -> tuple[tuple[Timeline, ...], str | None]:
        began = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - began

        client = Client(target, key, clock)
        clients = load.clients if load.arrivals == Arrivals.CLOSED else None
        timelines = await run_load(planned, client, clock, clients=clients, done=lambda: progress.update(1))
        return timelines, client.fingerprint

    try:
        timelines, fingerprint = asyncio.run(run())
    finally:
        progress.close()
    return ServeReport(
        version=ServeReport.LAYOUT,
        target=target,
        load=load,
        level=level,
        ferrum=installed_version(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor,
        system_fingerprint=fingerprint,
        summary=Summary.of(timelines[load.warmup :], level),
        timelines=timelines,
    )
