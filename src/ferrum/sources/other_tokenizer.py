"""A model whose text files come from another place, which the option `tokenizer` names.

They are the tokenizer, the chat templates and the generation defaults. All others stay the model's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import ConfigError, HubUnreachable, ModelNotFound
from ferrum.sources.hub import locate
from ferrum.sources.hub_cache import snapshot_of
from ferrum.sources.hub_files import HubName, hub_errors
from ferrum.sources.model_source import DirectoryModel, ModelSource
from ferrum.sources.open_model import NO_PROJECTOR, open_model
from ferrum.text.generation_config import load_generation_config
from ferrum.text.model_files import DirectoryFiles, ModelFiles, read_json_object
from ferrum.text.text_config import text_config
from ferrum.text.tokenizer_config import TEMPLATES_FOLDER

if TYPE_CHECKING:
    from ferrum.core.types import Pooling
    from ferrum.sources.checkpoint import TensorStore
    from ferrum.sources.tower_checkpoint import TowerParts
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
_DEFAULTS: Final = "generation_config.json"
_CONFIG: Final = "config.json"
"""Its token ids are defaults of generation; the network's configuration stays the model's."""


def with_tokenizer(model: ModelSource, name: str, models_dir: str | None = None) -> ModelSource:
    """Return a model with the tokenizer, chat template and generation defaults of a directory or hub model.

    Of a hub model nothing else is fetched.

    Raises:
        ConfigError: it has no `tokenizer.json`, or the name is that of a file; `param` is `tokenizer`.
        ModelNotFound: there is no such directory or hub model.
        CheckpointError: its generation defaults are damaged.
    """
    try:
        files = DirectoryFiles(_directory(name, models_dir))
    except ModelNotFound as error:
        raise error.about("tokenizer") from None
    if files.read_file(TOKENIZER) is None:
        raise ConfigError(f"{name} has no {TOKENIZER}: name the directory of the original model", param="tokenizer")
    return OtherTokenizer(model, files)


def text_source(name: str, models_dir: str | None = None) -> ModelSource:
    """Return a model for its tokenizer and chat template: of a hub model nothing else is fetched.

    Raises: as `open_model`.
    """
    found = locate(name, models_dir=models_dir)
    if isinstance(found, HubName) and found.whole:
        texts = DirectoryModel(_text_files(found))
        if texts.read_file(TOKENIZER) is not None:
            return texts
    return open_model(name, models_dir=models_dir, mmproj=NO_PROJECTOR)


def _directory(name: str, models_dir: str | None) -> Path:
    found = locate(name, models_dir=models_dir)
    if isinstance(found, Path) and found.is_dir():
        return found
    if not isinstance(found, HubName) or not found.whole:
        raise ConfigError(f"must be a directory or a hub id, not the file {name}", param="tokenizer")
    return _text_files(found)


def _text_files(name: HubName) -> Path:
    """Return a directory with the text files of a hub model."""
    from huggingface_hub import snapshot_download

    repo, revision = name.repo, name.revision
    wanted = [*TOKENIZER_FILES, _DEFAULTS, _CONFIG, f"{TEMPLATES_FOLDER}/*.jinja"]
    try:
        with hub_errors(repo, revision):
            return Path(snapshot_download(repo, revision=revision, allow_patterns=wanted))
    except HubUnreachable:
        cached = snapshot_of(repo, revision)  # another program may have fetched less, yet enough
        if cached is None or not (cached / TOKENIZER).is_file():
            raise
        return cached


class OtherTokenizer(ModelSource):
    """A model with the text files of another place.

    Args:
        model: gives everything else.
        files: hold the tokenizer, and perhaps a chat template, generation defaults and a configuration with token ids;
            what they lack stays the model's.

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
        if name == _DEFAULTS:
            return self._defaults()
        if name == _CONFIG:
            content = self._files.read_file(name)
            return self._model.read_file(name) if content is None else content
        return (self._files if _is_tokenizers(name) else self._model).read_file(name)

    def file_names(self, folder: str = "") -> list[str]:
        at = f"{folder}/" if folder else ""
        own = [name for name in self._model.file_names(folder) if not _is_tokenizers(at + name)]
        theirs = [name for name in self._files.file_names(folder) if _is_tokenizers(at + name)]
        defaults = [_DEFAULTS] if not folder and self._defaults() is not None else []
        return sorted({*own, *theirs, *defaults})

    def where(self, name: str) -> str:
        theirs = _is_tokenizers(name) or (name in (_DEFAULTS, _CONFIG) and self._files.read_file(name) is not None)
        return (self._files if theirs else self._model).where(name)

    def copy_file(self, name: str, target: Path) -> None:
        if name == _DEFAULTS or _is_tokenizers(name):
            target.write_bytes(self.read_file(name) or b"")
        else:
            self._model.copy_file(name, target)

    def chat_template(self) -> ChatTemplate | None:
        found = super().chat_template()
        return self._model.chat_template() if found is None else found

    def generation_config(self, *, recommended: bool = True) -> GenerationConfig:
        own = self._model.generation_config(recommended=recommended)
        if not any(name in self._files.file_names() for name in (_DEFAULTS, _CONFIG)):
            return own
        theirs = load_generation_config(self, recommended=recommended)
        if self._files.read_file(_DEFAULTS) is not None:
            return theirs
        return replace(theirs, sampling=own.sampling, ignored=own.ignored)

    def may_see(self) -> bool:
        return self._model.may_see()

    def tower(self) -> TowerParts:
        return self._model.tower()

    def pooling(self) -> Pooling:
        return self._model.pooling()

    def _defaults(self) -> bytes | None:
        """Return `generation_config.json` with the token ids that hold for both places.

        The tokens that end a text are those of the other place's generation defaults; if these name none, those of its
        configuration and of the model.
        """
        defaults = read_json_object(self._files, _DEFAULTS)
        config = read_json_object(self._files, _CONFIG)
        if defaults is None and config is None:
            return self._model.read_file(_DEFAULTS)
        own = self._model.generation_config(recommended=False)
        given, theirs = defaults or {}, text_config(config or {})
        ids: dict[str, Any] = {"bos_token_id": own.bos_token_id, "pad_token_id": own.pad_token_id}
        ids |= {name: theirs[name] for name in ids if theirs.get(name) is not None}
        ids["eos_token_id"] = list(dict.fromkeys([*_listed(theirs.get("eos_token_id")), *own.eos_token_ids])) or None
        ids |= {name: given[name] for name in ids if given.get(name) is not None}
        rest = read_json_object(self._model, _DEFAULTS) or {} if defaults is None else given
        return json.dumps({**rest, **{name: value for name, value in ids.items() if value is not None}}).encode()


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_tokenizers(path: str) -> bool:
    return path in TOKENIZER_FILES or path.startswith(f"{TEMPLATES_FOLDER}/")
