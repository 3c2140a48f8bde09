"""Bodies of this API as `Ask`s: conversations in OpenAI's form, which the engine reads, tools, and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from ferrum.client.message_images import SentImage
from ferrum.client.model_client import ModelClient
from ferrum.core.logging import info_once
from ferrum.core.values import shown
from ferrum.server.anthropic.fields import (
    AnyDocument,
    AssistantBlock,
    CountRequest,
    ImageBlock,
    Message,
    MessagesRequest,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    TextDocument,
    ThinkingBlock,
    ToolChoice,
    ToolParam,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
)
from ferrum.server.anthropic.replies import hidden_in
from ferrum.server.chat.ask import Ask, Names, Source
from ferrum.server.common.error_replies import invalid

_MODES: Final = {"auto": "auto", "any": "required", "none": "none"}
_ATTRIBUTION: Final = "x-anthropic-billing-header"
_FAILED: Final = "Error: "

Found: TypeAlias = dict[str, Any]
"""A message in OpenAI's form."""

Part: TypeAlias = str | SentImage
"""A text or an image."""


def message_ask(client: ModelClient, body: CountRequest, earlier: Sequence[Message] = ()) -> tuple[Ask, Sequence[str]]:
    """Return what a body asks for, and the paths of what the prompt has in another form.

    The reply may be shorter than `max_tokens`: where the context ends, so does it.

    Args:
        earlier: messages before those of the body.

    Raises:
        RequestError: the last message cannot be continued.
    """
    template = client.chat_template
    late = template is not None and template.reads_late_system
    history = History(late_system=late, sees=client.reads_images)
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
    form = None if body.output_config is None else body.output_config.format
    served = {place: tool for place, tool in enumerate(body.tools or ()) if tool.is_served}
    request = body if isinstance(body, MessagesRequest) else None
    ask = Ask(
        names=Names(
            constraint="output_config.format.schema",
            fields=body.SAMPLING,
            messages=history.sources,
            places=[f"tools[{place}]" for place in served],
            of_tool={"parameters": "input_schema"},
            variables={"enable_thinking": "thinking", "reasoning_effort": "output_config.effort"},
        ),
        messages=messages,
        given=body.given(),
        limit=None if request is None else request.max_tokens,
        fits=False,
        constraint=None if form is None else {"json": form.schema_},
        tools=[_described(tool) for tool in served.values()],
        choice=_choice(body.tool_choice),
        parallel=body.tool_choice is None or not body.tool_choice.disable_parallel_tool_use,
        budget=budget,
        rendering={"continue_final_message": continued, "chat_template_kwargs": body.variables(client) or None},
        compared=None if request is None or request.diagnostics is None else request.diagnostics.previous_message_id,
    )
    return ask, tuple(history.replaced)


def _described(tool: ToolParam) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    strict = {} if tool.strict is None else {"strict": tool.strict}
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema, **strict}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> Any:
    """Return a choice in OpenAI's form."""
    if choice is None:
        return None
    named = {"type": "function", "function": {"name": choice.name}}
    return named if choice.type == "tool" else _MODES[choice.type]


# Conversations


