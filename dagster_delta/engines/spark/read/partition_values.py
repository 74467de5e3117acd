"""Partition values of files, which Spark adds to the rows.

Spec: Partition Value Serialization.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.spark.session.schema import to_spark_type
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructField
from dagster_delta.protocol.values.partition_values import parse_partition_column

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["are_equal", "partition_literal", "partition_table"]


def partition_table(
    files: pa.Table, fields: tuple[StructField, ...], configuration: TableConfiguration
) -> pa.Table:
    """The typed partition values of each file, a pyarrow.Table under logical names.

    Args:
        files: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`.
        fields: the partition columns that are wanted.
        configuration: of the table version.

    Raises:
        InvalidTable: a value cannot be parsed.
    """
    values = files["partition_values"].combine_chunks()
    columns = [
        parse_partition_column(
            pc.map_lookup(values, configuration.physical_name(each.name), "first"),
            each.data_type,
            column=each.name,
        )
        for each in fields
    ]
    if not columns:
        # A table without columns would lose the number of files.
        return pa.table({"": pa.nulls(files.num_rows)}).select([])
    return pa.table(columns, [each.name for each in fields])


def are_equal(values: pa.Table) -> bool:
    """Whether all files have the same partition values: one literal per column is enough."""
    return all(len(pc.unique(each)) == 1 for each in values.columns)


def partition_literal(value: pa.Scalar, field: StructField, functions: ModuleType) -> Column:
    """A partition value as a Spark literal that no setting of the session changes.

    Args:
        value: pyarrow.Scalar of the field's type.
        field: the partition column.
        functions: Spark's functions for the session.
    """
    target = to_spark_type(field.data_type)
    if not value.is_valid:
        return cast("Column", functions.lit(None).cast(target))
    match field.data_type:
        case PrimitiveType("timestamp"):
            return cast("Column", functions.timestamp_micros(functions.lit(value.value)))
        case PrimitiveType("timestamp_ntz"):
            text = pc.strftime(value, "%Y-%m-%d %H:%M:%S").as_py()
            return cast("Column", functions.lit(text).cast(target))
        case PrimitiveType("date"):
            return cast("Column", functions.date_from_unix_date(functions.lit(value.value)))
        case PrimitiveType("binary"):
            return cast("Column", functions.unhex(functions.lit(value.as_py().hex())))
        case DecimalType():
            return cast("Column", functions.lit(str(value.as_py())).cast(target))
        case _:
            return cast("Column", functions.lit(value.as_py()).cast(target))
