"""The record of a request: origin, parameters, its share of every step, and its end. `record_files` writes them.

A record is a file of JSON lines:

    {"version": 1, "id", "time", "origin", "request", "images"}                               first
    {"step", "rows", "choice", "start", "tokens", "sampled", "logprobs", ...}                 one for each share
    {"choices", "cached_tokens", "prompt_logprobs", "embedding", "sha256"}                    last, when it is over

Reading a number gives the same bits. The last line ends with the SHA-256 of everything before it. A record without it
belongs to a request that runs, or whose engine was killed; its complete lines can be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from ferrum.core.errors import FerrumError, RecordDamaged, RecordNotFound
from ferrum.core.guidance import Guidance
from ferrum.core.json_record import JsonRecord
from ferrum.core.output_format import Reading
from ferrum.core.params import SamplingParams
from ferrum.core.step import Grid, TokenLogprobs
from ferrum.core.types import Adapter, ImagePlace, Made, Pooling, Request
from ferrum.engine.messages import ComputedStep, StepShare

_Kind = TypeVar("_Kind", bound=JsonRecord)

VERSION: Final = 1

SEAL: Final = b',"sha256":"%s"'
"""The end of the last line: the SHA-256 of everything before it, in hexadecimal."""

_LEFT_OUT: Final = frozenset({"inputs", "grids", "images", "request_id", "deadline", "arrival"})
"""Fields of a request that a record lacks: pixels are in files of their own, and a replay uses none of the others."""

_SHARE: Final = tuple(each.name for each in fields(StepShare) if each.name != "request_id")

_DEFAULTS: Final = {"drafts": (), "accepted": 0, "sampled": (), "logprobs": (), "cached": 0, "preemptions": 0}
"""Values of a share that are not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(JsonRecord):
    """The engine that ran a request: what its bits depend on, and how to load it again.

    Attributes:
        model: the name that the model was loaded by.
        directory: the model's directory or file; None for one without files.
        digest: of the model's files; see `ModelSource.digest`.
        numerics_id, weights, kv_format, page_size, kv_capacity: see `EngineInfo`.
        program: version of ferrum.
        options: of the engine, as from `EngineConfig.to_dict`; None for an engine built without options.
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
    """The end of a choice.

    Attributes:
        tokens: length of the output; sampled tokens beyond it were dropped.
        finish_reason, stop_reason: as its client received them.
        error: class name of the error, if any.
    """

    tokens: int
    finish_reason: str
    stop_reason: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd(JsonRecord):
    """The end of a request.

    Attributes:
        choices: by index.
        cached_tokens: prompt tokens from the prefix cache.
        prompt_logprobs: of the prompt's tokens from the second one on, if requested.
        embedding: if requested.
    """

    choices: tuple[ChoiceEnd, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[float, ...] | None = None
    embedding: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class RecordedShare:
    """A choice's share of a step.

    Attributes:
        step, rows: number and tokens of the step; see `ComputedStep`.
    """

    step: int
    rows: int
    share: StepShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recorded request.

    Attributes:
        id: the public request id.
        time: seconds since 1970 when it was queued.
        images: digests of the request's images, in hexadecimal; `recorded_images` reads them.
        shares: in the order of the steps.
        end: None while the request runs, or if its engine was killed.
    """

    id: str
    time: float
    origin: Origin
    request: Request
    images: tuple[str, ...] = ()
    shares: tuple[RecordedShare, ...] = ()
    end: RequestEnd | None = None

    def sampled(self, choice: int) -> list[tuple[int, float]]:
        """Return the output tokens of a choice with their log-probabilities."""
        found = [
            pair
            for each in self.shares
            if each.share.choice == choice
            for pair in zip(each.share.sampled, each.share.logprobs, strict=True)
        ]
        end = self.end_of(choice)
        return found if end is None else found[: end.tokens]

    def end_of(self, choice: int) -> ChoiceEnd | None:
        """Return the end of a choice; None while the request runs."""
        return None if self.end is None else self.end.choices[choice - self.request.choices.start]


def header_line(id: str, time: float, origin: Origin, request: Request) -> dict[str, Any]:
    """Return the first line of a record."""
    images = {"images": [each.digest.hex() for each in request.images]} if request.images else {}
    about = {"version": VERSION, "id": id, "time": time, "origin": origin.to_dict()}
    return {**about, "request": request_dict(request), **images}


def share_line(step: ComputedStep, share: StepShare) -> dict[str, Any]:
    """Return the line of a share."""
    values = ((name, getattr(share, name)) for name in _SHARE)
    written = {name: value for name, value in values if value != _DEFAULTS.get(name)}
    return {"step": step.number, "rows": step.rows, **written}


