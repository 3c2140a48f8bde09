"""Every architecture on tiny random models: the numbers of `transformers`, and the span property.

Two models of each architecture (`family_cases.py`); the first is also packed, and computed in bfloat16.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from family_twin import LENGTH, MODELS, TOLERANCE, WITHOUT_EFFECT, alone, logits_of
from ferrum import LLM, SamplingParams
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.models.class_defaults import ALIASES, with_defaults
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES, load_families
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import read_config
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native
from tiny import BASE, CASES, Case, directory_of, model_of, reference_logits, tokens_of

GREEDY = 48

FIRST = {case.config: case.name for case in reversed(MODELS.values())}.values()
"""The first model of each architecture."""


def test_every_architecture_has_models_that_differ() -> None:
    load_families()
    counts: dict[str, int] = {}
    for case in (*CASES, *MODELS.values()):
        name = type(model_of(case)).__name__
        counts[name] = counts.get(name, 0) + 1
    assert set(counts) == set(FAMILIES.names())
    assert {name: count for name, count in counts.items() if count < 2} == {"MinistralForCausalLM": 1}


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_the_twin(name: str) -> None:
    require_native()
    ours, theirs = alone(name, "native"), reference_logits(MODELS[name], tokens_of(MODELS[name], LENGTH))
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_the_twins(name: str) -> None:
    """The twin reads the whole text at once. Another token is allowed if its best two are closer than the error."""
    require_native()
    text = tokens_of(MODELS[name], 20, seed=5)
    with load_executor(directory_of(MODELS[name])) as executor:
        rows, start = [], 0
        for _ in range(GREEDY):
            span = Span("greedy", start, tuple(text[start:]), Want.LOGITS)
            (result,) = executor.submit(StepBatch((span,))).result().results
            rows.append(result.logits[-1])
            start = len(text)
            text.append(int(rows[-1].argmax()))
    theirs = reference_logits(MODELS[name], text[:-1])[-GREEDY:]
    ours = np.array(rows)
    error = np.abs(ours - theirs).max(axis=1)
    assert (error <= TOLERANCE * np.abs(theirs).max()).all()
    second, best = np.partition(theirs, -2, axis=1)[:, -2:].T
    assert ((ours.argmax(axis=1) == theirs.argmax(axis=1)) | (best - second <= error)).all()


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_do_not_depend_on_spans_or_batch(name: str, kernels: str) -> None:
    """Three copies in random spans, one on top of another's pages, in small pages and with two threads."""
    require_native()
    expected, rng = alone(name, "native"), np.random.default_rng(len(name))
    options: dict[str, Any] = {"kernels": kernels, "page_size": 16, "max_rows": 48, "kv_capacity": 1024}
    if kernels == "native":
        options["threads"] = 2
    with load_executor(directory_of(MODELS[name]), **options) as executor:
        sizes = (1, 2, 7, 40) if kernels == "native" else (3, 40)  # the reference is slow
        _play(executor, tokens_of(MODELS[name], LENGTH), expected, rng, sizes)


def _play(
    executor: LocalExecutor,
    tokens: list[int],
    expected: np.ndarray,
    rng: np.random.Generator,
    choice: tuple[int, ...],
) -> None:
    lengths = {"a": 0, "b": 0, "c": 0}
    while min(lengths.values()) < LENGTH:
        sizes = {each: min(int(rng.choice(choice)), LENGTH - start) for each, start in lengths.items()}
        spans = tuple(
            Span(each, start, tuple(tokens[start : start + sizes[each]]), Want.LOGITS, Rows.ALL)
            for each, start in lengths.items()
            if sizes[each]
        )
        for span, result in zip(spans, executor.submit(StepBatch(spans)).result().results, strict=True):
            assert not isinstance(result, Exception), result
            np.testing.assert_array_equal(result.logits, expected[span.start : span.end])
            lengths[span.cache_id] = span.end
        cut = lengths["c"] - int(rng.integers(0, 6))
        if 0 < cut < lengths["c"] < LENGTH and executor.lm.pages.can_truncate("c", cut):
            executor.lm.pages.truncate("c", cut)
            lengths["c"] = cut


@pytest.mark.parametrize("name", FIRST)
def test_a_packed_model_has_the_bits_of_one_quantised_on_load(name: str, tmp_path: Path) -> None:
    require_native()
    source, tokens = directory_of(MODELS[name]), tokens_of(MODELS[name], 40)
    pack_directory(DirectoryModel(source), tmp_path / "packed", "q8_0")
    with load_executor(tmp_path / "packed") as packed, load_executor(source, quantize="q8_0", replay=False) as plain:
        np.testing.assert_array_equal(logits_of(packed, tokens), logits_of(plain, tokens))


@pytest.mark.parametrize("name", FIRST)
def test_bfloat16_is_about_as_exact_as_the_twin_in_bfloat16(name: str) -> None:
    """Rounded weights are exact in float32. A row whose choice of experts flips in bfloat16 is far off in both."""
    require_native()
    case = Case(f"{name}-bf16", MODELS[name].config, MODELS[name].changes, dtype="bfloat16")
    tokens = tokens_of(case, 60)
    with load_executor(directory_of(case)) as executor:
        ours = logits_of(executor, tokens)
    with torch.no_grad():
        theirs = model_of(case)(torch.tensor([tokens])).logits[0].float().numpy()
    exact = reference_logits(case, tokens)  # converts the cached twin to float32
    error, their_error = (float(np.median(np.abs(logits - exact))) for logits in (ours, theirs))
    assert 0 < error <= 1.2 * their_error


@pytest.mark.parametrize("name", ["deepseek-v2", "gemma4-shared", "llama4", "gpt-oss"])
def test_a_prefix_on_disk_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """Latent vectors, layers that read the keys of others, chunks, and sinks with windows."""
    require_native()
    params, answers = SamplingParams(temperature=0.8, seed=5, max_tokens=8, logprobs=0), []
    for directory in (None, tmp_path, tmp_path):
        kept = {} if directory is None else {"prefix_cache_dir": str(directory)}
        with LLM(str(directory_of(MODELS[name])), kv_capacity=1024, **kept) as llm:
            (output,) = llm.generate([tokens_of(MODELS[name], 199, seed=9)], params, use_tqdm=False)
            answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert output.metrics.usage.cached_tokens >= 128
    assert answers[0] == answers[1] == answers[2]


class Reads(dict[str, Any]):
    """A configuration that notes which fields are read."""

    def __init__(self, values: dict[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


class Noted(FamilyConfig):
    """A configuration whose changed copies note their reads in the same set."""

    def with_values(self, **values: Any) -> FamilyConfig:
        assert isinstance(self.values, Reads)
        return Noted(Reads({**self.values, **values}, self.values.read), self.context)


@pytest.mark.parametrize("config", sorted({case.config for case in MODELS.values()}))
def test_every_field_of_the_twin_is_read_or_has_no_effect(config: str) -> None:
    """A field that is not read would be ignored."""
    load_families()
    fields: set[str] = set()
    read: set[str] = set()
    for case in (case for case in (*CASES, *MODELS.values()) if case.config == config):
        name, values = type(model_of(case)).__name__, read_config(directory_of(case))
        own = {each.name for each in dataclasses.fields(type(model_of(case).config))}
        fields |= {key for key, value in values.items() if value is not None and (key in own or key not in BASE)}
        read |= ALIASES.get(name, {}).keys()
        FAMILIES.get(name)(Noted(Reads(with_defaults(name, "", values), read)))
    assert not fields - read - WITHOUT_EFFECT
