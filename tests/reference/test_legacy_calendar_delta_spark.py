"""Files in the calendar of Spark 2 give the days and times that delta-spark reads in them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.parquet import data_file_reader
from tests.families import family
from tests.golden.answers import rows_of
from tests.reference.test_delta_spark import alike, read_by_delta_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.delta_spark

_MODES = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
}
# 1500-02-29 in the file is a day that the Gregorian calendar does not have.
DAYS = ["0001-01-01", "0100-03-01", "1000-06-15", "1500-03-01", "1582-10-04", "1582-10-15"]
DAYS += ["1883-11-18", "1899-12-31", "1900-01-01", "2020-02-29"]


@contextmanager
def settings(session: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


def write_legacy(session: SparkSession, uri: str, kind: str, zone: str = "UTC") -> None:
    """A table of one file, with days and times at every depth."""
    rows = ", ".join(f"({index}, '{day}')" for index, day in enumerate(DAYS))
    frame = session.sql(
        "SELECT CAST(id AS LONG) AS id, CAST(x AS DATE) AS d, "
        "CAST(x || ' 01:02:03.123456Z' AS TIMESTAMP) AS t, "
        "CAST(x || ' 01:02:03.5' AS TIMESTAMP_NTZ) AS n, "
        "named_struct('d', CAST(x AS DATE), 't', array(CAST(x || ' 23:59:59Z' AS TIMESTAMP))) AS s, "
        "map(coalesce(CAST(x AS DATE), DATE '1500-01-01'), CAST(x || ' 12:00:00Z' AS TIMESTAMP)) AS m "
        f"FROM VALUES {rows}, (99, NULL) AS (id, x)"
    )
    own = {"spark.sql.parquet.outputTimestampType": kind, "spark.sql.session.timeZone": zone}
    with settings(session, _MODES | own):
        frame.coalesce(1).write.format("delta").save(uri)


def texts(session: SparkSession, uri: str) -> list[tuple[object, ...]]:
    """The rows as delta-spark spells them in UTC; Python knows no days before the year 1."""
    rows = session.read.format("delta").load(uri).selectExpr(
        "id", "CAST(unix_date(d) AS LONG)", "unix_micros(t)", "CAST(n AS STRING)",
        "unix_date(s.d)", "unix_micros(s.t[0])",
        "unix_date(map_keys(m)[0])", "unix_micros(map_values(m)[0])",
    )  # fmt: skip
    return sorted(tuple(row) for row in rows.collect())


def our_texts(table: DeltaTable, where: str | None = None) -> list[tuple[object, ...]]:
    rows = table.snapshot().scan(where=where).to_arrow()
    s, m = rows["s"].combine_chunks(), rows["m"].combine_chunks()
    number = {"d": pa.int32(), "t": pa.int64()}
    inner = s.field("t").flatten().cast(number["t"]).to_pylist()
    keys, values = m.keys.cast(pa.int32()).to_pylist(), m.items.cast(pa.int64()).to_pylist()
    found = []
    for index, row in enumerate(rows.select(["id", "n"]).to_pylist()):
        day = rows["d"][index].cast(number["d"]).as_py()
        time = rows["t"][index].cast(number["t"]).as_py()
        n = None if row["n"] is None else row["n"].isoformat(sep=" ")[:21]
        struct_day = s.field("d")[index].cast(pa.int32()).as_py()
        found.append(
            (row["id"], day, time, n, struct_day, inner[index], keys[index], values[index])
        )
    return sorted(found)


@pytest.mark.parametrize(
    "zone", family(["UTC", "America/Los_Angeles", "+05:30", "GMT+08:00"], "America/Los_Angeles")
)
@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_days_and_times_are_those_that_delta_spark_reads(
    delta_spark: SparkSession, tmp_path: Path, kind: str, zone: str
) -> None:
    uri = str(tmp_path / "old")
    write_legacy(delta_spark, uri, kind, zone)
    assert our_texts(DeltaTable(uri)) == texts(delta_spark, uri)


@pytest.mark.parametrize(
    "where",
    [
        "d = DATE '1500-03-01'",
        "d < DATE '1000-06-16'",
        "t >= TIMESTAMP '1582-10-04 00:00:00' AND t < TIMESTAMP '1582-10-16 00:00:00'",
        "s.d = DATE '0100-03-01'",
        "d IS NULL",
    ],
)
@pytest.mark.exhaustive
def test_filters_find_the_rows_that_they_find_on_spark(
    delta_spark: SparkSession, tmp_path: Path, where: str
) -> None:
    uri = str(tmp_path / "old")
    with settings(delta_spark, {"parquet.block.size": "64"}):
        write_legacy(delta_spark, uri, "TIMESTAMP_MICROS")
    table = DeltaTable(uri)
    theirs = delta_spark.read.format("delta").load(uri).where(where).select("id")
    ids = [row.id for row in theirs.collect()]
    assert ids
    assert [row[0] for row in our_texts(table, where)] == sorted(ids)
    ours = table.snapshot().scan(["id"], where).to_spark(delta_spark)
    assert [row.id for row in ours.collect()] == ids


@pytest.mark.exhaustive
def test_rewritten_rows_keep_their_days(delta_spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "old")
    write_legacy(delta_spark, uri, "INT96", "America/Los_Angeles")
    before = texts(delta_spark, uri)
    table = DeltaTable(uri)
    table.update({"id": "id + 0"}, where="id = 0")
    table.optimize()
    assert texts(delta_spark, uri) == before
    assert our_texts(DeltaTable(uri)) == before


def julian_file(path: Path, rows: int, version: str) -> None:
    """A file as Spark of a version wrote it: the first days are those of March 1500."""
    first = -171_595  # 1 March 1500, Julian
    days = pa.array([first + index % 20 for index in range(rows)], pa.int32()).cast(pa.date32())
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("d", pa.date32())],
        metadata={"org.apache.spark.version": version},
    )
    table = pa.table([pa.array(range(rows), pa.int64()), days], schema=schema)
    pq.write_table(table, path, row_group_size=max(1, rows // 2), compression="zstd")


def logged(directory: Path) -> str:
    """A table of the files in a directory, without statistics."""
    fields = [
        {"name": name, "type": data_type, "nullable": True, "metadata": {}}
        for name, data_type in (("id", "long"), ("d", "date"))
    ]
    metadata = {
        "id": "old",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    actions: list[dict[str, object]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    for file in directory.glob("*.parquet"):
        add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size}
        actions.append({"add": {**add, "modificationTime": 1, "dataChange": True}})
    (directory / "_delta_log").mkdir()
    log = directory / "_delta_log" / f"{0:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)))
    return str(directory)


@pytest.mark.parametrize("version", ["2.4.8", "3.0.0", "4.1.0"])
def test_files_of_spark_2_are_known_by_their_version(
    delta_spark: SparkSession, tmp_path: Path, version: str
) -> None:
    julian_file(tmp_path / "a.parquet", 2, version)
    table = DeltaTable(logged(tmp_path))
    ours = table.snapshot().scan().to_arrow()
    alike(read_by_delta_spark(delta_spark, str(tmp_path)), ours)
    is_moved = ours["d"][0].as_py() == dt.date(1500, 3, 1)
    assert is_moved == (version == "2.4.8")


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_days_that_were_written_here_do_not_depend_on_the_session_that_reads_them(
    delta_spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    days = [dt.date.fromisoformat(day) for day in DAYS]
    times = [dt.datetime.combine(day, dt.time(1), dt.UTC) for day in days]
    DeltaTable(str(tmp_path), must_exist=False).append(pa.table({"d": days, "t": times}))
    with settings(delta_spark, {"spark.sql.parquet.datetimeRebaseModeInRead": mode}):
        frame = delta_spark.read.format("delta").load(str(tmp_path))
        found = frame.selectExpr("CAST(d AS STRING) d", "unix_micros(t) t").collect()
    expected = pa.array(times, pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    assert sorted((row.d, row.t) for row in found) == sorted(zip(DAYS, expected, strict=True))


@pytest.mark.exhaustive
def test_rows_that_stay_in_a_file_of_another_calendar_keep_their_days(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_reader, "SPLIT_FILE_BYTES", 1)
    julian_file(tmp_path / "a.parquet", 40, "2.4.8")
    uri = logged(tmp_path)
    before = read_by_delta_spark(delta_spark, uri)
    table = DeltaTable(uri)
    table.delete("id = 0")
    alike(read_by_delta_spark(delta_spark, uri), before.slice(1))
    assert rows_of(table.snapshot().scan().to_arrow()) == rows_of(before.slice(1))


def test_a_zone_that_is_not_known_is_refused_by_name(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    from dagster_delta.errors import UnsupportedFeature

    uri = str(tmp_path / "old")
    write_legacy(delta_spark, uri, "INT96", "PST")
    with pytest.raises(UnsupportedFeature, match="PST"):
        DeltaTable(uri).snapshot().scan().to_arrow()
