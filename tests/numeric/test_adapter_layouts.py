"""Adapters in the layouts of older versions of PEFT, and what all accepted files have in common."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from adapter_cases import ALL, ATTENTION, BASES, DENSE, EMBEDDINGS, EXPERTS, NORMS, SPARSE, TIED
from adapter_kit import (
    TOLERANCE,
    AdapterCase,
    adapted_logits,
    adapted_twin,
    assert_logits_of_peft,
    error_of,
    executor_of,
    loaded,
    opened,
    save,
    text_of,
    twin_logits,
)
from adapter_writers import CONFIG, PREFIX, Tensors, edit, expert_factors
from ferrum.core.errors import CheckpointError
from ferrum.runtime.packing import pack_directory
from ferrum.sources.model_source import DirectoryModel
from gguf_twin import write_gguf
from tiny import Case, directory_of, model_of

SHAPES = {"square gate_up": {}, "square down": {"moe_intermediate_size": 64}, "neither": {"moe_intermediate_size": 96}}
KINDS = (DENSE[0], *DENSE[-6:-1], EMBEDDINGS[0], *EMBEDDINGS[7:9], *EMBEDDINGS[-6:], *NORMS[:3], *SPARSE[:6])


def logits_by_peft(case: AdapterCase, directory: Path) -> np.ndarray:
    """Return the logits of the base with an adapter that PEFT reads from a directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = peft.PeftModel.from_pretrained(copy.deepcopy(model_of(case.model)).float(), directory).eval()
    return twin_logits(twin, text_of(case))


@pytest.mark.parametrize("version", ["0.17.1", "0.18.2", None])
@pytest.mark.parametrize("shape", SHAPES)
def test_experts_of_peft_0_17_and_0_18_are_transposed(shape: str, version: str | None, tmp_path) -> None:
    base = BASES["qwen3-moe"]
    model = type(base)(f"{base.name} {shape}", base.config, {**base.changes, **SHAPES[shape]})
    case = AdapterCase(shape, model, EXPERTS)

    def transpose(tensors: Tensors, config: dict[str, Any]) -> None:
        config["peft_version"] = version
        for name in [each for each in tensors if ".experts." in each and ".lora_A." in each]:
            stem = name.removesuffix(".lora_A.weight")
            a, b = expert_factors(tensors, stem, 8)  # [E, r, in], [E, out, r]
            tensors[name] = b.swapaxes(1, 2).reshape(-1, b.shape[1])
            tensors[f"{stem}.lora_B.weight"] = a.transpose(2, 1, 0).reshape(a.shape[2], -1)

    edit(save(adapted_twin(case), tmp_path), transpose)
    assert_logits_of_peft(tmp_path, case)


@pytest.mark.parametrize(
    ("model", "stem", "names"),
    [
        ("qwen3-moe", "mlp.experts.{}", ("gate_proj", "up_proj", "down_proj")),
        ("mixtral", "block_sparse_moe.experts.{}", ("w1", "w3", "w2")),
    ],
)
def test_adapters_of_single_experts_are_those_that_peft_fuses(model: str, stem: str, names, tmp_path) -> None:
    case = AdapterCase("single experts", BASES[model], {**ATTENTION, "target_modules": [*names, "q_proj", "v_proj"]})
    save(adapted_twin(AdapterCase("plain", BASES[model], ATTENTION)), tmp_path)
    sizes = case.model.changes
    inner, count = sizes.get("moe_intermediate_size", 96), sizes.get("num_experts", 4)
    random = np.random.default_rng(3)

    def single(tensors: Tensors, config: dict[str, Any]) -> None:
        config["target_modules"] = case.config["target_modules"]
        config["peft_version"] = "0.14.0"
        for layer in range(2):
            for expert in range(count):
                for name in names:
                    module = f"{PREFIX}model.layers.{layer}.{stem.format(expert)}.{name}"
                    outputs, inputs = (64, inner) if name == names[2] else (inner, 64)
                    tensors[f"{module}.lora_A.weight"] = random.normal(0, 0.2, (3, inputs)).astype(np.float32)
                    tensors[f"{module}.lora_B.weight"] = random.normal(0, 0.2, (outputs, 3)).astype(np.float32)

    edit(tmp_path, single)
    ours, theirs = adapted_logits(tmp_path, case, text_of(case)), logits_by_peft(case, tmp_path)
    assert error_of(ours, theirs) < TOLERANCE


