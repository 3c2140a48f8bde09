"""Pixels of images: bit for bit those of the Pillow processors of `transformers`, at odd sizes and settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import lfm2_vl_twin
from ferrum.core.errors import CheckpointError, RequestError, Unsupported
from ferrum.images.gemma3_images import BEGIN, SPACING, Gemma3Images
from ferrum.images.gemma4_images import Gemma4Images
from ferrum.images.idefics_images import IdeficsImages, places_of
from ferrum.images.image_processor import ImageProcessor
from ferrum.images.lfm2_images import Lfm2Images
from ferrum.images.pixels import levels_of
from ferrum.images.pixtral_images import PixtralImages
from ferrum.images.qwen_images import MAX_TOKENS, QwenImages
from ferrum.kernels.vectors import resized_grid
from image_models import decoded, picture, random_image

RANDOM = np.random.default_rng(3)
SIZES = [tuple(map(int, RANDOM.integers(4, 140, 2))) for _ in range(60)]
EXTREMES = [(4, 139), (139, 4), (64, 64), (32, 33), (16, 16), (127, 128)]
TILED = (
    {"size": {"longest_edge": 100}, "max_image_size": {"longest_edge": 32}},
    {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 32}, "resample": 2, "image_mean": 0.25},
    {"size": {"longest_edge": 97}, "max_image_size": {"longest_edge": 40}, "image_std": [0.3, 0.2, 0.7]},
    {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 24}, "do_image_splitting": False},
)
ROWED = (
    {"size": {"longest_edge": 112}, "patch_size": 28},
    {"size": {"longest_edge": 75}, "patch_size": 8, "resample": 1, "rescale_factor": 0.003},
)
MARKED = (
    {"encoder_patch_size": 4, "tile_size": 32, "min_image_tokens": 4, "max_image_tokens": 40},
    {
        "encoder_patch_size": 3,
        "downsample_factor": 3,
        "tile_size": 27,
        "max_tiles": 6,
        "resample": 3,
        "max_pixels_tolerance": 1.5,
        "max_image_tokens": 64,
        "use_thumbnail": False,
        "do_resize": False,
    },
    {"encoder_patch_size": 4, "max_image_tokens": 80, "do_image_splitting": False, "image_std": [0.3, 0.2, 0.7]},
)


def tokens(text: str) -> int:
    return {"<image>": 5, "[IMG]": 5, "[IMG_BREAK]": 6, "[IMG_END]": 7}.get(text, 8)


def tiles_of(patches: np.ndarray, places: np.ndarray, patch: int) -> np.ndarray:
    """Return the image [3, h, w] that patches at places [n, 2] are."""
    rows, columns = places.max(axis=0) + 1
    whole = np.empty((rows, columns, 3, patch, patch), np.float32)
    whole[places[:, 0], places[:, 1]] = patches.reshape(-1, 3, patch, patch)
    return whole.transpose(2, 0, 3, 1, 4).reshape(3, rows * patch, columns * patch)


@pytest.mark.parametrize("values", TILED)
def test_tiles_equal_those_of_transformers(values: dict[str, Any]) -> None:
    twin = transformers.SmolVLMImageProcessorPil(**values)
    patch, side = 4, values["max_image_size"]["longest_edge"] // 4
    ours = IdeficsImages(values, patch, side, 2, tokens, lambda text: [5] * text.count("<image>"))
    for width, height in SIZES[:24] + EXTREMES:
        image = random_image(width, height)
        theirs = twin([[picture(image)]], return_tensors="np")["pixel_values"][0]
        frames = ours.frames(image)
        assert len(frames) == len(theirs)
        for frame, tile in zip(frames, theirs, strict=True):
            places = np.stack(np.divmod(frame.positions, side), axis=-1)
            np.testing.assert_array_equal(tiles_of(frame.patches, places, patch), tile)


@pytest.mark.parametrize("values", ROWED)
def test_frames_of_any_size_equal_those_of_transformers(values: dict[str, Any]) -> None:
    twin = transformers.PixtralImageProcessorPil(**values)
    patch = values["patch_size"] // 2
    ours = PixtralImages(values, patch, 60, 2, tokens)
    for width, height in SIZES + EXTREMES:
        image = random_image(width, height)
        theirs = twin([picture(image)], return_tensors="np")["pixel_values"][0]
        (frame,) = ours.frames(image)
        places = np.stack(np.divmod(frame.positions, 60), axis=-1)
        np.testing.assert_array_equal(tiles_of(frame.patches, places, patch), theirs)
        merged = frame.positions.reshape(-1, 4)
        assert len(merged) == len(ours.run_of(width, height).rows)
        assert (merged[:, 1] == merged[:, 0] + 1).all() and (merged[:, 2] == merged[:, 0] + 60).all()


@pytest.mark.parametrize("values", MARKED)
def test_frames_and_tiles_of_lfm2_vl_equal_those_of_transformers(values: dict[str, Any]) -> None:
    twin, merge = lfm2_vl_twin.processor_class()(**values), values.get("downsample_factor", 2)
    ours = Lfm2Images(values, values["encoder_patch_size"], merge, tokens)
    for width, height in SIZES[:30] + EXTREMES:
        image = random_image(width, height)
        theirs = twin([[picture(image)]], return_tensors="np")
        frames, shapes = ours.frames(image), theirs["spatial_shapes"].tolist()
        for frame, patches, (rows, columns) in zip(frames, theirs["pixel_values"], shapes, strict=True):
            assert frame.places is not None and len(frame.patches) == rows * columns
            order = frame.places[:, 1] * columns + frame.places[:, 2]
            np.testing.assert_array_equal(frame.patches, patches[order])
        assert len(ours.run_of(width, height).rows) * merge**2 == sum(rows * columns for rows, columns in shapes)


def test_resized_positions_equal_those_of_torch() -> None:
    grid = np.random.default_rng(0).normal(size=(16, 16, 5)).astype(np.float32)
    source = torch.tensor(grid).double().permute(2, 0, 1)[None]
    for shape in ((32, 32), (1, 1), (16, 16), (2, 250), (8, 9), (17, 15), (5, 31)):
        wanted = torch.nn.functional.interpolate(source, shape, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        np.testing.assert_allclose(resized_grid(grid, *shape), wanted, atol=1e-6)


SHAPED = (
    {"size": {"shortest_edge": 256, "longest_edge": 3000}, "patch_size": 4},
    {"min_pixels": 900, "max_pixels": 9000, "patch_size": 5, "merge_size": 3, "temporal_patch_size": 1, "resample": 2},
)


@pytest.mark.parametrize("values", SHAPED)
def test_patches_in_rows_and_columns_of_tokens_equal_those_of_transformers(values: dict[str, Any]) -> None:
    twin = transformers.Qwen2VLImageProcessorPil(**values)
    merge = values.get("merge_size", 2)
    ours = QwenImages(values, values["patch_size"], merge, values.get("temporal_patch_size", 2), lambda _: 5)
    for width, height in SIZES + EXTREMES + [(700, 4), (5, 1000), (70, 70)]:
        image = random_image(width, height)
        theirs = twin([picture(image)], return_tensors="np")
        (frame,), run = ours.frames(image), ours.run_of(width, height)
        np.testing.assert_array_equal(frame.patches, theirs["pixel_values"])
        assert run.grid is not None and frame.places is not None
        assert [1, *(merge * each for each in run.grid)] == theirs["image_grid_thw"][0].tolist()
        assert len(frame.patches) == len(run.tokens) * merge**2
        assert (
            frame.places[:: merge**2, 1] // merge * run.grid[1] + frame.places[:: merge**2, 2] // merge
        ).tolist() == [*run.rows]


def test_long_images_are_refused_and_large_ones_reduced() -> None:
    ours = QwenImages({"size": {"shortest_edge": 65536, "longest_edge": 16777216}}, 16, 2, 2, lambda _: 5)
    with pytest.raises(RequestError, match="2010 x 10 pixels: the longer side may be at most 200 times"):
        ours.run_of(2010, 10)
    assert 4000 <= len(ours.run_of(7680, 4320).tokens) <= MAX_TOKENS
    with pytest.raises(CheckpointError, match="patch_size=14, but the tower has 16"):
        QwenImages({"patch_size": 14}, 16, 2, 2, lambda _: 5)


BUDGETED = (
    {"patch_size": 4, "max_soft_tokens": 70, "do_normalize": False},
    {"patch_size": 3, "pooling_kernel_size": 2, "max_soft_tokens": 140, "resample": 2, "rescale_factor": 0.003},
    {"patch_size": 2, "max_soft_tokens": 280, "do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": 0.7},
)


@pytest.mark.parametrize("values", BUDGETED)
def test_frames_within_a_number_of_tokens_equal_those_of_transformers(values: dict[str, Any]) -> None:
    """The twin's tower begins with 2 (x - 0.5), which is a part of our levels."""
    twin, merge = transformers.Gemma4ImageProcessorPil(**values), values.get("pooling_kernel_size", 3)
    ours = Gemma4Images(values, values["patch_size"], merge, tokens, bidirectional=True)
    for width, height in SIZES[:40] + EXTREMES + [(700, 4), (5, 1000), (3000, 2)]:
        image = random_image(width, height)
        theirs = twin([picture(image)], return_tensors="np")
        (frame,), run = ours.frames(image), ours.run_of(width, height)
        assert frame.places is not None and run.bidirectional and run.tokens[0] == run.tokens[-1] == 8
        assert len(run.rows) == theirs["num_soft_tokens_per_image"][0] == len(frame.patches) / merge**2
        places = theirs["image_position_ids"][0][: len(frame.patches)]
        order = np.lexsort(frame.places.T[::-1])
        np.testing.assert_array_equal(frame.places[order][:, :0:-1], places)
        patches = np.float32(2) * (theirs["pixel_values"][0][: len(places)] - np.float32(0.5))
        np.testing.assert_array_equal(frame.patches[order], patches)


