"""Replays a recorded request and compares its result with the record, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from ferrum.client.records.record import Origin, Record
from ferrum.client.request_output import Collector, CompletionOutput, Delta, RequestOutput
from ferrum.core.config import EngineConfig
from ferrum.core.errors import RecordMismatch
from ferrum.core.params import ALL_TOKENS
from ferrum.core.types import FinishReason, Request

if TYPE_CHECKING:
    from ferrum.images.decoded_image import DecodedImage

BITS: Final = ("digest", "numerics_id", "weights", "kv_format")
"""Fields of an origin that the bits of a result depend on."""

INTERRUPTED: Final = frozenset({FinishReason.ABORT, FinishReason.DEADLINE, FinishReason.ERROR})
"""Finish reasons with an external cause, which a replay does not repeat."""

_ELSEWHERE: Final = frozenset(
    {"model", "switches", "host", "record_dir", "record_gib", "prefix_cache_dir", "prefix_cache_gib", "swap_gib"}
    | {"device", "cuda_graphs", "kernels", "isa", "threads", "tensor_parallel_size", "replicas", "lora_gib"}
    | {"image_cache_gib"}
)
"""Options about places, hosts and processors, on which no bit depends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between a choice and its record.

    Attributes:
        what: `token`, `logprob`, `finish_reason`, `stop_reason`, `prompt_logprob` or `embedding`.
        position: of the token, in the choice or in the prompt.
        recorded, now: both values; None for a missing one.
    """

    choice: int
    what: str
    position: int | None
    recorded: Any
    now: Any

    def __str__(self) -> str:
        position = "" if self.position is None else f" {self.position}"
        return f"choice {self.choice}, {self.what}{position}: recorded {self.recorded!r}, now {self.now!r}"


def engine_options(origin: Origin, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an engine like the recorded one, overridden by `given`.

    The pool has the same capacity, which may have ended a text. This machine's best kernels run. The recommended
    sampling parameters are not loaded: the record of a request contains all of its parameters.
    """
    if origin.options is None:
        return dict(given)
    config = EngineConfig.from_dict(origin.options)
    parts = (config.model, config)
    recorded = {item.name: getattr(part, item.name) for part in parts for item in fields(part)}
    kept = {name: value for name, value in recorded.items() if name not in _ELSEWHERE}
    return {**kept, "kv_capacity": origin.kv_capacity, "generation_config": "none", **given}


def check_origin(recorded: Origin, here: Origin) -> None:
    """Refuse a record of an engine with different bits.

    Raises:
        RecordMismatch: names every field that differs.
    """
    different = [name for name in BITS if getattr(recorded, name) != getattr(here, name)]
    if different:
        fields_here = (f"{name} {getattr(here, name)!r}, recorded {getattr(recorded, name)!r}" for name in different)
        raise RecordMismatch(f"the engine differs from the recorded one: {'; '.join(fields_here)}")


def check_room(record: Record, context: int) -> None:
    """Refuse a record that does not fit in the context, since a shorter output cannot be compared.

    Args:
        context: maximum tokens of prompt and output together.

    Raises:
        RecordMismatch: the record has more tokens.
    """
    counts = {choice: len(record.sampled(choice)) for choice in record.request.choices}
    compared = [count for choice, count in counts.items() if count or not _interrupted(record, choice)]
    length = len(record.request.prompt) + max(compared, default=0)
    if compared and length > context:
        raise RecordMismatch(f"the record has {length} tokens, more than the context of {context} tokens")


def check_adapters(record: Record, loaded: Sequence[bytes]) -> None:
    """Refuse a record whose adapters are not loaded. Raises RecordMismatch.

    Args:
        loaded: digests of the loaded adapters.
    """
    for each in record.request.adapters:
        if each.digest not in loaded:
            reason = f"the record has an adapter of digest {each.digest.hex()}, which is not loaded: give it by --lora"
            raise RecordMismatch(reason)


