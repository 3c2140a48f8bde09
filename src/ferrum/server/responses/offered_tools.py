"""Tools of a response: from flat tools and namespaces to those that models know, and their calls back to items.

Tools themselves are checked in `grammar.tools`, for all dialects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.values import shown
from ferrum.grammar.tools import ToolChoice, Tools, tools_of
from ferrum.server.common.error_replies import ApiError, invalid, unsupported

Wire = Mapping[str, Any]
"""An object as the client sent it."""

SEARCH: Final = "tool_search"
"""The kind of the tool that finds tools, and its name for the model."""

_SEARCH_HELP: Final = "Searches for further tools, which can be called afterwards."
_SEARCH_SCHEMA: Final = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_PLACE: Final = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom))?(.*)")


@dataclass(frozen=True, slots=True)
class Source:
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

    sources: dict[str, Source] = field(default_factory=dict)
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

    def checked(self) -> Tools:
        """Return the checked tools. Raises RequestError with the place as the client knows it."""
        try:
            return tools_of(self._described)
        except RequestError as error:
            match = _PLACE.fullmatch(error.param or "")
            if match is None:
                raise
            rest = match[2].replace(".format.grammar", ".format")
            raise error.about(self.places[int(match[1])] + rest) from None

    def choice(self, tools: Tools, choice: Any) -> ToolChoice:
        """Return what the client chose. Raises RequestError, or ApiError for a tool that is not served."""
        if not isinstance(choice, Mapping):
            return tools.choice(choice)
        if choice.get("type") != "allowed_tools":
            mode: Any = "required"
            names = self._referred(choice, "tool_choice")
            if len(names) == 1:
                return tools.choice({"type": "function", "name": names[0]})
        else:
            listed, mode = choice.get("tools"), choice.get("mode")
            if not isinstance(listed, list):
                raise invalid("tool_choice.tools", f"must be a list of tools by type and name, not {shown(listed)}")
            referred = (self._referred(each, f"tool_choice.tools[{place}]") for place, each in enumerate(listed))
            names = [name for each in referred for name in each]
        allowed = {"mode": mode, "tools": [{"name": name} for name in names]}
        try:
            return tools.choice({"type": "allowed_tools", "allowed_tools": allowed})
        except RequestError as error:
            raise error.about("tool_choice") from None

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
) -> Iterator[tuple[str, Source, dict[str, Any]]]:
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
            yield here, Source(kind, str(tool.get("name")), namespace), _described(tool, kind, namespace)
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
            yield here, Source(SEARCH, SEARCH), {"type": "function", "function": function}
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
