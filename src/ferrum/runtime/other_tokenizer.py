"""A model whose tokenizer files come from another place, which the option `tokenizer` names.

They are the files of `TOKENIZER_FILES` and the chat templates. All others stay the model's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrum.core.errors import ConfigError, ModelNotFound
from ferrum.runtime.hub import hub_errors, locate
from ferrum.runtime.model_source import ModelSource
from ferrum.text.model_files import DirectoryFiles, ModelFiles
from ferrum.text.tokenizer_config import TEMPLATES_FOLDER

if TYPE_CHECKING:
    from ferrum.core.types import Pooling
    from ferrum.runtime.checkpoint import TensorStore
    from ferrum.text.chat_template import ChatTemplate
    from ferrum.text.generation_config import GenerationConfig

TOKENIZER: Final = "tokenizer.json"
TOKENIZER_FILES: Final = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def with_tokenizer(model: ModelSource, name: str) -> ModelSource:
    """Return a model with the tokenizer of a directory or of a hub model, of which nothing else is fetched.

    Raises:
        ConfigError: it has no `tokenizer.json`, or the name is that of a file; `param` is `tokenizer`.
        ModelNotFound: there is no such directory or hub model.
    """
    try:
        files = DirectoryFiles(_directory(name))
    except ModelNotFound as error:
        raise error.about("tokenizer") from None
    if files.read_file(TOKENIZER) is None:
        raise ConfigError(f"{name} has no {TOKENIZER}: name the directory of the original model", param="tokenizer")
    return OtherTokenizer(model, files)


def _directory(name: str) -> Path:
    found = locate(name)
    if isinstance(found, Path) and found.is_dir():
        return found
    if not isinstance(found, tuple):
        raise ConfigError(f"must be a directory or a hub id, not the file {name}", param="tokenizer")
    from huggingface_hub import snapshot_download

    repo, revision = found
    with hub_errors(repo, revision):
        wanted = [*TOKENIZER_FILES, f"{TEMPLATES_FOLDER}/*.jinja"]
        return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))


class OtherTokenizer(ModelSource):
    """A model with the tokenizer of other files.

    Args:
        model: gives everything but the tokenizer.
        files: hold the tokenizer, and perhaps a chat template; without one, the model's own remains.

    Attributes: see `ModelSource`.
    """

    def __init__(self, model: ModelSource, files: ModelFiles) -> None:
        self.name, self.path = model.name, model.path
        self._model, self._files = model, files

    def checkpoint(self) -> TensorStore:
        return self._model.checkpoint()

    def digest(self, memory: Path) -> str:
        return self._model.digest(memory)

    def read_file(self, name: str) -> bytes | None:
        return (self._files if _is_tokenizers(name) else self._model).read_file(name)

    def file_names(self, folder: str = "") -> list[str]:
        at = f"{folder}/" if folder else ""
        own = [name for name in self._model.file_names(folder) if not _is_tokenizers(at + name)]
        return sorted([*own, *(name for name in self._files.file_names(folder) if _is_tokenizers(at + name))])

    def where(self, name: str) -> str:
        return (self._files if _is_tokenizers(name) else self._model).where(name)

    def chat_template(self) -> ChatTemplate | None:
        found = super().chat_template()
        return self._model.chat_template() if found is None else found

    def generation_config(self, *, recommended: bool = True) -> GenerationConfig:
        return self._model.generation_config(recommended=recommended)

    def pooling(self) -> Pooling:
        return self._model.pooling()


def _is_tokenizers(path: str) -> bool:
    return path in TOKENIZER_FILES or path.startswith(f"{TEMPLATES_FOLDER}/")
