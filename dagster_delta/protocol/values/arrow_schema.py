"""The types of a Delta schema as Arrow types, and back.

Spec: Schema Serialization Format.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.schema import (
    MAX_DECIMAL_PRECISION,
    MAX_NESTING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)

COMMENT_KEY = b"comment"
"""Key of a column comment in Arrow field metadata."""

_VARIANT_MARK = {b"variant": b"true"}

VARIANT_STORAGE = pa.struct(
    [
        pa.field("value", pa.binary()),
        # Spark marks its variants in the same way, and reads marked columns as variants.
        pa.field("metadata", pa.binary(), metadata=_VARIANT_MARK),
    ]
)
"""A variant as it is stored: its value and its dictionary of names, both encoded.

A mark on `metadata` distinguishes it from a struct of two binaries with these names.
"""

_ARROW_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": VARIANT_STORAGE,
    "void": pa.null(),
}


# pyarrow has no type for months alone, and polars none for months beside days.
_INTERVALS = {"month": pa.int32(), "microsecond": pa.duration("us")}


def to_arrow_type(data_type: DataType) -> pa.DataType:
    """The pyarrow.DataType that holds values of a Delta type."""
    match data_type:
        case PrimitiveType(name):
            # Spec: Primitive Types. Geospatial values are WKB.
            unit = data_type.interval_unit
            return _ARROW_TYPES.get(name, pa.binary()) if unit is None else _INTERVALS[unit]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType(element_type, contains_null):
            element = StructField("element", element_type, contains_null)
            return pa.list_(to_arrow_field(element))
        case MapType(key_type, value_type, value_contains_null):
            return pa.map_(
                pa.field("key", to_arrow_type(key_type), nullable=False),
                to_arrow_field(StructField("value", value_type, value_contains_null)),
            )
        case StructType(fields):
            return pa.struct([to_arrow_field(field) for field in fields])


def to_arrow_field(field: StructField) -> pa.Field:
    """The pyarrow.Field of a Delta field, under its logical name and with its comment.

    Geospatial fields and intervals have their type as `delta.type`. Geometries are also marked as
    GeoArrow's WKB, so that DuckDB and polars know them; DuckDB refuses GeoArrow's mark of a
    geography.
    """
    metadata = {} if field.comment is None else {COMMENT_KEY: field.comment.encode()}
    if isinstance(field.data_type, PrimitiveType) and field.data_type.is_read_only:
        metadata[b"delta.type"] = field.data_type.name.encode()
        if field.data_type.name.startswith("geometry"):
            crs = {"crs": field.data_type.coordinates}
            metadata[b"ARROW:extension:name"] = b"geoarrow.wkb"
            metadata[b"ARROW:extension:metadata"] = msgspec.json.encode(crs)
    # In Arrow, a column of type null must be nullable.
    nullable = field.nullable or field.data_type == PrimitiveType("void")
    return pa.field(field.name, to_arrow_type(field.data_type), nullable, metadata or None)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The pyarrow.Schema of a Delta schema, under logical names, with nullability and comments."""
    return pa.schema([to_arrow_field(field) for field in schema])


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """The Delta schema that holds every value of a pyarrow.Schema.

    Types without a counterpart become the narrowest type that holds them: `uint32` becomes `long`,
    `uint64` becomes `decimal(20,0)`. Structs marked as variants become variants; a variant that
    lost its mark becomes a struct.
    """
    return StructType(tuple(from_arrow_field(field) for field in schema))


def from_arrow_field(field: pa.Field, path: tuple[str, ...] = ()) -> StructField:
    """The Delta field of a pyarrow.Field.

    Its comment is kept, other metadata is not. `path` is that of the parent, for errors.
    """
    comment = (field.metadata or {}).get(COMMENT_KEY)
    return StructField(
        field.name,
        from_arrow_type(field.type, (*path, field.name)),
        field.nullable,
        {} if comment is None else {"comment": comment.decode()},
    )


