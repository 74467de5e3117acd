"""Tables as a source and sink by name: `format("delta_log")` in Python and SQL, on real sessions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import Column, DeltaTable, Identity
from dagster_delta.errors import CommitStateUnknown, TableNotFound
from tests.table_rows import stored_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def data_files(uri: str) -> set[str]:
    return {each.name for each in Path(uri).rglob("*.parquet") if "_delta_log" not in str(each)}


def write(frame: DataFrame, uri: str, mode: str = "append", **options: str) -> None:
    frame.write.format("delta_log").mode(mode).options(**options).save(uri)


def test_rows_are_appended_and_the_first_write_makes_the_table(
    uri: str, registered: SparkSession, delta_spark: SparkSession
) -> None:
    frame = registered.range(4, numPartitions=2).selectExpr("id", "id % 2 AS p")
    write(frame, uri, partitionBy="p", userMetadata="nightly")
    write(registered.sql("SELECT 9L id, 1L p"), uri)
    table = DeltaTable(uri)
    assert table.snapshot().configuration.partition_columns == ("p",)
    assert table.history()[-1].user_metadata == "nightly"
    theirs = delta_spark.read.format("delta").load(uri).collect()
    assert sorted(tuple(each) for each in theirs) == [(0, 0), (1, 1), (2, 0), (3, 1), (9, 1)]


def test_an_overwrite_replaces_all_rows_or_those_it_is_told(
    uri: str, registered: SparkSession
) -> None:
    sql = registered.sql
    write(
        sql("SELECT * FROM VALUES (1, 'a'), (2, 'b'), (3, 'b') AS t(id, p)"), uri, partitionBy="p"
    )
    write(sql("SELECT 3 id, 'c' p"), uri, "overwrite", replaceWhere="id = 3")
    assert [(row["id"], row["p"]) for row in stored_rows(uri)] == [(1, "a"), (2, "b"), (3, "c")]
    write(sql("SELECT 4 id, 'b' p"), uri, "overwrite", replaceWhere="p = 'b'")
    assert [(row["id"], row["p"]) for row in stored_rows(uri)] == [(1, "a"), (3, "c"), (4, "b")]
    write(sql("SELECT 5 id, 'd' p"), uri, "overwrite")
    assert stored_rows(uri) == [{"id": 5, "p": "d"}]


def test_a_new_row_outside_of_what_is_replaced_is_refused(
    uri: str, registered: SparkSession
) -> None:
    write(registered.sql("SELECT 1 id"), uri)
    with pytest.raises(Exception, match="predicate of the overwrite"):
        write(registered.sql("SELECT 2 id"), uri, "overwrite", replaceWhere="id = 1")
    assert stored_rows(uri) == [{"id": 1}]
    write(registered.sql("SELECT 2 id"), uri, "overwrite")
    assert stored_rows(uri) == [{"id": 2}]


def test_a_dynamic_overwrite_replaces_the_partitions_it_has_rows_for(
    uri: str, registered: SparkSession
) -> None:
    sql = registered.sql
    write(sql("SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(id, p)"), uri, partitionBy="p")
    write(sql("SELECT 3 id, 'b' p"), uri, "overwrite", partitionOverwriteMode="dynamic")
    assert stored_rows(uri) == [{"id": 1, "p": "a"}, {"id": 3, "p": "b"}]


def test_a_table_can_be_overwritten_by_its_own_rows(uri: str, registered: SparkSession) -> None:
    write(registered.range(5), uri)
    own = registered.read.format("delta_log").load(uri)
    write(own.selectExpr("id + 1 AS id"), uri, "overwrite")
    assert [row["id"] for row in stored_rows(uri)] == [1, 2, 3, 4, 5]


def test_columns_are_added_where_the_write_says_so(uri: str, registered: SparkSession) -> None:
    write(registered.sql("SELECT 1 id"), uri)
    wider = registered.sql("SELECT 2 id, 'x' s")
    with pytest.raises(Exception, match="columns that the table lacks"):
        write(wider, uri)
    write(wider, uri, mergeSchema="true")
    assert stored_rows(uri) == [{"id": 1, "s": None}, {"id": 2, "s": "x"}]
    write(registered.sql("SELECT true ok"), uri, "overwrite", overwriteSchema="true")
    assert stored_rows(uri) == [{"ok": True}]


def test_a_view_is_selected_from_and_inserted_into(uri: str, registered: SparkSession) -> None:
    write(registered.sql("SELECT 1L id, 'a' s"), uri)
    view = f"CREATE OR REPLACE TEMPORARY VIEW named USING delta_log OPTIONS (path '{uri}')"
    registered.sql(view)
    registered.sql("INSERT INTO named VALUES (2, 'b')")
    registered.sql("INSERT INTO named (id) SELECT max(id) + 1 FROM named")
    assert stored_rows(uri) == [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}, {"id": 3, "s": None}]
    registered.sql("INSERT OVERWRITE named VALUES (4, 'd')")
    assert stored_rows(uri) == [{"id": 4, "s": "d"}]
    registered.catalog.dropTempView("named")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE named USING delta_log LOCATION '{uri}'", "CREATE TEMPORARY VIEW"),
        ("CREATE TABLE named USING delta_log OPTIONS (path '{uri}')", "CREATE TEMPORARY VIEW"),
        ("SELECT * FROM delta_log.`{uri}`", "Unsupported data source type for direct query"),
        ("DELETE FROM rows_by_name WHERE id = 1", "does not support deletes"),
        ("UPDATE rows_by_name SET id = 2", "does not support UPDATE"),
        (
            "MERGE INTO rows_by_name USING rows_by_name s ON s.id = rows_by_name.id "
            "WHEN MATCHED THEN DELETE",
            "does not support MERGE",
        ),
        ("INSERT INTO rows_by_name REPLACE WHERE id = 1 VALUES (1)", "overwrite by filter"),
    ],
)
def test_what_sql_cannot_do_by_name_is_refused_and_changes_nothing(
    uri: str, registered: SparkSession, statement: str, message: str
) -> None:
    write(registered.range(1), uri)
    view = f"CREATE OR REPLACE TEMPORARY VIEW rows_by_name USING delta_log OPTIONS (path '{uri}')"
    registered.sql(view)
    with pytest.raises(Exception, match=message):
        registered.sql(statement.format(uri=uri)).collect()
    assert not registered.catalog.tableExists("named")
    assert DeltaTable(uri).version() == 0


def test_a_row_that_breaks_a_constraint_leaves_no_commit_and_no_file(
    uri: str, registered: SparkSession
) -> None:
    write(registered.range(3), uri)
    DeltaTable(uri).alter("ADD CONSTRAINT small CHECK (id < 10)")
    before, files = DeltaTable(uri).version(), data_files(uri)
    with pytest.raises(Exception, match=r"CHECK small[\s\S]*12"):
        write(registered.range(0, 13, numPartitions=3), uri)
    assert DeltaTable(uri).version() == before
    assert data_files(uri) == files
    write(registered.range(3, 5), uri)
    assert [row["id"] for row in stored_rows(uri)] == [0, 1, 2, 3, 4]


def test_a_query_that_fails_leaves_nothing(uri: str, registered: SparkSession) -> None:
    frame = registered.range(0, 4, numPartitions=2).selectExpr("1 DIV (id - 3) AS id")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(frame, uri)
    with pytest.raises(TableNotFound):
        DeltaTable(uri)


def test_what_a_write_by_name_cannot_do_is_refused_with_the_way_round(
    uri: str, registered: SparkSession
) -> None:
    DeltaTable.create(uri, [Column("id", "BIGINT", identity=Identity()), Column("s", "STRING")])
    with pytest.raises(Exception, match=r"DeltaTable\.append"):
        write(registered.sql("SELECT 'x' s"), uri)
    with pytest.raises(Exception, match="versionAsOf has no effect on an append"):
        write(registered.sql("SELECT 'x' s"), uri, versionAsOf="0")
    with pytest.raises(Exception, match="mergeSchema has no effect on a batch query"):
        registered.read.format("delta_log").option("mergeSchema", "true").load(uri).collect()
    with pytest.raises(Exception, match="replaceWhere has no effect on an append"):
        write(registered.sql("SELECT 'x' s"), uri, replaceWhere="s = 'x'")


def test_constraints_are_evaluated_in_the_time_zone_of_the_session(
    uri: str, registered: SparkSession
) -> None:
    write(registered.sql("SELECT TIMESTAMP '2026-01-31 23:30:00Z' at"), uri)
    DeltaTable(uri).alter("ADD CONSTRAINT january CHECK (month(at) = 1)")
    last = registered.sql("SELECT TIMESTAMP '2026-01-31 23:30:00Z' at")
    zone = registered.conf.get("spark.sql.session.timeZone")
    try:
        registered.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
        with pytest.raises(Exception, match="break CHECK january"):
            write(last, uri)
        registered.conf.set("spark.sql.session.timeZone", "America/New_York")
        write(last, uri)
    finally:
        registered.conf.set("spark.sql.session.timeZone", str(zone))
    assert len(stored_rows(uri)) == 2


def test_uses_of_a_frame_with_other_filters_have_all_their_rows(
    uri: str, registered: SparkSession
) -> None:
    table = DeltaTable(uri, must_exist=False)
    for start in (0, 10):
        table.append(pa.table({"id": [start, start + 1]}))
    frame = registered.read.format("delta_log").load(uri)
    low, high = frame.where("id < 5"), frame.where("id > 5")
    assert sorted(row.id for row in low.union(high).collect()) == [0, 1, 10, 11]
    assert low.count() == 2
    assert frame.count() == 4
    registered.sql(f"CREATE TEMPORARY VIEW halves USING delta_log OPTIONS (path '{uri}')")
    try:
        for where, expected in (("id > 5", 2), ("true", 4)):
            found = registered.sql(f"SELECT id FROM halves WHERE {where}").count()
            assert found == expected
    finally:
        registered.catalog.dropTempView("halves")


def test_columns_that_the_table_lacks_are_refused_with_the_option_that_adds_them(
    uri: str, registered: SparkSession
) -> None:
    write(registered.range(1), uri)
    wider = registered.sql("SELECT 1L id, 2 n")
    with pytest.raises(Exception, match=r'or pass option\("mergeSchema", "true"\)'):
        write(wider, uri)
    write(wider, uri, mergeSchema="true")
    assert stored_rows(uri) == [{"id": 0, "n": None}, {"id": 1, "n": 2}]


def test_only_a_query_that_never_came_to_its_commit_deletes_its_files(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import LongType, StructField, StructType

    from dagster_delta.streaming import data_source
    from dagster_delta.streaming.options import SourceOptions
    from dagster_delta.table.operations.append import append_rows

    schema = StructType([StructField("id", LongType())])
    writer = data_source.TableWriter(SourceOptions(uri=uri), schema, overwrite=False)
    batch = pa.record_batch({"id": [1, 2]})
    failed = [writer.write(iter([batch])), None]
    assert data_files(uri)
    writer.abort(failed)
    assert not data_files(uri)

    def land_and_lose_the_reply(*args: Any, **options: Any) -> None:
        append_rows(*args, **options)
        raise CommitStateUnknown("no reply", table=uri)

    monkeypatch.setattr(data_source, "append_rows", land_and_lose_the_reply)
    messages = [writer.write(iter([batch])), writer.write(iter(()))]
    with pytest.raises(CommitStateUnknown):
        writer.commit(messages)
    # As Spark does, in a process of its own.
    pickle.loads(pickle.dumps(writer)).abort(messages)
    assert [row["id"] for row in stored_rows(uri)] == [1, 2]
