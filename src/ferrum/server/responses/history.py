"""Conversations and tools of this API in the form of chats, which the engine reads, and the tools' origins.

Tools themselves are checked in `grammar.tools`, for all dialects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ferrum.client.message_images import HOW_TO_SEND, SentImage, sent_by_url
from ferrum.core.values import shown
from ferrum.server.chat.ask import Source
from ferrum.server.common.error_replies import ApiError, invalid, unsupported

OMITTED: Final = "[content that is not text was left out]"
"""Stands for files in the results of tools, and for images if the model does not read them."""

IMAGE_KIND: Final = "input_image"

Content: TypeAlias = str | list[dict[str, Any]]
"""The content of a message in the form of chats."""

_SEAL: Final = "ferrum1:"
_TEXTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
_BUILT_IN: Final = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Calls of tools that clients run, by kind: name and field of the arguments."""

OUTPUTS: Final = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
_ROLES: Final = ("system", "developer", "user", "assistant")


def sealed(reasoning: str) -> str:
    """Return reasoning as `encrypted_content`, which clients send back unread. It is encoded, not encrypted."""
    return _SEAL + base64.urlsafe_b64encode(reasoning.encode()).decode()


def unsealed(content: Any) -> str | None:
    """Return the reasoning of `sealed`; None for content of other servers."""
    if not isinstance(content, str) or not content.startswith(_SEAL):
        return None
    try:
        return base64.urlsafe_b64decode(content.removeprefix(_SEAL)).decode()
    except ValueError:
        return None


