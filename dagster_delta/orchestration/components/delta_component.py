"""What all components share: their schema, Dagster's Config classes as fields of a `defs.yaml`, and
how an asset is changed before it is defined.

For a Config, pydantic ignores unknown keys, because Dagster checks them against its own config
schema; in YAML there is no such check, and a mistyped option would silently have no effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from dagster_delta.orchestration.catalogs import (
    CatalogResource,
    GlueCatalogResource,
    UnityCatalogResource,
)
from dagster_delta.orchestration.known_fields import DescribedFields
from dagster_delta.orchestration.maintenance.operations import DeltaMaintenanceConfig
from dagster_delta.orchestration.storage_options import AnyStorageOptions
from dagster_delta.storage import TableResolver


class DeltaComponent(dg.Component):
    """A component of this library."""

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Metadata of the component for `dg`."""
        return dg.ComponentTypeSpec(tags=["delta-lake"])

    @classmethod
    @cache
    def get_model_cls(cls) -> type[BaseModel]:
        """The attributes of the YAML."""
        model: Any = super().get_model_cls()
        return create_model(model.__name__, __base__=(_NamedChoices, model))


class _NamedChoices(BaseModel):
    """A model whose JSON schema makes `dg check yaml` name what is wrong and what is allowed.

    Of `anyOf`, which Dagster makes of each attribute that may be a template, a validator only says
    that no choice fits.
    """

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        schema = super().model_json_schema(*args, **options)
        _name_choices(schema, schema.get("$defs", {}))
        return schema


_TEMPLATE_OR_NULL = {"type": ["string", "null"], "pattern": r"\{\{"}


def _name_choices(node: Any, definitions: dict[str, Any]) -> None:  # noqa: ANN401
    if isinstance(node, list):
        for item in node:
            _name_choices(item, definitions)
    if not isinstance(node, dict):
        return
    for value in node.values():
        _name_choices(value, definitions)
    if node.get("additionalProperties") is False:
        node["propertyNames"] = {"enum": list(node["properties"])}
        node["type"] = ["object", "string", "null"]
    choices = node.get("anyOf", ())
    others = [choice for choice in choices if choice not in ({"type": "string"}, {"type": "null"})]
    if len(others) == 2 and "enum" in others[0]:
        # Texts are names or templates.
        names, other = others
        del node["anyOf"]
        node["if"] = _TEMPLATE_OR_NULL
        node["else"] = {"if": {"type": "string"}, "then": names, "else": other}
        return
    if len(others) != 1 or others == choices:
        return
    (choice,) = others
    named = definitions.get(choice.get("$ref", "").rpartition("/")[2], choice)
    del node["anyOf"]
    if "enum" in named:
        node |= {"if": _TEMPLATE_OR_NULL, "else": choice}
    elif "discriminator" in choice:
        models = choice["discriminator"]["mapping"]
        node |= {
            "type": ["object", "string", "null"],
            "properties": {"provider": {"enum": list(models)}},
            "required": ["provider"],
            "allOf": [
                {"if": {"properties": {"provider": {"const": name}}}, "then": {"$ref": model}}
                for name, model in models.items()
            ],
        }
    elif "$ref" in choice:
        node |= choice
    else:
        node |= choice | {"type": [other["type"] for other in choices]}


_TRANSLATION: TranslationFnResolver[str] = TranslationFnResolver(lambda uri: {"uri": uri})
_TRANSLATION.description = (
    "Changes attributes of the assets. Templates may use `spec`, the asset as it would be, and "
    "`uri`, the location of its table."
)
_TRANSLATION.examples = [{"group_name": "lake", "key": "lake/{{ spec.key.path[-1] }}"}]


