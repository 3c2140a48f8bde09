"""GGUF files of projectors: rows next to those of the directory, choice by name, and refusals."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrum.client.llm import LLM
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, ConfigError, FerrumError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.runtime.image_tower import ImageTower, load_tower, open_tower, tower_bytes
from ferrum.sources.gguf_choice import projector_for
from ferrum.sources.gguf_file import GgufFile
from ferrum.sources.gguf_tower import embedded_tower, projector_tower
from ferrum.sources.model_folders import blobs_of
from ferrum.sources.model_source import ModelSource
from ferrum.sources.open_model import open_model
from ferrum.sources.tower_checkpoint import TowerParts
from ferrum.sources.tower_files import image_processor, read_tower
from gguf_census import Entry, header_bytes
from image_models import CASES, picture, random_image, seeing_directory
from model_caches import cache_ollama
from native_twin import require_native
from projector_files import TYPES, seeing_gguf, text_of, write_projector, write_text, write_whole

PUBLISHED = Path(__file__).parents[1] / "data" / "published_projectors"
IMAGE = random_image(57, 40)


def tower(model: Path, mmproj: str | None = None) -> ImageTower:
    return open_tower(open_model(str(model), mmproj=mmproj), ModelConfig(model=str(model), kernels="reference"))


def rows(of: ImageTower, name: str) -> np.ndarray:
    """Return the rows of an image whose patches are those of the directory of a case."""
    source = open_model(str(seeing_directory(name)))
    work = of.rows_of(image_processor(read_tower(source), source.tokenizer()).prepare(IMAGE))
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("name", [name for name in TYPES if name in CASES])
def test_rows_of_a_float_file_are_the_directorys_bits(name: str, tmp_path: Path) -> None:
    directory = open_model(str(seeing_directory(name)))
    expected = rows(tower(seeing_directory(name)), name)
    for turned in (False, True):
        file = write_projector(name, tmp_path / f"{turned}.gguf", turned=turned)
        parts = projector_tower(file, text_of(name))
        spec = read_tower(Published(parts))
        processor = image_processor(spec, directory.tokenizer())
        made = load_tower(spec, parts.store, processor, ModelConfig(model="projected", kernels="reference"))
        np.testing.assert_array_equal(rows(made, name), expected)


@pytest.mark.parametrize(
    ("name", "kind", "error"), [("smolvlm", "F16", 5e-3), ("mistral3", "BF16", 4e-2), ("smolvlm", "Q8_0", 2e-2)]
)
def test_rows_of_other_types_are_near(name: str, kind: str, error: float, tmp_path: Path) -> None:
    expected = rows(tower(seeing_directory(name)), name)
    found = rows(tower(seeing_gguf(name), str(write_projector(name, tmp_path / "p.gguf", kind))), name)
    assert 0 < np.abs(found - expected).max() <= error * np.abs(expected).max()


@pytest.mark.parametrize("name", ["mistral3", "mistral3-merge3", "gemma3", "gemma3-narrow"])
def test_rows_of_a_whole_file_of_ollama_are_the_directorys_bits(name: str, tmp_path: Path) -> None:
    whole = write_whole(name, tmp_path / "whole.gguf")
    if name == "mistral3":  # ollama knows towers with SiLU only
        assert not np.array_equal(rows(tower(whole), name), rows(tower(seeing_directory(name)), name))
    else:
        np.testing.assert_array_equal(rows(tower(whole), name), rows(tower(seeing_directory(name)), name))
    assert tower_bytes(open_model(str(whole), mmproj="none"), ModelConfig(model=str(whole))) == 0


@pytest.mark.parametrize("name", ["smolvlm", "mistral3", "qwen3-vl", "qwen3.5"])
def test_tokens_and_patches_of_metadata_are_the_directorys(name: str) -> None:
    made = []
    for path in (seeing_directory(name), seeing_gguf(name)):
        source = open_model(str(path))
        tokenizer = source.tokenizer()
        assert tokenizer is not None
        processor = image_processor(read_tower(source), tokenizer)
        prepared = processor.prepare(IMAGE)
        texts = tokenizer.decode(list(prepared.tokens), skip_special_tokens=False)
        made.append((texts, prepared.rows, prepared.digest, [frame.patches.tobytes() for frame in prepared.frames]))
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["smolvlm", "qwen3-vl", "qwen3-vl-moe", "qwen3.5", "lfm2-vl"])
def test_a_prompt_with_an_image_has_the_directorys_tokens_and_bits(name: str, tmp_path: Path) -> None:
    require_native()
    directory = seeing_directory(name)
    if name == "lfm2-vl":  # files do not say how images are resized and cut: as in the released models
        directory = Path(shutil.copytree(directory, tmp_path / "released"))
        (directory / "preprocessor_config.json").write_text('{"encoder_patch_size": 4, "resample": 3}')
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, ignore_eos=True)
    messages: Any = [{"role": "user", "content": [{"type": "image", "image": picture(IMAGE)}]}]
    found = []
    for path in (directory, seeing_gguf(name)):
        with LLM(str(path), kv_capacity=1024) as llm:
            (output,) = llm.chat(messages, params, use_tqdm=False)
        prompt = llm.client.tokenizer.decode(list(output.prompt_token_ids), skip_special_tokens=False)
        found.append((prompt, output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert found[0][:2] == found[1][:2]
    if name == "qwen3.5":  # the converter changes its norms and decays, which rounds them
        ours, theirs = ([each.logprob for step in steps for each in step.values()] for *_, steps in found)
        assert ours == pytest.approx(theirs, abs=1e-4)
    else:
        assert found[0] == found[1]


def test_a_model_of_ollama_has_the_projector_of_its_manifest(tmp_path: Path) -> None:
    model = seeing_gguf("mistral3")
    layers = {"model": model.read_bytes(), "projector": model.with_name("mmproj-model-f32.gguf").read_bytes()}
    cache_ollama(tmp_path, "library/seer/latest", layers)
    cache_ollama(tmp_path, "library/plain/latest", {"model": seeing_gguf("smolvlm").read_bytes()})
    seen = [open_model(str(blob)).may_see() for _, blob in sorted(blobs_of(tmp_path))]
    assert seen == [False, True]


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_headers_of_published_files_fit_their_towers(path: Path, tmp_path: Path) -> None:
    facts = json.loads(path.read_text())
    tensors = Entry(path.stem, facts).tensors()
    assert len(tensors) == facts["num_tensors"]
    if "mib" in facts:
        assert round(sum(each.nbytes for each in tensors) / 2**20, 2) == facts["mib"]
    head, _, size = header_bytes(facts["metadata"], tensors)
    file = tmp_path / "mmproj.gguf"
    with file.open("wb") as written:
        written.write(head)
        written.truncate(size)
    whole = facts["metadata"]["general.architecture"] != "clip"
    parts = embedded_tower(file, [GgufFile(file)], facts["text"]) if whole else projector_tower(file, facts["text"])
    assert parts is not None
    source = Published(parts)
    spec, expect = read_tower(source), facts["expect"]
    assert (spec.family, spec.side, spec.merge, len(spec.layers)) == tuple(expect.values())
    held = sum(each.nbytes for each in tensors if len(each.shape) > 1)
    assert tower_bytes(source, ModelConfig(model="published", mmproj=str(file))) > held
    images = spec.images(len, lambda text: [len("<image>")] * text.count("<image>"))
    assert {size: len(images.run_of(*map(int, size.split("x"))).rows) for size in facts["rows"]} == facts["rows"]


class Published(ModelSource):
    """A source that has a tower only."""

    def __init__(self, parts: TowerParts) -> None:
        self.name, self.path, self._parts = "published", None, parts

    def tower(self) -> TowerParts:
        return self._parts


def test_another_process_opens_the_same_tower() -> None:
    for mmproj in (None, "none"):
        source = open_model(str(seeing_gguf("smolvlm")), mmproj=mmproj)
        again = pickle.loads(pickle.dumps(source))
        assert again.may_see() == source.may_see() == (mmproj is None)


@pytest.mark.parametrize(
    ("model", "files", "chosen"),
    [
        ("m-Q4_K_M.gguf", ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], "mmproj-BF16.gguf"),
        ("m-Q8_0.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("m-F16.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-f16.gguf"),
        ("q8/m-Q8_0.gguf", ["mmproj-Q8_0.gguf", "q8/mmproj-F32.gguf"], "q8/mmproj-F32.gguf"),
        ("q8/m-Q8_0-00001-of-00002.gguf", ["q8/m-Q8_0-00002-of-00002.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        ("m-Q8_0.gguf", ["other/mmproj-F16.gguf"], None),
        ("m-Q8_0.gguf", ["vl-2b-Q8_0.gguf", "mmproj-vl-2b-Q8_0.gguf"], None),
        ("vl-2b-Q8_0.gguf", ["m-Q8_0.gguf", "mmproj-vl-2b-F32.gguf", "mmproj-Q8_0.gguf"], "mmproj-vl-2b-F32.gguf"),
        ("m.v1_it.gguf", ["m-v1-it.MMPROJ-f16.GGUF", "README.md"], "m-v1-it.MMPROJ-f16.GGUF"),
        ("m-Q8_0.gguf", ["imatrix.gguf"], None),
    ],
)
def test_the_projector_of_a_model_is_chosen_as_llama_cpp_chooses(
    model: str, files: list[str], chosen: str | None
) -> None:
    assert projector_for(model, [model, *files]) == chosen


def test_the_option_names_a_file_or_none(tmp_path: Path) -> None:
    model = seeing_gguf("smolvlm")
    assert open_model(str(model)).may_see() and not open_model(str(model), mmproj="none").may_see()
    with pytest.raises(Unsupported, match="mmproj is none"):
        read_tower(open_model(str(model), mmproj="none"))
    with pytest.raises(Unsupported, match="--mmproj FILE"):
        read_tower(open_model(str(write_text("smolvlm", tmp_path / "alone.gguf"))))
    for wrong, reason in ((tmp_path / "absent", "no file"), (model, "no GGUF file of a projector")):
        with pytest.raises(ConfigError, match=reason) as error:
            open_model(str(model), mmproj=str(wrong))
        assert error.value.param == "mmproj"
    directory = str(seeing_directory("smolvlm"))
    assert not open_model(directory, mmproj="none").may_see()
    with pytest.raises(ConfigError, match="is a directory"):
        open_model(directory, mmproj=str(model.with_name("mmproj-model-f32.gguf")))


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"projector_type": "qwen2vl_merger"}, Unsupported, "known: gemma3, idefics3, lfm2, pixtral, qwen3vl_merger$"),
        ({"projector_type": None}, CheckpointError, "no clip.projector_type"),
        ({"vision__block_count": None}, CheckpointError, "clip.vision.block_count is missing"),
        ({"vision__patch_size": 0}, CheckpointError, "clip.vision.patch_size must be"),
        ({"vision__window_size": 7}, Unsupported, "clip.vision.window_size=7.*not understood"),
        ({"use_gelu": False}, Unsupported, "use_gelu"),
        ({"vision__block_count": 1}, CheckpointError, "unexpected"),
        ({"vision__feed_forward_length": 71}, CheckpointError, "expected shape"),
    ],
)
def test_files_that_are_not_understood_are_refused_by_name(
    changes: dict[str, Any], error: type[FerrumError], reason: str, tmp_path: Path
) -> None:
    file = write_projector("smolvlm", tmp_path / "p.gguf", **changes)
    model = str(seeing_gguf("smolvlm"))
    config = ModelConfig(model=model, mmproj=str(file))
    with pytest.raises(error, match=reason):
        open_tower(open_model(model, mmproj=str(file)), config)
    with pytest.raises(error, match=reason):  # a file that was named is not passed over
        tower_bytes(open_model(model, mmproj=str(file)), config)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"vision__is_deepstack_layers": None}, CheckpointError, "0 layers have features, and 2 of the text model"),
        ({"vision__is_deepstack_layers": 3}, CheckpointError, "is_deepstack_layers must be a list of flags"),
        ({"vision__is_deepstack_layers": [True, False, True]}, CheckpointError, "lacks layer 1 of 'v.deepstack.1"),
        ({"vision__attention__layer_norm_epsilon": 1e-5}, Unsupported, "layer_norm_epsilon=.*must be 1e-06"),
        ({"vision__temporal_patch_size": 1}, Unsupported, "temporal_patch_size=1.*must be 2"),
        ({"v.patch_embd.weight.1": None}, CheckpointError, "tensor 'v.patch_embd.weight.1' is missing"),
        ({"v.patch_embd.weight.1": (40, 3, 16)}, CheckpointError, "expected shape .40, 3, 4, 4., found .40, 3, 16."),
        ({"v.position_embd.weight": None}, CheckpointError, "tensor 'v.position_embd.weight' is missing"),
    ],
)
def test_projectors_of_qwen_that_fit_no_model_are_refused_by_name(
    changes: dict[str, Any], error: type[FerrumError], reason: str, tmp_path: Path
) -> None:
    file = write_projector("qwen3-vl", tmp_path / "p.gguf", **changes)
    with pytest.raises(error, match=reason):
        projector_tower(file, text_of("qwen3-vl"))
