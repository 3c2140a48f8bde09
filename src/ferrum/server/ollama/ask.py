"""Bodies of Ollama's API as `Ask`s: conversations in OpenAI's form, which templates are given, tools, and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ferrum.client.message_images import SentImage
from ferrum.client.model_client import Message
from ferrum.formats.output_parts import new_id
from ferrum.grammar.tools import tools_of
from ferrum.server.chat.ask import Ask, Names, infilled, params_of
from ferrum.server.common.error_replies import invalid, unsupported
from ferrum.server.common.served_model import ServedModel
from ferrum.server.ollama.fields import (
    ChatMessage,
    EmbedOptions,
    GenerateRequest,
    OllamaBody,
    OllamaChatRequest,
    Options,
)

_RANDOM_SEED: Final = -1
"""Ollama's default of `seed`."""


def chat_ask(model: ServedModel, body: OllamaChatRequest) -> Ask:
    """Return what a chat asks for. Raises RequestError by field."""
    messages = openai_messages(body.messages or ())
    last = messages[-1]
    continued = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
    sources = [[(f"messages[{place}]", 0)] for place in range(len(messages))]
    return _ask(model, body, "messages", messages, sources, body.tools or (), continued=continued)


def generate_ask(model: ServedModel, body: GenerateRequest) -> Ask:
    """Return what a completion asks for. Raises as `chat_ask`."""
    prompt, client = body.prompt or "", model.client
    if body.suffix:
        return _ask(model, body, "prompt", prompts=[infilled(client, prompt, body.suffix, begin=True)])
    if body.raw or client.chat_template is None:
        if body.system:
            raise unsupported("system", "the model has no chat template; put it into the prompt")
        if body.images:
            raise unsupported("images", "the model has no chat template, which would say where they belong")
        return _ask(model, body, "prompt", prompts=[prompt])
    said = {"system": body.system, "prompt": prompt} if body.system else {"prompt": prompt}
    messages: list[dict[str, Any]] = [
        {"role": "user" if name == "prompt" else name, "content": text} for name, text in said.items()
    ]
    messages[-1]["content"] = _content(prompt, body.images or (), "images")
    return _ask(model, body, "prompt", messages, [[(name, 0)] for name in said])


def check_fields(model: ServedModel, body: OllamaBody) -> None:
    """Check what does not depend on a prompt, for bodies without one. Raises as `chat_ask`."""
    ask = _ask(model, body, "prompt")
    with ask.names.in_errors():
        params_of(model.client, ask)
    if isinstance(body, OllamaChatRequest):
        tools_of(body.tools or ())


def _ask(
    model: ServedModel,
    body: OllamaBody,
    field: str,
    messages: Sequence[Message] | None = None,
    sources: Sequence[Sequence[tuple[str, Any]]] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    prompts: Sequence[str | list[int]] = (),
    continued: bool = False,
) -> Ask:
    """Return what a body asks for.

    Args:
        field: with the conversation or the prompt.
        sources: the fields of the messages.
    """
    check_context(model, body.options)
    options = body.options or Options()
    parameters = options.given()
    limit = parameters.pop("max_tokens", 0)
    if parameters.get("seed") == _RANDOM_SEED:
        del parameters["seed"]
    return Ask(
        names=Names(
            prompt=field,
            limit="options.num_predict",
            constraint="format",
            fields={name: f"options.{own}" for name, own in options.SAMPLING.items()},
            messages=sources,
            variables=dict.fromkeys(("enable_thinking", "reasoning_effort"), "think"),
        ),
        messages=messages,
        prompts=prompts,
        given=parameters,
        limit=limit if limit > 0 else None,
        constraint=_constraint(body),
        tools=tools,
        rendering={
            "continue_final_message": continued,
            "chat_template_kwargs": body.think_variables(model.client) or None,
        },
        special=messages is None,
    )


def check_context(model: ServedModel, options: Options | EmbedOptions | None) -> None:
    """Refuse a `num_ctx` beyond the context of the server. Raises RequestError."""
    asked = None if options is None else options.num_ctx
    if asked is not None and asked > model.context:
        reason = f"{asked} is more than the server's context of {model.context} tokens"
        raise invalid("options.num_ctx", f"{reason}; lower it, or start the server with a larger --max-sequence-length")


def _constraint(body: OllamaBody) -> Mapping[str, Any] | None:
    if body.format is None or body.format == "":
        return None
    if isinstance(body.format, str) and body.format != "json":
        raise invalid("format", f"must be 'json' or a JSON Schema, not {body.format[:64]!r}")
    return {"json_object": True} if body.format == "json" else {"json": body.format}


# Conversations: calls need no ids, and a result may name its tool only. Both get ids, which some templates require


def openai_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form. The same messages have the same ids: the next turn finds its prefix."""
    made: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        content = _content(message.content or "", message.images or (), f"messages[{place}].images")
        each: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking:
            each["thinking"] = message.thinking
        if message.tool_calls:
            each["tool_calls"] = pending = list(_calls(message, place))
            pending = list(pending)
        if message.role == "tool":
            each |= _answered(message, pending)
        made.append(each)
    return made


def _content(text: str, images: Sequence[str], field: str) -> str | list[dict[str, Any]]:
    """Return the content of a message; `field` is that of its images, which come first."""
    if not images:
        return text
    shown = [{"type": "image", "image": SentImage(data, f"{field}[{place}]")} for place, data in enumerate(images)]
    return [*shown, {"type": "text", "text": text}] if text else shown


def _calls(message: ChatMessage, place: int) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.tool_calls or ()):
        function = {"name": call.function.name, "arguments": call.function.arguments or {}}
        yield {"id": call.id or new_id("history", place, number), "type": "function", "function": function}


def _answered(message: ChatMessage, pending: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields that say which call a result is of: the named one, else the first without a result."""
    wanted, name = message.tool_call_id or None, message.tool_name or None
    same_id = (call for call in pending if wanted is not None and call["id"] == wanted)
    same_name = (call for call in pending if wanted is None and name in (None, call["function"]["name"]))
    call = next(same_id, None) or next(same_name, None)
    if call is not None:
        pending.remove(call)
        wanted, name = call["id"], name or call["function"]["name"]
    fields = {"tool_call_id": wanted, "name": name}
    return {field: value for field, value in fields.items() if value is not None}