class History:
    """The messages of a conversation, built item by item.

    Args:
        tools: gets the tools that items bring.
        sees: the model reads images.

    Attributes:
        messages: so far.
        left_out: paths of items and parts that have no meaning for the model.
        sources: of each message, the items that it is put together from.
        result_images: paths of images in results of tools.
    """

    def __init__(self, tools: OfferedTools, *, sees: bool = True) -> None:
        self.messages: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.result_images: list[str] = []
        self._sees = sees
        self.sources: list[list[Source]] = []
        self._items: list[Source] = []  # of the assistant's turn
        self._tools = tools
        self._turn: dict[str, Any] = {}  # the assistant's, whose reasoning, text and calls are items

    def add_instructions(self, text: str | None) -> None:
        """Add the text that precedes all items."""
        if text:
            self._add_system(text, "instructions")

    def add(self, item: Any, where: str) -> None:
        """Add an item. Raises RequestError or ApiError; `where` is its path."""
        if not isinstance(item, Mapping):
            raise invalid(where, f"must be an object, not {shown(item)}")
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        if not isinstance(kind, str):
            raise invalid(f"{where}.type", f"must be a string, not {shown(kind)}")
        if kind == "message":
            self._add_message(item, where)
        elif kind == "reasoning":
            self._add_reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call", "tool_search_call", *_BUILT_IN):
            self._add_call(item, kind, where)
        elif kind in OUTPUTS:
            self._add_result(_call_id(item, where), self._output(item.get("output"), f"{where}.output"), where)
        elif kind == "tool_search_output":
            names = self._tools.add(item.get("tools", []), f"{where}.tools", again=True)
            self._add_result(_call_id(item, where), f"Tools found: {', '.join(names) or 'none'}", where)
        elif kind == "additional_tools":
            self._tools.add(item.get("tools", []), f"{where}.tools", again=True)
        else:
            self.left_out.append(f"{where}.{kind}")

    def finish(self) -> list[dict[str, Any]]:
        """Return all messages; a conversation without any gets an empty one of the user."""
        self._end_turn()
        if all(each["role"] == "system" for each in self.messages):
            self.messages.append({"role": "user", "content": ""})
            self.sources.append([])
        return self.messages

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise invalid(f"{where}.role", f"must be one of {', '.join(_ROLES)}, not {shown(role)}")
        parts = _message_parts(item.get("content"), f"{where}.content", images=role == "user")
        content = _content(parts)
        if role == "user":
            self._end_turn()
            self.messages.append({"role": "user", "content": content})
            self.sources.append([(where, content)])
            return
        text = ("" if role == "assistant" else "\n").join(part for part in parts if isinstance(part, str))
        if role == "assistant":
            if "content" in self._turn and not self._turn.get("tool_calls"):
                self._end_turn()
            before = self._turn.get("content")
            self._turn["content"] = text if before is None else f"{before}\n{text}"
            self._items.append((where, text))
            return
        self._end_turn()
        self._add_system(text, where)

    def _add_system(self, text: str, where: str) -> None:
        """Add a system message: to the first one, if nothing stands between."""
        merged = len(self.messages) == 1 and self.messages[0]["role"] == "system"
        self.sources.append([*(self.sources.pop() if merged else ()), (where, text)])
        if not self.messages:
            self.messages.append({"role": "system", "content": text})
        elif merged:
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self.messages.append({"role": "system", "content": text})

    def _add_reasoning(self, item: Mapping[str, Any], where: str) -> None:
        text = _reasoning_text(item.get("content")) or unsealed(item.get("encrypted_content"))
        text = text or _reasoning_text(item.get("summary"))
        if text is None:
            self.left_out.append(f"{where}.reasoning")
            return
        before = self._turn.get("reasoning_content")
        self._turn["reasoning_content"] = text if before is None else f"{before}\n{text}"
        self._items.append((where, text))

    def _add_call(self, item: Mapping[str, Any], kind: str, where: str) -> None:
        if kind in _BUILT_IN:
            name, field = _BUILT_IN[kind]
            arguments = json.dumps(item.get(field) or {}, ensure_ascii=False)
        elif kind == SEARCH + "_call":
            name, arguments = SEARCH, _json_text(item.get("arguments"))
        else:
            name, arguments = _called(item, where)
        call_id = item.get("call_id") or item.get("id") or f"call{len(self.messages)}"
        call: dict[str, Any] = {"id": str(call_id)}
        if kind == "custom_tool_call":
            call |= {"type": "custom", "custom": {"name": name, "input": _text_of(item, "input", where)}}
        else:
            call |= {"type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn.setdefault("tool_calls", []).append(call)
        self._items.append((where, call))

    def _add_result(self, call_id: str, content: Content, where: str) -> None:
        self._end_turn()
        self.sources.append([(where, [call_id, content])])
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _output(self, output: Any, where: str) -> Content:
        """Return the result of a tool as text, or as parts if it has images."""
        if isinstance(output, str):
            return output
        if not isinstance(output, list):
            return "" if output is None else _json_text(output)
        texts: list[str | SentImage] = []
        for place, part in enumerate(output):
            if isinstance(part, Mapping) and part.get("type") == IMAGE_KIND:
                self.result_images.append(f"{where}[{place}]")
                texts.append(_image_of(part, f"{where}[{place}]") if self._sees else OMITTED)
                continue
            text = _part_text(part)
            if text is None and isinstance(part, Mapping) and not isinstance(part.get("type"), str):
                text = _json_text(part)  # the output of a shell: objects without a type
            if text is None:
                self.left_out.append(f"{where}[{place}]")
            texts.append(OMITTED if text is None else text)
        return _content(texts)

    def _end_turn(self) -> None:
        """Add the assistant's message; reasoning alone is none."""
        if "content" in self._turn or "tool_calls" in self._turn:
            self.messages.append({"role": "assistant", "content": None, **self._turn})
            self.sources.append(self._items)
        self._turn, self._items = {}, []


def _call_id(item: Mapping[str, Any], where: str) -> str:
    for name in ("call_id", "id"):
        if not isinstance(item.get(name), str | None):
            raise invalid(f"{where}.{name}", f"must be a string, not {shown(item[name])}")
    return item.get("call_id") or item.get("id") or "call"


def _called(item: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Return name and arguments of a call."""
    name, namespace = _text_of(item, "name", where), item.get("namespace")
    arguments = item.get("arguments")
    return qualified(namespace, name) if isinstance(namespace, str) else name, _json_text(arguments)


def _text_of(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", f"must be a string, not {shown(value)}")
    return value


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def _content(parts: Sequence[str | SentImage]) -> Content:
    """Return a text, or texts and images in their order."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]


def _image_of(part: Mapping[str, Any], where: str) -> SentImage:
    """Return an image that is sent as a data URL. Raises RequestError for one that had to be fetched."""
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise invalid(f"{where}.file_id", f"files are not stored: {HOW_TO_SEND}")
    return sent_by_url(part.get("image_url"), f"{where}.image_url")


def _message_parts(content: Any, where: str, *, images: bool) -> list[str | SentImage]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise invalid(where, f"must be a string or a list of parts, not {shown(content)}")
    parts: list[str | SentImage] = []
    for place, part in enumerate(content):
        if images and isinstance(part, Mapping) and part.get("type") == IMAGE_KIND:
            parts.append(_image_of(part, f"{where}[{place}]"))
            continue
        text = _part_text(part)
        if text is None:
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise unsupported(
                f"{where}[{place}]", f"{shown(kind)}; only parts of text, and images of the user, are supported"
            )
        parts.append(text)
    return parts


def _part_text(part: Any) -> str | None:
    """Return the text of a part; None if it is none."""
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    text = part.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
    return text if isinstance(text, str) else None


def _reasoning_text(parts: Any) -> str | None:
    texts = [_part_text(part) or "" for part in parts] if isinstance(parts, list) else []
    return "\n".join(texts) or None


# Tools: from flat tools and namespaces to those that models know

Wire = Mapping[str, Any]
"""An object as the client sent it."""

SEARCH: Final = "tool_search"
"""The kind of the tool that finds tools, and its name for the model."""

_SEARCH_HELP: Final = "Searches for further tools, which can be called afterwards."
_SEARCH_SCHEMA: Final = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """What a tool of the model is for the client: its kind, its name, and the namespace or nothing."""

    kind: str
    name: str
    namespace: str = ""


def qualified(namespace: str, name: str) -> str:
    """Return the name under which the model knows a tool of a namespace."""
    if not namespace or name.startswith(f"{namespace}__"):
        return name
    return f"{namespace.rstrip('_')}__{name}"


@dataclass(slots=True)
class OfferedTools:
    """The tools of a request as they are collected.

    Attributes:
        sources: of the offered tools, by the model's name.
        dropped: places and kinds of tools that only OpenAI's servers run.
        places: paths of the offered tools.
    """

    sources: dict[str, ClientTool] = field(default_factory=dict)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    _described: list[dict[str, Any]] = field(default_factory=list)

    def add(self, tools: Sequence[Any], where: str, *, again: bool = False) -> list[str]:
        """Add a list of tools and return the names of the added ones.

        Args:
            tools: as the client sent them.
            where: name of the list in errors.
            again: a tool that was added before is skipped: a search may find it twice.

        Raises:
            RequestError: a tool has the wrong form.
        """
        names = []
        for place, source, described in _each(tools, where, self.dropped):
            name = described[described["type"]].get("name")
            if again and isinstance(name, str) and name in self.sources:
                continue
            self._described.append(described)
            self.places.append(place)
            if isinstance(name, str):
                self.sources.setdefault(name, source)
                names.append(name)
        return names

    @property
    def described(self) -> Sequence[Mapping[str, Any]]:
        """The tools in the form of chats."""
        return self._described

    def choice(self, choice: Any) -> Any:
        """Return what the client chose in the form of chats. Raises RequestError, ApiError: a tool is not served."""
        if not isinstance(choice, Mapping):
            return choice
        if choice.get("type") != "allowed_tools":
            mode: Any = "required"
            names = self._referred(choice, "tool_choice")
            if len(names) == 1:
                return {"type": "function", "name": names[0]}
        else:
            listed, mode = choice.get("tools"), choice.get("mode")
            if not isinstance(listed, list):
                raise invalid("tool_choice.tools", f"must be a list of tools by type and name, not {shown(listed)}")
            referred = (self._referred(each, f"tool_choice.tools[{place}]") for place, each in enumerate(listed))
            names = [name for each in referred for name in each]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"name": name} for name in names]}}

    def _referred(self, reference: Any, where: str) -> list[str]:
        """Return the model's names of the tools that a reference means."""
        kind = reference.get("type") if isinstance(reference, Mapping) else None
        if kind == SEARCH:
            return [SEARCH]
        name = reference.get("name") if isinstance(reference, Mapping) else None
        if kind in ("function", "custom", "namespace") and not isinstance(name, str):
            raise invalid(f"{where}.name", f"must be the name of a tool, not {shown(name)}")
        if kind == "namespace":
            return [each for each, source in self.sources.items() if source.namespace == name]
        if kind in ("function", "custom"):
            given = reference.get("namespace")
            return [qualified(given, str(name)) if isinstance(given, str) else str(name)]
        raise _not_served(f"{where}.type", kind)


