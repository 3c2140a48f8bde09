"""The contract's verbs on tiny random models, loaded from disk: native or reference kernels, and the toy backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from awaited_executor import awaited
from contract_kit import POISON, Kit, Maker, Options
from contract_verbs import *  # noqa: F403 - the tests themselves
from contract_verbs.pages import *  # noqa: F403 - and those of pages
from emulated_cuda import emulated_device
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from rank_threads import RankThreads
from shared_models import folder
from tiny import Case, directory_of, find
from toy_backend import toy_backend

WINDOWED = Case("windows-of-wide-heads", "MistralConfig", {"sliding_window": 20, "head_dim": 16})
"""Ranks cut it at whole panels."""


@cache
def poisoned(case: Case) -> Path:
    """Return the checkpoint with a NaN in the embedding of one token."""
    directory = folder(f"poisoned-{case.name}")
    shutil.copytree(directory_of(case), directory, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(
    params=["replayed", "walked", "awaited", "two ranks", "toy", pytest.param("cuda", marks=pytest.mark.cuda)]
)
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Make executors in several ways.

    - as loaded
    - with the reference kernels without a recorded program
    - on an event loop
    - on another backend, with other arrays and its sampler
    - on the emulated CUDA device
    - on two ranks, whose results are compared after the test
    """
    way = request.param
    stack = ExitStack()

    def made(**options: int | None) -> Kit:
        chosen = Options(**options)  # type: ignore[arg-type]
        if way != "two ranks":
            with {"toy": toy_backend, "cuda": emulated_device}.get(way, nullcontext)():
                executor = _load(chosen, walked=way == "walked")
            return counted_kit(executor, executor.pages.check)
        ranks = RankThreads(2, **_options(chosen), threads=1)
        stack.callback(ranks.close)

        def check() -> None:
            ranks.executor.pages.check()
            ranks.check()

        return counted_kit(ranks.executor, check)

    with stack:
        yield stack.enter_context(awaited(made)) if way == "awaited" else made


def _load(chosen: Options, *, walked: bool = False) -> LocalExecutor:
    return load_executor(**_options(chosen), **({"kernels": "reference", "replay": False} if walked else {}))


def _options(chosen: Options) -> dict[str, Any]:
    return {
        "model": poisoned(find("qwen3") if chosen.window is None else WINDOWED),
        "page_size": chosen.page_size,
        "kv_capacity": chosen.num_pages * chosen.page_size,
        "max_batch_size": chosen.max_batch_size,
        "max_sequence_length": chosen.max_sequence_length,
    }


def counted_kit(executor: LocalExecutor, check: Callable[[], None]) -> Kit:
    """Return a kit that counts the forward passes of an executor."""
    walked = executor.lm.replay is None
    calls = {"embed": 0, "head": 0} if walked else {"_forward": 0}
    for name in calls:
        _spy(executor.lm.kernels if walked else executor.lm, name, calls)

    def passes() -> int:
        (count,) = set(calls.values())
        return count

    return Kit(executor, passes=passes, check=check)


def _spy(owner: object, name: str, calls: dict[str, int]) -> None:
    """Count the calls of a method."""
    operation = getattr(owner, name)

    def counted(*arguments: object) -> object:
        calls[name] += 1
        return operation(*arguments)

    setattr(owner, name, counted)
