"""New values of columns as Spark computes them: cast to the type of the column, fields by name.

A cast never fails in the query: a value that does not fit becomes null with a flag beside it, and
the task that writes the row refuses it. The result does not depend on ANSI mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session.schema import VOID, to_spark_type
from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column


def stored_value(
    value: Column, source: DataType, target: DataType, functions: ModuleType, name: str
) -> Column:
    """A value as a column of the table holds it; null, at its depth, where it does not fit."""
    if source == VOID:
        return functions.lit(None).cast(to_spark_type(target))
    if source == target:
        return value
    match source, target:
        case StructType(), StructType():
            return _stored_struct(value, source, target, functions, name)
        case ArrayType(element_type=held), ArrayType(element_type=wanted):
            return functions.transform(
                value, lambda each: stored_value(each, held, wanted, functions, name)
            )
        case MapType(), MapType():
            entries = functions.transform(
                functions.map_entries(value),
                lambda each: functions.struct(
                    stored_value(
                        each["key"], source.key_type, target.key_type, functions, name
                    ).alias("key"),
                    stored_value(
                        each["value"], source.value_type, target.value_type, functions, name
                    ).alias("value"),
                ),
            )
            return _unless_null(value, functions.map_from_entries(entries), functions)
        case _ if _is_nested(source) or _is_nested(target):
            raise SchemaMismatch(
                f"a value of type {_spelled(source)} cannot be stored in column {name} of type "
                f"{_spelled(target)}",
                column=name,
            )
    return value.try_cast(to_spark_type(target))


def _stored_struct(
    value: Column, source: StructType, target: StructType, functions: ModuleType, name: str
) -> Column:
    unknown = [each.name for each in source if target.get(each.name) is None]
    if unknown:
        raise SchemaMismatch(
            f"column {name} has no field {unknown[0]}: leave it out of the value, or add the field "
            "to the table first",
            column=f"{name}.{unknown[0]}",
        )
    fields = []
    for each in target:
        held = source.get(each.name)
        if held is None:
            field = functions.lit(None).cast(to_spark_type(each.data_type))
        else:
            field = stored_value(
                value.getField(held.name),
                held.data_type,
                each.data_type,
                functions,
                f"{name}.{each.name}",
            )
        fields.append(field.alias(each.name))
    return _unless_null(value, functions.struct(*fields), functions)


def _unless_null(value: Column, result: Column, functions: ModuleType) -> Column:
    return functions.when(value.isNotNull(), result)


def stored_fits(
    value: Column, source: DataType, target: DataType, functions: ModuleType
) -> Column | None:
    """Whether `stored_value` keeps the whole value; None if it always does."""
    if source in (VOID, target):
        return None
    parts: list[Column] = []
    match source, target:
        case StructType(), StructType():
            for each in target:
                held = source.get(each.name)
                if held is not None:
                    inner = stored_fits(
                        value.getField(held.name), held.data_type, each.data_type, functions
                    )
                    parts += [] if inner is None else [inner]
        case ArrayType(element_type=held_type), ArrayType(element_type=wanted):
            parts += _all_fit(value, held_type, wanted, functions)
        case MapType(), MapType():
            keys, values = functions.map_keys(value), functions.map_values(value)
            parts += _all_fit(keys, source.key_type, target.key_type, functions)
            parts += _all_fit(values, source.value_type, target.value_type, functions)
        case _:
            parts.append(value.isNull() | value.try_cast(to_spark_type(target)).isNotNull())
    return reduce(lambda left, right: left & right, parts) if parts else None


def _all_fit(
    values: Column, source: DataType, target: DataType, functions: ModuleType
) -> list[Column]:
    if source in (VOID, target):
        return []

    def fits(each: Column) -> Column:
        found = stored_fits(each, source, target, functions)
        always: Column = functions.lit(True)
        return always if found is None else found

    found: Column = functions.coalesce(functions.forall(values, fits), functions.lit(True))
    return [found]


def _is_nested(data_type: DataType) -> bool:
    return isinstance(data_type, (StructType, ArrayType, MapType))


def _spelled(data_type: DataType) -> str:
    return to_spark_type(data_type).simpleString()


def with_fields(
    struct: Column,
    data_type: StructType,
    values: dict[tuple[str, ...], Column],
    functions: ModuleType,
    sources: Mapping[tuple[str, ...], Column] = MappingProxyType({}),
) -> Column:
    """A struct with new values of some fields, by their path inside it.

    As in Spark, a null struct becomes a struct of nulls with these fields. It stays null if
    `sources` has its source struct at the same path and that is null as well.
    """
    fields = []
    for each in data_type:
        below = {path[1:]: value for path, value in values.items() if path[0] == each.name}
        field = struct.getField(each.name)
        if () in below:
            field = below[()]
        elif below:
            assert isinstance(each.data_type, StructType)  # noqa: S101  paths lead through structs
            inner = {path[1:]: held for path, held in sources.items() if path[:1] == (each.name,)}
            field = with_fields(field, each.data_type, below, functions, inner)
        fields.append(field.alias(each.name))
    made: Column = functions.struct(*fields)
    if () in sources:
        made = functions.when(struct.isNotNull() | sources[()].isNotNull(), made)
    return made
