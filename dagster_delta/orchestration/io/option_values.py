"""Parsing of option values from plain values in metadata or YAML.

A value that does not fit is None, not an exception: the caller knows the key for the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from dagster import AssetKey

T = TypeVar("T")

_MAX_SAMPLE_ROWS = 100


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
    """The kind of values that an option accepts."""

    expected: str
    parse: Callable[[object], T | None]
    """The option's value, or None if it does not fit."""


def one_of(choices: object) -> ValueKind[Any]:
    """The kind of an option that accepts the texts of a `Literal`."""
    allowed: tuple[str, ...] = get_args(choices)

    def parse(value: object) -> str | None:
        # Enumerations of earlier integrations (`WriteMode.append`) are strings underneath.
        text = getattr(value, "value", value)
        return str(text) if text in allowed else None

    return ValueKind(f"one of {', '.join(allowed)}", parse)


def _parse_version(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if str(value).isdecimal() else None


def _parse_sample_size(value: object) -> int | None:
    count = _parse_version(value)
    return None if count is None or count > _MAX_SAMPLE_ROWS else count


def _parse_names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
        return tuple(value)
    return None


def _parse_asset_keys(value: object) -> tuple[str, ...] | None:
    keys = [value] if isinstance(value, str | AssetKey) else value
    if not isinstance(keys, Sequence) or not all(isinstance(key, str | AssetKey) for key in keys):
        return None
    return tuple(key.to_user_string() if isinstance(key, AssetKey) else key for key in keys)


def _parse_expression(value: object) -> str | Mapping[str, str] | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
        return dict(value)
    return None


def _parse_string_mapping(value: object) -> Mapping[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    # Table properties are strings, and their booleans are lower case.
    return {
        str(key): str(each).lower() if isinstance(each, bool) else str(each)
        for key, each in value.items()
    }


TEXT: ValueKind[str | None] = ValueKind(
    "a string", lambda value: value if isinstance(value, str) else None
)
BOOLEAN = ValueKind("true or false", lambda value: value if isinstance(value, bool) else None)
VERSION: ValueKind[int | None] = ValueKind(
    "a version: a number that is not negative", _parse_version
)
COUNT: ValueKind[int] = ValueKind("a number that is not negative", _parse_version)
SAMPLE_SIZE: ValueKind[int] = ValueKind(
    f"a number from 0 to {_MAX_SAMPLE_ROWS}", _parse_sample_size
)
NAMES: ValueKind[tuple[str, ...] | None] = ValueKind(
    "a column name or a list of them", _parse_names
)
ASSET_KEY_LIST: ValueKind[tuple[str, ...]] = ValueKind(
    "an asset key as 'a/b', or a list of them", _parse_asset_keys
)
EXPRESSION: ValueKind[str | Mapping[str, str] | None] = ValueKind(
    "a column name, or a mapping from partition dimension to column name", _parse_expression
)


def _parse_commit_properties(value: object) -> Mapping[str, str] | None:
    # Objects of earlier integrations have the value as an attribute.
    plain = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    if plain is None or set(plain) - {"custom_metadata"}:
        return None
    return _parse_string_mapping(plain.get("custom_metadata") or {})


def _parse_writer_properties(value: object) -> Mapping[str, str] | None:
    if not isinstance(value, Mapping) or set(value) - {"compression"}:
        return None
    codec = value.get("compression")
    return {} if codec is None else {"delta.parquet.compression.codec": str(codec).lower()}


STRING_MAPPING: ValueKind[Mapping[str, str]] = ValueKind(
    "a mapping of strings", _parse_string_mapping
)
COMMIT_PROPERTIES: ValueKind[Mapping[str, str]] = ValueKind(
    "a mapping with custom_metadata alone", _parse_commit_properties
)
WRITER_PROPERTIES: ValueKind[Mapping[str, str]] = ValueKind(
    "a mapping with compression alone, which becomes the codec of a new table; other properties of "
    "files are table properties: set table_configuration",
    _parse_writer_properties,
)
