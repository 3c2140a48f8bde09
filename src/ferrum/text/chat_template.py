"""Chat templates: render a conversation as the text that the model continues.

Finds the form of message that a template reads, loads checkpoint templates and compiles them for the sandbox.
`template_messages` converts those of clients; `untrusted_template` runs templates from requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import CheckpointError, FerrumError, RequestError
from ferrum.text import template_probes as probes
from ferrum.text import template_tools
from ferrum.text import template_turns as turns
from ferrum.text.model_files import ModelFiles
from ferrum.text.template_messages import (
    Message,
    conversation,
    cut_at_mark,
    for_template,
    has_calls,
    json_objects,
    mark_end,
    plain_json,
    reasoning_of,
    with_argument_text,
    with_short_ids,
)
from ferrum.text.tokenizer_config import read_tokenizer_config

if TYPE_CHECKING:
    from jinja2 import Template

_READS_TEXT: Final = re.compile(r"""[.'"]text\b""")
"""Matches the access to a part's text, which every template that reads parts contains."""

_TESTS_NULL: Final = re.compile(r"""\bcontent(['"][\])])? is (not )?none\b""")
"""Matches the test for a null content."""

_READS_THOUGHT: Final = re.compile(r"""['"]thinking['"]|[.'"](reasoning|thought)\b""")
"""Matches the access to reasoning in a part of the content or under an unusual name."""

_COUNTS_ID: Final = re.compile(r"""\bid(['"]\])?\s*\|\s*length""")
"""Matches the count of an id's characters."""

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}


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
        chat = conversation(messages, keep_null=self._reads_null)
        final = mark_end(chat) if continue_final_message else None
        variables = {
            **self.special_tokens,
            **{str(name): plain_json(value, "chat_template_kwargs") for name, value in extra.items()},
            "messages": chat,
            "tools": None if tools is None else template_tools.without_nulls(json_objects(tools, "tools")),
            "documents": None if documents is None else json_objects(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._fill_with_tools(self._choose(tools is not None), variables)
        return text if final is None else cut_at_mark(text, final)

    @cached_property
    def reads_parts(self) -> bool:
        """Whether the template reads text only from a list of parts, as Llama Guard's does."""
        if not any(map(_READS_TEXT.search, self.sources.values())):
            return False
        return self._shows([{"type": "text", "text": probes.SAID}]) and not self._shows(probes.SAID)

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        try:
            return probes.SAID in self.render([{"role": "user", "content": content}])
        except FerrumError:
            return False

    def prepare(self, messages: Sequence[Message], *, moving: bool = True) -> list[dict[str, Any]]:
        """Convert messages to the form that this template reads. Errors as `for_template`.

        Args:
            messages: as of `for_template`.
            moving: move texts and calls that the template leaves out or refuses where they stand; see `template_turns`.
        """
        called = has_calls(messages)
        kept = called and (self.reads_argument_text or self.keeps_argument_text)
        chat = for_template(messages, as_parts=self.reads_parts, argument_text=kept)
        for sent, message in zip(messages, chat, strict=True):
            empty = sent.get("content") is None and sent.get("refusal") is None
            if empty and sent.get("role") == "assistant" and not message.get("tool_calls"):
                del message["content"]
                message |= self._silent_form
        chat = self._formed(self._moved(chat) if moving else chat)
        return with_short_ids(chat) if called and self._refuses_long_ids else chat

    def _moved(self, chat: turns.Chat) -> turns.Chat:
        """Return the messages where the template renders their texts."""
        if turns.has_late_system(chat) and not self.reads_late_system:
            chat = turns.with_system_first(chat)
        if turns.has_calls_together(chat) and self._splits_calls:
            chat = turns.with_calls_apart(chat)
        if turns.shows_results(chat) and not self.reads_result_images:
            move = turns.with_results_shown_after if self._reads_after_results else turns.with_results_shown_before
            chat = move(chat, as_parts=self.reads_parts)
        return self._content_move(chat) if turns.says_and_calls(chat) else chat

    def _formed(self, chat: turns.Chat) -> turns.Chat:
        """Give the messages with calls or reasoning the form that the template reads. Changes the messages."""
        if turns.says_and_thinks_and_calls(chat) and self._refuses_all_parts:
            chat = turns.with_content_as_reasoning(chat)
        for message in chat:
            if calls := message.get("tool_calls"):
                text = turns.text_of(message.get("content"))
                if not text or (text.isspace() and self._content_move is not turns.unmoved):
                    message.pop("content", None)
                    message |= self._calling_form[0]
                if self._reads_null and self._calling_form[1]:
                    message["tool_calls"] = [with_argument_text(call) for call in calls]
            reasoning = reasoning_of(message) if message.get("role") == "assistant" else None
            if reasoning and self._reasoning_form != "fields":
                if self._reasoning_form == "parts":
                    message["content"] = _with_thought(message.get("content"), reasoning)
                else:
                    message[self._reasoning_form] = reasoning
        return chat

    @cached_property
    def reads_argument_text(self) -> bool:
        """Whether the template appends the arguments of a call as text, as DeepSeek-R1-Distill-Llama's does."""
        if self._reads_null and self._calling_form[1]:
            return True
        objects, texts = self._probe(*(probes.calls(content="", argument_text=as_text) for as_text in (False, True)))
        return objects is None and texts is not None

    @cached_property
    def keeps_argument_text(self) -> bool:
        """Whether the template renders arguments given as text as they are, and objects as the same JSON.

        Then a client's text is kept, so that the next prompt begins with the tokens that the model wrote.
        """
        odd = '{"a":  1}'
        both = (probes.calls(content="", argument_text=False, arguments=value) for value in ({"a": 1}, odd))
        given, sent = self._probe(*both)
        if given is None or sent is None or odd not in sent:
            return False
        return sent in (given.replace(plain, odd) for plain in ('{"a": 1}', '{"a":1}'))

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the template writes the calls of messages, or refuses them."""
        as_text = self.reads_argument_text
        chat = probes.calls(content="", argument_text=as_text, arguments=probes.arguments(as_text=as_text))
        text = self._probe(self._formed(chat))[0]
        return text is None or probes.ARGUMENT in text

    @cached_property
    def reads_late_system(self) -> bool:
        """Whether the template renders all system messages; some refuse or omit those after others."""
        chats = [for_template(chat, as_parts=self.reads_parts) for chat in probes.SYSTEMS]
        return all(set(probes.SYSTEM_MARKS) <= probes.found(text) for text in self._probe(*chats))

    @cached_property
    def reads_result_images(self) -> bool:
        """Whether the template renders images in results of tools; some render the list of parts as JSON there."""
        without, shown = self._probe(*map(self._formed, deepcopy(probes.RESULTS)))
        if without is None or shown is None or probes.SAID not in shown:
            return False
        return shown != without and shown.count("type") == without.count("type")

    @cached_property
    def _reads_after_results(self) -> bool:
        """Whether a message of the user may follow results; some templates demand an answer first."""
        [moved] = self._probe(
            self._formed(turns.with_results_shown_after(probes.RESULTS[1], as_parts=self.reads_parts))
        )
        return moved is not None

    @cached_property
    def _splits_calls(self) -> bool:
        """Whether the template writes several calls only if each has its message, as gpt-oss's and Llama 3's do."""
        as_text = self.reads_argument_text
        together = probes.parallel_calls(argument_text=as_text)
        chats = [self._formed(chat) for chat in (together, turns.with_calls_apart(together))]
        whole, apart = (set(probes.ARGUMENTS) <= probes.found(text) for text in self._probe(*chats))
        return apart and not whole

    @cached_property
    def _content_move(self) -> turns.Move:
        """Return the first move with which the template writes the content of messages with calls, or none."""
        as_text = self.reads_argument_text
        chat = probes.calls(content=probes.SAID, argument_text=as_text, arguments=probes.arguments(as_text=as_text))
        moved = [self._formed(deepcopy(move(chat))) for move in turns.CONTENT_MOVES]
        for move, text in zip(turns.CONTENT_MOVES, self._probe(*moved), strict=True):
            # Templates drop what was said before earlier calls where they take it for reasoning, as gpt-oss's does.
            least = 1 if move is turns.unmoved else 2
            if text is not None and text.count(probes.SAID) >= least and text.count(probes.ARGUMENT) >= 2:
                return move
        return turns.unmoved

    @cached_property
    def _reasoning_form(self) -> str:
        """Return where the template reads reasoning, as `template_probes.thoughts` names it; `fields` if nowhere."""
        if not any(map(_READS_THOUGHT.search, self.sources.values())):
            return "fields"
        forms = probes.thoughts(probes.SAID)
        texts = dict(zip(forms, self._probe(*forms.values()), strict=True))
        return next((form for form, text in texts.items() if probes.SAID in (text or "")), "fields")

    @cached_property
    def _refuses_long_ids(self) -> bool:
        """Whether ids of calls must have nine letters and digits, as in some of Mistral's templates."""
        if not any(map(_COUNTS_ID.search, self.sources.values())):
            return False
        short, long = self._probe(*(probes.calls(argument_text=False, content="", call_id=each) for each in probes.IDS))
        return short is not None and long is None

    @cached_property
    def _refuses_all_parts(self) -> bool:
        """Whether a message may not have reasoning, content and calls, as in gpt-oss's template."""
        both = (probes.calls(argument_text=False, content=text, thinking="a") for text in ("", "b"))
        without, with_content = self._probe(*both)
        return without is not None and with_content is None

    def _fill_with_tools(self, name: str, variables: dict[str, Any]) -> str:
        """Render the source called `name`, with whole tools if those of the client fail. Raises as `render`."""
        tools = variables["tools"]
        try:
            return self.fill(name, {**variables, "tools": self._described(tools)})
        except RequestError as error:
            if not tools:
                raise
            try:
                return self.fill(name, {**variables, "tools": self._described(template_tools.whole(tools))})
            except RequestError:
                [without] = self.fill_all(name, [{**variables, "tools": None}])
                raise error if without is None else error.about("tools") from None

    def _described(self, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Return tools as the template reads them: in OpenAI's form, or as the functions in it."""
        functions = [tool.get("function") for tool in tools or ()]
        bare = [function for function in functions if isinstance(function, dict)]
        return bare if len(bare) == len(functions) and bare and self._reads_functions else tools

    @cached_property
    def _reads_functions(self) -> bool:
        """Whether the template writes a tool only if it is given without its envelope."""
        [full], [bare] = (self._probe([probes.QUESTION], tools=[tool]) for tool in (probes.NAMED, probes.NAMED_BARE))
        return bare is not None and probes.NAME in bare and probes.NAME not in (full or "")

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

        The first of absent content (as transformers has it), null and an empty text with which the template writes the
        calls, and nothing more than with the others.
        """
        forms: list[tuple[dict[str, str | None], bool]] = [({}, False)]
        if self._tests_null:
            forms += [({"content": None}, False), ({"content": None}, True)]
        forms.append(({"content": ""}, False))
        chats = [
            probes.calls(argument_text=as_text, arguments=probes.arguments(as_text=as_text), **content)
            for content, as_text in forms
        ]
        texts = dict(zip(range(len(forms)), self._probe(*chats), strict=True))
        whole = {place: text for place, text in texts.items() if text is not None and text.count(probes.ARGUMENT) >= 2}
        if not whole:
            return next((form for form, text in zip(forms, texts.values(), strict=True) if text is not None), forms[-1])
        return forms[min(whole, key=lambda place: (whole[place].count("None"), len(whole[place])))]

    @cached_property
    def _silent_form(self) -> dict[str, str]:
        """Return the content of an assistant message without content and calls: absent if that renders, or empty."""
        return {"content": ""} if self._probe(probes.SILENT)[0] is None else {}

    def _probe(
        self, *chats: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = (probes.TOOL,)
    ) -> list[str | None]:
        """Return the texts of conversations of `template_probes`; None for those that the template refuses."""
        common = {**self.special_tokens, "tools": list(tools), "documents": None, "add_generation_prompt": True}
        try:
            return self.fill_all(self._choose(with_tools=True), [{**common, "messages": chat} for chat in chats])
        except FerrumError:
            return [None] * len(chats)

    def fill_all(self, name: str, many: Sequence[dict[str, Any]]) -> list[str | None]:
        """Render the source called `name` several times; None where it fails."""
        texts: list[str | None] = []
        for variables in many:
            try:
                texts.append(self.fill(name, variables))
            except FerrumError:
                texts.append(None)
        return texts

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
            reason = f"the chat template fails: {type(error).__name__}: {error}"
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


def _with_thought(content: Any, reasoning: str) -> list[Any]:
    texts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    return [{"type": "thinking", "thinking": reasoning}, *texts]
