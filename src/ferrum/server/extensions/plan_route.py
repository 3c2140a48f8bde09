"""The route of the memory plan: the engine's memory by purpose, and fitting sequences."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from ferrum.core.memory_plan import PoolPart, StatePart
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import reply
from ferrum.server.common.openai_errors import ERRORS
from ferrum.server.common.service import Service


class Fitting(Reply):
    """The number of sequences of a length that fit in the pool."""

    length: int
    sequences: int


class Plan(Reply):
    """The reply of GET /v1/plan, in bytes; `activation_row` is for one token, `allowance` comes on top of `total`."""

    object: Literal["plan"]
    model: str
    weights: int
    kv_pool: int
    activations: int
    activation_row: int
    tables: int
    libraries: int
    allowance: int
    draft_model: int
    total: int
    kv_capacity: int
    max_model_len: int
    pool: list[PoolPart]
    states: StatePart | None = None
    fitting: list[Fitting]


def add_plan_route(router: APIRouter, service: Service) -> None:
    """Add the route."""

    @router.get("/v1/plan", responses={200: {"model": Plan}, 401: ERRORS[401], 404: ERRORS[404], 503: ERRORS[503]})
    async def plan() -> Response:
        """Return the engine's memory and what fits in it."""
        model = service.model()
        info = model.engine.info
        memory = info.memory
        if memory is None:
            raise ApiError(404, "this engine has no memory plan", code="plan_not_found")
        parts = memory.to_dict()
        return reply(
            Plan(
                **parts,
                object="plan",
                model=model.name,
                kv_pool=memory.kv_pool,
                draft_model=info.draft_memory,
                total=memory.total + info.draft_memory,
                kv_capacity=info.kv_capacity,
                max_model_len=model.context,
                fitting=[Fitting(length=length, sequences=count) for length, count in memory.fitting(model.context)],
            )
        )
