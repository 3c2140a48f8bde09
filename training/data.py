"""Training data of ferrum-tiny: training and held-out files of the standard library, and the tokenizer.

This file is the whole recipe: the list `HELD_OUT`, the exclusions, the near-duplicate rule and the weights below. Only
the Python version of the library comes from outside.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

Tokens = npt.NDArray[np.int64]

END_OF_TEXT = "<|endoftext|>"
END_ID = 0  # token id of END_OF_TEXT: the trainer numbers special tokens first
HELD_OUT = frozenset(
    {
        "argparse",
        "calendar",
        "configparser",
        "csv",
        "fractions",
        "heapq",
        "ipaddress",
        "json",
        "queue",
        "shlex",
        "statistics",
        "tarfile",
        "textwrap",
    }
)
EXCLUDED_FOLDERS = frozenset({"site-packages", "__pycache__", "__phello__", "pydoc_data"})
EXCLUDED_PREFIXES = ("_sysconfigdata", "config-")  # generated, with paths of one machine
NEAR_DUPLICATE = 0.3  # minimum share of long lines in held-out files for a file to count as a copy
LONG_LINE = 24  # characters; shorter lines occur in all code
LONGEST_LINE = 1000  # characters; a file with a longer line is data
MOST_DIGITS = 0.2  # share of digits among a table's characters
LIBRARY_COPIES = 2  # per epoch; tests come once, because the model should imitate the library

# Words include the space, point or underscore before them; runs of spaces or newlines are single tokens.
PATTERN = r"__\p{L}+__|[ ._]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\n+|[ ]+|\s+"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the library: its path relative to the library, and its text."""

    path: str
    text: str

    @property
    def is_test(self) -> bool:
        return bool({"test", "tests", "idle_test"} & set(Path(self.path).parts))

    @property
    def unit(self) -> str:
        """The top-level module of this file; for a test, the module in its name."""
        parts = Path(self.path).with_suffix("").parts
        return parts[1].removeprefix("test_") if parts[0] == "test" and len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The split: held-out modules in path order, training library, tests, and dropped copies."""

    held_out: tuple[Source, ...]
    library: tuple[Source, ...]
    tests: tuple[Source, ...]
    dropped: tuple[str, ...]


def read_corpus(root: Path | None = None) -> Corpus:
    """Read and split the standard library at `root` (default: that of the running Python)."""
    sources = list(read_sources(root or Path(sysconfig.get_paths()["stdlib"])))
    held_out = tuple(s for s in sources if s.unit in HELD_OUT and not s.is_test)
    known = {line for s in held_out for line in long_lines(s.text)}
    candidates = [s for s in sources if s.unit not in HELD_OUT]
    dropped = tuple(s.path for s in sources if s.unit in HELD_OUT and s.is_test)
    copies = {s.path for s in candidates if overlap(s.text, known) >= NEAR_DUPLICATE}
    kept = [s for s in candidates if s.path not in copies]
    library, tests = (tuple(s for s in kept if s.is_test == is_test) for is_test in (False, True))
    return Corpus(held_out, library, tests, tuple(sorted((*dropped, *copies))))


def read_sources(root: Path) -> Iterator[Source]:
    """Yield every valid UTF-8 Python file below `root` in path order, without generated files and tables."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS & set(relative.parts) or relative.parts[0].startswith(EXCLUDED_PREFIXES):
            continue
        try:
            text = path.read_bytes().decode("utf-8")
            ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        if text.strip() and not is_table(text):
            yield Source(relative.as_posix(), text)


def is_table(text: str) -> bool:
    """Return whether the file is a table of data, such as a character map."""
    digits = sum(c.isdigit() for c in text) / len(text)
    return digits > MOST_DIGITS or "decoding_table = (" in text or max(map(len, text.splitlines())) > LONGEST_LINE


def long_lines(text: str) -> list[str]:
    """Return the stripped lines of at least `LONG_LINE` characters."""
    return [line for line in map(str.strip, text.splitlines()) if len(line) >= LONG_LINE]


def overlap(text: str, known: set[str]) -> float:
    """Return the share of the long lines of `text` that are in `known`."""
    lines = long_lines(text)
    return sum(line in known for line in lines) / max(1, len(lines))


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on the training files. Every string round-trips exactly."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (s.text for s in (*corpus.library * LIBRARY_COPIES, *corpus.tests))
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(END_OF_TEXT) == END_ID
    return tokenizer


def encode(tokenizer: Tokenizer, sources: tuple[Source, ...]) -> list[Tokens]:
    """Return one int64 array per file, each beginning with `END_OF_TEXT`."""
    encodings = tokenizer.encode_batch([s.text for s in sources], add_special_tokens=False)
    return [np.array([END_ID, *encoding.ids], dtype=np.int64) for encoding in encodings]


class Stream:
    """Batches as a pure function of the step number, so that a resumed run gets the same batches.

    An epoch has every library file `LIBRARY_COPIES` times and every test file once, concatenated in random order and
    split into blocks, in random order.
    """

    def __init__(self, library: list[Tokens], tests: list[Tokens], batch_tokens: int, block: int, seed: int) -> None:
        self.files = library * LIBRARY_COPIES + tests
        self.rows, self.block, self.seed = batch_tokens // block, block, seed
        self.blocks = (sum(map(len, self.files)) - 1) // block
        self.epoch_steps = self.blocks // self.rows
        self._epoch = -1
        self._tokens: Tokens = np.zeros(0, np.int64)
        self._order: Tokens = self._tokens

    def batch(self, step: int, length: int) -> tuple[Tokens, Tokens]:
        """Return inputs and targets [batch_tokens / length, length] of `step`; `length` divides the block."""
        epoch, index = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            rng = np.random.default_rng((self.seed, epoch))
            self._tokens = np.concatenate([self.files[i] for i in rng.permutation(len(self.files))])
            self._order = rng.permutation(self.blocks)
            self._epoch = epoch
        starts = self._order[index * self.rows : (index + 1) * self.rows] * self.block
        windows = np.stack([self._tokens[s : s + self.block + 1] for s in starts])
        return windows[:, :-1].reshape(-1, length), windows[:, 1:].reshape(-1, length)
