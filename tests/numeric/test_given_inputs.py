"""Given rows take the place of embeddings at their positions, in any batch and any cut, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ferrum.core.errors import RequestError
from ferrum.core.step import Inputs, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.verbs.load_executor import load_executor
from native_twin import require_native
from tiny import directory_of, find, model_of, tokens_of

CASE = find("llama3")
TEXT = tokens_of(CASE, 40)
PLACES = (3, 4, 5, 9, 20, 31)
TABLE = model_of(CASE).get_input_embeddings().weight.detach().float().numpy()
RANDOM = np.random.default_rng(1).normal(0, 0.1, (len(PLACES), TABLE.shape[1])).astype(np.float32)
PLACEHOLDERS = [0 if position in PLACES else token for position, token in enumerate(TEXT)]
KERNELS = ("reference", "native")


def inputs_of(rows: np.ndarray) -> Inputs:
    return Inputs(PLACES, rows, b"digest")


def logits_of(
    rows: np.ndarray | None, tokens: list[int], cuts: tuple[int, ...] = (), *, kernels: str, plain: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the logits of a sequence cut into spans, and those of a plain sequence that has equal cuts, if any."""
    if kernels == "native":
        require_native()
    found: list[list[np.ndarray]] = [[], []]
    with load_executor(
        directory_of(CASE), dtype="float32", kernels=kernels, kv_capacity=1024, page_size=16, max_rows=24
    ) as executor:
        for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
            given = () if rows is None else inputs_of(rows).within(start, end)
            span = Span("it", start, tuple(tokens[start:end]), Want.LOGITS, Rows.ALL)
            spans = [replace(span, extras=SpanExtras(inputs=given).or_none())]
            if plain:
                spans.insert(0, Span("plain", start, tuple(TEXT[start:end]), Want.LOGITS, Rows.ALL))
            results = executor.submit(StepBatch(tuple(spans))).result().results
            for each, result in zip(found, reversed(results), strict=False):
                each.append(result.logits)
    return np.concatenate(found[0]), np.concatenate(found[1]) if plain else None


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_of_the_embedding_give_the_bits_of_their_tokens(kernels: str) -> None:
    rows = TABLE[[TEXT[position] for position in PLACES]]
    expected, _ = logits_of(None, TEXT, kernels=kernels)
    given, _ = logits_of(rows, PLACEHOLDERS, kernels=kernels)
    np.testing.assert_array_equal(given, expected)
    assert (logits_of(None, PLACEHOLDERS, kernels=kernels)[0][-1] != expected[-1]).any()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("cuts", [(), (4,), (5, 6, 20, 33)])
def test_a_span_with_rows_and_a_plain_one_have_their_bits_alone(kernels: str, cuts: tuple[int, ...]) -> None:
    mixed, plain = logits_of(RANDOM, PLACEHOLDERS, cuts, kernels=kernels, plain=True)
    np.testing.assert_array_equal(mixed, logits_of(RANDOM, PLACEHOLDERS, kernels="reference")[0])
    np.testing.assert_array_equal(plain, logits_of(None, TEXT, kernels="reference")[0])


def test_rows_mean_what_inputs_embeds_means_to_transformers() -> None:
    embeds = TABLE[PLACEHOLDERS].copy()
    embeds[list(PLACES)] = RANDOM
    with torch.no_grad():
        expected = model_of(CASE).float()(inputs_embeds=torch.tensor(embeds[None])).logits[0].numpy()
    given, _ = logits_of(RANDOM, PLACEHOLDERS, kernels="reference")
    assert abs(given - expected).max() <= 1e-4 * abs(expected).max()


@pytest.mark.parametrize(
    "wrong",
    [
        inputs_of(RANDOM[:, 1:]),
        inputs_of(RANDOM.astype(np.float64)),
        inputs_of(RANDOM[1:]),
        Inputs((), RANDOM[:0], b""),
        Inputs((4, 3), RANDOM[:2], b""),
        Inputs((3, 40), RANDOM[:2], b""),
        Inputs((-1, 3), RANDOM[:2], b""),
        Inputs((3,), RANDOM[:1], "digest"),  # type: ignore[arg-type]
        None,
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(wrong: Inputs) -> None:
    with load_executor(directory_of(CASE), dtype="float32", kernels="reference", kv_capacity=256) as executor:
        span = Span("it", 0, tuple(TEXT), Want.LOGITS, extras=SpanExtras(inputs=(wrong,)))
        twice = replace(span, cache_id="twice", extras=SpanExtras(inputs=(Inputs((1,), RANDOM[:1], b""),) * 2))
        for error in executor.submit(StepBatch((span, twice))).result().results:
            assert isinstance(error, RequestError) and error.param == "inputs"
