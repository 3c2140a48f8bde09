"""Builds the parts of a client from a model's name and options: host, tokenizer, chat template, defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrum.cache.page_hashes import PrefixScope
from ferrum.core.config import EngineConfig, ModelConfig, Switches
from ferrum.core.errors import ConfigError
from ferrum.core.logging import info_once, warn_once
from ferrum.core.option_fields import as_text, path_of
from ferrum.engine.draft_setup import build_speculator, draft_source, flat_speculative, load_draft_model
from ferrum.engine.hosts.host import Built, Host, ThreadHost
from ferrum.engine.messages import EngineInfo
from ferrum.engine.model_client import Parts
from ferrum.engine.progress import loading_bar
from ferrum.engine.records.record_files import RecordFiles
from ferrum.engine.records.recorder import Recorder, Source
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.step_plan import StepCosts
from ferrum.structured.compiled_guides import CompiledGuides
from ferrum.text.generation_config import GenerationConfig
from ferrum.text.pooling import module_file
from ferrum.text.reranker import load_reranker

if TYPE_CHECKING:
    from ferrum.contract.capabilities import ExecutorTraits
    from ferrum.engine.engine_executor import EngineExecutor
    from ferrum.engine.hosts.process import Child
    from ferrum.runtime.kv_tiers.page_files import PageFiles
    from ferrum.sources.model_source import ModelSource
    from ferrum.speculative.draft_model import DraftModel
    from ferrum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """A recipe that loads the model and adds a scheduler. Picklable, so that it can run in the engine's process.

    Attributes:
        config: the options.
        name: the model's name for clients.
        source: the model.
        draft: the draft model, if the options name one.
    """

    config: EngineConfig
    name: str
    source: ModelSource
    draft: ModelSource | None = None

    def __call__(self) -> Built:
        from ferrum.runtime.load import build_executor  # imports numpy and the kernels: in the engine's process only

        config = self.config
        with loading_bar(self.name) as progress:
            executor = build_executor(
                config.model,
                run_ahead=config.run_ahead,
                checkpoint=self.source.checkpoint(),
                progress=progress,
                reserved=config.reserved_bytes,
            )
        draft = None if self.draft is None else load_draft_model(config, executor, self.source, self.draft)
        return with_scheduler(executor, config, self.name, draft, self.source)


def with_scheduler(
    executor: EngineExecutor,
    config: EngineConfig,
    name: str,
    draft_model: DraftModel | None = None,
    source: ModelSource | None = None,
) -> Built:
    """Return the parts of an engine for a ready executor.

    Args:
        executor: runs the steps.
        config: the options of model and engine.
        name: the model's name for clients.
        draft_model: the draft model, if the options name one.
        source: the model; None opens the one that the options name.
    """
    context = executor.traits.max_sequence_length  # the scheduler counts with the pool: the last token is not stored
    page_size = executor.pages.page_size
    costs = StepCosts()
    shares = config.prefix_cache and _shares_prefixes(executor, config)
    prefixes, files = _prefixes(executor.traits, page_size, config, source) if shares else (None, None)
    if files is not None or config.swap_gib:
        executor.keep_pages(
            files=files, swap_bytes=config.swap_gib << 30, recompute=lambda: costs.predict(page_size, 0)
        )
    scheduler = Scheduler(
        executor.pages,
        policy=POLICIES[config.policy],
        max_tokens_per_step=config.max_tokens_per_step,
        max_sequences=min(config.max_sequences, executor.traits.max_batch_size),
        max_sequence_length=context,
        drafter=build_speculator(config, costs, draft_model),
        costs=costs,
        decode_seconds=config.decode_seconds or None,
        prefixes=prefixes,
    )
    executor.run_ahead(config.run_ahead)
    info = _info(executor, config, name, 0 if draft_model is None else draft_model.memory_plan.own, shares=shares)
    guides = CompiledGuides(partial(_tokenizer_of, config, source), executor.info.vocab_size)
    return Built(
        executor,
        scheduler,
        info,
        guides,
        recorded=config.record_dir is not None,
        depth=config.run_ahead,
        adapter_bytes=config.adapter_bytes,
    )


def _info(executor: EngineExecutor, config: EngineConfig, name: str, draft_memory: int, *, shares: bool) -> EngineInfo:
    """Return what clients need to know; `shares`: sequences share prefixes."""
    return EngineInfo(
        model=name,
        vocab_size=executor.info.vocab_size,
        max_sequence_length=executor.traits.max_sequence_length,
        kv_capacity=executor.kv_capacity(),
        numerics_id=executor.traits.numerics_id,
        kernels=executor.traits.kernels,
        page_size=executor.pages.page_size,
        prefix_cache=shares,
        speculative=config.speculative,
        num_speculative_tokens=config.num_speculative_tokens,
        weights=executor.traits.weights,
        kv_format=str(executor.traits.kv_dtype),
        memory=executor.traits.memory,
        draft_memory=draft_memory,
    )


def _tokenizer_of(config: EngineConfig, source: ModelSource | None) -> Tokenizer | None:
    """Return the tokenizer of the model, for its guides: another object than that of the clients."""
    if source is None:
        from ferrum.sources.open_model import open_model

        source = open_model(config.model.model, models_dir=config.model.models_dir)
    return source.tokenizer()


def _shares_prefixes(executor: EngineExecutor, config: EngineConfig) -> bool:
    """Return whether the model's sequences can share pages. Raises ConfigError for options that need it."""
    if executor.pages.states is not None:
        for name in ("prefix_cache_dir", "swap_gib"):
            if getattr(config, name):
                reason = "keeps pages only, and this model's layers have states, which stay in memory"
                raise ConfigError(reason, param=name)
    return executor.pages.shares_prefixes


