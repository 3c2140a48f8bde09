"""One run of `ferrum bench quality`: models loaded side by side, and a text cut into spans for them.

Each span is one forward pass of every model, so that the logits of one span are held and never those of a whole text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import ferrum
from ferrum.bench.limits import weights
from ferrum.bench.quality import Predictor, QualityReport, Row, Subject, compare
from ferrum.bench.report import Origin
from ferrum.core.config import ModelConfig, Switches
from ferrum.core.errors import ConfigError, FerrumError, ModelNotFound, RequestError
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.operations import F32
from ferrum.kernels.recorded_program import record
from ferrum.runtime.calibration import opening, text_spans
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.model_source import ModelSource
from ferrum.sources.open_model import NO_PROJECTOR, open_model
from ferrum.sources.parameters import Progress

SPAN: Final = 384
"""Tokens of a forward pass."""

DEFAULT_TEXT: Final = Path(ferrum.__file__).parent / "assets" / "quality" / "prose.txt"
"""About 3,000 tokens of English prose, written for this measurement."""

Loading: TypeAlias = Callable[[str], AbstractContextManager[Progress | None]]
"""Returns a context for loading the model of that name, which gives the callback for its progress."""


class LoadedModel:
    """A `Predictor` in this process.

    Args:
        executor: used by this object alone.
        name: of the model, for reports.
    """

    def __init__(self, executor: LocalStepExecutor, name: str) -> None:
        self.executor, self.name = executor, name

    def logits(self, tokens: Sequence[int]) -> F32:
        """Return the logits after each of the tokens, [tokens, V]. Raises the error of the span."""
        span = Span("text", 0, tuple(tokens), Want.LOGITS, Rows.ALL)
        (result,) = self.executor.submit(StepBatch((span,))).result().results
        if isinstance(result, FerrumError):
            raise result
        self.executor.pages.release("text")
        logits: F32 | None = result.logits
        assert logits is not None, "the span asks for them"
        return logits

    @property
    def subject(self) -> Subject:
        """The model's description in a report."""
        traits, lm = self.executor.traits, self.executor.lm
        matrices = weights(record(lm.network) if lm.replay is None else lm.replay.program)
        nbytes = sum(weight.nbytes for weight in matrices)
        return Subject(
            model=self.name,
            format=traits.weights,
            kv_format=traits.kv_dtype.value,
            weight_bytes=nbytes,
            bits=8 * nbytes / sum(math.prod(weight.shape) for weight in matrices),
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """Loaded models and the text that they predict.

    Attributes:
        reference: the model that the others are compared with.
        judged: the others.
        spans: token ids of the text, in parts.
    """

    reference: LoadedModel
    judged: Sequence[Predictor]
    spans: Sequence[Sequence[int]]

    @property
    def passes(self) -> int:
        """Forward passes of the whole trial."""
        return len(self.spans) * (1 + len(self.judged))

    def run(self, text: str, origin: Origin, advance: Callable[[int], object]) -> QualityReport:
        """Measure every model.

        Args:
            text: name of the text.
            origin: for the report.
            advance: called with 1 after each forward pass.
        """
        own, found = compare(self.reference, self.judged, self.spans, advance)
        rows = zip(self.judged, found, strict=True)
        return QualityReport(
            version=QualityReport.LAYOUT,
            origin=origin,
            text=text,
            tokens=sum(map(len, self.spans)),
            span=max(map(len, self.spans)),
            reference=self.reference.subject,
            perplexity=own.perplexity,
            rows=tuple(Row(subject=model.subject, quality=quality) for model, quality in rows),
        )


def config_of(model: str, options: Mapping[str, Any]) -> ModelConfig:
    """Return the options of a model with room for one span. Raises ConfigError for an invalid value."""
    switches = Switches.from_environment()
    return ModelConfig(model=model, max_batch_size=1, kv_capacity=SPAN, switches=switches, **options)


def reference_of(model: str, options: Mapping[str, Any]) -> ModelConfig:
    """Return the options of a reference: float32 holds all numbers of the files exactly."""
    return config_of(model, {**options, "dtype": "float32", "kv_dtype": "float32"})


@contextmanager
def side_by_side(text: str, reference: ModelConfig, judged: Sequence[ModelConfig], loading: Loading) -> Iterator[Trial]:
    """Load the models of a trial, and shut them down at the end.

    Args:
        text: the text itself.
        reference, judged: options of the models, from `reference_of` and `config_of`.
        loading: see `Loading`.

    Raises:
        RequestError: the text has fewer tokens than a span; `param` is `text`.
        ConfigError: the models have different vocabularies, or the reference cannot be loaded in float32.
        ModelNotFound, CheckpointError, CapacityError, Unsupported: as `load_executor`.
    """
    sources = _sources(reference.model, [config.model for config in judged], reference.models_dir)
    tokens, start = _tokens(text, sources)
    with ExitStack() as stack:

        def load(config: ModelConfig) -> LoadedModel:
            with loading(config.model) as progress:
                checkpoint = sources[config.model].checkpoint()
                executor = build_executor(
                    LocalStepExecutor, config, max_rows=SPAN, progress=progress, checkpoint=checkpoint
                )
            return LoadedModel(stack.enter_context(executor), config.model)

        try:
            truth = load(reference)
        except ConfigError as error:
            if error.param != "dtype":  # such as a packed directory, which has a format already
                raise
            raise ConfigError(f"{error.message}; name the model that it was made from", param="against") from None
        models = [_same_vocabulary(load(config), truth) for config in judged]
        longest = min(SPAN, *(each.executor.traits.max_sequence_length for each in (truth, *models)))
        yield Trial(truth, models, text_spans(tokens, start, longest))


def _sources(reference: str, judged: Sequence[str], models_dir: str | None) -> dict[str, ModelSource]:
    """Return the sources of all models by name, the reference first."""
    try:
        found = {reference: open_model(reference, models_dir=models_dir, mmproj=NO_PROJECTOR)}
    except (ModelNotFound, ConfigError) as error:
        raise (error if reference in judged else error.about("against")) from None
    return found | {
        name: open_model(name, models_dir=models_dir, mmproj=NO_PROJECTOR) for name in judged if name != reference
    }


def _tokens(text: str, sources: Mapping[str, ModelSource]) -> tuple[list[int], list[int]]:
    """Return the token ids of the text, and those that the tokenizer puts before every text.

    Raises:
        ConfigError: no model has a tokenizer, or two give different tokens.
        RequestError: the text is too short.
    """
    tokenizers = {name: source.tokenizer() for name, source in sources.items()}
    found = {name: each for name, each in tokenizers.items() if each is not None}
    if not found:
        raise ConfigError(f"{next(iter(sources))} has no tokenizer, and a text needs one", param="model")
    (first, tokenizer), *others = found.items()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for name, other in others:
        if other.encode(text, add_special_tokens=False) != tokens:
            reason = f"the tokenizers of {first} and {name} give different tokens: compare formats of one model"
            raise ConfigError(reason, param="against")
    if len(tokens) < SPAN:
        raise RequestError(f"has {len(tokens)} tokens, and {SPAN} are the least: give a longer text", param="text")
    return tokens, opening(tokenizer)


def _same_vocabulary(model: LoadedModel, reference: LoadedModel) -> LoadedModel:
    """Return the model if its vocabulary is as large as that of the reference. Raises ConfigError."""
    ours, theirs = (each.executor.info.vocab_size for each in (model, reference))
    if ours != theirs:
        reason = f"the vocabulary of {model.name} has {ours:,} tokens, that of {reference.name} {theirs:,}"
        raise ConfigError(f"{reason}: compare formats of one model", param="against")
    return model
