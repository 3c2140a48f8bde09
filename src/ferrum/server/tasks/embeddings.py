"""Embeddings: requests for vectors in any dialect, scaled to length 1, and /v1/embeddings.

Pooling happens in the engine. `Numbers` does the same for other numbers, as scores.

"""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import ClassVar, Final, Literal, TypeAlias

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.request_output import Delta
from ferrum.client.router import QueueSlots
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.server.chat.generation import watched
from ferrum.server.chat.turn import finish_of
from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import CancelledError, invalid
from ferrum.server.common.field_rules import Items, Rule, TokenId
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.json_bodies import MODEL, Body, Reply, optional
from ferrum.server.common.json_routes import ignored
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.openai_errors import BODY_ERRORS
from ferrum.server.common.served_model import ServedModel, part_id, truncated
from ferrum.server.common.service import Service
from ferrum.server.openai.ask import several
from ferrum.server.openai.fields import KEEPS_SOME, KEPT, Kept, Positive

# Requests for vectors, and their response


MAX_INPUTS: Final = 2048
_SCORE_ONLY: Final = SamplingParams(max_tokens=0)

MAX_QUEUED: Final = 64
"""Inputs in the queue at a time; a body may have more inputs than the queue has slots."""

Vector: TypeAlias = tuple[float, ...]
Vectors: TypeAlias = Sequence[Sequence[float]]
"""One per input, of length 1."""


def embedding_requests(
    model: ServedModel,
    inputs: Sequence[str | list[int]],
    caller: Caller,
    name: str,
    *,
    field: str = "input",
    keep: int | None = None,
    start: bool = False,
) -> list[Request]:
    """Return the engine's requests for embeddings, one per input.

    Args:
        name: the id of the reply.
        field: the client's name of the inputs.
        keep: tokens to keep of an input; None: all, and refuse an input that is too long.
        start: keep the start of an input, not its end.

    Raises:
        RequestError: an input that cannot be served, by its index.
    """
    client = model.client
    return [
        model.process(
            text if keep is None else truncated(client.tokenizer, text, keep, start=start),
            _SCORE_ONLY,
            RequestOptions(
                request_id=part_id(name, place),
                deadline=caller.deadline,
                tenant=caller.tenant,
                trace_id=caller.trace_id,
                pooling=model.pooling,
                names=FieldNames(f"{field}[{place}]" if len(inputs) > 1 else field),
            ),
        )
        for place, text in enumerate(inputs)
    ]


