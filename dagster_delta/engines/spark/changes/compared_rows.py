"""Changes of versions that did not record them, on the executors: the rows of removed and of added
files, without those that only moved from one file to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.engines.spark.read.reader import read_frame
from dagster_delta.engines.spark.session.schema import sql_column
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.protocol.features.change_data import CHANGE_TYPE_COLUMN
from dagster_delta.protocol.schema import MapType, StructField, inner_types
from dagster_delta.sql.typed import quote
from dagster_delta.sql.types import VARIANT
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from dagster_delta.protocol.schema import DataType

_BALANCE, _ROW = "__delta_balance", "__delta_row"
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def compare_rows(
    session: SparkSession, store: ObjectStore, changes: ChangeFileSet, columns: Sequence[str]
) -> DataFrame:
    """The deleted and inserted rows of a set that have no equal row of the other kind in their
    version, as often as they are surplus, in no order.
    """
    schema = changes.configuration.schema
    rows = read_frame(session, changes.read_plan(store, schema.names))
    functions = functions_of(rows)
    compared = [field for field in schema if field.name != CHANGE_TYPE_COLUMN]
    kind = functions.col(quote(CHANGE_TYPE_COLUMN))
    sign = functions.when(kind == "insert", 1).otherwise(-1)
    # Values that are equal may differ in their form, as 0.0 and -0.0 do.
    row = functions.struct(*(functions.col(quote(field.name)) for field in compared))
    keys = [
        _key_column(field, functions).alias(f"__delta_key_{place}")
        for place, field in enumerate(compared)
    ]
    balanced = (
        rows.groupBy(*keys)
        .agg(functions.sum(sign).alias(_BALANCE), functions.first(row).alias(_ROW))
        .where(f"{_BALANCE} <> 0")
    )
    balance = functions.col(_BALANCE)
    copies = functions.array_repeat(functions.col(_ROW), functions.abs(balance).cast("int"))
    surplus = balanced.select(
        functions.when(balance > 0, "insert").otherwise("delete").alias(CHANGE_TYPE_COLUMN),
        functions.explode(copies).alias(_ROW),
    )
    found = surplus.select(
        *(
            functions.col(quote(CHANGE_TYPE_COLUMN))
            if field.name == CHANGE_TYPE_COLUMN
            else functions.col(_ROW)[field.name].alias(field.name)
            for field in schema
        )
    )
    if changes.where is not None and changes.filters_kinds:
        found = found.where(sql_column(changes.where.sql, functions))
    return found.select(*map(quote, columns))


def _key_column(field: StructField, functions: ModuleType) -> Column:
    """A column in a form by which Spark groups: it groups neither maps nor variants."""
    column: Column = functions.col(quote(field.name))
    if _is_grouped(field.data_type):
        return column
    text: Column = functions.to_json(functions.struct(column), _JSON)
    return text


def _is_grouped(data_type: DataType) -> bool:
    if isinstance(data_type, MapType) or data_type == VARIANT:
        return False
    return all(map(_is_grouped, inner_types(data_type)))
