"""Steps that decode with adapters go on from the tables of the step before, with the bits of steps made in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapter_cases import BASES
from adapter_kit import executor_with, two_adapters
from ferrum import AdapterUse, Rows, Sampling, SamplingParams, Span, SpanExtras, SpanResult, StepBatch, Want
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.verbs.load_executor import LocalExecutor

CASE = BASES["qwen3"]
PROMPT = (3, 1, 4, 1, 5, 9)
KEYS = (None, "k0", "k1", "k0")
SAMPLING = Sampling(SamplingParams(temperature=0.0, logprobs=5), 0, len(PROMPT), [])


@pytest.fixture
def files(tmp_path: Path) -> list[AdapterFile]:
    return two_adapters(CASE, tmp_path, "q_proj", "down_proj")


@pytest.fixture
def executor(files: list[AdapterFile]) -> Iterator[LocalExecutor]:
    with executor_with(CASE, files) as executor:
        yield executor


def decode(executor: LocalExecutor, changes: dict[int, Callable[[], None]], *, fast: bool) -> list[SpanResult]:
    """Return the results of eight steps of sequences with different adapters; changes come before their steps."""
    results, tokens, start = list[SpanResult](), [PROMPT] * len(KEYS), 0
    for step in range(8):
        changes.get(step, lambda: None)()
        if not fast:
            executor.lm.forget()
        spans = [
            Span(f"{index}", start, part, Want.TOKEN, Rows.LAST, sampling=SAMPLING, extras=extras_of(key, step))
            for index, (key, part) in enumerate(zip(KEYS, tokens, strict=True))
        ]
        start += len(tokens[0])
        made = executor.submit(StepBatch(tuple(spans))).result().results
        tokens = []
        for each in made:
            assert isinstance(each, SpanResult), each
            results.append(each)
            tokens.append(tuple(each.tokens))
    executor.reset()
    return results


def extras_of(key: str | None, step: int) -> SpanExtras | None:
    """Return equal extras in another object at each step; from the fifth on, at half their scale."""
    return None if key is None else SpanExtras(adapters=(AdapterUse(key, 0.5 if step >= 5 else 1.0),))


def test_decodes_with_adapters_take_the_fast_path(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    full, admitted = decode(executor, {}, fast=False), list[str]()
    refusal = executor.lm._refusal  # each span of a step that is made in full is checked

    def counted(span: Span) -> object:
        admitted.append(span.cache_id)
        return refusal(span)

    monkeypatch.setattr(executor.lm, "_refusal", counted)
    assert decode(executor, {}, fast=True) == full
    assert len(admitted) == 3 * len(KEYS), "the prompts, the first decodes, and those with another scale"


def test_an_adapter_under_a_known_key_is_another_one(executor: LocalExecutor, files: list[AdapterFile]) -> None:
    def exchange(index: int) -> Callable[[], None]:
        def change() -> None:
            executor.unload_adapter("k0")
            executor.load_adapter("k0", files[index])

        return change

    changes = {3: exchange(1), 7: exchange(0)}
    full = decode(executor, changes, fast=False)
    assert decode(executor, changes, fast=True) == full != decode(executor, {}, fast=False)


def test_the_last_step_decides_which_adapter_a_verb_uses(executor: LocalExecutor) -> None:
    seen = list[tuple[AdapterUse, ...]]()

    def look() -> None:
        seen.append(executor.lm.pages.adapters("1"))

    def choose() -> None:
        executor.set_lora_adapter("1", "k1")
        look()

    decode(executor, {3: choose, 4: look}, fast=True)
    assert [uses[0].key for uses in seen] == ["k1", "k0"] and seen[-1] == (AdapterUse("k0"),)
