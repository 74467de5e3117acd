"""Rules for names, types and partitioning of columns.

Spec: Column Mapping; Schema Serialization Format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    MAX_NESTING,
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructType,
    fold_name,
    inner_types,
    nesting_of,
    walk_fields,
)
from dagster_delta.protocol.statistics.statistics import statistics_columns
from dagster_delta.protocol.table_properties import ColumnMappingMode

_VOID = PrimitiveType("void")
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
# Files of unmapped tables use the logical names, and Spark's Parquet readers refuse other
# characters.
_UNMAPPED_NAME = re.compile(r"[^ ,;{}()\n\t=]+")


def check_column_types(schema: StructType, known: StructType | None = None) -> None:
    """Refuse a schema without columns, or with a column of no type that is not in the known schema,
    which another writer may have made.
    """
    if not schema.fields:
        raise InvalidArgument(
            "a table has at least one column, and the schema has none: data without rows have to "
            "bring their columns all the same"
        )
    check_fields_of_structs(schema)
    old = {} if known is None else {path: field.data_type for path, field in walk_fields(known)}
    for path, field in walk_fields(schema):
        if _VOID in types_outside_structs(field.data_type) and old.get(path) != field.data_type:
            column = ".".join(path)
            raise InvalidArgument(
                f"column {column} is new, contains only nulls and has no type; give it a type: "
                "cast it in the data, say it in `columns` of an asset of files, or create "
                "the table with its columns before the first write; or return None until there are "
                "rows, which writes nothing",
                column=column,
            )


def check_file_columns(schema: StructType, partition_columns: Collection[str]) -> None:
    """Refuse to write files in which every column is of type void, which is never written: they
    could not record their number of rows.
    """
    written = [field for field in schema if field.name not in partition_columns]
    if written and all(field.data_type == _VOID for field in written):
        column = written[0].name
        raise InvalidArgument(
            f"column {column} is of type void, like every column that is not a partition column, "
            "so that data files cannot hold rows; write values of a type to it with "
            'schema_mode="merge" first',
            column=column,
        )


def check_fields_of_structs(schema: StructType) -> None:
    """Refuse a struct without fields, at any depth."""
    for path, field in walk_fields(schema):
        if StructType(()) in types_outside_structs(field.data_type):
            column = ".".join(path)
            raise InvalidArgument(
                f"column {column} is a struct without fields, which data files cannot hold; give "
                "it a field, or drop the column",
                column=column,
            )


def check_nesting(schema: StructType, *, known: StructType | None = None) -> None:
    """Refuse a column whose type is nested so deeply that its data files could not be read. Columns
    of the known schema are in the table already, and are accepted.
    """
    for field in schema:
        if nesting_of(field.data_type) <= MAX_NESTING:
            continue
        before = None if known is None else known.get(field.name)
        if before is None or before.data_type != field.data_type:
            raise InvalidArgument(
                f"column {field.name} is nested more than {MAX_NESTING} levels deep (an array or "
                "a map takes two), and files of such columns cannot be read; flatten it, or store "
                "it as JSON text",
                column=field.name,
            )


def types_outside_structs(data_type: DataType) -> Iterator[DataType]:
    """The type itself, and the types of elements, keys and values in it; not of struct fields."""
    yield data_type
    if not isinstance(data_type, StructType):
        for inner in inner_types(data_type):
            yield from types_outside_structs(inner)


def resolve_partition_columns(schema: StructType, names: Sequence[str]) -> tuple[str, ...]:
    """The partition columns in the schema's spelling; at least one other column remains for the
    data files.
    """
    if isinstance(names, str):
        # A text is a sequence of texts, which type checkers accept.
        raise InvalidArgument(f"partition_by is a list of columns; write [{names!r}]")
    resolved: list[str] = []
    for name in names:
        field = schema.get(name)
        if field is None:
            raise InvalidArgument(
                f"partition_by names {name!r}, and the columns are {', '.join(schema.names)}",
                column=name,
            )
        if isinstance(field.data_type, StructType | ArrayType | MapType) or (
            field.data_type == PrimitiveType("variant")
        ):
            raise InvalidArgument(
                f"a table cannot be partitioned by {name}, which is of type {field.data_type}; "
                "choose a column of a primitive type",
                column=name,
            )
        if field.name in resolved:
            raise InvalidArgument(f"partition_by names {name!r} twice", column=name)
        resolved.append(field.name)
    if len(resolved) == len(schema):
        raise InvalidArgument(
            "partition_by names every column, and data files need at least one; leave one out"
        )
    return tuple(resolved)


def check_column_names(
    schema: StructType, mode: ColumnMappingMode, *, known: StructType | None = None
) -> None:
    """Refuse duplicate names, and names that files of an unmapped table cannot have, unless they
    are in the known schema.
    """
    old = frozenset(path for path, _ in walk_fields(known)) if known else frozenset()
    seen: dict[tuple[str, ...], str] = {}
    for path, field in walk_fields(schema):
        column = ".".join(path)
        folded = tuple(fold_name(step) for step in path)
        if (other := seen.get(folded)) is not None:
            same = "" if other == column else f", as {other} differs from it in case alone"
            raise InvalidArgument(
                f"there are two columns {column}{same}: rename or drop one of them", column=column
            )
        seen[folded] = column
        if not field.name:
            raise InvalidArgument("a column has no name: give it one", column=column)
        if mode == "none" and path not in old and not _UNMAPPED_NAME.fullmatch(field.name):
            raise InvalidArgument(
                f"the column name {field.name!r} contains one of ' ,;{{}}()=', a tab or a newline; "
                "rename the column, or create the table with the property "
                "delta.columnMapping.mode = name (table_properties of the DeltaIOManager, or "
                "properties of DeltaTable.create)",
                column=column,
            )


def check_feed_names(schema: StructType, *, known: StructType | None = None) -> None:
    """Refuse columns with the names of those of the change data feed, unless they are in the known
    schema.
    """
    for field in schema:
        is_known = known is not None and known.get(field.name) is not None
        if fold_name(field.name) in _FEED_COLUMNS and not is_known:
            raise InvalidArgument(
                f"column {field.name} has the name of a column of the change data feed, which the "
                "table enables (delta.enableChangeDataFeed); rename it, or choose another name",
                column=field.name,
            )


def layout_problem(
    configuration: TableConfiguration, path: tuple[str, ...], *, unordered: Collection[str]
) -> str | None:
    """Why rows cannot be laid out by the column at a path, in the schema's spelling; None if they
    can. Beside structs, arrays and maps, types with the names `unordered` cannot be compared.
    """
    fields = configuration.schema.fields_along(path)
    if len(fields) < len(path):
        return "it is part of an array or a map, or leads into a column that is not a struct"
    kind = fields[-1].data_type
    if inner_types(kind) or str(kind) in unordered:
        return f"values of type {kind} have no order for that"
    mode = configuration.column_mapping_mode
    physical = tuple(physical_name(field, mode) for field in fields)
    if physical not in {column.path for column in statistics_columns(configuration)}:
        # Spec: writers MUST write per-file statistics on the clustering columns.
        return (
            "files have no statistics on it, by which readers skip files: move it to the front, or "
            "add it to delta.dataSkippingStatsColumns, and rewrite the table"
        )
    return None
