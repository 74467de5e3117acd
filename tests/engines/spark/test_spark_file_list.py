"""Many files go to Spark as a list: the same rows as one by one, whatever the files are called."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.engines.spark.read import sources
from dagster_delta.engines.spark.read.sources import SPARK_PATH, list_directory
from dagster_delta.errors import DataFileMissing
from tests.golden.answers import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = sources.MAX_LOOKED_UP + 8
PARTITIONS = ["a b", "ü✈", "50%", "x=y", "q'd", None, "plain"]

pytestmark = [pytest.mark.slow, pytest.mark.classic("a Connect server looks up the files itself")]


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of the lists that Spark was given, in their order."""
    given: list[str] = []

    @contextmanager
    def told(listed: bytes) -> Iterator[str]:
        with list_directory(listed) as directory:
            yield directory
            given.append(directory)

    monkeypatch.setattr(sources, "list_directory", told)
    return given


def many_files(root: Path, *, partitioned: bool = False, properties: Any = None) -> DeltaTable:
    table = DeltaTable(str(root), must_exist=False)
    for number in range(FILES):
        value = PARTITIONS[number % len(PARTITIONS)] if partitioned else f"v{number}"
        rows = pa.table({"id": [number, -number], "p": pa.array([value] * 2, pa.string())})
        table.append(rows, partition_by=["p"] if partitioned else [], properties=properties or {})
    return table


def check_rows(table: DeltaTable, spark: SparkSession, where: str | None = None) -> None:
    scan = table.snapshot().scan(where=where)
    found = scan.to_spark(spark).toArrow()
    assert found.num_rows
    assert rows_of(found) == rows_of(scan.to_arrow())


def partitions(root: Path, count: int = FILES) -> DeltaTable:
    """A table with a file in each partition, made by one commit."""
    values = ["a", "b", *(f"p{number}" for number in range(2, count))]
    table = DeltaTable(str(root), must_exist=False)
    table.append(pa.table({"id": [1, 2] * count, "p": sorted(values * 2)}), partition_by=["p"])
    return table


@pytest.mark.parametrize("name", ["plain", "a b", "%41 ü✈"])
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_a_list_has_the_rows_of_its_files(
    tmp_path: Path, spark: SparkSession, lists: list[str], name: str, partitioned: bool
) -> None:
    table = many_files(tmp_path / name, partitioned=partitioned)
    check_rows(table, spark)
    assert len(lists) == 1
    assert not Path(lists[0].removeprefix("file:")).exists()


