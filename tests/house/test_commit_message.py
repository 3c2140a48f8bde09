"""The commit-msg hook accepts imperative subjects of at most 72 characters and refuses the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import REPOSITORY

HOOK = REPOSITORY / ".ci" / "check_commit_message.py"

GOOD = [
    "Add a glossary",
    "Refuse adapters that do not exist\n\nA request with an unknown adapter ended the engine.",
    "Process prompts of several tenants in rounds",
    "Embed the page in the wheel",
    "Re-measure the engine's own time",
    "Raise RLIMIT_NOFILE to the hard limit; log EMFILE once",
    "Fix " + "x" * 68,
    'Revert "Add a glossary"',
    "Merge branch 'main'",
    "Add a test\n# a comment that git removes",
]
BAD = {
    "": "empty",
    "add a glossary": "capitalised",
    "Added a glossary": "imperative",
    "Adds a glossary": "imperative",
    "Adding a glossary": "imperative",
    "The server listens": "imperative",
    "Glossary": "object",
    "Add a glossary.": "full stop",
    "Fix " + "x" * 69: "73 characters",
    "Add a glossary\nwith forty rows": "second line",
}


def run(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "message"
    file.write_text(message)
    return subprocess.run([sys.executable, HOOK, file], capture_output=True, text=True)


@pytest.mark.parametrize("message", GOOD)
def test_good_subject_passes(message: str, tmp_path: Path) -> None:
    done = run(message, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("message", "reason"), BAD.items())
def test_bad_subject_is_refused_with_its_reason(message: str, reason: str, tmp_path: Path) -> None:
    done = run(message, tmp_path)
    assert done.returncode == 1 and reason in done.stderr
