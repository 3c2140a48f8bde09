"""What one instruction tier writes, another reads: records, disk caches and packed directories are portable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_kit import Outcome
from ferrum import LLM, SamplingParams
from ferrum.client.records.record import read_record
from ferrum.client.records.record_files import file_name
from ferrum.client.records.replayer import engine_options
from ferrum.runtime import packing
from ferrum.runtime.backend import choose_kernels
from ferrum.sources.model_source import DirectoryModel
from native_twin import TIERS
from packed_kit import logits_of
from tiny import directory_of, find, tokens_of

CASE = "qwen3-windows"
WARM = SamplingParams(temperature=0.9, seed=4, max_tokens=12, ignore_eos=True, logprobs=2, top_p=0.95)
PAGE = 64
FORMATS = ("float32", "bfloat16", "q8_0", "q4_k_m")

PAIRS = list(zip([*TIERS, "reference"], [*TIERS[1:], "reference", *TIERS[:1]], strict=False))
"""Each kernels of this machine write, the next ones read."""


def on(kernels: str) -> dict[str, Any]:
    return {"kernels": kernels} if kernels == "reference" else {"kernels": "native", "isa": kernels}


def stored_as(format: str) -> dict[str, Any]:
    """Return the options of a format; blocks come with int8 keys and values."""
    if format.startswith("q"):
        return {"quantize": format, "kv_dtype": "int8"}
    return {"dtype": format}


def opened(kernels: str, format: str, **options: Any) -> LLM:
    return LLM(str(directory_of(find(CASE))), kv_capacity=1024, **on(kernels), **stored_as(format), **options)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_record_replays_with_the_same_bits(
    writer: str, reader: str, format: str, tmp_path: Path, ferrum: Callable[..., Outcome]
) -> None:
    with opened(writer, format, record_dir=str(tmp_path)) as llm:
        (output,) = llm.generate([tokens_of(find(CASE), 90, seed=1)], WARM, use_tqdm=False)
    options = [word for name, value in on(reader).items() for word in (f"--{name}", value)]
    code, out, err = ferrum("replay", output.request_id, "--record", str(tmp_path), *options)
    assert code == 0 and "same bits" in out, out + err


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_pages_on_disk_are_found(writer: str, reader: str, format: str, tmp_path: Path) -> None:
    prompt, answers = tokens_of(find(CASE), 3 * PAGE + 7, seed=9), []
    for kernels in (writer, reader):
        with opened(kernels, format, prefix_cache_dir=str(tmp_path)) as llm:
            (output,) = llm.generate([prompt], WARM, use_tqdm=False)
        answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert output.metrics.usage.cached_tokens == 3 * PAGE
    assert answers[0] == answers[1]


@pytest.mark.parametrize("scheme", ["q8_0", "q6_k", "q4_k_m", "q4_0"])
def test_packed_directories_are_equal_and_give_equal_logits(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, files, logits = DirectoryModel(directory_of(find(CASE))), [], []
    for kernels in [*TIERS, "reference"]:
        chosen = on(kernels)
        monkeypatch.setattr(packing, "choose_kernels", lambda *_, chosen=chosen: choose_kernels("cpu", **chosen))
        target = tmp_path / kernels
        packing.pack_directory(source, target, scheme)
        files.append({path.name: path.read_bytes() for path in target.iterdir()})
        logits.append(logits_of(tmp_path / ([*TIERS, "reference"][0]), CASE, **chosen))
    for other, seen in zip(files, logits, strict=True):
        assert other == files[0]
        np.testing.assert_array_equal(seen, logits[0])


def test_a_replay_takes_the_kernels_of_its_machine(tmp_path: Path) -> None:
    """A record may come from a processor with a tier and with threads that this machine lacks."""
    with opened("reference", "float32", record_dir=str(tmp_path)) as llm:
        (output,) = llm.generate([[3, 4, 5]], WARM, use_tqdm=False)
    origin = read_record(tmp_path / file_name("", output.request_id)).origin
    assert origin.options is not None and origin.options["model"]["kernels"] == "reference"
    options = engine_options(origin, {"threads": 1})
    assert options["dtype"] == "float32" and options["threads"] == 1
    assert not {"kernels", "isa", "device", "cuda_graphs"} & options.keys()
