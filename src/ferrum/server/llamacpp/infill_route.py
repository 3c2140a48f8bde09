"""/infill: the checks of its body, its route, and the builder of its reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.request_output import Delta
from ferrum.core.errors import RequestError
from ferrum.core.params import over_recommended
from ferrum.core.types import Request as EngineRequest
from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import STATUSES, unsupported
from ferrum.server.common.generation import finish_of
from ferrum.server.common.json_routes import generate
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import ReplyHeader
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.llamacpp.bodies import ErrorReply, InfillReply, InfillRequest, StopType
from ferrum.text.infill import infill_prompt
from ferrum.text.tokenizer import encode_middle

_NAMES: Final = {
    **{name: name for name in ("stop", "temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos")},
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    **{name: name for name in ("dry_multiplier", "dry_base", "dry_allowed_length")},
    **{name: name for name in ("dry_penalty_last_n", "dry_sequence_breakers")},
    "max_tokens": "n_predict",
}
"""Fields by the name of the sampling parameter."""

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
    given = {name: value for name, field in _NAMES.items() if (value := getattr(body, field)) is not None}
    if given.get("seed") == _RANDOM:
        del given["seed"]
    if given.get("max_tokens") == _UNLIMITED:
        del given["max_tokens"]
    try:
        params = over_recommended({"max_tokens": None, **model.client.recommended}, given)
    except RequestError as error:
        raise error.about(_NAMES.get(error.param or "", error.param or "")) from None
    request = model.process(
        _prompt(model, body),
        params,
        RequestOptions(
            request_id=header.id,
            deadline=caller.deadline,
            tenant=caller.tenant,
            trace_id=caller.trace_id,
            context=model.context,
            required_output=given.get("max_tokens", 1),
            names=FieldNames("input_prefix", "n_predict"),
        ),
    )
    return InfillBuilder(header, request, body)


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


class _Counts:
    """Tokens of the reply so far."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.completion = self.cached = 0


class InfillBuilder:
    """Builds the reply from the engine's deltas.

    Args:
        header: with the reply's id and the model.
        request: of the engine.
        body: of the client.
    """

    uniform = False

    def __init__(self, header: ReplyHeader, request: EngineRequest, body: InfillRequest) -> None:
        self.id = header.id
        self.requests: tuple[EngineRequest, ...] = (request,)
        self.usage = _Counts(len(request.prompt))
        self._model = header.model
        self._tokens = bool(body.return_tokens)
        self._last: Delta | None = None

    def headers(self, first: Delta | None) -> Mapping[str, str]:  # noqa: ARG002 - a `ReplyBuilder` may need it
        """Return headers of the response: none."""
        return {}

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - a `ReplyBuilder` may need the place
        """Count a delta. Raises the FerrumError that ended the reply."""
        self.usage.completion += len(delta.token_ids)
        if delta.usage is not None:
            self.usage.cached = delta.usage.cached_tokens
        if finish_of(delta) is not None:
            self._last = delta

    def chunks(self, place: int, delta: Delta) -> Iterator[InfillReply]:  # noqa: ARG002 - see `add`
        """Yield a piece for new text."""
        if delta.text:
            yield InfillReply(**self._piece(delta.text, list(delta.token_ids)), stop=False)

    def end_chunks(self) -> Iterable[InfillReply]:
        """Return the last piece, which has no text and all counts."""
        return [self._end("", [])]

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> InfillReply:
        """Return the whole reply."""
        [delta] = choices.values()
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
        assert self._last is not None, "a stream that ends has had its last delta"
        word = self._last.stop_reason if isinstance(self._last.stop_reason, str) else ""
        ended: StopType = "word" if word else "limit" if finish_of(self._last) == "length" else "eos"
        return InfillReply(
            **self._piece(text, tokens),
            stop=True,
            model=self._model,
            stop_type=ended,
            stopping_word=word,
            truncated=False,
            tokens_cached=self.usage.cached,
        )
