"""`ferrum chat`: a conversation in the terminal, with commands such as /save."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import (
    MODEL_HELP,
    checked_engine,
    chosen,
    engine_fields,
    sampling_fields,
    sampling_params,
    with_options,
)
from ferrum.cli.run import ImageFiles, content_of, echo_text, image_of, show_log
from ferrum.client.message_images import SentImage
from ferrum.client.request_output import Delta
from ferrum.core.errors import KvExhausted, RequestError, Unsupported
from ferrum.core.output_format import ToolKind
from ferrum.core.types import FinishReason
from ferrum.formats.output_parts import Message, Part, PartKind, message_of

if TYPE_CHECKING:
    from ferrum.client.llm import LLM
    from ferrum.core.params import SamplingParams
    from ferrum.formats.output_parts import Call
    from ferrum.grammar.reply_guidance import ChatOptions
    from ferrum.grammar.tools import Tools

# ---- Parts of a reply in a terminal: reasoning dimmed, tool calls as calls, content as it is ----


@dataclass(slots=True)
class ShownParts:
    """The parts of one reply so far, and the text that shows them.

    Attributes:
        parts: those so far.
        styled: use the styles of a terminal.
        cut: the limit of tokens has ended the reply.
    """

    parts: list[Part] = field(default_factory=list)
    styled: bool = field(default_factory=lambda: sys.stdout.isatty())
    cut: bool = False

    def __call__(self, delta: Delta) -> str:
        """Return the text that shows a delta."""
        self.cut = delta.finish_reason is FinishReason.LENGTH
        new = (Part(PartKind.CONTENT, delta.text or ""),) if delta.parts is None else delta.parts
        return "".join(map(self._shown, new))

    @property
    def message(self) -> Message:
        """The reply so far, without a call that the limit of tokens has cut."""
        kinds = [part.kind for part in self.parts]
        if not self.cut or kinds[-1:] not in ([PartKind.CALL], [PartKind.ARGUMENTS], [PartKind.END]):
            return message_of(self.parts)
        return message_of(self.parts[: len(kinds) - 1 - kinds[::-1].index(PartKind.CALL)])

    def _shown(self, part: Part) -> str:
        before = self.parts[-1].kind if self.parts else None
        self.parts.append(part)
        match part.kind:
            case PartKind.REASONING:
                return typer.style(part.text, dim=True) if self.styled else part.text
            case PartKind.CALL:
                name = typer.style(part.text, bold=True) if self.styled else part.text
                return f"{'' if before is None else chr(10)}{name}("
            case PartKind.END:
                return ")"
        gap = "\n\n" if before is PartKind.REASONING and part.kind is PartKind.CONTENT else ""
        return gap + part.text


FULL: Final = 0.75
"""Share of the context a conversation may fill before its oldest messages are dropped."""

KEPT: Final = 0.5
"""Share that is kept then: clearly less, since a conversation with another beginning is computed again."""

HELP: Final = '''\
/system TEXT   set the system message; without TEXT remove it
/reset         start over, keeping the system message; so does /clear
/image FILE    show an image with the next message
/lora NAME     answer with an adapter of --lora; without NAME with the model alone
/save FILE     write the conversation to FILE as JSON
/quit          leave (also Ctrl-D); Ctrl-C stops an answer
A line that ends in \\ continues on the next line. """ begins a message of several lines, and """ ends it.'''

QUOTES: Final = '"""'