class Numbers(Response):
    """The response to a list of inputs, with some numbers of each. When the client leaves, they are aborted.

    Args:
        requests: one per input.
        write: returns the reply with the numbers.
        name: the id of the reply.
        headers: of the response.
        dimensions: numbers per input that the client wants; None: as many as there are.
        read: returns the numbers in a delta, or None if it has none.
    """

    media_type = "application/json"

    def __init__(
        self,
        service: Service,
        model: ServedModel,
        requests: Sequence[Request],
        write: Callable[[Vectors], Reply],
        name: str,
        caller: Caller,
        headers: Mapping[str, str],
        *,
        dimensions: int | None = None,
        read: Callable[[Delta], Vector | None] = attrgetter("embedding"),
    ) -> None:
        super().__init__(headers=headers)
        self._read = read
        self._service = service
        self._model = model
        self._write = write
        self._requests = requests
        self._dimensions = dimensions
        self._name = name
        self._caller = caller
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute the vectors and send them. Raises the error that ended a request."""
        log = scope["state"]["log"]
        log["prompt_tokens"] = sum(len(request.prompt) for request in self._requests)
        try:
            vectors = await self._compute(receive)
        except CancelledError:
            if not self._gone:
                raise
            log["status"] = CLIENT_GONE
            return
        # Writing thousands of numbers on the event loop would delay the streams of others.
        self.body = await asyncio.to_thread(self._reply, vectors)
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)

    async def _compute(self, receive: Receive) -> list[tuple[float, ...]]:
        vectors: list[tuple[float, ...]] = []
        count = min(MAX_QUEUED, self._caller.max_requests, len(self._requests))
        with self._service.reserve(self._model, count, self._caller.tenant) as slots:
            for start in range(0, len(self._requests), count):
                vectors += await self._run(self._requests[start : start + count], receive, slots)
                if self._dimensions not in (None, len(vectors[0])):
                    # Vectors may be cut only if the model was trained for it, which no supported checkpoint declares.
                    raise invalid("dimensions", f"the model's vectors have {len(vectors[0])}, and cannot be cut")
        return vectors

    async def _run(self, requests: Sequence[Request], receive: Receive, slots: QueueSlots) -> list[tuple[float, ...]]:
        vectors: list[tuple[float, ...]] = [()] * len(requests)
        with self._service.run(self._model, self._name, requests, self._caller.tenant, slots) as stream:
            async with watched(receive, self._leave, stream):
                async for place, delta in stream:
                    finish_of(delta)
                    found = self._read(delta)
                    vectors[place] = vectors[place] if found is None else found
        return vectors

    def _leave(self) -> None:
        self._gone = True

    def _reply(self, vectors: Vectors) -> bytes:
        return self._write(vectors).json_bytes()


class Embeddings(Numbers):
    """The response to a list of inputs with pooling: their vectors. Arguments as of `Numbers`."""

    def _reply(self, vectors: Vectors) -> bytes:
        return super()._reply([_unit(vector) for vector in vectors])


def _unit(vector: Sequence[float]) -> list[float]:
    """Scale a vector to length 1; a zero vector stays as it is."""
    length = math.sqrt(math.fsum(each * each for each in vector))
    return [each / length for each in vector] if length else list(vector)


# OpenAI's form


class EmbeddingRequest(Body):
    """The body of /v1/embeddings."""

    RULES: ClassVar[Sequence[Rule]] = (KEEPS_SOME,)
    NO_OPS = MappingProxyType({"user": "usage is not counted per user"})

    model: str | None = MODEL
    input: str | Items[str] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text or its token ids, or several of them.", json_schema_extra=field_rules.TEXTS
    )
    encoding_format: Literal["float", "base64"] | None = optional("base64: little-endian 32-bit floats.")
    dimensions: Positive | None = optional("Must be those of the model.")
    truncate_prompt_tokens: Kept | None = KEPT
    truncate: bool | Literal["NONE", "START", "END"] | None = optional(
        "Cut inputs to the context: START drops their start, END and true their end."
    )


class EmbeddingUsage(Reply):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    """The vector of one input, scaled to length 1: numbers, or little-endian f32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(Reply):
    """The reply of /v1/embeddings."""

    id: str
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def add_embedding_routes(router: APIRouter, service: Service) -> None:
    """Add the route."""

    @router.post("/v1/embeddings", responses={200: {"model": EmbeddingReply}, **BODY_ERRORS})
    async def embeddings(body: EmbeddingRequest, request: HttpRequest) -> Response:
        """Return the vectors of one or several texts."""
        model, caller = service.begin(request, body.model)
        headers = ignored(service, body)
        name = f"embd-{uuid.uuid4().hex}"
        size = len(await request.body())
        work = partial(check_embedding, model, body, caller, name)
        requests = await service.worker_pools.run(size, work)
        write = partial(embedding_reply, model, body, requests, name)
        return Embeddings(service, model, requests, write, name, caller, headers, dimensions=body.dimensions)


def check_embedding(model: ServedModel, body: EmbeddingRequest, caller: Caller, name: str) -> list[Request]:
    """Return the engine's requests for embeddings, one per input.

    Raises:
        RequestError: an input that cannot be served, by its index.
    """
    inputs = several("input", body.input, MAX_INPUTS)
    keep, start = _kept(body, model.context), body.truncate in (True, "END")
    return embedding_requests(model, inputs, caller, name, keep=keep, start=start)


def _kept(body: EmbeddingRequest, context: int) -> int | None:
    """Return how many tokens of an input to keep; None: all, and refuse an input that is too long."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return context if body.truncate not in (None, False, "NONE") else None
    return context if keep == -1 else keep


def embedding_reply(
    model: ServedModel, body: EmbeddingRequest, requests: Sequence[Request], name: str, vectors: Vectors
) -> EmbeddingReply:
    """Return the reply with the vectors of the requests."""
    count = sum(len(request.prompt) for request in requests)
    encode = _base64 if body.encoding_format == "base64" else list
    data = [
        Embedding(object="embedding", index=index, embedding=encode(vector)) for index, vector in enumerate(vectors)
    ]
    usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
    return EmbeddingReply(id=name, object="list", data=data, model=model.name, usage=usage)


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
