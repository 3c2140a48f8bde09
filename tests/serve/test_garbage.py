"""What a request held goes with its end: a search for garbage would hold up every other stream."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from ferrum.server import gc_policy
from serve_kit import Served, events


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"max_tokens": 0, "echo": True}, {"max_tokens": -1}])
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_ours_is_left_to_be_searched_for(
    server: Served, stream: bool, connection: str, options: dict[str, Any]
) -> None:
    asked = {"model": "fake", "prompt": "ab", "max_tokens": 5, "stream": stream, **options}

    def ask() -> None:
        response = server.http.post("/v1/completions", json=asked, headers={"connection": connection})
        assert response.status_code == (400 if asked["max_tokens"] < 0 else 200)
        assert not stream or response.status_code == 400 or events(response)

    ask()
    server.wait_idle()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            ask()
        server.wait_idle()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {
            type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith(("ferrum", "asyncio"))
        }
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


def searches(monkeypatch: pytest.MonkeyPatch, live: int, young: int, new: int) -> int:
    """How often this thread searched all objects; a server of another test may have its pauses meanwhile."""
    found: list[None] = []
    mine = threading.current_thread()
    monkeypatch.setattr(gc_policy, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 0) if found else (new, young, 0))
    monkeypatch.setattr(gc, "collect", lambda: found.append(None) if threading.current_thread() is mine else None)

    async def some_time() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gc_policy.search_in_pauses(lambda: live), 0.1)

    asyncio.run(some_time())
    monkeypatch.undo()
    return len(found)


@pytest.mark.parametrize(
    ("live", "young", "new", "wanted"),
    [
        (0, 1, 0, 1),
        (0, 0, gc_policy.FEW + 1, 1),
        (0, 0, gc_policy.FEW, 0),
        (1, 1, gc_policy.FEW + 1, 0),
        (1, gc_policy.MOST_PUT_OFF, 0, 0),
        (1, gc_policy.MOST_PUT_OFF + 1, 0, 1),
    ],
)
def test_old_objects_are_searched_once_in_a_pause_or_after_very_long(
    monkeypatch: pytest.MonkeyPatch, live: int, young: int, new: int, wanted: int
) -> None:
    assert searches(monkeypatch, live, young, new) == wanted


def test_python_searches_the_youngest_alone_for_a_while() -> None:
    before = gc.get_threshold()
    with gc_policy.put_off():
        assert gc.get_threshold() == (gc_policy.YOUNG, gc_policy.NEVER, gc_policy.NEVER)
    assert gc.get_threshold() == before
