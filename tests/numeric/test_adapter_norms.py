"""Adapters that replace norms: PEFT's logits from its directories and from GGUF files, on both kinds of bases."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapter_cases import ATTENTION, BASES, NORM_NAMES, NORMS
from adapter_kit import (
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
from adapter_writers import FILE, PREFIX, edit, gguf_tensors, write_gguf_adapter
from changed_sites import Changes, norm_changes, site_of, twin_sites, uses
from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change, SiteKind
from ferrum.kernels.interface import StepTables
from native_twin import TEAMS, Twin, group_of, normal, same_bits, shape_of, tables_of
from tiny import BASE, directory_of

PAIRS = {"target_modules": ["o_proj"], "modules_to_save": NORM_NAMES}


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.name)
def test_logits_are_those_of_peft(case: AdapterCase, tmp_path) -> None:
    twin = adapted_twin(case)
    expected, save_to = twin_logits(twin, text_of(case)), save(twin, tmp_path)
    held = load_file(save_to / FILE)
    assert any(values.ndim == 1 and "norm" in name for name, values in held.items())
    assert error_of(adapted_logits(save_to, case, text_of(case)), expected) < TOLERANCE


def converted_base(directory: Path, target: Path) -> Path:
    """Copy a Gemma with 1 added to the weights of norms, as its GGUF files have them and `GgufModel` reads them."""
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "norm_offset": 0.0}))
    tensors = load_file(target / "model.safetensors")
    added = {name: values + np.float32(name.endswith("norm.weight")) for name, values in tensors.items()}
    save_file(added, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("llama2", "llama"),
        ("gemma3", "gemma3"),
        ("starcoder2", "starcoder2"),
        ("olmo2", "olmo2"),
        ("granite", "granite"),
    ],
)
def test_norms_in_gguf_files_are_those_of_the_converter(model: str, kind: str, tmp_path) -> None:
    """The converter passes weights of norms on as the model's; of Gemma it adds 1."""
    case = AdapterCase(f"gguf norms {model}", BASES[model], {**ATTENTION, "lora_alpha": 8, **PAIRS})
    expected = twin_logits(adapted_twin(case), text_of(case))
    stored = gguf_tensors(save(adapted_twin(case), tmp_path), kind, {**BASE, **case.model.changes})
    assert {"output_norm.weight", "blk.1.attn_norm.weight", "blk.1.post_attention_norm.weight"} & stored.keys()
    write_gguf_adapter(tmp_path / "a.gguf", kind, stored)
    assert error_of(adapted_logits(tmp_path / "a.gguf", case, text_of(case)), expected) < TOLERANCE
    if model != "gemma3":
        return
    base = converted_base(directory_of(case.model), tmp_path / "base")
    for adapter in (tmp_path, tmp_path / "a.gguf"):
        with loaded(executor_of(base), opened(adapter, base)) as logits:
            assert error_of(logits(text_of(case)), expected) < TOLERANCE


NORM = "blk.0.attn_norm"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({f"{NORM}.weight": np.ones(47)}, "expected shape [48], found [47]"),
    "a matrix": ({f"{NORM}.weight": np.ones((2, 48))}, "expected shape [48], found [2, 48]"),
    "a bias that the model lacks": (
        {f"{NORM}.bias": np.ones(48)},
        "the model has no model.layers.0.input_layernorm.bias",
    ),
    "not finite": ({"output_norm.weight": np.full(48, np.inf)}, "numbers that are not finite"),
    "a pair": (
        {f"{NORM}.weight.lora_a": np.ones((4, 48)), f"{NORM}.weight.lora_b": np.ones((1, 4))},
        "only the weight and the bias can be replaced",
    ),
    "a norm of no layer": ({"blk.0.ssm_norm.weight": np.ones(48)}, "no tensor blk.0.ssm_norm.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_norms_in_gguf_files_that_cannot_be_applied_are_refused_by_name(name: str, tmp_path) -> None:
    tensors, words = REFUSED[name]
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors)
    pattern = ".*".join(map(re.escape, (next(iter(tensors)), words)))
    with pytest.raises((CheckpointError, Unsupported), match=pattern):
        opened(tmp_path / "a.gguf", directory_of(BASES["qwen3"]))


def test_activated_adapters_replace_no_norms(tmp_path) -> None:
    """PEFT applies them to the tokens before the invocation, too."""
    tensors = {"output_norm.weight": np.ones(48)}
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors, adapter__alora__invocation_tokens=[5, 7])
    with pytest.raises(Unsupported, match=r"output_norm\.weight.*invocation"):
        opened(tmp_path / "a.gguf", directory_of(BASES["qwen3"]))


