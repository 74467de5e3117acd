"""Per-file statistics as columns: parsed from JSON text, or projected from a checkpoint.

Spec: Per-file Statistics.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.registry import effective_features
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import char_paths
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
    data_type_from_json,
    fold_name,
    walk_types,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_columns import boolean_column, string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import array_of

_TEMPORAL = tuple(map(PrimitiveType, ("date", "timestamp", "timestamp_ntz")))
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoding a text raises that is not the JSON of statistics."""
_FLOATS = (PrimitiveType("float"), PrimitiveType("double"))
_SPECIAL_FLOATS: dict[object, float] = {
    name: float(name) for name in ("NaN", "Infinity", "-Infinity")
}


def _json_type(data_type: DataType) -> object:
    """The Python type to decode a JSON minimum or maximum of the type into. Raises nothing."""
    if isinstance(data_type, DecimalType):
        return decimal.Decimal | None  # from the text of the number, to avoid a double
    match data_type:
        case PrimitiveType("byte" | "short" | "integer" | "long"):
            return int | None
        case PrimitiveType("float" | "double"):
            return float | str | None  # NaN and the infinities are strings
        case PrimitiveType("boolean"):
            return bool | None
        case _:
            return str | None


def _parse_statistic_values(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """A pyarrow Array of the type; values that do not fit are null, that is, unknown.

    Files written before a column was widened hold values of the narrower type, which are read as
    values of this type.
    """
    try:
        return _parse_values(values, data_type)
    except _UNFIT:
        if len(values) == 1:
            return _parsed_alone(values[0], data_type)
        # Nearly all values fit: halves find the others in a few steps.
        half = len(values) // 2
        halves = values[:half], values[half:]
        return pa.concat_arrays([_parse_statistic_values(some, data_type) for some in halves])


def _parse_values(values: Sequence[Any], data_type: DataType) -> pa.Array:
    if data_type in _TEMPORAL:
        return pc.cast(string_column(values), to_arrow_type(data_type))
    if data_type in _FLOATS:
        values = [_SPECIAL_FLOATS.get(value, value) for value in values]
    return array_of(values, data_type)


def _parsed_alone(value: Any, data_type: DataType) -> pa.Array:  # noqa: ANN401
    try:
        match data_type:
            case PrimitiveType("timestamp" | "timestamp_ntz" as name) if value is not None:
                # Arrow reads neither offsets with seconds nor timestamps without an offset.
                return array_of([_parse_timestamp(value, with_zone=name == "timestamp")], data_type)
        return _parse_values([value], data_type)
    except _UNFIT:
        return pa.nulls(1, to_arrow_type(data_type))


def _parse_timestamp(text: str, *, with_zone: bool) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if with_zone:
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    if found.utcoffset():
        raise ValueError(f"{text!r} has an offset, and its column has no time zone")
    return found.replace(tzinfo=None)


NUM_RECORDS = "num_records"
"""The column of a statistics table with the rows of each file, deleted ones included."""

# Bounds the memory of decoded rows for any number of files.
_ROWS_PER_CHUNK = 65_536

# Types whose bounds writers do not store, or store in different forms.
_WITHOUT_BOUNDS = frozenset({"binary", "variant", "void"})

# Names of the elements, keys and values of collections in data files: those of the specification,
# and those of Arrow in different languages and in DuckDB.
_NAMES_IN_COLLECTIONS = frozenset({"element", "item", "l", "key", "value", "keys", "values"})


class StatisticsColumn(msgspec.Struct, frozen=True):
    """A column, not of a struct type, whose statistics are requested."""

    path: tuple[str, ...]
    """Physical names from the root to the leaf."""
    data_type: DataType
    """Current type of the column in the table."""
    is_padded: bool = False
    """Whether texts are padded when they are read, so that the bounds differ from the padded
    values."""
    has_null_count: bool = True
    """False if the null count under its path may be that of other values, see
    `is_name_in_collections`."""
    variant_path: str | None = None
    """Path in the variants of the column to the values whose bounds are requested; they are cast to
    `data_type`."""

    @property
    def has_bounds(self) -> bool:
        """Whether the column has a minimum and a maximum to compare values with."""
        if self.is_padded:
            return False
        match self.data_type:
            case PrimitiveType(name):
                # Those of geospatial columns are corners of a bounding box.
                return name not in _WITHOUT_BOUNDS and not self.data_type.is_read_only
            case DecimalType():
                return True
            case ArrayType() | MapType() | StructType():
                return False

    @property
    def bound_type(self) -> pa.DataType:
        """Arrow type of its bounds; null if it has none."""
        return to_arrow_type(self.data_type) if self.has_bounds else pa.null()

    def bounds_of(self, stored: Sequence[Any]) -> Sequence[Any]:
        """The minimums or maximums as far as they are bounds of the requested values."""
        if self.variant_path is None:
            return stored
        from dagster_delta.protocol.statistics.variant_bounds import bound_at

        return [bound_at(value, self.variant_path, self.data_type) for value in stored]


class SchemaLeaf(NamedTuple):
    """A column of a schema, or a field in structs, that is not a struct itself."""

    logical_path: tuple[str, ...]
    physical_path: tuple[str, ...]
    positions: tuple[int, ...]
    """Index of the column, then those of the fields in it."""
    data_type: DataType


def schema_leaves(
    schema: StructType, mode: ColumnMappingMode, above: SchemaLeaf | None = None
) -> Iterator[SchemaLeaf]:
    """The leaves of a schema in order; `above` is the struct that it is the type of."""
    logical, physical, positions, _ = above or ((), (), (), None)
    for index, field in enumerate(schema):
        leaf = SchemaLeaf(
            (*logical, field.name),
            (*physical, physical_name(field, mode)),
            (*positions, index),
            field.data_type,
        )
        if isinstance(field.data_type, StructType):
            yield from schema_leaves(field.data_type, mode, leaf)
        else:
            yield leaf


def statistics_rule(configuration: TableConfiguration) -> Callable[[int, tuple[str, ...]], bool]:
    """Whether files have statistics on a leaf, by its index and its logical path.

    `delta.dataSkippingStatsColumns` names them; otherwise they are the first
    `delta.dataSkippingNumIndexedCols` leaves of the data columns. Of those, a field `d` of a struct
    `c` has none beside a column `c.d`: DuckDB would take its bounds for those of the column, and
    lose rows. In a clustered table it may be a clustering column, which must have them.
    """
    properties = configuration.properties
    named, limit = properties.data_skipping_stats_columns, properties.data_skipping_num_indexed_cols
    if named is None:
        dotted = {fold_name(field.name) for field in configuration.schema if "." in field.name}
        if "clustering" in effective_features(configuration.protocol):
            dotted.clear()
        return lambda index, path: (
            (limit < 0 or index < limit)
            and not (dotted and len(path) > 1 and fold_name(".".join(path)) in dotted)
        )
    wanted = list(map(_fold_path, named))
    return lambda _, path: any(_fold_path(path[: len(names)]) == names for names in wanted)


def _fold_path(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fold_name(name) for name in path)


def statistics_columns(configuration: TableConfiguration) -> tuple[StatisticsColumn, ...]:
    """The leaf columns that files of the table have statistics on, in schema order."""
    is_indexed = statistics_rule(configuration)
    leaves = schema_leaves(configuration.data_schema, configuration.column_mapping_mode)
    return tuple(
        StatisticsColumn(leaf.physical_path, leaf.data_type)
        for index, leaf in enumerate(leaves)
        if is_indexed(index, leaf.logical_path)
    )


def is_name_in_collections(path: tuple[str, ...]) -> bool:
    """Whether the null count at a path may be that of elements, keys or values of a collection.

    deltalake up to 1.5 stores their null counts as if they were top-level columns: those of the
    values of any map as `value`.
    """
    return path[0] in _NAMES_IN_COLLECTIONS


def leaves_with_statistics(
    paths: Collection[tuple[str, ...]], configuration: TableConfiguration
) -> dict[tuple[str, ...], StatisticsColumn]:
    """Those of some logical paths that may have statistics, in the order of the paths. To the path
    of a variant column, a path in it (see `normalize_path`) and the name of a type may be added.
    """
    partitioned = {(name,) for name in configuration.partition_columns}
    padded = char_paths(configuration.schema)
    columns = {}
    for path in sorted({*paths} - partitioned):
        fields = configuration.schema.fields_along(path)
        if len(fields) == len(path) - 2 and fields[-1:] and fields[-1].data_type == _VARIANT:
            names = tuple(physical_name(f, configuration.column_mapping_mode) for f in fields)
            *_, variant_path, type_name = path
            columns[path] = StatisticsColumn(
                names,
                data_type_from_json(type_name),
                has_null_count=False,
                variant_path=variant_path,
            )
        elif len(fields) == len(path) and not isinstance(fields[-1].data_type, StructType):
            mode = configuration.column_mapping_mode
            names = tuple(physical_name(field, mode) for field in fields)
            columns[path] = StatisticsColumn(
                names,
                fields[-1].data_type,
                is_padded=path in padded,
                has_null_count=not (
                    is_name_in_collections(names) and _may_hold_collections(configuration)
                ),
            )
    return columns


def _may_hold_collections(configuration: TableConfiguration) -> bool:
    """Whether files may have arrays or maps: with column mapping, also those of dropped columns."""
    return configuration.column_mapping_mode != "none" or any(
        isinstance(data_type, ArrayType | MapType) for data_type in walk_types(configuration.schema)
    )


def statistics_schema(columns: Sequence[StatisticsColumn]) -> pa.Schema:
    """The pa.Schema of a statistics table: `num_records`, `tight_bounds`, then per column."""
    fields = [pa.field(NUM_RECORDS, pa.int64()), pa.field("tight_bounds", pa.bool_())]
    for index, column in enumerate(columns):
        fields.append(pa.field(f"min.{index}", column.bound_type))
        fields.append(pa.field(f"max.{index}", column.bound_type))
        fields.append(pa.field(f"null_count.{index}", pa.int64()))
    return pa.schema(fields)


def parse_statistics_json(
    stats: pa.Array | pa.ChunkedArray, columns: Sequence[StatisticsColumn]
) -> pa.Table:
    """A pyarrow.Table with the statistics of the columns, one row per text.

    The table has `num_records` int64, `tight_bounds` bool, and for column `i` `min.i` and `max.i`
    (of the column's type) and `null_count.i` int64. Null means unknown: if a text is damaged, its
    whole row is unknown; if a value does not fit its column's type, only that value is unknown.
    """
    schema = statistics_schema(columns)
    decoder = _decoder_of(tuple(columns))
    batches = []
    for start in range(0, len(stats), _ROWS_PER_CHUNK):
        rows = decoder.decode(stats.slice(start, _ROWS_PER_CHUNK).to_pylist())
        batches.append(pa.record_batch(decoder.arrays(rows), schema=schema))
    return pa.Table.from_batches(batches, schema)


def project_parsed_statistics(
    stats_parsed: pa.Array | pa.ChunkedArray, columns: Sequence[StatisticsColumn]
) -> pa.Table:
    """The same table as `parse_statistics_json` makes, from `add.stats_parsed` of a checkpoint."""
    schema = statistics_schema(columns)
    fields = _NestedFields(stats_parsed)
    arrays = [
        _convert_values(fields.at(("numRecords",)), pa.int64(), len(stats_parsed)),
        _convert_values(fields.at(("tightBounds",)), pa.bool_(), len(stats_parsed)),
    ]
    for column in columns:
        for group in ("minValues", "maxValues"):
            found = fields.at((group, *column.path)) if column.has_bounds else None
            if found is not None and column.variant_path is not None:
                values = column.bounds_of(found.to_pylist())
                found = _parse_statistic_values(values, column.data_type)
            arrays.append(_convert_values(found, column.bound_type, len(stats_parsed)))
        counts = fields.at(("nullCount", *column.path)) if column.has_null_count else None
        if counts is None and column.has_null_count:
            # The name of a draft of the specification.
            counts = fields.at(("nullCounts", *column.path))
        arrays.append(_convert_values(counts, pa.int64(), len(stats_parsed)))
    return pa.Table.from_arrays(arrays, schema=schema)


def with_record_count(
    stats: str | None, num_records: int, *, tight_bounds: bool | None = None
) -> str:
    """The statistics of a file as JSON, with another number of rows.

    Deleted rows count; `tight_bounds` says whether the bounds are those of live rows, None keeps
    the previous value. Nothing is kept of statistics that are not JSON, such as the bare `Infinity`
    that writers in Python store.
    """
    try:
        # Keep the text of values: a number could lose digits in Python.
        found = msgspec.json.decode(stats or "{}", type=dict[str, msgspec.Raw])
    except _UNREADABLE:
        found = {}
    found["numRecords"] = msgspec.Raw(b"%d" % num_records)
    if tight_bounds is not None:
        found["tightBounds"] = msgspec.Raw(b"true" if tight_bounds else b"false")
    return msgspec.json.encode(found).decode()


class _NestedFields:
    """The nested fields of a struct array, found by path.

    Every struct is flattened once: extracting one field costs time in proportion to all fields.
    """

    def __init__(self, values: pa.Array | pa.ChunkedArray) -> None:
        self._values = values
        self._children: dict[tuple[str, ...], dict[str, Any]] = {}

    def at(self, path: tuple[str, ...]) -> pa.Array | pa.ChunkedArray | None:
        """The field at a path, null if a struct above it is; None if absent."""
        values = self._values
        for depth, name in enumerate(path):
            children = self._children.get(path[:depth])
            if children is None:
                children = self._children[path[:depth]] = _fields_by_name(values)
            values = children.get(name)
            if values is None:
                return None
        return values


def _fields_by_name(values: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array | pa.ChunkedArray]:
    if not pa.types.is_struct(values.type):
        return {}
    names = [field.name for field in values.type]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    fields = dict(zip(names, values.flatten(), strict=True))
    return {name: field for name, field in fields.items() if name not in repeated}


def _convert_values(
    values: pa.Array | pa.ChunkedArray | None, target: pa.DataType, length: int
) -> pa.Array | pa.ChunkedArray:
    if values is None or not _is_readable_as(values.type, target):
        return pa.nulls(length, target)
    if values.type == target:
        return values
    try:
        if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(target):
            # A cast cannot drop or add the time zone; both types count UTC microseconds.
            values = pc.cast(pc.cast(values, pa.timestamp("us", values.type.tz)), pa.int64())
        elif pa.types.is_date(values.type) and pa.types.is_timestamp(target):
            values = pc.cast(pc.cast(values, pa.timestamp("us")), pa.int64())
        return pc.cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Statistics that do not match the column's type: no bounds.
        return pa.nulls(length, target)


def _is_readable_as(stored: pa.DataType, target: pa.DataType) -> bool:
    """Whether a checkpoint may hold exact bounds in this type: that of the column, or one that it
    was widened from. A long in a double may be rounded, for instance.
    """
    types = pa.types
    if types.is_dictionary(stored):
        stored = stored.value_type
    is_readable: bool = stored == target
    if types.is_string(target):
        is_readable = types.is_string(stored) or types.is_large_string(stored)
    elif types.is_integer(target):
        is_readable = types.is_integer(stored)
    elif types.is_floating(target):
        is_narrow = types.is_integer(stored) and stored.bit_width < 64
        is_readable = types.is_floating(stored) or is_narrow
    elif types.is_decimal(target):
        is_readable = types.is_decimal(stored) or types.is_integer(stored)
    elif types.is_timestamp(target):
        is_day = types.is_date(stored) and target.tz is None
        is_readable = types.is_timestamp(stored) or is_day
    return is_readable


class _Decoder:
    """Decodes only the requested fields, in C, one text at a time."""

    def __init__(self, columns: Sequence[StatisticsColumn]) -> None:
        bounds: _Tree = {}
        counts: _Tree = {}
        for column in columns:
            if column.has_bounds:
                is_text = column.variant_path is not None
                stored_type = (str | None) if is_text else _json_type(column.data_type)
                plant(bounds, column.path, stored_type)
            plant(counts, column.path, int | None)
        self._columns = columns
        self._attributes: dict[tuple[str, ...], dict[str, str]] = {}
        """Name of each field of a struct in `_row_type`, by the path of the struct."""
        self._tree: _Tree = {
            "numRecords": int | None,
            "tightBounds": bool | None,
            "minValues": bounds,
            "maxValues": bounds,
            "nullCount": counts,
            # The name of a draft of the specification.
            "nullCounts": counts,
        }
        self._row_type = _define_struct(self._tree)
        self._decode = msgspec.json.Decoder(self._row_type).decode
        self._unknown = self._row_type()

    def decode(self, texts: Sequence[str | None]) -> list[msgspec.Struct]:
        decode, unknown = self._decode, self._unknown
        rows = []
        for text in texts:
            try:
                rows.append(decode(text) if text else unknown)
            except _UNREADABLE:
                rows.append(self._decode_leniently(text or ""))
        return rows

    def _decode_leniently(self, text: str) -> msgspec.Struct:
        """The row without the fields that are not of their type; unknown if it is not JSON."""
        try:
            return _fill_struct(self._row_type, self._tree, _JSON.decode(text))
        except _UNREADABLE:
            return self._unknown

    def arrays(self, rows: Sequence[msgspec.Struct]) -> list[pa.Array]:
        tight_bounds = boolean_column(self._get_values(rows, "tightBounds"))
        arrays = [
            _parse_statistic_values(self._get_values(rows, "numRecords"), _LONG),
            tight_bounds,
        ]
        for column in self._columns:
            for group in ("minValues", "maxValues"):
                if column.has_bounds:
                    values = column.bounds_of(self._get_values(rows, group, *column.path))
                    arrays.append(_parse_statistic_values(values, column.data_type))
                else:
                    arrays.append(pa.nulls(len(rows), pa.null()))
            if not column.has_null_count:
                arrays.append(pa.nulls(len(rows), pa.int64()))
                continue
            counts = [
                _parse_statistic_values(self._get_values(rows, group, *column.path), _LONG)
                for group in ("nullCount", "nullCounts")
            ]
            arrays.append(pc.coalesce(*counts))
        return arrays

    def _get_values(self, rows: Sequence[msgspec.Struct], *path: str) -> list[Any]:
        attributes = []
        tree: Any = self._tree
        for depth, name in enumerate(path):
            known = self._attributes.get(path[:depth])
            if known is None:
                known = {field: f"f{index}" for index, field in enumerate(tree)}
                self._attributes[path[:depth]] = known
            attributes.append(known[name])
            tree = tree[name]
        return list(map(attrgetter(".".join(attributes)), rows))


_JSON = msgspec.json.Decoder(float_hook=decimal.Decimal)

# Defining its classes takes longer than decoding the statistics of many files.
_decoder_of = lru_cache(maxsize=16)(_Decoder)

_LONG = PrimitiveType("long")
_VARIANT = PrimitiveType("variant")

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
"""JSON escapes it in a name, which msgspec does not support: such columns have no statistics."""

# The requested columns as a tree: names to JSON types or to sub-trees.
_Tree: TypeAlias = dict[str, Any]


def plant(tree: dict[str, Any], path: Sequence[str], leaf: object) -> None:
    """Put a leaf into a tree of names at a path."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _define_struct(tree: _Tree) -> type[msgspec.Struct]:
    """A struct that decodes exactly the tree; its attributes are `f0`, `f1`, … in tree order."""
    fields: list[tuple[str, object, object]] = []
    for index, node in enumerate(tree.values()):
        if isinstance(node, dict):
            nested = _define_struct(node)
            fields.append((f"f{index}", nested, msgspec.field(default_factory=nested)))
        else:
            fields.append((f"f{index}", node, None))
    names = {
        f"f{index}": uuid4().hex if _ESCAPED.search(name) else name
        for index, name in enumerate(tree)
    }
    return msgspec.defstruct("_Row", fields, rename=names, gc=False)


def _fill_struct(row_type: type[msgspec.Struct], tree: _Tree, found: object) -> msgspec.Struct:
    """The struct filled with the fitting values of a JSON object."""
    values: dict[str, object] = {}
    for index, (name, node) in enumerate(tree.items()):
        given = found.get(name) if isinstance(found, dict) else None
        if isinstance(node, dict):
            values[f"f{index}"] = _fill_struct(type(getattr(row_type(), f"f{index}")), node, given)
        else:
            with contextlib.suppress(msgspec.ValidationError):
                values[f"f{index}"] = msgspec.convert(given, node)
    return row_type(**values)
