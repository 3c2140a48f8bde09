"""A sampling parameter that is added reaches every dialect, under the client's name for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from ferrum.core.params import SamplingParams
from ferrum.server.app import DIALECTS
from ferrum.server.chat.sampling_fields import OTHERS, SHARED
from ferrum.server.common.json_bodies import Body, GeneratingBody

BODIES = {
    "ferrum.server.openai.fields": ("ChatRequest", "CompletionRequest"),
    "ferrum.server.anthropic.fields": ("MessagesRequest",),
    "ferrum.server.responses.fields": ("ResponsesRequest",),
    "ferrum.server.ollama.fields": ("Options",),
    "ferrum.server.tasks.infill_route": ("InfillRequest",),
}
"""Bodies with sampling parameters; those of Ollama's routes hold `Options`."""

IN_OPTIONS = {"OllamaChatRequest", "GenerateRequest"}

PLANTED = """
import sys
from dataclasses import dataclass, fields
from importlib import import_module
from types import SimpleNamespace

from ferrum.core import params
from ferrum.core.param_values import Number


@dataclass(frozen=True, kw_only=True)
class Planted(params.SamplingParams):
    top_a: float = params._option(0.0, Number(0.0, 1.0), "sampling.top_a", "A planted rule.")


params.SamplingParams = Planted
params._NORMALISE = {each.name: each.metadata["normalise"] for each in fields(Planted)}
params._DEFAULTS = {each.name: each.default for each in fields(Planted)}

from ferrum.server.chat.ask import Ask, Names, params_of

for module, name in (each.split(":") for each in sys.argv[1:]):
    body = getattr(import_module(module), name)
    form = body.model_json_schema()["properties"]["top_a"]
    assert (form["minimum"], form["maximum"]) == (0, 1), name
    absent = {field: None for field, each in body.model_fields.items() if each.is_required()}
    sent = body.model_construct(**absent, top_a=0.5).given()
    assert sent == {"top_a": 0.5}, name
    assert params_of(SimpleNamespace(recommended={}), Ask(names=Names(), given=sent)).top_a == 0.5
print("planted")
"""


def bodies() -> list[type[Body]]:
    return [getattr(import_module(module), name) for module, names in BODIES.items() for name in names]


def leaves(body: type[Body]) -> set[str]:
    """Return the names of the bodies that routes read: those without further ones below them."""
    below = {name for each in body.__subclasses__() if each.__module__.startswith("ferrum.") for name in leaves(each)}
    return below - {body.__name__} or {body.__name__}


def test_a_planted_parameter_reaches_every_dialect() -> None:
    names = [f"{module}:{name}" for module, names in BODIES.items() for name in names]
    done = subprocess.run([sys.executable, "-c", PLANTED, *names], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["planted"], done.stderr


def test_every_generating_body_takes_the_shared_parameters() -> None:
    assert DIALECTS and leaves(GeneratingBody) == {each.__name__ for each in bodies()} - {"Options"} | IN_OPTIONS
    for body in bodies():
        assert set(SHARED) <= {*body.SAMPLING, *body.REFUSED}, body
        assert all(field in body.model_fields for field in body.SAMPLING.values())


def test_parameters_are_shared_or_others_or_have_fields_of_a_dialect() -> None:
    assert set(SamplingParams.__dataclass_fields__) - {*SHARED, *OTHERS} == {
        "logprobs",
        "logprob_token_ids",
        "structured_outputs",
    }


@pytest.mark.parametrize(("field", "name"), [("repeat_penalty", "repetition_penalty"), ("num_predict", "max_tokens")])
def test_a_dialect_spells_some_parameters_its_own_way(field: str, name: str) -> None:
    [options] = [body for body in bodies() if body.__name__ == "Options"]
    assert options.model_construct(**{field: 2}).given() == {name: 2}