class DeltaAttributes(DescribedFields, dg.Model, dg.Resolvable):
    """Attributes of a `defs.yaml`; numbers that Dagster has resolved texts to become texts."""

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,
        # Pydantic quotes invalid input in its errors, for example a mistyped secret.
        hide_input_in_errors=True,
    )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The schema of the YAML, in which Dagster loses the texts of attributes with a default."""
        model = super().model()
        for name, field in model.model_fields.items():
            field.description = field.description or cls.model_fields[name].description
            field.examples = field.examples or cls.model_fields[name].examples
        model.model_rebuild(force=True)
        return model


class AssetDeltaComponent(DeltaComponent, DeltaAttributes):
    """A component that defines assets of tables."""

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


_T = TypeVar("_T")
Template: TypeAlias = Annotated[_T | None, dg.Resolver.default(model_field_type=str)]
"""An object of Dagster, as a template."""


@cache
def strict_model(config: type[dg.Config], provider: str | None = None) -> type[BaseModel]:
    """The class as a model that accepts only its own keys, and a template for any value.

    Args:
        config: the class.
        provider: value of a further key `provider`, by which a union tells its models apart.
    """
    fields: dict[str, Any] = {}
    for name, field in config.model_fields.items():
        is_union = field.discriminator is not None
        nested = inspect.isclass(field.annotation) and issubclass(field.annotation, dg.Config)
        default = None if nested or is_union else field.get_default()
        fields[name] = (
            _StorageModel | None if is_union else _with_templates(field.annotation),
            Field(default=default, description=field.description),
        )
    if provider is not None:
        fields = {"provider": (Literal[provider], Field()), **fields}
    return create_model(config.__name__, __base__=dg.Model, __doc__=config.__doc__, **fields)


def _with_templates(annotation: Any) -> Any:  # noqa: ANN401
    if inspect.isclass(annotation) and issubclass(annotation, dg.Config):
        return strict_model(annotation) | None
    # Choices are few and fixed: an editor should offer only them.
    if any(get_origin(choice) is Literal for choice in (annotation, *get_args(annotation))):
        return annotation
    return annotation | str


# The union is built from classes at run time, which mypy cannot follow.
_storage, _ = get_args(AnyStorageOptions)
_CATALOGS: Mapping[str, type[CatalogResource]] = {
    "unity_catalog": UnityCatalogResource,
    "glue": GlueCatalogResource,
}
_storage_models = tuple(map(strict_model, get_args(_storage)))
_StorageModel: Any = Annotated[
    Union[_storage_models],  # noqa: UP007
    Field(discriminator="provider"),
]
_catalog_models = tuple(strict_model(kind, name) for name, kind in _CATALOGS.items())
_StorageOrCatalogModel: Any = Annotated[
    Union[(*_storage_models, *_catalog_models)],
    Field(discriminator="provider"),
]


def _resolved_as(model: Any) -> Callable[[dg.ResolutionContext, Any], Any]:  # noqa: ANN401
    """Resolves the templates of an attribute before it is validated."""
    adapter: TypeAdapter[Any] = TypeAdapter(model)

    def resolve(context: dg.ResolutionContext, value: Any) -> Any:  # noqa: ANN401
        # The result of a template that is the whole attribute does not change.
        if isinstance(value, BaseModel) and not isinstance(value, dg.Config):
            value = _resolve_texts(context, value.model_dump(exclude_unset=True))
        return adapter.validate_python(value) if isinstance(value, Mapping) else value

    return resolve


_resolve_storage = _resolved_as(AnyStorageOptions)


def _resolve_storage_or_catalog(context: dg.ResolutionContext, value: Any) -> Any:  # noqa: ANN401
    """Storage options, or the catalog that `provider` names."""
    kind = _CATALOGS.get(getattr(value, "provider", ""))
    if kind is None:
        return _resolve_storage(context, value)
    given = value.model_dump(exclude_unset=True, exclude={"provider", "storage_options"})
    options = _resolve_storage(context, getattr(value, "storage_options", None))
    if options is not None:
        given["storage_options"] = options
    return kind(**_resolve_texts(context, given))


_NO_LITERAL = "$"
"""Prefix that no Python literal starts with."""


def _resolve_texts(context: dg.ResolutionContext, value: Any) -> Any:  # noqa: ANN401
    """The value with its templates resolved; strings stay strings.

    Templates convert number-like strings to numbers, including `"1"` and a key `"1e5"`. Fields for
    numbers parse them from text.
    """
    if isinstance(value, Mapping):
        return {key: _resolve_texts(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_texts(context, item) for item in value]
    if not isinstance(value, str):
        return value
    plain = context.resolve_value(value)
    if isinstance(plain, bool | int | float):
        return context.resolve_value(_NO_LITERAL + value, as_type=str).removeprefix(_NO_LITERAL)
    return plain


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

TableStorageField: TypeAlias = Annotated[
    AnyStorageOptions | TableResolver | None,
    dg.Resolver(
        _resolve_storage_or_catalog,
        model_field_type=_StorageOrCatalogModel,
        description="Storage options, or the catalog of tables whose locations are "
        "catalog://main.shop.orders: its kind is the provider, and a catalog of your own is a "
        "template. Whatever is not set is taken from the environment; give secrets as templates: "
        "{{ env.NAME }}.",
        examples=[
            {"provider": "s3", "region": "eu-central-1"},
            {"provider": "unity_catalog", "uri": "https://host", "token": "{{ env.UNITY_TOKEN }}"},
        ],
    ),
]
"""Storage options by their `provider`, or a catalog."""

MaintenanceConfigField: TypeAlias = Annotated[
    DeltaMaintenanceConfig,
    dg.Resolver(
        _resolved_as(DeltaMaintenanceConfig),
        model_field_type=strict_model(DeltaMaintenanceConfig),
        description="Default config of the runs. By default they compact small files, and VACUUM "
        "is a dry run.",
        examples=[{"vacuum": {"dry_run": False}}],
    ),
]
"""Config of the maintenance."""
