"""Adapters are loaded and unloaded under load: no request fails, and none mixes two of them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ferrum import LLM, SamplingParams
from lora_files import write_lora
from tiny import directory_of, find

CASE = find("qwen3")
NAMES = ("a", "b", "c")
VERSIONS = 4
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[number + 2, 5, 7, number % 3] * (1 + number % 20) for number in range(24)]


def swap(tmp_path: Path, requests: int, swaps: int, **options: Any) -> Counter[str]:
    """Send requests while adapters change; return how many had each version. Each has the tokens of one version."""
    files = [write_lora(tmp_path / f"v{version}", CASE, version) for version in range(VERSIONS)]
    settings: dict[str, Any] = {"kv_capacity": 4096, "dtype": "float32", "generation_config": "none"} | options
    with LLM(str(directory_of(CASE)), **settings) as llm:
        expected = _expected(llm, files)
        for name in NAMES:
            llm.load_adapter(name, str(files[0]))
        seen, failed = Counter[str](), list[BaseException]()

        def ask(seed: int) -> None:
            pick = Random(seed)
            for _ in range(requests // 4):
                chosen = [pick.randrange(len(PROMPTS)) for _ in range(2)]
                names = [pick.choice((None, *NAMES)) for _ in chosen]
                outputs = llm.generate([PROMPTS[each] for each in chosen], PARAMS, False, lora_request=names)
                for prompt, name, output in zip(chosen, names, outputs, strict=True):
                    (choice,) = output.outputs
                    assert choice.error is None, choice.error
                    version = expected[prompt].index(tuple(choice.token_ids))
                    assert (name is None) == (version == VERSIONS), "the base, or a version of the adapter"
                    seen[f"version {version}"] += 1

        def run(seed: int) -> None:
            try:
                ask(seed)
            except BaseException as error:  # noqa: BLE001 - it fails the test
                failed.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        pick = Random(0)
        for _ in range(swaps):
            llm.load_adapter(pick.choice(NAMES), str(files[pick.randrange(VERSIONS)]))
            llm.load_adapter("extra", str(files[pick.randrange(VERSIONS)]))
            llm.unload_adapter("extra")
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        loaded = {each.facts.nbytes for each in llm.client.adapters}
        assert len(loaded) == 1
        seen["requests"] = sum(seen.values())
        return seen


def _expected(llm: LLM, files: list[Path]) -> list[list[tuple[int, ...]]]:
    """Return the tokens of each prompt with each version, and last those of the base."""
    for version, path in enumerate(files):
        llm.load_adapter(f"v{version}", str(path))
    found = []
    names = [*(f"v{version}" for version in range(VERSIONS)), None]
    for prompt in PROMPTS:
        outputs = llm.generate([prompt] * len(names), PARAMS, False, lora_request=names)
        found.append([tuple(each.outputs[0].token_ids) for each in outputs])
        assert len(set(found[-1])) == len(names)
    for version in range(VERSIONS):
        llm.unload_adapter(f"v{version}")
    return found


@pytest.mark.parametrize("options", [{}, {"lora_gib": 25e3 / 2**30}, {"host": "process", "run_ahead": 1}], ids=str)
def test_swaps_fail_no_request(tmp_path: Path, options: dict[str, Any]) -> None:
    assert swap(tmp_path, 120, 12, **options)["requests"] == 120


@pytest.mark.soak
def test_six_thousand_requests_during_a_hundred_swaps(tmp_path: Path) -> None:
    seen = swap(tmp_path, 6000, 100)
    assert seen["requests"] == 6000 and all(seen[f"version {version}"] for version in range(VERSIONS + 1))
