"""Adapters that `ferrum quantize --lora` merges give the logits of PEFT's merged models."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
from peft.tuners.lora import LoraLayer
from safetensors.numpy import load_file

from adapter_cases import ALL, ATTENTION, BASES, DENSE, EMBEDDINGS, NORMS, SPARSE, TIED
from adapter_kit import (
    LENGTH,
    TOLERANCE,
    AdapterCase,
    adapted_logits,
    adapted_twin,
    error_of,
    executor_of,
    loaded,
    opened,
    save,
    text_of,
    twin_logits,
)
from adapter_writers import FILE, PREFIX, Tensors, edit, gguf_tensors, write_gguf_adapter
from ferrum.cli.main import execute
from ferrum.core.lora_option import AdapterToMerge
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.scale_search import THOROUGH
from ferrum.runtime.adapters.merged_adapters import open_adapters
from ferrum.runtime.calibration import Calibrator
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.packed import read_header
from gguf_twin import write_gguf
from merged_kit import merged_logits, merged_store, merged_twin
from packed_kit import logits_of, packed_of
from tiny import BASE, Case, directory_of, model_of
from tiny_with_tokenizer import spoken

REFUSED = ("lora_bias", "lora_bias without biases", "alora", "alora that is not invoked")
APART = (
    *("embedding of a tied head", "scaled embedding", "tied head", "head with a softcap", "weights tied"),
    *("dora of a tied embedding", "dora of a scaled embedding", "token rows of both, tied", "token rows and tied head"),
)
"""PEFT merges them into one matrix, although it computes with two before."""

CASES = [
    *(case for case in (*DENSE, *EMBEDDINGS, *NORMS, *SPARSE) if case.name not in REFUSED),
    AdapterCase("lora_bias and biases", BASES[TIED], {**ATTENTION, "lora_bias": True}),
]
PLAIN = AdapterCase("all-linear", BASES["llama3"], ALL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_models_that_peft_merged(case: AdapterCase, tmp_path: Path) -> None:
    twin = adapted_twin(case) if case.name in APART else merged_twin(case)
    adapter = AdapterToMerge(str(save(adapted_twin(case), tmp_path)))
    ours = merged_logits(directory_of(case.model), [adapter], text_of(case))
    assert error_of(ours, twin_logits(twin, text_of(case))) < TOLERANCE


def test_several_adapters_add_with_their_scales(tmp_path: Path) -> None:
    cases = [PLAIN, AdapterCase("attention", BASES["llama3"], ATTENTION)]
    for case, name in zip(cases, "ab", strict=True):
        save(adapted_twin(case), tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = peft.PeftModel.from_pretrained(copy.deepcopy(model_of(PLAIN.model)).float(), tmp_path / "a", "a")
        twin.load_adapter(tmp_path / "b", "b")
        for module in twin.modules():
            if isinstance(module, LoraLayer) and "b" in module.scaling:
                module.set_scale("b", -0.75)
        merged = twin.merge_and_unload(adapter_names=["a", "b"]).eval()
    adapters = [AdapterToMerge(str(tmp_path / "a")), AdapterToMerge(str(tmp_path / "b"), -0.75)]
    ours = merged_logits(directory_of(PLAIN.model), adapters, text_of(PLAIN))
    assert error_of(ours, twin_logits(merged, text_of(PLAIN))) < TOLERANCE


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_gguf_files_merge_as_they_are_served(kind: str, tmp_path: Path) -> None:
    """The converter of llama permutes rows of q and k in both files."""
    wide = Case("llama-wide", "LlamaConfig", {"hidden_size": 96, "intermediate_size": 96, "num_attention_heads": 3})
    case = AdapterCase("gguf", wide, ALL)
    save(adapted_twin(case), tmp_path)
    tensors = gguf_tensors(tmp_path, "llama", {**BASE, **case.model.changes})
    adapter, base = tmp_path / "a.gguf", tmp_path / "base.gguf"
    write_gguf_adapter(adapter, "llama", tensors)
    write_gguf(directory_of(case.model), base, kind)
    with loaded(executor_of(base), opened(adapter, base)) as served:
        expected = served(text_of(case))
    assert error_of(merged_logits(base, [AdapterToMerge(str(adapter))], text_of(case)), expected) < TOLERANCE


def test_a_bias_of_b_is_within_the_magnitude(tmp_path: Path) -> None:
    """PEFT has no such adapters: they are served by the formula of the paper."""
    case = AdapterCase("dora", BASES["llama-linear"], {**ATTENTION, "target_modules": ["q_proj"], "use_dora": True})

    def add_biases(tensors: Tensors, _: dict[str, Any]) -> None:
        for name in [each for each in tensors if each.endswith(".lora_B.weight")]:
            tensors[name.replace("weight", "bias")] = tensors[name].sum(axis=1)

    edit(save(adapted_twin(case), tmp_path), add_biases)
    expected = adapted_logits(tmp_path, case, text_of(case))
    ours = merged_logits(directory_of(case.model), [AdapterToMerge(str(tmp_path))], text_of(case))
    assert error_of(ours, expected) < TOLERANCE


def test_weights_of_16_bits_are_merged_in_float32(tmp_path: Path) -> None:
    copy.deepcopy(model_of(PLAIN.model)).bfloat16().save_pretrained(tmp_path / "base")
    save(adapted_twin(PLAIN), tmp_path / "adapter")
    store, tensors = (
        merged_store(tmp_path / "base", AdapterToMerge(str(tmp_path / "adapter"))),
        load_file(tmp_path / "adapter" / FILE),
    )
    name = "model.layers.1.mlp.down_proj"
    a, b = (tensors[f"{PREFIX}{name}.lora_{each}.weight"].astype(np.float64) for each in "AB")
    base = Checkpoint(tmp_path / "base").read(f"{name}.weight")
    expected = base.astype(np.float64) + 2 * b @ a
    np.testing.assert_array_max_ulp(store.read(f"{name}.weight"), expected.astype(np.float32), 1)
    assert base.dtype == store.read(EMBEDDING).dtype and base.dtype.itemsize == 2


TIES = {"weights tied": True, "token rows of a tied head": True, "saved tied": True, "embedding of a tied head": False}


@pytest.mark.parametrize("name", TIES)
def test_a_head_stays_tied_if_it_changes_like_the_embedding(name: str, tmp_path: Path) -> None:
    (case,) = [each for each in EMBEDDINGS if each.name == name]
    store = merged_store(directory_of(case.model), AdapterToMerge(str(save(adapted_twin(case), tmp_path))))
    assert (HEAD not in store.tensors, store.config["tie_word_embeddings"]) == (TIES[name], TIES[name])


def packed(case: AdapterCase, out: Path, *options: str) -> Path:
    assert execute(["quantize", str(directory_of(case.model)), str(out), "--quantize", "q8_0", *options]) == 0
    return out


def test_the_command_packs_the_weights_that_peft_merges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(adapted_twin(PLAIN), tmp_path / "adapter")
    merged_twin(PLAIN).save_pretrained(tmp_path / "merged")
    out = packed(PLAIN, tmp_path / "out", "--lora", f"name={path}")
    assert f"{path}, scale 1" in capsys.readouterr().out
    pack_directory(DirectoryModel(tmp_path / "merged"), tmp_path / "twin", "q8_0", search=THOROUGH)
    ours, theirs = (load_file(each / "model.safetensors") for each in (out, tmp_path / "twin"))
    assert ours.keys() == theirs.keys()
    assert min((ours[name] == theirs[name]).mean() for name in ours) > 0.98, "PEFT rounds products, too"


def test_a_packed_head_that_was_tied_is_a_matrix(tmp_path: Path) -> None:
    (case,) = [each for each in EMBEDDINGS if each.name == "embedding of a tied head"]
    out = packed(case, tmp_path / "out", "--lora", str(save(adapted_twin(case), tmp_path / "adapter")))
    ours = logits_of(out, case.model.name, kernels="reference")
    assert HEAD in Checkpoint(out).tensors
    assert error_of(ours[:LENGTH], twin_logits(adapted_twin(case), text_of(case))) < 0.05


def test_a_packed_model_is_known_by_what_was_merged(tmp_path: Path) -> None:
    path = save(adapted_twin(PLAIN), tmp_path / "adapter")
    tiny = json.dumps({"path": str(path), "scale": 1e-9})  # changes no quantised number
    outs = [packed_of("llama3", "q8_0"), packed(PLAIN, tmp_path / "tiny", "--lora", tiny)]
    outs += [packed(PLAIN, tmp_path / f"{count}", *["--lora", str(path)] * count) for count in (1, 2)]
    digest = opened(path, directory_of(PLAIN.model)).digest.hex()
    found = [read_header(Checkpoint(each)).adapters for each in outs]
    assert found == [(), ((digest, 1e-9),), ((digest, 1.0),), ((digest, 1.0),) * 2]
    assert len({DirectoryModel(each).digest(tmp_path) for each in outs}) == len(outs)


def test_inputs_are_measured_in_the_merged_model(tmp_path: Path) -> None:
    model, text = DirectoryModel(spoken("llama3")), "what it reads " * 40
    path = save(adapted_twin(PLAIN), tmp_path / "adapter")
    adapters = open_adapters(model.name, model.checkpoint(), [AdapterToMerge(str(path))])
    merged_twin(PLAIN).save_pretrained(tmp_path / "merged")
    (tmp_path / "merged" / "tokenizer.json").write_bytes(model.read_file("tokenizer.json") or b"")
    found = []
    for source, merge in ((model, adapters), (DirectoryModel(tmp_path / "merged"), ())):
        with Calibrator(source, text, adapters=merge) as calibrator:
            found.append(calibrator.run(lambda _: None))
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, err_msg=name)
    pack_directory(model, tmp_path / "out", "q4_0", importance=ours, adapters=adapters)
    assert read_header(Checkpoint(tmp_path / "out")).calibrated
