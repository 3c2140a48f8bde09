"""Sends planned requests at their due times and collects every timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from ferrum.bench.serve_client import Clock, Send, Timeline
from ferrum.bench.serve_plan import Planned


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