def _prefixes(
    traits: ExecutorTraits, page_size: int, config: EngineConfig, source: ModelSource | None
) -> tuple[PrefixScope | None, PageFiles | None]:
    """Return what the KV values of equal tokens depend on, and the files of shared prefixes, if there are any."""
    model, files = config.model.model, None
    if config.prefix_cache_dir is not None:
        from ferrum.runtime.kv_tiers.page_files import PageFiles
        from ferrum.sources.open_model import open_model

        directory = path_of("prefix_cache_dir", config.prefix_cache_dir)
        files = PageFiles(directory, config.prefix_cache_gib << 30)
        model = (source or open_model(model, models_dir=config.model.models_dir)).digest(directory)
    scope = PrefixScope(
        model=model,
        weights=traits.weights,
        kv_format=traits.kv_dtype,
        page_size=page_size,
        numerics_id=traits.numerics_id,
    )
    return scope, files


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
    return EngineConfig(model=loaded, **{name: value for name, value in options.items() if name in of_engine})


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
        from ferrum.formats.chosen import chosen_format

        chosen_format(config.tool_format)  # fails before the model is loaded
    # The engine loads this source: another look-up at the hub could resolve to another revision.
    source = source or open_model(model, models_dir=config.model.models_dir)
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
    )


def _host(config: EngineConfig, recipe: EngineRecipe, child: Child | None) -> Host:
    if config.host != "process":
        return ThreadHost(recipe)
    from ferrum.engine.hosts.process import (
        ProcessHost,  # imported late: it takes 20 ms, and a thread host does without it
    )

    return ProcessHost(recipe, child)


def _recorder(config: EngineConfig, model: ModelSource) -> Callable[[EngineInfo], Recorder] | None:
    """Return what creates the recorder; None if requests are not recorded. Raises ConfigError."""
    if config.record_dir is None:
        return None
    files = RecordFiles(path_of("record_dir", config.record_dir), config.record_gib << 30)
    source = Source(config, model, files.directory)
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
