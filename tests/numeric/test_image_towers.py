"""Towers of images: pixels and rows next to `transformers`, and equal bits on all kernels, in any parts and company."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError
from ferrum.images.qwen_images import MAX_TOKENS
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import StepTables
from ferrum.kernels.op_attributes import EncoderShape
from ferrum.kernels.reference import ReferenceKernels
from ferrum.models.decoder import list_parameters
from ferrum.models.tensor_names import Runs
from ferrum.models.tower_spec import tower_spec
from ferrum.runtime.image_tower import ImageTower, builder_of, open_tower
from ferrum.sources.checkpoint import tower_names
from ferrum.sources.open_model import open_model
from image_models import CASES, random_image, seeing_directory, twin_rows
from native_twin import TIERS, normal, require_native, same_bits

PUBLISHED = Path(__file__).parents[1] / "data" / "published_towers"
SIZES = (37, 61), (8, 14), (200, 41), (32, 32), (5, 90)


@cache
def tower(name: str, kernels: str) -> ImageTower:
    directory = str(seeing_directory(name))
    return open_tower(open_model(directory), ModelConfig(model=directory, kernels=kernels))


def rows_of(of: ImageTower, width: int, height: int) -> np.ndarray:
    work = of.rows_of(of.prepare(random_image(width, height)))
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_rows_equal_those_of_the_twin_within_rounding(name: str, size: tuple[int, int]) -> None:
    ours, theirs = rows_of(tower(name, "reference"), *size), twin_rows(name, random_image(*size))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("name", CASES)
def test_native_rows_equal_the_reference_bit_for_bit(name: str) -> None:
    require_native()
    for size in SIZES:
        same_bits(rows_of(tower(name, "native"), *size), rows_of(tower(name, "reference"), *size))


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_tensors_of_a_published_tower_are_those_of_transformers(path: Path) -> None:
    facts = json.loads(path.read_text())
    config, processor = facts["config"], facts["processor"]
    spec = tower_spec(config, processor)
    assert spec is not None
    asks, sizes = list_parameters(lambda source, forms: builder_of(spec, source, forms), spec.build), Counter[str]()
    for own, shape in asks.shapes.items():
        (source,) = asks.views[own].sources if own in asks.views else (own,)
        rows = asks.views[own].rows if own in asks.views else None
        count = rows.parts * rows.whole if isinstance(rows, Runs) else shape[0]  # of positions, the first ones are read
        sizes[source] += count * prod(shape[1:])  # one tensor may have queries, keys and values
    short = {**config, "text_config": {**config["text_config"], "num_hidden_layers": 1}}
    with torch.device("meta"):
        twin = getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**short))
    wanted = {name.removeprefix("model."): each.numel() for name, each in twin.state_dict().items()}
    seeing = ("visual.", "vision_tower.", "embed_vision.", "multi_modal_projector.")
    assert sizes == {name: size for name, size in wanted.items() if name.startswith(seeing)}
    images = spec.images(len, lambda text: [])
    assert {size: len(images.run_of(*map(int, size.split("x"))).rows) for size in facts["rows"]} == facts["rows"]


def test_tensors_of_qwen3_5_are_those_of_transformers() -> None:
    config = transformers.Qwen3_5Config()
    values = {**config.to_dict(), "architectures": ["Qwen3_5ForConditionalGeneration"]}
    values["text_config"]["hidden_size"] = config.vision_config.out_hidden_size
    spec = tower_spec(values, {"size": {"shortest_edge": 65536, "longest_edge": 16777216}})
    assert spec is not None and spec.rows == 4 * MAX_TOKENS
    asks = list_parameters(lambda source, forms: builder_of(spec, source, forms), spec.build)
    with torch.device("meta"):
        twin = transformers.AutoModel.from_config(config.vision_config).state_dict()
    names = {each for own in asks.shapes for each in (asks.views[own].sources if own in asks.views else (own,))}
    assert names == {f"visual.{each}" for each in twin}
    assert sum(map(prod, asks.shapes.values())) == sum(each.numel() for each in twin.values())


GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {"model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 0},
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
"""The tower of the published `config.json` of google/gemma-3-27b-it, with one of its 27 layers."""


def test_names_and_shapes_of_a_published_tower_are_those_of_transformers() -> None:
    spec = tower_spec(GEMMA3, {"size": {"height": 896, "width": 896}})
    assert spec is not None and (spec.side, spec.merge, spec.pixels) == (64, 4, 588)
    asks = list_parameters(lambda source, forms: builder_of(spec, source, forms), spec.build)
    config = transformers.AutoConfig.for_model(**GEMMA3)
    with torch.device("meta"):
        twin = transformers.Gemma3Model(config)
    theirs = {name: tuple(each.shape) for name, each in twin.named_parameters()}
    own = {name: shape for name, shape in theirs.items() if not name.startswith("language_model")}
    published = {name.replace("vision_tower.", "vision_tower.vision_model.", 1): name for name in own}
    assert tower_names(published, GEMMA3).keys() == own.keys()
    sources = {name: asks.views[name].sources[0] if name in asks.views else name for name in asks.shapes}
    assert set(sources.values()) == own.keys()
    for name, source in sources.items():
        shape = own[source]
        flat = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else shape
        assert asks.shapes[name] == (flat[::-1] if source.endswith("mm_input_projection_weight") else flat)


def test_tensors_of_a_tower_for_sounds_are_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "hears"
    copytree(seeing_directory("gemma4-layered"), directory)
    sounds = {f"model.{part}.layers.0.weight": torch.zeros(3) for part in ("audio_tower", "embed_audio")}
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | sounds, directory / "model.safetensors", {"format": "pt"})
    opened = open_tower(open_model(str(directory)), ModelConfig(model=str(directory), kernels="reference"))
    same_bits(rows_of(opened, 8, 14), rows_of(tower("gemma4-layered", "reference"), 8, 14))


@pytest.mark.parametrize("tokens", [255, 100])
def test_tokens_that_are_no_square_of_blocks_are_refused(tokens: int) -> None:
    with pytest.raises(CheckpointError, match="the square of a divisor of 64"):
        tower_spec({**GEMMA3, "mm_tokens_per_image": tokens}, {})


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
@pytest.mark.parametrize("tier", ["reference", *TIERS])
def test_other_images_change_no_bit_of_attention(tier: str, format: Any) -> None:
    kernels: Any = ReferenceKernels() if tier == "reference" else NativeKernels(tier, 2)
    kernels.allocate(())
    counts, shape = (70, 1, 129), EncoderShape(3, 21, 0.3, format)
    q, k, v = (normal(np.random.default_rng(seed), sum(counts), 63) for seed in range(3))
    bounds = np.cumsum((0, *counts))
    kernels.begin(tables_of_frames(counts))
    together = np.array(kernels.attend_all(q, k, v, shape))
    for begin, end in pairwise(map(int, bounds)):
        kernels.begin(tables_of_frames((end - begin,)))
        same_bits(kernels.attend_all(q[begin:end], k[begin:end], v[begin:end], shape), together[begin:end])
    if tier != "reference":
        reference = ReferenceKernels()
        reference.begin(tables_of_frames(counts))
        same_bits(together, reference.attend_all(q, k, v, shape))


def tables_of_frames(counts: tuple[int, ...]) -> Any:
    """Return the tables of frames with these numbers of rows."""
    rows, none = sum(counts), np.array([], np.int32)
    bounds = np.cumsum((0, *counts)).astype(np.int32)
    return StepTables(np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32), bounds, (), none, none)
