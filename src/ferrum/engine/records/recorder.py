"""Keeps requests: looks on between the clients and the engine, and writes down what both sides know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from ferrum.core.config import EngineConfig
from ferrum.core.types import Request
from ferrum.engine.messages import EngineInfo
from ferrum.engine.records.record import ChoiceEnd, Origin, Record, RequestEnd, head_line, read_record, share_line
from ferrum.engine.records.record_files import OpenRecord, RecordFiles, file_name
from ferrum.engine.records.step_shares import TakenStep
from ferrum.engine.request_output import Delta


@dataclass(slots=True)
class _Recorded:
    """A request that is being recorded.

    Attributes:
        tokens: that each choice came to so far.
        ends: of the choices that are over.
    """

    record: OpenRecord
    tokens: dict[int, int] = field(default_factory=dict)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    prompt_logprobs: tuple[float, ...] | None = None
    embedding: tuple[float, ...] | None = None


class Recorder:
    """Writes a record of each request of one engine. Safe to use from any thread.

    Args:
        files: where records go.
        origin: where the requests run; asked once, on the writing thread, for it may have to read the model.

    Attributes:
        files: as given.
        origin: the same, remembered.
    """

    def __init__(self, files: RecordFiles, origin: Callable[[], Origin]) -> None:
        self.files = files
        self.origin = cache(origin)
        self._live: dict[str, _Recorded] = {}

    def begin(self, request: Request, id: str) -> Request:
        """Begin the record of a request; the request as the engine is to have it: its log-probabilities are kept.

        Args:
            request: under an id that no other live one has.
            id: as its client knows it.
        """
        record = OpenRecord(file_name(request.tenant, id))
        self._live[request.request_id] = _Recorded(record)
        now = time.time()
        self.files.put(record, lambda: head_line(id, now, self.origin(), request))
        if request.params.logprobs is not None:
            return request
        return replace(request, params=request.params.but(logprobs=0))

    def steps(self, steps: Iterable[TakenStep]) -> None:
        """Note who had which share of the engine's steps."""
        for step in steps:
            for share in step.shares:
                # A choice that ended by its text may have run on for a step.
                if (recorded := self._live.get(share.request_id)) is not None and share.choice not in recorded.ends:
                    self.files.put(recorded.record, partial(share_line, step, share))

    def delta(self, request: Request, delta: Delta) -> None:
        """Note what a client is told: with the last of it the record ends."""
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
        """The record of a tenant's request, as far as it has come.

        Raises:
            RecordNotFound, RecordDamaged: see `read_record`.
        """
        self.files.flush()
        return read_record(self.files.directory / file_name(tenant, id))

    def close(self) -> None:
        """Write what is due. Idempotent."""
        self.files.close()


@dataclass(frozen=True, slots=True)
class Source:
    """What an engine was made from, to tell where its requests ran.

    Attributes:
        config: the options.
        directory: of the model.
        memory: where the model's digest is remembered.
    """

    config: EngineConfig
    directory: Path
    memory: Path

    def origin(self, info: EngineInfo) -> Origin:
        """Where the requests of the engine run; reads the model's files unless their digest is remembered."""
        from ferrum.core.version import installed_version
        from ferrum.runtime.model_digest import model_digest

        return Origin(
            model=info.model,
            directory=str(self.directory.resolve()),
            digest=model_digest(self.directory, self.memory),
            numerics_id=info.numerics_id,
            weights=info.weights,
            kv_format=info.kv_format,
            page_size=info.page_size,
            kv_capacity=info.kv_capacity,
            program=installed_version(),
            options=self.config.to_dict(),
        )
