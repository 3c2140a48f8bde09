"""Sends what was planned when it is due, and keeps every timeline."""

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
    """Send every request, and wait for the last one.

    In an open loop a request is due at its moment, and what it then waits for, the client's own delay included, is part
    of its latency: a server that stalls does not thereby get fewer requests (Schroeder, Wierman and Harchol-Balter,
    "Open Versus Closed", NSDI 2006).

    Args:
        plan: in the order of their moments.
        send: sends one.
        clock: seconds after the start.
        clients: None: an open loop; else so many requests at a time, each due when a place is free.
        done: called after each.

    Returns:
        Their timelines, in the order of the plan.
    """
    places = None if clients is None else asyncio.Semaphore(clients)

    async def follow(one: Planned) -> Timeline:
        async with AsyncExitStack() as stack:
            due = one.at
            if places is not None:
                await stack.enter_async_context(places)
                due = clock()
            timeline = await send(one, due)
        done()
        return timeline

    async with asyncio.TaskGroup() as group:
        tasks = []
        for one in plan:
            if places is None:
                await asyncio.sleep(max(0.0, one.at - clock()))
            tasks.append(group.create_task(follow(one)))
    return tuple(task.result() for task in tasks)
