"""Which images an engine computes, in which slices, and which rows it keeps."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast

import pytest

from engine_fakes import greedy
from ferrum.client.records.record import request_dict, request_of
from ferrum.core.errors import RequestError, StepError
from ferrum.core.types import FinishReason, ImagePlace, Request, TokenEvent
from ferrum.engine.held_images import HeldImages, Key
from ferrum.engine.messages import ImagePrepared, Message


@dataclass
class Rows:
    name: str
    nbytes: int = 10


class Tower:
    """A tower whose images take three operations of a second each."""

    def __init__(self) -> None:
        self.now, self.begun = 0.0, list[str]()

    def prepare(self, image: str) -> str:
        if image == "damaged":
            raise RequestError("damaged", param="images")
        return image

    def rows_of(self, image: str) -> Generator[None, None, Rows]:
        self.begun.append(image)
        for _ in range(3):
            self.now += 1.0
            yield
        if image == "infinite":
            raise StepError("not finite")
        return Rows(image)


class Disk:
    """Stored rows by their keys."""

    def __init__(self) -> None:
        self.rows = dict[Key, Rows]()

    def get(self, key: Key, count: int) -> Rows | None:
        assert count == 1
        return self.rows.get(key)

    def put(self, key: Key, rows: Rows) -> None:
        if rows.name == "large":
            raise OSError("no space left")
        self.rows[key] = rows


class Engine:
    """The part of an engine that holds images."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.tower, self.inbox, self.opened = Tower(), SimpleQueue[Message](), 0
        self.held = HeldImages(self.open, self.inbox, 25, disk, lambda: self.tower.now)

    def open(self) -> Any:
        self.opened += 1
        return self.tower

    def run(self) -> tuple[list[Request], list[TokenEvent]]:
        """Compute until no request waits; return those that have their rows, and events."""
        ready, events = [request for request, _ in self.held.ready()], list[TokenEvent]()
        while self.held.waiting:
            if not self.held.computing:
                events += self.held.take(cast(ImagePrepared, self.inbox.get(timeout=60)))
            events += self.held.advance(100.0)
            ready += [request for request, _ in self.held.ready()]
        return ready, events


def showing(name: str, *images: str, salt: str = "", tenant: str = "") -> Request:
    places = tuple(ImagePlace((number,), image.encode()) for number, image in enumerate(images))
    whose = {"salt": salt, "tenant": tenant}
    return Request(name, (0,) * len(images), greedy(), seed=0, images=images, image_places=places, **whose)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.held.close()


def test_a_request_gets_the_rows_of_its_images_at_their_positions(engine: Engine) -> None:
    assert engine.held.add(showing("it", "a", "b", "a")) == []
    ((request,), events) = engine.run()
    assert events == [] and request.images == () and request.image_places == ()
    assert [(each.positions, each.rows.name, each.digest) for each in request.inputs] == [
        ((0,), "a", b"a"),
        ((1,), "b", b"b"),
        ((2,), "a", b"a"),
    ]
    assert engine.tower.begun == ["a", "b"]


@pytest.mark.parametrize("whose", ["salt", "tenant"])
def test_rows_are_shared_within_a_tenant_and_salt_only(engine: Engine, whose: str) -> None:
    for number, name in enumerate(("", "", "other", "")):
        engine.held.add(showing(f"r{number}", "a", **{whose: name}))
        engine.run()
    counts = engine.held.counts()
    assert engine.tower.begun == ["a", "a"]
    assert (counts.queries, counts.hits, counts.computed, counts.held, counts.nbytes) == (4, 2, 2, 2, 20)


def test_rows_on_disk_are_read_and_no_tower_is_opened() -> None:
    disk, found = Disk(), list[list[tuple[str, bool]]]()
    for images in (("a", "large"), ("a",), ("large", "a")):
        engine = Engine(disk)
        engine.held.add(showing("it", *images))
        ((request,), events) = engine.run()
        engine.held.close()
        assert events == [] and tuple(each.rows.name for each in request.inputs) == images
        counts = engine.held.counts()
        found.append([*((name, True) for name in engine.tower.begun), ("restored", counts.restored > 0)])
        assert engine.opened == len(engine.tower.begun[:1])
    assert found == [[("a", True), ("large", True), ("restored", False)], [("restored", True)],
                     [("large", True), ("restored", True)]]  # fmt: skip
    assert set(disk.rows) == {("", "", b"a")}, "a disk that fails ends no request"


def test_the_least_recently_used_rows_beyond_the_limit_are_freed(engine: Engine) -> None:
    for number, image in enumerate("abac"):
        engine.held.add(showing(f"r{number}", image))
        engine.run()
    assert engine.held.counts().evictions == 1
    for number, image in enumerate("ab"):
        engine.held.add(showing(f"again{number}", image))
        engine.run()
    assert engine.tower.begun == ["a", "b", "c", "b"]


def test_a_request_with_more_rows_than_the_limit_runs(engine: Engine) -> None:
    engine.held.add(showing("large", *"abcde"))
    ((request,), _) = engine.run()
    assert [each.rows.name for each in request.inputs] == list("abcde")
    assert engine.held.counts().nbytes <= 25


def test_a_slice_ends_after_the_operation_that_passes_its_time(engine: Engine) -> None:
    engine.held.add(showing("it", "a"))
    engine.held.take(cast(ImagePrepared, engine.inbox.get(timeout=60)))
    engine.held.advance(1.5)
    assert engine.tower.now == 2.0 and engine.held.computing and not engine.held.ready()
    engine.held.advance(1.5)
    assert not engine.held.computing and len(engine.held.ready()) == 1


@pytest.mark.parametrize("image", ["damaged", "infinite"])
def test_an_image_that_fails_ends_its_requests_and_no_other(engine: Engine, image: str) -> None:
    engine.held.add(showing("bad", "a", image))
    engine.held.add(showing("worse", image))
    engine.held.add(showing("good", "a"))
    ready, events = engine.run()
    assert [request.request_id for request in ready] == ["good"]
    assert {event.request_id for event in events} == {"bad", "worse"}
    assert {event.finish_reason for event in events} == {FinishReason.ERROR}


def test_images_that_no_request_wants_any_more_are_not_computed(engine: Engine) -> None:
    engine.held.add(showing("gone", *"abcd"))
    engine.held.add(showing("there", "d"))
    engine.held.waiting.abort("gone")
    engine.run()
    assert engine.tower.begun[-1] == "d" and engine.held.counts().computed == 1


def test_images_are_refused_without_a_tower() -> None:
    held = HeldImages(None, SimpleQueue[Message]())
    (event,) = held.add(showing("it", "a"))
    assert "takes no images" in str(event.error)


def test_rows_that_see_each_other_become_a_block_and_stay_one_in_records(engine: Engine) -> None:
    place = ImagePlace((3, 4, 5), b"a", bidirectional=True)
    request = Request("it", (0,) * 9, greedy(), seed=0, images=("a",), image_places=(place,))
    engine.held.add(request)
    ((found,), _) = engine.run()
    assert [each.block for each in found.inputs] == [range(3, 6)]
    written = json.loads(json.dumps(request_dict(request)))
    assert request_of("it", written).image_places == (place,)
