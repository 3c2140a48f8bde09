"""Builds an engine in its process: the executor of a model, its scheduler, guides and stored prefixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ferrum.cache.page_hashes import PrefixScope
from ferrum.core.config import EngineConfig
from ferrum.core.errors import ConfigError
from ferrum.core.option_fields import path_of
from ferrum.engine.draft_setup import build_speculator, load_draft_model
from ferrum.engine.host import Built
from ferrum.engine.messages import EngineInfo
from ferrum.engine.progress import loading_bar
from ferrum.guides.compiled_guides import CompiledGuides
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.step_plan import StepCosts

if TYPE_CHECKING:
    from ferrum.contract.model_info import ExecutorTraits
    from ferrum.engine.engine_executor import EngineExecutor
    from ferrum.engine.held_images import StoredRows, Tower
    from ferrum.runtime.kv_tiers.page_tier import PageFiles
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
        # These import numpy and the kernels: in the engine's process only.
        from ferrum.runtime.load import build_executor
        from ferrum.runtime.local_executor import LocalStepExecutor

        config = self.config
        open_tower, nbytes = _tower(self.source, config)
        with loading_bar(self.name) as progress:
            executor = build_executor(
                LocalStepExecutor,
                config.model,
                run_ahead=config.run_ahead,
                checkpoint=self.source.checkpoint(),
                progress=progress,
                reserved=config.reserved_bytes + nbytes,
            )
        draft = None if self.draft is None else load_draft_model(config, executor, self.source, self.draft)
        built = with_scheduler(executor, config, self.name, draft, self.source)
        if open_tower is None:
            return built
        return replace(
            built,
            info=replace(built.info, image_memory=nbytes),
            open_tower=open_tower,
            image_bytes=config.image_bytes,
            image_rows=_image_rows(executor, config, self.source) if built.info.prefix_cache else None,
        )


def _tower(source: ModelSource, config: EngineConfig) -> tuple[Callable[[], Tower] | None, int]:
    """Return what opens a model's tower for images, and the bytes of it and its rows; None and 0 without one."""
    if not source.may_see():
        return None, 0  # most models, which need not wait for the modules below
    from ferrum.runtime.image_tower import open_tower, tower_bytes

    nbytes = tower_bytes(source, config.model)
    return (partial(open_tower, source, config.model), nbytes + config.image_bytes) if nbytes else (None, 0)


def _image_rows(executor: EngineExecutor, config: EngineConfig, source: ModelSource) -> StoredRows | None:
    """Return the rows of images in the directory of shared prefixes; None without one."""
    scope, files = _prefixes(executor.traits, executor.pages.page_size, config, source)
    if files is None:
        return None
    from ferrum.runtime.kv_tiers.image_rows import ImageRows

    return ImageRows(files, scope)


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
        ranks=executor.traits.ranks,
    )


def _tokenizer_of(config: EngineConfig, source: ModelSource | None) -> Tokenizer | None:
    """Return the tokenizer of the model, for its guides: another object than that of the clients."""
    if source is None:
        from ferrum.sources.open_model import open_model

        source = open_model(config.model.model, models_dir=config.model.models_dir, mmproj=config.model.mmproj)
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
) -> tuple[PrefixScope, PageFiles | None]:
    """Return what the KV values of equal tokens depend on, and the files of shared prefixes, if there are any."""
    model, files = config.model.model, None
    if config.prefix_cache_dir is not None:
        from ferrum.runtime.kv_tiers.page_tier import PageFiles
        from ferrum.sources.open_model import open_model

        directory = path_of("prefix_cache_dir", config.prefix_cache_dir)
        files = PageFiles(directory, config.prefix_cache_gib << 30)
        source = source or open_model(model, models_dir=config.model.models_dir, mmproj=config.model.mmproj)
        model = source.digest(directory)
    scope = PrefixScope(
        model=model,
        weights=traits.weights,
        kv_format=traits.kv_dtype,
        page_size=page_size,
        numerics_id=traits.numerics_id,
    )
    return scope, files
