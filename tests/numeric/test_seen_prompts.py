"""Prompts with images, from the library's face to logits, next to `transformers`; and rows that are computed once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from ferrum.client.input_processor import RequestOptions
from ferrum.client.llm import LLM
from ferrum.core.errors import ContextOverflow, RequestError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.step import Grid, Inputs, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.engine.messages import EngineStats, ImageCounts
from ferrum.images.decoded_image import DecodedImage
from ferrum.runtime.step_tables import places_of
from ferrum.verbs.load_executor import load_executor
from image_models import (
    CASES,
    picture,
    random_image,
    seeing_directory,
    seeing_model,
    tokenizer_of,
    twin_pixels,
    twin_processor,
)
from native_twin import require_native
from tiny import directory_of, find

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3, ignore_eos=True)
WIDE, TALL = random_image(61, 37), random_image(29, 64, seed=4)


def open_llm(name: str, **options: object) -> LLM:
    return LLM(str(seeing_directory(name)), **{"kernels": "reference", "kv_capacity": 2048, **options})


@pytest.fixture(scope="module")
def seeing() -> Iterator[LLM]:
    require_native()
    with open_llm("smolvlm", kernels="native") as llm:
        yield llm


def prompt_of(name: str, images: int = 1) -> str:
    return "Look: " + f"{CASES[name].tokens[0]} and " * images + "say what it is."


def twin_text(name: str, image: DecodedImage) -> str:
    """Return a prompt of one image with the text that the processor of `transformers` puts there."""
    tokens, prompt = CASES[name].tokens, prompt_of(name)
    if CASES[name].config == "Gemma3Config":
        rows = seeing_model(name).config.mm_tokens_per_image
        return prompt.replace(tokens[0], f"\n\n{tokens[0]}{tokens[1] * rows}{tokens[2]}\n\n")
    if CASES[name].config == "Gemma4Config":
        return prompt.replace(tokens[0], gemma4_text(name, image))
    pixels = twin_pixels(name, image)
    if "image_grid_thw" in pixels:
        merge = seeing_model(name).config.vision_config.spatial_merge_size
        return prompt.replace(tokens[0], tokens[0] * (int(pixels["image_grid_thw"].prod()) // merge**2))
    if len(tokens) == 3:
        unit = CASES[name].values["patch_size"]
        down, across = (int(size) // unit for size in pixels["image_sizes"][0])
        row = tokens[0] * across + tokens[1]
        return prompt.replace(tokens[0], (row * down).removesuffix(tokens[1]) + tokens[2])
    found = twin_processor(name)([[picture(image)]], return_tensors="np", return_row_col_info=True)
    if CASES[name].config == "Lfm2VlConfig":
        return prompt.replace(tokens[0], lfm2_vl_text(name, found))
    config = seeing_model(name).config
    per_tile = (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2
    text = get_image_prompt_string(found["rows"][0][0], found["cols"][0][0], per_tile, tokens[1], tokens[0], tokens[2])
    return prompt.replace(tokens[0], text)


def gemma4_text(name: str, image: DecodedImage) -> str:
    processor = object.__new__(Gemma4Processor)  # its constructor wants a tokenizer of `transformers`
    for part, token in zip(("image_token", "boi_token", "eoi_token"), CASES[name].tokens, strict=True):
        setattr(processor, part, token)
    return str(processor.replace_image_token(twin_processor(name)([picture(image)], return_tensors="np"), 0))


def lfm2_vl_text(name: str, found: Any) -> str:
    processor = object.__new__(Lfm2VlProcessor)  # its constructor wants a tokenizer of `transformers`
    processor.image_processor = twin_processor(name)
    for place, part in enumerate(("image", "image_start", "image_end", "image_thumbnail")):
        setattr(processor, f"{part}_token", CASES[name].tokens[place])
    return str(processor.replace_image_token(found, 0, use_image_special_tokens=True))


def twin_inputs(name: str, ids: torch.Tensor, image: DecodedImage) -> dict[str, torch.Tensor]:
    """Return the other arguments of the twin: pixels, and which tokens are those of the image, where it needs them."""
    pixels = twin_pixels(name, image)
    if "image_grid_thw" in pixels or CASES[name].config == "Gemma4Config":
        token = tokenizer_of(CASES[name]).token_to_id(CASES[name].tokens[0])
        pixels["mm_token_type_ids"] = (ids == token).int()
    if CASES[name].config == "Gemma3Config":
        pixels["token_type_ids"] = (ids == tokenizer_of(CASES[name]).token_to_id(CASES[name].tokens[1])).int()
    return pixels


@pytest.mark.parametrize("image", [WIDE, TALL], ids=["wide", "tall"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_log_probabilities_equal_those_of_the_twin(name: str, image: DecodedImage) -> None:
    row_token = tokenizer_of(CASES[name]).token_to_id(CASES[name].tokens[CASES[name].row_token])
    params = GREEDY.but(logit_bias={row_token: -100.0})  # the twin would look for its row
    with open_llm(name) as llm:
        (output,) = llm.generate(prompt_of(name), params, use_tqdm=False, images=[[image]])
    choice = output.outputs[0]
    assert list(output.prompt_token_ids) == tokenizer_of(CASES[name]).encode(twin_text(name, image)).ids
    ids = torch.tensor([[*output.prompt_token_ids, *choice.token_ids]])
    with torch.no_grad():
        logits = seeing_model(name)(input_ids=ids, **twin_inputs(name, ids, image)).logits[0]
    expected = torch.log_softmax(logits[len(output.prompt_token_ids) - 1 : -1].double(), dim=-1)
    assert choice.logprobs is not None
    for position, found in enumerate(choice.logprobs):
        for token, each in found.items():
            assert abs(each.logprob - float(expected[position, token])) <= 1e-4 * float(logits.abs().max())


class LastStats:
    """An observer that keeps the last statistics."""

    images = ImageCounts()

    def step(self, stats: EngineStats) -> None:
        self.images = stats.images

    def delta(self, request: object, delta: object) -> None: ...


def test_an_image_again_is_not_computed_again_except_under_another_salt(seeing: LLM) -> None:
    last = LastStats()
    seeing.client.router.observers = (last,)

    def run(image: DecodedImage, salt: str) -> tuple[tuple[int, ...], ImageCounts]:
        options = RequestOptions(images=(image, image), salt=salt)
        request = seeing.client.input_processor.process(prompt_of("smolvlm", 2), GREEDY, options)
        (output,) = seeing._run([request], [None], use_tqdm=False)
        return tuple(output.outputs[0].token_ids), last.images

    before = run(TALL, "")[1]
    image = random_image(40, 33, seed=9)
    runs = [run(image, ""), run(image, ""), run(image, "other tenant"), run(image, "")]
    seeing.client.router.observers = ()
    assert len({tokens for tokens, _ in runs}) == 1
    assert [counts.computed - before.computed for _, counts in runs] == [1, 1, 2, 2]
    assert [counts.hits - before.hits for _, counts in runs] == [0, 2, 2, 4]
    assert runs[-1][1].queries - before.queries == 8


def run_counted(llm: LLM, text: str, image: DecodedImage, **whose: str) -> tuple[object, ImageCounts]:
    """Return tokens and log-probabilities of a request with an image, and the engine's counts after it."""
    last = LastStats()
    llm.client.router.observers = (last,)
    request = llm.client.input_processor.process(
        text + prompt_of("smolvlm"), GREEDY, RequestOptions(images=(image,), **whose)
    )
    (output,) = llm._run([request], [None], use_tqdm=False)
    return (output.outputs[0].token_ids, output.outputs[0].logprobs), last.images


