"""From a parsed body to requests that the engine accepts, in one pass that raises the first error it finds.

The types of fields are in `request_bodies`, ranges of sampling parameters in `core.params`, rules of prompts in the
engine's `InputProcessor`; all are applied from here. How replies are built is in `reply_builder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ferrum.core.params import ALL_TOKENS, SamplingParams, over_recommended
from ferrum.core.types import Pooling, Request
from ferrum.engine.input_processor import FieldNames, RequestOptions
from ferrum.engine.model_client import ModelClient
from ferrum.server.error_replies import invalid, unsupported
from ferrum.server.openapi_rules import MAX_ID
from ferrum.server.reasoning import effort_variables
from ferrum.server.request_bodies import (
    MAX_BEST_OF,
    MAX_LOGPROBS,
    MAX_TOP_LOGPROBS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationBody,
    Message,
    RenderRequest,
    TemplateBody,
    TokenizeRequest,
)
from ferrum.server.service import Caller
from ferrum.server.truncation import truncated
from ferrum.text.chat_template import for_template, joined
from ferrum.text.infill import infill_prompt

DEFAULT_MAX_TOKENS: Final = 16
"""Of completions; chats may fill the context."""

MAX_PROMPTS: Final = 256
MAX_INPUTS: Final = 2048

MAX_REPLY_LOGPROBS: Final = 1 << 21
"""Log-probabilities of generated tokens in one reply of several choices; with their JSON they take a gigabyte."""

MAX_PROMPT_LOGPROBS: Final = 1 << 18
"""Log-probabilities of prompt tokens in one reply of several choices; each choice repeats those of its prompt."""

MAX_CHARACTERS_PER_TOKEN: Final = 64
"""Of the context: a few characters of a client's template may render megabytes of text."""