def test_norms_equal_to_the_bases_change_no_bits(tmp_path) -> None:
    """mergekit saves all norms, most of which are those of the base."""
    case = AdapterCase("equal norms", BASES["gemma3"], {**ATTENTION, **PAIRS})
    model = directory_of(case.model)
    base = load_file(model / "model.safetensors")

    def untrained(tensors: dict[str, np.ndarray], _: dict[str, Any]) -> None:
        for name in list(tensors):
            if "norm" in name:
                tensors[name] = base[name.removeprefix(PREFIX)]

    edit(save(adapted_twin(case), tmp_path), untrained)
    found = adapted_logits(tmp_path, case, text_of(case), "native")
    edit(tmp_path, lambda tensors, _: [tensors.pop(name) for name in list(tensors) if "norm" in name])
    same_bits(found, adapted_logits(tmp_path, case, text_of(case), "native"))


ADAPTERS = uses((0, 1.0, [0, 1, 2, 9]), (1, 1.0, range(4, 9)), (5, 1.0, [3]), (2, 1.0, [18, 22]))
"""Rows of a step of 23; slot 5 is empty."""


def step(groups: tuple[Any, ...] = ()) -> StepTables:
    return tables_of(np.random.default_rng(0), [(0, 5), (70, 1), (0, 17)], groups)._replace(adapters=ADAPTERS)


@pytest.mark.parametrize("team", TEAMS)
def test_replaced_norms_equal_the_reference(team) -> None:
    """Rows have the bits of a norm with their weight, and rows without an adapter those of the base's."""
    rng, twin = np.random.default_rng(1), Twin(*team)
    twin.begin(step())
    for columns in (1, 33, 192):
        x, delta, weight, bias = (
            normal(rng, *shape) for shape in ((23, columns), (23, columns), (columns,), (columns,))
        )
        only_bias = (Change(bias=normal(rng, columns)),)
        entries: list[Changes] = [norm_changes(rng, columns), norm_changes(rng, columns, bias=True), only_bias]
        sites = twin_sites(twin, SiteKind.NORM, [(columns, 1)], entries)
        for own, centred in ((None, False), (bias, False), (bias, True)):
            expected = twin.native.norm(x, weight, 1e-6, own, centred)
            for adapter, (change,) in zip((ADAPTERS[0], ADAPTERS[1], ADAPTERS[3]), entries, strict=True):
                assert change is not None
                new = weight if change.replaced is None else change.replaced.values.ravel()
                other = own if change.bias is None else change.bias
                expected[adapter.rows] = twin.native.norm(x[adapter.rows], new, 1e-6, other, centred)
            for kernels, site in zip((twin.native, twin.reference), sites, strict=True):
                same_bits(kernels.norm(x, weight, 1e-6, own, centred, site), expected)
            (total, ours), (_, theirs) = (
                kernels.add_norm(x, delta, weight, 1e-6, own, centred, 0.22, site)
                for kernels, site in zip((twin.native, twin.reference), sites, strict=True)
            )
            same_bits(ours, theirs)
            same_bits(ours, twin.native.norm(total, weight, 1e-6, own, centred, sites[0]))


@pytest.mark.parametrize("norm_last", [False, True])
@pytest.mark.parametrize("team", TEAMS)
def test_replaced_norms_of_heads_equal_the_reference(team, norm_last: bool) -> None:
    """Queries and the stored keys, which attention reads, have the norms of their rows."""
    rng, group = np.random.default_rng(2), group_of(40, 2, "float32")
    twin, shape = Twin(*team, group), shape_of(group, 3)
    twin.begin(step((group,)))
    q, k, v = (normal(rng, 23, heads * 40) for heads in (6, 2, 2))
    norms, frequencies = (normal(rng, 40), normal(rng, 40)), tuple(10.0 ** -np.arange(20))
    entries: list[Changes] = [norm_changes(rng, 40, 40), (None, *norm_changes(rng, 40)), (*norm_changes(rng, 40), None)]
    results = []
    for kernels in (twin.native, twin.reference):
        site = site_of(kernels, SiteKind.NORM, [(40, 1)] * 2, entries)
        rope = kernels.rope_table(frequencies, 1.0, 128)
        kernels.begin(kernels.tables)  # fills the table
        found = []
        for given in (None, site):
            turned = kernels.rope_store(q, k, v, shape, rope, *norms, 1e-6, None, norm_last, None, given)
            found += [np.array(turned), np.array(kernels.attention(turned, shape))]
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        same_bits(ours, theirs)
    plain, before, turned, after = results[0]
    assert np.flatnonzero((plain != turned).any(axis=1)).tolist() == [0, 1, 2, 9, 18, 22]
    assert (before[5] != after[5]).any(), "row 5 has another norm of its key alone"
