"""Which type changes keep old data files readable, and how a schema records them.

Spec: Type Widening.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    data_type_from_json,
    walk_fields,
)

TYPE_CHANGES_KEY = "delta.typeChanges"

_WIDER_PRIMITIVES = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}

_MAX_PRECISION = 38

_WRITTEN_INTEGER_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that a decimal needs to replace an integer type."""

_SHIPPED_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""The same for shipped tables: tables of the preview have `byte` to `decimal(4,1)`."""


class TypeChange(msgspec.Struct, frozen=True):
    """One entry of `delta.typeChanges`. Spec: Type Change Metadata."""

    from_type: DataType
    """Type before the change."""
    to_type: DataType
    """Type after the change."""
    field_path: str | None = None
    """Dotted steps `key`, `value`, `element` from the field to the change; None for the field
    itself."""
    table_version: int | None = None
    """Version that made the change; only tables of the preview feature have it."""

    @classmethod
    def from_json(cls, node: Mapping[str, object]) -> TypeChange:
        """Parse one decoded entry."""
        try:
            from_type, to_type = node["fromType"], node["toType"]
        except KeyError as error:
            raise InvalidTable(f"an entry of {TYPE_CHANGES_KEY} has no {error}") from error
        path, version = node.get("fieldPath"), node.get("tableVersion")
        return cls(
            data_type_from_json(from_type),
            data_type_from_json(to_type),
            path if isinstance(path, str) else None,
            version if isinstance(version, int) else None,
        )

    def to_json(self) -> dict[str, object]:
        """The entry as in the metadata of a field."""
        node: dict[str, object] = {"fromType": str(self.from_type), "toType": str(self.to_type)}
        if self.field_path is not None:
            node["fieldPath"] = self.field_path
        if self.table_version is not None:
            node["tableVersion"] = self.table_version
        return node


def is_widening(from_type: DataType, to_type: DataType) -> bool:
    """Whether files of the first type can be read as the second. A type does not widen to itself.

    This is the whole list of the protocol, for explicit type changes. Widening on write is
    narrower: it never turns an integer into a decimal or a double by itself.
    """
    return _is_widening(from_type, to_type, _WRITTEN_INTEGER_DIGITS)


def _is_widening(from_type: DataType, to_type: DataType, integer_digits: Mapping[str, int]) -> bool:
    match from_type, to_type:
        case PrimitiveType(source), PrimitiveType(target):
            return target in _WIDER_PRIMITIVES.get(source, ())
        case PrimitiveType(source), DecimalType(precision, scale):
            digits = integer_digits.get(source)
            return digits is not None and precision - digits >= scale >= 0
        case DecimalType(), DecimalType() if from_type != to_type:
            more_digits = to_type.precision - from_type.precision
            return more_digits >= to_type.scale - from_type.scale >= 0
        case _:
            return False


def describe_wider_types(data_type: DataType) -> str:
    """The types that a type widens to, as part of a message; empty if there are none."""
    match data_type:
        case PrimitiveType(name):
            wider = list(_WIDER_PRIMITIVES.get(name, ()))
            digits = _WRITTEN_INTEGER_DIGITS.get(name)
            if digits is not None:
                wider.append(f"decimal(p,s) with p - s >= {digits}")
            return ", ".join(wider)
        case DecimalType(precision, scale):
            if precision == _MAX_PRECISION:
                return ""
            return f"decimal(p,s) with s >= {scale} and p - s >= {precision - scale}"
        case _:
            return ""


def record_type_changes(
    field: StructField, data_type: DataType, changes: Sequence[TypeChange]
) -> StructField:
    """The field with another type, and the changes added to its record.

    The changes are of the field itself and of its parts down to the next struct field.
    """
    if not changes:
        return field if data_type == field.data_type else replace(field, data_type=data_type)
    recorded = field.metadata.get(TYPE_CHANGES_KEY)
    history = recorded if isinstance(recorded, list | tuple) else ()
    metadata = {
        **field.metadata,
        TYPE_CHANGES_KEY: [*history, *(change.to_json() for change in changes)],
    }
    return replace(field, data_type=data_type, metadata=metadata)


def type_changes(field: StructField) -> tuple[TypeChange, ...]:
    """The changes of a field, its array elements and its map entries, oldest first."""
    entries = field.metadata.get(TYPE_CHANGES_KEY, ())
    if not isinstance(entries, list | tuple) or not all(isinstance(e, Mapping) for e in entries):
        raise InvalidTable(
            f"{TYPE_CHANGES_KEY} of column {field.name} is not a list of changes: the schema is "
            "damaged; restore an older version of the table",
            column=field.name,
        )
    return tuple(TypeChange.from_json(entry) for entry in entries)


def _is_readable(change: TypeChange) -> bool:
    return change.from_type == change.to_type or _is_widening(
        change.from_type, change.to_type, _SHIPPED_INTEGER_DIGITS
    )


def check_type_changes(schema: StructType) -> None:
    """Refuse a schema that records a type change outside the list of the protocol, at any depth.

    Files written before such a change may not be readable as the current type.
    """
    for path, field in walk_fields(schema):
        column = ".".join(path)
        for change in type_changes(field):
            if not _is_readable(change):
                place = f"{column}.{change.field_path}" if change.field_path else column
                raise UnsupportedFeature(
                    f"column {place} was changed from {change.from_type} to {change.to_type}, "
                    "which is not a widening that this library can read; rewrite the table with "
                    "the engine that made the change",
                    column=column,
                )
