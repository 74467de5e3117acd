"""Which columns rows may be sorted by along a Z-order curve.

Spec: Per-file Statistics; Clustered Tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.checkpoint.structs import statistics_columns
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import (
    ArrayType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.table_properties import parse_column_paths

_UNORDERED = frozenset({"variant", "void"})


def zorder_columns(
    configuration: TableConfiguration, columns: Sequence[str], *, option: str = "zorder_by"
) -> tuple[tuple[str, ...], ...]:
    """The logical paths of the columns, as the schema spells them.

    `option` is the option that names them, for errors. Dots separate struct fields, and backticks
    quote a name that contains dots.
    """
    if columns and configuration.supports("clustering"):
        raise InvalidArgument(
            "the table has clustering columns, which say how its rows are laid out; leave "
            f"{option} out"
        )
    indexed = {each.path for each in statistics_columns(configuration)}
    found: list[tuple[str, ...]] = []
    for name in columns:
        fields = _resolve(configuration.schema, name)
        path = tuple(each.name for each in fields)
        _check(configuration, name, fields, option)
        mode = configuration.column_mapping_mode
        if tuple(physical_name(each, mode) for each in fields) not in indexed:
            raise InvalidArgument(
                f"files have no statistics on {name}, so sorting by it would let no reader skip a "
                "file; extend delta.dataSkippingStatsColumns or delta.dataSkippingNumIndexedCols, "
                "and rewrite the table, or choose another column",
                column=name,
            )
        if path in found:
            raise InvalidArgument(f"{option} names {name} twice", column=name)
        found.append(path)
    return tuple(found)


def _resolve(schema: StructType, name: str) -> tuple[StructField, ...]:
    paths = parse_column_paths(name)
    if len(paths) != 1:
        raise InvalidArgument(f"{name!r} is not the name of one column", column=name)
    fields: list[StructField] = []
    inside: object = schema
    for step in paths[0]:
        if not isinstance(inside, StructType):
            raise InvalidArgument(f"{name} leads into a column that is no struct", column=name)
        fields.append(inside.field(step))
        inside = fields[-1].data_type
    return tuple(fields)


def _check(
    configuration: TableConfiguration, name: str, fields: tuple[StructField, ...], option: str
) -> None:
    if fields[0].name in configuration.partition_columns:
        raise InvalidArgument(
            f"{name} is a partition column: its values are apart already; leave it out of {option}",
            column=name,
        )
    kind = fields[-1].data_type
    unordered = isinstance(kind, PrimitiveType) and kind.name in _UNORDERED
    if unordered or isinstance(kind, (StructType, ArrayType, MapType)):
        raise InvalidArgument(f"values of type {kind} have no order to sort {name} by", column=name)
