"""`ferrum run`: completes one text and streams it to the terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

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
from ferrum.client.message_images import SentImage
from ferrum.client.request_output import Delta
from ferrum.core.config import Switches
from ferrum.core.errors import ModelNotFound, RequestError

DEMONSTRATION: Final = '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a text file, without their line ends."""
'''
"""Default prompt: the built-in model completes Python code."""

DEFAULT_MAX_TOKENS: Final = 200

ImageFiles: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Image before the prompt: PNG, JPEG, WebP, GIF or BMP; repeat for more."),
]


@with_options(engine_fields(), "Model and engine")
@with_options(sampling_fields(), "Sampling", {"max_tokens": DEFAULT_MAX_TOKENS})
def run(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default="the built-in model")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The text to complete; `-` reads standard input.", show_default="Python code"
        ),
    ] = None,
    image: ImageFiles = None,
    **options: Any,
) -> None:
    """Complete a text and print it as it is generated; the speed goes to standard error.

    A single argument with a space is a prompt for the built-in model: ferrum run "def add(a, b):"
    Adapters of --lora add their results. With --image the model answers PROMPT as in a chat.
    """
    from ferrum.client.llm import LLM
    from ferrum.sources.hub import BUILT_IN

    show_log()
    sampling_params({"max_tokens": DEFAULT_MAX_TOKENS}, options)  # fails before the model is loaded
    if model is not None and prompt is None and _is_text(model, options.get("models_dir")):
        model, prompt = None, model
        typer.echo(f"[completed by the built-in model {BUILT_IN}]", err=True)
    name = BUILT_IN if model is None else model
    text = DEMONSTRATION if prompt is None else _standard_input() if prompt == "-" else prompt
    if image and prompt is None:
        raise RequestError("is required with --image: what shall the model answer?", param="PROMPT")
    images = [image_of(path) for path in image or ()]
    try:
        llm = LLM(name, **checked_engine(name, chosen(engine_fields(), options)))
    except ModelNotFound as error:
        if prompt is not None or "/" in name or error.param != "model":
            raise
        hint = f'to complete a text: ferrum run {BUILT_IN} "{name}"'
        raise ModelNotFound(f"{error.message}; {hint}", param="model") from None
    with llm:
        params = sampling_params({"max_tokens": DEFAULT_MAX_TOKENS, **llm.client.recommended}, options)
        adapters = [each.name for each in llm.client.adapters]
        if images:
            asked = [{"role": "user", "content": content_of(text, images)}]
            deltas = llm.stream_chat(asked, params, lora_request=adapters)
        else:
            deltas = llm.stream(text, params, lora_request=adapters)
        typer.echo(text if prompt is None else "", nl=False)
        echo_text(deltas)


def image_of(path: Path) -> SentImage:
    """Return the image of a file, which is read once: later turns show the same. Raises RequestError."""
    try:
        return SentImage(b64encode(path.expanduser().read_bytes()).decode(), str(path))
    except (OSError, RuntimeError) as error:
        raise RequestError(f"cannot read it: {getattr(error, 'strerror', None) or error}", param=str(path)) from None


def content_of(text: str, images: Sequence[SentImage]) -> str | list[dict[str, Any]]:
    """Return the content of a message; images come before its text."""
    shown = [{"type": "image", "image": image} for image in images]
    return [*shown, {"type": "text", "text": text}] if shown else text


def _is_text(word: str, models_dir: str | None) -> bool:
    """Whether a word is a prompt: it has white space, and is neither a path nor named as a GGUF file is."""
    from ferrum.sources.gguf_choice import is_gguf_name
    from ferrum.sources.model_folders import models_directory

    if not any(map(str.isspace, word)) or is_gguf_name(word):
        return False
    folder = models_directory(models_dir)
    return not any(os.path.exists(place / word) for place in (Path(), folder) if place is not None)  # noqa: PTH110 - any text


def _standard_input() -> str:
    """Return the text of standard input. Raises RequestError if it is not UTF-8."""
    text = sys.stdin.read()
    data = text.encode(errors="surrogateescape")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise RequestError("standard input is UTF-16: convert it, as with `iconv -f UTF-16 -t UTF-8`", param="PROMPT")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 at byte {error.start}: convert it", param="PROMPT") from None


def show_log() -> None:
    """Log warnings to standard error, and the tokens of each step if FERRUM_LOG_TOKENS is set."""
    level = logging.INFO if Switches.from_environment().log_tokens else logging.WARNING
    logging.basicConfig(format="%(message)s", level=level)


def plain_text(delta: Delta) -> str:
    """Return what shows a delta: its text, or its tokens without a tokenizer."""
    return " ".join(map(str, (*delta.token_ids, ""))) if delta.text is None else delta.text


def echo_text(deltas: Iterable[Delta], shown: Callable[[Delta], str] = plain_text) -> None:
    """Print one choice as it arrives, then its speed to standard error.

    Args:
        deltas: of the choice.
        shown: returns what shows a delta.

    Raises:
        FerrumError: the choice ended with an error.
    """
    begun = time.monotonic()
    first = last = None
    for delta in deltas:
        if delta.token_ids:
            last = time.monotonic()
            first = last if first is None else first
        typer.echo(shown(delta), nl=False)
        if delta.usage is not None:
            typer.echo()
            if delta.error is not None:
                raise delta.error
            typer.echo(speed(delta, begun, first, last), err=True)


def speed(end: Delta, begun: float, first: float | None, last: float | None) -> str:
    """Return one line about a finished request; the rate is that of the tokens after the first."""
    assert end.usage is not None
    if first is None or last is None:
        return f"[{end.usage.prompt_tokens} prompt tokens, no output]"
    count = end.usage.completion_tokens
    rate = (count - 1) / (last - first) if last > first else count / max(last - begun, 1e-9)
    return (
        f"[{end.usage.prompt_tokens} prompt tokens; first token after {first - begun:.3f} s; "
        f"{count} tokens, {rate:.1f} tokens/s; seed {end.seed}; id {end.request_id}]"
    )
