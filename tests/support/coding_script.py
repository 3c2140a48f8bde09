"""The script of an assistant that edits a file in three turns, with the tools that coding agents offer.

It reads the file, edits it, and says so. Its format is that of Qwen3's template, as in `agent_script`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

THOUGHT: Final = "I read the file before I edit it."
ANSWER: Final = "The file is edited."
OLD, NEW = "color = red", "color = blue"

Call = tuple[str, dict[str, Any]]


def task(path: Path) -> str:
    """Return the message of the user."""
    return f"Edit the file {path} please."


def tool_names(prompt: str) -> set[str]:
    """Return the names of the tools in a rendered conversation."""
    listed = re.search(r"\n<tools>\n(.*?)\n</tools>", prompt, re.DOTALL)
    tools = [json.loads(line) for line in listed[1].splitlines()] if listed else []
    return {tool.get("function", tool)["name"] for tool in tools}


def calls(path: str) -> tuple[tuple[Call, Call], ...]:
    """Return how the tools of each client read and edit the file: Claude Code, opencode, and twice Codex."""
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-{OLD}\n+{NEW}\n*** End Patch\n"
    shown = ("exec_command", {"cmd": f"cat {path}"})
    return (
        (
            ("Read", {"file_path": path}),
            ("Edit", {"file_path": path, "old_string": OLD, "new_string": NEW}),
        ),
        (
            ("read", {"filePath": path}),
            ("edit", {"filePath": path, "oldString": OLD, "newString": NEW}),
        ),
        (shown, ("apply_patch", {"input": patch})),
        (shown, ("exec_command", {"cmd": f"sed -i 's/{OLD}/{NEW}/' {path}"})),
    )


@lru_cache(8)  # the model asks for every token
def reply(prompt: str) -> str:
    """Return the assistant's reply to a rendered conversation."""
    thought = "" if prompt.rstrip().endswith("</think>") else f"<think>\n{THOUGHT}\n</think>\n\n"
    names, asked = tool_names(prompt), re.findall(r"Edit the file (\S+) please", prompt)
    if not names or not asked:  # such as a request for the title of a conversation
        return f"{thought}Edit a file"
    turn = prompt.count("<tool_response>\n")
    if turn >= 2:
        return thought + ANSWER
    pair = next(pair for pair in calls(asked[-1]) if {name for name, _ in pair} <= names)
    name, arguments = pair[turn]
    return f"{thought}<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
