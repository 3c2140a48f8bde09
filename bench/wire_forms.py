"""Send requests to real servers, and write what they answer, so that two trees can be compared.

    python bench/wire_forms.py --output FILE              write the exchanges
    python bench/wire_forms.py --compare FILE             list the differences to an earlier file; exit with 1 if any
    python bench/wire_forms.py --compare FILE --leave-out x-ferrum-cache    without a header or field of this name

Over a thousand requests in all dialects go one by one to servers in this process: the built-in model, an assistant that
follows a script, and models without numerics. Each exchange has its request, status, headers, and JSON or events. Ids,
times and durations are replaced. Successive pieces of a stream are joined, since their sizes depend on the machine.
Needs the repository with its tests and `pip install 'ferrum-llm[test]'`.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Final

import ferrum
from ferrum.core.config import EngineConfig, ModelConfig
from script import needs, run_script
from wire_cases import Case, assistant_cases, dumped, filled, unique
from wire_plain_cases import failing_cases, fake_cases, limit_cases, tiny_cases, wrong_types

sys.path.insert(0, str(Path(ferrum.__file__).parents[2] / "tests" / "support"))
with needs("'ferrum-llm[test]'"):
    import httpx

    import agent_script
    from agent_kit import QWEN3
    from engine_fakes import FakeRecipe, MarkedTokenizer
    from ferrum.server.server_config import ServerConfig
    from scripted_model import scripted_parts
    from serve_kit import Served, chat_parts, serving

CONTENT: Final = "{% for m in messages %}{{ m.content }}{% endfor %}"
ROLES: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
RETRIES: Final = 500

IDS: Final = {
    *("id", "call_id", "tool_call_id", "tool_use_id", "item_id", "response_id", "request_id", "first_id", "last_id"),
    *("previous_response_id", "previous_message_id", "x-request-id", "request-id"),
}
TIMES: Final = {
    *("created", "created_at", "completed_at", "modified_at", "expires_at", "total_duration", "prompt_eval_duration"),
    *("eval_duration", "retry-after", "x-ratelimit-remaining-tokens", "x-ratelimit-remaining-requests"),
    *("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"),
}
DROPPED: Final = {"date", "content-length", "connection", "transfer-encoding", "server"}
RANDOM_ID: Final = re.compile(r"((?:[a-z]+[-_])*)[0-9A-Za-z]{9,}(?:-[0-9a-f]+)*")

GROWING: Final = {
    *("content", "text", "reasoning", "reasoning_content", "thinking", "partial_json", "arguments", "input", "delta"),
    *("response", "tokens", "token_ids", "text_offset", "token_logprobs", "top_logprobs", "signature"),
}
"""Fields of a piece that clients append to those of the pieces before."""
COUNTS: Final = {"usage", "tokens_predicted"}
"""Fields of a piece that replace those before."""
RUNNING: Final = {"completion_tokens", "total_tokens", "output_tokens", "thinking_tokens", "reasoning_tokens"}
"""Counts of the tokens so far."""
ENDS: Final = {"finish_reason", "stop_reason"}
"""Fields that are null in pieces before the last one."""


# Servers


def servers(folder: Path, ended: threading.Event) -> dict[str, AbstractContextManager[Served]]:
    """Return the servers by name; each starts when it is entered.

    Args:
        folder: of files for the servers. While it has the file `hold`, one engine makes no steps.
        ended: when it is set, a server that loads until then goes on.
    """
    templates = {"content": CONTENT, "roles": ROLES}
    for name, text in templates.items():
        (folder / name).write_text(text)
    (folder / "keys").write_text("main:right requests_per_minute=5 tokens_per_minute=1000\n")
    (folder / "hold").touch()
    content, roles = (str(folder / name) for name in templates)
    gentle = FakeRecipe(fails=False, policy="priority")
    config = EngineConfig(model=ModelConfig(model="fake"), policy="priority")

    def marked() -> Any:
        return replace(chat_parts(gentle), tokenizer=MarkedTokenizer(), config=config, embeds=True)

    def load() -> ferrum.AsyncEngine:
        ended.wait()
        return ferrum.AsyncEngine.from_parts(chat_parts(gentle))

    # commits before the option always explain them
    explained = {"explain_prefixes": True} if hasattr(ServerConfig, "explain_prefixes") else {}
    name = {"served_model_name": ("fake",), **explained}
    return {
        "tiny": serving(
            lambda: ferrum.AsyncEngine("ferrum-tiny"),
            chat_template=roles,
            pooling="last",
            served_model_name=("tiny-model", "second-name"),
            **explained,
        ),
        "assistant": serving(scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS), **explained),
        "fake": serving(marked(), pooling="mean", **name),
        "strict": serving(marked(), strict=True, max_body_bytes=4000, pooling="mean", **name),
        "failing": serving(chat_parts(FakeRecipe()), chat_template=content, **name),
        "full": serving(chat_parts(FakeRecipe(hold=str(folder / "hold")), max_requests=1), **name),
        "keyed": serving(chat_parts(gentle), api_key_file=str(folder / "keys"), **name),
        "loading": serving(load, ready=False, **name),
    }


# Requests


def exchange(server: Served, case: Case, ids: dict[str, str]) -> dict[str, Any]:
    """Send a request; return the exchange, and add the reply's id to `ids`."""
    path, data = filled(case.path, ids), dumped(case, ids)
    headers = {"content-type": "application/json"} if data is not None else {}
    for _ in range(RETRIES):
        response = server.http.request(case.method, path, content=data, headers={**headers, **case.headers})
        if not case.until or response.json().get("status") == case.until:
            break
        time.sleep(0.01)
    said = spoken(response)
    if (found := first_id(said)) is not None:
        ids[case.name] = found
    headed = {name: value for name, value in sorted(response.headers.items()) if name not in DROPPED}
    made = {"status": response.status_code, "headers": headed, "reply": said}
    asked = {"method": case.method, "path": case.path, "body": case.body if case.raw is None else repr(case.raw[:80])}
    return {"request": asked, **normal(made, ids)}


def spoken(response: httpx.Response) -> Any:
    """Return the JSON of a reply, or the events of a stream with successive pieces joined, or another text."""
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return joined(numbered([event_of(block) for block in response.text.split("\n\n") if block and block[0] != ":"]))
    if kind.startswith("application/x-ndjson"):
        return joined([{"data": json.loads(line)} for line in response.text.splitlines()])
    if response.request.url.path == "/openapi.json":
        return without_modules(response.json())
    if kind.startswith("application/json") and response.content:
        return response.json()
    if response.request.url.path == "/metrics":
        return sorted({line.split("{")[0].split(" ")[0] for line in response.text.splitlines() if line[0] != "#"})
    return response.text


def without_modules(document: dict[str, Any]) -> Any:
    """Return an OpenAPI document in which equal names of schemas differ by their text, not by their modules."""
    text = json.dumps(document)
    for name, schema in document["components"]["schemas"].items():
        if name.startswith("ferrum__"):
            plain = re.sub(r"ferrum__\w+__", "", json.dumps(schema))
            text = text.replace(f'{name}"', f'{name.rpartition("__")[2]} {sha256(plain.encode()).hexdigest()[:8]}"')
    return json.loads(text)


def event_of(block: str) -> dict[str, Any]:
    """Return the lines of an event by their names, with its JSON."""
    event: dict[str, Any] = dict(line.split(": ", 1) for line in block.split("\n"))
    return {**event, "data": event["data"] if event["data"] == "[DONE]" else json.loads(event["data"])}


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events without their numbers, after a line that says whether these were consecutive."""
    numbers = [event["data"].pop("sequence_number", None) for event in events if isinstance(event["data"], dict)]
    if all(number is None for number in numbers):
        return events
    return [{"data": {"consecutive": numbers == [*range(numbers[0], numbers[0] + len(numbers))]}}, *events]


def first_id(said: Any) -> str | None:
    """Return the id of a reply or of the first event that has one."""
    for each in said if isinstance(said, list) else [said]:
        data = each.get("data", each) if isinstance(each, dict) else None
        for holder in (data, *(data.get(name) for name in ("response", "message"))) if isinstance(data, dict) else ():
            if isinstance(holder, dict) and RANDOM_ID.fullmatch(str(holder.get("id", ""))):
                return str(holder["id"])
    return None


# Pieces of a stream


class Different(Exception):
    """Two events are not pieces of one text."""


def joined(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with the pieces of each lane joined, and the events of lanes that alternate in order.

    What tokens have, such as log-probabilities, comes after the events: pieces of text divide it at random.
    """
    found: list[dict[str, Any]] = []
    tokens: dict[str, Any] = {}
    for event in events:
        if take_tokens(event, tokens):
            continue
        place = len(found) - 1
        while lane_of(event) and place > 0 and lane_of(found[place]) not in ("", lane_of(event)):
            place -= 1
        try:
            found[place] = merged(found[place], event)
        except (Different, IndexError):
            found.append(event)
    hide_counts(found)
    return [*in_order(found), *([{"data": {"tokens": tokens}}] if tokens else ())]


def take_tokens(event: dict[str, Any], tokens: dict[str, Any]) -> bool:
    """Move what the tokens of an event's choices have to `tokens`; return whether nothing else was in it."""
    data = event.get("data")
    empty = False
    for choice in data.get("choices", ()) if isinstance(data, dict) else ():
        for name in ("logprobs", "token_ids", "prompt_token_ids"):
            if (value := choice.pop(name, None)) is not None:
                label = f"{name} of choice {choice['index']}"
                tokens[label] = merged(tokens[label], value, name) if label in tokens else value
                empty = choice.get("delta") == {} and choice.get("finish_reason") is None
    return empty


def lane_of(event: dict[str, Any]) -> str:
    """Return a name for the text that an event may be a piece of: that of a choice, or a kind of delta."""
    data = event.get("data")
    if not isinstance(data, dict):
        return ""
    if choices := data.get("choices"):
        return f"choice {choices[0]['index']}"
    kind = str(data.get("type", ""))
    return kind if kind.endswith(".delta") else ""


def hide_counts(events: list[dict[str, Any]]) -> None:
    """Replace counts of tokens before the last ones, which depend on the sizes of pieces."""
    counted = [event for event in events if any(name in RUNNING for name, _ in named(event))]
    for event in counted[:-1]:
        event["data"] = replaced(event["data"], {}, hidden=RUNNING)


def in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with each run of lanes sorted."""
    found: list[dict[str, Any]] = []
    for laned, group in groupby(events, lambda event: bool(lane_of(event))):
        run = list(group)
        found += sorted(run, key=lane_of) if laned else run
    return found


def merged(one: Any, other: Any, name: str = "") -> Any:
    """Return two pieces as one. Raises Different if they are not pieces of one text."""
    if name in COUNTS:
        return other
    if name in GROWING and type(one) is type(other) and isinstance(one, str | list):
        return one + other
    if name in ENDS and one is None:
        return other
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() <= other.keys() <= one.keys() | ENDS:
        return {key: merged(one.get(key), other[key], key) for key in other}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [merged(left, right) for left, right in zip(one, other, strict=True)]
    if one == other and type(one) is type(other):
        return one
    raise Different


# Ids and times


def normal(exchange: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """Return an exchange with names for its ids and times."""
    known = {value: f"<id of {name}>" for name, value in reversed(ids.items())}
    earlier = len(known)
    for name, value in named(exchange):
        if name in IDS and isinstance(value, str) and (found := RANDOM_ID.fullmatch(value)):
            known.setdefault(value, f"<{found[1] or ''}{len(known) - earlier}>")
    return replaced(exchange, dict(sorted(known.items(), key=lambda each: -len(each[0]))), hidden=TIMES)


def named(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values with their names."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from named(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from named(each, name)
    else:
        yield name, value


def replaced(value: Any, known: dict[str, str], name: str = "", *, hidden: Collection[str]) -> Any:
    """Return a value with the texts of `known` replaced, and the values of fields with a name of `hidden`."""
    if isinstance(value, dict):
        return {key: replaced(each, known, key, hidden=hidden) for key, each in value.items()}
    if isinstance(value, list):
        return [replaced(each, known, name, hidden=hidden) for each in value]
    if name in hidden and value is not None:
        return f"<{name}>"
    if isinstance(value, str):
        for text, short in known.items():
            value = value.replace(text, short)
    return value


# Comparison


def differences(old: Any, new: Any, path: str, left_out: frozenset[str]) -> Iterator[str]:
    """Yield a line for each difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new} - left_out):
            if key not in new or key not in old:
                here = old if key in old else new
                yield f"{path}.{key}: {'only before' if key in old else 'only now'}: {shortened(here[key])}"
            else:
                yield from differences(old[key], new[key], f"{path}.{key}", left_out)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{path}[{place}]", left_out)
    elif old != new or type(old) is not type(new):
        yield f"{path}: {shortened(old)} -> {shortened(new)}"


def shortened(value: Any) -> str:
    """Return the JSON of a value, at most 300 characters of it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."


def exchanges() -> dict[str, Any]:
    """Return all exchanges by the names of their requests."""
    drawn = Random()
    secrets.randbits = drawn.getrandbits  # type: ignore[assignment]  # seeds of requests that give none
    logging.disable()
    ended = threading.Event()
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = {name: stack.enter_context(each) for name, each in servers(folder, ended).items()}
        stack.callback((folder / "hold").unlink)
        stack.callback(ended.set)
        document = started["fake"].http.get("/openapi.json").json()
        made = (tiny_cases(), assistant_cases(), fake_cases(), wrong_types(document), failing_cases(), limit_cases())
        ids: dict[str, str] = {}
        for case in unique([case for group in made for case in group]):
            drawn.seed(case.name)  # other requests, before it or in addition, change nothing
            found[case.name] = exchange(started[case.server], case, ids)
            if case.server in ("tiny", "assistant", "fake"):
                started[case.server].wait_idle()
    return found


def main() -> int:
    """Send the requests; write or compare the exchanges."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--output", type=Path, help="file for the exchanges")
    arguments.add_argument("--compare", type=Path, help="file of an earlier run")
    arguments.add_argument("--leave-out", action="append", default=[], help="header or field that is not compared")
    options = arguments.parse_args()
    found = json.loads(json.dumps(exchanges()))
    print(f"{len(found)} requests", file=sys.stderr)
    if options.output is not None:
        options.output.write_text(json.dumps(found, ensure_ascii=False, indent=1))
    if options.compare is None:
        return 0
    before = json.loads(options.compare.read_text())
    lines = list(differences(before, found, "", frozenset(options.leave_out)))
    print(*lines, f"{len(lines)} differences", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    run_script(main)
