"""/tokenize, /detokenize and /v1/chat/completions/render: text to tokens and back, without generating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field, SkipValidation, with_config
from pydantic_core import to_json
from starlette.responses import Response
from typing_extensions import TypedDict

from ferrum.client.chat_prompt import images_apart, tokens_of
from ferrum.client.model_client import ModelClient
from ferrum.core.errors import RequestError
from ferrum.core.param_values import TOKEN_SCHEMA
from ferrum.server.chat.ask import check_rendered
from ferrum.server.common.error_replies import unsupported
from ferrum.server.common.field_rules import Items, Rule, TokenId, absent, given, rule
from ferrum.server.common.json_bodies import MODEL, Body, Reply, optional
from ferrum.server.common.json_routes import has_template, ignored, reply
from ferrum.server.common.openai_errors import BODY_ERRORS
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.openai.ask import messages_of, rendering_of
from ferrum.server.openai.fields import NO_DOCUMENTS, Message, TemplateBody, Templated
from ferrum.text.tokenizer import Tokenizer

# Bodies

_TOOL_LIST: Final[Any] = optional("Descriptions of tools for the template, as in a chat.")


class RenderRequest(TemplateBody):
    """The body of /v1/chat/completions/render."""

    REFUSED = MappingProxyType({"documents": NO_DOCUMENTS})

    model: str | None = MODEL
    tools: Items[dict[str, Any]] | None = _TOOL_LIST


_PARSE: Final = "the tokenizer always parses special tokens"
_FORMS: Final = ("prompt", "messages", "content")
_ONE_FORM: Final = "send exactly one of prompt, messages and content"
_FORM_OF: Final = {
    "add_special_tokens": ("prompt", "messages"),
    "add_special": ("content",),
    "add_generation_prompt": ("messages",),
    "continue_final_message": ("messages",),
    "chat_template": ("messages",),
    "chat_template_kwargs": ("messages",),
    "tools": ("messages",),
}
"""Fields of /tokenize that require one of these other fields."""


class TokenizeRequest(Templated):
    """The body of /tokenize, in vLLM's form (`prompt` or `messages`) or llama.cpp's (`content`)."""

    RULES: ClassVar[Sequence[Rule]] = (
        *Templated.RULES,
        rule("prompt", _ONE_FORM, *map(given, _FORMS)),
        *(rule("prompt", _ONE_FORM, absent(one), absent(other)) for one, other in combinations(_FORMS, 2)),
        *(
            rule(field, f"requires {' or '.join(forms)}", absent(field), *map(given, forms))
            for field, forms in _FORM_OF.items()
        ),
    )
    REFUSED = MappingProxyType({"documents": NO_DOCUMENTS, "parse_special": _PARSE})

    model: str | None = MODEL
    prompt: str | None = None
    messages: Items[Message] | None = Field(default=None, min_length=1)
    content: str | None = None
    add_special_tokens: bool | None = optional("Add special tokens (default: true for a prompt).")
    add_special: bool | None = optional("As add_special_tokens, for content (default: false).")
    return_token_strs: bool | None = optional("Send the vocabulary's spelling of each token.")
    with_pieces: bool | None = optional("Send each token with its text.")
    tools: Items[dict[str, Any]] | None = _TOOL_LIST


class DetokenizeRequest(Body):
    """The body of /detokenize; the reply has the text under both names, `prompt` and `content`."""

    model: str | None = MODEL
    tokens: Items[TokenId] = Field(json_schema_extra={"items": dict(TOKEN_SCHEMA)})


# Replies


@with_config(ConfigDict(extra="forbid"))
class TokenPiece(TypedDict):
    """A token with its text, or with its bytes if they are not valid text."""

    id: int
    piece: str | list[int]


class Tokens(Reply):
    """The reply of /tokenize; `tokens` have pieces if the request has `with_pieces`."""

    tokens: SkipValidation[list[int] | list[TokenPiece]]
    count: int
    max_model_len: int
    token_strs: list[str] | None

    def json_bytes(self) -> bytes:
        return to_json(dict(self))  # the model's own serializer checks the kind of each token: eight times slower


class Text(Reply):
    """The reply of /detokenize."""

    prompt: str
    content: str


class Rendered(Reply):
    """The reply of /v1/chat/completions/render."""

    prompt: str
    token_ids: list[int]
    count: int


# The work

Described = TypeVar("Described")


def tokenizer_of(client: ModelClient) -> Tokenizer:
    """Return the model's tokenizer. Raises ApiError if it has none."""
    if client.tokenizer is None:
        raise unsupported("model", "it has no tokenizer")
    return client.tokenizer


