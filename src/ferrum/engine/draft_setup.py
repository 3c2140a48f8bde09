"""From options to the drafter of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrum.contract.io_types import ModelInfo
from ferrum.core.config import NGRAM, EngineConfig, ModelConfig
from ferrum.core.errors import CheckpointError, ConfigError, ModelNotFound
from ferrum.core.span_checks import is_one_of
from ferrum.core.values import shown
from ferrum.scheduler.step_cost_model import StepCosts
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.predicted_output import PredictionProposer
from ferrum.speculative.proposer import Proposer
from ferrum.speculative.speculator import Speculator
from ferrum.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from ferrum.runtime.local_executor import LocalExecutor

DRAFT_MODEL: Final = "draft_model"


def flat_speculative(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which `speculative` is a name: its other form is `{"method", "model", "num_speculative_tokens"}`.

    Raises:
        ConfigError: the mapping says something else, or not enough.
    """
    given = options.get("speculative")
    if not isinstance(given, Mapping):
        return dict(options)
    unknown = given.keys() - {"method", "model", "num_speculative_tokens"}
    if unknown:
        raise ConfigError(f"has no field {shown(min(unknown, key=str))}", param="speculative")
    method = given.get("method", NGRAM if given.get("model") is None else DRAFT_MODEL)
    if not is_one_of(method, (NGRAM, DRAFT_MODEL)):
        raise ConfigError(f"method must be {NGRAM} or {DRAFT_MODEL}, not {shown(method)}", param="speculative")
    if (method == DRAFT_MODEL) != (given.get("model") is not None):
        raise ConfigError(f"a model is given for {DRAFT_MODEL}, and for nothing else", param="speculative")
    count = {name: given[name] for name in ("num_speculative_tokens",) if name in given}
    return {**options, **count, "speculative": given.get("model", NGRAM)}


def draft_directory(config: EngineConfig, tokenizer: Tokenizer | None) -> str | None:
    """Where the draft model is; None where the options name none.

    Args:
        config: the options.
        tokenizer: the target's.

    Raises:
        ModelNotFound: there is no such model.
        ConfigError: its tokenizer is another one.
    """
    if config.speculative in (None, NGRAM):
        return None
    assert config.speculative is not None
    directory = _found(config.speculative)
    theirs = load_tokenizer(directory)
    if tokenizer is not None and theirs is not None and (token := _first_difference(tokenizer, theirs)) is not None:
        raise ConfigError(
            f"the draft model's tokenizer is another one: token {token} differs, and guesses are token ids",
            param="speculative",
        )
    return str(directory)


def _found(name: str) -> Path:
    """The directory of a draft model. Raises ModelNotFound, or ConfigError for a name that no model can have."""
    from ferrum.runtime.hub import resolve_model

    try:
        return resolve_model(name)
    except (ModelNotFound, ConfigError) as error:
        raise error.about("speculative") from None


def _first_difference(ours: Tokenizer, theirs: Tokenizer) -> int | None:
    """The first id that the two do not mean the same by."""
    for token in range(max(ours.vocab_size, theirs.vocab_size)):
        if ours.token_bytes(token) != theirs.token_bytes(token):
            return token
    return None


def draft_config(config: EngineConfig, kv_capacity: int) -> ModelConfig | None:
    """How the draft model that the options name is loaded: as the target is, with room for as many tokens."""
    if config.speculative is None or config.speculative == NGRAM:
        return None
    return replace(config.model, model=config.speculative, max_sequence_length=None, kv_capacity=kv_capacity)


def load_draft_model(config: EngineConfig, target: LocalExecutor) -> DraftModel | None:
    """The draft model that the options name.

    Raises:
        ModelNotFound: there is no such model.
        ConfigError: its vocabulary is another one.
        CheckpointError: it is damaged.
    """
    from ferrum.runtime.load import build_executor

    options = draft_config(config, target.kv_capacity())
    if options is None:
        return None
    options = replace(options, model=str(_found(options.model)))
    executor = build_executor(options)
    try:
        least = partial(_common_tokens, config.model.model, options.model, target.info.vocab_size)
        check_vocabularies(target.info, executor.info, least)
    except (ConfigError, CheckpointError):
        executor.shutdown()
        raise
    return DraftModel(executor, StepCosts(), StepCosts())


def check_vocabularies(target: ModelInfo, draft: ModelInfo, least: Callable[[], int]) -> None:
    """Refuse a draft model that has more tokens than the target, or fewer than `least`.

    The smaller models of a family often have fewer rows that stand for nothing behind those of the tokenizer's tokens:
    Qwen2.5's have 151,936, and from 7B on 152,064.

    Args:
        target, draft: the models.
        least: asked where the draft model has fewer.

    Raises:
        ConfigError: the reason.
        CheckpointError: as `least`.
    """
    ours, theirs = target.vocab_size, draft.vocab_size
    if theirs > ours or (theirs < ours and theirs < least()):
        raise ConfigError(
            f"the draft model has {theirs} tokens and the model {ours}: guesses need one vocabulary",
            param="speculative",
        )


def _common_tokens(target: str, draft: str, rows: int) -> int:
    """The tokens of the tokenizer of both directories; all of the target's rows where there is no such tokenizer."""
    ours, theirs = load_tokenizer(target), load_tokenizer(draft)
    one = ours is not None and theirs is not None and _first_difference(ours, theirs) is None
    return ours.vocab_size if ours is not None and one else rows


def build_speculator(config: EngineConfig, costs: StepCosts, model: DraftModel | None) -> Speculator:
    """The drafter. What a request predicts of its output is verified whatever the options say."""
    proposers: list[Proposer] = [PredictionProposer()]
    if config.speculative == NGRAM:
        proposers.append(NGramProposer())
    return Speculator(costs, max_draft=config.num_speculative_tokens, proposers=proposers, model=model)
