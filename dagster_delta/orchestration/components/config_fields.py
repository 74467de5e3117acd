"""Dagster's Config classes as fields of a `defs.yaml`.

A Config by itself lets pydantic pass over keys it does not know, since Dagster checks them against
its own config schema; in YAML nobody would, and a mistyped option would do nothing in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, Field, TypeAdapter, create_model

from dagster_delta.orchestration.maintenance.config import DeltaMaintenanceConfig
from dagster_delta.orchestration.storage_options import AnyStorageOptions, StorageOptions

__all__ = [
    "MaintenanceConfigField",
    "StorageField",
    "documented",
    "documented_texts",
    "strict_model",
]


def documented(
    description: str, *, examples: list[Any] | None = None, template: bool = False
) -> dg.Resolver:
    """What an editor and `dg docs` say about an attribute.

    Dagster derives the schema of a `defs.yaml` from the class, and loses on the way what
    `pydantic.Field` says about attributes with a default.

    Args:
        description: of the attribute.
        examples: values as they stand in YAML.
        template: whether it is made by a template only: `{{ … }}`.
    """
    resolver: dg.Resolver = dg.Resolver.default(
        description=description, examples=examples, model_field_type=str if template else None
    )
    return resolver


def documented_texts(
    description: str, model_field_type: Any, *, examples: list[Any] | None = None
) -> dg.Resolver:
    """As `documented`, for an attribute made of texts: what looks like a number is text too.

    Args:
        description: of the attribute.
        model_field_type: what it is in YAML.
        examples: values as they stand in YAML.
    """
    return dg.Resolver(
        lambda context, value: _only_texts(_texts(context, value)),
        model_field_type=model_field_type,
        description=description,
        examples=examples,
        inject_before_resolve=False,
    )


@cache
def strict_model(config: type[dg.Config]) -> type[BaseModel]:
    """The class as a model that knows its own keys only, and takes a template for any value."""
    fields: dict[str, Any] = {}
    for name, each in config.model_fields.items():
        nested = inspect.isclass(each.annotation) and issubclass(each.annotation, dg.Config)
        default = None if nested else each.get_default()
        fields[name] = (
            _with_templates(each.annotation),
            Field(default=default, description=each.description),
        )
    return create_model(config.__name__, __base__=dg.Model, __doc__=config.__doc__, **fields)


def _with_templates(annotation: Any) -> Any:
    if inspect.isclass(annotation) and issubclass(annotation, dg.Config):
        return strict_model(annotation) | None
    # Choices are few and fixed: an editor should offer them, and take nothing else.
    if any(get_origin(each) is Literal for each in (annotation, *get_args(annotation))):
        return annotation
    return annotation | str


_STORAGE: TypeAdapter[StorageOptions] = TypeAdapter(
    Annotated[AnyStorageOptions, Field(discriminator="provider")]
)
# What runs is built from the classes, so a typing construct that mypy cannot follow.
_StorageModel: Any = Annotated[
    Union[tuple(strict_model(each) for each in get_args(AnyStorageOptions))],  # noqa: UP007
    Field(discriminator="provider"),
]


def _resolve_storage(context: dg.ResolutionContext, value: Any) -> StorageOptions | None:
    plain = _rendered(context, value)
    return _STORAGE.validate_python(plain) if isinstance(plain, Mapping) else plain


def _resolve_maintenance(context: dg.ResolutionContext, value: Any) -> DeltaMaintenanceConfig:
    plain = _rendered(context, value)
    return DeltaMaintenanceConfig(**plain) if isinstance(plain, Mapping) else plain


def _rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Plain values with their templates filled in; what a template has made stays as it is."""
    if isinstance(value, BaseModel) and not isinstance(value, dg.Config):
        return _texts(context, value.model_dump(exclude_unset=True))
    return value


_NO_LITERAL = "$"
"""Nothing that begins like this is a literal of Python."""


def _texts(context: dg.ResolutionContext, value: Any) -> Any:
    """The value with its templates filled in, and its texts still texts.

    Templates make a number of whatever looks like one, `"1"` and a key `"1e5"` included. Fields
    that take numbers read them from text.
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


def _only_texts(value: Any) -> Any:
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
"""What maintenance does."""
