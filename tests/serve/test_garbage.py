"""Requests leave no reference cycles: their memory is freed at once, and garbage collections stay rare."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from serve_kit import Served, events


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"max_tokens": 0, "echo": True}, {"max_tokens": -1}])
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("stream", [False, True])
def test_requests_leave_no_reference_cycles(
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
