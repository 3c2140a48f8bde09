"""`ImageProcessor`: what a model makes of an image: a run of tokens in the prompt, and patches for its tower.

Families are in files of their own. Files become pixels elsewhere; towers are in `models/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import RequestError
from ferrum.core.step import Grid
from ferrum.core.types import ImagePlace
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.pixels import F32


class Frame(NamedTuple):
    """A part of an image that the tower sees at once.

    Attributes:
        patches: f32 [n, K]. Patches that become one row are adjacent.
        positions: int32 [n], the tower's number of each patch's place.
        places: int32 [n, 3], zero and its row and column, for towers that fit positions or rotate by them; or None.
    """

    patches: F32
    positions: NDArray[np.int32]
    places: NDArray[np.int32] | None = None


class ImageRun(NamedTuple):
    """The tokens that stand for an image in a prompt.

    Attributes:
        tokens: ids.
        rows: which of them get rows, ascending.
        grid: number of rows and columns of the tokens, if the model rotates by them. All of them get rows then.
        bidirectional: these rows see each other; then they are adjacent.
    """

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    grid: tuple[int, int] | None = None
    bidirectional: bool = False


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image, ready for a tower.

    Attributes:
        frames: in the order of their rows.
        run: its tokens.
        digest: of the image and of all that changes its rows.
    """

    frames: tuple[Frame, ...]
    run: ImageRun
    digest: bytes

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the tokens that stand for the image."""
        return self.run.tokens

    @property
    def rows(self) -> tuple[int, ...]:
        """Which of the tokens get rows."""
        return self.run.rows


class ImageFamily(Protocol):
    """The images of a family of models.

    Attributes:
        version: of the arithmetic that makes patches.
        placeholder: id of the token that stands for an image in a prompt.
        settings: all that changes patches, as text.
    """

    version: str
    placeholder: int
    settings: str

    def run_of(self, width: int, height: int) -> ImageRun:
        """Return the tokens of an image of this size."""

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        """Return what the tower sees of an image."""


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The image processor of a model.

    Attributes:
        spaced: the text of the placeholder, and what prompts have before and after it, but templates do not write.
    """

    family: ImageFamily
    spaced: tuple[str, str] | None = None

    @property
    def version(self) -> str:
        """Version of the arithmetic that makes patches."""
        return self.family.version

    def size_of(self, width: int, height: int) -> int:
        """Return how many tokens an image of this size takes in a prompt."""
        return len(self.family.run_of(width, height).tokens)

    def digest(self, image: DecodedImage) -> bytes:
        """Return a digest of an image and of all that changes its patches."""
        settings = f"{self.version}\0{self.family.settings}"
        return hashlib.sha256(image.digest + settings.encode()).digest()

    def prepare(self, image: DecodedImage) -> PreparedImage:
        """Return an image as its tower reads it."""
        height, width = image.pixels.shape[:2]
        return PreparedImage(self.family.frames(image), self.family.run_of(width, height), self.digest(image))

    def spaced_text(self, text: str) -> str:
        """Return a prompt with what stands around its placeholders, which is encoded with the text next to it."""
        if self.spaced is None:
            return text
        placeholder, around = self.spaced
        return text.replace(placeholder, f"{around}{placeholder}{around}")

    def expand(
        self, token_ids: Sequence[int], images: Sequence[DecodedImage]
    ) -> tuple[tuple[int, ...], tuple[ImagePlace, ...]]:
        """Replace each placeholder of a prompt by the tokens of its image.

        Raises:
            RequestError: there are more or fewer placeholders than images.
        """
        count = sum(token == self.family.placeholder for token in token_ids)
        if count != len(images):
            reason = f"the prompt has {count} placeholders for images, and {len(images)} images were given"
            raise RequestError(reason, param="images")
        tokens, places, waiting = list[int](), list[ImagePlace](), iter(images)
        for token in token_ids:
            if token != self.family.placeholder:
                tokens.append(token)
                continue
            image = next(waiting)
            height, width = image.pixels.shape[:2]
            run, first = self.family.run_of(width, height), len(tokens)
            grid = None if run.grid is None else Grid(first, *run.grid)
            positions = tuple(first + row for row in run.rows)
            places.append(ImagePlace(positions, self.digest(image), grid, run.bidirectional))
            tokens += run.tokens
        return tuple(tokens), tuple(places)
