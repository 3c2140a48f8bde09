"""How many of ferrum's functions run per token and in a chat: counted, because times depend on the machine."""

from __future__ import annotations

import threading
import time
from types import FrameType
from typing import Any

import pytest

import path

MAX_CALLS = 99
MAX_FILES, MAX_FUNCTIONS = 68, 470
SHORT, LONG = 10, 110


class Calls(path.Profile):
    """Counts every frame of ferrum, comprehensions and generators too."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        self.calls += self.active and event == "call" and frame.f_code.co_filename.startswith(path.SOURCE)


def test_a_streamed_token_of_a_lone_chat_takes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in every thread, from the engine's plan to the bytes that the server sends."""
    profile, calls = Calls(), list[int]()
    threading.setprofile(profile)
    try:
        with path.serving() as port:
            path.chat(port, "One request warms up what is computed once.")
            for tokens in (SHORT, LONG):
                monkeypatch.setattr(path, "TOKENS", tokens)
                profile.calls, profile.active = 0, True
                path.chat(port, "How do you do?")
                time.sleep(path.SETTLE_SECONDS)
                profile.active = False
                calls.append(profile.calls)
    finally:
        threading.setprofile(None)
    assert 10 < (calls[1] - calls[0]) / (LONG - SHORT) <= MAX_CALLS, calls


def test_a_streamed_chat_goes_through_few_files_and_functions() -> None:
    """What someone has to read who follows one request through the code."""
    functions = path.measure().functions
    assert 20 < len({file for file, _ in functions}) <= MAX_FILES
    assert 100 < len(functions) <= MAX_FUNCTIONS
