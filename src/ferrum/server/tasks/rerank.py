"""Scores of texts for other texts: the rerank and score routes as vLLM, Jina, Cohere and llama.cpp have them."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.request_output import Delta
from ferrum.core.errors import Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request as EngineRequest
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import Integer, Items, Rule, absent, given, rule
from ferrum.server.common.json_bodies import MODEL, Body, Reply, optional
from ferrum.server.common.json_routes import ignored
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.openai_errors import BODY_ERRORS, openai_error
from ferrum.server.common.served_model import ServedModel, part_id
from ferrum.server.common.service import Service
from ferrum.server.tasks.embeddings import MAX_INPUTS, Numbers, Vector, Vectors, embedding_requests
from ferrum.text.reranker import Reranker

# Bodies and replies


_NEVER_CUT: Final = "texts are never cut; one that is too long is refused"
_FIXED: Final = "scores are those that the model was trained for"
_TEXT: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ]
}
_TEXTS: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT, "minItems": 1}, {"type": "null"}]
}
_INSTRUCTION: Final[Any] = optional("What makes a document relevant (default: the model's own); for rerankers.")


class TextObject(Body):
    """A text as an object."""

    NO_OPS = MappingProxyType(dict.fromkeys(("title", "id", "_id"), "only `text` is scored"))

    text: str


class ScoringBody(Body):
    """The fields of all routes with scores."""

    NO_OPS = MappingProxyType(
        {
            "user": "usage is not counted per user",
            "max_tokens_per_doc": _NEVER_CUT,
            "max_chunks_per_doc": _NEVER_CUT,
            "encoding_format": "scores are numbers",
        }
    )
    REFUSED = MappingProxyType(
        {
            "truncate_prompt_tokens": _NEVER_CUT,
            **dict.fromkeys(("activation", "softmax", "use_activation"), _FIXED),
        }
    )

    model: str | None = MODEL
    instruction: str | None = _INSTRUCTION


class RerankRequest(ScoringBody):
    """The body of the rerank routes."""

    REFUSED = MappingProxyType({**ScoringBody.REFUSED, "rank_fields": "documents are texts, or objects with a `text`"})

    query: str = Field(description="What the documents are ranked for.")
    documents: Items[str | TextObject] = Field(
        description="The texts, or objects with a `text`.", json_schema_extra={"minItems": 1, "items": _TEXT}
    )
    top_n: Annotated[int, Integer(0)] | None = optional("Documents in the reply (default, and 0: all).")
    return_documents: bool | None = optional("Send the documents in the reply (default: true).")


Texts: TypeAlias = str | Items[str | TextObject]

FIRST: Final = ("text_1", "queries", "data_1")
SECOND: Final = ("text_2", "documents", "items", "data_2")
"""vLLM's names of the texts to score for, and of those that get a score."""


def _texts_field(description: str) -> Any:
    return Field(default=None, description=description, json_schema_extra=_TEXTS)


class ScoreRequest(ScoringBody):
    """The body of the score routes: two texts, or two lists of one length, or one text and a list."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule(FIRST[0], f"is required, or {' or '.join(FIRST[1:])}", *map(given, FIRST)),
        rule(SECOND[0], f"is required, or {' or '.join(SECOND[1:])}", *map(given, SECOND)),
        *(
            rule(two, f"cannot be combined with {one}", absent(one), absent(two))
            for names in (FIRST, SECOND)
            for one, two in combinations(names, 2)
        ),
    )

    text_1: Texts | None = _texts_field("The text or texts to score for.")
    text_2: Texts | None = _texts_field("The text or texts that get a score.")
    queries: Texts | None = _texts_field("As `text_1`.")
    documents: Texts | None = _texts_field("As `text_2`.")
    items: Texts | None = _texts_field("As `text_2`.")
    data_1: Texts | None = _texts_field("As `text_1`.")
    data_2: Texts | None = _texts_field("As `text_2`.")


class ScoringUsage(Reply):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int


class RankedDocument(Reply):
    """A document of the request."""

    text: str


class Ranked(Reply):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class RerankReply(Reply):
    """The reply of the rerank routes; the documents with the highest scores first."""

    id: str
    object: Literal["list"]
    model: str
    usage: ScoringUsage
    results: list[Ranked]


class Score(Reply):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(Reply):
    """The reply of the score routes."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: ScoringUsage


# Scoring


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

    requests: Sequence[EngineRequest]
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


