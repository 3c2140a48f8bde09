"""Published models read as their makers meant: names and shapes of tensors, parameter counts, windows, ropes, plans.

The facts are those of `tests/data/published/`; none of them was written by the code under test.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import census
from census import Published
from census_tool import config_of, rebuilt
from ferrum.core.config import ModelConfig
from ferrum.models.attention_spec import RopeSpec
from ferrum.models.decoder import inventory
from ferrum.models.families import FAMILIES, decoder_spec, load_families
from ferrum.models.spec import DecoderSpec
from ferrum.runtime.load import plan_model
from ferrum.sources.parameters import model_spec
from ferrum.sources.remote_headers import RemoteHeaders
from ferrum.sources.tensor_file import TensorInfo
from ferrum.sources.viewed_tensors import with_views
from ferrum.text.generation_config import load_generation_config
from ferrum.text.model_files import DirectoryFiles
from readme_models import README, table_of, with_table

MODELS = census.models()
LARGE = 30_000
"""Tensors of models that are read in soak runs only."""

CONVERTED = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), "LLAMA"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), "DEEPSEEK2"),
    "mistral3": "MISTRAL3",
    "ministral3": "MISTRAL3",
    "gemma3_text": "GEMMA3",
    "olmo3": "OLMO2",
    "qwen2_moe": "QWEN2MOE",
    "qwen3_moe": "QWEN3MOE",
    "granitemoe": "GRANITE_MOE",
    "minimax_m2": "MINIMAXM2",
    "hunyuan_v1_dense": "HUNYUAN_DENSE",
    "qwen3_next": "QWEN3NEXT",
    "qwen3_5": "QWEN35",
    "qwen3_5_moe": "QWEN35MOE",
    "lfm2_moe": "LFM2MOE",
}
"""Types of models under another name in the converter of llama.cpp."""

REWRITTEN = (
    (r"^(model\.language_model|language_model\.model)\.", "model."),
    (r"^language_model\.lm_head", "lm_head"),
    (r"\.experts\.\{expert\}\.", ".experts."),
    (r"\.dt_bias$", ".dt_proj.bias"),
    (r"^model\.(.*feed_forward\.experts\.(?!gate_up_proj|down_proj))", r"\1"),
    (r"\.expert_bias$", ".expert_bias.bias"),
    (r"e_score_correction_bias$", "e_score_correction.bias"),
    (r"\.router\.(scale|per_expert_scale)$", ".router.proj"),
    (r"\.block_sparse_moe\.input_linear", ".block_sparse_moe.output_linear"),
    (r"\.experts\.(gate_up_proj|down_proj)(_bias)?$", ".experts.down_proj"),
)
"""Names that the converter changes or takes apart before it looks them up."""


def cases(*, one_a_class: bool = False) -> list[Any]:
    """Return the models as parameters. The largest are for soak runs, or all but the smallest of each class.

    Classes with quantised matrices count apart, and take longer.
    """
    counts = {model.name: model.num_tensors for model in MODELS}
    smallest: dict[tuple[str, bool], str] = {}
    for model in sorted(MODELS, key=lambda each: counts[each.name]):
        quantised = "quantization_config" in model.config
        if not quantised or counts[model.name] < LARGE // 3:
            smallest.setdefault((model.config["architectures"][0], quantised), model.name)
    fast = {name for name, count in counts.items() if count < LARGE}
    fast &= set(smallest.values()) if one_a_class else fast
    soak = {name: () if name in fast else (pytest.mark.soak,) for name in counts}
    return [pytest.param(model, id=model.name, marks=soak[model.name]) for model in MODELS]


def attentions(spec: DecoderSpec) -> Iterator[Any]:
    """Yield the attention of each layer that has some."""
    for layer in spec.layers:
        parts = (part for branch in layer.branches for _, part in branch.parts)  # type: ignore[attr-defined]
        yield from (part for part in parts if hasattr(part, "rope"))


@pytest.mark.parametrize("model", cases())
def test_names_shapes_and_count_are_those_of_the_files(model: Published) -> None:
    plain = model.unquantized()
    infos = {name: TensorInfo(dtype, shape, 0, 0) for name, (dtype, shape) in plain.tensors().items()}
    store = RemoteHeaders(model.name, plain.config, infos)
    spec = model_spec(store, planning=True)
    asks = inventory(spec)
    tensors = with_views(store, asks).tensors
    assert {name: shape for name, shape in asks.shapes.items() if name not in tensors} == {}, "missing"
    assert {name: tensors[name].shape for name in asks.shapes} == asks.shapes
    unused = tensors.keys() - asks.shapes.keys()
    assert [name for name in unused if not any(fnmatchcase(name, each) for each in spec.ignored_names)] == []
    assert sum(map(math.prod, asks.shapes.values())) == model.facts["parameters"]["count"]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_names_are_known_to_the_converter_of_llama_cpp(model: Published) -> None:
    kind = model.config["model_type"]
    known = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, CONVERTED.get(kind, kind.upper())), 1)
    for entry in model.facts["tensors"]["names"]:
        name = entry["name"].replace("{layer}", "0")
        for pattern, replacement in REWRITTEN:
            name = re.sub(pattern, replacement, name)
        assert known.get_name(name, try_suffixes=(".weight", ".bias")), entry["name"]


@pytest.mark.parametrize("model", cases())
def test_windows_and_ropes_are_those_of_the_class(model: Published) -> None:
    """The class fits longrope to the length of the text; here it fits the context, so that is the length."""
    own = config_of(model.config).get_text_config()
    attention = list(attentions(decoder_spec(model.unquantized().config)))
    kinds = getattr(own, "layer_types", None) or ["sliding_attention"] * len(attention)
    kinds = [kind for kind in kinds if kind not in ("linear_attention", "conv")]
    windows = [getattr(own, "sliding_window", None) if kind == "sliding_attention" else None for kind in kinds]
    assert [getattr(part, "window", None) for part in attention] == windows
    ropes = class_ropes(own)
    for kind, part in zip(kinds, attention, strict=True):
        if part.rope is not None:
            assert_same(part.rope, *ropes[kind if kind in ropes else ""])


def class_ropes(own: Any) -> dict[str, tuple[torch.Tensor, float]]:
    """Return frequencies and scaling of the class's ropes, by the kinds of layers; one for all has no kind."""
    kind = own.model_type.removesuffix("_text")
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    name = next(each for each in vars(module) if each.endswith("RotaryEmbedding") and "Vision" not in each)
    rope = getattr(module, name)(config=own)
    if getattr(rope, "rope_type", None) == "longrope":
        return {"": ROPE_INIT_FUNCTIONS["longrope"](own, "cpu", seq_len=own.max_position_embeddings)}
    found = {each.removesuffix("inv_freq"): value for each, value in rope.named_buffers() if "original" not in each}
    return {kind.removesuffix("_"): (value, getattr(rope, f"{kind}attention_scaling")) for kind, value in found.items()}


