"""Requests with adapters through the engine: their bits, their pages, and the life of the adapters."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrum import LLM, AsyncEngine, LoRARequest, RequestOutput, SamplingParams
from ferrum.core.errors import CapacityError, FerrumError, RequestError
from lora_files import write_lora
from tiny import directory_of, find

CASE = find("qwen3")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 8
"""More than a page of 64 tokens."""

OPTIONS: dict[str, Any] = {"kv_capacity": 2048, "dtype": "float32", "generation_config": "none"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_lora(root / f"{seed}", CASE, seed, rank=seed + 1) for seed in range(4)]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(str(directory_of(CASE)), **OPTIONS) as llm:
        yield llm


def bits(output: RequestOutput) -> tuple[Any, ...]:
    """Return tokens and log-probabilities."""
    (choice,) = output.outputs
    assert choice.error is None, choice.error
    tokens = zip(choice.token_ids, choice.logprobs or (), strict=True)
    return tuple((token, found[token].logprob) for token, found in tokens)


def run(llm: LLM, *names: Any, prompt: list[int] = PROMPT) -> list[tuple[Any, ...]]:
    """Return the bits of the prompt with each adapter, all in one batch."""
    return [bits(each) for each in llm.generate([prompt] * len(names), GREEDY, False, lora_request=names)]


def cached(llm: LLM, name: str | None, prompt: list[int] = PROMPT) -> int:
    """Return how many prompt tokens came from pages."""
    usages = [delta.usage for delta in llm.stream(prompt, GREEDY, lora_request=name)]
    assert usages[-1] is not None
    return usages[-1].cached_tokens


def test_rows_of_a_mixed_batch_have_the_bits_of_their_runs_alone(llm: LLM, files: list[Path]) -> None:
    base = run(llm, None)
    for number, path in enumerate(files):
        llm.load_adapter(f"a{number}", str(path))
    names = [None, *(f"a{number}" for number in range(4))]
    alone = [run(llm, name)[0] for name in names]
    assert alone[0] == base[0] and len(set(alone)) == 5
    assert run(llm, *names, *reversed(names)) == [*alone, *reversed(alone)]


def test_adapters_load_at_their_first_use(llm: LLM, files: list[Path]) -> None:
    request = LoRARequest("x", 1, str(files[0]))
    first = run(llm, request)
    assert run(llm, "x") == first == run(llm, LoRARequest("x", 1))
    with pytest.raises(RequestError, match="is loaded from"):
        llm.generate([PROMPT], GREEDY, False, lora_request=LoRARequest("x", 1, str(files[1])))
    with pytest.raises(RequestError, match="no adapter 'y' is loaded"):
        llm.generate([PROMPT], GREEDY, False, lora_request="y")


def test_pages_belong_to_digests_and_not_to_names(llm: LLM, files: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(files[0], mine)
    llm.load_adapter("a", str(mine))
    llm.load_adapter("same", str(files[0]))
    llm.load_adapter("other", str(files[1]))
    assert cached(llm, None) == 0 and cached(llm, None) >= 64
    assert cached(llm, "a") == 0, "pages of the base"
    assert cached(llm, "other") == 0, "pages of another adapter"
    assert cached(llm, "same") >= 64, "two names of one digest"
    before = run(llm, "a")
    shutil.rmtree(mine)
    shutil.copytree(files[2], mine)
    llm.load_adapter("a", str(mine))  # a reload under the same name
    assert cached(llm, "a") == 0
    assert run(llm, "a") != before


def test_pages_on_disk_are_found_by_digest_after_a_restart(files: list[Path], tmp_path: Path) -> None:
    options = {**OPTIONS, "prefix_cache_dir": str(tmp_path / "pages"), "lora": [f"a={files[0]}", f"b={files[1]}"]}
    with LLM(str(directory_of(CASE)), **options) as llm:
        (first,) = run(llm, "a")
    swapped = {**options, "lora": [f"b={files[0]}", f"a={files[1]}"]}
    with LLM(str(directory_of(CASE)), **swapped) as llm:
        assert cached(llm, "a") == 0
        assert cached(llm, "b") == 64
        assert run(llm, "b") == [first]


def test_an_adapter_in_use_stays_until_its_last_request_ends(llm: LLM, files: list[Path]) -> None:
    llm.load_adapter("a", str(files[0]))
    params = GREEDY.but(max_tokens=40)
    whole = bits(llm.generate([PROMPT], params, False, lora_request="a")[0])
    stream = llm.stream(PROMPT, params, lora_request="a")
    tokens = [*next(stream).token_ids]
    llm.unload_adapter("a")
    llm.load_adapter("a", str(files[1]))
    for delta in stream:
        assert delta.error is None
        tokens += delta.token_ids
    assert tuple(tokens) == tuple(token for token, _ in whole)


def test_evicted_adapters_are_read_again(files: list[Path]) -> None:
    with LLM(str(directory_of(CASE)), **OPTIONS, lora_gib=20e3 / 2**30) as llm:
        sizes = {}
        for number, path in enumerate(files):
            llm.load_adapter(f"a{number}", str(path))
            sizes[number] = llm.client.adapters.find(f"a{number}").facts.nbytes
        assert max(sizes.values()) < 20e3 < sum(sizes.values())
        names = [f"a{number}" for number in range(4)]
        alone = [run(llm, name)[0] for name in names]
        assert len(set(alone)) == 4
        assert run(llm, *names, *names) == [*alone, *alone]
    with (
        LLM(str(directory_of(CASE)), **OPTIONS, lora_gib=1e3 / 2**30) as llm,
        pytest.raises(CapacityError, match="lora-gib"),
    ):
        llm.load_adapter("a", str(files[3]))


def test_a_bad_file_harms_no_stream(llm: LLM, files: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(files[0], bad)
    (bad / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    expected = [token for token, _ in run(llm, None)[0]]
    stream = llm.stream(PROMPT, GREEDY)
    tokens = [*next(stream).token_ids]
    for path in (bad, tmp_path / "missing"):
        with pytest.raises(FerrumError, match=path.name):
            llm.load_adapter("bad", str(path))
    assert "bad" not in llm.client.adapters
    for delta in stream:
        tokens += delta.token_ids
    assert tokens == expected


def test_files_that_changed_after_loading_are_not_read_again(files: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(files[0], mine)
    with LLM(str(directory_of(CASE)), **OPTIONS, lora_gib=7e3 / 2**30) as llm:
        llm.load_adapter("mine", str(mine))
        llm.load_adapter("other", str(files[1]))  # evicts the first
        shutil.rmtree(mine)
        shutil.copytree(files[2], mine)
        (output,) = llm.generate([PROMPT], GREEDY, False, lora_request="mine")
        assert "has changed since it was loaded" in str(output.outputs[0].error)
        assert run(llm, "other")


@pytest.mark.parametrize(("length", "count"), [(170, 2), (2039, 10)])
def test_invoked_adapters_share_the_pages_before_their_invocations(tmp_path: Path, length: int, count: int) -> None:
    """Adapters follow each other at the end of a conversation, whose last page the base still has or has not."""
    case = replace(CASE, name=f"{CASE.name}-long", changes={**CASE.changes, "max_position_embeddings": 10_000})
    words = [[100 + number, *range(number % 3)] for number in range(count)]
    paths = [write_lora(tmp_path / f"{number}", case, number, invocation=word) for number, word in enumerate(words)]
    options = {**OPTIONS, "kv_capacity": 16_384, "lora": [f"a{number}={path}" for number, path in enumerate(paths)]}
    prompt = np.random.default_rng(0).integers(20, 90, length).tolist()
    with LLM(str(directory_of(case)), **options, prefix_cache=False) as llm:
        (base,) = run(llm, None, prompt=prompt)
        assert run(llm, "a0", prompt=prompt) == [base], "not invoked"
        text = [*prompt, *(token for token, _ in base)]
        prompts = {f"a{number}": [*text, *word, 11, 12] for number, word in enumerate(words)}
        cold = {name: run(llm, name, prompt=each)[0] for name, each in prompts.items()}
        assert len(set(cold.values())) == count
    pages = len(text) - len(text) % 64  # the base never computed the answer's last token
    for before, known in (prompt, len(text) - 1), ([*text[:pages], 95, 96], pages):
        with LLM(str(directory_of(case)), **options) as llm:
            run(llm, None, prompt=before)
            for name, each in prompts.items():
                (output,) = llm.generate([each], GREEDY, False, lora_request=name)
                assert (bits(output), output.metrics.usage.cached_tokens) == (cold[name], known)
            assert cached(llm, "a0", [*prompts["a0"], *words[0]]) >= pages, "the invocation is now the last one"


@pytest.mark.parametrize("host", ["thread", "process"])
def test_async_engines_load_adapters(files: list[Path], host: str) -> None:
    async def main() -> None:
        async with AsyncEngine(str(directory_of(CASE)), **OPTIONS, host=host) as engine:
            found = {}
            for choice in (None, LoRARequest("a", 1, str(files[0])), "a"):
                deltas = engine.generate(PROMPT, GREEDY, lora_request=choice)
                found[str(choice)] = [token async for delta in deltas for token in delta.token_ids]
            base, first, second = found.values()
            assert base != first == second
            with pytest.raises(FerrumError, match="missing"):
                await engine.load_adapter("b", str(files[0].parent / "missing"))
            engine.unload_adapter("a")
            with pytest.raises(RequestError, match="no adapter 'a'"):
                engine.generate(PROMPT, GREEDY, lora_request="a")

    asyncio.run(main())
