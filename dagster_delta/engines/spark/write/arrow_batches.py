"""The size of the Arrow batches in which Spark passes rows to Python, while we write them.

Spark limits a batch by bytes, and for that sums the buffers of all columns before each row: up to
nine tenths of the cost on its side. A limit on rows keeps batches small too, if no row is long: a
batch of documents could exceed the memory of the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types

from dagster_delta.engines.spark.session.session import (
    MAX_RECORDS,
    functions_of,
    lending_lock,
    session_conf,
)
from dagster_delta.sql.typed import quote_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructType

_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DEFAULT_BYTES = "67108864b"
_UNBOUNDED_BYTES = str(2**31 - 1)
"""Spark sums the buffers unless the byte limit is exactly this."""
_BATCH_ROWS = 512
"""Batches of fewer rows cost more than the exchange gains."""
_MAX_TEXT_BYTES = 128 * 1024
"""Maximum bytes of all strings in a row: batches of such rows reach Spark's limit of 64 MB."""
_TOO_LONG = "dagster_delta: a row is long, so that batches are bounded by bytes"


def collect_counted(
    frame: DataFrame, job: Callable[[DataFrame], DataFrame], *, table: str
) -> list[Row]:
    """The rows of a job that passes the rows of a DataFrame to Python.

    Settings of the DataFrame's session, changed while the job runs, limit batches by rows alone.
    They do not change if the user has set a byte limit, or if a column has no cheap measure. If a
    row is long, the job runs again with Spark's byte limit, and later jobs of the same table start
    with it.

    `job`: makes the query from the DataFrame; may be called twice.
    """
    if table not in _tables_of_long_rows and not _is_unmeasured(frame.schema):
        with _lending.by(frame.sparkSession) as is_lent:
            if not is_lent:
                return job(frame).collect()
            try:
                return job(_of_short_rows(frame)).collect()
            except Exception as error:
                if _TOO_LONG not in str(error):
                    raise
        _tables_of_long_rows.add(table)
    with _lending.suspended():
        return job(frame).collect()


def _of_short_rows(frame: DataFrame) -> DataFrame:
    """The same rows; the job fails on one that is long."""
    functions = functions_of(frame)
    sizes = [
        functions.coalesce(functions.octet_length(text), functions.lit(0)).cast("long")
        for text in _list_text_columns(frame)
    ]
    if not sizes:
        return frame
    # Spark does not push a condition on the partition below the columns, which would compute them
    # twice.
    is_short = (functions.spark_partition_id() >= 0) & (sum(sizes[1:], sizes[0]) <= _MAX_TEXT_BYTES)
    failure = functions.raise_error(functions.lit(_TOO_LONG)).cast("boolean")
    return frame.where(functions.when(is_short, functions.lit(True)).otherwise(failure))


def _list_text_columns(frame: DataFrame) -> Iterator[Column]:
    def paths(struct: StructType, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in struct.fields:
            path = (*above, field.name)
            if isinstance(field.dataType, types.StructType):
                yield from paths(field.dataType, path)
            elif isinstance(field.dataType, (types.StringType, types.CharType, types.VarcharType)):
                yield path

    functions = functions_of(frame)
    for path in paths(frame.schema, ()):
        yield functions.col(quote_path(path))


class _ConfOverride(msgspec.Struct, eq=False, frozen=True):
    session: SparkSession
    max_records: str | None
    """Value set by the user; None for Spark's default."""

    def give_back(self) -> None:
        # A session that was closed meanwhile has nothing to restore, and must not fail other jobs.
        with suppress(Exception):
            self.session.conf.unset(_MAX_BYTES)
            if self.max_records is None:
                self.session.conf.unset(MAX_RECORDS)
            else:
                self.session.conf.set(MAX_RECORDS, self.max_records)


class _Lending:
    """Changed settings of the sessions of this process. Thread-safe."""

    def __init__(self) -> None:
        self._loans: list[_ConfOverride] = []
        self._suspensions = 0

    @contextmanager
    def by(self, session: SparkSession) -> Iterator[bool]:
        """Yields whether batches are limited by rows alone while it is open."""
        with lending_lock:
            # Another job that changed the setting may end first: that only costs speed.
            is_lent = bool(self._loans) and session_conf(session, _MAX_BYTES) == _UNBOUNDED_BYTES
            loan = None if is_lent or self._suspensions else _override_conf(session)
            if loan is not None:
                self._loans.append(loan)
        try:
            yield is_lent or loan is not None
        finally:
            with lending_lock:
                if loan is not None and loan in self._loans:
                    self._loans.remove(loan)
                    loan.give_back()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While it is open no setting is changed: rows that may be long pass to Python."""
        with lending_lock:
            self._suspensions += 1
            while self._loans:
                self._loans.pop().give_back()
        try:
            yield
        finally:
            with lending_lock:
                self._suspensions -= 1


_lending = _Lending()
_tables_of_long_rows: set[str] = set()


def _override_conf(session: SparkSession) -> _ConfOverride | None:
    """An override; None if the session limits bytes differently, or does not allow the change."""
    before = session_conf(session, MAX_RECORDS)
    if before is None or session_conf(session, _MAX_BYTES) != _DEFAULT_BYTES:
        return None
    # Setting the default by name would look like a choice of the user.
    loan = _ConfOverride(session, session.conf.get(MAX_RECORDS, None))
    rows = min(_BATCH_ROWS, int(before) if int(before) > 0 else _BATCH_ROWS)
    try:
        session.conf.set(MAX_RECORDS, str(rows))
        session.conf.set(_MAX_BYTES, _UNBOUNDED_BYTES)
    except (Py4JError, PySparkException):
        # Some platforms only allow settings that they list.
        loan.give_back()
        return None
    return loan


def _is_unmeasured(data_type: DataType) -> bool:
    """Whether values may be long and expensive to measure."""
    if isinstance(data_type, types.StructType):
        return any(_is_unmeasured(field.dataType) for field in data_type.fields)
    return isinstance(
        data_type, (types.ArrayType, types.MapType, types.BinaryType, types.VariantType)
    )
