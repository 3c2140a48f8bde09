"""The contract's verbs on tiny random models, loaded from disk and run by the reference kernels."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from awaited_executor import awaited
from contract_kit import POISON, Kit, Maker, Options
from contract_verbs import *  # noqa: F403 - the tests themselves
from contract_verbs.pages import *  # noqa: F403 - and those of pages
from ferrum.runtime.load import load_executor
from shared_models import folder
from tiny import directory_of, find


@cache
def poisoned(name: str) -> Path:
    """Return the checkpoint with a NaN in the embedding of one token."""
    directory = folder(f"poisoned-{name}")
    shutil.copytree(directory_of(find(name)), directory, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(params=["replayed", "walked", "awaited"])
def make(request: pytest.FixtureRequest) -> Maker:
    """Make executors as loaded, with the reference kernels without a recorded program, and on an event loop."""
    walked = request.param == "walked"

    def made(**options: int | None) -> Kit:
        chosen = Options(**options)  # type: ignore[arg-type]
        executor = load_executor(
            poisoned("qwen3" if chosen.window is None else "mistral"),
            page_size=chosen.page_size,
            kv_capacity=chosen.num_pages * chosen.page_size,
            max_batch_size=chosen.max_batch_size,
            max_sequence_length=chosen.max_sequence_length,
            **({"kernels": "reference", "replay": False} if walked else {}),
        )
        calls = {"embed": 0, "head": 0} if walked else {"_forward": 0}
        for name in calls:
            _spy(executor.lm.kernels if walked else executor.lm, name, calls)

        def passes() -> int:
            (count,) = set(calls.values())
            return count

        return Kit(executor, passes=passes, check=executor.pages.check)

    return awaited(made) if request.param == "awaited" else made


def _spy(owner: object, name: str, calls: dict[str, int]) -> None:
    """Count the calls of a method."""
    operation = getattr(owner, name)

    def counted(*arguments: object) -> object:
        calls[name] += 1
        return operation(*arguments)

    setattr(owner, name, counted)