@pytest.mark.parametrize(
    "values",
    [
        {"size": {"height": 48, "width": 48}, "do_pan_and_scan": None, "resample": 2},
        {"size": {"height": 48, "width": 48}, "resample": 3, "image_mean": [0.4, 0.5, 0.6], "image_std": 0.3},
    ],
)
def test_squares_equal_those_of_transformers(values: dict[str, Any]) -> None:
    twin = transformers.Gemma3ImageProcessorPil(**values)
    ours = Gemma3Images(values, 4, 12, 3, len)
    for width, height in SIZES[:24] + EXTREMES:
        image = random_image(width, height)
        (theirs,) = twin([picture(image)], return_tensors="np")["pixel_values"]
        (frame,) = ours.frames(image)
        places = np.stack(np.divmod(frame.positions, 12), axis=-1)
        np.testing.assert_array_equal(tiles_of(frame.patches, places, 4), theirs)
        run = ours.run_of(width, height)
        assert run.tokens == (16, *(18,) * 16, 14) and run.rows == tuple(range(1, 17)) and run.bidirectional


def test_spacing_around_images_is_encoded_with_the_text_next_to_it() -> None:
    family = Gemma3Images({"size": {"height": 8, "width": 8}}, 4, 2, 1, len)
    processor = ImageProcessor(family, (BEGIN, SPACING))
    text = "user\n<start_of_image>\nWhat?"
    assert processor.spaced_text(text) == "user\n\n\n<start_of_image>\n\n\nWhat?"
    assert ImageProcessor(family).spaced_text(text) == text


