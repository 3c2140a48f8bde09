"""The main property: any split of token lists into spans, in any batch, gives the same bits."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from emulated_cuda import emulated_device
from fakes import scope_of
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Sampling, Span, StepBatch, Want
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from tiny import directory_of, find, tokens_of
from toy_backend import toy_backend

MODELS = ("qwen3-windows", "llama3", "mistral")
LENGTH = 90
SEQUENCES = 4


FLOATS = ("float32", "bfloat16")
INTEGERS = ("int8", "int4", "kv-int8")


EMULATED = pytest.param(MODELS[0], "cuda", marks=pytest.mark.cuda)


def options_of(format: str) -> dict[str, str]:
    """Return options to load weights in a format. Quantised weights load from bfloat16, with a bfloat16 KV cache.

    "kv-int8" quantises only the KV cache. "toy" is float32 on the toy backend, which has the reference's numbers, and
    "cuda" on the emulated device.
    """
    if format in ("toy", "cuda"):
        return {"dtype": "float32"}
    if format == "kv-int8":
        return {"dtype": "float32", "kv_dtype": "int8"}
    return {"dtype": format} if format in FLOATS else {"dtype": "bfloat16", "quantize": format}


@cache
def executor_of(name: str, format: str):
    small = {"page_size": 16, "kv_capacity": 16 * 64, "max_rows": 64}
    with {"toy": toy_backend, "cuda": emulated_device}.get(format, nullcontext)():
        return load_executor(directory_of(find(name)), kernels="reference", **options_of(format), **small)


@cache
def alone(name: str, format: str, seed: int) -> np.ndarray:
    """Return the logits of a token list in one span, in a separate executor."""
    with load_executor(directory_of(find(name)), kernels="reference", **options_of(format)) as executor:
        span = Span("alone", 0, tuple(tokens_of(find(name), LENGTH, seed)), Want.LOGITS, Rows.ALL)
        logits: np.ndarray = executor.submit(StepBatch((span,))).result().results[0].logits
        return logits


class Player:
    """Sequences of one executor, by default `executor_of`, in random steps; each row is compared with `alone`."""

    def __init__(self, name: str, format: str, data: st.DataObject, executor: LocalExecutor | None = None) -> None:
        self.name, self.format, self.data = name, format, data
        self.executor = executor or executor_of(name, format)
        self.executor.reset()
        self.seeds: dict[str, int] = {}
        self.lengths: dict[str, int] = {}

    def begin(self, seed: int) -> None:
        cache_id = f"s{len(self.seeds)}"
        self.seeds[cache_id] = seed
        self.start(cache_id)

    def start(self, cache_id: str) -> None:
        """Begin a sequence, from an empty cache or from the cached pages of others."""
        pages, names = self.executor.lm.pages, self.names_of(cache_id)
        found = pages.match(names[: self.draw(0, len(names))])
        pages.adopt(cache_id, names, found)
        self.lengths[cache_id] = found * pages.groups[0].page_size

    def names_of(self, cache_id: str) -> list[bytes]:
        names: list[bytes] = []
        scope = scope_of(self.executor.lm.pages)
        root = scope.root(tenant="", salt="")
        scope.extend(names, root, tokens_of(find(self.name), LENGTH, self.seeds[cache_id]))
        return names

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def step(self) -> None:
        spans = []
        for cache_id, length in self.lengths.items():
            room = min(LENGTH - length, 40)
            if room and self.data.draw(st.booleans()):
                tokens = tokens_of(find(self.name), LENGTH, self.seeds[cache_id])[length : length + self.draw(1, room)]
                spans.append(Span(cache_id, length, tuple(tokens), Want.LOGITS, Rows.ALL))
        for span, result in zip(spans, self.executor.submit(StepBatch(tuple(spans))).result().results, strict=True):
            if isinstance(result, Exception):
                raise result
            expected = alone(self.name, self.format, self.seeds[span.cache_id])[span.start : span.end]
            np.testing.assert_array_equal(result.logits, expected)
            self.lengths[span.cache_id] = span.end
            self.executor.lm.pages.publish(span.cache_id)

    def disturb(self) -> None:
        """Fork, truncate, or preempt one sequence."""
        started = [cache_id for cache_id, length in self.lengths.items() if length]
        if not started:
            return
        cache_id = self.data.draw(st.sampled_from(started))
        pages, length = self.executor.lm.pages, self.lengths[cache_id]
        kind = self.data.draw(st.sampled_from(["fork", "truncate", "preempt"]))
        if kind == "fork" and len(self.seeds) < 2 * SEQUENCES:
            copy = f"s{len(self.seeds)}"
            pages.fork(cache_id, copy)
            self.seeds[copy], self.lengths[copy] = self.seeds[cache_id], length
            pages.label(copy, self.names_of(copy))
        elif kind == "truncate":
            target = self.draw(0, length)
            if pages.can_truncate(cache_id, target):
                pages.truncate(cache_id, target)
                self.lengths[cache_id] = target
        else:
            pages.release(cache_id)
            self.start(cache_id)


@pytest.mark.parametrize(
    ("name", "format"), [*product(MODELS, FLOATS), *product(MODELS[:2], INTEGERS), (MODELS[0], "toy"), EMULATED]
)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), threads=st.integers(1, 2))
def test_logits_do_not_depend_on_spans_or_batch(name, format, data, threads):
    """The threads are those of numpy's BLAS, whose results no kernel may depend on."""
    with threadpool_limits(threads):
        player = Player(name, format, data)
        for _ in range(SEQUENCES):
            player.begin(seed=player.draw(0, 2))
        for _ in range(8):
            player.step()
            player.disturb()
            player.executor.lm.pages.check()


