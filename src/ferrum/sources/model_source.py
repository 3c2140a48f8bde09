"""`ModelSource`: one object per model that gives its tensors, tokenizer, chat template and defaults.

Here are the interface and the source of a directory. `open_model.py` finds the source of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.text.model_files import DirectoryFiles, ModelFiles

if TYPE_CHECKING:
    from ferrum.core.types import Pooling
    from ferrum.sources.checkpoint import TensorStore
    from ferrum.sources.tower_checkpoint import TowerParts
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

    def may_see(self) -> bool:
        """Return whether files of a tower for images are there; their content is not checked."""
        return False

    def tower(self) -> TowerParts:
        """Return the parts of the model that see images.

        Raises:
            Unsupported: there are none; the reason says why.
            CheckpointError: a file is damaged.
        """
        raise Unsupported("images", f"{self.name} is no directory in the Hugging Face layout")

    def pooling(self) -> Pooling:
        """Return how hidden states become an embedding. Errors as `load_pooling`."""
        from ferrum.text.pooling import load_pooling

        return load_pooling(self)


class DirectoryModel(DirectoryFiles, ModelSource):
    """A directory in the Hugging Face layout; `ferrum quantize` writes such directories too.

    Args:
        path: the directory.
        sees: whether its tower for images is read.

    Attributes: see `ModelSource`.
    """

    path: Path

    def __init__(self, path: Path, *, sees: bool = True) -> None:
        super().__init__(path)
        self.name = str(path)
        self._sees = sees

    def checkpoint(self) -> TensorStore:
        from ferrum.sources.quantized_checkpoint import open_checkpoint

        return open_checkpoint(self.path)

    def may_see(self) -> bool:
        return self._sees and not {"preprocessor_config.json", "processor_config.json"}.isdisjoint(self.file_names())

    def tower(self) -> TowerParts:
        from ferrum.sources.tower_checkpoint import directory_tower

        if not self._sees:
            raise Unsupported("images", f"{self.name} is loaded without its tower, because mmproj is none")
        return directory_tower(self, self.path)

    def digest(self, memory: Path) -> str:
        # Folders and broken links with such names do not matter.
        names = (each for pattern in ("*.safetensors", "*.json") for each in self.path.glob(pattern))
        return files_digest(sorted(path for path in names if path.is_file()), memory)

    def copy_file(self, name: str, target: Path) -> None:
        shutil.copyfile(self.path / name, target)


# ---- A digest of a model's files, so that a persistent prefix cache is never used with another model ----

_MEMO: Final = "models.json"


def files_digest(files: Sequence[Path], memory: Path) -> str:
    """Return a digest of the names and contents of files, as hexadecimal.

    Reading a gigabyte takes about a second. So digests are remembered by the files' names, sizes, devices, inodes and
    times of change, as git does. A copy may share all of these but the last, which users cannot set.

    Args:
        files: all files that determine a model's output, sorted.
        memory: directory where digests are remembered.

    Raises:
        CheckpointError: a file cannot be read.
    """
    seen = hashlib.sha256(repr([_identity(path) for path in files]).encode()).hexdigest()
    memo = memory / _MEMO
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        loaded = json.loads(memo.read_text("utf-8"))
        known = loaded if isinstance(loaded, dict) else {}
    if not isinstance(known.get(seen), str):
        known[seen] = _digest(files)
        temporary = memo.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # the next start reads the files again
            temporary.write_text(json.dumps(known), "utf-8")
            temporary.replace(memo)
    return known[seen]


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                digest.update(os.fsencode(path.name) + hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return digest.hexdigest()


def _identity(path: Path) -> tuple[str | int, ...]:
    state = path.stat()
    return path.name, state.st_size, state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns
