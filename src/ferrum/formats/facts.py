"""Keep the facts about templates, and analyse those from requests in a process with limits."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import OrderedDict
from threading import Lock
from typing import Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.formats.analysis import TemplateFacts, analyse
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.untrusted_template import UntrustedTemplate, bounded_job, run_bounded

MAX_KEPT: Final = 64
"""Templates whose facts are kept: those of a server's models, and the last ones of requests."""

_kept: OrderedDict[str, TemplateFacts] = OrderedDict()
_lock = Lock()


def facts_of(template: ChatTemplate) -> TemplateFacts:
    """Return the facts about a template; they are found at the first call, in less than 0.3 s for known templates.

    Raises:
        FerrumError: the template has no source for requests with tools.
    """
    untrusted = isinstance(template, UntrustedTemplate)
    key = _key(template)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    facts = _bounded(template) if untrusted else _trusted(template)
    with _lock:
        _kept[key] = facts
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return facts


def _key(template: ChatTemplate) -> str:
    """Return a hash of what the facts depend on."""
    parts = [template.source_for_tools, template.special_tokens]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _trusted(template: ChatTemplate) -> TemplateFacts:
    try:
        return analyse(template)
    except FerrumError as error:
        return TemplateFacts(format=None, reason=str(error))


def _bounded(template: ChatTemplate) -> TemplateFacts:
    """Analyse in one child process: it renders all probes and returns the facts as JSON."""
    job = {"source": template.source_for_tools, "special_tokens": dict(template.special_tokens)}
    try:
        return TemplateFacts.from_dict(run_bounded(__name__, job))
    except RequestError as error:
        return TemplateFacts(format=None, reason=f"the chat template {error.message}")


def child() -> None:
    """Analyse the template on standard input; write the facts to standard output."""
    job = bounded_job()
    facts = _trusted(ChatTemplate(job["source"], job["special_tokens"]))
    json.dump(facts.to_dict(), sys.stdout)