def from_arrow_type(arrow_type: pa.DataType, path: tuple[str, ...] = ()) -> DataType:
    """The Delta type that holds every value of a pyarrow.DataType."""
    if name := _PRIMITIVES.get(arrow_type):
        return PrimitiveType(name)
    if len(path) > MAX_NESTING:
        raise SchemaMismatch(
            f"column {path[0]} is nested more than {MAX_NESTING} levels deep, and files of such "
            "columns cannot be read; flatten it, or store it as JSON text",
            column=path[0],
        )
    for matches, convert in _PARAMETRIC:
        if matches(arrow_type) and (data_type := convert(arrow_type, path)) is not None:
            return data_type
    column = ".".join(path)
    raise SchemaMismatch(
        f"column {column} has the Arrow type {arrow_type}, which no Delta type holds; cast or drop "
        "it before writing",
        column=column,
    )


_PRIMITIVES = {
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.uint32(): "long",
    pa.uint16(): "integer",
    pa.uint8(): "short",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.float16(): "float",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.null(): "void",
}


def is_variant_storage(arrow_type: pa.DataType) -> bool:
    """Whether values of a pyarrow.DataType can be encoded variants: structs of their two parts."""
    if not pa.types.is_struct(arrow_type):
        return False
    return sorted(field.name for field in arrow_type) == ["metadata", "value"]


def is_marked_variant(arrow_type: pa.DataType) -> bool:
    """Whether a pyarrow.DataType is `VARIANT_STORAGE`, or Spark's form of it."""
    if not is_variant_storage(arrow_type):
        return False
    mark = arrow_type.field("metadata").metadata or {}
    return bool(mark.items() >= _VARIANT_MARK.items())


_VARIANT_EXTENSIONS = frozenset({"arrow.parquet.variant", "parquet.variant"})


def _from_decimal(arrow_type: pa.DataType, _path: tuple[str, ...]) -> DataType | None:
    precision, scale = arrow_type.precision, arrow_type.scale
    if precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
        return DecimalType(precision, scale)
    return None


def _from_list(arrow_type: pa.DataType, path: tuple[str, ...]) -> DataType:
    element = arrow_type.value_field
    return ArrayType(from_arrow_type(element.type, (*path, "element")), element.nullable)


def _from_map(arrow_type: pa.DataType, path: tuple[str, ...]) -> DataType:
    return MapType(
        from_arrow_type(arrow_type.key_type, (*path, "key")),
        from_arrow_type(arrow_type.item_type, (*path, "value")),
        arrow_type.item_field.nullable,
    )


def _from_struct(arrow_type: pa.DataType, path: tuple[str, ...]) -> DataType:
    if is_marked_variant(arrow_type):
        return PrimitiveType("variant")
    return StructType(tuple(from_arrow_field(child, path) for child in arrow_type))


def _from_extension(arrow_type: pa.DataType, path: tuple[str, ...]) -> DataType:
    if arrow_type.extension_name in _VARIANT_EXTENSIONS:
        return PrimitiveType("variant")
    if isinstance(arrow_type, pa.Bool8Type):
        return PrimitiveType("boolean")
    return from_arrow_type(arrow_type.storage_type, path)


def _is_list(arrow_type: pa.DataType) -> bool:
    return any(
        matches(arrow_type)
        for matches in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


_PARAMETRIC: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, tuple[str, ...]], DataType | None]],
    ...,
] = (
    (
        pa.types.is_timestamp,
        lambda arrow_type, _: PrimitiveType("timestamp" if arrow_type.tz else "timestamp_ntz"),
    ),
    (pa.types.is_uint64, lambda _arrow_type, _path: DecimalType(20, 0)),
    (pa.types.is_decimal, _from_decimal),
    (pa.types.is_fixed_size_binary, lambda _arrow_type, _path: PrimitiveType("binary")),
    (pa.types.is_map, _from_map),
    (_is_list, _from_list),
    (pa.types.is_struct, _from_struct),
    (pa.types.is_dictionary, lambda arrow_type, path: from_arrow_type(arrow_type.value_type, path)),
    (
        pa.types.is_run_end_encoded,
        lambda arrow_type, path: from_arrow_type(arrow_type.value_type, path),
    ),
    (lambda arrow_type: isinstance(arrow_type, pa.BaseExtensionType), _from_extension),
)
