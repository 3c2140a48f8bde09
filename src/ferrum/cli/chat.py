"""`ferrum chat`: a conversation in the terminal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ferrum.cli.options import chosen, engine_fields, sampling_fields, sampling_params, with_options
from ferrum.cli.run import echo_text, show_log


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
    from ferrum.engine.offline import LLM

    show_log()
    with LLM(model, **chosen(engine_fields(), options)) as llm:
        params = sampling_params({"max_tokens": None, **llm.front.recommended}, options)
        messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        llm.front.render([*messages, {"role": "user", "content": "?"}])  # a model without a template is refused at once
        while (line := _ask()) is not None:
            messages.append({"role": "user", "content": line})
            answer = echo_text(llm.stream(llm.front.render(messages), params, add_special_tokens=False))
            messages.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    """The user's next line; None at the end."""
    try:
        return input("> ") or None
    except EOFError:
        return None
