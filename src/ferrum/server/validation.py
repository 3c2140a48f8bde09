"""From a body to requests that the engine can take as they are: every fault of a request is found here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from operator import eq
from typing import Any, Final

from ferrum.core.errors import ContextOverflow, RequestError
from ferrum.core.params import ALL_TOKENS, SamplingParams
from ferrum.core.types import Request
from ferrum.engine.model_client import ModelClient
from ferrum.server.error_replies import ApiError, field_path, invalid, unsupported
from ferrum.server.openapi_rules import MAX_ID
from ferrum.server.request_bodies import Body, GenerationBody
from ferrum.text.generation_config import over_recommended

_SAMPLING: Final = tuple(each.name for each in fields(SamplingParams) if each.name != "logprobs")

MAX_TOLD: Final = 1 << 21
"""Log-probabilities of generated tokens in a whole reply of several choices, which take a gigabyte with their JSON."""


def one_or_several(
    field: str, given: str | list[int] | list[str] | list[list[int]], limit: int
) -> Sequence[str | list[int]]:
    """The texts or lists of ids of a field that holds one of them or several.

    Raises:
        RequestError: none of them, an empty one, or more than `limit`, which would never find room together.
    """
    several: Sequence[Any] = [given] if isinstance(given, str) or not given or isinstance(given[0], int) else given
    if len(several) > limit:
        raise invalid(field, f"holds {len(several)}, more than the {limit} that find room together")
    for place, each in enumerate(several):
        if not each:  # a tokenizer that begins texts with a token of its own would make one of nothing
            raise invalid(f"{field}[{place}]" if len(several) > 1 else field, "must not be empty")
    return several


def survey(body: Body, *, strict: bool) -> list[str]:
    """The names of fields that have no effect: unknown ones, and known ones without meaning here.

    Raises:
        ApiError: a known field that is refused, or with `strict` an unknown one.
    """
    ignored: list[str] = []
    _survey(body, (), ignored, strict)
    return ignored


def _survey(body: Body, place: tuple[str | int, ...], ignored: list[str], strict: bool) -> None:
    extra = body.model_extra or {}
    for name in sorted(body.model_fields_set):
        value = extra[name] if name in extra else getattr(body, name)
        if value is None and name not in extra:
            continue
        inside = (*place, name)
        if name in body.REFUSED:
            if value is None:
                continue
            raise unsupported(field_path(inside), body.REFUSED[name])
        if name in body.NO_OPS:
            ignored.append(field_path(inside))
        elif name in extra and not body.PASSES_ON:
            if strict:
                raise ApiError(400, f"unknown field {name!r}", code="unknown_parameter", param=field_path(inside))
            ignored.append(field_path(inside))
        for step, inner in _bodies(value):
            _survey(inner, (*inside, *step), ignored, strict)


def _bodies(value: Any) -> list[tuple[tuple[int, ...], Body]]:
    """The bodies within a field's value."""
    if isinstance(value, Body):
        return [((), value)]
    if isinstance(value, list) and value and isinstance(value[0], Body):
        return [((index,), each) for index, each in enumerate(value)]
    return []


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how the server names and bounds it.

    Attributes:
        trace_id: the `traceparent` that it came with, else the id of its HTTP request.
        together: how many requests it may have at a time.
        max_logprobs: how many top tokens of a position it may ask for.
    """

    tenant: str
    trace_id: str
    deadline: float | None
    together: int
    max_logprobs: int


def check_top_tokens(field: str, count: int | None, *limits: int) -> None:
    """Refuse more top tokens of a position than any of the limits. Raises RequestError."""
    if count is not None and not 0 <= count <= min(limits):
        raise invalid(field, f"must be 0 to {min(limits)}, not {count}")


def check_common(body: GenerationBody, client: ModelClient, caller: Caller) -> None:
    """Rules that both generating routes share.

    Raises:
        RequestError, ApiError: the first field that breaks one.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only with stream = true")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "not with stream = true")
    if body.prompt_logprobs != ALL_TOKENS or client.info.vocab_size > caller.max_logprobs:
        check_top_tokens("prompt_logprobs", body.prompt_logprobs, caller.max_logprobs)
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", f"{body.response_format.type} is not served yet, only text")
    if body.n is not None and body.n < 1:  # with `best_of`, so many are not what is sampled
        raise invalid("n", f"must be at least 1, not {body.n}")
    if body.stop == []:
        raise invalid("stop", "must not be an empty list")
    if body.cache_salt == "":
        raise invalid("cache_salt", "must not be empty")
    if body.request_id is not None and not _can_stand_in_a_path(body.request_id):
        raise invalid(
            "request_id", f"must have 1 to {MAX_ID} letters, none of them a slash, and more than one or two dots"
        )
    if (
        body.truncate_prompt_tokens is not None
        and body.truncate_prompt_tokens < 1
        and body.truncate_prompt_tokens != -1
    ):
        raise invalid("truncate_prompt_tokens", f"must be at least 1, or -1, not {body.truncate_prompt_tokens}")
    client.input_processor.check_priority(body.priority or 0)