class History:
    """Builds the messages of one conversation; consecutive messages of a role become one, as this API has it.

    Args:
        late_system: the template renders system messages after others; otherwise it gets them as text of the user.
        sees: the model reads images; otherwise those in results of tools are replaced by a text.

    Attributes:
        messages: so far.
        replaced: paths of what the prompt has in another form.
        sources: of each message, what it is put together from.
    """

    def __init__(self, *, late_system: bool, sees: bool) -> None:
        self.messages: list[Found] = []
        self.sources: list[list[Source]] = []
        self.replaced: list[str] = []
        self._late_system = late_system
        self._sees = sees
        self._names: dict[str, str] = {}

    def add_system(self, system: str | Sequence[TextBlock] | None) -> None:
        """Add the instructions before the conversation, without the attribution of the client's version.

        That block differs at every request, so that no prefix after it would be found again.
        """
        blocks = _texts(system)
        if blocks and not isinstance(system, str) and blocks[0].startswith(_ATTRIBUTION):
            info_once(f"the system block {_ATTRIBUTION} is left out of prompts: it changes at every request")
            blocks = blocks[1:]
        self._say("system", blocks, "system")

    def add(self, message: Message, where: str) -> None:
        """Add a message; `where` is its path in the body."""
        if message.role == "system":
            self._add_late_system(_texts(message.content) or [""], where)
        elif isinstance(message.content, str):
            self._say(message.role, [message.content], where)
        elif not message.content:
            self._say(message.role, [""], where)
        elif message.role == "user":
            self._add_user(message.content, where)
        else:
            self._add_reply(message.content, where)

    def _add_late_system(self, texts: list[str], where: str) -> None:
        if not self._late_system and any(each["role"] != "system" for each in self.messages):
            info_once("system messages after others become text of the user: the chat template renders none there")
            self.replaced.append(where)
        self._say("system", texts, where)

    def _add_user(self, blocks: Sequence[UserBlock], where: str) -> None:
        """Add results of tools, in order, and then the texts and images around them."""
        parts: list[Part] = []
        for place, block in enumerate(blocks):
            if isinstance(block, ToolResultBlock):
                self._add_result(block, f"{where}.content[{place}]")
                self.sources.append([(where, block)])
            elif isinstance(block, ImageBlock):
                parts.append(_image_of(block, f"{where}.content[{place}]"))
            else:
                parts.append(_text_of(block))
        self._say("user", parts, where)

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        content, failed = block.content or "", _FAILED * bool(block.is_error)
        said = [content] if isinstance(content, str) else list(self._result(content, f"{where}.content"))
        texts = [each for each in said if isinstance(each, str)]
        answer: Any = failed + "\n".join(texts)
        if len(texts) < len(said):
            answer = _parts([failed, *said] if failed else said)
        result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": answer}
        name = self._names.get(block.tool_use_id)
        self.messages.append(result if name is None else {**result, "name": name})

    def _result(self, blocks: Sequence[ResultBlock], where: str) -> Iterable[Part]:
        for place, block in enumerate(blocks):
            if isinstance(block, TextBlock | SearchResultBlock):
                yield _text_of(block)
                continue
            if isinstance(block, AnyDocument) and block.source.get("type") == "text":
                yield _titled(block.title, block.context, str(block.source.get("data", "")))
                continue
            if isinstance(block, ImageBlock) and self._sees:
                yield _image_of(block, f"{where}[{place}]")
                continue
            self.replaced.append(f"{where}[{place}].{block.type}")
            if isinstance(block, ToolReferenceBlock):
                yield f"[tool: {block.tool_name}]"
            else:
                yield f"[{block.type}: not text, left out]"

    def _add_reply(self, blocks: Sequence[AssistantBlock], where: str) -> None:
        texts: list[str] = []
        thoughts, calls = [], []
        follows = False  # models write texts that follow each other as one text
        for place, block in enumerate(blocks):
            if isinstance(block, TextBlock):
                texts = [*texts[:-1], texts[-1] + block.text] if follows else [*texts, block.text]
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking or hidden_in(block.signature))
            elif isinstance(block, ToolUseBlock):
                self._names[block.id] = block.name
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            else:
                self.replaced.append(f"{where}.content[{place}].{block.type}")
            follows = isinstance(block, TextBlock)
        reply = self._turn("assistant")
        self.sources[-1] += [(where, block) for block in blocks]
        reply["content"] += _parts(texts)
        if any(thoughts):
            earlier = [reply["reasoning_content"]] if "reasoning_content" in reply else []
            reply["reasoning_content"] = "\n".join([*earlier, *filter(None, thoughts)])
        if calls:
            reply["tool_calls"] = [*reply.get("tool_calls", ()), *calls]

    def _say(self, role: str, parts: Sequence[Part], where: str) -> None:
        if parts:
            self._turn(role)["content"] += _parts(parts)
            self.sources[-1] += [(where, part) for part in parts]

    def _turn(self, role: str) -> Found:
        """Return the last message if it has this role, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
            self.sources.append([])
        return self.messages[-1]

    def finished(self) -> list[Found]:
        """Return the messages; those without text have no content, or an empty one."""
        for message in self.messages:
            parts = message["content"]
            if message["role"] == "assistant":
                # Blocks of a reply are pieces of one text: a begun reply, and what the model said after it.
                message["content"] = "".join(part["text"] for part in parts) if parts else None
            else:
                message["content"] = parts or ""
        return self.messages


def _parts(parts: Iterable[Part]) -> list[Found]:
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]


def _image_of(block: ImageBlock, where: str) -> SentImage:
    """Return an image in base64. Raises RequestError for one that had to be fetched."""
    match block.source:
        case {"type": "base64", "data": str(data)}:
            return SentImage(data, f"{where}.source.data")
        case {"type": "base64"}:
            raise invalid(f"{where}.source.data", "must be the image in base64")
    kind = shown(block.source.get("type"))
    raise invalid(f"{where}.source.type", f"must be 'base64', not {kind}: nothing is fetched; send the image itself")


def _texts(content: str | Sequence[TextBlock] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content or ()]


def _titled(*texts: str | None) -> str:
    return "\n".join(text for text in texts if text)


def _text_of(block: TextBlock | TextDocument | SearchResultBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, TextDocument):
        return _titled(block.title, block.context, block.source.data)
    return _titled(block.title, block.source, *(each.text for each in block.content))
