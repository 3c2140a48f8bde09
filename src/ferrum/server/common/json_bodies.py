"""`Body` and `Reply`: what all JSON objects of clients and of the server have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from ferrum.engine.model_client import ModelClient
from ferrum.server.common import openapi_rules
from ferrum.server.common.error_replies import ApiError, field_path, unsupported

MODEL: Final[Any] = Field(default=None, description="A name from /v1/models (default: the served model).")


class Reply(BaseModel):
    """A JSON object; fields that were not given are not sent, None becomes null.

    Attributes:
        EVENT: name of the event that carries it in a stream.
    """

    model_config = ConfigDict(protected_namespaces=(), extra="forbid")
    EVENT: ClassVar[str] = ""

    def json_bytes(self) -> bytes:
        """Return the reply as JSON."""
        return self.__pydantic_serializer__.to_json(self, exclude_unset=True)


class Body(BaseModel):
    """A JSON object. Unknown fields are kept, so that they can be named to the client.

    Attributes:
        NO_OPS: known fields without effect on the reply, with the reason.
        REFUSED: known fields that are not served, with the reason; null and harmless values count as absent.
        PASSES_ON: unknown fields have an effect, because they are passed on.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())
    NO_OPS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    REFUSED: ClassVar[Mapping[str, str]] = MappingProxyType({})
    PASSES_ON: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> openapi_rules.Schema:
        """Return the schema of the fields, with refused ones; without an entry they would pass as unknown."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).setdefault("properties", {})
        properties.update({name: openapi_rules.refused(name, why) for name, why in cls.REFUSED.items()})
        return schema

    def unread_fields(self, client: ModelClient) -> list[str]:  # noqa: ARG002 - for bodies with a conversation
        """Return given fields that the model's chat template does not read."""
        return []

    def ignored_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        """Return the paths of fields without effect: unknown fields and `NO_OPS`, here and in bodies within.

        Raises:
            ApiError: a field of `REFUSED`, or with `strict` an unknown one.
        """
        ignored: list[str] = []
        extra = self.model_extra or {}
        for name in sorted(self.model_fields_set):
            value = extra[name] if name in extra else getattr(self, name)
            inside = (*path, name)
            if name in self.REFUSED and not openapi_rules.is_harmless(name, value):
                raise unsupported(field_path(inside), self.REFUSED[name])
            if name in self.REFUSED or (value is None and name not in extra):
                continue
            unknown = name in extra and not self.PASSES_ON
            if unknown and strict:
                raise ApiError(400, f"unknown field {name!r}", code="unknown_parameter", param=field_path(inside))
            if unknown or name in self.NO_OPS:
                ignored.append(field_path(inside))
            elif isinstance(value, Body):
                ignored += value.ignored_fields(strict=strict, path=inside)
            elif isinstance(value, list) and value and isinstance(value[0], Body):
                for index, each in enumerate(value):
                    ignored += each.ignored_fields(strict=strict, path=(*inside, index))
        return ignored


class GeneratingBody(Body):
    """The fields that every generating route reads, in any dialect."""

    model: str | None = MODEL
    stream: bool | None = Field(default=None, description="Send the reply as server-sent events.")
    request_id: str | None = Field(
        default=None,
        description="Id of the request; must differ from those of live ones.",
        json_schema_extra=openapi_rules.ID,
    )
