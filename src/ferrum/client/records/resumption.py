"""A resumption: a request in the form of a record, and what a choice of it has generated. Another engine goes on.

Engines of one arithmetic and equal files give the same bits, so the whole output equals that of an undisturbed run: the
prompt's length for penalties and usage, draws by position, stop strings cut in mid-text, the state of a grammar and of
a parser follow from the request and its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.client.records.record import VERSION, Origin, Record, request_dict, request_of
from ferrum.client.records.replayer import BITS
from ferrum.core.errors import RecordMismatch, RequestError
from ferrum.core.span_checks import check_kind
from ferrum.core.types import Made, Request
from ferrum.engine.messages import EngineInfo

_INFO: Final = tuple(name for name in BITS if name != "digest")
"""Fields of an origin that an engine's description has as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A request that another engine began.

    Attributes:
        request: with `made` set and one choice.
        origin: of the engine that began it; None: its caller knows that files and arithmetic are equal.
    """

    request: Request
    origin: Origin | None = None

    @classmethod
    def of(cls, request: Request, made: Made, origin: Origin | None = None) -> Resumption:
        """Return the resumption of a choice of a request, which may have had several.

        Raises:
            RequestError: the request has no such choice, has images, or generates nothing.
        """
        if made.choice not in request.choices or request.params.max_tokens == 0:
            raise RequestError(f"the request generates no choice {made.choice}", param="choice")
        if request.image_places:
            raise RequestError("are not in a resumption: send the request again", param="images")
        params = request.params if request.params.n == 1 else request.params.but(n=1)
        return cls(request=replace(request, params=params, made=made), origin=origin)

    @classmethod
    def of_record(cls, record: Record, choice: int = 0) -> Resumption:
        """Return the resumption of a recorded choice whose engine was killed.

        Raises:
            RequestError: the record has no such choice, or its choice has ended.
            RecordMismatch: the request wants log-probabilities of other tokens, which records do not hold.
        """
        if record.end is not None:
            raise RequestError("it has ended: nothing is left to generate", param="record")
        if record.request.params.logprobs is not None:
            reason = "a record has no log-probabilities of other tokens: resume from the tokens that its client has"
            raise RecordMismatch(f"the request asks for {record.request.params.logprobs}: {reason}")
        sampled = tuple(token for token, _ in record.sampled(choice)) if choice in record.request.choices else ()
        return cls.of(record.request, Made(choice, (*record.request.known, *sampled)), record.origin)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, the request as in a record."""
        origin = None if self.origin is None else self.origin.to_dict()
        return {
            "version": VERSION,
            "id": self.request.request_id,
            "origin": origin,
            "request": request_dict(self.request),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Resumption:
        """Return the resumption of `to_dict`'s result. Raises RequestError for other values."""
        check_kind(values, Mapping, param="resumption")
        try:
            if values["version"] != VERSION:
                raise RequestError(f"version {values['version']!r}, expected {VERSION}", param="resumption")
            origin = None if values["origin"] is None else Origin.from_dict(values["origin"])
            request = request_of(values["id"], values["request"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"is not one: {type(error).__name__}: {error}"
            raise RequestError(reason, param="resumption") from None
        if request.made is None:
            raise RequestError("has no generated tokens", param="resumption")
        return cls(request=replace(request, arrival=time.monotonic()), origin=origin)


def resumed_request(resumption: Resumption, info: EngineInfo, digest: str | None, loaded: Iterable[bytes]) -> Request:
    """Return the request for an engine to go on with.

    Args:
        resumption: what another engine began.
        info: of this engine.
        digest: of this engine's files; None if it is not known.
        loaded: digests of the loaded adapters.

    Raises:
        RecordMismatch: this engine would compute other bits, or lacks an adapter; the difference is named.
    """
    check_kind(resumption, Resumption, param="resumption")
    origin, request = resumption.origin, resumption.request
    if origin is not None:
        here = {**{name: getattr(info, name) for name in _INFO}, "digest": digest or origin.digest}
        different = [f"{name} {here[name]!r}, begun with {getattr(origin, name)!r}" for name in BITS]
        different = [text for name, text in zip(BITS, different, strict=True) if here[name] != getattr(origin, name)]
        if different:
            raise RecordMismatch(f"this engine differs from the one that began: {'; '.join(different)}")
    known = {*loaded}
    for each in request.adapters:
        if each.digest not in known:
            raise RecordMismatch(f"the request uses an adapter of digest {each.digest.hex()}: load it here first")
    return replace(request, arrival=time.monotonic())
