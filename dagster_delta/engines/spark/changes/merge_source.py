"""The source of a MERGE on Spark: evaluated once, its rows numbered, its keys summarised.

A query as source must not be run twice: the second run could give other rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from dagster_delta.engines.rows.source_rows import SourceRows
from dagster_delta.engines.spark.session.active_session import is_spark_frame
from dagster_delta.engines.spark.session.columns import quote
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    from_spark_schema,
    to_spark_schema,
    to_spark_type,
)
from dagster_delta.engines.spark.session.session import frame_of, functions_of, is_apache_spark
from dagster_delta.engines.statements.merge_clauses import SOURCE
from dagster_delta.engines.statements.merge_condition import (
    JoinKey,
    MergeCondition,
    bounds_predicate,
    key_predicate,
)
from dagster_delta.engines.statements.merge_plan import SourceSummary
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructType
from dagster_delta.protocol.statistics.predicates import Constant, Predicate, Unknown
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema, to_arrow_type
from dagster_delta.sql.typed import Cast, Typed
from dagster_delta.sql.typed import Column as ColumnOf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROW_NUMBER = "__delta_source_row"
"""Column of the frame: a unique number of the row, in no order."""

_MAX_LISTED_ROWS = 20_000
_FLOATS = (PrimitiveType("float"), PrimitiveType("double"))
_UNBOUNDED = (PrimitiveType("binary"), PrimitiveType("variant"), PrimitiveType("void"))


@dataclass(frozen=True, slots=True)
class SparkMergeSource:
    """The rows of a source as a DataFrame."""

    frame: DataFrame
    """With `ROW_NUMBER` after its columns."""
    schema: StructType
    """Logical schema, without the number."""
    table: str
    """URI of the table, for errors."""

    @classmethod
    def of(
        cls, session: SparkSession, data: object, directory: str, *, table: str
    ) -> SparkMergeSource:
        """The source made from a value.

        `data`: a DataFrame, `SourceRows`, or what they can be made of.
        """
        if is_spark_frame(data):
            frame = cast("DataFrame", data)
            if is_apache_spark(frame.sparkSession):
                return cls._of_frame(frame, table)
            # Other servers do not cache rows between queries, so this process does.
            session, data = frame.sparkSession, frame.toArrow()
        rows = data if isinstance(data, SourceRows) else SourceRows(data, directory)
        schema = to_arrow_schema(rows.schema)
        found = pa.Table.from_batches([batch for _, batch in rows.batches()], schema)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        spark_schema = to_spark_schema(rows.schema).add(ROW_NUMBER, "long")
        named = found.append_column(ROW_NUMBER, numbers)
        return cls(frame_of(session, named, spark_schema), rows.schema, table)

    @classmethod
    def _of_frame(cls, frame: DataFrame, table: str) -> SparkMergeSource:
        schema = from_spark_schema(frame.schema)
        functions = functions_of(frame)
        numbered = frame.withColumn(ROW_NUMBER, functions.monotonically_increasing_id())
        return cls(numbered.localCheckpoint(), schema, table)

    def summarise(self, condition: MergeCondition) -> SourceSummary:
        """The summary of the keys, by one job. Raises as `MergeSource` says."""
        keys = condition.keys
        functions = functions_of(self.frame)
        known = {index: self._key_column(each.source) for index, each in enumerate(keys)}
        columns = {index: column for index, column in known.items() if column is not None}
        sums: list[Column] = [functions.count(functions.lit(1)).alias("rows")]
        for index, column in columns.items():
            sums += [
                functions.min(column).alias(f"min_{index}"),
                functions.max(column).alias(f"max_{index}"),
                functions.count(column).alias(f"count_{index}"),
            ]
        with spark_failures(table=self.table):
            found = self.frame.agg(*sums).toArrow()
            count = int(found["rows"][0].as_py())
            listed = None
            if columns and 0 < count <= _MAX_LISTED_ROWS:
                listed = self.frame.select(
                    *[column.alias(f"key_{index}") for index, column in columns.items()]
                ).toArrow()
        predicates = _predicates(keys, columns, found, listed)
        asked = tuple(predicates) if count else (Constant(False),)
        return SourceSummary(count, asked, time.perf_counter())

    def _key_column(self, typed: Typed) -> Column | None:
        """The source's expression of a key, if it is a column with bounds."""
        functions = functions_of(self.frame)
        match typed:
            case ColumnOf(path, data_type) if path[0] == SOURCE and _has_bounds(data_type):
                return functions.col(".".join(map(quote, path[1:])))
            case Cast(child, data_type) if _has_bounds(data_type):
                inner = self._key_column(child)
                return None if inner is None else inner.try_cast(to_spark_type(data_type))
        return None


def _has_bounds(data_type: DataType) -> bool:
    return not hasattr(data_type, "fields") and data_type not in _UNBOUNDED


def _predicates(
    keys: Sequence[JoinKey], columns: dict[int, Column], found: pa.Table, listed: pa.Table | None
) -> Iterator[Predicate]:
    for index, key in enumerate(keys):
        if index not in columns or key.source.data_type is None:
            yield Unknown("a computed key")
            continue
        data_type = to_arrow_type(key.source.data_type)
        if listed is not None:
            yield key_predicate(key, listed[f"key_{index}"].cast(data_type))
            continue
        bounds = pa.concat_arrays(
            [found[f"{side}_{index}"].combine_chunks().cast(data_type) for side in ("min", "max")]
        )
        # NaN is the greatest value, and the bounds of files do not include it.
        if key.source.data_type in _FLOATS and bounds[1].as_py() != bounds[1].as_py():
            yield Unknown("NaN as a key")
            continue
        has_nulls = found[f"count_{index}"][0].as_py() < found["rows"][0].as_py()
        yield bounds_predicate(key, bounds, has_nulls=has_nulls)
