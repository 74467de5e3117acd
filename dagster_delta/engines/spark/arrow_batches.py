"""How Spark cuts the rows that it hands to Python into Arrow batches, while we write them.

Spark bounds a batch by bytes, and for that sums up the buffers of all columns before each row: up
to nine tenths of what its side of the exchange costs. A bound of few rows keeps batches small too,
as long as no row is long: a batch of documents would be too much for the memory of the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.columns import quote
from dagster_delta.engines.spark.session import (
    MAX_RECORDS,
    functions_of,
    lending_lock,
    session_conf,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["collect_counted"]

_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DEFAULT_BYTES = "67108864b"
_UNBOUNDED_BYTES = str(2**31 - 1)
"""Spark looks at the buffers unless it is exactly this."""
_BATCH_ROWS = 512
"""Batches of fewer rows cost more than the exchange gains."""
_MAX_TEXT_BYTES = 128 * 1024
"""Of all strings in a row: so many rows of them fill the 64 MB that Spark would allow."""
_TOO_LONG = "dagster_delta: a row is long, so that batches are bounded by bytes"


def collect_counted(frame: DataFrame, job: Callable[[DataFrame], DataFrame]) -> list[Row]:
    """The rows of a job that hands those of a DataFrame to Python.

    Batches are bounded by a number of rows alone, by settings that the session of the DataFrame
    lends. They stay as they are where somebody else than Spark has bounded the bytes, and where a
    column has no cheap measure. The job is run again with them where it comes upon a long row.

    Args:
        frame: of a classic session or of Connect.
        job: makes its query of the DataFrame; may be called twice.

    Raises:
        What the job does.
    """
    session = frame.sparkSession
    before = None if _is_unmeasured(frame.schema) else _bound_by_rows(session)
    if before is None:
        return job(frame).collect()
    try:
        return job(_of_short_rows(frame)).collect()
    except Exception as error:
        if _TOO_LONG not in str(error):
            raise
    finally:
        _bound_by_bytes(session, before)
    return job(frame).collect()


def _of_short_rows(frame: DataFrame) -> DataFrame:
    """The same rows; the job fails on one that is long."""
    functions = functions_of(frame)
    sizes = [
        functions.coalesce(functions.octet_length(text), functions.lit(0)).cast("long")
        for text in _texts(frame)
    ]
    if not sizes:
        return frame
    # What hangs on the partition stays above the columns; below them it would compute them twice.
    is_short = (functions.spark_partition_id() >= 0) & (sum(sizes[1:], sizes[0]) <= _MAX_TEXT_BYTES)
    failure = functions.raise_error(functions.lit(_TOO_LONG)).cast("boolean")
    return frame.where(functions.when(is_short, functions.lit(True)).otherwise(failure))


def _texts(frame: DataFrame) -> Iterator[Column]:
    from pyspark.sql import types

    def paths(struct: StructType, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for each in struct.fields:
            path = (*above, each.name)
            if isinstance(each.dataType, types.StructType):
                yield from paths(each.dataType, path)
            elif isinstance(each.dataType, (types.StringType, types.CharType, types.VarcharType)):
                yield path

    functions = functions_of(frame)
    for path in paths(frame.schema, ()):
        yield functions.col(".".join(map(quote, path)))


def _bound_by_rows(session: SparkSession) -> str | None:
    """The former number of rows, or None where nothing was set."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # Who finds the settings changed leaves them alone, and may lose speed when they are restored
    # in the middle of a job; it never keeps for good what was lent.
    with lending_lock:
        before = session_conf(session, MAX_RECORDS)
        if before is None or session_conf(session, _MAX_BYTES) != _DEFAULT_BYTES:
            return None
        rows = min(_BATCH_ROWS, int(before) if int(before) > 0 else _BATCH_ROWS)
        try:
            session.conf.set(MAX_RECORDS, str(rows))
            session.conf.set(_MAX_BYTES, _UNBOUNDED_BYTES)
        except (Py4JError, PySparkException):
            # Some platforms let nobody set what they do not list.
            session.conf.set(MAX_RECORDS, before)
            return None
    return before


def _bound_by_bytes(session: SparkSession, max_records: str) -> None:
    with lending_lock:
        session.conf.unset(_MAX_BYTES)
        session.conf.set(MAX_RECORDS, max_records)


def _is_unmeasured(data_type: DataType) -> bool:
    """Whether values may be long, and to measure them would cost."""
    from pyspark.sql import types

    if isinstance(data_type, types.StructType):
        return any(_is_unmeasured(each.dataType) for each in data_type.fields)
    return isinstance(
        data_type, (types.ArrayType, types.MapType, types.BinaryType, types.VariantType)
    )