def test_a_restarted_engine_computes_no_row_again(seeing: LLM, tmp_path: Path) -> None:
    """Another text before the image, so that no page of the prompt is found: the answer needs the rows."""
    expected = seeing.generate("Again. " + prompt_of("smolvlm"), GREEDY, use_tqdm=False, images=[[TALL]])[0].outputs[0]
    options = {"kernels": "native", "prefix_cache_dir": str(tmp_path)}
    with open_llm("smolvlm", **options) as llm:
        assert run_counted(llm, "", TALL)[1].computed == 1
    (stored,) = (path for path in tmp_path.glob("*.page") if path.stat().st_size == rows_size(TALL))
    assert stored.stat().st_mode & 0o777 == 0o600
    with open_llm("smolvlm", **options) as llm:
        found, counts = run_counted(llm, "Again. ", TALL)
        assert found == (expected.token_ids, expected.logprobs)
        assert (counts.restored, counts.computed) == (1, 0)
        for place, whose in enumerate(({"salt": "theirs"}, {"tenant": "they"})):
            found, counts = run_counted(llm, "Again. ", TALL, **whose)
            assert found == (expected.token_ids, expected.logprobs)
            assert (counts.restored, counts.computed) == (1, place + 1)
    damaged = bytearray(stored.read_bytes())
    damaged[-1] ^= 1
    stored.write_bytes(damaged)
    with open_llm("smolvlm", **options, image_cache_gib=0) as llm:
        found, counts = run_counted(llm, "Again. ", TALL)
        assert found == (expected.token_ids, expected.logprobs)
        assert (counts.restored, counts.computed, counts.nbytes) == (0, 1, 0)


