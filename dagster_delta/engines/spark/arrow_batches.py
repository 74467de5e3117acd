"""How Spark cuts the rows that it hands to Python into Arrow batches, while we write them.

Spark bounds a batch by bytes, and for that sums up the buffers of all columns before each row: up
to nine tenths of what its side of the exchange costs. A bound of few rows keeps batches small too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster_delta.engines.spark.session import MAX_RECORDS, lending_lock, session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ["counted_batches"]

_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DEFAULT_BYTES = "67108864b"
_UNBOUNDED_BYTES = str(2**31 - 1)
"""Spark looks at the buffers unless it is exactly this."""
_BATCH_ROWS = 512
"""Rows of 128 KB, on average, fill the 64 MB that Spark would allow. Batches of fewer rows cost
more than the exchange gains."""


@contextmanager
def counted_batches(frame: DataFrame) -> Iterator[None]:
    """While it is open, batches for Python are bounded by a number of rows alone.

    Both settings are only lent by the session of the DataFrame. Nothing happens where the bytes
    were bounded by somebody else than Spark, nor where a column may hold documents or pictures.

    Args:
        frame: whose rows will go to Python, of a classic session or of Connect.
    """
    session = frame.sparkSession
    if _may_be_huge(frame.schema):
        yield
        return
    before = _bound_by_rows(session)
    try:
        yield
    finally:
        if before is not None:
            _bound_by_bytes(session, before)


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


def _may_be_huge(data_type: DataType) -> bool:
    from pyspark.sql import types

    match data_type:
        case types.StructType():
            return any(_may_be_huge(each.dataType) for each in data_type.fields)
        case types.ArrayType():
            return _may_be_huge(data_type.elementType)
        case types.MapType():
            return _may_be_huge(data_type.keyType) or _may_be_huge(data_type.valueType)
        case _:
            return isinstance(data_type, (types.BinaryType, types.VariantType))
