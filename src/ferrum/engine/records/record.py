"""What is kept of a request: where it ran, what it asked, its share of every step, and how it ended.

A record is JSON, a line each:

    {"version": 1, "id", "time", "origin", "request"}                                         first
    {"step", "rows", "choice", "start", "tokens", "sampled", "logprobs", ...}                 one for each share
    {"choices", "cached_tokens", "prompt_logprobs", "embedding", "sha256"}                    last, when it is over

Numbers are written so that reading gives the same bits. The last line ends with the SHA-256 of all before. A record
without one is of a request that still runs, or whose engine was killed; what there is of it can be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ferrum.core.errors import FerrumError, RecordDamaged, RecordNotFound
from ferrum.core.json_record import JsonRecord
from ferrum.core.params import SamplingParams
from ferrum.core.types import Pooling, Request
from ferrum.engine.records.step_shares import StepShare, TakenStep

VERSION: Final = 1

SEAL: Final = b',"sha256":"%s"'
"""The end of the last line: the SHA-256 of all before it, as hexadecimal."""

_LEFT_OUT: Final = frozenset({"request_id", "deadline", "arrival"})
"""Of a request: what means nothing later."""

_SHARE: Final = tuple(each.name for each in fields(StepShare) if each.name != "request_id")

_DEFAULTS: Final = {"drafts": (), "accepted": 0, "sampled": (), "logprobs": (), "cached": 0, "preemptions": 0}
"""Of a share: what is not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(JsonRecord):
    """Where a request ran: all that its bits depend on besides itself, and how to load it again.

    Attributes:
        model: the name that it was loaded by.
        directory: where it was; None where it was made up.
        digest: of its files; see `model_digest`.
        numerics_id, weights, kv_format, page_size, kv_capacity: see `EngineInfo`.
        program: version of ferrum.
        options: of the engine, as `EngineConfig.to_dict` has them; None where it was not made from options.
    """

    model: str
    directory: str | None
    digest: str
    numerics_id: str
    weights: str
    kv_format: str
    page_size: int | None
    kv_capacity: int
    program: str
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceEnd(JsonRecord):
    """How a choice ended.

    Attributes:
        tokens: how many of the sampled ones it came to.
        finish_reason, stop_reason: as its client was told.
        error: the class of what went wrong.
    """

    tokens: int
    finish_reason: str
    stop_reason: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd(JsonRecord):
    """How a request ended.

    Attributes:
        choices: by index.
        cached_tokens: prompt tokens that the prefix cache had.
        prompt_logprobs: of the prompt's tokens from the second one on, where asked for.
        embedding: where asked for.
    """

    choices: tuple[ChoiceEnd, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[float, ...] | None = None
    embedding: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class RecordedShare:
    """A choice's share of a step.

    Attributes:
        step, rows: of the step; see `TakenStep`.
    """

    step: int
    rows: int
    share: StepShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recorded request.

    Attributes:
        id: as its client knows it.
        time: seconds since 1970 when it was queued.
        shares: in the order of the steps.
        end: None while it runs, or where it never came to one.
    """

    id: str
    time: float
    origin: Origin
    request: Request
    shares: tuple[RecordedShare, ...] = ()
    end: RequestEnd | None = None

    def sampled(self, choice: int) -> list[tuple[int, float]]:
        """The tokens that a choice came to, with their log-probabilities."""
        found = [
            pair
            for each in self.shares
            if each.share.choice == choice
            for pair in zip(each.share.sampled, each.share.logprobs, strict=True)
        ]
        return found if self.end is None else found[: self.end.choices[choice].tokens]


def head_line(id: str, time: float, origin: Origin, request: Request) -> dict[str, Any]:
    """The first line of a record."""
    return {"version": VERSION, "id": id, "time": time, "origin": origin.to_dict(), "request": request_dict(request)}


def share_line(step: TakenStep, share: StepShare) -> dict[str, Any]:
    """The line of a share."""
    values = ((name, getattr(share, name)) for name in _SHARE)
    told = {name: value for name, value in values if value != _DEFAULTS.get(name)}
    return {"step": step.number, "rows": step.rows, **told}


def request_dict(request: Request) -> dict[str, Any]:
    """A request as JSON values."""
    values = {each.name: getattr(request, each.name) for each in fields(request) if each.name not in _LEFT_OUT}
    return {
        **values,
        "params": request.params.to_dict(),
        "stop_token_ids": sorted(request.stop_token_ids),
        "pooling": None if request.pooling is None else str(request.pooling),
    }


def request_of(id: str, values: Mapping[str, Any]) -> Request:
    """The inverse of `request_dict`."""
    return Request(
        **{
            **values,
            "request_id": id,
            "params": SamplingParams.from_dict(values["params"]),
            "prompt": tuple(values["prompt"]),
            "stop_token_ids": frozenset(values["stop_token_ids"]),
            "eos_token_ids": tuple(values["eos_token_ids"]),
            "bad_words": tuple(map(tuple, values["bad_words"])),
            "pooling": None if values["pooling"] is None else Pooling(values["pooling"]),
            "prediction": tuple(values["prediction"]),
        }
    )


def read_record(path: Path) -> Record:
    """A record.

    Raises:
        RecordNotFound: there is no such file.
        RecordDamaged: it is none, or not as it was written.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise RecordNotFound(f"there is no record {str(path)!r}") from None
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # whoever wrote it was killed
    try:
        return _record([json.loads(line) for line in lines], lines)
    except (FerrumError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise RecordDamaged(f"{path} is not as it was written: {type(error).__name__}: {error}") from None


def _record(parsed: list[dict[str, Any]], lines: list[bytes]) -> Record:
    head, *rest = parsed
    if head["version"] != VERSION:
        raise ValueError(f"version {head['version']}, not {VERSION}")
    end = None
    if rest and "sha256" in rest[-1]:
        last = rest.pop()
        seal = SEAL % last.pop("sha256").encode() + b"}\n"
        if hashlib.sha256(b"".join(lines).removesuffix(seal)).hexdigest().encode() not in seal:
            raise ValueError("its checksum is another one")
        end = RequestEnd.from_dict(last)
    return Record(
        id=head["id"],
        time=head["time"],
        origin=Origin.from_dict(head["origin"]),
        request=request_of(head["id"], head["request"]),
        shares=tuple(_share(head["id"], line) for line in rest),
        end=end,
    )


def _share(id: str, line: Mapping[str, Any]) -> RecordedShare:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in line.items()}
    return RecordedShare(values.pop("step"), values.pop("rows"), StepShare(id, **values))