def rows_size(image: DecodedImage) -> int:
    """Return the bytes of the file of an image's rows, after a header of 58."""
    width = seeing_model("smolvlm").config.text_config.hidden_size
    return 58 + 4 * width * twin_text("smolvlm", image).count(CASES["smolvlm"].tokens[0])


def test_conversations_and_texts_without_images_run_next_to_images(seeing: LLM) -> None:
    lists = [[WIDE, TALL], [], [TALL]]
    prompts = [prompt_of("smolvlm", len(images)) for images in lists]
    together = seeing.generate(prompts, GREEDY, use_tqdm=False, images=lists)
    for prompt, images, output in zip(prompts, lists, together, strict=True):
        (alone,) = seeing.generate(prompt, GREEDY, use_tqdm=False, images=[images])
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert alone.outputs[0].logprobs == output.outputs[0].logprobs


@pytest.fixture(scope="module")
def gridded() -> Iterator[LLM]:
    require_native()
    with open_llm("qwen3-vl", kernels="native") as llm:
        yield llm


@pytest.fixture(scope="module")
def hybrid() -> Iterator[LLM]:
    require_native()
    with open_llm("qwen3.5", kernels="native") as llm:
        yield llm


@pytest.fixture(scope="module")
def layered() -> Iterator[LLM]:
    require_native()
    with open_llm("gemma4-layered", kernels="native") as llm:
        yield llm


WHOLE = {"smolvlm": "seeing", "qwen3-vl": "gridded", "qwen3.5": "hybrid", "gemma4-layered": "layered"}
"""The fixture of each model."""

OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("smolvlm", {"host": "process"}),
    ("smolvlm", {"run_ahead": 1}),
    ("smolvlm", {"prefix_cache": False}),
    ("smolvlm", {"kv_dtype": "int8", "kernels": "reference"}),
    ("smolvlm", {"speculative": "ngram"}),
    ("qwen3-vl", {"max_tokens_per_step": 16}),
    ("qwen3-vl", {"run_ahead": 1, "speculative": "ngram"}),
    ("qwen3-vl", {"kv_capacity": 192}),
    ("qwen3-vl", {"tensor_parallel_size": 2, "threads": 1}),
    ("qwen3.5", {"max_tokens_per_step": 16, "run_ahead": 1}),
    ("gemma4-layered", {"max_tokens_per_step": 16, "run_ahead": 1}),
)
"""Options of a model. One has no room for all sequences, so that some lose their pages."""


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_options_change_no_token_of_prompts_with_images(
    request: pytest.FixtureRequest, name: str, options: dict[str, object]
) -> None:
    require_native()
    whole: LLM = request.getfixturevalue(WHOLE[name])
    prompts, lists = [prompt_of(name, 2), prompt_of(name)], [[WIDE, TALL], [TALL]]
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=8, n=2, ignore_eos=True)
    expected = whole.generate(prompts, params, use_tqdm=False, images=lists)
    with open_llm(name, **{"kernels": "native", **options}) as llm:
        found = llm.generate(prompts, params, use_tqdm=False, images=lists)
        again = llm.generate(prompts, params, use_tqdm=False, images=lists)
    tokens = [[each.token_ids for each in output.outputs] for output in found]
    assert tokens == [[each.token_ids for each in output.outputs] for output in again]
    if "kv_dtype" not in options:
        assert tokens == [[each.token_ids for each in output.outputs] for output in expected]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma3-narrow", {"run_ahead": 1, "max_tokens_per_step": 37}),
        ("gemma3-narrow", {"speculative": "ngram", "prefix_cache": False}),
        ("gemma3-narrow", {"tensor_parallel_size": 2, "threads": 1}),
        ("gemma4", {"run_ahead": 1, "max_tokens_per_step": 71}),
    ],
    ids=str,
)
def test_options_change_no_token_of_images_that_are_never_cut(name: str, options: dict[str, object]) -> None:
    require_native()
    prompts, lists = [prompt_of(name, 2), prompt_of(name)], [[WIDE, TALL], [TALL]]
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=8, n=2, ignore_eos=True, prompt_logprobs=1)
    found = []
    for each in ({}, options):
        with open_llm(name, **{"kernels": "native", **each}) as llm:
            for _ in range(2):
                outputs = llm.generate(prompts, params, use_tqdm=False, images=lists)
                found.append([([own.token_ids for own in one.outputs], one.prompt_logprobs) for one in outputs])
    assert found[0] == found[1] == found[2] == found[3]