def test_learned_places_of_published_sides_equal_those_of_transformers() -> None:
    config = transformers.SmolVLMVisionConfig(hidden_size=8, num_hidden_layers=0, num_attention_heads=1, patch_size=1)
    for side in (8, 14, 16, 24, 26, 27, 30, 32, 70):
        config.image_size = side
        embeddings = transformers.models.smolvlm.modeling_smolvlm.SmolVLMVisionEmbeddings(config)
        torch.nn.init.zeros_(embeddings.patch_embedding.weight)
        torch.nn.init.zeros_(embeddings.patch_embedding.bias)
        embeddings.position_embedding.weight.data[:, 0] = torch.arange(side**2)
        with torch.no_grad():
            found = embeddings(torch.zeros(1, 3, side, side), torch.ones(1, side, side, dtype=torch.bool))[0, :, 0]
        places = places_of(side, side)
        np.testing.assert_array_equal(found.numpy().astype(int), np.add.outer(places * side, places).ravel())


def test_prompts_get_the_tokens_of_their_images() -> None:
    processor = ImageProcessor(PixtralImages(ROWED[0], 14, 8, 2, tokens))
    wide, small = random_image(60, 30), random_image(20, 20)
    ids, places = processor.expand([1, 5, 2, 5], [wide, small])
    assert ids == (1, 5, 5, 5, 6, 5, 5, 5, 7, 2, 5, 7)
    assert [place.positions for place in places] == [(1, 2, 3, 5, 6, 7), (10,)]
    assert processor.size_of(60, 30) == 8 and len({place.digest for place in places}) == 2
    with pytest.raises(RequestError, match="2 placeholders for images, and 1 images were given"):
        processor.expand([5, 1, 5], [wide])


