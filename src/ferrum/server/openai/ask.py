"""Bodies of chats and completions as `Ask`s, with the checks that depend on the model or the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.client.message_images import sent_by_url
from ferrum.client.model_client import ModelClient
from ferrum.core.errors import Unsupported
from ferrum.core.params import ALL_TOKENS, SamplingParams
from ferrum.core.types import Request
from ferrum.server.chat.ask import Ask, Asked, Names, asked, infilled
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel, of_scales
from ferrum.server.openai.fields import (
    ALIASES,
    CONSTRAINTS,
    ChatRequest,
    CompletionRequest,
    GenerationBody,
    Message,
    TemplateBody,
    Templated,
)
from ferrum.text.template_messages import for_template, joined

DEFAULT_MAX_TOKENS: Final = 16
"""Of completions; chats may fill the context."""

MAX_PROMPTS: Final = 256

MAX_PROMPT_LOGPROBS: Final = 1 << 18
"""Log-probabilities of prompt tokens in one reply of several choices; each choice repeats those of its prompt."""

MAX_REPLY_LOGPROBS: Final = 1 << 21
"""Log-probabilities of generated tokens in one reply of several choices; with their JSON they take a gigabyte."""


# Chats


def ask_chat(model: ServedModel, body: ChatRequest, caller: Caller, name: str) -> Asked:
    """Return the engine's request for a chat.

    Args:
        name: the request's id.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    ask = chat_ask(model.client, body)
    result = asked(model, ask, caller, name)
    if body.logprobs and not body.stream:
        check_reply_size(result.requests, model.context, body.top_logprobs or 0, ask.names.limit)
    return result


def chat_ask(client: ModelClient, body: ChatRequest) -> Ask:
    """Return what a chat asks for. Raises as `ask_chat`."""
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        reason = f"{body.max_completion_tokens} differs from max_tokens = {body.max_tokens}; send one of them"
        raise invalid("max_completion_tokens", reason)
    for each, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(body, each) not in (None, []) and getattr(body, newer) not in (None, []):
            raise invalid(each, f"cannot be combined with {newer}")
    constraint, constraint_name = _constraint(body)
    older = bool(body.functions)
    described = [{"type": "function", "function": each} for each in body.functions or ()] if older else body.tools
    choice = "function_call" if older or body.function_call is not None else "tool_choice"
    messages, rendering, expected = messages_of(body.messages), rendering_of(client, body), None
    if body.prediction is not None:
        expected = joined(body.prediction.model_dump()["content"], "prediction.content")
    efforts = {"reasoning_effort", "enable_thinking"} - (body.chat_template_kwargs or {}).keys()
    return Ask(
        names=Names(
            limit="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
            constraint=constraint_name,
            tools="functions" if older else "tools",
            choice=choice,
            variables={} if body.reasoning_effort is None else dict.fromkeys(efforts, "reasoning_effort"),
        ),
        messages=messages,
        prediction=expected,
        tools=described or (),
        choice=getattr(body, choice),
        parallel=not older and body.parallel_tool_calls is not False,
        given={**body.given(), "logprobs": (body.top_logprobs or 0) if body.logprobs else None},
        top_tokens={"prompt_logprobs": body.prompt_logprobs, "top_logprobs": body.top_logprobs},
        limit=min(limits, default=None),
        constraint=constraint,
        budget=body.thinking_token_budget,
        rendering=rendering,
        special=bool(body.add_special_tokens),
        keep=body.truncate_prompt_tokens,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        adapters=None if body.lora is None else of_scales(client.adapters, body.lora),
    )


def continued(body: ChatRequest) -> str:
    """Return the text of the assistant's message that the reply continues. Raises RequestError."""
    [last] = for_template([body.messages[-1].model_dump(exclude_none=True)])
    if last["role"] != "assistant" or last["content"] is None:
        raise invalid("echo", "requires an assistant message at the end of messages")
    return str(last["content"])


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages of a body as templates read them, with a `SentImage` in parts of images.

    Raises:
        RequestError: an image is not a data URL.
        Unsupported: a part has an image in another form.
    """
    made = [message.model_dump(exclude_none=True) for message in messages]
    for place, message in enumerate(made):
        if isinstance(message.get("content"), list):
            where = f"messages[{place}].content"
            message["content"] = [_part(part, f"{where}[{at}]") for at, part in enumerate(message["content"])]
    return made


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a part of a content; a path or an object in place of an image is never read."""
    kind = part.get("type")
    if kind == "image_url":
        link = part.get("image_url")
        field = f"{where}.image_url.url" if isinstance(link, dict) else f"{where}.image_url"
        return {"type": "image", "image": sent_by_url(link["url"] if isinstance(link, dict) else link, field)}
    if kind == "image":
        raise Unsupported(f"{where}.type", "'image'; send an image as image_url with a data URL")
    return part


def rendering_of(client: ModelClient, body: Templated) -> dict[str, Any]:
    """Return the arguments of `ModelClient.render` about the template."""
    effort = {}
    if isinstance(body, TemplateBody) and body.reasoning_effort is not None:
        effort = body.effort_variables(client)
    return {
        "chat_template": body.chat_template,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": bool(body.continue_final_message),
        "chat_template_kwargs": {**effort, **(body.chat_template_kwargs or {})} or None,
        "untrusted": True,
    }


# Completions


