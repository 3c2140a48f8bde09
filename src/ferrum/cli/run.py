"""`ferrum run`: one prompt to one text, streamed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, sampling_fields, sampling_params, with_options
from ferrum.core.config import Switches
from ferrum.engine.request_output import Delta

DEMONSTRATION: Final = '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a text file, without their line ends."""
'''
"""The built-in model completes Python code."""

DEFAULT_MAX_TOKENS: Final = 200


@with_options(engine_fields(), "Model and engine")
@with_options(sampling_fields(), "Sampling")
def run(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A directory or a hub id.", show_default="the built-in model")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The text to complete; `-` reads standard input.", show_default="Python code"
        ),
    ] = None,
    **options: Any,
) -> None:
    """Complete a text, and print it as it comes. Speed goes to standard error."""
    from ferrum.engine.llm import LLM
    from ferrum.runtime.hub import BUILT_IN

    show_log()
    text = DEMONSTRATION if prompt is None else sys.stdin.read() if prompt == "-" else prompt
    with LLM(BUILT_IN if model is None else model, **chosen(engine_fields(), options)) as llm:
        params = sampling_params({"max_tokens": DEFAULT_MAX_TOKENS, **llm.client.recommended}, options)
        deltas = llm.stream(text, params)
        typer.echo(text if prompt is None else "", nl=False)
        echo_text(deltas)


def show_log() -> None:
    """Show the log on standard error: warnings, and the tokens of each step where FERRUM_LOG_TOKENS asks for them."""
    level = logging.INFO if Switches.from_environment().log_tokens else logging.WARNING
    logging.basicConfig(format="%(message)s", level=level)


def echo_text(deltas: Iterable[Delta]) -> str:
    """Print the text of one choice as it comes, then its speed to standard error; the whole text.

    Raises:
        FerrumError: what ended the choice, if it was an error.
    """
    begun = time.monotonic()
    first = last = None
    pieces: list[str] = []
    for delta in deltas:
        if delta.token_ids:
            last = time.monotonic()
            first = last if first is None else first
        shown = " ".join(map(str, (*delta.token_ids, ""))) if delta.text is None else delta.text
        pieces.append(shown)
        typer.echo(shown, nl=False)
        if delta.usage is not None:
            typer.echo()
            if delta.error is not None:
                raise delta.error
            typer.echo(speed(delta, begun, first, last), err=True)
    return "".join(pieces)


def speed(end: Delta, begun: float, first: float | None, last: float | None) -> str:
    """One line about a finished request. The rate is that of the tokens after the first, where they came apart."""
    assert end.usage is not None
    if first is None or last is None:
        return f"[{end.usage.prompt_tokens} prompt tokens, no output]"
    count = end.usage.completion_tokens
    rate = (count - 1) / (last - first) if last > first else count / max(last - begun, 1e-9)
    return (
        f"[{end.usage.prompt_tokens} prompt tokens; first token after {first - begun:.3f} s; "
        f"{count} tokens, {rate:.1f} tokens/s; seed {end.seed}; id {end.request_id}]"
    )