_SAMPLING: Final = tuple(each.name for each in fields(SamplingParams) if each.name != "logprobs")
_SCORE_ONLY: Final = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A client's request after validation.

    Attributes:
        requests: for the engine, one per prompt.
        n: choices to return per prompt: the best of those that the requests generate.
        prefixes: the text that every choice begins with, per prompt.
    """

    requests: tuple[Request, ...]
    n: int
    prefixes: tuple[str, ...]


def check_top_tokens(field: str, count: int | None, *limits: int) -> None:
    """Refuse more top tokens of a position than any of the limits. Raises RequestError."""
    if count is not None and not 0 <= count <= min(limits):
        raise invalid(field, f"must be 0 to {min(limits)}, not {count}")


def part_id(name: str, place: int) -> str:
    """Return the id of the engine's request for one of several prompts; clients' ids have no slash."""
    return f"{name}/{place}"


def check_chat(client: ModelClient, body: ChatRequest, caller: Caller, name: str) -> CheckedRequest:
    """Return the engine's request for a chat.

    Args:
        name: the request's id.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    _check_generation(client, body, caller)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "requires logprobs = true")
    check_top_tokens("top_logprobs", body.top_logprobs, MAX_TOP_LOGPROBS, caller.max_logprobs)
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "only text is served")
    if body.include_reasoning is False:
        raise unsupported("include_reasoning", "reasoning is part of the text; only true is served")
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        reason = f"{body.max_completion_tokens} differs from max_tokens = {body.max_tokens}; send one of them"
        raise invalid("max_completion_tokens", reason)
    limit = min(limits, default=None)
    names = FieldNames("messages", "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    if limit is not None and limit < 1:
        raise invalid(names.max_tokens, f"must be at least 1, not {limit}; leave it out to fill the context")
    text = render(client, body)
    given: dict[str, Any] = {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    if limit is not None:
        given["max_tokens"] = limit
    params = _sampling_params(body, {"max_tokens": None, **client.recommended}, given)
    predicted = None
    if body.prediction is not None:
        predicted = joined(body.prediction.model_dump()["content"], "prediction.content")
    prompts = _Prompts(client, body, caller, params, limit, bool(body.add_special_tokens))
    requests = (prompts.request(text, name, names, predicted),)
    if params.logprobs is not None and not body.stream:
        _check_reply_size(requests, caller, params.logprobs, names.max_tokens)
    return CheckedRequest(requests, params.n, (_continued(body) if body.echo else "",))


def check_completion(client: ModelClient, body: CompletionRequest, caller: Caller, name: str) -> CheckedRequest:
    """Return the engine's requests for a completion, one per prompt.

    Args:
        name: the request's id; several prompts get a number each.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name; of several prompts, by index.
    """
    _check_generation(client, body, caller)
    texts = _several("prompt", body.prompt, min(MAX_PROMPTS, caller.max_requests))
    n, generated = _choices(body)
    check_top_tokens("logprobs", body.logprobs, MAX_LOGPROBS, caller.max_logprobs)
    special = body.add_special_tokens is not False
    if body.suffix is not None:
        texts = _infilled(client, body, texts, begin=special)
    given = {
        "n": generated,
        "max_tokens": DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        "logprobs": body.logprobs if generated == n else _wider(body.logprobs, 0),
        "prompt_logprobs": _wider(body.prompt_logprobs, body.logprobs if body.echo else None),
    }
    params = _sampling_params(body, client.recommended, given)
    prompts = _Prompts(client, body, caller, params, body.max_tokens, special)
    requests = (
        tuple(
            prompts.request(text, part_id(name, place), FieldNames(f"prompt[{place}]"))
            for place, text in enumerate(texts)
        )
        if len(texts) > 1
        else (prompts.request(texts[0], name, FieldNames()),)
    )
    _check_prompt_logprobs(body, generated, requests, client.info.vocab_size)
    if body.logprobs is not None and not body.stream:
        _check_reply_size(requests, caller, body.logprobs, "max_tokens")
    prefixes = (prompts.text(*each) if body.echo else "" for each in zip(texts, requests, strict=True))
    return CheckedRequest(requests, n, tuple(prefixes))


def check_embedding(
    client: ModelClient, body: EmbeddingRequest, caller: Caller, name: str, pooling: Pooling
) -> list[Request]:
    """Return the engine's requests for embeddings, one per input. Raises RequestError, naming an input by its index."""
    if body.dimensions is not None and body.dimensions < 1:
        raise invalid("dimensions", f"must be at least 1, not {body.dimensions}")
    inputs = _several("input", body.input, MAX_INPUTS)
    keep, start = _kept(body, caller), body.truncate in (True, "END")
    return [
        client.input_processor.process(
            text if keep is None else truncated(client.tokenizer, text, keep, start=start),
            _SCORE_ONLY,
            RequestOptions(
                request_id=part_id(name, place),
                deadline=caller.deadline,
                tenant=caller.tenant,
                trace_id=caller.trace_id,
                pooling=pooling,
                names=FieldNames(f"input[{place}]" if len(inputs) > 1 else "input"),
            ),
        )
        for place, text in enumerate(inputs)
    ]


def _kept(body: EmbeddingRequest, caller: Caller) -> int | None:
    """Return how many tokens of an input to keep; None: all, and refuse an input that is too long."""
    keep = body.truncate_prompt_tokens
    _check_kept(keep)
    if keep is None:
        return caller.context if body.truncate not in (None, False, "NONE") else None
    return caller.context if keep == -1 else keep


def _check_kept(keep: int | None) -> None:
    if keep is not None and (keep == 0 or keep < -1):
        raise invalid("truncate_prompt_tokens", f"must be at least 1, or -1, not {keep}")


def render(client: ModelClient, body: TemplateBody | TokenizeRequest) -> str:
    """Render a body's conversation with the chat template.

    Raises:
        RequestError, Unsupported: the messages or the template cannot be used.
    """
    messages = body.messages or ()
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")
    text = client.render(
        [message.model_dump(exclude_none=True) for message in messages],
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        tools=(body.tools or None) if isinstance(body, RenderRequest | TokenizeRequest) else None,
        chat_template_kwargs={**effort_variables(client, body), **(body.chat_template_kwargs or {})} or None,
        untrusted=True,
    )
    limit = MAX_CHARACTERS_PER_TOKEN * client.info.max_sequence_length
    if body.chat_template is not None and len(text) > limit:
        raise invalid("chat_template", f"it renders {len(text)} characters, more than {limit}")
    return text


def _check_generation(client: ModelClient, body: GenerationBody, caller: Caller) -> None:
    """Check the rules that chats and completions share."""
    id, form = body.request_id, body.response_format
    bad_id = id is not None and (not 1 <= len(id) <= MAX_ID or "/" in id or id in {".", ".."})
    if form is not None and form.type != "text":
        raise unsupported("response_format", f"{form.type} is not supported, only text")
    if body.prompt_logprobs != ALL_TOKENS or client.info.vocab_size > caller.max_logprobs:
        check_top_tokens("prompt_logprobs", body.prompt_logprobs, caller.max_logprobs)
    for broken, field, reason in (
        (body.stream_options is not None and not body.stream, "stream_options", "requires stream = true"),
        (body.prompt_logprobs is not None and body.stream, "prompt_logprobs", "requires stream = false"),
        (body.n is not None and body.n < 1, "n", f"must be at least 1, not {body.n}"),  # `best_of` replaces it below
        (body.cache_salt == "", "cache_salt", "must not be empty"),
        (bad_id, "request_id", f'must be 1-{MAX_ID} characters, must not contain "/" or be "." or ".."'),
    ):
        if broken:
            raise invalid(field, reason)
    _check_kept(body.truncate_prompt_tokens)
    client.input_processor.check_priority(body.priority or 0)


def _check_message(message: Message, where: str) -> None:
    if message.content is None and message.refusal is None and message.role != "assistant":
        raise invalid(f"{where}.content", "may be null only in an assistant message")
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{where}.tool_call_id", "required in a tool message")
    if message.role == "function" and message.name is None:
        raise invalid(f"{where}.name", "required in a function message")


def _continued(body: ChatRequest) -> str:
    """Return the text of the assistant's message that the reply continues."""
    [last] = for_template([body.messages[-1].model_dump(exclude_none=True)])
    if last["role"] != "assistant" or last["content"] is None:
        raise invalid("echo", "requires an assistant message at the end of messages")
    return str(last["content"])


def _several(field: str, given: str | list[int] | list[str] | list[list[int]], limit: int) -> Sequence[str | list[int]]:
    """Return the prompts of a field that holds one or several. An empty text may still get a begin token."""
    prompts: Sequence[Any] = [given] if isinstance(given, str) or not given or isinstance(given[0], int) else given
    if len(prompts) > limit:
        raise invalid(field, f"has {len(prompts)} entries, at most {limit} fit in one request")
    for place, each in enumerate(prompts):
        if not each and not isinstance(each, str):
            raise invalid(f"{field}[{place}]" if len(prompts) > 1 else field, "must not be empty")
    return prompts


def _choices(body: CompletionRequest) -> tuple[int, int]:
    """Return how many choices to return per prompt, and how many to generate."""
    n = 1 if body.n is None else body.n
    if not body.best_of:
        return n, n
    if not 0 <= body.best_of <= MAX_BEST_OF:
        raise invalid("best_of", f"must be 0 to {MAX_BEST_OF}, not {body.best_of}")
    if body.best_of < n:
        raise invalid("best_of", f"{body.best_of} is less than n = {n}")
    if body.best_of > n and body.stream:
        raise invalid("best_of", "must not exceed n with stream = true")
    return n, body.best_of


def _infilled(
    client: ModelClient, body: CompletionRequest, prompts: Sequence[str | list[int]], *, begin: bool
) -> list[str | list[int]]:
    """Return the prompts as the model's fill-in-the-middle format has them, with the suffix."""
    if body.echo or body.truncate_prompt_tokens is not None:
        raise invalid("suffix", "cannot be combined with echo or truncate_prompt_tokens")
    if client.tokenizer is None:
        raise unsupported("suffix", "the model has no tokenizer")
    infilled: list[str | list[int]] = []
    for prompt in prompts:
        prefix = client.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        ids = infill_prompt(client.tokenizer, prefix, body.suffix or "", begin=begin)
        if ids is None:
            raise unsupported("suffix", "the model's tokenizer has no fill-in-the-middle tokens")
        infilled.append(ids)
    return infilled


def _sampling_params(body: GenerationBody, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Return the body's parameters over the defaults, and `given` over both."""
    of_body = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return over_recommended(defaults, {**of_body, **given})


def _wider(first: int | None, second: int | None) -> int | None:
    """Return the number of top tokens that satisfies both wishes."""
    wishes = [each for each in (first, second) if each is not None]
    return ALL_TOKENS if ALL_TOKENS in wishes else max(wishes, default=None)


@dataclass(frozen=True, slots=True)
class _Prompts:
    """Makes the engine's requests from the prompts of one body.

    Attributes:
        limit: `max_tokens` as the client gave it, which must fit; a default is cut off at the end of the context.
        special: texts get the special tokens that the model expects around them.
    """

    client: ModelClient
    body: GenerationBody
    caller: Caller
    params: SamplingParams
    limit: int | None
    special: bool

    def request(
        self, prompt: str | list[int], request_id: str, names: FieldNames, prediction: str | None = None
    ) -> Request:
        """Return the request for one prompt. Raises as `InputProcessor.process`."""
        return self.client.input_processor.process(
            prompt if self.body.truncate_prompt_tokens is None else self._truncated(prompt),
            self.params,
            RequestOptions(
                request_id=request_id,
                priority=self.body.priority or 0,
                deadline=self.caller.deadline,
                tenant=self.caller.tenant,
                salt=self.body.cache_salt or "",
                trace_id=self.caller.trace_id,
                add_special_tokens=self.special,
                prediction=prediction,
                context=self.caller.context,
                required_output=1 if self.limit is None else self.limit,
                names=names,
            ),
        )

    def _truncated(self, prompt: str | list[int]) -> str | list[int]:
        """Return the last `truncate_prompt_tokens` of a prompt; -1 keeps what leaves room for the output."""
        keep = self.body.truncate_prompt_tokens
        if keep is None or keep == -1:
            room = 1 if self.params.max_tokens is None else self.params.max_tokens
            # A recommended max_tokens may be as long as the context; it must not displace the prompt.
            keep = self.caller.context - (min(room, self.caller.context // 2) if self.limit is None else room)
        return truncated(self.client.tokenizer, prompt, max(1, keep), special=self.special)

    def text(self, prompt: str | list[int], request: Request) -> str:
        """Return the text of a prompt for `echo`: as given, or decoded from its ids."""
        if isinstance(prompt, str) and self.body.truncate_prompt_tokens is None:
            return prompt
        if self.client.tokenizer is None:
            return ""
        return self.client.tokenizer.decode(request.prompt, skip_special_tokens=self.params.skip_special_tokens)


def _check_reply_size(requests: Sequence[Request], caller: Caller, top_tokens: int, blamed: str) -> None:
    """Refuse several choices that could have too many log-probabilities for one reply; streams hold only a few."""
    if sum(request.params.n for request in requests) == 1:
        return
    count = 0
    for request in requests:
        room = caller.context - len(request.prompt)
        limit = request.params.max_tokens
        count += (1 + top_tokens) * request.params.n * (room if limit is None else min(room, limit))
    if count > MAX_REPLY_LOGPROBS:
        reason = f"the reply may have {count} log-probabilities, at most {MAX_REPLY_LOGPROBS} for several choices"
        raise invalid(blamed, f"{reason}; lower it, or set stream = true")


def _check_prompt_logprobs(
    body: CompletionRequest, generated: int, requests: Sequence[Request], vocab_size: int
) -> None:
    """Refuse several choices that repeat too many log-probabilities of their prompts."""
    wishes = {"prompt_logprobs": body.prompt_logprobs, "logprobs": body.logprobs if body.echo else None}
    per_token = {
        field: 1 + (vocab_size if wish == ALL_TOKENS else wish) for field, wish in wishes.items() if wish is not None
    }
    count = generated * sum(len(request.prompt) for request in requests) * sum(per_token.values())
    if generated * len(requests) > 1 and count > MAX_PROMPT_LOGPROBS:
        reason = f"the reply would have {count} log-probabilities of prompt tokens, at most {MAX_PROMPT_LOGPROBS}"
        raise invalid(max(per_token, key=per_token.__getitem__), f"{reason}; set n = 1 or send fewer prompts at a time")
