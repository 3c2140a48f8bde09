"""From options to the drafter of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.checks import is_one_of
from ferrum.core.config import NGRAM, EngineConfig, ModelConfig
from ferrum.core.contract import ModelInfo
from ferrum.core.errors import ConfigError, ModelNotFound
from ferrum.core.shown import shown
from ferrum.scheduler.costs import StepCosts
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.prediction import PredictionProposer
from ferrum.speculative.proposer import Proposer
from ferrum.speculative.speculator import Speculator
from ferrum.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from ferrum.runtime.local import LocalExecutor

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
    executor = build_executor(replace(options, model=str(_found(options.model))))
    try:
        check_vocabularies(target.info, executor.info)
    except ConfigError:
        executor.shutdown()
        raise
    return DraftModel(executor, StepCosts(), StepCosts())


def check_vocabularies(target: ModelInfo, draft: ModelInfo) -> None:
    """Refuse a draft model that has more or fewer tokens than the target.

    Raises:
        ConfigError: the reason.
    """
    ours, theirs = target.vocab_size, draft.vocab_size
    if ours != theirs:
        raise ConfigError(
            f"the draft model has {theirs} tokens and the model {ours}: guesses need one vocabulary",
            param="speculative",
        )


def build_speculator(config: EngineConfig, costs: StepCosts, model: DraftModel | None) -> Speculator:
    """The drafter. What a request predicts of its output is verified whatever the options say."""
    proposers: list[Proposer] = [PredictionProposer()]
    if config.speculative == NGRAM:
        proposers.append(NGramProposer())
    return Speculator(costs, most=config.num_speculative_tokens, proposers=proposers, model=model)
