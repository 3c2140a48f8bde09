"""The checks of chats and completions: from a parsed body to the request that the engine accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ferrum.client.chat_prompt import ChatOptions, ChatPrompt, chat_prompt
from ferrum.client.diagnosis.prompt_history import PromptPaths
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.model_client import Message
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams, over_recommended
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.types import Request
from ferrum.grammar.tools import tools_of
from ferrum.server.common.error_replies import invalid, named_in_body, unsupported
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import PromptNotes
from ferrum.server.common.served_model import ServedModel
from ferrum.server.ollama.bodies import EmbedOptions, GenerateRequest, OllamaBody, OllamaChatRequest, Options
from ferrum.server.ollama.conversation import openai_messages
from ferrum.text.infill import infill_prompt

_LIMIT: Final = "options.num_predict"
_NAMES: Final = {
    "stop": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "dry_sequence_breakers": "dry_sequence_breakers",
    "max_tokens": "num_predict",
}
"""Options by the name of the sampling parameter."""

_RANDOM_SEED: Final = -1
"""Ollama's default of `seed`."""


Checked: TypeAlias = tuple[Request, PromptNotes | None]
"""The engine's request; of a conversation also notes on its prompt."""


def check_chat(model: ServedModel, body: OllamaChatRequest, caller: Caller, name: str) -> Checked:
    """Return the engine's request for a chat; `name` is its id. Raises RequestError, Unsupported by field."""
    messages = openai_messages(body.messages or ())
    choice = tools_of(body.tools or ()).choice(None)
    last = messages[-1]
    continued = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
    return _chat(model, body, caller, name, messages, ChatOptions(choice=choice), "messages", continued=continued)


def check_generate(model: ServedModel, body: GenerateRequest, caller: Caller, name: str) -> Checked:
    """Return the engine's request for a completion. Raises as `check_chat`."""
    prompt, client = body.prompt or "", model.client
    if body.suffix:
        return _text(model, body, caller, name, _infilled(model, prompt, body.suffix)), None
    if body.raw or client.chat_template is None:
        if body.system:
            raise unsupported("system", "the model has no chat template; put it into the prompt")
        return _text(model, body, caller, name, prompt), None
    system: list[Message] = [{"role": "system", "content": body.system}] if body.system else []
    return _chat(model, body, caller, name, [*system, {"role": "user", "content": prompt}], ChatOptions(), "prompt")


def check_fields(model: ServedModel, body: OllamaBody) -> None:
    """Check what does not depend on a prompt, for bodies without one. Raises as `check_chat`."""
    _params(model, body)
    if isinstance(body, OllamaChatRequest):
        tools_of(body.tools or ())


def _chat(
    model: ServedModel,
    body: OllamaBody,
    caller: Caller,
    name: str,
    messages: Sequence[Message],
    options: ChatOptions,
    field: str,
    *,
    continued: bool = False,
) -> Checked:
    names = FieldNames(field, _LIMIT, "format")
    params = _params(model, body)
    sources = _sources(messages, field)
    with named_in_body(sources, field):
        prompt = chat_prompt(
            model.client,
            messages,
            params,
            options,
            names=names,
            continue_final_message=continued,
            chat_template_kwargs=body.think_variables(model.client) or None,
        )
    request = _request(model, caller, params, prompt.text, _about(body, name, names), prompt)
    explanation = None
    if model.explainer is not None:
        tools = [f"tools[{place}]" for place in range(len(options.choice.tools.descriptions))]
        variables = dict.fromkeys(("enable_thinking", "reasoning_effort"), "think")
        explanation = model.explainer.explain(request, prompt, PromptPaths(sources, tools, variables))
    return request, PromptNotes(prompt.free, explanation)


def _sources(messages: Sequence[Message], field: str) -> list[list[tuple[str, int]]]:
    """Return the paths of the messages; a completion has a field for each."""
    fields = [f"messages[{place}]" for place in range(len(messages))]
    if field != "messages":
        fields = ["system", "prompt"][-len(messages) :]
    return [[(each, 0)] for each in fields]


def _text(model: ServedModel, body: OllamaBody, caller: Caller, name: str, prompt: str | list[int]) -> Request:
    names = FieldNames("prompt", _LIMIT, "format")
    return _request(model, caller, _params(model, body), prompt, _about(body, name, names), None)


def _about(body: OllamaBody, name: str, names: FieldNames) -> RequestOptions:
    """Return the id, the names of fields, and the output that must fit: a default is cut off at the context's end."""
    limit = 0 if body.options is None or body.options.num_predict is None else body.options.num_predict
    return RequestOptions(request_id=name, names=names, required_output=max(1, limit))


def _request(
    model: ServedModel,
    caller: Caller,
    params: SamplingParams,
    prompt: str | list[int],
    about: RequestOptions,
    chat: ChatPrompt | None,
) -> Request:
    """Return the request; `about` is that of `_about`."""
    return model.process(
        prompt,
        params,
        replace(
            about,
            deadline=caller.deadline,
            tenant=caller.tenant,
            trace_id=caller.trace_id,
            add_special_tokens=chat is None,
            context=model.context,
            guidance=None if chat is None else chat.guidance,
            reading=None if chat is None else chat.reading,
        ),
    )


def _infilled(model: ServedModel, prefix: str, suffix: str) -> list[int]:
    tokenizer = model.client.tokenizer
    if tokenizer is None:
        raise unsupported("suffix", "the model has no tokenizer")
    ids = infill_prompt(tokenizer, tokenizer.encode(prefix, add_special_tokens=False), suffix, begin=True)
    if ids is None:
        raise unsupported("suffix", "the model's tokenizer has no fill-in-the-middle tokens")
    return ids


def _params(model: ServedModel, body: OllamaBody) -> SamplingParams:
    """Return the sampling parameters of a body; errors name its options."""
    check_context(model, body.options)
    given = _given(body.options or Options())
    constraint = _constraint(body)
    defaults: dict[str, Any] = {"max_tokens": None, **model.client.recommended}
    try:
        return over_recommended(defaults, {**given, "structured_outputs": constraint})
    except RequestError as error:
        raise error.about(f"options.{_NAMES.get(error.param or '', error.param)}") from None


def _given(options: Options) -> dict[str, Any]:
    given = {name: getattr(options, field) for name, field in _NAMES.items()}
    if given["seed"] == _RANDOM_SEED:
        del given["seed"]
    if options.num_predict is not None and options.num_predict <= 0:
        del given["max_tokens"]
    return {name: value for name, value in given.items() if value is not None}


def check_context(model: ServedModel, options: Options | EmbedOptions | None) -> None:
    """Refuse a `num_ctx` beyond the context of the server. Raises RequestError."""
    asked = None if options is None else options.num_ctx
    if asked is not None and asked > model.context:
        reason = f"{asked} is more than the server's context of {model.context} tokens"
        raise invalid("options.num_ctx", f"{reason}; lower it, or start the server with a larger --max-sequence-length")


def _constraint(body: OllamaBody) -> StructuredOutputs | None:
    if body.format is None or body.format == "":
        return None
    if isinstance(body.format, str) and body.format != "json":
        raise invalid("format", f"must be 'json' or a JSON Schema, not {body.format[:64]!r}")
    try:
        if body.format == "json":
            return StructuredOutputs(json_object=True)
        return StructuredOutputs.from_dict({"json": body.format})
    except RequestError as error:
        raise error.about("format") from None
