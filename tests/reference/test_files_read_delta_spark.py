"""No read opens more files than delta-spark does for the same filter, on either engine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dagster_delta import DeltaTable
from tests.families import family
from tests.golden.answers import table_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.delta_spark

FILTERS = [
    "id = 21",
    "id <> 21",
    "id BETWEEN 18 AND 22",
    "NOT (id >= 10)",
    "id > 68.5",
    "id < 9.5D",
    "id > 2 * 30 AND id < cast('65' AS INT)",
    "id <=> 3",
    "id + 1 = 21",
    "cast(id AS INT) = 21",
    "nothing IS NOT NULL",
    "half IS NULL",
    "half IS NULL AND id > 30",
    "f = 33.25",
    "d = 33.3",
    "isnan(d)",
    "dec > 700.10",
    "s = 'name 33'",
    "s LIKE 'name 3%'",
    "startswith(s, 'name 7')",
    "s > 'name 75'",
    "long_text > 'text 75'",
    f"long_text = concat('text 33', '{'.' * 40}')",
    "long_text LIKE 'text 3%'",
    "day = DATE '2024-02-03'",
    "year(day) = 2025",
    "at >= TIMESTAMP '2024-01-04 01:00:00'",
    "at < '2024-01-01 05:00:00'",
    "local > TIMESTAMP_NTZ '2024-01-04 01:00:00'",
    "cast(at AS DATE) = DATE '2024-01-02'",
    "flag",
    "NOT flag",
    "n.x = 33",
    "n.x > 70 AND n.y = 'y 3'",
    "id = 3 OR upper(s) = 'NAME 70'",
    "id > 60 AND upper(s) = 'NAME 70'",
    "p = 'b'",
    "p IS NOT NULL AND q > 1",
    "upper(p) = 'B'",
    "length(p) = 1 AND q = 2",
    "p LIKE '%b'",
    "concat(p, cast(q AS STRING)) = 'b1'",
    "p = 'b' OR id = 70",
    "q % 2 = 1",
    "coalesce(p, 'none') = 'none'",
    "p <=> NULL",
    "false",
    "id = NULL",
]

_ROWS = """
    SELECT id, cast(NULL AS INT) nothing, if(id % 20 < 10, id, NULL) half, cast(id AS FLOAT) f,
        cast(id AS DOUBLE) d, cast(id * 10 AS DECIMAL(10, 2)) dec, concat('name ', id) s,
        concat('text ', id, repeat('.', 40)) long_text,
        date_add(DATE '2024-01-01', cast(id AS INT)) day,
        TIMESTAMP '2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id AS INT)) at,
        TIMESTAMP_NTZ '2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id AS INT)) local,
        id < 40 flag, named_struct('x', id, 'y', concat('y ', id)) n,
        element_at(array('a', 'b', 'c', NULL), cast(id DIV 10 % 4 AS INT) + 1) p,
        cast(id DIV 10 % 3 AS INT) q
    FROM range({first}, {first} + 10, 1, 1)
"""
NUM_FILES = 8

TABLES = ["plain", "partitioned", "plain by this library", "partitioned by this library"]


@pytest.fixture(scope="module")
def location(
    delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Where a table is, made when it is first asked for.

    The same 80 rows in 8 files: with partitions or without, by delta-spark or this library.
    """
    directory = tmp_path_factory.mktemp("skipped")

    @cache
    def made(kind: str) -> Path:
        theirs, ours = directory / kind, directory / f"{kind}_by_this_library"
        columns = ["p", "q"] if kind == "partitioned" else []
        clause = f"PARTITIONED BY ({', '.join(columns)})" if columns else ""
        table = DeltaTable(ours, must_exist=False)
        for number in range(NUM_FILES):
            target = f"CREATE TABLE delta.`{theirs}` USING delta {clause} AS"
            if number:
                target = f"INSERT INTO delta.`{theirs}`"
            delta_spark.sql(target + _ROWS.format(first=10 * number))
            written = DeltaTable(theirs).snapshot().scan(where=f"id >= {10 * number}")
            table.append(written.to_arrow(), partition_by=columns or None)
        # What Spark plans is read from checkpoints.
        DeltaTable(theirs).checkpoint()
        table.checkpoint()
        return directory

    return lambda name: str(made(name.partition(" ")[0]) / name.replace(" ", "_"))


def by_delta_spark(session: SparkSession, uri: str, where: str) -> DataFrame:
    return session.read.format("delta").load(uri).where(where)


