"""Ids of the rows of a DataFrame: materialised ones, and those from their position in the files.

Spec: Row Tracking (reader requirements).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.file_keys import FILE_KEY, ROW_INDEX, keys_of_files
from dagster_delta.engines.spark.session.columns import quote
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.protocol.features.row_tracking import MaterializedColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY, _BASE, _VERSION = "__delta_ids_of", "__delta_base_row_id", "__delta_default_version"


def with_row_ids(rows: DataFrame, plan: ReadPlan, columns: MaterializedColumns) -> DataFrame:
    """The rows of a read with positions; those without a materialised id or version get one from
    their position, by the row ids of the files in the log.
    """
    functions = functions_of(rows)
    files = plan.files
    known = pa.table(
        {
            _KEY: pa.array(keys_of_files(files, plan.store), pa.int64()),
            _BASE: files["base_row_id"],
            _VERSION: files["default_row_commit_version"],
        }
    )
    schema = f"{_KEY} long, {_BASE} long, {_VERSION} long"
    entries = frame_of(rows.sparkSession, known, schema)
    found = functions.col(FILE_KEY) == functions.col(_KEY)
    joined = rows.join(functions.broadcast(entries), found, "left")
    # A silent miss would leave rows without ids.
    missed = functions.raise_error(
        "dagster_delta: Spark reports another path for a data file than the log does; give "
        'the full URI of the table, or read it with engine="arrow"'
    ).cast("long")
    is_found = functions.col(_KEY).isNotNull()
    row_id = functions.col(_BASE) + functions.col(ROW_INDEX)
    carried = {
        name: functions.when(is_found, value).otherwise(missed)
        for name, value in zip(columns.names, (row_id, functions.col(_VERSION)), strict=False)
    }
    return joined.select(
        *[
            functions.coalesce(functions.col(quote(name)), carried[name]).alias(name)
            if name in carried
            else functions.col(quote(name))
            for name in rows.columns
        ]
    )
