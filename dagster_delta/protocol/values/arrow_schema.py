"""The types of a Delta schema as Arrow types, and back.

Spec: Schema Serialization Format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    inner_fields,
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


def to_arrow_type(
    data_type: DataType, field_of: Callable[[StructField], pa.Field] | None = None
) -> pa.DataType:
    """The pyarrow.DataType that holds values of a Delta type.

    `field_of` gives the pyarrow.Field of a field of a struct, or of the elements, keys or values of
    a collection; `to_arrow_field` by default.
    """
    field_of = field_of or to_arrow_field
    match data_type:
        case PrimitiveType(name):
            # Spec: Primitive Types. Geospatial values are WKB.
            unit = data_type.interval_unit
            return _ARROW_TYPES.get(name, pa.binary()) if unit is None else _INTERVALS[unit]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType():
            return pa.list_(*map(field_of, inner_fields(data_type)))
        case MapType():
            return pa.map_(*map(field_of, inner_fields(data_type)))
        case StructType(fields):
            return pa.struct([field_of(field) for field in fields])


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
    if data_type := _PRIMITIVES.get(arrow_type):
        return data_type
    if len(path) > MAX_NESTING:
        raise SchemaMismatch(
            f"column {path[0]} is nested more than {MAX_NESTING} levels deep, and files of such "
            "columns cannot be read; flatten it, or store it as JSON text",
            column=path[0],
        )
    if (data_type := _parametric_type(arrow_type, path)) is not None:
        return data_type
    column = ".".join(path)
    raise SchemaMismatch(
        f"column {column} has the Arrow type {arrow_type}, which no Delta type holds; cast or drop "
        "it before writing",
        column=column,
    )


_PRIMITIVES: Mapping[pa.DataType, DataType] = {
    arrow_type: PrimitiveType(name)
    for name, arrow_types in {
        "string": (pa.string(), pa.large_string(), pa.string_view()),
        "long": (pa.int64(), pa.uint32()),
        "integer": (pa.int32(), pa.uint16()),
        "short": (pa.int16(), pa.uint8()),
        "byte": (pa.int8(),),
        "double": (pa.float64(),),
        "float": (pa.float32(), pa.float16()),
        "boolean": (pa.bool_(),),
        "binary": (pa.binary(), pa.large_binary(), pa.binary_view()),
        "date": (pa.date32(), pa.date64()),
        "void": (pa.null(),),
    }.items()
    for arrow_type in arrow_types
} | {pa.uint64(): DecimalType(20, 0)}


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


_LISTS = (
    *(pa.ListType, pa.LargeListType, pa.FixedSizeListType),
    *(pa.ListViewType, pa.LargeListViewType),
)


def _parametric_type(arrow_type: pa.DataType, path: tuple[str, ...]) -> DataType | None:
    match arrow_type:
        case pa.TimestampType():
            return PrimitiveType("timestamp" if arrow_type.tz else "timestamp_ntz")
        case _ if pa.types.is_decimal(arrow_type):
            precision, scale = arrow_type.precision, arrow_type.scale
            fits = precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision
            return DecimalType(precision, scale) if fits else None
        case pa.FixedSizeBinaryType():
            return PrimitiveType("binary")
        case pa.MapType():
            return MapType(
                from_arrow_type(arrow_type.key_type, (*path, "key")),
                from_arrow_type(arrow_type.item_type, (*path, "value")),
                arrow_type.item_field.nullable,
            )
        case _ if isinstance(arrow_type, _LISTS):
            element = arrow_type.value_field
            return ArrayType(from_arrow_type(element.type, (*path, "element")), element.nullable)
        case pa.StructType():
            if is_marked_variant(arrow_type):
                return PrimitiveType("variant")
            return StructType(tuple(from_arrow_field(child, path) for child in arrow_type))
        case pa.DictionaryType() | pa.RunEndEncodedType():
            return from_arrow_type(arrow_type.value_type, path)
        case pa.Bool8Type():
            return PrimitiveType("boolean")
        case pa.BaseExtensionType():
            is_variant = arrow_type.extension_name in _VARIANT_EXTENSIONS
            stored = arrow_type.storage_type
            return PrimitiveType("variant") if is_variant else from_arrow_type(stored, path)
    return None
