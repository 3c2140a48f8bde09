"""Every error that ferrum raises, in one tree.

The class says what to do about it: fix the input (`RequestError`), make room (`CapacityError`), or do without a feature
(`Unsupported`). The others are faults of the model files (`CheckpointError`), of a step (`StepError`), or of a state.
"""

from __future__ import annotations

from typing import Self


class FerrumError(Exception):
    """The base class of all errors raised on purpose."""


class RequestError(FerrumError):
    """An input that cannot be served.

    Attributes:
        message: the reason, for a person.
        param: name of the wrong field, or None.
        status: the matching HTTP status.
        code: a stable machine-readable name.
    """

    status = 400
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message if param is None else f"{param}: {message}")
        self.message = message
        self.param = param

    def about(self, param: str) -> Self:
        """Return the same error about another field, the one that the caller set."""
        return type(self)(self.message, param=param)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.param)


def _rebuild(cls: type[RequestError], message: str, param: str | None) -> RequestError:
    """Restore a pickled error: the default pickling of exceptions loses keyword-only arguments."""
    return cls(message, param=param)


class InvalidToken(RequestError):
    """A token id that is no integer in [0, vocabulary)."""

    code = "invalid_token"


class InvalidSchema(RequestError):
    """A JSON Schema with a keyword that is wrong or cannot be enforced; the message has its JSON pointer."""

    code = "invalid_json_schema"


class InvalidGrammar(RequestError):
    """A grammar or regular expression that cannot be compiled."""

    code = "invalid_grammar"


class ContextOverflow(RequestError):
    """A sequence longer than the model's context."""

    code = "context_length_exceeded"


class InvalidHandle(RequestError):
    """A cache handle of another executor, type or shape."""

    code = "invalid_handle"


class UnknownSequence(RequestError):
    """A sequence that was never created or was released."""

    code = "unknown_sequence"


class StaleHandle(RequestError):
    """A handle older than its sequence's current generation."""

    code = "stale_handle"


class ModelNotFound(RequestError):
    """A model name that is not built in, no directory and not on the hub."""

    status = 404
    code = "model_not_found"


class ModelGated(ModelNotFound):
    """A hub model whose owner asks users to accept terms first."""

    status = 403
    code = "model_gated"


class HubUnreachable(ModelNotFound):
    """A model that is not complete in the cache while the hub cannot be reached."""

    status = 503
    code = "hub_unreachable"


class CapacityError(FerrumError):
    """A lack of room; the same request may fit later."""


class KvExhausted(CapacityError):
    """A KV pool without a free page."""


class QueueFull(CapacityError):
    """A request beyond the limit of requests in progress."""


class Unsupported(FerrumError):
    """A feature that this build, backend or model lacks."""

    def __init__(self, feature: str, reason: str) -> None:
        super().__init__(f"{feature} is not supported: {reason}")
        self.feature = feature
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return Unsupported, (self.feature, self.reason)


class ConfigError(RequestError):
    """An option, or a combination of options, that cannot run."""

    code = "invalid_config"


class CheckpointError(FerrumError):
    """Model files that are missing, damaged or inconsistent."""


class ExecutorInUse(FerrumError):
    """An executor whose exclusive lease an engine holds."""


class InvalidTransition(FerrumError):
    """A state change that the state machine does not allow."""


class StepError(FerrumError):
    """A step that failed for this sequence alone."""


class NonFiniteLogits(StepError):
    """A NaN or an infinity that the model produced for this sequence."""


class NothingAllowed(StepError):
    """Constraints of a request that leave no token to choose."""


class EngineDead(FerrumError):
    """An engine whose loop has ended; it serves nothing more."""


class ReplicaMismatch(EngineDead):
    """An engine that would compute other bits than those that it should serve with; the differences are named."""


class RecordNotFound(RequestError):
    """A record that does not exist or was deleted to make room."""

    status = 404
    code = "record_not_found"


class RecordDamaged(FerrumError):
    """A record that differs from what was written."""


class RecordMismatch(RequestError):
    """A record that cannot be replayed here: model, numerics or options differ."""

    status = 409
    code = "record_mismatch"


def as_step_error(error: Exception) -> FerrumError:
    """Return a FerrumError as it is, and any other error as a `StepError` that can be pickled."""
    return error if isinstance(error, FerrumError) else StepError(f"{type(error).__name__}: {error}")
