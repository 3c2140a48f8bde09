"""Images through an engine under pressure: preemption, swapped pages, grammars, adapters. No row is computed twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ferrum.client.llm import LLM
from ferrum.core.errors import Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.engine.messages import EngineStats
from ferrum.images.decoded_image import DecodedImage
from image_models import CASES, random_image, seeing_directory, seeing_model
from native_twin import require_native

NAME = "smolvlm"
IMAGES = [random_image(61, 37), random_image(29, 64, seed=4), random_image(40, 33, seed=9)]
LONG = SamplingParams(temperature=0.8, seed=5, max_tokens=70, n=2, ignore_eos=True, logprobs=0)


class Stats:
    """An observer that keeps the last statistics."""

    last = EngineStats()

    def step(self, stats: EngineStats) -> None:
        self.last = stats

    def delta(self, request: object, delta: object) -> None: ...


def opened(name: str = NAME, **options: object) -> LLM:
    require_native()
    return LLM(str(seeing_directory(name)), **{"kernels": "native", "kv_capacity": 2048, "threads": 1, **options})


def asked(
    llm: LLM, params: SamplingParams, images: list[DecodedImage], name: str = NAME, **options: object
) -> list[object]:
    """Return tokens and log-probabilities of the answers about each image."""
    prompts = [f"{place}: {CASES[name].tokens[0]} is" for place in range(len(images))]
    outputs = llm.generate(prompts, params, use_tqdm=False, images=[[each] for each in images], **options)
    return [(each.token_ids, each.logprobs) for output in outputs for each in output.outputs]


@pytest.mark.parametrize(("name", "capacity", "tokens"), [("smolvlm", 448, 70), ("qwen3-vl", 320, 150)])
def test_preempted_sequences_read_their_rows_again_and_compute_none(name: str, capacity: int, tokens: int) -> None:
    params = LONG.but(max_tokens=tokens)
    with opened(name) as llm:
        expected = asked(llm, params, IMAGES[:2], name)
    for options in ({"swap_gib": 1}, {"prefix_cache": False}):
        with opened(name, kv_capacity=capacity, **options) as llm:
            stats = Stats()
            llm.client.router.observers = (stats,)
            assert asked(llm, params, IMAGES[:2], name) == expected
            assert stats.last.preemptions > 0, options
            assert asked(llm, params.but(max_tokens=1, n=1), IMAGES[:2], name)
            images = stats.last.images
            assert (images.queries, images.hits, images.computed) == (4, 2, 2)


def test_grammars_limit_answers_about_images() -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=12, structured_outputs=StructuredOutputs(regex="(cat|dog)s? [0-9]{2}")
    )
    with opened() as llm:
        together = asked(llm, params, IMAGES)
        assert together == asked(llm, params, IMAGES)
        (output,) = llm.generate(f"0: {CASES[NAME].tokens[0]} is", params, use_tqdm=False, images=[[IMAGES[0]]])
    assert output.outputs[0].token_ids == together[0][0]  # type: ignore[index]
    assert re.fullmatch("(cat|dog)s? [0-9]{2}", output.outputs[0].text or "")


def adapter(directory: Path, part: str) -> Path:
    """Write an adapter of the matrices of queries of a part of the model."""
    draws, tensors = np.random.default_rng(3), dict[str, np.ndarray]()
    for name, module in seeing_model(NAME).named_modules():
        if part in name and name.endswith("q_proj"):
            rows, columns = module.weight.shape
            tensors[f"base_model.model.{name}.lora_A.weight"] = draws.normal(0, 0.3, (2, columns)).astype(np.float32)
            tensors[f"base_model.model.{name}.lora_B.weight"] = draws.normal(0, 0.3, (rows, 2)).astype(np.float32)
    assert tensors
    directory.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def test_adapters_of_the_text_run_and_those_of_the_tower_are_refused(tmp_path: Path) -> None:
    text, tower = adapter(tmp_path / "text", "text_model"), adapter(tmp_path / "tower", "vision_model")
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with opened(lora=(f"text={text}",)) as llm:
        plain, adapted = asked(llm, params, IMAGES), asked(llm, params, IMAGES, lora_request="text")
        assert plain != adapted == asked(llm, params, IMAGES, lora_request="text")
        with pytest.raises(Unsupported, match=r"vision_model\.encoder\.layers\.0\.self_attn\.q_proj"):
            llm.load_adapter("tower", str(tower))
