"""`HeldImages`: the rows of an engine's images, computed between its steps and held up to a limit of bytes.

Images are cut into patches on another thread. A request waits outside the scheduler until the rows of all its images
are there; then they are its given rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ferrum.core.errors import FerrumError, RequestError, StepError, as_step_error
from ferrum.core.step import Inputs
from ferrum.core.threads import yield_to_steps
from ferrum.core.types import FinishReason, ImagePlace, Request, TokenEvent
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import ImageCounts, ImagePrepared
from ferrum.engine.waiting_requests import WaitingRequests, last_events

if TYPE_CHECKING:
    from ferrum.images.decoded_image import DecodedImage
    from ferrum.images.image_processor import PreparedImage

DEFAULT_IMAGE_BYTES: Final = 256 << 20

SLICE_SECONDS: Final = 0.02
"""Target time of a tower's work between two steps. An operation is never interrupted."""

_AHEAD: Final = 2
"""Images that are prepared or computed at a time."""

Key = tuple[str, bytes]
"""The salt of a request, and the digest of an image: tenants do not share rows."""


class Tower(Protocol):
    """The tower of a model, as an engine sees it. The thread that prepares images opens it."""

    def prepare(self, image: DecodedImage) -> PreparedImage:
        """Return an image as the tower reads it."""

    def rows_of(self, image: PreparedImage) -> Generator[None, None, Any]:
        """Compute the rows of an image, and yield between operations. The engine's thread runs it."""


