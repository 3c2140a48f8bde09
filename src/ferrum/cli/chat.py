"""`ferrum chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, sampling_fields, sampling_params, with_options
from ferrum.cli.run import echo_text, show_log
from ferrum.core.errors import KvExhausted, RequestError

if TYPE_CHECKING:
    from ferrum.core.params import SamplingParams
    from ferrum.engine.llm import LLM

FULL: Final = 0.75
"""Of the context, what a conversation may take with the user's last line; the rest is for the answer."""

KEPT: Final = 0.5
"""What it takes at most when something of it has been forgotten."""


@with_options(engine_fields(), "Model and engine")
@with_options(sampling_fields(), "Sampling")
def chat(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory or a hub id of a model with a chat template.")
    ],
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    **options: Any,
) -> None:
    """Talk with a model, one line at a time. An empty line, end of input or Ctrl-C ends the conversation."""
    from ferrum.engine.llm import LLM

    show_log()
    with LLM(model, **chosen(engine_fields(), options)) as llm:
        params = sampling_params({"max_tokens": None, **llm.client.recommended}, options)
        messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        if llm.client.chat_template is None:
            raise RequestError("has no chat template; `ferrum run` goes on with a plain prompt", param="model")
        llm.client.render([*messages, {"role": "user", "content": "?"}])  # what it cannot render is refused at once
        while (line := _ask()) is not None:
            _talk(llm, messages, line, params)


def _talk(llm: LLM, messages: list[dict[str, str]], line: str, params: SamplingParams) -> None:
    """One line and its answer. A line that is no text or too long is let go; see `_shorten` for a conversation."""
    kept = [*messages, {"role": "user", "content": line}]
    try:
        shortened = _shorten(llm, kept)
        answer = echo_text(llm.stream(llm.client.render(kept), params, add_special_tokens=False))
    except (RequestError, KvExhausted) as error:
        typer.echo(f"({error})", err=True)
        return
    if shortened:
        typer.echo("(the conversation is long for the context: its beginning is forgotten)", err=True)
    messages[:] = [*kept, {"role": "assistant", "content": answer}]


def _shorten(llm: LLM, messages: list[dict[str, str]]) -> bool:
    """Forget the oldest exchanges of a conversation that leaves little room for an answer; whether there were any.

    What is left then is clearly shorter: a conversation with another beginning has to be computed again.
    """
    assert llm.client.tokenizer is not None, "what has a chat template has a tokenizer"
    encode, room = llm.client.tokenizer.encode, min(llm.info.max_sequence_length, llm.info.kv_capacity)
    first, before, most = sum(each["role"] == "system" for each in messages), len(messages), FULL
    while (
        len(messages) > first + 1 and len(encode(llm.client.render(messages), add_special_tokens=False)) > most * room
    ):
        del messages[first : first + 2]
        most = KEPT
    return len(messages) < before


def _ask() -> str | None:
    """The user's next line, which can be edited in a terminal; None at the end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 - `input` uses it
    try:
        return input("> ") or None
    except EOFError:
        return None
