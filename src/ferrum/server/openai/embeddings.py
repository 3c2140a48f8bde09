"""/v1/embeddings: the checks of its body, and the reply.

Requests run in `common.embeddings`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

from ferrum.core.types import Request
from ferrum.server.common.embeddings import MAX_INPUTS, Vectors, embedding_requests
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.openai.ask import several
from ferrum.server.openai.fields import EmbeddingRequest
from ferrum.server.openai.replies import Embedding, EmbeddingReply, EmbeddingUsage


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
