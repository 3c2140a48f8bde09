"""Every error that leaves ferrum, in one tree.

Three questions an error answers by its class, never by its text: is it the caller's (`RequestError`), is it for want of
room (`CapacityError`), or is it a feature that is not there (`Unsupported`)? What is left is a fault of the model files
(`CheckpointError`) or of a step (`StepError`).
"""

from __future__ import annotations

from typing import Self


class FerrumError(Exception):
    """The root of all errors raised on purpose."""


class RequestError(FerrumError):
    """The caller's input cannot be served.

    Attributes:
        message: the reason, for a person.
        param: the name of the offending field, or None.
        status: the HTTP status that says the same.
        code: a stable machine-readable name.
    """

    status = 400
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message if param is None else f"{param}: {message}")
        self.message = message
        self.param = param

    def about(self, param: str) -> Self:
        """The same error about another field: what its own reads was made of that one."""
        return type(self)(self.message, param=param)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.param)


def _rebuild(cls: type[RequestError], message: str, param: str | None) -> RequestError:
    """Keyword-only arguments do not survive the default pickling of exceptions, and errors cross a process border."""
    return cls(message, param=param)


class InvalidToken(RequestError):
    """A token id is not an integer in [0, vocabulary)."""

    code = "invalid_token"


class ContextOverflow(RequestError):
    """The sequence would be longer than the model's context."""

    code = "context_length_exceeded"


class InvalidHandle(RequestError):
    """A cache handle of another executor, type or shape."""

    code = "invalid_handle"


class UnknownSequence(RequestError):
    """The sequence was never created or is released."""

    code = "unknown_sequence"


class StaleHandle(RequestError):
    """The handle is older than the sequence's current generation."""

    code = "stale_handle"


class ModelNotFound(RequestError):
    """No model under that name: not built in, not a directory, not on the hub."""

    status = 404
    code = "model_not_found"


class ModelGated(ModelNotFound):
    """The hub has the model and its owner asks for terms to be accepted first."""

    status = 403
    code = "model_gated"


class HubUnreachable(ModelNotFound):
    """The model is not here completely, and the hub cannot be asked: offline, no network, or a broken download."""

    status = 503
    code = "hub_unreachable"


class CapacityError(FerrumError):
    """There is no room now; the same request may fit later."""


class KvExhausted(CapacityError):
    """No free page is left in the KV pool."""


class QueueFull(CapacityError):
    """So many wait that no more may."""


class Unsupported(FerrumError):
    """A feature that this build, backend or model does not have."""

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
    """An engine holds the exclusive lease of this executor."""


class InvalidTransition(FerrumError):
    """A state change that the state machine does not have."""


class StepError(FerrumError):
    """A step failed for this sequence alone."""


class NonFiniteLogits(StepError):
    """The model produced a NaN or an infinity for this sequence."""


class NothingAllowed(StepError):
    """What the request forbids leaves no token to choose."""


class EngineDead(FerrumError):
    """The engine's loop has ended; nothing more will be served."""


class RecordNotFound(RequestError):
    """No request of that id was recorded here, or it had to make room."""

    status = 404
    code = "record_not_found"


class RecordDamaged(FerrumError):
    """The record of a request is not as it was written."""


class RecordMismatch(RequestError):
    """A record cannot be run again here: what its bits depend on is not what it was recorded with."""

    status = 409
    code = "record_mismatch"
