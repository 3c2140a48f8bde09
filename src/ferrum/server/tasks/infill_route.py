"""/infill: llama.cpp's own form of completions, for editors that fill in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.client.request_output import Delta
from ferrum.server.chat.ask import Ask, Asked, Names, asked
from ferrum.server.chat.generation import generate
from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.chat.turn import ReplyBuilder, ReplyHeader
from ferrum.server.common import field_rules
from ferrum.server.common.dialect import UNNAMED_EVENT, Dialect
from ferrum.server.common.error_replies import STATUSES, ApiError, unsupported
from ferrum.server.common.field_rules import Integer, Items
from ferrum.server.common.json_bodies import Body, GeneratingBody, Reply, optional
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.openai_errors import TYPES
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.text.infill import infill_prompt
from ferrum.text.tokenizer import encode_middle

# Body and replies


_NO_SAMPLER: Final = "there is no such sampler"
_NEVER_CUT: Final = "prompts are never cut"
_OTHER_ROUTE: Final = "use /v1/completions with `suffix`"
_DEFAULT_BUDGET: Final = "the limit is n_predict"


class ExtraText(Body):
    """A file that precedes the text."""

    filename: str | None = optional("The name of the file.")
    text: str


@sampled({"repetition_penalty": "repeat_penalty", "max_tokens": "n_predict"}, more=("stop", "ignore_eos"), terse=True)
class InfillRequest(GeneratingBody):
    """The body of /infill."""

    NO_OPS = MappingProxyType(
        {
            **dict.fromkeys(
                ("typical_p", "dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold"), _NO_SAMPLER
            ),
            **dict.fromkeys(("mirostat", "mirostat_tau", "mirostat_eta", "samplers", "min_keep"), _NO_SAMPLER),
            "repeat_last_n": "penalties see all tokens",
            "n_keep": _NEVER_CUT,
            "cache_prompt": "prefixes are always cached",
            "n_cache_reuse": "only prefixes are reused",
            "id_slot": "requests have no slots",
            "n_indent": "indentation is not changed",
            "t_max_prompt_ms": _DEFAULT_BUDGET,
            "t_max_predict_ms": _DEFAULT_BUDGET,
            "timings_per_token": "timings are not sent",
            "return_progress": "progress is not sent",
            "sse_ping_interval": "set when the server starts",
            "response_fields": "all fields are sent",
        }
    )
    REFUSED = MappingProxyType(
        {
            **dict.fromkeys(("n_probs", "post_sampling_probs"), f"for log-probabilities {_OTHER_ROUTE}"),
            **dict.fromkeys(("grammar", "json_schema"), f"for constraints {_OTHER_ROUTE}"),
            "logit_bias": f"for biases {_OTHER_ROUTE}",
            "n_cmpl": f"for several choices {_OTHER_ROUTE}",
            "lora": "adapters are not supported",
        }
    )

    input_prefix: str | None = optional("The text before the gap.")
    input_suffix: str | None = optional("The text after the gap.")
    input_extra: Items[ExtraText] | None = optional("Files that precede the text.")
    prompt: str | None = optional("The begin of the text in the gap.")
    n_predict: Annotated[int, Integer(-1)] | None = optional(
        "Limit of generated tokens (default, and -1: the rest of the context)."
    )
    return_tokens: bool | None = optional("Send the token ids.")


StopType: TypeAlias = Literal["eos", "limit", "word"]
"""Why a reply ended."""


class InfillReply(Reply):
    """The reply, or a piece of it: `stop` is true in the last one, which has the counts."""

    index: Literal[0]
    content: str
    tokens: list[int]
    stop: bool
    id_slot: Literal[-1]
    tokens_predicted: int
    tokens_evaluated: int
    model: str | None = None
    stop_type: StopType | None = None
    stopping_word: str | None = None
    truncated: bool | None = None
    tokens_cached: int | None = None


class ErrorBody(Reply):
    """Fields of an error; `code` is its status."""

    code: int
    message: str
    type: str


class ErrorReply(Reply):
    """The reply of every failed request."""

    error: ErrorBody


# The wire form: unnamed events, and errors with their status as code


def _error(error: ApiError) -> bytes:
    of_class = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = TYPES.get(error.status_code, of_class)
    named = error.param is None or error.message.startswith(f"{error.param}:")
    message = error.message if named else f"{error.param}: {error.message}"
    return ErrorReply(error=ErrorBody(code=error.status_code, message=message, type=kind)).json_bytes()


LLAMACPP: Final = Dialect(paths=("/infill",), ids=("infill-",), error=_error, event=UNNAMED_EVENT)


# The route


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
    parameters = body.given()
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