def assert_same(rope: RopeSpec, frequencies: torch.Tensor, scaling: float) -> None:
    ours = torch.tensor(rope.frequencies, dtype=torch.float64)
    torch.testing.assert_close(ours, frequencies.double(), rtol=1e-5, atol=0)
    assert rope.scaling == pytest.approx(scaling, rel=1e-6)


@pytest.mark.parametrize("model", cases(one_a_class=True))
def test_headers_without_data_are_planned(model: Published, tmp_path: Path) -> None:
    """Each class, and each with quantised matrices, is planned from a sparse file."""
    folder = census.write_headers(model, tmp_path / "model")
    plan = plan_model(ModelConfig(model=str(folder), kv_capacity=64, max_sequence_length=64))
    assert plan.info.num_parameters == model.facts["parameters"]["count"]
    assert plan.traits.memory.weights > 0


def test_answers_end_at_the_published_tokens(tmp_path: Path) -> None:
    stated = [model for model in MODELS if "ends" in model.facts.get("tokenizer", {})]
    assert len(stated) > 60
    for model in stated:
        for name in ("config", "generation_config"):
            (tmp_path / f"{name}.json").write_text(json.dumps(model.facts.get(name, {})))
        found = load_generation_config(DirectoryFiles(tmp_path)).eos_token_ids
        assert sorted(found) == sorted(model.facts["tokenizer"]["ends"].values()), model.name


def test_every_architecture_has_a_published_model() -> None:
    """No file that states Ministral's own architecture was found: the 8B of 2024 states Mistral's."""
    load_families()
    classes = {type(config_of(model.config).get_text_config()).__name__ for model in MODELS}
    held = {each.removesuffix("Config").removesuffix("Text") + "ForCausalLM" for each in classes}
    assert set(FAMILIES.names()) - held == {"MinistralForCausalLM"}


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "openai/gpt-oss-20b", "google/gemma-4-E2B-it"])
def test_tensors_are_those_of_the_installed_class(name: str) -> None:
    model = next(each for each in MODELS if each.name == name)
    assert rebuilt(model.facts)["tensors"]["names"] == model.facts["tensors"]["names"]


def test_published_totals_are_the_counts() -> None:
    """An index states the bytes of a model. That of a model with towers counts them, too."""
    totals = {each.name: each.facts["parameters"] for each in MODELS if "published" in each.facts["parameters"]}
    assert len(totals) >= 7
    for name, facts in totals.items():
        assert facts["published"] == facts["count"] + facts.get("towers", 0), name


def test_every_fact_has_a_source_or_is_named_as_unconfirmed() -> None:
    for model in MODELS:
        facts = model.facts
        assert facts["sources"]["config"] and facts["tensors"]["from"]
        for part in ("tokenizer", "generation_config"):
            missing = [each for each in facts["unconfirmed"] if each.startswith(part)]
            assert part in facts or missing, f"{model.name}: {part}"


def test_readme_claims_the_models_of_the_census() -> None:
    assert README.read_text() == with_table(README.read_text(), table_of(MODELS))
