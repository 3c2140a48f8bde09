"""A GGUF file gives the model that its checkpoint gives: the same bits with float weights, the file's numbers else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType
from safetensors.numpy import load_file, save_file

from family_cases import FAMILY_CASES
from ferrum import LLM, SamplingParams
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.runtime.load import plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.gguf_model import GgufModel, GgufTensors
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import load_executor
from gguf_twin import TOKENIZER, write_gguf
from tiny import Case, directory_of, find

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = Case("llama-gguf", "LlamaConfig", {**WIDE, "head_dim": 32})
(BIASED,) = [Case(*each) for each in FAMILY_CASES if each[0] == "llama-mlp-bias"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 100, 7]


def logits(model: Path, **options: Any) -> np.ndarray:
    with load_executor(str(model), kv_capacity=256, **options) as executor:
        return np.asarray(executor.forward(TOKENS))


@pytest.mark.parametrize("name", ["llama2", "qwen2", "qwen2-tied-mha", "qwen3", "qwen3-gqa7"])
@pytest.mark.parametrize("kernels", ["reference", "auto"])
def test_float_files_have_the_bits_of_their_checkpoint(tmp_path: Path, name: str, kernels: str) -> None:
    directory = directory_of(find(name))
    write_gguf(directory, tmp_path / "model.gguf")
    np.testing.assert_array_equal(logits(tmp_path / "model.gguf", kernels=kernels), logits(directory, kernels=kernels))


@pytest.mark.parametrize(
    "absent",
    [
        r"(?!)",
        r"\.o_proj\.bias",
        r"\.[qkv]_proj\.bias",
        r"\.(gate|up|down)_proj\.bias",
        r"layers\.0\..*\.bias",
        r"_proj\.bias",
    ],
)
def test_a_bias_that_a_file_lacks_is_zero(tmp_path: Path, absent: str) -> None:
    """llama.cpp applies each kind of biases of a layer by itself; a checkpoint has all of them or none."""
    directory, zeroed, lacking = directory_of(BIASED), tmp_path / "zeroed", tmp_path / "lacking"
    tensors = load_file(directory / "model.safetensors")
    left_out = {name for name in tensors if re.search(absent, name)}
    for target in (zeroed, lacking):
        shutil.copytree(directory, target)
    save_file({n: v * 0 if n in left_out else v for n, v in tensors.items()}, zeroed / "model.safetensors")
    save_file({n: v for n, v in tensors.items() if n not in left_out}, lacking / "model.safetensors")
    write_gguf(lacking, tmp_path / "model.gguf")
    found = logits(tmp_path / "model.gguf")
    np.testing.assert_array_equal(found, logits(zeroed))
    assert not left_out or np.abs(found - logits(directory)).max() > 1e-4


def test_a_packed_file_keeps_its_biases(tmp_path: Path) -> None:
    write_gguf(directory_of(BIASED), tmp_path / "model.gguf")
    pack_directory(GgufModel(tmp_path / "model.gguf"), tmp_path / "packed", "q8_0")
    np.testing.assert_array_equal(logits(tmp_path / "packed"), logits(tmp_path / "model.gguf", quantize="q8_0"))


def test_q8_0_has_the_bits_of_the_same_numbers_quantised_on_load(tmp_path: Path) -> None:
    directory = directory_of(LLAMA)
    write_gguf(directory, tmp_path / "model.gguf", "Q8_0")
    quantised = logits(directory, quantize="q8_0", kv_dtype="bfloat16")
    np.testing.assert_array_equal(logits(tmp_path / "model.gguf"), quantised)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_tensors_have_the_numbers_of_the_file_in_the_checkpoints_order(tmp_path: Path, kind: str) -> None:
    held = write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", kind)
    tensors = GgufTensors(tmp_path / "model.gguf")
    assert set(tensors.tensors) == set(held)
    for name, numbers in held.items():
        np.testing.assert_array_equal(np.asarray(tensors.read(name), np.float32), numbers)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_a_plan_equals_the_loaded_model(tmp_path: Path, kind: str) -> None:
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", kind)
    plan = plan_model(ModelConfig(model=str(tmp_path / "model.gguf"), kv_capacity=256))
    with load_executor(str(tmp_path / "model.gguf"), kv_capacity=256) as executor:
        assert (plan.info, plan.traits) == (executor.info, executor.traits)


def test_rope_factors_scale_the_frequencies(tmp_path: Path) -> None:
    """Llama 3.1's files hold the factors as a tensor, in float32."""
    directory = directory_of(find("llama3"))
    write_gguf(directory, tmp_path / "plain.gguf")
    config = GgufTensors(tmp_path / "plain.gguf").config
    assert "rope_scaling" not in config
    theirs, plain = logits(directory), logits(tmp_path / "plain.gguf")
    assert np.abs(theirs - plain).max() > 1e-3
    from ferrum.models.config_reader import FamilyConfig
    from ferrum.models.rope import rope_spec

    factors = [float(np.float32(1 + i)) for i in range(16)]
    values = {"rope_scaling": {"rope_type": "factors", "factors": factors}, "rope_theta": 10000.0}
    plain_spec = rope_spec(FamilyConfig({"rope_theta": 10000.0}), 32)
    assert rope_spec(FamilyConfig(values), 32).frequencies == tuple(
        frequency / factor for frequency, factor in zip(plain_spec.frequencies, factors, strict=True)
    )


