"""`Ask`: what a client wants, in the one form of all dialects, and `asked`, the way from it to the engine's requests.

A dialect reads its body into an `Ask`. Messages and tools are in OpenAI's form, parameters have our names; `Names` are
the client's, which errors use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrum.client.adapter_registry import NamedAdapter
from ferrum.client.chat_prompt import ChatPrompt, chat_prompt, images_apart, prompt_tokens
from ferrum.client.diagnosis.prefix_explainer import Explanation
from ferrum.client.diagnosis.prompt_history import PromptPaths, fragments
from ferrum.client.input_processor import FieldNames, RequestOptions
from ferrum.client.model_client import Message, ModelClient
from ferrum.core.errors import RequestError
from ferrum.core.params import ALL_TOKENS, SamplingParams, over_recommended
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.types import Request
from ferrum.grammar.reply_guidance import ChatOptions
from ferrum.grammar.tools import tools_of
from ferrum.images.decoded_image import DecodedImage
from ferrum.server.common.error_replies import invalid, unsupported
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel, part_id, truncated
from ferrum.text.infill import infill_prompt

MAX_CHARACTERS_PER_TOKEN: Final = 64
"""Of the context: a few characters of a client's template may render megabytes of text."""

_MESSAGE: Final = re.compile(r"messages(?:\[(\d+)\])?(?!\w)")
_TOOL: Final = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom))?")