def test_directories_below_one_that_looks_like_a_partition_are_not_taken_for_more(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    check_rows(many_files(tmp_path / "year=2024", partitioned=True), spark)
    assert lists == []
    moved = (tmp_path / "year=2024").rename(tmp_path / "2024")
    check_rows(DeltaTable(str(moved)), spark)
    assert len(lists) == 1


def test_deleted_rows_stay_deleted(tmp_path: Path, spark: SparkSession, lists: list[str]) -> None:
    table = many_files(tmp_path, properties={"delta.enableDeletionVectors": "true"})
    table.delete("id > 0")
    check_rows(table, spark)
    check_rows(table, spark, f"id < {5 - FILES}")
    # The second read is of few files, which are looked up.
    assert len(lists) == 1


def test_a_read_outlives_its_list(tmp_path: Path, spark: SparkSession, lists: list[str]) -> None:
    table = many_files(tmp_path)
    rows = table.snapshot().scan().to_spark(spark)
    spark.catalog.refreshByPath(lists[0])
    spark.catalog.refreshByPath(table.uri)
    kept = rows.cache()
    assert kept.count() == rows.where("true").count() == 2 * FILES
    kept.unpersist()
    assert [row[0] for row in rows.selectExpr("sum(id)").collect()] == [0]


def test_files_that_this_process_may_not_look_at_are_left_to_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bytes:
        raise PermissionError("not for you")

    monkeypatch.setattr(sources, "list_files", refuse)
    check_rows(many_files(tmp_path), spark)


def test_a_local_file_that_is_missing_is_named_at_once(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table = many_files(tmp_path)
    gone = sorted(tmp_path.glob("*.parquet"))[7]
    gone.unlink()
    with pytest.raises(DataFileMissing, match=gone.name):
        table.snapshot().scan().to_spark(spark)
    assert lists == []


def test_a_size_that_the_log_has_wrong_hides_no_row(tmp_path: Path, spark: SparkSession) -> None:
    table = many_files(tmp_path)
    paths = [f"file:{each}" for each in sorted(tmp_path.glob("*.parquet"))]
    schema = table.snapshot().scan().to_spark(spark).schema
    files = pa.table({SPARK_PATH: paths, "size_bytes": [1] * len(paths)})
    rows = sources.open_parquet(spark, files, schema, location=table.store.location, version=0)
    assert rows.count() == 2 * FILES


def test_where_lists_are_ignored_files_are_looked_up(
    tmp_path: Path, spark: SparkSession, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, session = many_files(tmp_path), spark.newSession()
    for spelled in ("true", " TRUE"):
        session.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", spelled)
        check_rows(table, session)
    assert lists == []
    # Nor can one be passed over in silence.
    monkeypatch.setattr(sources, "_can_list", lambda *_: True)
    with pytest.raises(Exception, match="spark-did-not-take-the-list-of-files"):
        table.snapshot().scan().to_spark(session).collect()
    assert len(lists) == 1


def test_a_session_that_compacts_each_log_takes_lists(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table, session = partitions(tmp_path), spark.newSession()
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1")
    # Nor does a driver that keeps single paths as an option.
    session.conf.set("spark.sql.legacy.pathOptionBehavior.enabled", "true")
    check_rows(table, session)
    assert len(lists) == 1


def test_a_driver_that_does_not_see_the_list_looks_up_the_files(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def elsewhere(*_: Any) -> Iterator[str]:
        yield "file:/no/directory/of/this/machine"

    monkeypatch.setattr(sources, "list_directory", elsewhere)
    check_rows(many_files(tmp_path), spark)


@pytest.mark.parametrize("kind", ["gone", "file"])
def test_without_a_place_for_a_list_files_are_looked_up(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_bytes(b"")
    table = partitions(tmp_path / "table")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    check_rows(table, spark)


@pytest.mark.parametrize("name", ["a b=c", "%41", "ü✈", "*{x}[y]?", "_x", ".x", "x:y", "x\\y\n"])
def test_a_list_may_stand_anywhere(
    tmp_path: Path,
    spark: SparkSession,
    lists: list[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    (tmp_path / name).mkdir()
    table = partitions(tmp_path / "table")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    check_rows(table, spark)
    assert len(lists) == 1


@pytest.mark.parametrize("count", [2, FILES], ids=["looked up", "listed"])
def test_the_partitions_of_a_directory_named_temporary_are_those_of_the_log(
    tmp_path: Path, spark: SparkSession, count: int
) -> None:
    check_rows(partitions(tmp_path / "_Temporary", count), spark)


def test_a_listed_file_keeps_the_time_it_was_made(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table = partitions(tmp_path)
    rows = table.snapshot().scan().to_spark(spark)
    times = rows.select("_metadata.file_modification_time").distinct().toArrow().column(0)
    found = {
        int(each.stat().st_mtime * 1000)
        for each in tmp_path.rglob("*.parquet")
        if "_delta_log" not in each.parts
    }
    assert {each.value // 1000 for each in times} == found
    assert len(lists) == 1


def test_files_that_the_log_says_have_no_bytes_are_looked_up(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table = many_files(tmp_path)
    paths = [f"file:{each}" for each in sorted(tmp_path.glob("*.parquet"))]
    schema = table.snapshot().scan().to_spark(spark).schema
    lists.clear()
    files = pa.table({SPARK_PATH: paths, "size_bytes": [0] * len(paths)})
    rows = sources.open_parquet(spark, files, schema, location=table.store.location, version=0)
    assert rows.count() == 2 * FILES
    assert lists == []


def test_threads_read_lists_at_once(tmp_path: Path, spark: SparkSession, lists: list[str]) -> None:
    table = partitions(tmp_path)
    sessions = [spark, spark, spark.newSession(), spark.newSession()]
    with ThreadPoolExecutor(len(sessions)) as pool:
        found = pool.map(lambda each: check_rows(table, each), sessions)
        assert list(found) == [None] * len(sessions)
    assert len(set(lists)) == len(sessions)


def test_a_filter_that_comes_later_leaves_out_listed_partitions(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table = partitions(tmp_path)
    rows = table.snapshot().scan().to_spark(spark)
    gone = next((tmp_path / "p=b").iterdir())
    gone.unlink()
    assert rows.where("p = 'a'").count() == 2
    # What was loaded before a file went away names the file.
    with pytest.raises(Exception, match=gone.name):
        rows.collect()
    assert len(lists) == 1


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_of_listed_files_are_found_by_their_mapping(
    tmp_path: Path,
    spark: SparkSession,
    lists: list[str],
    mode: str,
) -> None:
    table = DeltaTable.create(
        str(tmp_path),
        pa.schema({"id": pa.int64(), "P": pa.string()}),
        partition_by=["P"],
        properties={"delta.columnMapping.mode": mode},
    )
    texts = [None, *(f"a{number}" for number in range(1, FILES))]
    table.append(pa.table({"id": range(FILES), "P": pa.array(texts, pa.string())}))
    table.rename_column("id", "number")
    # The new column has the name of the old one's directory, but for its case.
    table.rename_column("P", "id")
    table.add_column("p", "string")
    table.append(pa.table({"number": [3], "id": ["c"], "p": ["new"]}))
    check_rows(table, spark)
    assert len(lists) == 1


def test_a_clone_lists_the_files_of_two_tables(
    tmp_path: Path, spark: SparkSession, lists: list[str]
) -> None:
    table = partitions(tmp_path / "source")
    table.clone(tmp_path / "a clone", deep=False)
    clone = DeltaTable(str(tmp_path / "a clone"))
    clone.append(pa.table({"id": [3], "p": ["a"]}))
    check_rows(clone, spark)
    assert len(lists) == 1


def test_a_listed_table_is_overwritten_with_its_own_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = partitions(tmp_path)
    table.overwrite(table.snapshot().scan().to_spark(spark).where("id = 1"))
    found = table.snapshot().scan().to_arrow()
    assert found["id"].to_pylist() == [1] * FILES
    assert len(set(found["p"].to_pylist())) == FILES


def test_two_reads_of_one_version_can_be_joined(tmp_path: Path, spark: SparkSession) -> None:
    table = partitions(tmp_path)
    left, right = (table.snapshot().scan().to_spark(spark) for _ in range(2))
    assert not left.sameSemantics(right)
    joined = left.join(right, (left["id"] == right["id"]) & (left["p"] == right["p"]))
    assert joined.count() == left.exceptAll(right).count() + 2 * FILES