def ask_completion(model: ServedModel, body: CompletionRequest, caller: Caller, name: str) -> tuple[Asked, list[str]]:
    """Return the engine's requests for a completion, one per prompt, and the texts that their choices begin with.

    Args:
        name: the request's id; several prompts get a number each.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name; of several prompts, by index.
    """
    ask = completion_ask(model.client, body, caller)
    result = asked(model, ask, caller, name)
    _check_prompt_logprobs(body, ask.given["n"], result.requests, model.client.info.vocab_size)
    if body.logprobs is not None and not body.stream:
        check_reply_size(result.requests, model.context, body.logprobs, "max_tokens")
    if not body.echo:
        return result, [""] * len(ask.prompts)
    return result, [_text(model.client, *each, ask) for each in zip(ask.prompts, result.requests, strict=True)]


def completion_ask(client: ModelClient, body: CompletionRequest, caller: Caller) -> Ask:
    """Return what a completion asks for. Raises as `ask_completion`."""
    prompts = several("prompt", body.prompt, min(MAX_PROMPTS, caller.max_requests))
    parameters = body.given()
    n, generated = choices(body)
    special = body.add_special_tokens is not False
    if body.suffix is not None:
        prompts = [infilled(client, each, body.suffix, begin=special) for each in prompts]
    constraint, constraint_name = _constraint(body)
    return Ask(
        names=Names(prompt="prompt", constraint=constraint_name),
        prompts=prompts,
        given={
            **parameters,
            "n": generated,
            "logprobs": body.logprobs if generated == n else _wider(body.logprobs, 0),
            "prompt_logprobs": _wider(body.prompt_logprobs, body.logprobs if body.echo else None),
        },
        top_tokens={"prompt_logprobs": body.prompt_logprobs, "logprobs": body.logprobs},
        limit=parameters.get("max_tokens"),
        default_limit=DEFAULT_MAX_TOKENS,
        constraint=constraint,
        special=special,
        keep=body.truncate_prompt_tokens,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        adapters=None if body.lora is None else of_scales(client.adapters, body.lora),
    )


def choices(body: CompletionRequest) -> tuple[int, int]:
    """Return how many choices to return per prompt, and how many to generate. Raises RequestError."""
    n = SamplingParams(n=body.given().get("n", 1)).n
    if not body.best_of:
        return n, n
    if body.best_of < n:
        raise invalid("best_of", f"{body.best_of} is less than n = {n}")
    if body.best_of > n and body.stream:
        raise invalid("best_of", "must not exceed n with stream = true")
    return n, body.best_of


def several(field: str, given: str | list[int] | list[str] | list[list[int]], limit: int) -> Sequence[str | list[int]]:
    """Return the prompts of a field that holds one or several. An empty text may still get a begin token."""
    prompts: Sequence[Any] = [given] if isinstance(given, str) or not given or isinstance(given[0], int) else given
    if len(prompts) > limit:
        raise invalid(field, f"has {len(prompts)} entries, at most {limit} fit in one request")
    for place, each in enumerate(prompts):
        if not each and not isinstance(each, str):
            raise invalid(f"{field}[{place}]" if len(prompts) > 1 else field, "must not be empty")
    return prompts


def _text(client: ModelClient, prompt: str | list[int], request: Request, ask: Ask) -> str:
    """Return the text of a prompt for `echo`: as given, or decoded from its ids."""
    if isinstance(prompt, str) and ask.keep is None:
        return prompt
    if client.tokenizer is None:
        return ""
    return client.tokenizer.decode(request.prompt, skip_special_tokens=request.params.skip_special_tokens)


def _wider(first: int | None, second: int | None) -> int | None:
    """Return the number of top tokens that satisfies both wishes."""
    wishes = [each for each in (first, second) if each is not None]
    return ALL_TOKENS if ALL_TOKENS in wishes else max(wishes, default=None)


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


# Both


def check_reply_size(requests: Sequence[Request], context: int, top_tokens: int, blamed: str) -> None:
    """Refuse several choices that could have too many log-probabilities for one reply; streams hold only a few."""
    if sum(request.params.n for request in requests) == 1:
        return
    count = 0
    for request in requests:
        room = context - len(request.prompt)
        limit = request.params.max_tokens
        count += (1 + top_tokens) * request.params.n * (room if limit is None else min(room, limit))
    if count > MAX_REPLY_LOGPROBS:
        reason = f"the reply may have {count} log-probabilities, at most {MAX_REPLY_LOGPROBS} for several choices"
        raise invalid(blamed, f"{reason}; lower it, or set stream = true")


def _constraint(body: GenerationBody) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the constraint of a body, None without one, and the client's name of its field if there is one name.

    Raises:
        RequestError: there are several, or its form is unknown.
    """
    sent = {name: value for name in CONSTRAINTS if (value := getattr(body, name)) not in (None, "")}
    if isinstance(sent.get("response_format"), Mapping) and sent["response_format"].get("type") == "text":
        del sent["response_format"]
    if not sent:
        return None, None
    if len(sent) > 1:
        first, second, *_ = sent
        raise invalid(second, f"cannot be combined with {first}; send one constraint")
    ((name, value),) = sent.items()
    if name == "response_format":
        return _of_format(value)
    return ({ALIASES[name]: value}, name) if name in ALIASES else (value, None)


def _of_format(form: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the constraint of a `response_format`, and the client's name of its field."""
    match form:
        case {"type": "json_object", "schema": schema} if schema is not None:
            return {"json": schema}, "response_format.schema"
        case {"type": "json_object"}:
            return {"json_object": True}, "response_format"
        case {"type": "json_schema", "json_schema": {"schema": schema}} if schema is not None:
            return {"json": schema}, "response_format.json_schema.schema"
        case {"type": "json_schema"}:
            raise invalid("response_format.json_schema", "must be an object with a `schema`")
        case {"type": "structural_tag"}:
            return {"structural_tag": form}, "response_format"
    kinds = "'text', 'json_object', 'json_schema' or 'structural_tag'"
    raise invalid("response_format.type", f"must be {kinds}, not {form.get('type')!r}")
