"""`HeldImages`: the rows of an engine's images, computed between its steps and held up to a limit of bytes.

Images are cut into patches on another thread, which also reads and writes rows on disk. A request waits outside the
scheduler until the rows of all its images are there; then they are its given rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
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

_LOG: Final = logging.getLogger(__name__)

DEFAULT_IMAGE_BYTES: Final = 256 << 20

SLICE_SECONDS: Final = 0.02
"""Target time of a tower's work between two steps. An operation is never interrupted."""

_AHEAD: Final = 2
"""Images that are prepared or computed at a time."""

Key = tuple[str, str, bytes]
"""Tenant and salt of a request, and the digest of an image: as with pages, tenants do not share rows."""


class Tower(Protocol):
    """The tower of a model, as an engine sees it. The thread that prepares images opens it."""

    def prepare(self, image: DecodedImage) -> PreparedImage:
        """Return an image as the tower reads it."""

    def rows_of(self, image: PreparedImage) -> Generator[None, None, Any]:
        """Compute the rows of an image, and yield between operations. The engine's thread runs it."""


class StoredRows(Protocol):
    """Rows that outlast the engine. The thread that prepares images uses them."""

    def get(self, key: Key, count: int) -> Any | None:
        """Return the rows of an image, [count, H], or None."""

    def put(self, key: Key, rows: Any) -> None:
        """Keep the rows of an image."""


class HeldImages:
    """The rows of images by tenant, salt and digest. The engine's thread owns it.

    Args:
        open_tower: opens the tower, at the first image; None: the model has none. Raises FerrumError.
        inbox: gets an `ImagePrepared` for each image, from another thread.
        limit: bytes of all rows that no waiting request needs. The least recently used ones go first.
        stored: rows on disk, which are read in place of computing them; None: there are none.
        clock: monotonic seconds.

    Attributes:
        waiting: requests whose rows are not all there.
    """

    def __init__(
        self,
        open_tower: Callable[[], Tower] | None,
        inbox: Inbox,
        limit: int = DEFAULT_IMAGE_BYTES,
        stored: StoredRows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_tower, self._inbox, self._limit, self._clock = open_tower, inbox, limit, clock
        self._stored = stored
        self._worker: ThreadPoolExecutor | None = None
        self._tower: Tower | None = None
        self._rows: dict[Key, Any] = {}  # the least recently used first
        self._new: dict[Key, tuple[DecodedImage, int]] = {}  # with their numbers of rows, in the order of their arrival
        self._preparing: dict[Key, Future[None]] = {}
        self._work: deque[tuple[Key, Generator[None, None, Any]]] = deque()
        self.waiting = WaitingRequests()
        self._queries = self._hits = self._restored = self._computed = self._evictions = 0

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
        for image, place, key in zip(request.images, request.image_places, keys_of(request), strict=True):
            self._queries += 1
            if key in self._rows:
                self._hits += 1
                self._rows[key] = self._rows.pop(key)  # now the most recently used
            elif key not in self._preparing and all(key != other for other, _ in self._work):
                self._new[key] = image, len(place.positions)
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
                grids = tuple(place.grid for place in request.image_places if place.grid is not None)
                found.append((replace(request, inputs=inputs, grids=grids, images=(), image_places=()), left))
        if found:
            self._evict()
        return found

    # Computing

    def take(self, prepared: ImagePrepared) -> list[TokenEvent]:
        """Queue an image that was prepared, or hold its rows; return the last events of requests that it fails."""
        key, events = prepared.key, list[TokenEvent]()
        self._preparing.pop(key, None)
        if isinstance(prepared.found, FerrumError):
            events = self._fail(key, prepared.found)
        elif prepared.found is None:
            self._restored += 1
            self._rows[key] = prepared.rows
        else:
            self._tower, image = prepared.found
            self._work.append((key, self._tower.rows_of(image)))
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
                    if self._stored is not None and self._worker is not None:
                        self._worker.submit(_store, self._stored, key, end.value)
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
        counts = self._queries, self._hits, self._restored, self._computed, self._evictions
        return ImageCounts(len(self._rows), nbytes, *counts)

    def close(self) -> None:
        """Prepare no more images, and wait until computed rows are on disk."""
        for future in self._preparing.values():
            future.cancel()
        if self._worker is not None:
            self._worker.shutdown(wait=self._stored is not None)

    # On the thread that prepares images

    def _prepare(self) -> None:
        """Prepare the next images: a few at a time, because patches are many times larger than pixels."""
        while self._new and len(self._preparing) + len(self._work) < _AHEAD:
            key = next(iter(self._new))
            image, count = self._new.pop(key)
            if not self._is_wanted(key):
                continue
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "ferrum-images")
            find = partial(_find, self._stored, key, count, self._opened, image)
            self._preparing[key] = self._worker.submit(_prepare, find, self._inbox, key)

    def _opened(self) -> Tower:
        """Return the tower, opened by the first call. Only one thread calls it."""
        if self._tower is None:
            assert self._open_tower is not None
            self._tower = self._open_tower()
            yield_to_steps()  # not before: the engine waits for the threads of the tower, which inherit a priority
        return self._tower


def _find(
    stored: StoredRows | None, key: Key, count: int, opened: Callable[[], Tower], image: DecodedImage
) -> ImagePrepared:
    """Return the stored rows of an image, else the image prepared for its tower."""
    rows = None if stored is None else stored.get(key, count)
    if rows is not None:
        return ImagePrepared(key, None, rows)
    tower = opened()
    return ImagePrepared(key, (tower, tower.prepare(image)))


def _prepare(find: Callable[[], ImagePrepared], inbox: Inbox, key: Key) -> None:
    try:
        prepared = find()
    except FerrumError as error:
        prepared = ImagePrepared(key, error)
    except BaseException as error:  # noqa: BLE001 - a bad image must not harm the engine
        prepared = ImagePrepared(key, StepError(f"an image cannot be prepared: {type(error).__name__}: {error}"))
    inbox.put(prepared)


def _store(stored: StoredRows, key: Key, rows: Any) -> None:
    try:
        stored.put(key, rows)
    except Exception:  # noqa: BLE001 - the request has its rows
        _LOG.exception("cannot write the rows of an image to disk")


def keys_of(request: Request) -> list[Key]:
    """Return the keys of a request's images."""
    return [(request.tenant, request.salt, place.digest) for place in request.image_places]


def _inputs(place: ImagePlace, rows: Any) -> Inputs:
    block = range(place.positions[0], place.positions[-1] + 1) if place.bidirectional else None
    return Inputs(place.positions, rows, place.digest, block)
