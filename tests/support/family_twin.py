"""Tiny models of every architecture and their twins in `transformers`."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from family_cases import FAMILY_CASES
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from tiny import BASE, CASES, Case, directory_of, random_model, tokens_of

TOLERANCE = 1e-4
LENGTH = 100

MODELS = {case[0]: Case(*case) for case in FAMILY_CASES}
CHANGES = {case.config: case.changes for case in reversed((*CASES, *(Case(*case) for case in FAMILY_CASES)))}
"""What differs from the base in the first tiny model of each configuration class."""

TWINS = {AutoModelForCausalLM._model_mapping[getattr(transformers, name)].__name__: name for name in CHANGES}
"""Configuration classes by architecture."""

WITHOUT_EFFECT = frozenset(
    (
        *("architectures", "model_type", "dtype", "transformers_version", "is_encoder_decoder", "pretraining_tp"),
        *("bos_token_id", "eos_token_id", "eod_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
        *("attention_dropout", "embd_pdrop", "resid_pdrop", "residual_dropout", "embedding_dropout"),
        *("initializer_range", "router_aux_loss_coef", "router_jitter_noise", "chunk_size_feed_forward"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "use_cache"),
    )
)
"""Fields of the twins' configurations that change no logit here, or that follow from others."""


def logits_of(executor: LocalExecutor, tokens: list[int], cache_id: str = "whole") -> np.ndarray:
    span = Span(cache_id, 0, tuple(tokens), Want.LOGITS, Rows.ALL)
    (result,) = executor.submit(StepBatch((span,))).result().results
    assert not isinstance(result, Exception), result
    executor.release_cache(cache_id)
    logits: np.ndarray = result.logits
    return logits


@cache
def alone(name: str, kernels: str, threads: int = 1) -> np.ndarray:
    """Return the logits of a token list in one span."""
    options = {"threads": threads} if kernels == "native" else {}
    with load_executor(directory_of(MODELS[name]), kernels=kernels, **options) as executor:
        return logits_of(executor, tokens_of(MODELS[name], LENGTH))


def twin_config(architecture: str, values: dict[str, Any]) -> PreTrainedConfig:
    config: PreTrainedConfig = getattr(transformers, TWINS[architecture])(**deepcopy(values))
    return config


def compare_logits(architecture: str, values: dict[str, Any], config: PreTrainedConfig, directory: Path) -> None:
    model = random_model(config, architecture)
    model.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({**values, "architectures": [architecture]}))
    tokens = np.random.default_rng(0).integers(0, min(config.vocab_size, BASE["vocab_size"]), LENGTH).tolist()
    with torch.no_grad():
        theirs = model.float()(torch.tensor([tokens])).logits[0].numpy()
    with load_executor(directory) as executor:
        ours = logits_of(executor, tokens)
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()