@pytest.mark.parametrize(
    ("key", "value", "type"),
    [
        ("llama__attention__clamp_kqv", 8.0, GGUFValueType.FLOAT32),
        ("llama__rope__scaling__type", "su", GGUFValueType.STRING),
        ("llama__expert_shared_count", 8, GGUFValueType.UINT32),
        ("llama__attention__sliding_window", 8, GGUFValueType.UINT32),
    ],
)
def test_a_key_that_is_not_understood_is_refused_by_name(tmp_path: Path, key: str, value: Any, type: Any) -> None:
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", **{key: (value, type)})
    with pytest.raises(Unsupported) as caught:
        load_executor(str(tmp_path / "model.gguf"))
    assert key.replace("__", ".") in str(caught.value)


def test_a_packed_file_keeps_its_tokenizer_template_and_end(tmp_path: Path) -> None:
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", **TOKENIZER)
    pack_directory(GgufModel(tmp_path / "model.gguf"), tmp_path / "packed", "int8")
    with LLM(tmp_path / "model.gguf", quantize="int8") as ours, LLM(tmp_path / "packed") as packed:
        outputs = [llm.chat([{"role": "user", "content": "abcab"}], GREEDY)[0] for llm in (ours, packed)]
        assert ours.client.tokenizer.eos_token_ids == packed.client.tokenizer.eos_token_ids == (9,)
    assert outputs[0].prompt_token_ids == [8, 2, 8]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


@pytest.mark.parametrize(("number", "pooling"), [(None, "mean"), (0, "mean"), (1, "mean"), (3, "last"), (2, None)])
def test_a_file_names_its_pooling(tmp_path: Path, number: int | None, pooling: str | None) -> None:
    """The numbers are those of the format's library: none, mean, CLS, last."""
    named = {} if number is None else {"llama__pooling_type": (number, GGUFValueType.UINT32)}
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", **named)
    model = GgufModel(tmp_path / "model.gguf")
    pack_directory(model, tmp_path / "packed", "q8_0")
    for source in (model, DirectoryModel(tmp_path / "packed")):
        if pooling is None:
            with pytest.raises(Unsupported, match="pooling by cls"):
                source.pooling()
        else:
            assert source.pooling().value == pooling


def test_a_packed_file_keeps_its_recommended_sampling(tmp_path: Path) -> None:
    number = {"general__sampling__temp": (0.25, GGUFValueType.FLOAT32)}
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", **TOKENIZER, **number)
    pack_directory(GgufModel(tmp_path / "model.gguf"), tmp_path / "packed", "q8_0")
    for source in (GgufModel(tmp_path / "model.gguf"), DirectoryModel(tmp_path / "packed")):
        found = source.generation_config()
        assert (found.sampling, found.eos_token_ids) == ({"temperature": 0.25}, (9,))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(data[:-64])
    with pytest.raises(CheckpointError):
        load_executor(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("count", [pytest.param(100_000, marks=pytest.mark.soak), 2_000])
def test_mutations_of_a_file_are_read_or_refused(tmp_path: Path, count: int) -> None:
    write_gguf(directory_of(LLAMA), tmp_path / "model.gguf", "Q4_0")
    whole = (tmp_path / "model.gguf").read_bytes()
    head = whole[:6000]
    rng, target, refused = np.random.default_rng(0), tmp_path / "mutated.gguf", 0
    for _ in range(count):
        changed = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(head)))
            width = int(rng.choice((1, 4, 8)))
            changed[at : at + width] = rng.bytes(width) if rng.random() < 0.5 else b"\xff" * width
        target.write_bytes(changed if rng.random() < 0.9 else changed[: int(rng.integers(len(changed)))])
        try:
            GgufTensors(target)
        except FerrumError:
            refused += 1
    assert refused > count // 3
