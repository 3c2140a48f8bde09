"""From a parsed body to a prompt and a request that the engine accepts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.client.chat_prompt import ChatOptions, ChatPrompt, chat_prompt
from ferrum.client.diagnosis.prompt_history import PromptPaths, fragments
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.model_client import ModelClient
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams, over_recommended
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.types import Request
from ferrum.grammar.tools import ToolChoice, tools_of
from ferrum.server.anthropic.blocks import Message
from ferrum.server.anthropic.bodies import CountRequest, MessagesRequest
from ferrum.server.anthropic.history import History, Source
from ferrum.server.common.error_replies import invalid, named_in_body
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import PromptNotes
from ferrum.server.common.served_model import ServedModel

_FORMAT: Final = "output_config.format.schema"
_NAMES: Final = FieldNames("messages", "max_tokens", _FORMAT)
_MODES: Final = {"auto": "auto", "any": "required", "none": "none"}
_DESCRIBED: Final = re.compile(r"tools\[(\d+)\](\.function)?(\.parameters)?")


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """A conversation after validation.

    Attributes:
        replaced: paths of what the prompt has in another form.
        sources: of each message, what it is put together from.
    """

    prompt: ChatPrompt
    replaced: tuple[str, ...]
    sources: Sequence[Sequence[Source]]


def check_prompt(
    client: ModelClient, body: CountRequest, params: SamplingParams, earlier: Sequence[Message] = ()
) -> CheckedPrompt:
    """Return the prompt of a body, whose messages follow `earlier` ones. Raises RequestError, Unsupported."""
    template = client.chat_template
    history = History(late_system=template is not None and template.reads_late_system)
    history.add_system(body.system)
    for place, message in enumerate(earlier):
        history.add(message, f"thread.messages[{place}]")
    history.replaced.clear()  # it was named when the thread was created
    for place, message in enumerate(body.messages):
        history.add(message, f"messages[{place}]")
    messages = history.finished()
    continued = bool(messages) and messages[-1]["role"] == "assistant"
    if continued and (messages[-1].get("tool_calls") or not messages[-1]["content"]):
        last = f"messages[{len(body.messages) - 1}]"
        raise invalid(last, "the last assistant message must have text to continue, and no tool_use; send the results")
    budget = None
    if body.thinking is not None and template is not None:
        found = client.output_format().format
        budget = body.thinking.budget_tokens if found is not None and found.reasoning is not None else None
    choice = body.tool_choice
    options = ChatOptions(
        choice=_chosen(body),
        parallel=choice is None or not choice.disable_parallel_tool_use,
        budget=budget,
    )
    with named_in_body(history.sources):
        prompt = chat_prompt(
            client,
            messages,
            params,
            options,
            names=_NAMES,
            continue_final_message=continued,
            chat_template_kwargs=body.variables(client) or None,
        )
    return CheckedPrompt(prompt, tuple(history.replaced), history.sources)


def _chosen(body: CountRequest) -> ToolChoice:
    """Return the tools of the client, and its choice among them. Raises RequestError by the client's names."""
    served = [(place, tool) for place, tool in enumerate(body.tools or ()) if tool.is_served]
    described = []
    for _, tool in served:
        function: dict[str, Any] = {"name": tool.name, "description": tool.description or ""}
        function["parameters"] = tool.input_schema
        described.append(
            {"type": "function", "function": function | ({} if tool.strict is None else {"strict": tool.strict})}
        )
    try:
        tools = tools_of(described)
    except RequestError as error:
        found = _DESCRIBED.match(error.param or "")
        if found is None:
            raise
        rest = (error.param or "")[found.end() :]
        inner = ".input_schema" if found[3] else ""
        raise error.about(f"tools[{served[int(found[1])][0]}]{inner}{rest}") from None
    choice = body.tool_choice
    if choice is None:
        return tools.choice(None)
    named = {"type": "function", "function": {"name": choice.name}}
    return tools.choice(named if choice.type == "tool" else _MODES[choice.type])


def sampling_params(client: ModelClient, body: MessagesRequest) -> SamplingParams:
    """Return the body's parameters over those that the checkpoint recommends. Raises RequestError."""
    given: dict[str, Any] = {"max_tokens": body.max_tokens, **format_params(body)}
    for name in ("temperature", "top_p", "top_k"):
        if getattr(body, name) is not None:
            given[name] = getattr(body, name)
    if body.stop_sequences is not None:
        given["stop"] = body.stop_sequences
    try:
        return over_recommended(client.recommended, given)
    except RequestError as error:
        raise error.about("stop_sequences") if error.param == "stop" else error from None


def format_params(body: CountRequest) -> dict[str, Any]:
    """Return the parameter for the form of the text. Raises RequestError."""
    form = None if body.output_config is None else body.output_config.format
    if form is None:
        return {}
    try:
        return {"structured_outputs": StructuredOutputs.from_dict({"json": form.schema_})}
    except RequestError as error:
        raise error.about(_FORMAT) from None


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A client's request after validation; `replaced` as of `CheckedPrompt`, `cache_page` as of `ServedModel`."""

    request: Request
    replaced: tuple[str, ...]
    cache_page: int | None
    notes: PromptNotes


def check_message(
    model: ServedModel, body: MessagesRequest, caller: Caller, name: str, earlier: Sequence[Message] = ()
) -> CheckedRequest:
    """Return the engine's request for a body.

    The output may be shorter than `max_tokens`: where the context ends, so does the reply.

    Args:
        name: the request's id.
        earlier: messages before those of the body.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    params = sampling_params(model.client, body)
    checked = check_prompt(model.client, body, params, earlier)
    options = RequestOptions(
        request_id=name,
        deadline=caller.deadline,
        tenant=caller.tenant,
        trace_id=caller.trace_id,
        add_special_tokens=False,
        context=model.context,
        required_output=1,
        guidance=checked.prompt.guidance,
        reading=checked.prompt.reading,
        names=_NAMES,
    )
    request = model.process(checked.prompt.text, params, options)
    explanation = None
    if model.explainer is not None:
        paths = PromptPaths(
            fragments(checked.sources),
            tools=[f"tools[{place}]" for place, tool in enumerate(body.tools or ()) if tool.is_served],
            variables={"enable_thinking": "thinking", "reasoning_effort": "output_config.effort"},
        )
        wanted = None if body.diagnostics is None else body.diagnostics.previous_message_id
        explanation = model.explainer.explain(request, checked.prompt, paths, wanted)
    notes = PromptNotes(checked.prompt.free, explanation)
    return CheckedRequest(request, checked.replaced, model.cache_page, notes)
