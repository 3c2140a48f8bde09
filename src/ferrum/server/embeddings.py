"""Embeddings: the final hidden states of a text, pooled and brought to length 1."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.types import Pooling, Request
from ferrum.engine.model_client import ModelClient
from ferrum.engine.router import QueueSlots
from ferrum.server.error_replies import CancelledError, invalid
from ferrum.server.generation import watched
from ferrum.server.http_guard import CLIENT_GONE
from ferrum.server.reply_bodies import Embedding, EmbeddingReply, EmbeddingUsage
from ferrum.server.reply_builder import finish_of
from ferrum.server.request_bodies import EmbeddingRequest
from ferrum.server.service import Service
from ferrum.server.validation import Caller, one_or_several, part_id, renamed

MAX_INPUTS: Final = 2048
TOGETHER: Final = 64
"""Inputs in the queue at a time, for there may be more of them than the queue holds."""

_NOTHING_GENERATED: Final = SamplingParams(max_tokens=0)


def embedding_requests(
    client: ModelClient, body: EmbeddingRequest, caller: Caller, name: str, pooling: Pooling
) -> list[Request]:
    """One request per input, checked.

    Raises:
        RequestError: an input that cannot be served; `param` names it.
    """
    if body.dimensions is not None and body.dimensions < 1:
        raise invalid("dimensions", f"must be at least 1, not {body.dimensions}")
    inputs = one_or_several("input", body.input, MAX_INPUTS)
    requests: list[Request] = []
    for place, text in enumerate(inputs):
        try:
            request = client.input_processor.process(
                text,
                _NOTHING_GENERATED,
                request_id=part_id(name, place),
                deadline=caller.deadline,
                tenant=caller.tenant,
                trace_id=caller.trace_id,
                pooling=pooling,
            )
        except RequestError as error:
            raise renamed(error, {"prompt": f"input[{place}]" if len(inputs) > 1 else "input"}) from None
        requests.append(request)
    return requests


class Embeddings(Response):
    """The response to a list of inputs. They are ended when the client leaves.

    Args:
        requests: one per input, with pooling.
        name: of the whole, for the books.
        caller: whose it is.
        headers: of the response.
    """

    media_type = "application/json"

    def __init__(
        self,
        service: Service,
        body: EmbeddingRequest,
        requests: Sequence[Request],
        name: str,
        caller: Caller,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers=headers)
        self._service = service
        self._wanted = body
        self._requests = requests
        self._name = name
        self._caller = caller
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute the vectors and send them. Raises what keeps it from that."""
        log = scope["state"]["log"]
        log["prompt_tokens"] = sum(len(request.prompt) for request in self._requests)
        try:
            vectors = await self._compute(receive)
        except CancelledError:
            if not self._gone:
                raise
            log["status"] = CLIENT_GONE
            return
        # Thousands of numbers become text: that may not hold up the streams of others.
        self.body = await asyncio.to_thread(self._reply, vectors)
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)

    async def _compute(self, receive: Receive) -> list[tuple[float, ...]]:
        vectors: list[tuple[float, ...]] = []
        together = min(TOGETHER, self._caller.together, len(self._requests))
        with self._service.hold(together, self._caller.tenant) as places:
            for start in range(0, len(self._requests), together):
                vectors += await self._part(self._requests[start : start + together], receive, places)
                self._check_dimensions(len(vectors[0]))
        return vectors

    async def _part(self, requests: Sequence[Request], receive: Receive, places: QueueSlots) -> list[tuple[float, ...]]:
        vectors: list[tuple[float, ...]] = [()] * len(requests)
        with self._service.run(self._name, requests, self._caller.tenant, places) as running:
            async with watched(receive, self._leave, running):
                async for place, delta in running:
                    if finish_of(delta) is not None:
                        assert delta.embedding is not None
                        vectors[place] = delta.embedding
        return vectors

    def _leave(self) -> None:
        self._gone = True

    def _check_dimensions(self, length: int) -> None:
        """A vector may be cut only where a model was trained for it; none of ours says so."""
        if self._wanted.dimensions not in (None, length):
            raise invalid("dimensions", f"the model's vectors have {length}, and cannot be cut")

    def _reply(self, vectors: Sequence[tuple[float, ...]]) -> bytes:
        count = sum(len(request.prompt) for request in self._requests)
        encode = _base64 if self._wanted.encoding_format == "base64" else list
        data = [
            Embedding(object="embedding", index=index, embedding=encode(_unit(vector)))
            for index, vector in enumerate(vectors)
        ]
        usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
        made = EmbeddingReply(id=self._name, object="list", data=data, model=self._service.model, usage=usage)
        return made.json_bytes()


def _unit(vector: Sequence[float]) -> list[float]:
    """The vector at length 1; that of nothing stays as it is."""
    length = math.sqrt(math.fsum(each * each for each in vector))
    return [each / length for each in vector] if length else list(vector)


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