def _can_stand_in_a_path(id: str) -> bool:
    return 1 <= len(id) <= MAX_ID and "/" not in id and id not in {".", ".."}


def sampling_params(body: GenerationBody, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Parameters: the body's over the defaults, and `given` over both.

    Raises:
        RequestError: a value that makes no sense.
    """
    of_body = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return over_recommended(defaults, {**of_body, **given})


def wider(first: int | None, second: int | None) -> int | None:
    """A wish for as many top tokens as both wishes together."""
    wishes = [each for each in (first, second) if each is not None]
    return ALL_TOKENS if ALL_TOKENS in wishes else max(wishes, default=None)


def part_id(name: str, place: int) -> str:
    """What the request for one of a body's prompts is called: no id that a client gives has a slash."""
    return f"{name}/{place}"


def admit(
    client: ModelClient,
    context: int,
    body: GenerationBody,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    caller: Caller,
    *,
    name: str,
    limit: int | None,
    add_special_tokens: bool,
    prediction: str = "",
) -> list[Request]:
    """One request per prompt.

    Args:
        context: most tokens of prompt and output together.
        name: of the requests; several get a number each.
        limit: the most tokens that the client asks for; a default is cut off by the context, a wish must fit.
        prediction: see `InputProcessor.admit`.

    Raises:
        RequestError: what cannot be served; `param` names the field and, of several prompts, the prompt.
    """
    requests: list[Request] = []
    for place, prompt in enumerate(prompts):
        try:
            request = client.input_processor.process(
                _truncated(client, context, body, prompt, params, limit, add_special_tokens),
                params,
                request_id=part_id(name, place) if len(prompts) > 1 else name,
                priority=body.priority or 0,
                deadline=caller.deadline,
                tenant=caller.tenant,
                salt=body.cache_salt or "",
                trace_id=caller.trace_id,
                add_special_tokens=add_special_tokens,
                prediction=prediction or (),
            )
            _check_room(request, context, limit)
        except RequestError as error:
            raise renamed(error, {"prompt": f"prompt[{place}]"} if len(prompts) > 1 else {}) from None
        requests.append(request)
    return requests


def _truncated(
    client: ModelClient,
    context: int,
    body: GenerationBody,
    prompt: str | list[int],
    params: SamplingParams,
    limit: int | None,
    special: bool,
) -> str | list[int]:
    """The prompt, or the ids of its end where it is to be cut."""
    keep = body.truncate_prompt_tokens
    if keep is None or (client.tokenizer is None and isinstance(prompt, str)):
        return prompt  # admission refuses text without a tokenizer
    if keep == -1:
        room = 1 if params.max_tokens is None else params.max_tokens
        # A default may be as long as the context: nobody asked for an answer in place of the prompt.
        keep = max(1, context - (min(room, context // 2) if limit is None else room))
    if not isinstance(prompt, str):
        return prompt[-keep:]
    assert client.tokenizer is not None
    ids = client.tokenizer.encode(prompt, add_special_tokens=special)
    # What begins every text, as the models want it that are used to it, is not what is to be cut.
    around = client.tokenizer.encode("", add_special_tokens=special)
    begin = sum(takewhile(bool, map(eq, ids, around)))
    return ids if len(ids) <= keep else [*ids[:begin], *ids[len(ids) + begin - keep :]][:keep]


def _check_room(request: Request, context: int, limit: int | None) -> None:
    length = len(request.prompt)
    wanted = 1 if limit is None else limit
    if length + wanted > context:
        raise ContextOverflow(f"{length} tokens and {wanted} more do not fit in a context of {context}", param="prompt")


def check_told(body: GenerationBody, requests: Sequence[Request], context: int, top_tokens: int | None) -> None:
    """Refuse several choices whose log-probabilities might be too many for one reply.

    A stream holds those that its reader has not taken yet.

    Args:
        top_tokens: how many are told of beside each generated token; None: no log-probabilities are.

    Raises:
        RequestError: about `max_tokens`.
    """
    if body.stream or top_tokens is None or sum(request.params.n for request in requests) == 1:
        return
    told = (1 + top_tokens) * sum(request.params.n * _longest(request, context) for request in requests)
    if told > MAX_TOLD:
        raise invalid(
            "max_tokens",
            f"{told} log-probabilities might be in one reply, at most {MAX_TOLD} for several choices or prompts: ask "
            f"for less, or stream the reply",
        )


def _longest(request: Request, context: int) -> int:
    """How many tokens a choice may get."""
    room = context - len(request.prompt)
    return room if request.params.max_tokens is None else min(room, request.params.max_tokens)


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error about the field as the client knows it."""
    if error.param is None or error.param not in names:
        return error
    return error.about(names[error.param])
