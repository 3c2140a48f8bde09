"""The bodies and replies of the rerank and score routes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field

from ferrum.server.common.field_rules import Integer, Items, Rule, absent, given, rule
from ferrum.server.common.json_bodies import MODEL, Body, Reply, optional

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


def _scored(description: str) -> Any:
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

    text_1: Texts | None = _scored("The text or texts to score for.")
    text_2: Texts | None = _scored("The text or texts that get a score.")
    queries: Texts | None = _scored("As `text_1`.")
    documents: Texts | None = _scored("As `text_2`.")
    items: Texts | None = _scored("As `text_2`.")
    data_1: Texts | None = _scored("As `text_1`.")
    data_2: Texts | None = _scored("As `text_2`.")


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
