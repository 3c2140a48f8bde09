"""`EngineClient`: what `LLM` and `AsyncEngine` share, from opening an engine to closing it.

How requests are sent and read is in the two clients.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ferrum.client.model_client import ModelClient, Parts
from ferrum.client.records.record_files import RecordFiles
from ferrum.client.records.recorder import RecordedEngine, Recorder
from ferrum.core.config import EngineConfig, ModelConfig, Switches, awaited_ranks
from ferrum.core.errors import ConfigError
from ferrum.core.logging import info_once, warn_once
from ferrum.core.option_fields import as_text, path_of
from ferrum.core.params import SamplingParams
from ferrum.core.ranks import check_launched
from ferrum.engine.draft_setup import draft_source, flat_speculative
from ferrum.engine.host import Host, ThreadHost
from ferrum.engine.messages import EngineInfo
from ferrum.engine.recipe import EngineRecipe
from ferrum.text.generation_config import GenerationConfig
from ferrum.text.pooling import module_file
from ferrum.text.reranker import load_reranker

if TYPE_CHECKING:
    from ferrum.client.engine_process import Child
    from ferrum.images.image_processor import ImageProcessor
    from ferrum.sources.model_source import ModelSource
    from ferrum.text.tokenizer import Tokenizer

# ---- Builds the parts of a client from a model's name and options: host, tokenizer, chat template, defaults ----


def engine_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    """Return the configuration for flat options: fields of `EngineConfig` and `ModelConfig` by name.

    Raises:
        ConfigError: an unknown option or an invalid value; `param` names the option.
    """
    options = {name: as_text(value) for name, value in flat_speculative(options).items()}
    of_model = {field.name for field in fields(ModelConfig)} - {"model", "switches"}
    of_engine = {field.name for field in fields(EngineConfig)} - {"model"}
    for name in options:
        if name not in of_model | of_engine:
            known = ", ".join(sorted(of_model | of_engine))
            raise ConfigError(f"unknown option (known: {known})", param=name)
    chosen = {name: value for name, value in options.items() if name in of_model}
    loaded = ModelConfig(model=as_text(model), switches=Switches.from_environment(), **chosen)
    config = EngineConfig(model=loaded, **{name: value for name, value in options.items() if name in of_engine})
    check_launched(awaited_ranks(), loaded.tensor_parallel_size, config.replicas)
    return config


def build(model: str, *, child: Child | None = None, source: ModelSource | None = None, **options: Any) -> Parts:
    """Return the parts of a client for a model.

    Args:
        model: a directory, a GGUF file, a hub id, or the name of the built-in model.
        child: the process of the engine, for the host `process`; None: a new one.
        source: the model itself, which `model` then only names; None opens the model of that name.
        options: see `engine_config`.

    Raises:
        ConfigError: as `engine_config`.
        ModelNotFound: there is no such model.
        CheckpointError: a damaged tokenizer or configuration file. Weights are read when the host starts.
    """
    from ferrum.sources.open_model import open_model

    config = engine_config(model, options)
    model = config.model.model
    if config.tool_format is not None:
        from ferrum.formats.find import chosen_format

        chosen_format(config.tool_format)  # fails before the model is loaded
    # The engine loads this source: another look-up at the hub could resolve to another revision.
    source = source or open_model(model, models_dir=config.model.models_dir, mmproj=config.model.mmproj)
    if config.tokenizer is not None:
        from ferrum.sources.other_tokenizer import with_tokenizer

        source = with_tokenizer(source, config.tokenizer, config.model.models_dir)
    tokenizer = source.tokenizer()
    draft = draft_source(config, tokenizer)
    speculative = config.speculative if draft is None else draft.name
    found = replace(config, model=replace(config.model, model=source.name), speculative=speculative)
    recipe = EngineRecipe(found, model, source, draft)
    return Parts(
        host=_host(config, recipe, child),
        tokenizer=tokenizer,
        files=source,
        generation=_generation(
            source.generation_config(recommended=config.generation_config == "auto"),
            eos=() if tokenizer is None else tokenizer.eos_token_ids,
        ),
        chat_template=source.chat_template(),
        special_tokens=source.special_tokens(),
        max_requests=config.max_queue,
        config=config,
        recorder=_recorder(config, source),
        pooling=source.pooling,
        embeds=module_file(source, "Pooling") is not None,
        reranker=partial(load_reranker, source, tokenizer),
        images=partial(_image_processor, source, tokenizer),
    )


def _image_processor(source: ModelSource, tokenizer: Tokenizer | None) -> ImageProcessor:
    from ferrum.sources.tower_files import image_processor, read_tower  # texts need neither

    return image_processor(read_tower(source), tokenizer)


def _host(config: EngineConfig, recipe: EngineRecipe, child: Child | None) -> Host:
    if config.host != "process":
        if config.replicas > 1:
            raise ConfigError("several engines are several processes: set host to process", param="replicas")
        return ThreadHost(recipe)
    from ferrum.client.engine_process import ProcessHost  # slow: it takes 20 ms, and a thread host does without it

    if config.replicas == 1:
        return ProcessHost(recipe, child)
    from ferrum.client.replicas.process_replicas import ProcessReplicas  # one engine does without it
    from ferrum.client.replicas.replica_host import ReplicaHost

    source = ProcessReplicas(recipe, config.replicas, child, recipe.source.path)
    return ReplicaHost(source, stall_seconds=config.stall_seconds)


def _recorder(config: EngineConfig, model: ModelSource) -> Callable[[EngineInfo], Recorder] | None:
    """Return what creates the recorder; None if requests are not recorded. Raises ConfigError."""
    if config.record_dir is None:
        return None
    files = RecordFiles(path_of("record_dir", config.record_dir), config.record_gib << 30)
    source = RecordedEngine(config, model, files.directory)
    return lambda info: Recorder(files, lambda: source.origin(info))


def _generation(found: GenerationConfig, *, eos: tuple[int, ...]) -> GenerationConfig:
    """Return the checkpoint's generation defaults with all end tokens, and log them.

    Recommended sampling parameters are logged since they apply to requests without parameters.
    """
    if found.sampling:
        values = ", ".join(f"{name}={value}" for name, value in found.sampling.items())
        info_once(f"sampling defaults from generation_config.json: {values} (disable with generation_config: none)")
    if found.ignored:
        warn_once(f"ignored fields of generation_config.json: {', '.join(found.ignored)}")
    # Fine-tuned models often declare their end-of-turn token in the tokenizer's files only.
    return replace(found, eos_token_ids=tuple(dict.fromkeys((*found.eos_token_ids, *eos))))


class EngineClient(ABC):
    """A client of one engine; the engine ends with the interpreter if it is not closed before.

    It serves the process that opened it. In a forked process every request is refused with EngineDead.

    Args:
        model: a directory, a GGUF file, a hub id, or the name of the built-in model.
        options: of the model and the engine, see `ferrum.core.config`; and `source`, see `build`.

    Attributes:
        client: the tokenizer, chat template and request queue of the model.
        info: what is served, and how.

    Raises:
        FerrumError: the model cannot be found or loaded, or the options cannot run.
    """

    client: ModelClient
    info: EngineInfo

    def __init__(self, model: str, **options: Any) -> None:
        self._open(build(model, **options))

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """Return a client of an engine that is already assembled, or of a fake."""
        client = cls.__new__(cls)
        client._open(parts)
        return client

    def _open(self, parts: Parts) -> None:
        self.client = self._start(parts)
        self.info = self.client.info
        # The engine's thread would keep itself and the model alive after the last reference to this object is gone,
        # and a thread that computes while the interpreter ends aborts the process.
        self._finalizer = weakref.finalize(self, self.client.router.close)
        try:
            self.client.adapters.load_all(() if parts.config is None else parts.config.lora)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _start(self, parts: Parts) -> ModelClient:
        """Start the engine."""

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The checkpoint's recommended parameters, used for requests that name none."""
        return self.client.default_params

    def close(self) -> None:
        """End every live request, and the engine. Idempotent."""
        self.client.router.close()
        self._finalizer.detach()
