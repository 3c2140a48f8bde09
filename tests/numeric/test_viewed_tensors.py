"""Views of a checkpoint's tensors: fused, stacked and transposed parameters, and matrices that no scheme quantises."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError
from ferrum.models.builder import Builder
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import llama
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import Runs, View
from ferrum.nn.block import GatedMlp
from ferrum.quant.gguf_blocks import weight_of
from ferrum.quant.schemes import SCHEMES
from ferrum.runtime.load import plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint, TensorStore
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.tensor_file import TensorInfo
from ferrum.sources.viewed_tensors import ViewedTensors, index_of
from packed_kit import logits_of
from quantized_kit import BF16, save
from tiny import directory_of, find

DOWN = "model.layers.0.mlp.down_proj.weight"
EXPERTS, INNER, HIDDEN = 3, 4, 6
FUSED = np.arange(EXPERTS * 2 * INNER * HIDDEN).reshape(EXPERTS, 2 * INNER, HIDDEN).astype(np.float32)
TURNED = np.ascontiguousarray(FUSED.swapaxes(1, 2))
BIAS = np.arange(EXPERTS * 2 * INNER).reshape(EXPERTS, -1).astype(BF16)
TENSORS = {
    "fused": FUSED,
    "turned": TURNED,
    "bias": BIAS,
    **{f"own.{index}": FUSED[index].astype(BF16) for index in range(EXPERTS)},
}
OWN = tuple(f"own.{index}" for index in range(EXPERTS))
FLAT = FUSED.reshape(-1, HIDDEN)
VIEWS = {
    "first": (View(("fused",), slice(0, 8)), FLAT[:8]),
    "rest": (View(("fused",), slice(8, 24)), FLAT[8:]),
    "gates": (View(("fused",), Runs(EXPERTS, 2 * INNER, 0, INNER)), FUSED[:, :INNER].reshape(-1, HIDDEN)),
    "ups": (View(("fused",), Runs(EXPERTS, 2 * INNER, INNER, INNER)), FUSED[:, INNER:].reshape(-1, HIDDEN)),
    "even": (View(("turned",), None, slice(0, None, 2), EXPERTS), FUSED[:, ::2].reshape(-1, HIDDEN)),
    "odd": (View(("turned",), None, slice(1, None, 2), EXPERTS), FUSED[:, 1::2].reshape(-1, HIDDEN)),
    "narrow": (View(("turned",), None, slice(0, 8)), TURNED.reshape(-1, 8)),
    "stack": (View(OWN), FLAT),
    "stacked part": (View(OWN, Runs(EXPERTS, 2 * INNER, 1, 4)), FUSED[:, 1:5].reshape(-1, HIDDEN)),
    "every other row": (View(("fused",), Runs(EXPERTS, 8, 1, 4, step=2)), FUSED[:, 1::2].reshape(-1, HIDDEN)),
    "halves": (View(("fused",), Runs(EXPERTS, 8, 1, 7, pairs=2)), FUSED[:, [1, 3, 2, 4, 5, 6, 7]].reshape(-1, HIDDEN)),
    "even bias": (View(("bias",), slice(0, None, 2)), BIAS.reshape(-1)[::2]),
}
"""Views of the tensors, and their numbers."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("views")
    save(TENSORS, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return Checkpoint(directory)


def test_a_view_has_the_chosen_numbers_and_hides_its_sources(store: Checkpoint) -> None:
    views = {name: view for name, (view, _) in VIEWS.items()}
    shapes = {name: wanted.shape for name, (_, wanted) in VIEWS.items()}
    viewed = ViewedTensors(store, views, shapes)
    assert viewed.tensors.keys() == VIEWS.keys()
    for name, (_, wanted) in VIEWS.items():
        found, info = viewed.read(name), viewed.tensors[name]
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
        assert (info.shape, info.nbytes, found.dtype.name) == (wanted.shape, found.nbytes, info.format)
        viewed.forget(name)
    assert np.shares_memory(viewed.read("first"), store.read("fused"))
    assert ViewedTensors(store, {"bias": View(("fused",))}, {"bias": (1,)}).tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("blocks", [False, True])
def test_a_part_of_each_of_many_tensors_needs_its_own_memory_only(tmp_path: Path, blocks: bool) -> None:
    """A quarter of each of eight experts, as a rank takes it."""
    store: TensorStore = Blocks(*[("Q6_K", 210)] * 8)
    if not blocks:
        save(
            {f"own.{index}": np.full((32, 512), index, np.float32) for index in range(8)},
            tmp_path / "model.safetensors",
        )
        (tmp_path / "config.json").write_text("{}")
        store = Checkpoint(tmp_path)
    view = View(tuple(f"own.{index}" for index in range(8)), part=Runs(8, 32, 8, 8))
    viewed = ViewedTensors(store, {"x": view}, {"x": (64, 512)}, wholes={"x": (256, 512)})
    tracemalloc.start()
    found = viewed.blocks("x") if blocks else viewed.read("x")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    wanted = np.concatenate([store.read(f"own.{index}")[8:16] for index in range(8)])
    np.testing.assert_array_equal(found.dequantize() if blocks else found, wanted)
    assert most < 1.5 * (64 * 420 if blocks else wanted.nbytes)


@pytest.mark.parametrize(
    ("view", "shape", "named"),
    [
        (View(("fused", "absent")), (48, 6), "'absent' is missing; 'x' needs it"),
        (View(("fused",), slice(0, 20)), (20, 6), r"'fused' in .*: expected shape \[20, 6\], found \[3, 8, 6\]"),
        (View(("fused",)), (24, 7), r"'fused' in .*: expected shape \[24, 7\], found \[3, 8, 6\]"),
        (View(("own.0", "fused")), (16, 6), r"'fused' in .*: expected shape \[8, 6\], found \[3, 8, 6\]"),
        (View(("turned",), None, slice(0, 4), 3), (12, 6), r"expected shape \[18, 4\], found \[3, 6, 8\]"),
        (View(("bias",), slice(1, None, 2)), (13,), r"'bias' in .*: expected shape \[26\], found \[3, 8\]"),
    ],
)
def test_a_tensor_that_does_not_fit_its_views_is_named(
    store: Checkpoint, view: View, shape: tuple[int, ...], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        ViewedTensors(store, {"x": view}, {"x": shape})


class Blocks(TensorStore):
    """Two matrices [32, 512] of random GGUF blocks."""

    directory, config, headless = Path("blocks"), {}, False

    def __init__(self, *types: tuple[str, int]) -> None:
        rng = np.random.default_rng(0)
        self.weights = {
            f"own.{index}": weight_of(type, rng.integers(0, 60, (32, 2, nbytes), np.uint8))
            for index, (type, nbytes) in enumerate(types)
        }
        self.tensors = {name: TensorInfo("F32", weight.shape, 0, 64) for name, weight in self.weights.items()}

    def block_format(self, name: str) -> str:
        return self.weights[name].format

    def blocks(self, name: str) -> Any:
        return self.weights[name]

    def read(self, name: str) -> Any:
        return self.weights[name].dequantize()


@pytest.mark.parametrize("rows", [None, slice(0, 40), Runs(2, 32, 3, 16)])
@pytest.mark.parametrize("second", [("Q6_K", 210), ("Q4_K", 144)])
def test_rows_of_blocks_stay_in_their_blocks(rows: Any, second: tuple[str, int]) -> None:
    """Types of one format are joined as rows; those of two become floats."""
    store, taken = Blocks(("Q6_K", 210), second), np.arange(64)[slice(None) if rows is None else index_of(rows)]
    # Another view takes the last rows, as those of fused tensors do.
    views = {"x": View(("own.0", "own.1"), rows), "y": View(("own.0", "own.1"), slice(63, 64))}
    viewed = ViewedTensors(store, views, {"x": (len(taken), 512), "y": (1, 512)})
    wanted = np.concatenate([store.read("own.0"), store.read("own.1")])[taken]
    np.testing.assert_array_equal(viewed.read("x"), wanted)
    assert viewed.block_format("x") == (None if second[0] == "Q4_K" else "q6_k")
    if second[0] != "Q4_K":
        blocks = viewed.blocks("x")
        assert (blocks.shape, blocks.gguf is not None) == (wanted.shape, True)
        np.testing.assert_array_equal(blocks.dequantize(), wanted)


@dataclass(frozen=True, slots=True)
class FusedMlp:
    """A gated feed-forward with gate and up in one tensor, and a matrix that stays in float32."""

    inner: int

    def build(self, make: Builder) -> GatedMlp:
        hidden, inner = make.hidden_size, self.inner
        both = ("gate_up_proj.weight",)
        return GatedMlp(
            gate=make.matrix("gate_proj.weight", (inner, hidden), View(both, slice(0, inner))),
            up=make.matrix("up_proj.weight", (inner, hidden), View(both, slice(inner, 2 * inner))),
            down=make.linear(("down_proj",), (hidden,), inner, exact=True),
        )


@pytest.fixture
def fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the tiny Llama with fused tensors."""

    def family(config: FamilyConfig) -> DecoderSpec:
        spec, mlp = llama(config), FusedMlp(config.integer("intermediate_size"))
        return replace(spec, layers=tuple(layer.with_part("mlp", mlp) for layer in spec.layers))

    monkeypatch.setitem(FAMILIES._entries, "LlamaForCausalLM", family)
    source, target = directory_of(find("llama3")), tmp_path / "fused"
    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if "gate_proj" in name]:
        both = [tensors.pop(each) for each in (name, name.replace("gate_proj", "up_proj"))]
        tensors[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(both)
    save(tensors, target / "model.safetensors")
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    yield target


def test_a_model_of_views_has_the_bits_of_its_plain_twin(fused: Path) -> None:
    plain = logits_of(directory_of(find("llama3")), "llama3", kernels="reference")
    np.testing.assert_array_equal(logits_of(fused, "llama3", kernels="reference"), plain)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_k_m"])
def test_an_exact_matrix_is_neither_quantised_nor_counted(fused: Path, tmp_path: Path, scheme: str) -> None:
    shapes = {name: info.shape for name, info in Checkpoint(fused).tensors.items()}
    assert DOWN not in SCHEMES[scheme].formats(shapes, {DOWN})
    pack_directory(DirectoryModel(fused), tmp_path / "packed", scheme)
    header = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    assert DOWN not in header["blocks"] and header["formats"] == ["float32"]
    assert Checkpoint(tmp_path / "packed").tensors[DOWN].dtype == "F32"
    logits = logits_of(tmp_path / "packed", "llama3", kernels="reference")
    np.testing.assert_array_equal(logits, logits_of(fused, "llama3", kernels="reference", quantize=scheme))
    sizes = [
        plan_model(ModelConfig(model=str(directory), quantize=each)).traits.memory.weights
        for directory, each in ((fused, scheme), (tmp_path / "packed", None))
    ]
    assert sizes[0] == sizes[1]
