"""`ChatPrompt`: a conversation as a prompt, with what limits its output and how the output is read.

All dialects of the server and `LLM.chat` come here. Formats are found and turned into grammars in `formats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferrum.client.adapter_registry import NamedAdapter
from ferrum.client.input_processor import API_NAMES, FieldNames, RequestOptions
from ferrum.client.message_images import first_field, has_images, with_images_apart
from ferrum.client.model_client import Message, ModelClient
from ferrum.core.errors import Unsupported
from ferrum.core.guidance import Guidance
from ferrum.core.logging import warn_once
from ferrum.core.output_format import Reading
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.formats.find import closes_thought, opens_thought
from ferrum.grammar.reply_guidance import ChatOptions, forced_schemas, reply_guidance

if TYPE_CHECKING:
    from ferrum.images.decoded_image import DecodedImage


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        text: of the prompt, special tokens included.
        guidance: limits on the reply's tokens, or None.
        reading: how the reply is read; None: all of it is content.
        rendering: the arguments of `ModelClient.render` that it was rendered from.
        images: for the placeholders in the text, in their order.
        free: names of the tools whose schema is not enforced although one of them must be called.
    """

    text: str
    guidance: Guidance | None
    reading: Reading | None
    rendering: Mapping[str, Any]
    free: tuple[str, ...] = ()
    images: tuple[DecodedImage, ...] = ()


def chat_prompt(
    client: ModelClient,
    messages: Sequence[Message],
    params: SamplingParams,
    options: ChatOptions,
    *,
    chat_template: str | None = None,
    untrusted: bool = False,
    names: FieldNames = API_NAMES,
    images: tuple[DecodedImage, ...] = (),
    **rendering: Any,
) -> ChatPrompt:
    """Render a conversation, and find how its reply is limited and read.

    Args:
        client: of the model.
        messages: the conversation, with images apart.
        params: of the request; `structured_outputs` limits its content.
        options: tools and reasoning.
        chat_template, untrusted, rendering: see `ModelClient.render`.
        names: of the fields in errors.
        images: of the conversation, see `images_apart`.

    Raises:
        RequestError: as `ModelClient.render`; `tools` if the format of the model's calls is not known; a schema or
            grammar that cannot be enforced.
        Unsupported: as `ModelClient.render`.
    """
    rendering |= {
        "messages": messages,
        "chat_template": chat_template,
        "untrusted": untrusted,
        "tools": options.choice.tools.descriptions or None,
    }
    text = client.render(**rendering)
    found = client.output_format(chat_template, untrusted=untrusted)
    continued = _final_text(messages) if rendering.get("continue_final_message") else None
    source = None
    if params.structured_outputs is not None:
        source = client.input_processor.grammar_of(params.structured_outputs, names)
    form, tokenizer = found.format, client.tokenizer
    assert tokenizer is not None, "`render` refuses conversations without one"
    opened = form is not None and opens_thought(text, form, continued)
    closed = form is not None and closes_thought(text, form, continued)
    options, free = forced_schemas(form, options)
    guidance = reply_guidance(form, tokenizer, options, source, opened=opened, closed=closed, reason=found.reason)
    reading = None
    if form is not None and (form.reasoning is not None or options.calls or form.content_open):
        reading = Reading(format=form, tools=options.tools if options.calls else (), opened=opened)
    return ChatPrompt(text, guidance, reading, rendering, free, images)


def images_apart(
    client: ModelClient, messages: Sequence[Message]
) -> tuple[Sequence[Message], tuple[DecodedImage, ...]]:
    """Return `with_images_apart` of the messages.

    Raises:
        RequestError: as that function.
        Unsupported: the model does not read images.
    """
    if not isinstance(messages, list | tuple) or not has_images(messages):
        return messages, ()
    try:
        client.input_processor.image_processor  # noqa: B018 - fails before anything is decoded
    except Unsupported as error:
        reason = f"the model {client.name!r} does not read images ({error.reason})"
        raise Unsupported(first_field(messages), reason) from None
    return with_images_apart(messages)


def prompt_tokens(client: ModelClient, prompt: ChatPrompt) -> tuple[int, ...]:
    """Return the token ids of a rendered conversation, those that stand for images included. Raises RequestError."""
    return tokens_of(client, prompt.text, prompt.images)


def tokens_of(
    client: ModelClient, text: str, images: Sequence[DecodedImage], *, add_special_tokens: bool = False
) -> tuple[int, ...]:
    """Return the token ids of a text, with those that stand for images in place of its placeholders."""
    assert client.tokenizer is not None, "`render` refuses conversations without one"
    if not images:
        return tuple(client.tokenizer.encode(text, add_special_tokens=add_special_tokens))
    processor = client.input_processor.image_processor
    tokens = client.tokenizer.encode(processor.spaced_text(text), add_special_tokens=add_special_tokens)
    return processor.expand(tokens, images)[0]


def chat_request(
    client: ModelClient,
    messages: Sequence[Message],
    params: SamplingParams,
    options: ChatOptions,
    adapters: tuple[NamedAdapter, ...] = (),
    **rendering: Any,
) -> tuple[Request, str]:
    """Return the engine's request for a conversation, and its text.

    Arguments and errors as of `chat_prompt`; messages may have images, see `message_images`.
    """
    messages, images = images_apart(client, messages)
    prompt = chat_prompt(client, messages, params, options, images=images, **rendering)
    if prompt.free:
        warn_once(f"the schema of {', '.join(map(repr, prompt.free))} cannot be enforced: its arguments are any JSON")
    about = RequestOptions(
        add_special_tokens=False,
        guidance=prompt.guidance,
        reading=prompt.reading,
        adapters=adapters,
        images=prompt.images,
    )
    return client.input_processor.process(prompt.text, params, about), prompt.text


def _final_text(messages: Sequence[Message]) -> str | None:
    """Return the text of the final message that the reply continues."""
    content = messages[-1].get("content")
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content or () if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return "".join(texts) or None
