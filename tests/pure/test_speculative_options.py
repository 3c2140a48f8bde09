"""The options of speculation: two equivalent forms, and errors that name the option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrum.client.client_base import engine_config
from ferrum.core.errors import ConfigError


def chosen(**options: Any) -> tuple[str | None, int]:
    config = engine_config("m", options)
    return config.speculative, config.num_speculative_tokens


def test_speculation_is_off_by_default() -> None:
    assert chosen() == (None, 8)


def test_a_name_and_a_mapping_are_equivalent() -> None:
    assert chosen(speculative="ngram") == chosen(speculative={"method": "ngram"}) == chosen(speculative={})
    several = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
    assert chosen(speculative=several) == chosen(speculative="small", num_speculative_tokens=3) == ("small", 3)
    assert chosen(speculative={"model": "small"}) == ("small", 8)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"speculative": {"method": "magic"}}, "speculative"),
        ({"speculative": {"method": "draft_model"}}, "speculative"),
        ({"speculative": {"method": "ngram", "model": "small"}}, "speculative"),
        ({"speculative": {"method": np.array(["ngram", "ngram"])}}, "speculative"),
        ({"speculative": {"prompt_lookup_max": 3}}, "speculative"),
        ({"speculative": {"prompt_lookup_max": 3, 3: 3}}, "speculative"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 17}, "num_speculative_tokens"),
        ({"speculative": {"num_speculative_tokens": "many"}}, "num_speculative_tokens"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config("m", options)
    assert caught.value.param == param