def test_experts_without_an_adapter_stay_as_they_are(tmp_path) -> None:
    case = AdapterCase("few experts", BASES["qwen3-moe"], ATTENTION)
    save(adapted_twin(case), tmp_path)
    module = f"{PREFIX}model.layers.1.mlp.experts.5.up_proj"

    def one(tensors: Tensors, _: dict[str, Any]) -> None:
        tensors[f"{module}.lora_A.weight"] = np.ones((3, 64), np.float32)
        tensors[f"{module}.lora_B.weight"] = np.ones((32, 3), np.float32)

    found = opened(edit(tmp_path, one), directory_of(case.model))
    product = found.changes["model.layers.1.mlp.experts.up_proj.weight"].low_rank
    assert [bool(each.any()) for each in product.b] == [expert == 5 for expert in range(8)]


@pytest.mark.parametrize(
    ("prefix", "new"),
    [
        ("model.layers", "layers"),
        ("model.layers", "model.language_model.layers"),
        ("model.layers", "language_model.model.layers"),
    ],
)
def test_names_of_models_without_a_head_and_inside_of_others_are_known(prefix: str, new: str, tmp_path) -> None:
    case = AdapterCase("names", BASES["qwen3"], ALL)
    plain = adapted_logits(save(adapted_twin(case), tmp_path), case, text_of(case))

    def rename(tensors: Tensors, _: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.replace(PREFIX + prefix, PREFIX + new)] = tensors.pop(name)

    edit(tmp_path, rename)
    np.testing.assert_array_equal(adapted_logits(tmp_path, case, text_of(case)), plain)


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
def test_each_tensor_changes_an_output_and_the_digest(case: AdapterCase, tmp_path) -> None:
    model, rows = directory_of(case.model), case.config.get("trainable_token_indices") or []
    tokens = [*([*rows["embed_tokens"]] if isinstance(rows, dict) else rows), *text_of(case)]
    save(adapted_twin(case), tmp_path)
    executor, whole = executor_of(model), opened(tmp_path, model)
    names = list[str]()
    edit(tmp_path, lambda tensors, _: names.extend(tensors))
    with loaded(executor, whole) as logits:
        expected = logits(tokens)
    for name in [each for each in names if "layers.1." not in each]:
        kept = list[np.ndarray]()

        def zero(tensors: Tensors, _: dict[str, Any], name: str = name, kept: list[np.ndarray] = kept) -> None:
            kept.append(tensors[name])
            tensors[name] = np.zeros_like(tensors[name])

        edit(tmp_path, zero)
        try:
            found = opened(tmp_path, model)
        except CheckpointError as error:
            assert name in str(error)
        else:
            assert found.digest != whole.digest
            with loaded(executor, found) as logits:
                assert (logits(tokens) != expected).any(), name
        edit(tmp_path, lambda tensors, _, name=name, kept=kept: tensors.update({name: kept[0]}))
    assert opened(tmp_path, model).digest == whole.digest


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("lora_alpha", 5, False),
        ("use_rslora", True, False),
        ("alpha_pattern", {"v_proj": 7}, False),
        ("alora_invocation_tokens", [1], False),
        ("trainable_token_indices", [3, 6], False),
        ("alpha_pattern", {"v_proj": 4}, True),
        ("base_model_name_or_path", "another/name", True),
        ("lora_dropout", 0.5, True),
        ("revision", "main", True),
    ],
)
def test_digests_are_of_what_changes_the_result(field: str, value: object, same: bool, tmp_path) -> None:
    rows = {"trainable_token_indices": [3, 5]} if field == "trainable_token_indices" else {}
    case = AdapterCase("digest", BASES[TIED], {**ATTENTION, **rows})
    model, first = directory_of(case.model), tmp_path / "first"
    before = opened(save(adapted_twin(case), first), model).digest
    edit(first, lambda _, config: config.update({field: value}))
    assert (opened(first.rename(tmp_path / "second"), model).digest == before) == same


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_widened_exactly(dtype: torch.dtype, tmp_path) -> None:
    case = AdapterCase("16 bits", BASES["qwen3"], ALL)
    twin = copy.deepcopy(adapted_twin(case)).to(dtype)
    found = opened(save(twin, tmp_path), directory_of(case.model))
    assert {str(each.low_rank.a.dtype) for each in found.changes.values()} == {str(dtype).removeprefix("torch.")}
    rounded = copy.deepcopy(adapted_twin(case))
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if ".lora_" in name:
                parameter.copy_(parameter.to(dtype).float())
    with loaded(executor_of(directory_of(case.model)), found) as logits:
        assert error_of(logits(text_of(case)), twin_logits(rounded, text_of(case))) < TOLERANCE