@with_options(engine_fields(), "Model and engine")
@with_options(sampling_fields(), "Sampling", {"max_tokens": "the rest of the context"})
def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with a chat template that replaces the model's own.")
    ] = None,
    image: ImageFiles = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file with a list of tools in OpenAI's form; you answer their calls."),
    ] = None,
    **options: Any,
) -> None:
    """Talk with a model that has a chat template. /help lists the commands, Ctrl-D ends the conversation."""
    from ferrum.client.chat_prompt import images_apart
    from ferrum.client.llm import LLM
    from ferrum.grammar.reply_guidance import ChatOptions
    from ferrum.text.sandbox import template_of

    show_log()
    sampling_params({"max_tokens": None}, options)  # fails before the model is loaded
    template = None if chat_template is None else template_of(chat_template)
    described = ChatOptions(choice=tools_in(tools).choice(None))
    images = [image_of(path) for path in image or ()]
    with LLM(model, **checked_engine(model, chosen(engine_fields(), options))) as llm:
        params = sampling_params({"max_tokens": None, **llm.client.recommended}, options)
        if template is not None:
            llm.client.use_template(template, chat_template or "")
        if llm.client.chat_template is None:
            problem = (
                f"{model!r} has no chat template: complete texts with `ferrum run {model} PROMPT`, or name a "
                "template with --chat-template FILE"
            )
            raise RequestError(problem, param="model")
        conversation = Conversation(llm, params, described, images=images)
        if system is not None:
            conversation.set_system(system)
        first = {"role": "user", "content": content_of("?", conversation.images)}
        llm.client.render(images_apart(llm.client, [*conversation.messages, first])[0])  # fails before the first prompt
        if sys.stdin.isatty():
            typer.echo("(/help lists the commands)", err=True)
        while (text := ask()) is not None:
            if text.startswith("/"):
                if not conversation.command(*text[1:].split(maxsplit=1)):
                    return
            elif text.strip():
                conversation.say(text)


