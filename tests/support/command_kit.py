"""The command line, run in this process, and what the fake model answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine_fakes import parts
from ferrum.cli.main import execute
from ferrum.client.llm import LLM
from ferrum.core.params import SamplingParams

Outcome = tuple[int, str, str]
"""Exit code, standard output, standard error."""


def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs `ferrum` with its arguments."""

    def run(*arguments: str) -> Outcome:
        code = execute(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answer(prompt: str, max_tokens: int, **options: Any) -> str:
    """Return the fake model's output."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, **options)
    with LLM.from_parts(parts()) as llm:
        text = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text
    assert text is not None
    return text