def _not_served(where: str, kind: Any) -> ApiError:
    return unsupported(where, f"{shown(kind)} is not served; choose a function, a custom tool or allowed_tools")


def _each(
    tools: Sequence[Any], where: str, dropped: list[tuple[str, str]], namespace: str = ""
) -> Iterator[tuple[str, ClientTool, dict[str, Any]]]:
    """Yield place, source and description of each tool of a list."""
    if not isinstance(tools, list):
        raise invalid(where, f"must be a list of objects, not {shown(tools)}")
    for place, tool in enumerate(tools):
        here = f"{where}[{place}]"
        if not isinstance(tool, Mapping):
            raise invalid(here, f"must be an object, not {shown(tool)}")
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise invalid(f"{here}.type", f"must be a string, not {shown(kind)}")
        if kind in ("function", "custom"):
            yield here, ClientTool(kind, str(tool.get("name")), namespace), _described(tool, kind, namespace)
        elif kind == "namespace" and not namespace:
            name = tool.get("name")
            if not isinstance(name, str) or not name:
                raise invalid(f"{here}.name", f"must be the name of the namespace, not {shown(name)}")
            yield from _each(tool.get("tools"), f"{here}.tools", dropped, name)  # type: ignore[arg-type]
        elif kind == SEARCH and tool.get("execution") == "client":
            help_text, schema = tool.get("description"), tool.get("parameters")
            function = {
                "name": SEARCH,
                "description": help_text if isinstance(help_text, str) else _SEARCH_HELP,
                "parameters": schema if isinstance(schema, Mapping) else _SEARCH_SCHEMA,
            }
            yield here, ClientTool(SEARCH, SEARCH), {"type": "function", "function": function}
        else:
            dropped.append((here, kind))


def _described(tool: Wire, kind: str, namespace: str) -> dict[str, Any]:
    """Return a flat tool in the form of chats."""
    fields = ("description", "parameters", "strict") if kind == "function" else ("description", "format")
    inner = {name: tool[name] for name in fields if tool.get(name) is not None}
    name = tool.get("name")
    return {"type": kind, kind: {"name": qualified(namespace, name) if isinstance(name, str) else name, **inner}}


def waiting_tools(tools: Sequence[Any]) -> list[str]:
    """Return the paths of `defer_loading`, which has no effect: all tools are offered at once."""
    marked = (place for place, each in enumerate(tools) if isinstance(each, Mapping) and each.get("defer_loading"))
    return [f"tools[{place}].defer_loading" for place in marked]