Source = tuple[str, Any]
"""The path of a part of a message in the body, and what it contributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The client's names of the fields that errors can name.

    Attributes:
        prompt: of the conversation, or of the text.
        limit: of the limit of generated tokens.
        constraint: of the constraint; None: `structured_outputs.` and the constraint's own field.
        fields: of sampling parameters and others, by ours.
        messages: of each message what it was put together from; None: as they were sent.
        tools, choice: of the list of tools and of the choice among them.
        places: of each tool; None: as they were sent.
        of_tool: of fields of a tool, by OpenAI's.
        variables: of variables of the template.
    """

    prompt: str = "messages"
    limit: str = "max_tokens"
    constraint: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Sequence[Source]] | None = None
    tools: str = "tools"
    choice: str = "tool_choice"
    places: Sequence[str] | None = None
    of_tool: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Name the client's fields in errors of the engine."""
        try:
            yield
        except RequestError as error:
            name = None if error.param is None else self._renamed(error.param)
            if name is None or name == error.param:
                raise
            raise error.about(name) from None

    def _renamed(self, param: str) -> str:
        if param in self.fields:
            return self.fields[param]
        if param == "images":  # the placeholders of the prompt are not those of its images
            return self.prompt
        if self.places is not None and (tool := _TOOL.match(param)):
            rest = param[tool.end() :]
            for ours, name in self.of_tool.items():
                if rest.startswith(f".{ours}"):
                    rest = f".{name}{rest.removeprefix(f'.{ours}')}"
            return self.places[int(tool[1])] + rest
        if self.messages is not None and (message := _MESSAGE.match(param)):
            place = -1 if message[1] is None else int(message[1])
            own = self.messages[place] if 0 <= place < len(self.messages) else ()
            path = own[-1][0] if own else self.prompt
            return param if path == message[0] else path
        return param

    def of_engine(self, place: int, count: int) -> FieldNames:
        """Return the names for the request at `place` of several."""
        prompt = self.prompt if count == 1 else f"{self.prompt}[{place}]"
        return FieldNames(prompt, self.limit, self.constraint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client wants.

    Attributes:
        names: its names of fields.
        messages: the conversation, with a `SentImage` in each part of an image; None: `prompts` are used as they are.
        prompts: texts, or their token ids.
        given: sampling parameters.
        top_tokens: most likely tokens per position that the reply shows, by the client's fields; -1: all.
        limit: of generated tokens; None: a recommended one, or `default_limit`, or the rest of the context.
        fits: the limit must fit into the context; else the reply ends there.
        constraint: of the text, as `structured_outputs` has it.
        tools, choice, parallel: the tools, whether and which one must be called, and whether several calls are allowed.
        budget: largest number of reasoning tokens.
        rendering: further arguments of `ModelClient.render`.
        special: prompts get the special tokens that the model expects around a text.
        keep: only this many of a prompt's last tokens are used; -1: as many as fit.
        prediction, priority, salt: see `RequestOptions`.
        compared: id of the earlier reply whose prompt the client wants compared with this one.
        adapters: that the client has chosen; None: those of the model.
    """

    names: Names
    messages: Sequence[Message] | None = None
    prompts: Sequence[str | list[int]] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    top_tokens: Mapping[str, int | None] = field(default_factory=dict)
    limit: int | None = None
    default_limit: int | None = None
    fits: bool = True
    constraint: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    choice: Any = None
    parallel: bool = True
    budget: int | None = None
    rendering: Mapping[str, Any] = field(default_factory=dict)
    special: bool = False
    keep: int | None = None
    prediction: str | None = None
    priority: int = 0
    salt: str = ""
    compared: str | None = None
    adapters: tuple[NamedAdapter, ...] | None = None


# From there to the engine's requests


@dataclass(frozen=True, slots=True)
class Asked:
    """What the engine is asked.

    Attributes:
        requests: one per prompt.
        page: tokens of a page of the prefix cache; None without one.
        free: names of the tools whose schema is not enforced although one must be called.
        explanation: the comparison with earlier prompts; None without `--explain-prefixes`.
        chat: the prompt is a conversation.
    """

    requests: tuple[Request, ...]
    page: int | None = None
    free: tuple[str, ...] = ()
    explanation: Explanation | None = None
    chat: bool = False


def asked(model: ServedModel, ask: Ask, caller: Caller, name: str) -> Asked:
    """Return the engine's requests. Nothing is queued yet.

    Args:
        name: id of the reply; requests for several prompts get a number each.

    Raises:
        RequestError, Unsupported: a field that cannot be served, by the client's name; of several prompts, by index.
    """
    for shown, count in ask.top_tokens.items():
        if count is not None and (count != ALL_TOKENS or model.client.info.vocab_size > caller.max_logprobs):
            check_top_tokens(shown, count, caller.max_logprobs)
    ask, images = _seen(model.client, ask)
    with ask.names.in_errors():
        params = params_of(model.client, ask)
        chat = None if ask.messages is None else _rendered(model.client, ask, params, images)
        prompts = ask.prompts if chat is None else [chat.text]
        options = RequestOptions(
            priority=ask.priority,
            deadline=caller.deadline,
            tenant=caller.tenant,
            salt=ask.salt,
            trace_id=caller.trace_id,
            add_special_tokens=ask.special,
            prediction=ask.prediction,
            context=model.context,
            required_output=1 if ask.limit is None or not ask.fits else ask.limit,
            guidance=None if chat is None else chat.guidance,
            reading=None if chat is None else chat.reading,
            images=images,
        )
        requests = []
        for place, prompt in enumerate(prompts):
            own = name if len(prompts) == 1 else part_id(name, place)
            about = replace(options, request_id=own, names=ask.names.of_engine(place, len(prompts)))
            kept = prompt if ask.keep is None else _truncated(model, ask, params, prompt)
            requests.append(model.process(kept, params, about, ask.adapters))
    if chat is None:
        return Asked(tuple(requests), model.cache_page)
    explanation = None
    if model.explainer is not None and ask.keep is None and not images:  # else tokens are not those of the text
        explanation = model.explainer.explain(requests[0], chat, _paths(ask), ask.compared)
    return Asked(tuple(requests), model.cache_page, chat.free, explanation, chat=True)


def check_top_tokens(field: str, count: int, limit: int) -> None:
    """Refuse more top tokens of a position than the server's limit. Raises RequestError."""
    if not 0 <= count <= limit:
        raise invalid(field, f"must be 0 to {limit}, not {count}")


def prompt_length(client: ModelClient, ask: Ask) -> int:
    """Return the number of tokens of a conversation's prompt. Raises as `asked`."""
    ask, images = _seen(client, ask)
    with ask.names.in_errors():
        return len(prompt_tokens(client, _rendered(client, ask, params_of(client, ask), images)))


def _seen(client: ModelClient, ask: Ask) -> tuple[Ask, tuple[DecodedImage, ...]]:
    """Return what a client asks for with images apart. Errors name its fields already. Raises as `images_apart`."""
    messages, images = images_apart(client, ask.messages or ())
    if images and ask.keep is not None:
        raise unsupported("truncate_prompt_tokens", "a prompt with images is not cut")
    return (replace(ask, messages=messages) if images else ask), images


def params_of(client: ModelClient, ask: Ask) -> SamplingParams:
    """Return the given parameters over those that the checkpoint recommends. Raises RequestError by our names."""
    limits: dict[str, Any] = {"max_tokens": None, **client.recommended}
    limit = ask.default_limit if ask.limit is None else ask.limit
    own = ask.given if limit is None else {**ask.given, "max_tokens": limit}
    constraint = None if ask.constraint is None else _constraint(ask.constraint, ask.names.constraint)
    return over_recommended(limits, {**own, "structured_outputs": constraint})


def _constraint(constraint: Mapping[str, Any], name: str | None) -> StructuredOutputs:
    try:
        return StructuredOutputs.from_dict(constraint)
    except RequestError as error:
        own = f"structured_outputs.{error.param}" if error.param in constraint else "structured_outputs"
        raise error.about(name or own) from None


def _rendered(client: ModelClient, ask: Ask, params: SamplingParams, images: tuple[DecodedImage, ...]) -> ChatPrompt:
    names, messages = ask.names, ask.messages
    assert messages is not None, "a conversation"
    engine_names = names.of_engine(0, 1)
    choice = tools_of(ask.tools, names.tools).choice(ask.choice, names.choice)
    options = ChatOptions(choice=choice, parallel=ask.parallel, budget=ask.budget)
    prompt = chat_prompt(client, messages, params, options, names=engine_names, images=images, **ask.rendering)
    if ask.rendering.get("chat_template") is not None:
        check_rendered(client, prompt.text)
    return prompt


def check_rendered(client: ModelClient, text: str) -> None:
    """Refuse a long text of a client's template. Raises RequestError."""
    limit = MAX_CHARACTERS_PER_TOKEN * client.info.max_sequence_length
    if len(text) > limit:
        raise invalid("chat_template", f"it renders {len(text)} characters, more than {limit}")


def _truncated(model: ServedModel, ask: Ask, params: SamplingParams, prompt: str | list[int]) -> str | list[int]:
    """Return the last `keep` tokens of a prompt; -1 keeps what leaves room for the output."""
    keep = ask.keep
    if keep is None or keep == -1:
        room = 1 if params.max_tokens is None else params.max_tokens
        # A recommended max_tokens may be as long as the context; it must not displace the prompt.
        keep = model.context - (min(room, model.context // 2) if ask.limit is None else room)
    return truncated(model.client.tokenizer, prompt, max(1, keep), special=ask.special)


def _paths(ask: Ask) -> PromptPaths:
    """Return where the parts of a prompt stand in the client's body."""
    names = ask.names
    messages = [[(f"{names.prompt}[{place}]", 0)] for place in range(len(ask.messages or ()))]
    tools = [f"{names.tools}[{place}]" for place in range(len(ask.tools))]
    return PromptPaths(
        fragments(messages if names.messages is None else names.messages),
        tools if names.places is None else names.places,
        names.variables,
        list=names.prompt,
    )


def infilled(client: ModelClient, prefix: str | list[int], suffix: str, *, begin: bool) -> list[int]:
    """Return a prompt as the model's fill-in-the-middle format has it. Raises ApiError: it has none."""
    if client.tokenizer is None:
        raise unsupported("suffix", "the model has no tokenizer")
    before = client.tokenizer.encode(prefix, add_special_tokens=False) if isinstance(prefix, str) else prefix
    ids = infill_prompt(client.tokenizer, before, suffix, begin=begin)
    if ids is None:
        raise unsupported("suffix", "the model's tokenizer has no fill-in-the-middle tokens")
    return ids
