"""`ModelSource`: one object per model that gives its tensors, tokenizer, chat template and defaults.

Here are the interface and the source of a directory. `open_model.py` finds the source of a name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ferrum.text.model_files import DirectoryFiles, ModelFiles

if TYPE_CHECKING:  # a client needs no tensors, and an engine no text
    from ferrum.core.types import Pooling
    from ferrum.sources.checkpoint import TensorStore
    from ferrum.text.chat_template import ChatTemplate
    from ferrum.text.generation_config import GenerationConfig
    from ferrum.text.tokenizer import Tokenizer


class ModelSource(ModelFiles, Protocol):
    """A model, wherever it is stored. Picklable, so that the engine's process can open it as well.

    Nothing is kept open: every method reads what it returns. A source without files in the Hugging Face layout returns
    them from its own metadata in `read_file`, or overrides the methods that read them.

    Attributes:
        name: opens the same model again, see `open_model`.
        path: its directory or file; None if it has none.
    """

    name: str
    path: Path | None

    def checkpoint(self) -> TensorStore:
        """Return the configuration and the tensors; a tensor is read when it is used.

        Raises:
            CheckpointError: a file is missing, damaged, or contradicts another.
        """

    def digest(self, memory: Path) -> str:
        """Return a digest of all that determines the model's output, as hexadecimal.

        Args:
            memory: directory where digests of files are remembered.

        Raises:
            CheckpointError: a file cannot be read.
        """

    def read_file(self, name: str) -> bytes | None:  # noqa: ARG002 - sources with files override this
        """Return None: there are no files."""
        return None

    def file_names(self, folder: str = "") -> list[str]:  # noqa: ARG002 - as above
        """Return nothing: there are no files."""
        return []

    def where(self, name: str) -> str:
        """Return the place of a file for messages."""
        return f"{self.name}/{name}" if name else self.name

    def copy_file(self, name: str, target: Path) -> None:
        """Copy a file that exists. Raises CheckpointError."""
        target.write_bytes(self.read_file(name) or b"")

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or None. Errors as `load_tokenizer`."""
        from ferrum.text.tokenizer import load_tokenizer

        return load_tokenizer(self)

    def special_tokens(self) -> Mapping[str, str]:
        """Return the texts of the special tokens by name. Errors as `read_tokenizer_config`."""
        from ferrum.text.tokenizer_config import read_tokenizer_config

        return read_tokenizer_config(self).special_tokens

    def chat_template(self) -> ChatTemplate | None:
        """Return the chat template, or None. Errors as `load_chat_template`."""
        from ferrum.text.chat_template import load_chat_template

        return load_chat_template(self)

    def generation_config(self, *, recommended: bool = True) -> GenerationConfig:
        """Return the defaults for generation. Arguments and errors as `load_generation_config`."""
        from ferrum.text.generation_config import load_generation_config

        return load_generation_config(self, recommended=recommended)

    def pooling(self) -> Pooling:
        """Return how hidden states become an embedding. Errors as `load_pooling`."""
        from ferrum.text.pooling import load_pooling

        return load_pooling(self)


class DirectoryModel(DirectoryFiles, ModelSource):
    """A directory in the Hugging Face layout; `ferrum quantize` writes such directories too.

    Attributes: see `ModelSource`.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.name = str(path)

    def checkpoint(self) -> TensorStore:
        from ferrum.sources.quantized_checkpoint import open_checkpoint

        return open_checkpoint(self.path)

    def digest(self, memory: Path) -> str:
        from ferrum.sources.model_digest import files_digest

        # Folders and broken links with such names do not matter.
        names = (each for pattern in ("*.safetensors", "*.json") for each in self.path.glob(pattern))
        return files_digest(sorted(path for path in names if path.is_file()), memory)

    def copy_file(self, name: str, target: Path) -> None:
        shutil.copyfile(self.path / name, target)
