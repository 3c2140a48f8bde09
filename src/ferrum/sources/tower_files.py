"""From a model's files to its tower for images: what it is, and the processor of its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.images.image_processor import ImageProcessor
from ferrum.models.tower_spec import TowerSpec, tower_spec
from ferrum.sources.model_source import ModelSource
from ferrum.sources.parameters import refuse_quantized
from ferrum.sources.tower_checkpoint import TowerCheckpoint
from ferrum.text.model_files import ModelFiles, read_json_object
from ferrum.text.tokenizer import Tokenizer

PREPROCESSOR: Final = "preprocessor_config.json"
PROCESSOR: Final = "processor_config.json"

_FEATURE: Final = "images"


def read_tower(source: ModelSource) -> TowerSpec:
    """Return the tower of a model.

    Raises:
        Unsupported: it has none that is implemented; the reason says why.
        CheckpointError: a field of its files is invalid.
    """
    config = read_json_object(source, "config.json")
    if config is None:
        raise Unsupported(_FEATURE, f"{source.where('')} has no config.json, so it is loaded as a text model")
    spec = tower_spec(config, _processor_values(source))
    if spec is None:
        names = ", ".join(map(str, config.get("architectures") or ()))
        raise Unsupported(_FEATURE, f"the architecture {names} is loaded as a text model")
    store = tower_store(source)
    refuse_quantized(store.config, None)
    if not store.tensors:
        raise Unsupported(_FEATURE, f"{source.where('')} has no tensors of a tower")
    return spec


def tower_store(source: ModelSource) -> TowerCheckpoint:
    """Return the tensors of a model's tower. Raises Unsupported, CheckpointError."""
    if source.path is None or not source.path.is_dir():
        raise Unsupported(_FEATURE, f"{source.name} is no directory in the Hugging Face layout")
    return TowerCheckpoint(source.path)


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

    return ImageProcessor(spec.images(token_of, encode))


def _processor_values(files: ModelFiles) -> Mapping[str, Any]:
    """Return the configuration of the image processor, from either file. Raises Unsupported without one."""
    values = read_json_object(files, PREPROCESSOR)
    if values is None:
        values = (read_json_object(files, PROCESSOR) or {}).get("image_processor")
    if not isinstance(values, Mapping):
        raise Unsupported(_FEATURE, f"the model has neither {PREPROCESSOR} nor a {PROCESSOR} with an image_processor")
    return values
