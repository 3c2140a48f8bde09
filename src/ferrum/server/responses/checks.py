"""The check of a body of the Responses API: what it means for the engine and for the store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pydantic_core import to_json

from ferrum.client.chat_prompt import ChatOptions, ChatPrompt, chat_prompt
from ferrum.client.diagnosis.prompt_history import PromptPaths, fragments
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.model_client import ModelClient
from ferrum.core.params import SamplingParams, over_recommended
from ferrum.server.common.error_replies import named_in_body
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import PromptNotes, ReplyHeader
from ferrum.server.common.reply_store import ReplyStore, StoredReply, Turn, all_items
from ferrum.server.common.served_model import ServedModel
from ferrum.server.responses.bodies import InputTokensRequest, PromptBody, ResponsesRequest
from ferrum.server.responses.history import Source
from ferrum.server.responses.items import stored_items
from ferrum.server.responses.offered_tools import OfferedTools
from ferrum.server.responses.replies import InputTokens, ResponseReply
from ferrum.server.responses.response_builder import ResponsesBuilder, comparison_id

_NAMES: Final = FieldNames("input", "max_output_tokens", "text.format.schema")


def responses_builder(
    store: ReplyStore,
    before: Turn | None,
    model: ServedModel,
    body: ResponsesRequest,
    caller: Caller,
    header: ReplyHeader,
) -> ResponsesBuilder:
    """Check a body and return the builder of its reply, which stores it unless the body says otherwise.

    Args:
        before: the turn of the response that it continues.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    client = model.client
    asked = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    given = {name: value for name, value in asked.items() if value is not None}
    earlier = all_items(before)
    prompt, params, offered, sources = _checked_prompt(client, body, earlier, given)
    about = RequestOptions(
        request_id=header.id,
        deadline=caller.deadline,
        tenant=caller.tenant,
        trace_id=caller.trace_id,
        add_special_tokens=False,
        context=model.context,
        required_output=body.max_output_tokens or 1,
        guidance=prompt.guidance,
        reading=prompt.reading,
        names=_NAMES,
    )
    request = model.process(prompt.text, params, about)
    known = {each["id"] for each in earlier}
    turn = Turn(before, to_json(stored_items(body.items, header.id, known)))
    stored = StoredReply(caller.tenant, header.id, turn, background=bool(body.background))
    keep = None if body.store is False else partial(_keep, store, stored)
    explanation = None
    if model.explainer is not None:
        efforts = dict.fromkeys(("enable_thinking", "reasoning_effort"), "reasoning.effort")
        paths = PromptPaths(fragments(sources), offered.places, efforts, list="input")
        explanation = model.explainer.explain(request, prompt, paths, comparison_id(body))
    notes = PromptNotes(prompt.free, explanation)
    return ResponsesBuilder(header, body, request, offered, stored, keep, model.cache_page, notes)


def _keep(store: ReplyStore, stored: StoredReply, reply: ResponseReply) -> None:
    store.finish(stored, reply.json_bytes(), to_json(reply.output))


def count_input(model: ServedModel, body: InputTokensRequest, before: Turn | None) -> InputTokens:
    """Return the number of tokens of a body's prompt. Raises as `responses_builder`."""
    prompt, *_ = _checked_prompt(model.client, body, all_items(before), {})
    tokenizer = model.client.tokenizer
    assert tokenizer is not None, "conversations without one are refused"
    count = len(tokenizer.encode(prompt.text, add_special_tokens=False))
    return InputTokens(object="response.input_tokens", input_tokens=count)


def _checked_prompt(
    client: ModelClient, body: PromptBody, earlier: list[Any], given: dict[str, Any]
) -> tuple[ChatPrompt, SamplingParams, OfferedTools, Sequence[Sequence[Source]]]:
    """Return the prompt of a body, its parameters, the tools, and the items that the messages are put together from.

    Args:
        earlier: items of the response that it continues.
        given: parameters of sampling.
    """
    history, offered = body.conversation(before=earlier)
    tools = offered.checked()
    options = ChatOptions(
        choice=offered.choice(tools, body.tool_choice), parallel=body.parallel_tool_calls is not False
    )
    constraint = None if body.text is None else body.text.structured_outputs()
    params = over_recommended({"max_tokens": None, **client.recommended}, {**given, "structured_outputs": constraint})
    variables = None if body.reasoning is None else body.reasoning.variables(client)
    with named_in_body(history.sources, "input"):
        prompt = chat_prompt(
            client, history.messages, params, options, names=_NAMES, chat_template_kwargs=variables or None
        )
    return prompt, params, offered, history.sources