class Replay:
    """The replay of a record.

    Args:
        record: the record.
        top: number of most likely tokens to report at every position.
        images: those of the record, see `recorded_images`.

    Attributes:
        request: the request to run. If all of its choices were interrupted, it stops where they did.
    """

    def __init__(self, record: Record, top: int, images: tuple[DecodedImage, ...] = ()) -> None:
        self.record = record
        self.request = replace(_request_again(record, top), images=images)
        self._collector = Collector(self.request.request_id, None, self.request.prompt, self.request.arrival)
        self._embedding: tuple[float, ...] | None = None

    def push(self, delta: Delta) -> None:
        """Take a delta of the replayed request.

        Raises:
            FerrumError: the error of a choice that did not fail when it was recorded.
        """
        if delta.error is not None and not self._has_failed(delta.index):
            raise delta.error
        self._collector.push(delta, time.monotonic())
        self._embedding = delta.embedding or self._embedding

    def _has_failed(self, choice: int) -> bool:
        end = self.record.end_of(choice)
        return end is not None and end.error is not None

    def output(self) -> RequestOutput:
        """Return the result, once the request has finished."""
        return self._collector.output(time.monotonic())

    def differences(self) -> list[Difference]:
        """Return the first difference of the prompt and of each choice; nothing if every bit is equal."""
        output = self.output()
        choices = (_difference(self.record, choice) for choice in output.outputs)
        return [*self._prompt_differences(output), *(each for each in choices if each is not None)]

    def _prompt_differences(self, output: RequestOutput) -> list[Difference]:
        """Return the differences of prompt log-probabilities and embedding, if they were recorded."""
        end, whole = self.record.end, not _all_interrupted(self.record)
        now = [next(iter(each.values())).logprob for each in output.prompt_logprobs or () if each is not None]
        found: list[Difference] = []
        if end is not None and (whole or end.prompt_logprobs is not None):
            found += _first("prompt_logprob", end.prompt_logprobs or (), now, offset=1)
        if end is not None and whole:  # the embedding comes with the end
            found += _first("embedding", end.embedding or (), self._embedding or ())
        return found


def _request_again(record: Record, top: int) -> Request:
    request, params = record.request, record.request.params
    logprobs = ALL_TOKENS if params.logprobs == ALL_TOKENS else max(top, params.logprobs or 0)
    wanted = params.but(logprobs=logprobs)
    if _all_interrupted(record) and params.max_tokens != 0:
        longest = max(1, *(len(record.sampled(choice)) for choice in request.choices))
        wanted = wanted.but(max_tokens=longest, min_tokens=min(longest, params.min_tokens))
    elif (room := _ended_by_context(record)) is not None:
        wanted = wanted.but(max_tokens=room, min_tokens=min(room, params.min_tokens))
    return replace(request, request_id=f"replay-{record.id}", params=wanted, priority=0, arrival=time.monotonic())


def _ended_by_context(record: Record) -> int | None:
    """Return the length of a choice that ended by length: the context here may be larger; None if none did."""
    ends = () if record.end is None else record.end.choices
    return next((each.tokens for each in ends if each.finish_reason == FinishReason.LENGTH and each.tokens), None)


def _all_interrupted(record: Record) -> bool:
    return all(_interrupted(record, choice) for choice in record.request.choices)


def _interrupted(record: Record, choice: int) -> bool:
    end = record.end_of(choice)
    return end is None or end.finish_reason in INTERRUPTED


def _difference(record: Record, now: CompletionOutput) -> Difference | None:
    """Return the first difference of a choice, if any."""
    recorded = record.sampled(now.index)
    tokens = _first("token", [token for token, _ in recorded], now.token_ids[: len(recorded)], choice=now.index)
    again = [position[token].logprob for token, position in zip(now.token_ids, now.logprobs or (), strict=True)]
    logprobs = _first("logprob", [logprob for _, logprob in recorded], again[: len(recorded)], choice=now.index)
    found = sorted([*tokens, *logprobs], key=lambda each: (each.position or 0, each.what != "token"))
    end = record.end_of(now.index)
    if found or end is None or _interrupted(record, now.index):
        return found[0] if found else None
    rest = now.token_ids[len(recorded) :]
    endings = {"finish_reason": now.finish_reason, "stop_reason": now.stop_reason}
    found += _first("token", [], rest, choice=now.index, offset=len(recorded))
    found += [
        Difference(choice=now.index, what=what, position=None, recorded=getattr(end, what), now=its)
        for what, its in endings.items()
        if getattr(end, what) != its
    ]
    return found[0] if found else None


def _first(
    what: str, recorded: Sequence[Any], now: Sequence[Any], *, choice: int = 0, offset: int = 0
) -> list[Difference]:
    """Return the first difference of two lists, if any."""
    for position, (was, its) in enumerate(zip_longest(recorded, now)):
        if was != its:
            return [Difference(choice=choice, what=what, position=offset + position, recorded=was, now=its)]
    return []