def request_dict(request: Request) -> dict[str, Any]:
    """Return a request as JSON values, without the pixels of its images."""
    assert not request.inputs, "JSON cannot hold them"
    values = {each.name: getattr(request, each.name) for each in fields(request) if each.name not in _LEFT_OUT}
    return {
        **values,
        "params": request.params.to_dict(),
        "adapters": [
            {"digest": each.digest.hex(), "scale": each.scale, "start": each.start} for each in request.adapters
        ],
        "image_places": [_place_dict(each) for each in request.image_places],
        "stop_token_ids": sorted(request.stop_token_ids),
        "pooling": None if request.pooling is None else str(request.pooling),
        "guidance": None if request.guidance is None else request.guidance.to_dict(),
        "reading": None if request.reading is None else request.reading.to_dict(),
        "made": None if request.made is None else made_dict(request.made),
    }


def request_of(id: str, values: Mapping[str, Any]) -> Request:
    """Return the request of `request_dict`'s result."""
    return Request(
        **{
            **values,
            "request_id": id,
            "params": SamplingParams.from_dict(values["params"]),
            "prompt": tuple(values["prompt"]),
            "stop_token_ids": frozenset(values["stop_token_ids"]),
            "eos_token_ids": tuple(values["eos_token_ids"]),
            "bad_words": tuple(map(tuple, values["bad_words"])),
            "dry_sequence_breakers": tuple(map(tuple, values.get("dry_sequence_breakers", ()))),
            "pooling": None if values["pooling"] is None else Pooling(values["pooling"]),
            "prediction": tuple(values["prediction"]),
            "boundaries": tuple(values.get("boundaries", ())),
            "adapters": tuple(map(_adapter, values.get("adapters", ()))),
            "image_places": tuple(map(_place, values.get("image_places", ()))),
            "guidance": _optional(Guidance, values.get("guidance")),
            "reading": _optional(Reading, values.get("reading")),
            "made": None if values.get("made") is None else made_of(values["made"]),
        }
    )


def made_dict(made: Made) -> dict[str, Any]:
    """Return what a choice has generated as JSON values."""
    logprobs = None if made.logprobs is None else [list(astuple(each)) for each in made.logprobs]
    return {"choice": made.choice, "token_ids": made.token_ids, "logprobs": logprobs}


def made_of(values: Mapping[str, Any]) -> Made:
    """Return what `made_dict` made JSON values of."""
    logprobs = values["logprobs"]
    named = None if logprobs is None else tuple(map(_token_logprobs, logprobs))
    return Made(int(values["choice"]), tuple(map(int, values["token_ids"])), named)


def _token_logprobs(values: Sequence[Any]) -> TokenLogprobs:
    token, logprob, rank, top, given = values
    pairs = tuple((int(each), float(its)) for each, its in top)
    return TokenLogprobs(int(token), float(logprob), int(rank), pairs, tuple(map(_token_logprobs, given)))


def _adapter(values: Mapping[str, Any]) -> Adapter:
    """Return an adapter of the request; a record has no name for it, since names may change."""
    digest = bytes.fromhex(values["digest"])
    return Adapter("", digest, float(values["scale"]), int(values["start"]))


def _place_dict(place: ImagePlace) -> dict[str, Any]:
    values: dict[str, Any] = {"positions": place.positions, "digest": place.digest.hex()}
    values |= {} if place.grid is None else {"grid": astuple(place.grid)}
    return values | ({"bidirectional": True} if place.bidirectional else {})


def _place(values: Mapping[str, Any]) -> ImagePlace:
    grid = Grid(*values["grid"]) if "grid" in values else None
    return ImagePlace(
        tuple(values["positions"]), bytes.fromhex(values["digest"]), grid, values.get("bidirectional", False)
    )


def _optional(kind: type[_Kind], values: Mapping[str, Any] | None) -> _Kind | None:
    """Return a record of the request; older records of requests lack it."""
    return None if values is None else kind.from_dict(values)


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        RecordNotFound: there is no such file.
        RecordDamaged: the file is not a record, or was changed.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise RecordNotFound(f"no record at {str(path)!r}") from None
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # its writer was killed
    try:
        return _record([json.loads(line) for line in lines], lines)
    except (FerrumError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise RecordDamaged(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _record(parsed: list[dict[str, Any]], lines: list[bytes]) -> Record:
    header, *body = parsed
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}, expected {VERSION}")
    end = None
    if body and "sha256" in body[-1]:
        last = body.pop()
        seal = SEAL % last.pop("sha256").encode() + b"}\n"
        if hashlib.sha256(b"".join(lines).removesuffix(seal)).hexdigest().encode() not in seal:
            raise ValueError("checksum mismatch")
        end = RequestEnd.from_dict(last)
    return Record(
        id=header["id"],
        time=header["time"],
        origin=Origin.from_dict(header["origin"]),
        request=request_of(header["id"], header["request"]),
        images=tuple(header.get("images", ())),
        shares=tuple(_share(header["id"], line) for line in body),
        end=end,
    )


def _share(id: str, line: Mapping[str, Any]) -> RecordedShare:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in line.items()}
    return RecordedShare(values.pop("step"), values.pop("rows"), StepShare(id, **values))
