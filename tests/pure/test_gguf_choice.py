"""Names of GGUF files: tags, parts, and which file of a repository a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum.core.errors import ModelNotFound
from ferrum.sources.gguf_choice import Wanted, choose, models_below, models_in, names_in, tag_of

SPLIT = ["a/m-Q4_K_M-00001-of-00002.gguf", "a/m-Q4_K_M-00002-of-00002.gguf"]


def test_parts_of_a_split_model_belong_together() -> None:
    files = [*reversed(SPLIT), "m-Q8_0.gguf"]
    for wanted in (Wanted("r/m", tag="Q4_K_M"), Wanted("r/m"), *(Wanted("r/m", file=part) for part in SPLIT)):
        assert choose(wanted, files) == SPLIT
    assert names_in("r/m", files) == {"r/m:Q4_K_M": SPLIT, "r/m:Q8_0": ["m-Q8_0.gguf"]}


def test_an_incomplete_model_is_not_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for part in SPLIT:
        (tmp_path / part).write_bytes(b"GGUF")
        assert models_below(tmp_path) == (SPLIT if part == SPLIT[-1] else [])


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ("a/m-7B.Q4_K_M.gguf", "Q4_K_M"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "q4"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "q4_k_m"),
        ("x_q4_k_m.gguf", "q4_k_m"),
        ("UD-Q4_K_XL/Qwen3-235B-A22B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-UD-IQ1_S.GGUF", "UD-IQ1_S"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("GLM-4.5-Air-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("m-BF16.gguf", "BF16"),
        ("m.f16.gguf", "f16"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("q8_0.gguf", "q8_0"),
        ("gemma-3-270m.gguf", None),
        ("Qwen3-0.6B.gguf", None),
        ("ggml-model.gguf", None),
        ("folder/model.gguf", None),
    ],
)
def test_a_tag_is_the_name_of_a_format_at_the_end(model: str, tag: str | None) -> None:
    assert tag_of(model) == tag


@pytest.mark.parametrize(
    ("wanted", "files", "chosen"),
    [
        ("", ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16.gguf"], "m-Q4_K_M.gguf"),
        ("", ["m-Q8_0.gguf", "m-F16.gguf"], "m-Q8_0.gguf"),
        ("", ["m-IQ3_M.gguf", "mmproj-m-F16.gguf", "README.md"], "m-IQ3_M.gguf"),
        ("", ["m-UD-Q4_K_M.gguf", "m-Q6_K.gguf"], "m-UD-Q4_K_M.gguf"),
        ("", ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        ("", ["m-Q5_0.gguf", "m-Q6_K.gguf"], None),
        ("", ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "m-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"], "m-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"], "m-Q4_K_XL.gguf"),
        ("Q4_K_M", ["x_q4_k_m.gguf", "x_q8_0.gguf"], "x_q4_k_m.gguf"),
        ("Q4_K_M", ["m-Q4_K_M-pure.gguf", "m-Q8_0.gguf"], "m-Q4_K_M-pure.gguf"),
        ("K_M", ["m-Q4_K_M.gguf"], None),
        ("270m", ["gemma-270m.gguf", "gemma-1b.gguf"], "gemma-270m.gguf"),
    ],
)
def test_a_name_means_one_file_or_none(wanted: str, files: list[str], chosen: str | None) -> None:
    if chosen is None:
        with pytest.raises(ModelNotFound, match="choose one: r/m"):
            choose(Wanted("r/m", tag=wanted or None), files)
    else:
        assert choose(Wanted("r/m", tag=wanted or None), files) == [chosen]


@pytest.mark.parametrize(
    "file",
    [
        *("mmproj-F16.gguf", "gemma-3-mmproj-f16.gguf", "model.MMPROJ.gguf", "mmproj/F16.gguf"),
        *("imatrix.gguf", "imatrix_unsloth.gguf", "m.imatrix.gguf", "m-imatrix-Q8_0.gguf", "m.gguf.txt"),
        *("mtp-m-Q8_0.gguf", "eagle3-m-Q8_0.gguf"),
    ],
)
def test_files_that_belong_to_a_model_are_none(file: str) -> None:
    assert models_in([file, "m-Q4_0.gguf"]) == {"m-Q4_0.gguf": ["m-Q4_0.gguf"]}


def test_every_name_of_a_repository_means_its_file() -> None:
    files = ["m-Q4_0.gguf", "M-q4_0.GGUF", "x-F16.gguf", "b/x-F16.gguf", "a/b c.gguf", *SPLIT, "m-UD-Q4_K_M.gguf"]
    names = names_in("r/m", files)
    assert len(names) == len(models_in(files)) == 7
    for name, parts in names.items():
        rest = name.removeprefix("r/m")
        wanted = Wanted("r/m", tag=rest[1:]) if rest[0] == ":" else Wanted("r/m", file=rest[1:])
        assert choose(wanted, files) == parts