@dataclass(slots=True)
class Conversation:
    """The messages so far, and the model that answers them with the help of tools.

    Attributes:
        images: those that the next message shows.
    """

    llm: LLM
    params: SamplingParams
    options: ChatOptions
    messages: list[dict[str, Any]] = field(default_factory=list)
    adapter: str | None = None
    images: list[SentImage] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print the answer to a message. A message that fails or is stopped is not kept.

        The results of tool calls are asked for.
        """
        messages, shortened = [*self.messages, {"role": "user", "content": content_of(text, self.images)}], False
        self.images = []
        try:
            while True:
                shortened |= self._shorten(messages)
                if not (calls := self._answer(messages)):
                    break
                messages += [self._result(call) for call in calls]
        except (RequestError, Unsupported, KvExhausted) as error:
            typer.echo(f"({error})", err=True)
        except KeyboardInterrupt:
            typer.echo("\n(stopped; this message and its answer are not kept)", err=True)
        else:
            if shortened:
                typer.echo("(the context is nearly full: the oldest messages were dropped)", err=True)
            self.messages = messages

    def _answer(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Print the answer to a conversation and append it; return its tool calls."""
        shown = ShownParts()
        echo_text(self.llm.stream_chat(messages, self.params, self.options, self.adapter), shown)
        message = shown.message
        answer: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        if message.reasoning is not None:
            answer["reasoning_content"] = message.reasoning
        calls = [self._called(call, place) for place, call in enumerate(message.calls) if call.complete]
        messages.append({**answer, "tool_calls": calls} if calls else answer)
        return calls

    def _called(self, call: Call, place: int) -> dict[str, Any]:
        """Return a call of the model as messages have it."""
        head = {"id": call.id or f"call{place:05}"}
        if any(tool.name == call.name and tool.kind is ToolKind.CUSTOM for tool in self.options.tools):
            return {**head, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
        return {**head, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

    def _result(self, call: dict[str, Any]) -> dict[str, Any]:
        """Ask for the result of a call."""
        name = call[call["type"]]["name"]
        typer.echo(f"(the result of {name}, as the tool would return it:)", err=True)
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": ask() or ""}

    def command(self, name: str = "", argument: str = "") -> bool:
        """Run a command; return False for /quit."""
        match name:
            case "quit" | "exit":
                return False
            case "system":
                self.set_system(argument)
            case "reset" | "clear":
                self.messages = [each for each in self.messages if each["role"] == "system"]
            case "image" if argument:
                self.show(Path(argument.strip()))
            case "lora":
                self.use_adapter(argument)
            case "save" if argument:
                try:
                    saved = json.dumps([_saved(each) for each in self.messages], indent=2)
                    Path(argument).expanduser().write_text(saved + "\n")
                    typer.echo(f"(saved {len(self.messages)} messages to {argument})", err=True)
                except (OSError, RuntimeError) as error:
                    typer.echo(f"(cannot save: {error})", err=True)
            case "help":
                typer.echo(HELP, err=True)
            case _:
                problem = f"/{name} requires a FILE" if name in ("save", "image") else f"unknown command /{name}"
                typer.echo(f"({problem}; /help lists the commands)", err=True)
        return True

    def show(self, path: Path) -> None:
        """Let the next message show an image."""
        from ferrum.client.chat_prompt import images_apart

        try:
            image = image_of(path)
            images_apart(self.llm.client, [{"role": "user", "content": content_of("", [image])}])
        except (RequestError, Unsupported) as error:
            typer.echo(f"({error})", err=True)
            return
        self.images.append(image)
        typer.echo(f"(the next message shows {path})", err=True)

    def use_adapter(self, name: str) -> None:
        """Answer with a loaded adapter from now on; an empty name stands for the model alone."""
        adapters = self.llm.client.adapters
        if name and name not in adapters:
            loaded = ", ".join(each.name for each in adapters) or "none; give --lora NAME=PATH"
            typer.echo(f"(no adapter {name!r} is loaded: {loaded})", err=True)
            return
        self.adapter = name or None
        typer.echo(f"(answers come from {name or 'the model alone'})", err=True)

    def set_system(self, text: str) -> None:
        """Replace the system message; an empty text removes it."""
        others = [each for each in self.messages if each["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *others] if text else others

    def _shorten(self, messages: list[dict[str, Any]]) -> bool:
        """Drop the oldest exchanges if they leave little room for an answer; return whether any were dropped.

        An exchange is a question with all that follows it: a result never stays without its call.
        """
        room = min(self.llm.info.max_sequence_length, self.llm.info.kv_capacity)
        before, share = len(messages), FULL
        while self._tokens(messages) > share * room:
            questions = [place for place, each in enumerate(messages) if each["role"] == "user"]
            if len(questions) < 2:
                break
            del messages[questions[0] : questions[1]]
            share = KEPT
        return len(messages) < before

    def _tokens(self, messages: list[dict[str, Any]]) -> int:
        """Return the length of the prompt of a conversation, with the descriptions of the tools."""
        from ferrum.client.chat_prompt import images_apart, tokens_of

        client = self.llm.client
        apart, images = images_apart(client, messages)
        text = client.render(apart, tools=self.options.choice.tools.descriptions or None)
        return len(tokens_of(client, text, images))


def _saved(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its images as data URLs, as any API of OpenAI's form takes it."""
    if isinstance(message["content"], str):
        return message
    content = []
    for part in message["content"]:
        image = part.get("image")
        url = "" if image is None else f"data:{guess_type(image.field)[0] or 'image/png'};base64,{image.data}"
        content.append(part if image is None else {"type": "image_url", "image_url": {"url": url}})
    return {**message, "content": content}


def tools_in(path: Path | None) -> Tools:
    """Return the tools of a file; none without one. Raises RequestError."""
    from ferrum.grammar.tools import tools_of

    if path is None:
        return tools_of(())
    try:
        return tools_of(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}", param="tools") from None


def ask() -> str | None:
    """Read a message, with a prompt, line editing and history in a terminal; None at the end of input."""
    asked, more = ("> ", "... ") if sys.stdin.isatty() else ("", "")
    if asked and sys.stdout.isatty():
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 - `input` uses it
    try:
        line = input(asked)
    except EOFError:
        return None
    lines: list[str] = []
    quoted = line.strip() == QUOTES
    with suppress(EOFError):  # the end of input ends the message, too
        if quoted:
            while (line := input(more)).strip() != QUOTES:
                lines.append(line)
            return "\n".join(lines)
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = ""
            line = input(more)
    return "\n".join(lines if quoted else [*lines, line])
