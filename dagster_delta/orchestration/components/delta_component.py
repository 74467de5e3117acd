"""What all components share: their schema, Dagster's Config classes as fields of a `defs.yaml`, and
how an asset is changed before it is defined.

For a Config, pydantic ignores unknown keys, because Dagster checks them against its own config
schema; in YAML there is no such check, and a mistyped option would silently have no effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from dagster_delta.orchestration.maintenance.config import DeltaMaintenanceConfig
from dagster_delta.orchestration.storage_options import AnyStorageOptions, StorageOptions

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
        choices = [_TEMPLATE if choice == {"type": "string"} else choice for choice in choices]
    objects = [choice for choice in choices if "$ref" in choice or "oneOf" in choice]
    if len(objects) != 1:
        return {**plain, "anyOf": choices}
    others = [choice for choice in choices if choice is not objects[0]]
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
    types = [choice for choice in choices if choice != {"type": "null"}]
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


def documented(
    description: str, *, examples: list[Any] | None = None, template: bool = False
) -> dg.Resolver:
    """Documentation of an attribute for editors and `dg docs`; examples are values as in YAML. With
    `template`, the value must be a template: `{{ … }}`.

    Dagster derives the schema of a `defs.yaml` from the class, but loses the `pydantic.Field`
    descriptions of attributes with a default.
    """
    resolver: dg.Resolver = dg.Resolver.default(
        description=description, examples=examples, model_field_type=str if template else None
    )
    return resolver


def documented_texts(
    description: str,
    model_field_type: type | UnionType,
    *,
    examples: list[Any] | None = None,
) -> dg.Resolver:
    """As `documented`, for an attribute of strings: number-like values are strings too."""
    return dg.Resolver(
        lambda context, value: _only_texts(_texts(context, value)),
        model_field_type=model_field_type,
        description=description,
        examples=examples,
        inject_before_resolve=False,
    )


@cache
def strict_model(config: type[dg.Config]) -> type[BaseModel]:
    """The class as a model that accepts only its own keys, and a template for any value."""
    fields: dict[str, Any] = {}
    for name, each in config.model_fields.items():
        nested = inspect.isclass(each.annotation) and issubclass(each.annotation, dg.Config)
        default = None if nested else each.get_default()
        fields[name] = (
            _with_templates(each.annotation),
            Field(default=default, description=each.description),
        )
    return create_model(config.__name__, __base__=dg.Model, __doc__=config.__doc__, **fields)


def _with_templates(annotation: Any) -> Any:  # noqa: ANN401
    if inspect.isclass(annotation) and issubclass(annotation, dg.Config):
        return strict_model(annotation) | None
    # Choices are few and fixed: an editor should offer only them.
    if any(get_origin(each) is Literal for each in (annotation, *get_args(annotation))):
        return annotation
    return annotation | str


_STORAGE: TypeAdapter[StorageOptions] = TypeAdapter(
    Annotated[AnyStorageOptions, Field(discriminator="provider")]
)
# The union is built from classes at run time, which mypy cannot follow.
_StorageModel: Any = Annotated[
    Union[tuple(strict_model(arg) for arg in get_args(AnyStorageOptions))],  # noqa: UP007
    Field(discriminator="provider"),
]


def _resolve_storage(context: dg.ResolutionContext, value: object) -> StorageOptions | None:
    plain = _rendered(context, value)
    return _STORAGE.validate_python(plain) if isinstance(plain, Mapping) else plain


def _resolve_maintenance(context: dg.ResolutionContext, value: object) -> DeltaMaintenanceConfig:
    plain = _rendered(context, value)
    return DeltaMaintenanceConfig(**plain) if isinstance(plain, Mapping) else plain


def _rendered(context: dg.ResolutionContext, value: Any) -> Any:  # noqa: ANN401
    """Plain values with their templates resolved; results of templates are not changed."""
    if isinstance(value, BaseModel) and not isinstance(value, dg.Config):
        return _texts(context, value.model_dump(exclude_unset=True))
    return value


_NO_LITERAL = "$"
"""Prefix that no Python literal starts with."""


def _texts(context: dg.ResolutionContext, value: Any) -> Any:  # noqa: ANN401
    """The value with its templates resolved; strings stay strings.

    Templates convert number-like strings to numbers, including `"1"` and a key `"1e5"`. Fields for
    numbers parse them from text.
    """
    if isinstance(value, Mapping):
        return {key: _texts(context, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_texts(context, each) for each in value]
    if not isinstance(value, str):
        return value
    plain = context.resolve_value(value)
    if isinstance(plain, bool | int | float):
        return context.resolve_value(_NO_LITERAL + value, as_type=str).removeprefix(_NO_LITERAL)
    return plain


def _only_texts(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return {key: _only_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_only_texts(each) for each in value]
    return value if value is None else str(value)


StorageField: TypeAlias = Annotated[
    AnyStorageOptions | None,
    dg.Resolver(
        _resolve_storage,
        model_field_type=_StorageModel,
        description="Storage options. Whatever is not set is taken from the environment; give "
        "secrets as templates: {{ env.NAME }}.",
        examples=[{"provider": "s3", "region": "eu-central-1"}],
    ),
]
"""Storage options by their `provider`."""

MaintenanceConfigField: TypeAlias = Annotated[
    DeltaMaintenanceConfig,
    dg.Resolver(
        _resolve_maintenance,
        model_field_type=strict_model(DeltaMaintenanceConfig),
        description="Default config of the runs. By default they compact small files, and VACUUM "
        "is a dry run.",
        examples=[{"vacuum": {"dry_run": False}}],
    ),
]
"""Config of the maintenance."""
