"""/infill: the checks of its body, its route, and the builder of its reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.client.request_output import Delta
from ferrum.server.chat.ask import Ask, Asked, Names, asked
from ferrum.server.chat.generation import generate
from ferrum.server.chat.reply import ReplyBuilder, ReplyHeader
from ferrum.server.chat.sampling_fields import given
from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import STATUSES, unsupported
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.llamacpp.bodies import ErrorReply, InfillReply, InfillRequest, StopType
from ferrum.text.infill import infill_prompt
from ferrum.text.tokenizer import encode_middle

_RANDOM: Final = -1
_UNLIMITED: Final = -1
"""llama.cpp's words for a random seed and for no limit."""


def add_llamacpp_routes(router: APIRouter, service: Service) -> None:
    """Add the route."""
    events = {"text/event-stream": {"schema": {**field_rules.EVENT, "description": "An event of the stream."}}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply, "description": text} for status, text in STATUSES.items()
    }
    reply = {"model": InfillReply, "content": events, "description": "The reply, or its pieces."}

    @router.post("/infill", responses={200: reply, **errors})
    async def infill(body: InfillRequest, request: Request) -> Response:
        """Generate the text between two texts."""
        return await generate(service, request, body, "infill-", infill_builder)


def infill_builder(model: ServedModel, body: InfillRequest, caller: Caller, header: ReplyHeader) -> InfillBuilder:
    """Check a body and return the builder of its reply. Raises RequestError, Unsupported by field."""
    parameters = given(body)
    limit = parameters.pop("max_tokens", _UNLIMITED)
    if parameters.get("seed") == _RANDOM:
        del parameters["seed"]
    ask = Ask(
        names=Names(prompt="input_prefix", limit="n_predict", fields=body.SAMPLING),
        prompts=[_prompt(model, body)],
        given=parameters,
        limit=None if limit == _UNLIMITED else limit,
    )
    return InfillBuilder(header, asked(model, ask, caller, header.id), body)


def _prompt(model: ServedModel, body: InfillRequest) -> list[int]:
    """Return the tokens of the prompt: extra files, prefix and suffix with their marks, and the begun gap."""
    tokenizer = model.client.tokenizer
    if tokenizer is None:
        raise unsupported("input_suffix", "the model has no tokenizer; use /v1/completions with token ids")
    files = ((each.filename, each.text) for each in body.input_extra or ())
    extra = "".join(f"{name}\n{text}\n" if name else f"{text}\n" for name, text in files)
    prefix = tokenizer.encode(extra + (body.input_prefix or ""), add_special_tokens=False)
    ids = infill_prompt(tokenizer, prefix, body.input_suffix or "", begin=True)
    if ids is None:
        reason = "the model's tokenizer has no fill-in-the-middle tokens; use /v1/completions without `suffix`"
        raise unsupported("input_suffix", reason)
    return [*ids, *(encode_middle(tokenizer, body.prompt) if body.prompt else ())]


class InfillBuilder(ReplyBuilder[InfillReply]):
    """Builds the reply from the engine's deltas.

    Args:
        header: with the reply's id and the model.
        asked: the engine's request.
        body: of the client.
    """

    def __init__(self, header: ReplyHeader, asked: Asked, body: InfillRequest) -> None:
        super().__init__(header, asked)
        self._model = header.model
        self._tokens = bool(body.return_tokens)

    def chunks(self, place: int, delta: Delta) -> Iterator[InfillReply]:
        """Yield a piece for new text."""
        for _ in self.pieces(place, delta):
            pass
        if delta.text:
            yield InfillReply(**self._piece(delta.text, list(delta.token_ids)), stop=False)

    def end_chunks(self) -> Iterator[InfillReply]:
        """Yield the last piece, which has no text and all counts."""
        yield self._end("", [])

    def whole(self) -> InfillReply:
        [turn] = self.turns.values()
        delta = turn.joined()
        return self._end(delta.text or "", list(delta.token_ids) if self._tokens else [])

    def _piece(self, text: str, tokens: list[int]) -> dict[str, Any]:
        return {
            "index": 0,
            "content": text,
            "tokens": tokens,
            "id_slot": -1,
            "tokens_predicted": self.usage.completion,
            "tokens_evaluated": self.usage.prompt,
        }

    def _end(self, text: str, tokens: list[int]) -> InfillReply:
        [turn] = self.turns.values()
        reason = None if turn.last is None else turn.last.stop_reason
        word = reason if isinstance(reason, str) else ""
        ended: StopType = "word" if word else "limit" if turn.finish == "length" else "eos"
        return InfillReply(
            **self._piece(text, tokens),
            stop=True,
            model=self._model,
            stop_type=ended,
            stopping_word=word,
            truncated=False,
            tokens_cached=self.usage.cached,
        )
