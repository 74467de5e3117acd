"""Converts Spark's errors to errors of this library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException

from dagster_delta.errors import (
    FILE_MISSING,
    CorruptDeletionVector,
    CorruptLog,
    DataFileMissing,
    DeltaError,
    InvalidArgument,
    InvalidTable,
    StorageFailure,
)

_MISSING_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '(?P<module>dagster_delta|pyarrow|msgspec|pyroaring|"
    r"fsspec|numpy|pandas|sqlglot|duckdb)[.']"
)
_STORAGE_FAILURE = re.compile(r"dagster_delta\.errors\.StorageFailure: (?P<message>[^\n]*)")
_DAMAGE = re.compile(
    r"dagster_delta\.errors\.(?P<kind>InvalidTable|CorruptDeletionVector|CorruptLog|"
    r"DataFileMissing): (?P<message>[^\n]*?)"
    r"(?: \[(?:table (?P<table>[^\[\]\n]*?), )?(?:[^\[\]\n]*, )?file (?P<file>[^\[\]\n]*)\])?$",
    re.MULTILINE,
)
_UNREADABLE_FILE = re.compile(
    r"\[FAILED_READ_FILE\.(?P<reason>\w+)\] Encountered error while reading file "
    r"(?P<file>\S+?)\.?\s"
)
# Errors of Hadoop's file systems and the JVM if the storage does not answer or refuses. Those of
# ABFS begin without the name of a class.
_OUTAGE = re.compile(
    r"Caused by: (?:Operation failed: \"|(?:[\w.]+\.)?(?:AWS\w+Exception|S3Exception|"
    r"Sdk\w*Exception|ApiCallTimeoutException|AccessDeniedException|NoAuthWithAWSException|ConnectException|"
    r"ConnectTimeoutException|HttpHostConnectException|NoHttpResponseException|"
    r"NoRouteToHostException|SocketException|SocketTimeoutException|UnknownHostException|"
    r"SSL\w*Exception|IOException: Input/output error)\b)"
)
_DAMAGES = {
    error.__name__: error
    for error in (InvalidTable, CorruptDeletionVector, CorruptLog, DataFileMissing)
}
_BAD_VALUE = re.compile(
    r"\[(?P<condition>ARITHMETIC_OVERFLOW|CANNOT_PARSE_TIMESTAMP|CAST_INVALID_INPUT|CAST_OVERFLOW|"
    r"DATETIME_OVERFLOW|DIVIDE_BY_ZERO|INTERVAL_DIVIDED_BY_ZERO|INVALID_ARRAY_INDEX|"
    r"NUMERIC_VALUE_OUT_OF_RANGE|REMAINDER_BY_ZERO|USER_RAISED_EXCEPTION)[\w.]*\] "
    r"(?P<message>[^\n]*)"
)
_NO_FILE_SYSTEM = re.compile(
    r"No FileSystem for scheme|UnsupportedFileSystemException|"
    r"ClassNotFoundException: Class [\w.]+ not found"
)


def executor_failure(error: Exception, *, table: str) -> DeltaError | None:
    """The error of this library for a failed Spark job; None if the error is Spark's own
    or that of the user's code.
    """
    text = _text_with_causes(error)
    if match := _MISSING_MODULE.search(text):
        return InvalidArgument(_describe_missing_module(match["module"]), table=table)
    if match := _STORAGE_FAILURE.search(text):
        return StorageFailure(f"on a Spark executor: {match['message']}", table=table)
    if match := _DAMAGE.search(text):
        # Rows of one table are written to another.
        place = match["table"] or table
        return _DAMAGES[match["kind"]](match["message"], table=place, file=match["file"])
    if match := _UNREADABLE_FILE.search(text):
        if _OUTAGE.search(text):
            return StorageFailure(
                "Spark cannot read a data file because the storage failed or refused; the file "
                "itself may be whole: check the credentials and the connection, then repeat the "
                "operation",
                table=table,
                file=match["file"],
            )
        return _unreadable_file(match["reason"], match["file"], table=table)
    return None


def _text_with_causes(error: Exception) -> str:
    """Spark's message, with the JVM errors that caused it."""
    text = str(error)
    # Spark Connect omits them from the text.
    trace = getattr(error, "getStackTrace", None)
    causes = trace() if callable(trace) else None
    return f"{text}\n{causes}" if isinstance(causes, str) and causes not in text else text


def _unreadable_file(reason: str, file: str, *, table: str) -> DeltaError:
    if reason == "FILE_NOT_EXIST":
        return DataFileMissing(FILE_MISSING, table=table, file=file)
    return InvalidTable(
        f"Spark cannot read a data file (FAILED_READ_FILE.{reason}): the store failed, or it is "
        "cut or damaged; repeat the operation, and if that fails as well, restore the file from a "
        "copy, or restore the table to an older version",
        table=table,
        file=file,
    )


def _describe_missing_module(module: str) -> str:
    install = "install dagster-delta-protocol into the Python of every worker"
    if module == "dagster_delta":
        mend = (
            f"{install}, or send it there with ship_package(spark), in Dagster with "
            "SparkSessionResource(ship_package=True)"
        )
    else:
        mend = f"{install}, which brings it; only dagster_delta itself can be sent there"
    return (
        f"the Spark workers cannot import {module}: {mend}. Which Python they run is said by "
        "spark.pyspark.python or the environment variable PYSPARK_PYTHON"
    )


@contextmanager
def spark_failures(*, table: str, in_query: bool = True) -> Iterator[None]:
    """Converts Spark's errors on an executor to errors of this library, see `executor_failure`.

    `in_query`: whether errors in an expression of the caller are converted too: one that is invalid
    in Spark, or fails on a value.
    """
    try:
        yield
    except DeltaError:
        raise
    except Exception as error:
        failure = executor_failure(error, table=table)
        if failure is None and in_query:
            failure = _query_failure(error, table=table)
        if failure is None:
            raise
        raise failure from error


def _query_failure(error: Exception, *, table: str) -> DeltaError | None:
    if match := _BAD_VALUE.search(str(error)):
        return InvalidArgument(
            f"an expression failed on a value ({match['condition']}): {match['message']}",
            table=table,
        )
    if isinstance(error, AnalysisException):
        said = str(error).partition("\n")[0]
        return InvalidArgument(f"Spark cannot analyze an expression: {said}", table=table)
    return None


def read_failure(error: Exception, *, table: str, version: int) -> DeltaError | None:
    """`DataFileMissing` if Spark could not find a path, else None."""
    condition = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    if condition is None or condition() != "PATH_NOT_FOUND":
        return None
    parameters = error.getMessageParameters() or {}  # type: ignore[attr-defined]
    path = parameters.get("path")
    return DataFileMissing(FILE_MISSING, table=table, version=version, file=path)


def is_missing_file_system(error: Exception) -> bool:
    """Whether Spark has no file system for the scheme of a path (its JARs are not there)."""
    return _NO_FILE_SYSTEM.search(str(error)) is not None
