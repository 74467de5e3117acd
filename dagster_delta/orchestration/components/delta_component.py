"""What all components share: their schema, and how an asset is changed before it is defined."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, ConfigDict

_TEMPLATE = {"type": "string", "pattern": r"\{\{"}

Schema = dict[str, Any]


class DeltaComponent(dg.Component):
    """A component of this library."""

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Metadata of the component for `dg`."""
        return dg.ComponentTypeSpec(tags=["delta-lake"])

    @classmethod
    def get_model_cls(cls) -> type[BaseModel] | None:
        """The attributes of a `defs.yaml`."""
        model = super().get_model_cls()
        return None if model is None else _with_precise_errors(model)


_TRANSLATION: TranslationFnResolver[str] = TranslationFnResolver(lambda uri: {"uri": uri})
_TRANSLATION.description = (
    "Changes attributes of the assets. Templates may use `spec`, the asset as it would be, and "
    "`uri`, the location of its table."
)
_TRANSLATION.examples = [{"group_name": "lake", "key": "lake/{{ spec.key.path[-1] }}"}]


class AssetDeltaComponent(DeltaComponent, dg.Model, dg.Resolvable):
    """A component that defines assets of tables."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    translation: Annotated[TranslationFn[str] | None, _TRANSLATION] = None

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec of an asset as it is defined; override it to change any of its attributes.

        By default, the attribute `translation` is applied.

        Args:
            spec: as the component derives it from its other attributes. If its table is given by
                location, that is in the metadata `dagster/uri`.
        """
        if self.translation is None:
            return spec
        return self.translation(spec, str(spec.metadata.get("dagster/uri", "")))


@cache
def _with_precise_errors(model: type[BaseModel]) -> type[BaseModel]:
    """The model, with a JSON schema whose errors name the innermost key of a mistake.

    Dagster makes every attribute a choice between its type and a template. A JSON schema validator
    reports a mistake inside of a choice for the attribute as a whole, and accepts any text as a
    template.
    """

    class Precise(model):  # type: ignore[valid-type,misc]
        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> Schema:
            schema: Schema = _precise(model.model_json_schema(*args, **options))
            return schema

    Precise.__name__, Precise.__qualname__ = model.__name__, model.__qualname__
    return Precise


def _precise(schema: Any) -> Any:  # noqa: ANN401
    if isinstance(schema, list):
        return [_precise(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _precise(each) for name, each in schema.items() if name != "discriminator"}
    choices = plain.get("anyOf")
    if not choices:
        return plain
    if not _declares_text(schema["anyOf"]):
        choices = [_TEMPLATE if each == {"type": "string"} else each for each in choices]
    objects = [each for each in choices if "$ref" in each or "oneOf" in each]
    if len(objects) != 1:
        return {**plain, "anyOf": choices}
    others = [each for each in choices if each is not objects[0]]
    (original,) = (each for each in schema["anyOf"] if "$ref" in each or "oneOf" in each)
    del plain["anyOf"]
    # The validator reports errors inside of `then` with their own path.
    return {
        **plain,
        "if": {"type": "object"},
        "then": _by_discriminator(original) or objects[0],
        "else": {"anyOf": others},
    }


def _declares_text(choices: list[Schema]) -> bool:
    """Whether text is a value; Dagster adds the text of a template as the last type.

    A field of text has no other type but null, or has text first.
    """
    types = [each for each in choices if each != {"type": "null"}]
    return types[0] == {"type": "string"}


def _by_discriminator(schema: Schema) -> Schema | None:
    """The branch that the discriminator chooses; None if there is no discriminator."""
    discriminator = schema.get("discriminator")
    if discriminator is None:
        return None
    name, mapping = discriminator["propertyName"], discriminator["mapping"]
    return {
        "properties": {name: {"enum": list(mapping)}},
        "required": [name],
        "allOf": [
            {
                "if": {"properties": {name: {"const": value}}, "required": [name]},
                "then": {"$ref": reference},
            }
            for value, reference in mapping.items()
        ],
    }
