"""Builds an engine's drafter from its options: proposers, draft model, checks of the draft model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ferrum.contract.model_info import ModelInfo
from ferrum.core.config import NGRAM, EngineConfig, ModelConfig
from ferrum.core.errors import CheckpointError, ConfigError, ModelNotFound
from ferrum.core.span_checks import is_one_of
from ferrum.core.values import shown
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.guide_proposer import GuideProposer
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.predicted_output import PredictionProposer
from ferrum.speculative.proposer import Proposer
from ferrum.speculative.speculator import Speculator
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ferrum.engine.engine_executor import EngineExecutor
    from ferrum.sources.model_source import ModelSource

DRAFT_MODEL: Final = "draft_model"


def flat_speculative(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with `speculative` as a name, converted from `{"method", "model", "num_speculative_tokens"}`.

    Raises:
        ConfigError: unknown or missing fields.
    """
    speculative = options.get("speculative")
    if not isinstance(speculative, Mapping):
        return dict(options)
    unknown = speculative.keys() - {"method", "model", "num_speculative_tokens"}
    if unknown:
        raise ConfigError(f"unknown field {shown(min(unknown, key=str))}", param="speculative")
    method = speculative.get("method", NGRAM if speculative.get("model") is None else DRAFT_MODEL)
    if not is_one_of(method, (NGRAM, DRAFT_MODEL)):
        raise ConfigError(f"method must be {NGRAM} or {DRAFT_MODEL}, not {shown(method)}", param="speculative")
    if (method == DRAFT_MODEL) != (speculative.get("model") is not None):
        raise ConfigError(f"model is required for the method {DRAFT_MODEL} only", param="speculative")
    count = {name: speculative[name] for name in ("num_speculative_tokens",) if name in speculative}
    return {**options, **count, "speculative": speculative.get("model", NGRAM)}


def draft_source(config: EngineConfig, tokenizer: Tokenizer | None) -> ModelSource | None:
    """Return the draft model; None if the options name none.

    Args:
        config: the options.
        tokenizer: of the target model.

    Raises:
        ModelNotFound: there is no such model.
        ConfigError: its tokenizer differs.
    """
    if config.speculative in (None, NGRAM):
        return None
    assert config.speculative is not None
    draft = _open(config.speculative, config.model.models_dir)
    theirs = draft.tokenizer()
    if tokenizer is not None and theirs is not None and (token := _first_difference(tokenizer, theirs)) is not None:
        raise ConfigError(
            f"the draft model's tokenizer differs at token {token}: use a draft model with the same tokenizer",
            param="speculative",
        )
    return draft


def _open(name: str, models_dir: str | None) -> ModelSource:
    """Return a draft model. Raises ModelNotFound, or ConfigError for an invalid name."""
    from ferrum.sources.open_model import NO_PROJECTOR, open_model

    try:
        return open_model(name, models_dir=models_dir, mmproj=NO_PROJECTOR)
    except (ModelNotFound, ConfigError) as error:
        raise error.about("speculative") from None


def _first_difference(ours: Tokenizer, theirs: Tokenizer) -> int | None:
    """Return the first token id with different bytes, if any."""
    for token in range(max(ours.vocab_size, theirs.vocab_size)):
        if ours.token_bytes(token) != theirs.token_bytes(token):
            return token
    return None


def draft_config(config: EngineConfig, kv_capacity: int) -> ModelConfig | None:
    """Return the configuration of the draft model: that of the target, with the same KV capacity and on one rank."""
    if config.speculative is None or config.speculative == NGRAM:
        return None
    one_rank = replace(config.model, tensor_parallel_size=1)
    return replace(one_rank, model=config.speculative, max_sequence_length=None, kv_capacity=kv_capacity)


def load_draft_model(
    config: EngineConfig, target: EngineExecutor, source: ModelSource, draft: ModelSource
) -> DraftModel:
    """Load a draft model.

    Args:
        config: the options, which name a draft model.
        target: the executor of the model.
        source, draft: the model and the draft model.

    Raises:
        ConfigError: its vocabulary differs.
        CheckpointError: it is damaged.
    """
    from ferrum.runtime.load import build_executor
    from ferrum.runtime.local_executor import LocalStepExecutor

    options = draft_config(config, target.kv_capacity())
    assert options is not None, "the options name a draft model"
    executor = build_executor(LocalStepExecutor, options, checkpoint=draft.checkpoint())
    try:
        min_tokens = partial(_common_tokens, source, draft, target.info.vocab_size)
        check_vocabularies(target.info, executor.info, min_tokens)
    except (ConfigError, CheckpointError):
        executor.shutdown()
        raise
    return DraftModel(executor, StepCosts(), StepCosts())


def check_vocabularies(target: ModelInfo, draft: ModelInfo, min_tokens: Callable[[], int]) -> None:
    """Refuse a draft model with more tokens than the target, or with fewer than `min_tokens`.

    Smaller models of a family often have fewer padding rows behind the tokenizer's tokens: Qwen2.5 models have 151,936
    rows, and 152,064 from 7B on.

    Args:
        target, draft: the models.
        min_tokens: called if the draft model has fewer tokens.

    Raises:
        ConfigError: the vocabularies differ.
        CheckpointError: as `min_tokens`.
    """
    ours, theirs = target.vocab_size, draft.vocab_size
    if theirs > ours or (theirs < ours and theirs < min_tokens()):
        raise ConfigError(
            f"the draft model has {theirs} tokens, the model {ours}: use a draft model with the same vocabulary",
            param="speculative",
        )


def _common_tokens(target: ModelSource, draft: ModelSource, rows: int) -> int:
    """Return the size of the common tokenizer; the target's number of rows if there is none."""
    ours, theirs = target.tokenizer(), draft.tokenizer()
    one = ours is not None and theirs is not None and _first_difference(ours, theirs) is None
    return ours.vocab_size if ours is not None and one else rows


def build_speculator(config: EngineConfig, costs: StepCosts, model: DraftModel | None) -> Speculator:
    """Return the drafter. What grammars force and the predictions of requests are used with any option."""
    proposers: list[Proposer] = [GuideProposer(), PredictionProposer()]
    if config.speculative == NGRAM:
        proposers.append(NGramProposer())
    return Speculator(costs, max_draft=config.num_speculative_tokens, proposers=proposers, model=model)
