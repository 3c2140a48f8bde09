"""Digests of the files that decide on a model's output, by which replicas on several machines are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ferrum.sources.model_source import files_digest

if TYPE_CHECKING:
    from ferrum.sources.model_source import ModelSource

_TOKENIZER: Final = ("token", "vocab", "merges", "chat_template")
"""Words in names of files that decide on tokens and prompts."""


def digests_of(source: ModelSource) -> tuple[tuple[str, str], ...]:
    """Return the digests of weights, configuration and tokenizer by name, as hexadecimal.

    Reading a gigabyte takes about a second.

    Raises:
        CheckpointError: a file cannot be read.
    """
    names = [name for name in sorted(source.file_names()) if any(word in name for word in _TOKENIZER)]
    tokenizer = hashlib.sha256()
    for name in names:
        tokenizer.update(name.encode() + hashlib.sha256(source.read_file(name) or b"").digest())
    path = source.path
    with TemporaryDirectory() as memory:
        if path is None or not path.is_dir():
            return ("weights", source.digest(Path(memory))), ("tokenizer", tokenizer.hexdigest())
        others = (each for each in path.glob("*.json") if each.name not in names)
        return (
            ("weights", _digest(path.glob("*.safetensors"), memory)),
            ("configuration", _digest(others, memory)),
            ("tokenizer", tokenizer.hexdigest()),
        )


def _digest(files: Iterable[Path], memory: str) -> str:
    return files_digest(sorted(path for path in files if path.is_file()), Path(memory))
