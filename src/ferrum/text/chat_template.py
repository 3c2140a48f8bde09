"""Chat templates: render a conversation as the text that the model continues.

Prepares the messages of clients, loads checkpoint templates and compiles them for the sandbox. `untrusted_template`
runs templates from requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import CheckpointError, FerrumError, RequestError, Unsupported
from ferrum.text import template_probes as probes
from ferrum.text.model_files import ModelFiles
from ferrum.text.tokenizer_config import read_tokenizer_config
from ferrum.text.tool_calls import function_of, tool_calls, with_argument_text

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
"""A message for a template: `role`, `content` and further fields; JSON values only."""

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Clients' names for a message's reasoning. Most templates read the first, some the second."""

_READS_TEXT: Final = re.compile(r"""[.'"]text\b""")
"""Matches the access to a part's text, which every template that reads parts contains."""

_TESTS_NULL: Final = re.compile(r"""\bcontent(['"][\])])? is (not )?none\b""")
"""Matches the test for a null content."""

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}

# Appended to the message to continue, to find its end in the rendered text. It ends with a space: a template that trims
# messages removes it, which is how trimming is detected.
_END_MARK: Final = "\ue0f0end of the message to continue\ue0f0 "


class ChatTemplate:
    """A model's chat template, or several by name; each is compiled at its first use.

    The rendered text equals that of `apply_chat_template` in transformers 5. It already contains special tokens:
    encode it with `add_special_tokens=False`.

    Args:
        source: jinja source, or sources by name: `default`, and `tool_use` for requests with tools.
        special_tokens: variables for the template: `bos_token`, `eos_token`, ...
        origin: the file of the source, for errors. Without it, errors are attributed to the caller's `chat_template`.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        origin: str | None = None,
    ) -> None:
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self.special_tokens = dict(special_tokens or {})
        self._origin = origin
        self._compiled: dict[str, Template] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation.

        Args:
            add_generation_prompt: end with the header of the next assistant message. None: yes, unless
                `continue_final_message` is set.
            continue_final_message: leave the final message open for the model to continue.
            tools, documents: JSON objects for the template.
            template_kwargs: further variables (`enable_thinking`, ...); they override special tokens.

        Raises:
            RequestError: the template rejects the messages, or an argument has the wrong type.
            CheckpointError: the checkpoint's template is broken or breaks the sandbox's rules.
        """
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        if add_generation_prompt and continue_final_message:
            raise RequestError("must be false if add_generation_prompt is true", param="continue_final_message")
        extra = template_kwargs or {}
        if taken := sorted(_RESERVED & extra.keys()):
            raise RequestError(f"must not set {taken[0]!r}", param="chat_template_kwargs")
        chat = _conversation(messages, keep_null=self._reads_null)
        final = _mark_end(chat) if continue_final_message else None
        variables = {
            **self.special_tokens,
            **{str(name): plain_json(value, "chat_template_kwargs") for name, value in extra.items()},
            "messages": chat,
            "tools": None if tools is None else json_objects(tools, "tools"),
            "documents": None if documents is None else json_objects(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self.fill(self._choose(tools is not None), variables)
        return text if final is None else _cut_at_mark(text, final)

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the template reads text only from a list of parts, as Llama Guard's does."""
        if not any(map(_READS_TEXT.search, self.sources.values())):
            return False
        return self._shows([{"type": "text", "text": _END_MARK}]) and not self._shows(_END_MARK)

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        try:
            return _END_MARK.rstrip() in self.render([{"role": "user", "content": content}])
        except FerrumError:
            return False

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Convert messages to the form that this template reads. Errors as `for_template`."""
        as_text = _has_calls(messages) and self.reads_argument_text
        chat = for_template(messages, as_parts=self.reads_parts, argument_text=as_text)
        for sent, message in zip(messages, chat, strict=True):
            calls, assistant = message.get("tool_calls"), sent.get("role") == "assistant"
            if assistant and sent.get("content") is None and sent.get("refusal") is None:
                del message["content"]
                message |= self._calling_form[0] if calls else self._silent_form
            if calls and self._reads_null and self._calling_form[1]:
                message["tool_calls"] = [with_argument_text(call) for call in calls]
        return chat

    @cached_property
    def reads_argument_text(self) -> bool:
        """Whether the template appends the arguments of a call as text, as DeepSeek-R1-Distill-Llama's does."""
        if self._reads_null and self._calling_form[1]:
            return True
        objects, texts = (probes.calls(content="", argument_text=as_text) for as_text in (False, True))
        return not self._renders(objects) and self._renders(texts)

    @cached_property
    def _tests_null(self) -> bool:
        return any(map(_TESTS_NULL.search, self.sources.values()))

    @cached_property
    def _reads_null(self) -> bool:
        """Whether a message with calls needs a null content, as in DeepSeek-R1-Distill's templates."""
        return self._tests_null and self._calling_form[0] == {"content": None}

    @cached_property
    def _calling_form(self) -> tuple[dict[str, str | None], bool]:
        """Return the content of a message with calls and without content, and whether arguments are given as text.

        Absent content where the template renders it, as transformers does. Otherwise null where the template tests for
        it, and empty elsewhere.
        """
        forms: list[tuple[dict[str, str | None], bool]] = [({}, False)]
        if self._tests_null:
            forms += [({"content": None}, False), ({"content": None}, True)]
        empty: tuple[dict[str, str | None], bool] = ({"content": ""}, False)
        return next((form for form in forms if self._renders(probes.calls(argument_text=form[1], **form[0]))), empty)

    @cached_property
    def _silent_form(self) -> dict[str, str]:
        """Return the content of an assistant message without content and calls: absent if that renders, or empty."""
        return {} if self._renders(probes.SILENT) else {"content": ""}

    def _renders(self, chat: list[dict[str, Any]]) -> bool:
        variables = {**self.special_tokens, "messages": chat, "tools": [probes.TOOL], "documents": None}
        try:
            self.fill(self._choose(with_tools=True), {**variables, "add_generation_prompt": True})
        except FerrumError:
            return False
        return True

    @property
    def source_for_tools(self) -> str:
        """Return the source that renders requests with tools. Raises as `render` if there is none."""
        return self.sources[self._choose(with_tools=True)]

    def _choose(self, with_tools: bool) -> str:
        if with_tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        raise self._fault(f"no chat template is called `default`: the names are {sorted(self.sources)}")

    def fill(self, name: str, variables: dict[str, Any]) -> str:
        """Render the source called `name` with JSON variables. Raises as `render` does."""
        from jinja2.exceptions import SecurityError, TemplateSyntaxError

        from ferrum.text import sandbox

        environment = sandbox.chat_environment()
        if name not in self._compiled:
            try:
                self._compiled[name] = environment.from_string(self.sources[name])
            except TemplateSyntaxError as error:
                raise self._fault(f"the chat template does not parse: line {error.lineno}: {error}") from error
            except Exception as error:  # nested too deeply for jinja or for the Python compiler
                raise self._fault(f"the chat template does not compile: {type(error).__name__}: {error}") from error
        try:
            return environment.render(self._compiled[name], variables)
        except sandbox.RefusalError as error:
            raise RequestError(str(error), param="messages") from error
        except SecurityError as error:
            raise self._fault(f"the chat template breaks the sandbox's rules: {error}") from error
        except MemoryError as error:
            raise self._fault("the chat template needs too much memory") from error
        except Exception as error:  # a template is a program and may fail in any way
            reason = f"the chat template cannot render the messages: {type(error).__name__}: {error}"
            raise RequestError(reason, param="chat_template" if self._origin is None else "messages") from error

    def _fault(self, reason: str) -> FerrumError:
        if self._origin is None:
            return RequestError(reason, param="chat_template")
        return CheckpointError(f"{self._origin}: {reason}")


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """Return the chat template of a model, or None if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    config = read_tokenizer_config(files)
    if not config.chat_templates:
        return None
    return ChatTemplate(config.chat_templates, config.special_tokens, origin=config.chat_template_origin)


def json_objects(values: Sequence[Mapping[str, Any]], param: str) -> list[dict[str, Any]]:
    """Return copies of objects in exact JSON types. Raises RequestError about `param` for anything else."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError("must be a list of objects", param=param)
    return [plain_json(value, param) for value in values]


def plain_json(value: Any, param: str) -> Any:
    """Return a copy of a JSON value in exact JSON types.

    Templates see no methods of the caller's classes.

    Raises:
        RequestError: the value is not JSON, or nested too deeply.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    try:
        if isinstance(value, Mapping):
            return {str(name): plain_json(entry, param) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain_json(entry, param) for entry in value]
    except RecursionError:
        raise RequestError("nested too deeply", param=param) from None
    if isinstance(value, str):
        return str.__str__(value)
    raise RequestError(f"contains a {type(value).__name__}, which is not a JSON value", param=param)


def _conversation(messages: Sequence[Message], *, keep_null: bool) -> list[dict[str, Any]]:
    """Return a copy of the messages without null fields: most templates test fields for presence, not for null.

    `keep_null` keeps the null content of messages with calls.
    """
    chat = json_objects(messages, "messages")
    if not chat:
        raise RequestError("must contain at least one message", param="messages")
    for message in chat:
        kept = "content" if keep_null and message.get("tool_calls") else None
        for name in [name for name, value in message.items() if value is None and name != kept]:
            del message[name]
        reasoning = next((message[name] for name in _REASONING if name in message), None)
        if reasoning is not None:
            message["reasoning_content"] = reasoning
            message.setdefault("thinking", reasoning)
    return chat


def _mark_end(chat: list[dict[str, Any]]) -> str:
    """Append the end mark to the final message's text and return that text."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _END_MARK
        return content
    blocks = content if isinstance(content, list) else []
    for block in reversed(blocks):
        if isinstance(block, dict) and isinstance(text := block.get("text"), str):
            block["text"] = text + _END_MARK
            return text
    raise RequestError("needs a final message with text", param="continue_final_message")


def _cut_at_mark(rendered: str, final: str) -> str:
    mark = _END_MARK.rstrip()
    place = rendered.rfind(mark)
    if place < 0 or final.strip() not in rendered:
        raise RequestError("the chat template omits or changes the final message", param="continue_final_message")
    trimmed = not rendered.startswith(_END_MARK, place)
    return rendered[:place].rstrip() if trimmed else rendered[:place]


def for_template(
    messages: Sequence[Message], *, as_parts: bool = False, argument_text: bool = False
) -> list[dict[str, Any]]:
    """Convert messages for a template: plain text, tool arguments as objects, `developer` as `system`.

    A missing content of an assistant's message becomes an empty text.

    Args:
        messages: in OpenAI's form. Further fields are kept for the template.
        as_parts: make content a list of parts instead of a text; see `ChatTemplate.reads_parts`.
        argument_text: keep arguments sent as JSON text; see `ChatTemplate.reads_argument_text`.

    Raises:
        RequestError: the messages are not a list of objects, or one is malformed; `param` names the place.
        Unsupported: content that is not text.
    """
    objects = json_objects(messages, "messages")
    return [_message(message, f"messages[{place}]", as_parts, argument_text) for place, message in enumerate(objects)]


def _has_calls(messages: Sequence[Message]) -> bool:
    objects = [each for each in messages if isinstance(each, Mapping)] if isinstance(messages, list | tuple) else []
    return any(each.get("tool_calls") or each.get("function_call") for each in objects)


def joined(content: str | Sequence[Mapping[str, Any]], where: str) -> str:
    """Return a text, or its parts joined by line breaks.

    Raises:
        RequestError: there are no parts.
        Unsupported: a part is not text.
    """
    return content if isinstance(content, str) else "\n".join(_texts(content, where))


def _message(message: dict[str, Any], where: str, as_parts: bool, argument_text: bool) -> dict[str, Any]:
    if message.get("role") == "developer":
        message["role"] = "system"
    if message.get("content") is None:
        message["content"] = message.get("refusal")  # a refusal is the assistant's text
    content = message["content"]
    if content is None and message.get("role") == "assistant":
        content = ""
    if isinstance(content, str | list):
        texts = [content] if isinstance(content, str) else _texts(content, f"{where}.content")
        message["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    # Templates test for the field: given an empty list, many would write neither calls nor text.
    calls, called = message.pop("tool_calls", None), message.pop("function_call", None)
    if called is not None:  # OpenAI's older form of a single call
        function = function_of(called, f"{where}.function_call", argument_text)
        message["tool_calls"] = [{"type": "function", "function": function}]
    if calls:
        message["tool_calls"] = tool_calls(calls, f"{where}.tool_calls", argument_text)
    return message


def _texts(parts: Sequence[Mapping[str, Any]], where: str) -> list[str]:
    if not parts:
        raise RequestError("must not be empty", param=where)
    return [_part(part, f"{where}[{place}]") for place, part in enumerate(parts)]


def _part(part: Mapping[str, Any], where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError("must be an object", param=where)
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise Unsupported(f"{where}.type", f"{kind!r}; only text parts are supported")
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError("must be a string", param=f"{where}.{kind}")
    return text
