"""`Body` and `Reply`: what all JSON objects of clients and of the server have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from ferrum.client.model_client import ModelClient
from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import ApiError, field_path, invalid, unsupported
from ferrum.server.common.field_rules import Id, Rule


def optional(description: str) -> Any:
    """Return a field that may be absent or null."""
    return Field(default=None, description=description)


MODEL: Final[Any] = optional("A name from /v1/models (default: the served model).")


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
        RULES: which fields need or exclude each other.
        NO_OPS: known fields without effect on the reply, with the reason.
        REFUSED: known fields that are not served, with the reason; null and harmless values count as absent.
        PASSES_ON: unknown fields have an effect, because they are passed on.
        FOR_TEMPLATE: fields that have an effect only if the model's chat template reads them.
        SAMPLING: fields of sampling parameters, by the parameters' names; see `chat.sampling_fields`.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())
    RULES: ClassVar[Sequence[Rule]] = ()
    NO_OPS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    REFUSED: ClassVar[Mapping[str, str]] = MappingProxyType({})
    PASSES_ON: ClassVar[bool] = False
    FOR_TEMPLATE: ClassVar[frozenset[str]] = frozenset()
    SAMPLING: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> field_rules.Schema:
        """Return the schema of the fields, with those that are refused or have no effect, and of the rules."""
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        properties = resolved.setdefault("properties", {})
        properties.update({name: field_rules.refused(name, why) for name, why in cls.REFUSED.items()})
        properties.update({name: {"description": f"No effect: {why}."} for name, why in cls.NO_OPS.items()})
        if cls.RULES:
            resolved["allOf"] = [each.document() for each in cls.RULES]
        return schema

    def has_images(self) -> bool:
        """Return whether the conversation has images, which take long to decode."""
        return False

    def given(self) -> dict[str, Any]:
        """Return the sampling parameters that a client sends, by our names."""
        sent = {name: getattr(self, field) for name, field in self.SAMPLING.items()}
        return {name: value for name, value in sent.items() if value is not None}

    def unread_fields(self, client: ModelClient) -> list[str]:  # noqa: ARG002 - for bodies with a conversation
        """Return given fields of `FOR_TEMPLATE` that the model's chat template does not read."""
        return []

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        """Return the paths of fields without effect: unknown fields and `NO_OPS`, here and in bodies within.

        Raises:
            ApiError: a field of `REFUSED`, or with `strict` an unknown one.
            RequestError: a rule is broken.
        """
        for rule in self.RULES:
            if not any((getattr(self, each.field) in each.values) != each.negated for each in rule.conditions):
                raise invalid(field_path((*path, rule.field)), rule.reason)
        ignored: list[str] = []
        extra = self.model_extra or {}
        for name in sorted(self.model_fields_set):
            value = extra[name] if name in extra else getattr(self, name)
            inside = (*path, name)
            if name in self.REFUSED and not field_rules.is_harmless(name, value):
                raise unsupported(field_path(inside), self.REFUSED[name])
            unknown = name in extra and name not in self.NO_OPS and not self.PASSES_ON
            if name in self.REFUSED or (value is None and not unknown):
                continue
            if unknown and strict:
                raise ApiError(400, f"unknown field {name!r}", code="unknown_parameter", param=field_path(inside))
            if unknown or name in self.NO_OPS:
                ignored.append(field_path(inside))
            elif isinstance(value, Body):
                ignored += value.check_fields(strict=strict, path=inside)
            elif isinstance(value, list) and value and not isinstance(value[0], int):  # token ids are many
                for index, each in enumerate(value):
                    if isinstance(each, Body):
                        ignored += each.check_fields(strict=strict, path=(*inside, index))
        return ignored


class GeneratingBody(Body):
    """The fields that every generating route reads, in any dialect.

    Attributes:
        LONG: fields with grammars, schemas or words of the vocabulary.
        READ: the reply is read in the format of the model's template, which is found at the first request.
    """

    LONG: ClassVar[tuple[str, ...]] = ("dry_multiplier",)
    READ: ClassVar[bool] = False

    model: str | None = MODEL
    stream: bool | None = Field(default=None, description="Send the reply as server-sent events.")
    request_id: Id | None = Field(default=None, description="Id of the request; must differ from those of live ones.")

    @property
    def streamed(self) -> bool:
        """Whether the reply is a stream."""
        return bool(self.stream)

    def takes_long(self, client: ModelClient) -> bool:
        """Return whether the check of the body may take longer than its size says."""
        found = not self.READ or client.chat_template is None or client.knows_format
        return not found or any(getattr(self, name, None) for name in self.LONG)
