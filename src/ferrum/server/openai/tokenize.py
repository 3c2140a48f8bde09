"""The replies of /tokenize, /detokenize and /v1/chat/completions/render.

The text of a conversation comes from `ask.render`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ferrum.client.model_client import ModelClient
from ferrum.server.common.error_replies import unsupported
from ferrum.server.common.served_model import ServedModel
from ferrum.server.openai.ask import render
from ferrum.server.openai.fields import DetokenizeRequest, RenderRequest, TokenizeRequest
from ferrum.server.openai.replies import Rendered, Text, TokenPiece, Tokens
from ferrum.text.tokenizer import Tokenizer

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
        ids = tokenizer.encode(render(model.client, body), add_special_tokens=bool(body.add_special_tokens))
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
    tokenizer = tokenizer_of(model.client)
    text = render(model.client, body)
    ids = tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
    return Rendered(prompt=text, token_ids=ids, count=len(ids))
