"""`Scoring`: the engine's requests for the scores of pairs of texts, and the scores from their results.

A reranker scores each pair by one token after its prompt; for an embedding model the score is the cosine of both
vectors. Bodies and replies are in `bodies`, running the requests is in `common.embeddings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.request_output import Delta
from ferrum.core.errors import Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.server.common.embeddings import MAX_INPUTS, Vector, Vectors, embedding_requests
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel, part_id
from ferrum.text.reranker import Reranker

NO_SCORES: Final = (
    "the model is no reranker, and its files do not say that it embeds texts; serve a reranker (--reranker qwen3 for "
    "Qwen3-Reranker), or set --pooling to compare embeddings"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a body, and the field that it stands in."""

    text: str
    field: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the scores of a body are computed.

    Attributes:
        requests: for the engine.
        read: returns the numbers of a request in its delta; see `Numbers`.
        scores: returns the score of each pair from the numbers of all requests.
    """

    requests: Sequence[Request]
    read: Callable[[Delta], Vector | None]
    scores: Callable[[Vectors], list[float]]

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(each.prompt) for each in self.requests)


def scoring(
    model: ServedModel,
    pairs: Sequence[tuple[Text, Text]],
    caller: Caller,
    name: str,
    instruction: str | None,
) -> Scoring:
    """Return how pairs of a query and a document are scored.

    Args:
        name: the id of the reply.
        instruction: of the client; None: the model's own.

    Raises:
        RequestError: a text that cannot be served, or too many, by its field.
        Unsupported: the model has no scores, or takes no instruction.
    """
    if len(pairs) > MAX_INPUTS:
        raise invalid(pairs[-1][1].field, f"at most {MAX_INPUTS} pairs are scored in one request, not {len(pairs)}")
    if model.reranker is not None:
        return _reranked(model, model.reranker, pairs, caller, name, instruction)
    if not model.embeds:
        raise Unsupported("model", NO_SCORES)
    if instruction is not None:
        raise Unsupported("instruction", "the model is no reranker; put the instruction into the query")
    return _compared(model, pairs, caller, name)


def _reranked(
    model: ServedModel,
    reranker: Reranker,
    pairs: Sequence[tuple[Text, Text]],
    caller: Caller,
    name: str,
    instruction: str | None,
) -> Scoring:
    tokens = (reranker.true_token, reranker.false_token)
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=0, logprob_token_ids=tokens, ignore_eos=True)
    requests = [
        model.process(
            reranker.prompt(model.client.chat_template, query.text, document.text, instruction),
            params,
            RequestOptions(
                request_id=part_id(name, place),
                deadline=caller.deadline,
                tenant=caller.tenant,
                trace_id=caller.trace_id,
                add_special_tokens=False,
                context=model.context,
                names=FieldNames(document.field),
            ),
        )
        for place, (query, document) in enumerate(pairs)
    ]

    def scores(found: Vectors) -> list[float]:
        return [reranker.score(*each) for each in found]

    return Scoring(requests, partial(_logprobs, tokens), scores)


def _logprobs(tokens: Sequence[int], delta: Delta) -> Vector | None:
    """Return the log-probabilities of the tokens at the only position that is generated."""
    if not delta.logprobs:
        return None
    return tuple(delta.logprobs[0][token].logprob for token in tokens)


def _compared(model: ServedModel, pairs: Sequence[tuple[Text, Text]], caller: Caller, name: str) -> Scoring:
    fields = dict.fromkeys(each for pair in pairs for each in pair)
    places = {each: place for place, each in enumerate(fields)}
    requests = [
        request
        for place, each in enumerate(fields)
        for request in embedding_requests(model, [each.text], caller, f"{name}/{place}", field=each.field)
    ]

    def scores(vectors: Vectors) -> list[float]:
        return [_cosine(vectors[places[query]], vectors[places[document]]) for query, document in pairs]

    return Scoring(requests, _embedding, scores)


def _embedding(delta: Delta) -> Vector | None:
    return delta.embedding


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one is zero. The sums have one rounding."""
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    squares = math.fsum(a * a for a in one) * math.fsum(b * b for b in other)
    return max(-1.0, min(1.0, product / math.sqrt(squares))) if squares else 0.0
