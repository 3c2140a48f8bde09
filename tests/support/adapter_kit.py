"""Adapters written by PEFT for tiny models, and the logits of both sides."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from transformers import PreTrainedModel

from ferrum.core.config import ModelConfig
from ferrum.core.step import AdapterUse, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.read_model import read_spec
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from lora_files import write_lora
from tiny import Case, directory_of, model_of, tokens_of

LENGTH = 19
"""Tokens of the compared sequence."""

TOLERANCE = 1e-5
"""Largest `error_of` logits of one adapter in two engines that compute in float32."""


@dataclass(frozen=True)
class AdapterCase:
    """An adapter that PEFT writes for a tiny model.

    Attributes:
        model: the base.
        config: fields of `LoraConfig`.
    """

    name: str
    model: Case
    config: Mapping[str, Any] = field(hash=False)


@cache
def adapted_twin(case: AdapterCase) -> PreTrainedModel:
    """Return PEFT's model with random numbers in the adapter."""
    model = copy.deepcopy(model_of(case.model)).float()
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)  # PEFT draws matrices A
        twin = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case.config)).eval()
    generator = torch.Generator().manual_seed(len(case.name))
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return twin


def twin_logits(twin: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """Return PEFT's f32 [len(tokens), V]."""
    with torch.no_grad():
        return twin(input_ids=torch.tensor([tokens])).logits[0].float().numpy()


def save(twin: PreTrainedModel, directory: Path) -> Path:
    """Save an adapter as PEFT does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin.save_pretrained(directory)
    return directory


@cache
def executor_of(model: Path, kernels: str = "reference") -> LocalExecutor:
    """Return an executor of a model in float32, which lives as long as the tests."""
    return load_executor(model, kernels=kernels, dtype="float32", kv_dtype="float32", kv_capacity=1024)


def opened(path: Path, model: Path) -> AdapterFile:
    """Read an adapter for a model."""
    return open_adapter(str(path), read_spec(ModelConfig(model=str(model))))


def two_adapters(case: Case, folder: Path, *modules: str) -> list[AdapterFile]:
    """Write two adapters of these modules in a folder, and read them."""
    paths = [write_lora(folder / f"{seed}", case, seed, modules=modules) for seed in range(2)]
    return [opened(path, directory_of(case)) for path in paths]


@contextmanager
def executor_with(case: Case, files: Iterable[AdapterFile]) -> Iterator[LocalExecutor]:
    """Yield an executor in float32 that holds adapters under the keys k0, k1 and so on."""
    with load_executor(directory_of(case), kv_capacity=512, dtype="float32") as executor:
        for index, file in enumerate(files):
            executor.load_adapter(f"k{index}", file)
        yield executor


@contextmanager
def loaded(executor: LocalExecutor, adapter: AdapterFile) -> Iterator[Callable[[list[int]], np.ndarray]]:
    """Load an adapter; yields a function from tokens to logits [len(tokens), V]."""
    adapters = executor.lm.adapters
    adapters.add("it", adapters.prepare(adapter.changes))

    def logits(tokens: list[int]) -> np.ndarray:
        start = adapter.start(tuple(tokens))
        uses = () if start is None else (AdapterUse("it", start=start),)
        extras = SpanExtras(adapters=uses).or_none()
        span = Span("it", 0, tuple(tokens), Want.LOGITS, Rows.ALL, extras=extras)
        (result,) = executor.submit(StepBatch((span,))).result().results
        executor.release_cache("it")
        return result.logits

    try:
        yield logits
    finally:
        adapters.remove("it")


def adapted_logits(path: Path, case: AdapterCase, tokens: list[int], kernels: str = "reference") -> np.ndarray:
    """Return ferrum's logits of a model with the adapter in a directory or file."""
    model = directory_of(case.model)
    with loaded(executor_of(model, kernels), opened(path, model)) as logits:
        return logits(tokens)


def assert_logits_of_peft(path: Path, case: AdapterCase, twin: PreTrainedModel | None = None) -> None:
    """Compare ferrum's logits with the adapter in a directory or file to those of PEFT's model."""
    tokens = text_of(case)
    expected = twin_logits(adapted_twin(case) if twin is None else twin, tokens)
    assert error_of(adapted_logits(path, case, tokens), expected) < TOLERANCE


def text_of(case: AdapterCase) -> list[int]:
    """Return the tokens that a case compares."""
    return tokens_of(case.model, LENGTH)


def error_of(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest logit."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