def test_prompts_beyond_the_context_are_refused_with_the_tokens_of_images() -> None:
    count = len(tokenizer_of(CASES["smolvlm"]).encode(twin_text("smolvlm", WIDE)).ids)
    with (
        open_llm("smolvlm", max_sequence_length=count) as llm,
        pytest.raises(ContextOverflow, match=rf"requested {count + 1} tokens \({count} in the prompt"),
    ):
        llm.generate(prompt_of("smolvlm"), GREEDY.but(max_tokens=1), use_tqdm=False, images=[[WIDE]])


def test_placeholders_without_an_image_are_refused_with_their_number(seeing: LLM) -> None:
    with pytest.raises(RequestError, match="2 placeholders for images, and 1 images were given") as caught:
        seeing.generate(prompt_of("smolvlm", 2), GREEDY, use_tqdm=False, images=[[WIDE]])
    assert caught.value.param == "images"


def test_a_text_model_refuses_images_with_the_reason() -> None:
    with LLM(str(directory_of(find("llama3"))), kernels="reference", kv_capacity=512) as llm:
        with pytest.raises(Unsupported, match="images") as caught:
            llm.generate([[1, 2]], GREEDY, use_tqdm=False, images=[[WIDE]])
        assert "neither preprocessor_config.json" in str(caught.value)


def test_places_of_tokens_are_those_of_the_twin() -> None:
    grids = Grid(3, 4, 6), Grid(28, 5, 2), Grid(40, 1, 3)
    kinds = np.zeros(50, np.int32)
    for grid in grids:
        kinds[grid.start : grid.end] = 1
    sizes = torch.tensor([[1, 2 * grid.rows, 2 * grid.columns] for grid in grids])
    ids, marks = torch.zeros((1, 50), dtype=torch.long), torch.tensor(kinds[None])
    expected = seeing_model("qwen3-vl").model.get_rope_index(ids, marks, sizes)[0][:, 0].T.numpy()
    for cuts in ((0, 50), (0, 5, 20, 27, 29, 50), range(51)):
        found = [
            places_of([grid for grid in grids if grid.start < end], start, end - start) for start, end in pairwise(cuts)
        ]
        np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("name", ["smolvlm", "lfm2-vl", "qwen3-vl", "qwen3.5", "gemma4-layered"])
@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_any_cut_of_a_prompt_with_images_gives_the_same_logits(kernels: str, name: str) -> None:
    if kernels == "native":
        require_native()
    directory, features = str(seeing_directory(name)), 3 if name == "qwen3-vl" else 1
    rng = np.random.default_rng(2)
    tokens = tuple(int(token) for token in rng.integers(2, 90, 60))
    inputs = [
        Inputs(
            tuple(range(start, end)),
            rng.normal(0, 0.2, (end - start, 48 * features)).astype(np.float32),
            bytes([start]),
        )
        for start, end in ((3, 19), (21, 37))
    ]
    grids = (Grid(3, 2, 8), Grid(21, 4, 4)) if name.startswith("qwen") else ()
    found = []
    for cuts in ((60,), (10, 25, 60), (4, 30, 36, 60), tuple(range(1, 61))):
        with load_executor(directory, kernels=kernels, kv_capacity=512, page_size=16) as executor:
            rows = []
            for start, end in pairwise((0, *cuts)):
                given = tuple(part for each in inputs for part in each.within(start, end))
                extras = SpanExtras(inputs=given, grids=tuple(each for each in grids if each.start < end))
                span = Span("it", start, tokens[start:end], Want.LOGITS, Rows.ALL, extras=extras.or_none())
                rows.append(executor.submit(StepBatch((span,))).result().results[0].logits)
            found.append(np.concatenate(rows))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
