"""From a model's files to its tower for images: what it is, and the processor of its images."""

from __future__ import annotations

from typing import Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.images.image_processor import ImageProcessor
from ferrum.models.tower_spec import TowerSpec, tower_spec
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.model_source import ModelSource
from ferrum.sources.parameters import refuse_quantized
from ferrum.text.tokenizer import Tokenizer

_FEATURE: Final = "images"


def read_tower(source: ModelSource) -> TowerSpec:
    """Return the tower of a model.

    Raises:
        Unsupported: it has none that is implemented; the reason says why.
        CheckpointError: a field of its files is invalid.
    """
    parts = source.tower()
    spec = tower_spec(parts.config, parts.processor)
    if spec is None:
        names = ", ".join(map(str, parts.config.get("architectures") or ()))
        raise Unsupported(_FEATURE, f"the architecture {names} is loaded as a text model")
    refuse_quantized(parts.store.config, None)
    if not parts.store.tensors:
        raise Unsupported(_FEATURE, f"{source.where('')} has no tensors of a tower")
    return spec


def tower_store(source: ModelSource) -> TensorStore:
    """Return the tensors of a model's tower. Raises Unsupported, CheckpointError."""
    return source.tower().store


def image_processor(spec: TowerSpec, tokenizer: Tokenizer | None) -> ImageProcessor:
    """Return the image processor of a model.

    Raises:
        Unsupported: the model has no tokenizer.
        CheckpointError: the tokenizer lacks a token that stands for images.
    """
    if tokenizer is None:
        raise Unsupported(_FEATURE, "the model has no tokenizer")

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def token_of(text: str) -> int:
        ids = encode(text)
        if len(ids) != 1:
            raise CheckpointError(f"the tokenizer has no token {text!r}, which prompts with images need")
        return ids[0]

    return ImageProcessor(spec.images(token_of, encode), spec.spaced)
