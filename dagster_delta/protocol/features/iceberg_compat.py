"""What a table must satisfy so that its data files stay readable as an Iceberg table.

Spec: Iceberg Compatibility V1; Iceberg Compatibility V2.
"""

from __future__ import annotations

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.features.existing_defaults import has_existing_default
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.type_widening import type_changes
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructType,
    inner_types,
    walk_fields,
)

_NO_ICEBERG_TYPE = frozenset({"void", "variant"})


def iceberg_compat_version(configuration: TableConfiguration) -> int | None:
    """Version of the compatibility that is in force; None if there is none."""
    properties = configuration.properties
    if configuration.supports("icebergCompatV2") and properties.enable_iceberg_compat_v2:
        return 2
    if configuration.supports("icebergCompatV1") and properties.enable_iceberg_compat_v1:
        return 1
    return None


def check_iceberg_compat(configuration: TableConfiguration) -> None:
    """Refuse a configuration that breaks the compatibility it declares."""
    properties = configuration.properties
    if properties.enable_iceberg_compat_v1 and properties.enable_iceberg_compat_v2:
        raise InvalidArgument(
            "delta.enableIcebergCompatV1 and delta.enableIcebergCompatV2 cannot both be true; set "
            "the other one to false in the same call"
        )
    version = iceberg_compat_version(configuration)
    if version is None:
        return
    what = f"delta.enableIcebergCompatV{version}"
    if configuration.column_mapping_mode == "none":
        raise InvalidArgument(
            f"{what} needs column mapping; set delta.columnMapping.mode = name as well"
        )
    if configuration.deletion_vectors_enabled:
        raise InvalidArgument(
            f"{what} and delta.enableDeletionVectors cannot both be true; set the latter to false"
        )
    for path, field in walk_fields(configuration.schema):
        if has_existing_default(field):
            raise InvalidArgument(
                f"{what} does not allow that existing rows get the default of column "
                f"{'.'.join(path)} when they are read; call materialize_defaults() first, or add "
                'the column with existing_rows="rewrite"',
                column=".".join(path),
            )
        _check_type(field.data_type, version, ".".join(path), what)
        for change in type_changes(field):
            if not _is_iceberg_widening(change.from_type, change.to_type):
                raise InvalidArgument(
                    f"{what} does not allow that column {'.'.join(path)} was widened from "
                    f"{change.from_type} to {change.to_type}; "
                    'drop_feature("typeWidening") rewrites the old files',
                    column=".".join(path),
                )


def _check_type(data_type: DataType, version: int, column: str, what: str) -> None:
    match data_type:
        case ArrayType() | MapType() if version == 1:
            raise InvalidArgument(
                f"{what} allows no arrays and maps, and column {column} is of type {data_type}; "
                "use delta.enableIcebergCompatV2",
                column=column,
            )
        case ArrayType() | MapType():
            for inner in inner_types(data_type):
                _check_type(inner, version, column, what)
        case PrimitiveType(name) if name in _NO_ICEBERG_TYPE:
            raise InvalidArgument(
                f"{what} does not allow column {column} of type {name}; drop it first",
                column=column,
            )
        case StructType():
            return  # its fields are walked to


def _is_iceberg_widening(from_type: DataType, to_type: DataType) -> bool:
    """Whether Iceberg has a widening of Delta: integers to integers, float to double and the
    precision of decimals.
    """
    match from_type, to_type:
        case PrimitiveType(source), PrimitiveType(target):
            return target in ("short", "integer", "long") or source == "float"
        case DecimalType(), DecimalType():
            return from_type.scale == to_type.scale
        case _:
            return False
