"""The rerank and score routes: each checks a body, starts its work and returns the response."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.common.dialect import Dialect
from ferrum.server.common.embeddings import Numbers, Vectors
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import ignored
from ferrum.server.common.openai_errors import BODY_ERRORS, openai_error
from ferrum.server.common.service import Service
from ferrum.server.rerank.bodies import (
    FIRST,
    SECOND,
    Ranked,
    RankedDocument,
    RerankReply,
    RerankRequest,
    Score,
    ScoreReply,
    ScoreRequest,
    ScoringBody,
    ScoringUsage,
    TextObject,
)
from ferrum.server.rerank.scoring import Scoring, Text, scoring

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