def test_the_digest_names_image_settings_and_version() -> None:
    image, other = random_image(9, 9), decoded(np.zeros((9, 9, 3), np.uint8))
    first, second = (ImageProcessor(PixtralImages(values, 4, 30, 1, tokens)) for values in ROWED)
    same = ImageProcessor(PixtralImages(dict(ROWED[0]), 4, 30, 1, tokens))
    assert first.digest(image) == same.digest(image)
    assert len({first.digest(image), second.digest(image), first.digest(other)}) == 3


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"do_normalize": False}, Unsupported, "do_normalize=False"),
        ({"resample": 9}, CheckpointError, "resample must be a filter from 0 to 5"),
        ({"image_mean": [1, 2]}, CheckpointError, "image_mean must be 3 numbers"),
    ],
)
def test_other_settings_are_refused_by_name(values: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        levels_of(values, 3, (0.5,) * 3, (0.5,) * 3)


def test_crops_of_gemma_and_squares_of_another_size_are_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="do_pan_and_scan=True"):
        Gemma3Images({"do_pan_and_scan": True}, 4, 12, 3, len)
    with pytest.raises(CheckpointError, match="size: must be the tower's height and width of 48"):
        Gemma3Images({"size": {"height": 48, "width": 40}}, 4, 12, 3, len)


def test_tiles_that_do_not_fit_the_tower_are_refused() -> None:
    with pytest.raises(CheckpointError, match="do not fit patches of 4, 8 positions"):
        IdeficsImages({"max_image_size": {"longest_edge": 36}}, 4, 8, 2, tokens, lambda text: [])
    with pytest.raises(CheckpointError, match="longest_edge 1024 is larger"):
        PixtralImages({}, 16, 60, 2, tokens)
    with pytest.raises(CheckpointError, match="encoder_patch_size=16, but the tower has 14"):
        Lfm2Images({}, 14, 2, tokens)
    with pytest.raises(CheckpointError, match="tile_size must be a multiple of 32, got 500"):
        Lfm2Images({"tile_size": 500}, 16, 2, tokens)
    with pytest.raises(CheckpointError, match="pooling_kernel_size=3, but the tower has 2"):
        Gemma4Images({}, 16, 2, tokens, bidirectional=False)
    with pytest.raises(CheckpointError, match="max_soft_tokens must be one of 70, 140, 280, 560, 1120, got 256"):
        Gemma4Images({"max_soft_tokens": 256}, 16, 3, tokens, bidirectional=False)


def test_strips_beyond_the_tokens_of_a_frame_are_refused() -> None:
    with pytest.raises(RequestError, match="1 x 2000 pixels: a strip takes more than 256 tokens"):
        Lfm2Images({}, 16, 2, tokens).run_of(1, 2000)