def sampled_run(executor, prompt: list[int], cuts: list[int], count: int, company: int) -> list[tuple[int, float]]:
    """Return tokens and log-probabilities at temperature 0.8: the prompt split as given, in a batch that decodes."""
    params = SamplingParams(temperature=0.8, top_p=0.95, logprobs=2, max_tokens=count)
    history = list(prompt)
    sampling = Sampling(params, seed=99, prompt_length=len(prompt), history=history)
    others = [[7 * i + j for j in range(3 + i)] for i in range(company)]
    out: list[tuple[int, float]] = []
    start, pending = 0, [*cuts]
    while len(out) < count:
        size = min(pending.pop(0) if pending else len(history), len(history) - start)
        final = start + size == len(history)
        spans = [
            Span(
                "it", start, tuple(history[start : start + size]), Want.TOKEN if final else Want.NONE, sampling=sampling
            )
        ]
        for i, other in enumerate(others):
            known = executor.lm.pages.length(f"o{i}") if f"o{i}" in executor.lm.pages else 0
            spans.append(Span(f"o{i}", known, tuple(other[known:]), Want.LOGITS))
        results = executor.submit(StepBatch(tuple(spans))).result().results
        for other, result in zip(others, results[1:], strict=True):
            other.append(int(result.logits[-1].argmax()))
        start += size
        if final:
            (logprob,) = results[0].logprobs
            history.append(results[0].tokens[0])
            out.append((logprob.token, logprob.logprob))
    executor.reset()
    return out


@pytest.mark.parametrize("format", [*FLOATS, *INTEGERS, "toy"])
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(1, 20), max_size=6), company=st.integers(0, 3))
def test_sampled_tokens_and_logprobs_do_not_depend_on_spans_or_batch(format, cuts, company):
    executor = executor_of("qwen3-windows", format)
    executor.reset()
    prompt = tokens_of(find("qwen3-windows"), 30, seed=3)
    assert sampled_run(executor, prompt, cuts, 12, company) == plain_run(format)


@cache
def plain_run(format: str) -> list[tuple[int, float]]:
    executor = executor_of("qwen3-windows", format)
    executor.reset()
    return sampled_run(executor, tokens_of(find("qwen3-windows"), 30, seed=3), [], 12, 0)


def test_another_backend_with_these_numbers_samples_the_same():
    assert plain_run("toy") == plain_run("float32")
