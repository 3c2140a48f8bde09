"""Models with adapters merged into them: the logits before they are quantised."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from adapter_kit import AdapterCase, adapted_twin
from family_twin import logits_of
from ferrum.core.config import ModelConfig
from ferrum.core.lora_option import AdapterToMerge
from ferrum.runtime.adapters.merged_adapters import open_adapters, with_adapters
from ferrum.runtime.load import build_executor
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.open_model import open_model
from ferrum.verbs.load_executor import LocalExecutor


@cache
def merged_twin(case: AdapterCase) -> PreTrainedModel:
    """Return a case's model with the adapter merged by PEFT."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return copy.deepcopy(adapted_twin(case)).merge_and_unload().eval()


def merged_store(model: Path, *adapters: AdapterToMerge) -> TensorStore:
    """Return the tensors of a model with adapters merged by ferrum."""
    store = open_model(str(model)).checkpoint()
    return with_adapters(store, open_adapters(str(model), store, adapters))


def merged_logits(model: Path, adapters: Sequence[AdapterToMerge], tokens: list[int]) -> np.ndarray:
    """Return ferrum's logits [len(tokens), V] of a model in float32 with adapters merged."""
    config = ModelConfig(
        model=str(model), kernels="reference", dtype="float32", kv_dtype="float32", kv_capacity=len(tokens)
    )
    with build_executor(LocalExecutor, config, checkpoint=merged_store(model, *adapters)) as executor:
        return logits_of(executor, tokens)
