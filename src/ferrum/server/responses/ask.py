"""Bodies of the Responses API as `Ask`s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrum.client.model_client import ModelClient
from ferrum.server.chat.ask import Ask, Names
from ferrum.server.responses.fields import PromptBody, ResponsesRequest
from ferrum.server.responses.history import OfferedTools


def response_ask(client: ModelClient, body: PromptBody, earlier: Sequence[Any] = ()) -> tuple[Ask, OfferedTools]:
    """Return what a body asks for, and its tools.

    Args:
        earlier: items of the response that it continues.

    Raises:
        RequestError, ApiError: an item or a tool cannot be served, by its path.
    """
    history, offered = body.conversation(before=earlier, sees=client.reads_images)
    constraint, constraint_name = (None, "text.format") if body.text is None else body.text.constraint()
    variables = None if body.reasoning is None else body.reasoning.variables(client)
    request = body if isinstance(body, ResponsesRequest) else None
    options = None if request is None else request.prompt_cache_options
    ask = Ask(
        names=Names(
            prompt="input",
            limit="max_output_tokens",
            constraint=constraint_name,
            fields={**body.SAMPLING, "tool_choice.allowed_tools": "tool_choice"},
            messages=history.sources,
            places=offered.places,
            of_tool={"format.grammar": "format"},
            variables=dict.fromkeys(("enable_thinking", "reasoning_effort"), "reasoning.effort"),
        ),
        messages=history.messages,
        given=body.given(),
        limit=None if request is None else request.max_output_tokens,
        constraint=constraint,
        tools=offered.described,
        choice=offered.choice(body.tool_choice),
        parallel=body.parallel_tool_calls is not False,
        rendering={"chat_template_kwargs": variables or None},
        compared=None if options is None else options.comparison_response_id,
    )
    return ask, offered
