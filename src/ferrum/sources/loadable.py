"""Whether the directory of a model would load, from its configuration and the names of its files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError, FerrumError
from ferrum.models.families import decoder_spec
from ferrum.sources.checkpoint import PACKED, has_weights, read_config
from ferrum.sources.parameters import refuse_quantized
from ferrum.sources.quantized_checkpoint import METHODS
from ferrum.sources.readable_files import is_file
from ferrum.text.text_config import text_config

NO_CONFIG: Final = "has no config.json"


def is_loadable(directory: Path) -> bool:
    """Whether a directory has a configuration that loads, and all weights."""
    if has_model_files(directory):
        with suppress(FerrumError, OSError):
            refuse_unloadable(directory, str(directory))
            return True
    return False


def has_model_files(directory: Path) -> bool:
    """Whether a directory has a configuration and all weights; their content is not checked."""
    with suppress(OSError):
        return is_file(directory / "config.json") and has_weights(directory)
    return False


def refuse_unloadable(directory: Path, named: str) -> None:
    """Raise the errors of loading a model with the configuration in a directory."""
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{named!r} {NO_CONFIG}")
    config = read_config(directory)
    decoder_spec(config)
    refuse_quantized(text_config(config), None, PACKED, *METHODS)
