"""Caches of models made by hand, as the hub's library, llama.cpp, LM Studio and ollama keep them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGUFValueType, GGUFWriter

from ferrum.sources.hub import BUILT_IN, built_in
from gguf_twin import TOKENIZER, write_gguf
from tiny import Case, directory_of

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY = Case("llama-caches", "LlamaConfig", {**SIZES, "head_dim": 32})
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.ollama.image."


@cache
def model_bytes(kind: str = "Q8_0") -> bytes:
    """Return a tiny model as a GGUF file with a tokenizer and a chat template."""
    with TemporaryDirectory() as folder:
        write_gguf(directory_of(TINY), Path(folder) / "model.gguf", kind, **TOKENIZER)
        return (Path(folder) / "model.gguf").read_bytes()


@cache
def other_bytes(kind: str, architecture: str = "llama") -> bytes:
    """Return a GGUF file that is no model: `general.type` says what it is."""
    with TemporaryDirectory() as folder:
        writer = GGUFWriter(Path(folder) / "other.gguf", architecture)
        writer.add_key_value("general.type", kind, GGUFValueType.STRING)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return (Path(folder) / "other.gguf").read_bytes()


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files with their folders."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def cache_repo(
    root: Path, repo: str, files: Mapping[str, bytes], commit: str = COMMIT, ref: str | None = "main"
) -> Path:
    """Write a snapshot into a cache of the hub, as links to blobs; without a reference, as fetched by its commit."""
    repository = root / f"models--{repo.replace('/', '--')}"
    for name, data in files.items():
        link, blob = repository / "snapshots" / commit / name, hashlib.sha256(data).hexdigest()
        write(repository / "blobs", {blob: data})
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(repository / "blobs" / blob)
    if ref is not None:
        write(repository / "refs", {ref: commit.encode()})
    return repository / "snapshots" / commit


def cache_ollama(root: Path, name: str, layers: Mapping[str, bytes], host: str = "registry.ollama.ai") -> None:
    """Write a model of ollama: its manifest under NAMESPACE/NAME/TAG, and a blob per layer."""
    written = []
    for kind, data in layers.items():
        digest = hashlib.sha256(data).hexdigest()
        write(root / "blobs", {f"sha256-{digest}": data})
        written.append({"mediaType": LAYER + kind, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = {"schemaVersion": 2, "mediaType": DOCKER, "config": {}, "layers": written}
    write(root / "manifests", {f"{host}/{name}": json.dumps(manifest).encode()})


UNRELATED = {
    "mmproj-model-F16.gguf": other_bytes("mmproj", "clip"),
    "model-mmproj-f16.gguf": other_bytes("mmproj", "clip"),
    "model.imatrix.gguf": other_bytes("imatrix"),
    "projector-F16.gguf": other_bytes("mmproj", "clip"),
    "importance-Q8_0.gguf": other_bytes("imatrix"),
    "lora-F16.gguf": other_bytes("adapter"),
    "mtp-model-Q8_0.gguf": model_bytes(),
    "pointer-Q5_0.gguf": b"version https://git-lfs.github.com/spec/v1",
}
"""Files that belong to models and are none."""

HUB = {
    "maker/small-GGUF:q4_k_m": "small_q4_k_m.gguf",
    "maker/small-GGUF:UD-Q4_K_XL": "small-UD-Q4_K_XL.gguf",
    "maker/small-GGUF:Q6_K": "Q6_K/small.GGUF",
    "maker/small-GGUF/a-Q8_0.gguf": "a-Q8_0.gguf",
    "maker/small-GGUF/b/a (copy) @1-Q8_0.gguf": "b/a (copy) @1-Q8_0.gguf",
    "maker/small-GGUF/small.gguf": "small.gguf",
}
"""Names in a repository, and the files that they mean."""

NAMES = {
    BUILT_IN,
    *HUB,
    f"maker/small-GGUF:Q8_0@{OTHER_COMMIT}",
    "maker/beside-GGUF:Q8_0",
    "maker/beside-GGUF:Q4_K_M",
    f"maker/directory@{COMMIT}",
    "maker/branch:Q8_0@v1.0",
    "legacy",
    "org/flat_GGUF:Q8_0",
    "someone_else_model-Q4_0.gguf",
    "pub/repo:Q4_K_M",
    "pub/repo:Q8_0",
    "llama3.2:1b",
    "me/own:latest",
    "hf.co/org/repo:Q4_K_M",
    "top-Q8_0.gguf",
    "inner/deep:Q8_0",
    "packed",
    "my models/tiny one",
    "my models/x-Q8_0.gguf",
}


def fill_machine(root: Path) -> Path:
    """Write a home, a cache of the hub, and `models/` into a folder; some of their files are damaged."""
    model = model_bytes()
    directory = {path.name: path.read_bytes() for path in built_in().iterdir()}
    hub, home = root / "cache", root / "home"
    cache_repo(hub, "maker/small-GGUF", {**dict.fromkeys(HUB.values(), model), **UNRELATED})
    cache_repo(hub, "maker/small-GGUF", {"old-Q8_0.gguf": model}, OTHER_COMMIT, None)
    config = {"config.json": b'{"model_type": "llama"}'}
    cache_repo(hub, "maker/beside-GGUF", {**config, "x.Q8_0.gguf": model, "x.Q4_K_M.gguf": model})
    cache_repo(hub, "maker/directory", directory, COMMIT, None)
    cache_repo(hub, "maker/branch", {"x-Q8_0.gguf": model}, ref="v1.0")
    cache_repo(hub, "legacy", directory)
    cache_repo(hub, "maker/encoder", {"config.json": b'{"architectures": ["BertModel"]}', "model.safetensors": b"x"})
    (cache_repo(hub, "maker/half", {"x-Q8_0-00001-of-00002.gguf": model}) / "dangling-Q4_0.gguf").symlink_to("absent")
    flat = {"org_flat_GGUF_flat-Q8_0.gguf": model, "someone_else_model-Q4_0.gguf": model, "manifest=a=b.json": b""}
    write(home / ".cache/llama.cpp", {**flat, "manifest=org=flat_GGUF=Q8_0.json": b"{", **UNRELATED})
    studio = {"pub/repo/f-Q4_K_M.gguf": model, "pub/repo/f-Q8_0.gguf": model, "pub/repo/mmproj-F16.gguf": b"GGUF"}
    write(home / ".lmstudio/models", studio)
    (home / ".lmstudio/models/loop").symlink_to(home / ".lmstudio/models")
    ollama = home / ".ollama/models"
    layers = {"model": model, "template": b"{{ .Prompt }}", "params": b"{}", "projector": b"x"}
    cache_ollama(ollama, "library/llama3.2/1b", layers)
    cache_ollama(ollama, "me/own/latest", {"model": model})
    cache_ollama(ollama, "org/repo/Q4_K_M", {"model": model}, "hf.co")
    cache_ollama(ollama, "library/adapted/latest", {"model": model, "adapter": b"x"})
    cache_ollama(ollama, "library/cloud/latest", {"license": b"x"})
    cache_ollama(ollama, "library/projector/latest", {"model": other_bytes("mmproj", "clip")})
    broken = (b"{", b"[]", b'{"layers": 1}', b'{"layers": [{"mediaType": "%smodel"}]}', b"\xff" * 9)
    gone = json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64}]})
    place = "manifests/registry.ollama.ai/library/broken"
    write(ollama, {f"{place}/{number}": text for number, text in enumerate((*broken, gone.encode()))})
    (ollama / "manifests/loop").symlink_to(ollama / "manifests")
    write(root / "models", {"top-Q8_0.gguf": model, "inner/deep/x-Q8_0.gguf": model, **UNRELATED})
    write(root / "models/packed", directory)
    write(root / "models/my models/tiny one", directory)
    write(root / "models/my models", {"x-Q8_0.gguf": model})
    write(root / "no models", {"mmproj-F16.gguf": other_bytes("mmproj", "clip")})
    (root / "models/self").symlink_to(root / "models/self")
    return root