class HeldImages:
    """The rows of images by salt and digest. The engine's thread owns it.

    Args:
        open_tower: opens the tower, at the first image; None: the model has none. Raises FerrumError.
        inbox: gets an `ImagePrepared` for each image, from another thread.
        limit: bytes of all rows that no waiting request needs. The least recently used ones go first.
        clock: monotonic seconds.

    Attributes:
        waiting: requests whose rows are not all there.
    """

    def __init__(
        self,
        open_tower: Callable[[], Tower] | None,
        inbox: Inbox,
        limit: int = DEFAULT_IMAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_tower, self._inbox, self._limit, self._clock = open_tower, inbox, limit, clock
        self._worker: ThreadPoolExecutor | None = None
        self._tower: Tower | None = None
        self._rows: dict[Key, Any] = {}  # the least recently used first
        self._new: dict[Key, DecodedImage] = {}  # in the order of their arrival
        self._preparing: set[Key] = set()
        self._work: deque[tuple[Key, Generator[None, None, Any]]] = deque()
        self.waiting = WaitingRequests()
        self._queries = self._hits = self._computed = self._evictions = 0

    @property
    def computing(self) -> bool:
        """Whether the tower has work."""
        return bool(self._work)

    # Requests

    def add(self, request: Request) -> list[TokenEvent]:
        """Let a request wait for its rows, see `ready`; return its last events if it is refused."""
        if self._open_tower is None or len(request.images) != len(request.image_places):
            error = RequestError("this engine's model takes no images", param="images")
            return last_events(request, FinishReason.ERROR, error)
        self.waiting.hold(request, frozenset())
        for image, key in zip(request.images, keys_of(request), strict=True):
            self._queries += 1
            if key in self._rows:
                self._hits += 1
                self._rows[key] = self._rows.pop(key)  # now the most recently used
            elif key not in self._preparing and all(key != other for other, _ in self._work):
                self._new[key] = image
        self._prepare()
        return []

    def ready(self) -> list[tuple[Request, frozenset[int]]]:
        """Remove waiting requests whose rows are held; return them with these rows, and the choices that have ended."""
        found = []
        for request in self.waiting.requests():
            keys = keys_of(request)
            if all(key in self._rows for key in keys):
                left = self.waiting.take(request)
                assert left is not None
                rows = zip(request.image_places, map(self._rows.__getitem__, keys), strict=True)
                inputs = tuple(_inputs(place, each) for place, each in rows)
                found.append((replace(request, inputs=inputs, images=(), image_places=()), left))
        if found:
            self._evict()
        return found

    # Computing

    def take(self, prepared: ImagePrepared) -> list[TokenEvent]:
        """Queue an image that was prepared; return the last events of requests that it fails."""
        self._preparing.discard(prepared.key)
        if isinstance(prepared.found, FerrumError):
            events = self._fail(prepared.key, prepared.found)
        else:
            self._tower, image = prepared.found
            self._work.append((prepared.key, self._tower.rows_of(image)))
            events = []
        self._prepare()
        return events

    def advance(self, seconds: float) -> list[TokenEvent]:
        """Compute for about some seconds; return the last events of requests that fail."""
        until = self._clock() + seconds
        while self._work:
            key, work = self._work[0]
            try:
                if not self._is_wanted(key):
                    raise StopIteration(None)
                while True:
                    next(work)
                    if self._clock() >= until:
                        return []
            except StopIteration as end:
                if end.value is not None:
                    self._computed += 1
                    self._rows[key] = end.value
                events = []
            except Exception as error:  # noqa: BLE001 - an image must not end the engine
                events = self._fail(key, as_step_error(error))
            self._work.popleft()
            self._prepare()
            if events:
                return events
        return []

    def _is_wanted(self, key: Key) -> bool:
        return any(key in keys_of(request) for request in self.waiting.requests())

    def _fail(self, key: Key, error: FerrumError) -> list[TokenEvent]:
        events = []
        for request in self.waiting.requests():
            if key in keys_of(request) and (left := self.waiting.take(request)) is not None:
                events += last_events(request, FinishReason.ERROR, error, left)
        return events

    def _evict(self) -> None:
        """Free rows beyond the limit that no waiting request needs."""
        taken = sum(rows.nbytes for rows in self._rows.values())
        for key in list(self._rows):
            if taken <= self._limit:
                return
            if not self._is_wanted(key):
                taken -= self._rows.pop(key).nbytes
                self._evictions += 1

    # Reports

    def counts(self) -> ImageCounts:
        """Return what statistics show."""
        nbytes = sum(rows.nbytes for rows in self._rows.values())
        return ImageCounts(len(self._rows), nbytes, self._queries, self._hits, self._computed, self._evictions)

    def close(self) -> None:
        """Prepare no more images."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)

    # On the thread that prepares images

    def _prepare(self) -> None:
        """Prepare the next images: a few at a time, because patches are many times larger than pixels."""
        while self._new and len(self._preparing) + len(self._work) < _AHEAD:
            key = next(iter(self._new))
            image = self._new.pop(key)
            if not self._is_wanted(key):
                continue
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "ferrum-images")
            self._preparing.add(key)
            self._worker.submit(_prepare, self._opened, self._inbox, key, image)

    def _opened(self) -> Tower:
        """Return the tower, opened by the first call. Only one thread calls it."""
        if self._tower is None:
            assert self._open_tower is not None
            self._tower = self._open_tower()
            yield_to_steps()  # not before: the engine waits for the threads of the tower, which inherit a priority
        return self._tower


def _prepare(opened: Callable[[], Tower], inbox: Inbox, key: Key, image: DecodedImage) -> None:
    found: tuple[Tower, PreparedImage] | FerrumError
    try:
        tower = opened()
        found = tower, tower.prepare(image)
    except FerrumError as error:
        found = error
    except BaseException as error:  # noqa: BLE001 - a bad image must not harm the engine
        found = StepError(f"an image cannot be prepared: {type(error).__name__}: {error}")
    inbox.put(ImagePrepared(key, found))


def keys_of(request: Request) -> list[Key]:
    """Return the keys of a request's images."""
    return [(request.salt, place.digest) for place in request.image_places]


def _inputs(place: ImagePlace, rows: Any) -> Inputs:
    return Inputs(place.positions, rows, place.digest)