def tokenize(model: ServedModel, body: TokenizeRequest) -> Tokens:
    """Return the tokens of `prompt`, `messages` or `content`.

    Raises:
        RequestError, ApiError: not exactly one of them is given, or a field cannot be served.
    """
    tokenizer = tokenizer_of(model.client)
    if body.content is not None:
        ids = tokenizer.encode(body.content, add_special_tokens=bool(body.add_special))
    elif body.prompt is not None:
        ids = tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        ids = render(model.client, body)[1]
    strings = _each(ids, lambda token: tokenizer.piece(token) or "") if body.return_token_strs else None
    pieces = _each(ids, partial(_piece, tokenizer)) if body.with_pieces else None
    return Tokens(
        tokens=ids if pieces is None else pieces, count=len(ids), max_model_len=model.context, token_strs=strings
    )


def _each(ids: Sequence[int], describe: Callable[[int], Described]) -> list[Described]:
    """Describe each token, computing the description once per id: a text may have millions of tokens."""
    known = {token: describe(token) for token in set(ids)}
    return [known[token] for token in ids]


def _piece(tokenizer: Tokenizer, token: int) -> TokenPiece:
    """Return a token with its text, or with its bytes if they are part of a character."""
    raw = tokenizer.token_bytes(token)
    try:
        return TokenPiece(id=token, piece=raw.decode())
    except UnicodeDecodeError:
        return TokenPiece(id=token, piece=list(raw))


def detokenize(model: ServedModel, body: DetokenizeRequest) -> Text:
    """Return the text of tokens, special ones included. Raises InvalidToken for an id outside the vocabulary."""
    tokenizer = tokenizer_of(model.client)
    model.client.input_processor.check_tokens(body.tokens, param="tokens")
    text = tokenizer.decode(body.tokens, skip_special_tokens=False)
    return Text(prompt=text, content=text)


def rendered(model: ServedModel, body: RenderRequest) -> Rendered:
    """Return the text of a conversation and its tokens, as a chat would use them."""
    tokenizer_of(model.client)
    text, ids = render(model.client, body)
    return Rendered(prompt=text, token_ids=ids, count=len(ids))


def render(client: ModelClient, body: RenderRequest | TokenizeRequest) -> tuple[str, list[int]]:
    """Render a body's conversation with the chat template; return its text and tokens, those of images included.

    Raises:
        RequestError, Unsupported: the messages or the template cannot be used.
    """
    messages, images = images_apart(client, messages_of(body.messages or ()))
    text = client.render(messages, tools=body.tools or None, **rendering_of(client, body))
    if body.chat_template is not None:
        check_rendered(client, text)
    special = bool(body.add_special_tokens)
    try:
        return text, list(tokens_of(client, text, images, add_special_tokens=special))
    except RequestError as error:
        raise error.about("messages") from None


# Routes


def add_token_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    async def run(work: Callable[[ServedModel, Any], Reply], body: Any, request: Request) -> Response:
        model = service.model(body.model)
        headers = ignored(service, body, model)

        def make() -> Response:  # the JSON too: a text of megabytes has millions of tokens
            return reply(work(model, body))

        own = {"template": has_template(body), "images": body.has_images()}
        made = await service.worker_pools.run(len(await request.body()), make, **own)
        made.headers.update(headers)
        return made

    @router.post("/tokenize", responses={200: {"model": Tokens}, **BODY_ERRORS})
    async def to_tokens(body: TokenizeRequest, request: Request) -> Response:
        """Return the tokens of a text or a conversation."""
        return await run(tokenize, body, request)

    @router.post("/detokenize", responses={200: {"model": Text}, **BODY_ERRORS})
    async def to_text(body: DetokenizeRequest, request: Request) -> Response:
        """Return the text of tokens."""
        return await run(detokenize, body, request)

    @router.post("/v1/chat/completions/render", responses={200: {"model": Rendered}, **BODY_ERRORS})
    async def to_prompt(body: RenderRequest, request: Request) -> Response:
        """Return the text and the tokens of a rendered conversation."""
        return await run(rendered, body, request)