def more_than_delta_spark(
    session: SparkSession, uri: str, filters: list[str]
) -> dict[str, tuple[int, int]]:
    """The files that delta-spark and this library read, by filter, where ours are more."""
    found = {}
    snapshot = DeltaTable(uri).snapshot()
    for where in filters:
        theirs = len(by_delta_spark(session, uri, where).inputFiles())
        ours = snapshot.scan(where=where).num_files
        if ours > theirs:
            found[where] = (theirs, ours)
    return found


@pytest.mark.parametrize("name", family(TABLES))
def test_no_filter_opens_more_files(
    name: str, location: Callable[[str], str], delta_spark: SparkSession
) -> None:
    uri = location(name)
    assert DeltaTable(uri).snapshot().num_files == NUM_FILES
    assert more_than_delta_spark(delta_spark, uri, FILTERS) == {}


@pytest.mark.parametrize(
    "name",
    family(
        [
            "dat__all_primitive_types",
            "dat__multi_partitioned",
            "dat__with_checkpoint",
            "golden__basic-with-inserts-deletes-checkpoint",
        ],
        "dat__multi_partitioned",
        "golden__basic-with-inserts-deletes-checkpoint",
    ),
)
def test_no_filter_opens_more_files_of_a_real_table(name: str, delta_spark: SparkSession) -> None:
    uri = table_path(name)
    rows = DeltaTable(uri).snapshot().scan().to_arrow()
    filters = []
    for column in rows.column_names:
        values = sorted(set(rows[column].drop_null().to_pylist()) if spelled(rows, column) else [])
        filters += [f"`{column}` IS NULL", f"`{column}` IS NOT NULL"]
        for value in values[:1] + values[-1:]:
            filters += [f"`{column}` {operator} {sql(value)}" for operator in ("=", "<", ">")]
    assert len(filters) > 4
    assert more_than_delta_spark(delta_spark, uri, filters) == {}


def spelled(rows: pa.Table, column: str) -> bool:
    kind = rows.schema.field(column).type
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)


def sql(value: object) -> str:
    return (
        str(value) if isinstance(value, int) else f"{'DATE ' * isinstance(value, dt.date)}'{value}'"
    )


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_row_of_nan_that_was_written_here_is_found_by_delta_spark(
    delta_spark: SparkSession, tmp_path: Path, engine: Literal["arrow", "spark"]
) -> None:
    rows = pa.table({"k": [1, 2], "d": [0.0, float("nan")]})
    data = rows if engine == "arrow" else delta_spark.createDataFrame(rows).coalesce(1)
    DeltaTable(str(tmp_path), must_exist=False).append(data, engine=engine)
    for where in ("d > 5", "d = double('NaN')"):
        found = by_delta_spark(delta_spark, str(tmp_path), where).collect()
        assert [row.k for row in found] == [2]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_minus_zero_that_was_written_here_is_found_by_delta_spark(
    delta_spark: SparkSession, tmp_path: Path, engine: Literal["arrow", "spark"]
) -> None:
    """Spark finds no -0.0 in a dictionary without 0.0, as its own files have it."""
    rows = pa.table({"k": [1, 2, 3], "d": [-0.0, -0.0, 1.0]})
    data = rows if engine == "arrow" else delta_spark.createDataFrame(rows).coalesce(1)
    DeltaTable(str(tmp_path), must_exist=False).append(data, engine=engine)
    found = by_delta_spark(delta_spark, str(tmp_path), "d = 0.0D").collect()
    assert sorted(row.k for row in found) == [1, 2]


def test_a_row_of_nan_is_found_that_delta_spark_loses(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """NaN is greater than any number. Some writers leave it out of bounds, and the log does not
    say which: filters on what is greater than a float open more files than delta-spark does.
    Spark's own Parquet reader loses the row as well, by the bounds in the footer.
    """
    uri = str(tmp_path / "nan")
    write_deltalake(uri, pa.table({"d": [1.0, float("nan"), 3.0]}))
    assert by_delta_spark(delta_spark, uri, "d > 5").count() == 0
    counted = delta_spark.read.format("delta").load(uri).selectExpr("count_if(d > 5) found")
    assert [row.found for row in counted.collect()] == [1]
    scan = DeltaTable(uri).snapshot().scan(where="d > 5")
    assert scan.to_arrow().num_rows == 1
    plain = delta_spark.read.parquet(str(next(Path(uri).glob("*.parquet"))))
    assert plain.where("d > 5").count() == 0