# Routes


RERANK_PATHS: Final = ("/v1/rerank", "/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
SCORE_PATHS: Final = ("/v1/score", "/score")

RERANK: Final = Dialect(paths=(*RERANK_PATHS, *SCORE_PATHS), ids=("rerank", "score"), error=openai_error)
"""Errors are OpenAI's, as in vLLM; nothing is streamed."""


def add_rerank_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Rank documents by their relevance for a query."""
        return await _scored(service, request, body, "rerank", document_pairs, _ranked)

    async def score(body: ScoreRequest, request: Request) -> Response:
        """Score pairs of texts."""
        return await _scored(service, request, body, "score", text_pairs, _score_reply)

    for paths, route, kind in ((RERANK_PATHS, rerank, RerankReply), (SCORE_PATHS, score, ScoreReply)):
        for path in paths:
            responses: dict[int | str, dict[str, Any]] = {200: {"model": kind}, **BODY_ERRORS}
            router.add_api_route(path, route, methods=["POST"], responses=responses)


async def _scored(
    service: Service,
    request: Request,
    body: ScoringBody,
    kind: str,
    pairs: Callable[[Any], list[tuple[Text, Text]]],
    write: Callable[[Any, str, str, Sequence[float], ScoringUsage], Reply],
) -> Response:
    """Return the response to a body; `pairs` returns its pairs, and `write` the reply with their scores."""
    model, caller = service.begin(request, body.model)
    headers = ignored(service, body)
    name = f"{kind}-{uuid.uuid4().hex}"

    def check() -> Scoring:
        return scoring(model, pairs(body), caller, name, body.instruction)

    made = await service.worker_pools.run(len(await request.body()), check)

    def reply(found: Vectors) -> Reply:
        usage = ScoringUsage(prompt_tokens=made.num_tokens, total_tokens=made.num_tokens)
        return write(body, name, model.name, made.scores(found), usage)

    return Numbers(service, model, made.requests, reply, name, caller, headers, read=made.read)


def document_pairs(body: RerankRequest) -> list[tuple[Text, Text]]:
    """Return the query with each document. Raises RequestError without documents."""
    query, documents = Text(body.query, "query"), _texts("documents", body.documents)
    return [(query, document) for document in documents]


def text_pairs(body: ScoreRequest) -> list[tuple[Text, Text]]:
    """Return the pairs of two texts or lists; one text is paired with each of the other list.

    Raises:
        RequestError: a list is empty, or the lists differ in length.
    """
    one, other = (_field(body, names) for names in (FIRST, SECOND))
    if len(one) == 1:
        one = one * len(other)
    if len(one) != len(other):
        reason = f"has {len(other)} texts; there must be one for each of the {len(one)}, or one text to score for"
        raise invalid(other[0].field.partition("[")[0], reason)
    return list(zip(one, other, strict=True))


def _field(body: ScoreRequest, names: Sequence[str]) -> list[Text]:
    """Return the texts of the one of several fields that is given."""
    name = next(each for each in names if getattr(body, each) is not None)
    found = getattr(body, name)
    return [Text(found, name)] if isinstance(found, str) else _texts(name, found)


def _texts(field: str, given: Sequence[str | TextObject]) -> list[Text]:
    if not given:
        raise invalid(field, "must not be empty")
    texts = (each if isinstance(each, str) else each.text for each in given)
    return [Text(text, f"{field}[{place}]") for place, text in enumerate(texts)]


def _ranked(body: RerankRequest, name: str, model: str, scores: Sequence[float], usage: ScoringUsage) -> Reply:
    best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    shown = best[: body.top_n or len(best)]
    texts = [] if body.return_documents is False else [each.text for each in _texts("documents", body.documents)]
    results = [Ranked(index=index, relevance_score=scores[index], **_document(texts, index)) for index in shown]
    return RerankReply(id=name, object="list", model=model, usage=usage, results=results)


def _document(texts: Sequence[str], index: int) -> dict[str, RankedDocument]:
    return {"document": RankedDocument(text=texts[index])} if texts else {}


def _score_reply(_: ScoreRequest, name: str, model: str, scores: Sequence[float], usage: ScoringUsage) -> Reply:
    data = [Score(index=index, object="score", score=score) for index, score in enumerate(scores)]
    return ScoreReply(id=name, object="list", created=int(time.time()), model=model, data=data, usage=usage)
