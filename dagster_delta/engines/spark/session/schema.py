"""Schemas of tables as Spark types, and of DataFrames as table schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types

_COLLATIONS_KEY = "__COLLATIONS"
"""Field metadata: collations of the texts in a column, by their path in it."""

_SPARK_NAMES = {
    "string": "StringType",
    "long": "LongType",
    "integer": "IntegerType",
    "short": "ShortType",
    "byte": "ByteType",
    "float": "FloatType",
    "double": "DoubleType",
    "boolean": "BooleanType",
    "binary": "BinaryType",
    "date": "DateType",
    "timestamp": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
    "variant": "VariantType",
    "void": "NullType",
}
_DELTA_NAMES = {spark: delta for delta, spark in _SPARK_NAMES.items()}


def to_spark_type(data_type: DataType) -> spark_types.DataType:
    """The Spark type of a column type: nullable at every depth, without field metadata.

    A read schema is always nullable: a file may lack a column, and Spark trusts a schema that says
    it cannot be null.
    """
    from pyspark.sql import types

    match data_type:
        case DecimalType(precision, scale):
            return types.DecimalType(precision, scale)
        case ArrayType(element_type):
            return types.ArrayType(to_spark_type(element_type))
        case MapType(key_type, value_type):
            return types.MapType(to_spark_type(key_type), to_spark_type(value_type))
        case StructType(fields):
            return types.StructType(
                [types.StructField(each.name, to_spark_type(each.data_type)) for each in fields]
            )
        case PrimitiveType(name):
            # Not every version of Spark has geospatial types: their values are WKB.
            made: spark_types.DataType = getattr(types, _SPARK_NAMES.get(name, "BinaryType"))()
            return made


def declared_spark_type(field: StructField) -> spark_types.DataType:
    """The Spark type of a column, with the collations of its texts: Spark compares by them."""
    collations = field.metadata.get(_COLLATIONS_KEY)
    known = collations if isinstance(collations, dict) else {}
    return _collated(field.data_type, known, field.name)


def _collated(
    data_type: DataType, collations: Mapping[str, str], path: str
) -> spark_types.DataType:
    from pyspark.sql import types

    match data_type:
        case PrimitiveType("string") if path in collations:
            # With its provider, and perhaps a version: `icu.UNICODE.75.1`.
            return types.StringType(collations[path].split(".")[1])
        case ArrayType(element_type):
            return types.ArrayType(_collated(element_type, collations, f"{path}.element"))
        case MapType(key_type, value_type):
            return types.MapType(
                _collated(key_type, collations, f"{path}.key"),
                _collated(value_type, collations, f"{path}.value"),
            )
        case StructType(fields):
            return types.StructType(
                [types.StructField(each.name, declared_spark_type(each)) for each in fields]
            )
    return to_spark_type(data_type)


def to_spark_schema(schema: StructType) -> spark_types.StructType:
    """The Spark schema of a table, nullable throughout, as its columns are declared."""
    from pyspark.sql import types

    return types.StructType(
        [
            types.StructField(each.name, declared_spark_type(each), True, column_metadata(each))
            for each in schema
        ]
    )


def column_metadata(field: StructField) -> dict[str, object]:
    """The metadata that a column keeps in a DataFrame: its comment, and the declared lengths of
    texts, by which Spark pads values compared with CHAR(n).
    """
    kept = {"comment": field.comment, TEXT_LIMIT_KEY: field.metadata.get(TEXT_LIMIT_KEY)}
    return {key: value for key, value in kept.items() if value is not None}


def from_spark_schema(
    schema: spark_types.StructType, *, with_collations: bool = False
) -> StructType:
    """The table schema of a DataFrame's schema, nullable at every depth.

    Spark infers that a column is never null from how it was computed; later rows may still be null.
    NOT NULL is declared where a table is created.

    Metadata that belongs to Spark's analyser or to the table a DataFrame was read from (its
    column mapping, its generated columns) is dropped; comments and the user's own keys stay.

    `with_collations`: whether texts may have collations, which are dropped.

    Raises:
        SchemaMismatch: a column has a type that Delta tables do not have, or two columns have one
            name.
    """
    converted = _from_spark_struct(schema, "", with_collations=with_collations)
    seen: set[str] = set()
    for each in converted:
        if each.name.casefold() in seen:
            raise SchemaMismatch(
                f"the DataFrame has two columns called {each.name} (names are compared without "
                "regard to case); rename or drop one of them",
                column=each.name,
            )
        seen.add(each.name.casefold())
    return converted


def _from_spark_struct(
    schema: spark_types.StructType, parent: str, *, with_collations: bool
) -> StructType:
    fields = []
    for each in schema.fields:
        path = f"{parent}.{each.name}" if parent else each.name
        metadata = _kept_metadata(each.metadata or {})
        if type(each.dataType).__name__ in {"CharType", "VarcharType"}:
            metadata[TEXT_LIMIT_KEY] = each.dataType.simpleString()
        data_type = _from_spark_type(each.dataType, path, with_collations=with_collations)
        fields.append(StructField(each.name, data_type, True, metadata))
    return StructType(tuple(fields))


def _from_spark_type(
    data_type: spark_types.DataType, path: str, *, with_collations: bool
) -> DataType:
    from pyspark.sql import types

    def inner(inner_type: spark_types.DataType, step: str) -> DataType:
        return _from_spark_type(inner_type, f"{path}.{step}", with_collations=with_collations)

    match data_type:
        case types.StructType():
            return _from_spark_struct(data_type, path, with_collations=with_collations)
        case types.ArrayType():
            return ArrayType(inner(data_type.elementType, "element"))
        case types.MapType():
            return MapType(
                inner(data_type.keyType, "key"),
                inner(data_type.valueType, "value"),
            )
        case types.DecimalType():
            return DecimalType(data_type.precision, data_type.scale)
        case types.CharType() | types.VarcharType():
            return PrimitiveType("string")
        case _:
            name = _DELTA_NAMES.get(type(data_type).__name__)
            is_collated = name == "string" and data_type != types.StringType()
            if name is None or (is_collated and not with_collations):
                raise SchemaMismatch(
                    f"Delta tables have no type for {data_type.simpleString()}: cast the column "
                    "to a supported type before writing",
                    column=path,
                )
            return PrimitiveType(name)


def _kept_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value
        for key, value in metadata.items()
        if key == TEXT_LIMIT_KEY or not key.startswith(("__", "delta.", "parquet.field."))
    }