def test_fused_modules_share_one_a(tmp_path) -> None:
    case = AdapterCase("phi3", BASES["phi3"], ALL)
    found = opened(save(adapted_twin(case), tmp_path), directory_of(case.model)).changes
    for names in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
        first, *others = (found[f"model.layers.0.{name}.weight"].low_rank.a for name in names)
        assert all(each is first for each in others)
    assert (tmp_path / CONFIG).is_file()


@pytest.mark.parametrize("model", ["qwen3", TIED])
def test_embeddings_saved_without_training_are_the_bases(model: str, tmp_path) -> None:
    case = AdapterCase("with embeddings", BASES[model], ATTENTION)
    twin = adapted_twin(case)
    twin.save_pretrained(tmp_path, save_embedding_layers=True)
    found, name = opened(tmp_path, directory_of(case.model)), f"{PREFIX}model.embed_tokens.weight"
    assert all(change.replaced is None for change in found.changes.values())
    assert_logits_of_peft(tmp_path, case, twin)
    edit(tmp_path, lambda tensors, _: tensors.update({name: tensors[name] * np.float32(1.1)}))
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight'.*differs from the base"):
        opened(tmp_path, directory_of(case.model))


@pytest.mark.parametrize("kind", ["Q8_0", "q8_0", "bf16"])
def test_copies_of_the_base_are_known_in_quantised_bases(kind: str, tmp_path) -> None:
    wide = Case("llama-wide", "LlamaConfig", {"hidden_size": 96, "intermediate_size": 96, "num_attention_heads": 3})
    case = AdapterCase("quantised base", wide, {**ATTENTION, "target_modules": ["embed_tokens", "q_proj", "lm_head"]})
    directory, base = directory_of(wide), tmp_path / "base.gguf"
    if kind == "Q8_0":
        write_gguf(directory, base, kind)
    elif kind == "q8_0":
        pack_directory(DirectoryModel(directory), base, kind)
    else:
        copy.deepcopy(model_of(wide)).bfloat16().save_pretrained(base)
    found = opened(save(adapted_twin(case), tmp_path / "adapter"), base)
    with loaded(executor_of(base), found) as logits:
        assert error_of(logits(text_of(case)), twin_logits(adapted_twin(case), text_of(case))) < 0.1

    def shuffle(tensors: Tensors, _: dict[str, Any]) -> None:
        name = f"{PREFIX}model.embed_tokens.base_layer.weight"
        tensors[name] = tensors[name][::-1]

    edit(tmp_path / "adapter", shuffle)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.base_layer\.weight"):
        opened(tmp_path / "adapter", base)
