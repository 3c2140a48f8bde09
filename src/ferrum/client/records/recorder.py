"""Records requests: observes the messages between clients and engine and writes a record of each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrum.client.records.image_store import image_files
from ferrum.client.records.record import ChoiceEnd, Origin, Record, RequestEnd, header_line, read_record, share_line
from ferrum.client.records.record_files import OpenRecord, RecordFiles, file_name
from ferrum.client.request_output import Delta
from ferrum.core.config import EngineConfig
from ferrum.core.errors import Unsupported
from ferrum.core.types import Request
from ferrum.engine.messages import ComputedStep, EngineInfo

if TYPE_CHECKING:
    from ferrum.sources.model_source import ModelSource


@dataclass(slots=True)
class _Recorded:
    """A request that is being recorded.

    Attributes:
        tokens: output length of each choice so far.
        ends: of finished choices.
    """

    record: OpenRecord
    tokens: dict[int, int] = field(default_factory=dict)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    prompt_logprobs: tuple[float, ...] | None = None
    embedding: tuple[float, ...] | None = None


class Recorder:
    """Writer of a record for each request of one engine. Safe to use from any thread.

    Args:
        files: the directory of records.
        origin: describes the engine. Called once, on the writing thread: it may have to read the model.

    Attributes:
        files: as given.
        origin: as given, with its result cached.
    """

    def __init__(self, files: RecordFiles, origin: Callable[[], Origin]) -> None:
        self.files = files
        self.origin = cache(origin)
        self._live: dict[str, _Recorded] = {}

    def begin(self, request: Request, id: str) -> Request:
        """Begin a record; return the request to send to the engine, with log-probabilities requested.

        Args:
            request: its id is unique among live requests.
            id: the public request id.

        Raises:
            Unsupported: it has given rows, which records do not hold.
        """
        if request.inputs:
            raise Unsupported(
                "inputs", "requests are recorded, and records hold no given rows (leave out --record-dir)"
            )
        record = OpenRecord(file_name(request.tenant, id))
        self._live[request.request_id] = _Recorded(record)
        now = time.time()

        def header() -> Mapping[str, Any]:
            for name, make in image_files(request.images).items():
                self.files.keep(name, make)
            return header_line(id, now, self.origin(), request)

        self.files.put(record, header)
        if request.params.logprobs is not None:
            return request
        return replace(request, params=request.params.but(logprobs=0))

    def steps(self, steps: Iterable[ComputedStep]) -> None:
        """Record the shares of steps."""
        for step in steps:
            for share in step.shares:
                # A choice that ended at a stop string may have run for another step.
                if (recorded := self._live.get(share.request_id)) is not None and share.choice not in recorded.ends:
                    self.files.put(recorded.record, partial(share_line, step, share))

    def delta(self, request: Request, delta: Delta) -> None:
        """Record a delta of a client; the last one ends the record."""
        recorded = self._live[request.request_id]
        count = recorded.tokens[delta.index] = recorded.tokens.get(delta.index, 0) + len(delta.token_ids)
        if delta.prompt_logprobs is not None:
            recorded.prompt_logprobs = tuple(
                next(iter(position.values())).logprob for position in delta.prompt_logprobs if position is not None
            )
        if delta.finish_reason is not None:
            recorded.embedding = delta.embedding
            recorded.ends[delta.index] = ChoiceEnd(
                tokens=count,
                finish_reason=delta.finish_reason.value,
                stop_reason=delta.stop_reason,
                error=None if delta.error is None else type(delta.error).__name__,
            )
        if delta.usage is not None:
            del self._live[request.request_id]
            end = RequestEnd(
                choices=tuple(recorded.ends[index] for index in sorted(recorded.ends)),
                cached_tokens=delta.usage.cached_tokens,
                prompt_logprobs=recorded.prompt_logprobs,
                embedding=recorded.embedding,
            )
            self.files.put(recorded.record, end.to_dict, last=True)

    def find(self, tenant: str, id: str) -> Record:
        """Return the record of a tenant's request so far.

        Raises:
            RecordNotFound, RecordDamaged: see `read_record`.
        """
        self.files.flush()
        return read_record(self.files.directory / file_name(tenant, id))

    def close(self) -> None:
        """Write the waiting lines and end. Idempotent."""
        self.files.close()


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """What an engine was built from.

    Attributes:
        config: the options.
        model: the model.
        digest_cache: directory where the model's digest is cached.
    """

    config: EngineConfig
    model: ModelSource
    digest_cache: Path

    def origin(self, info: EngineInfo) -> Origin:
        """Return the origin of the engine's requests; reads the model's files unless their digest is cached."""
        from ferrum.core.version import installed_version

        return Origin(
            model=info.model,
            directory=None if self.model.path is None else str(self.model.path.resolve()),
            digest=self.model.digest(self.digest_cache),
            numerics_id=info.numerics_id,
            weights=info.weights,
            kv_format=info.kv_format,
            page_size=info.page_size,
            kv_capacity=info.kv_capacity,
            program=installed_version(),
            options=self.config.to_dict(),
        )
