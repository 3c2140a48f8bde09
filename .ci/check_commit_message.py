#!/usr/bin/env python3
"""Check a commit message: an imperative subject of at most 72 characters, then an empty line. Git's commit-msg hook."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_SUBJECT = 72

GENERATED = re.compile(r'(?:Merge|Revert ") ?|(?:fixup|squash|amend)! ')
"""Subjects that git writes itself."""

NOT_VERBS = (
    "a an the this that these those it its we i you he she they there all some any no new more one two "
    "in on at of for from to with by when where what who how if as so and or not"
)
VERBS_LIKE_OTHER_FORMS = (
    "pass address process access discuss focus express suppress compress bypass cross miss dismiss "
    "bring string embed speed feed need seed shed bless guess press assess stress alias canvas bias"
)


def problems(message: str) -> list[str]:
    """Return what is wrong with a commit message, one sentence each; empty for a good one."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0].rstrip() if lines else ""
    if GENERATED.match(subject):
        return []
    found = []
    if not subject:
        return ["the subject is empty (say what the commit does)"]
    if len(subject) > MAX_SUBJECT:
        found.append(f"the subject has {len(subject)} characters, at most {MAX_SUBJECT} (move the rest to the body)")
    if subject.endswith("."):
        found.append("the subject ends with a full stop (remove it)")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty (separate subject and body)")
    word = re.match(r"[A-Z][a-z]+(?:-[a-z]+)?(?= )", subject)
    if word is None:
        found.append("the subject does not begin with a capitalised verb and an object (`Add a test`)")
    elif not is_imperative(word[0].lower()):
        found.append(f"{word[0]!r} is no imperative verb (write `Add`, not `Added`, `Adds` or `Adding`)")
    return found


def is_imperative(word: str) -> bool:
    """Return whether a word may be an imperative verb: no article, and no other form of a verb."""
    if word in NOT_VERBS.split():
        return False
    return word in VERBS_LIKE_OTHER_FORMS.split() or not re.search(r"(?:ed|ing|[^s]s)$", word)


def main() -> int:
    """Check the file that git passes; return 1 and print the problems if there are any."""
    found = problems(Path(sys.argv[1]).read_text())
    for each in found:
        print(f"commit message: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
