"""What Spark reads of a table is what the Arrow engine reads, whatever the table needs."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import random
import shutil
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.engine import SparkEngine
from dagster_delta.engines.spark.read import file_keys
from dagster_delta.engines.spark.read import reader as spark_reader
from dagster_delta.engines.spark.session.schema import declared_spark_type, to_spark_schema
from dagster_delta.engines.spark.session.session import FIELD_ID_READ
from dagster_delta.errors import DataFileMissing, DeltaError, InvalidArgument, InvalidTable
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.schema import ArrayType, MapType, PrimitiveType, StructField
from dagster_delta.protocol.values.partition_values import decode_path, encode_uri
from dagster_delta.storage import open_store
from dagster_delta.table.delta_table import DeltaTable
from tests.golden.answers import rows_of, table_path
from tests.inline_vectors import encode_inline
from tests.parquet.data_tables import (
    commit,
    configuration,
    featured,
    live_files,
    mapped_configuration,
    schema_of,
    write,
)
from tests.table.logs import edited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def session(spark: SparkSession) -> Any:
    """The shared session, in which a test may change settings."""
    before: dict[str, str | None] = {}
    original = spark.conf.set

    class Settings:
        def __call__(self, name: str, value: str) -> None:
            before.setdefault(name, spark.conf.get(name, None))
            original(name, value)

    spark.set_for_test = Settings()  # type: ignore[attr-defined]
    yield spark
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            original(name, value)


@pytest.fixture
def by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is left to the Arrow engine on the executors."""
    monkeypatch.setattr(spark_reader._FrameReader, "_is_native", lambda _: False)


@pytest.mark.parametrize(
    "name",
    [
        "dat__nested_types",
        "golden__data-reader-partition-values",
        "golden__dv-with-columnmapping",
        "golden__table-with-columnmapping-mode-id",
        "golden__data-reader-timestamp_ntz-name-mode",
        "golden__spark-variant-checkpoint",
        "golden__type-widening",
        "krs__void-column",
    ],
)
@pytest.mark.usefixtures("golden_tables", "by_arrow")
def test_the_arrow_engine_on_the_executors_gives_the_same_rows(
    name: str, session: SparkSession
) -> None:
    session.set_for_test("spark.sql.session.timeZone", "America/Los_Angeles")  # type: ignore[attr-defined]
    snapshot = DeltaTable(table_path(name)).snapshot()
    frame = snapshot.scan().to_spark(session)
    assert frame.schema.simpleString() == to_spark_schema(snapshot.schema).simpleString()
    if "variant" in name:
        assert frame.selectExpr("to_json(v)").distinct().count() > 1
        return
    assert rows_of(frame.toArrow()) == rows_of(snapshot.scan().to_arrow())


@pytest.mark.usefixtures("golden_tables")
@pytest.mark.classic("a Connect server looks for files when rows are asked for")
def test_a_file_that_is_gone_is_named(spark: SparkSession) -> None:
    with pytest.raises(DataFileMissing) as caught:
        DeltaTable(table_path("rs__checkpoints")).snapshot().scan().to_spark(spark)
    assert caught.value.file is not None
    assert ".parquet" in caught.value.file


# -- partition values ---------------------------------------------------------------------------

PARTITION_ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "t": pa.array(
            [dt.datetime(2020, 3, 29, 1 + n, 30, 0, n, dt.UTC) for n in range(4)]
            + [None, dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
            pa.timestamp("us", "UTC"),
        ),
        "n": pa.array(
            [dt.datetime(2020, 3, 29, 1 + n, 30, 0, n) for n in range(4)] + [None] * 2,
            pa.timestamp("us"),
        ),
        "d": pa.array([dt.date(2020, 3, 29), dt.date(1, 1, 1), None] * 2),
        "b": pa.array([b"a", b"\x01\x7f", None] * 2, pa.binary()),
        "x": pa.array([0.1, float("nan"), float("-inf"), -0.0, None, 1e300]),
        "s": ["", "a b", "ü/%20", "null", None, "a"],
    }
)


@pytest.mark.parametrize("rows", [6, 1], ids=["joined", "one_partition"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_partition_values_do_not_depend_on_the_session(
    tmp_path: Path, session: SparkSession, zone: str, rows: int
) -> None:
    session.set_for_test("spark.sql.session.timeZone", zone)  # type: ignore[attr-defined]
    table = DeltaTable.create(
        str(tmp_path), PARTITION_ROWS.schema, partition_by=["t", "n", "d", "b", "x", "s"]
    )
    table.append(PARTITION_ROWS.slice(0, rows))
    scan = table.snapshot().scan()
    assert rows_of(scan.to_spark(session).toArrow()) == rows_of(scan.to_arrow())


def executed_plan(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        frame.explain()
    return said.getvalue()


DIRECTORY_ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "t": pa.array(
            [dt.datetime(2020, 3, 29, 1, 30, 0, n, dt.UTC) for n in range(5)] + [None],
            pa.timestamp("us", "UTC"),
        ),
        "n": pa.array([dt.datetime(2020, 3, 29, 2, 30, n) for n in range(6)], pa.timestamp("us")),
        "d": pa.array([dt.date(2020, 3, 29), dt.date(1, 1, 1), None] * 2),
        "b": pa.array([-128, 127, None] * 2, pa.int8()),
        "l": pa.array([-(2**63), 2**63 - 1, 0] * 2),
        "f": [True, False, None] * 2,
        "m": pa.array([Decimal("-3.50"), Decimal("0.05"), None] * 2, pa.decimal128(5, 2)),
        "s": ["", "007", "ü/%20 é", "null", None, "2020-01-01"],
    }
)


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_directories_that_spell_the_log_give_the_same_values(
    tmp_path: Path, session: SparkSession, zone: str
) -> None:
    session.set_for_test("spark.sql.session.timeZone", zone)  # type: ignore[attr-defined]
    names = DIRECTORY_ROWS.column_names[1:]
    table = DeltaTable.create(str(tmp_path), DIRECTORY_ROWS.schema, partition_by=names)
    table.append(DIRECTORY_ROWS)
    scan = table.snapshot().scan()
    frame = scan.to_spark(session)
    assert "BroadcastHashJoin" not in executed_plan(frame)
    assert rows_of(frame.toArrow()) == rows_of(scan.to_arrow())
    assert rows_of(frame.select("m", "id").toArrow()) == rows_of(
        table.snapshot().scan(columns=["m", "id"]).to_arrow()
    )


def test_directories_that_say_something_else_are_not_believed(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [0, 1], "p": ["a", "b"]}), partition_by=["p"])
    (tmp_path / "p=a").rename(tmp_path / "p=swap")
    (tmp_path / "p=b").rename(tmp_path / "p=a")
    (tmp_path / "p=swap").rename(tmp_path / "p=b")
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    commit = edited(log.read_bytes(), b'"path":"p=a', b'"path":"p=~')
    swapped = commit.replace(b'"path":"p=b', b'"path":"p=a')
    log.write_bytes(swapped.replace(b'"path":"p=~', b'"path":"p=b'))
    frame = DeltaTable(str(tmp_path)).snapshot().scan().to_spark(spark)
    assert sorted((row.id, row.p) for row in frame.collect()) == [(0, "a"), (1, "b")]


@pytest.mark.classic("a Connect server looks for files when rows are asked for")
@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("deleted", [False, True], ids=["plain", "with_vectors"])
def test_a_later_filter_on_a_partition_column_leaves_the_other_files_alone(
    tmp_path: Path, spark: SparkSession, mode: str, deleted: bool
) -> None:
    properties = {"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"}
    table = DeltaTable(str(tmp_path), must_exist=False)
    rows = pa.table({"id": range(15), "p": [n % 5 for n in range(15)]})
    table.append(rows, partition_by=["p"], properties=properties)
    if deleted:
        table.delete("id < 5")
    frame = table.snapshot().scan().to_spark(spark)
    assert "BroadcastHashJoin" not in executed_plan(frame) or deleted
    for path in table.snapshot().scan(where="p <> 1").files()["path"].to_pylist():
        (tmp_path / path).unlink()
    found = frame.where("p = 1 AND id > 0")
    assert sorted(row.id for row in found.collect()) == ([6, 11] if deleted else [1, 6, 11])
    with pytest.raises(Exception, match="parquet"):
        frame.collect()


def test_a_query_without_a_partition_column_makes_no_metadata_of_its_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    # Fractions are not read from directories.
    table.append(pa.table({"id": [1, 2], "p": [0.5, 1.5]}), partition_by=["p"])
    frame = table.snapshot().scan().to_spark(spark)
    assert sorted(row.id for row in frame.select("id").collect()) == [1, 2]
    plan = executed_plan(frame.select("id"))
    assert "file_size" in plan
    assert "file_path" not in plan
    assert "row_index" not in plan


@pytest.mark.parametrize("deleted", [False, True], ids=["plain", "with_vectors"])
@pytest.mark.parametrize(
    "rename",
    [
        lambda index: f"{index}/the same name.parquet",
        lambda index: f"{index}/same.parquet",
        lambda index: f"a%20b c{index}+ü.parquet",
        lambda index: f"part-{index}.parquet",
    ],
    ids=["escaped_and_equal", "equal", "escaped", "plain"],
)
def test_each_row_gets_what_the_log_says_of_its_file(
    tmp_path: Path, spark: SparkSession, rename: Callable[[int], str], deleted: bool
) -> None:
    gone = [{1, 3}, {0}, {4}] if deleted else [set()] * 3
    table = table_with_vectors(str(tmp_path), [5, 5, 5], gone, rename=rename)
    rows = table.snapshot().scan().to_spark(spark).collect()
    expected = [
        (f"file {index}", row) for index in range(3) for row in range(5) if row not in gone[index]
    ]
    assert sorted((row.p, row.id) for row in rows) == expected


@pytest.mark.classic("a Connect client does not see the plan of the server")
def test_deleted_rows_and_partition_values_leave_the_size_that_spark_expects(
    tmp_path: Path, spark: SparkSession
) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    table = DeltaTable(str(tmp_path), must_exist=False)
    rows = pa.table({"id": range(100_000), "p": [n % 5 for n in range(100_000)]})
    table.append(rows, partition_by=["p"], properties=properties)
    table.delete("id < 50")
    files = table.snapshot().scan().files()
    frame: Any = table.snapshot().scan().to_spark(spark)
    size = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert int(str(size)) < 4 * pa.compute.sum(files["size_bytes"]).as_py()


@pytest.mark.parametrize("deleted", [False, True], ids=["plain", "with_vectors"])
def test_the_values_of_many_files_are_read_by_a_subquery(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    monkeypatch.setattr(file_keys, "_MAX_NAMES", 0)
    monkeypatch.setattr(file_keys, "_MAX_LITERALS", 1)
    table = DeltaTable.create(
        str(tmp_path),
        PARTITION_ROWS.schema,
        partition_by=["t", "n", "d", "b", "x", "s"],
        properties={"delta.enableDeletionVectors": "true"},
    )
    table.append(PARTITION_ROWS)
    table.append(PARTITION_ROWS)
    if deleted:
        table.delete("id = 1")
    scan = table.snapshot().scan()
    frame = scan.to_spark(session)
    assert rows_of(frame.toArrow()) == rows_of(scan.to_arrow())
    assert frame.where("s = 'a b'").count() == scan.to_arrow()["s"].to_pylist().count("a b")


# -- deletion vectors ---------------------------------------------------------------------------


def table_with_vectors(
    uri: str,
    num_rows: list[int],
    deleted: list[set[int]],
    *,
    stats: bool = True,
    rename: Callable[[int], str] | None = None,
) -> DeltaTable:
    """A partitioned table of one file per entry, with inline deletion vectors."""
    store = open_store(uri)
    rows = pa.table({"id": pa.array([], pa.int64()), "p": pa.array([], pa.string())})
    config = configuration(schema_of(rows), ["p"], protocol=featured("deletionVectors"))
    files: list[AddFile] = []
    for index, (count, gone) in enumerate(zip(num_rows, deleted, strict=True)):
        data = pa.table({"id": np.arange(count), "p": [f"file {index}"] * count})
        (add,) = write(store, data, config).files
        vector = encode_inline(BitMap64(gone)) if gone else None
        values = {
            name: getattr(add, name)
            for name in ("path", "partition_values", "size_bytes", "modification_time_ms")
        }
        if rename is not None:
            renamed = Path(uri, rename(index))
            renamed.parent.mkdir(exist_ok=True)
            Path(uri, decode_path(add.path)).rename(renamed)
            values["path"] = encode_uri(rename(index))
        files.append(
            AddFile(
                **values,
                data_change=True,
                stats=add.stats if stats else None,
                deletion_vector=vector,
            )
        )
    commit(store, config, files)
    return DeltaTable(uri)


@pytest.mark.parametrize("way", ["by_name", "by_hash", "too_large"])
@pytest.mark.examples(3)
def test_deleted_rows_are_gone_at_every_density(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(file_keys, "_MAX_NAMES", 0 if way == "by_hash" else 6)
    if way == "too_large":
        monkeypatch.setattr(spark_reader, "MAX_BROADCAST_BYTES", 0)
    choose = random.Random(7)
    counts = [200_000, 65_536, 65_537, 3, 5, 10]
    deleted = [
        set(choose.sample(range(200_000), 60_000)),
        {0, 65_535},
        {65_536},
        {0, 1, 2},
        set(),
        {63, 64} & set(range(10)) or {9},
    ]
    table = table_with_vectors(str(tmp_path), counts, deleted)
    frame = table.snapshot().scan().to_spark(spark)
    found: dict[str, set[int]] = {}
    for batch in frame.toArrow().to_batches():
        for name, row in zip(batch["p"].to_pylist(), batch["id"].to_pylist(), strict=True):
            assert row not in found.setdefault(name, set())
            found[name].add(row)
    expected = {
        f"file {index}": set(range(count)) - gone
        for index, (count, gone) in enumerate(zip(counts, deleted, strict=True))
    }
    assert found == {name: rows for name, rows in expected.items() if rows}


def test_deleted_rows_are_gone_where_the_log_does_not_say_how_many_rows_a_file_has(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = table_with_vectors(str(tmp_path), [10, 10], [{1, 2}, set()], stats=False)
    rows = table.snapshot().scan().to_spark(spark).collect()
    assert sorted((row.p, row.id) for row in rows) == sorted(
        [("file 0", n) for n in (0, 3, 4, 5, 6, 7, 8, 9)] + [("file 1", n) for n in range(10)]
    )


@pytest.mark.parametrize("by_name", [True, False], ids=["by_name", "by_hash"])
def test_a_row_of_an_unknown_file_is_an_error(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    table = table_with_vectors(str(tmp_path), [10], [{1}])
    if by_name:
        by_others = partial(file_keys.file_number_by_name, paths=["other.parquet"])
        monkeypatch.setattr(spark_reader, "file_number_by_name", lambda rows, _: by_others(rows))
    else:
        monkeypatch.setattr(file_keys, "_MAX_NAMES", 0)
        monkeypatch.setattr(spark_reader, "encode_uri", lambda path: path + "?")
    frame = table.snapshot().scan().to_spark(spark)
    with pytest.raises(Exception, match="Spark reports another path for a data file"):
        frame.collect()


def test_files_with_one_hash_are_refused(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_vectors(str(tmp_path), [5, 5], [{1}, {2}])
    monkeypatch.setattr(file_keys, "_MAX_NAMES", 0)
    monkeypatch.setattr(spark_reader, "file_keys", lambda paths: np.zeros(len(paths), np.int64))
    with pytest.raises(InvalidTable, match="same 64-bit hash"):
        table.snapshot().scan().to_spark(spark)


# -- files that Spark would misread ---------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    ["_x.parquet", ".x.parquet", "x:y.parquet", "x*.parquet", "x[1].parquet", "{a,b}.parquet",
     "x?.parquet", "a\u00a0b.parquet", "back\\slash.parquet", "x._COPYING_"],
)  # fmt: skip
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_a_file_of_an_odd_name_is_read_once(
    tmp_path: Path, spark: SparkSession, odd: str, partitioned: bool
) -> None:
    names = ["plain.parquet", odd, "sp ace.parquet", "per%20cent.parquet", "ü✈.parquet"]
    assert read_named(tmp_path, spark, names, partitioned=partitioned) == list(range(len(names)))


def test_a_file_named_twice_is_read_as_often_as_the_log_names_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    absolute = f"file://{tmp_path}/plain.parquet"
    names = ["plain.parquet", "other.parquet", absolute]
    assert read_named(tmp_path, spark, names, partitioned=False) == [0, 0, 1]


def read_named(
    root: Path, spark: SparkSession, names: list[str], *, partitioned: bool
) -> list[int]:
    """Ids of the rows of a table whose files were renamed: file number n holds n alone."""
    from dagster_delta.protocol.values.partition_values import encode_path

    store = open_store(str(root))
    empty = pa.table({"id": pa.array([], pa.int64()), "p": pa.array([], pa.string())})
    config = configuration(schema_of(empty), ["p"] if partitioned else [])
    files = []
    for index, name in enumerate(names):
        (add,) = write(store, pa.table({"id": [index], "p": [f"p{index}"]}), config).files
        target = root / name.removeprefix(f"file://{root}/")
        if not target.exists():
            shutil.move(root / add.path, target)
        files.append(
            AddFile(
                path=name if "://" in name else encode_path(name),
                partition_values=add.partition_values,
                size_bytes=add.size_bytes,
                modification_time_ms=0,
                data_change=True,
            )
        )
    plan = ReadPlan(store, 0, config, live_files(files), ("id", "p"))
    rows = SparkEngine(spark).read(plan).collect()
    if partitioned:
        assert all(row.p == f"p{row.id}" for row in rows)
    return sorted(row.id for row in rows)


def test_a_damaged_file_is_an_error_although_the_session_would_skip_it(
    tmp_path: Path, session: SparkSession
) -> None:
    session.set_for_test("spark.sql.files.ignoreCorruptFiles", "true")  # type: ignore[attr-defined]
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": range(1000)}))
    (file,) = tmp_path.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(Exception, match="parquet"):
        table.snapshot().scan().to_spark(session).collect()


# -- column mapping -------------------------------------------------------------------------------

NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3]),
        "s": pa.array(
            [{"a": 1, "in": {"b": "x", "c": [1]}}, {"a": None, "in": None}, None],
            pa.struct(
                [("a", pa.int64()), ("in", pa.struct([("b", pa.string()), ("c", pa.list_(pa.int32()))]))]
            ),
        ),
        "l": pa.array([[{"e": 1}], [], None], pa.list_(pa.struct([("e", pa.int32())]))),
        "m": pa.array([[("k", {"v": 1.5})], [], None], pa.map_(pa.string(), pa.struct([("v", pa.float64())]))),
    }
)  # fmt: skip


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("by_id", ["true", "false"], ids=["by_id", "not_by_id"])
def test_mapped_columns_keep_their_values_when_nested_fields_are_selected(
    tmp_path: Path, session: SparkSession, mode: Any, by_id: str
) -> None:
    session.set_for_test(FIELD_ID_READ, by_id)  # type: ignore[attr-defined]
    store = open_store(str(tmp_path))
    config = mapped_configuration(schema_of(NESTED), mode)
    files = write(store, NESTED, config).files
    frame = SparkEngine(session).read(
        ReadPlan(store, 0, config, live_files(files), tuple(NESTED.column_names))
    )
    assert rows_of(frame.toArrow()) == rows_of(NESTED)
    picked = (
        frame.selectExpr("id", "s.in.b", "s.a", "get(l, 0).e", "m['k'].v").orderBy("id").collect()
    )
    assert [tuple(row) for row in picked] == [
        (1, "x", 1, 1, 1.5),
        (2, None, None, None, None),
        (3, None, None, None, None),
    ]
    assert [row.id for row in frame.where("s.in.b = 'x'").collect()] == [1]


def test_only_the_nested_fields_that_are_needed_are_read_under_name_mapping(
    tmp_path: Path, spark: SparkSession
) -> None:
    store = open_store(str(tmp_path))
    config = mapped_configuration(schema_of(NESTED), "name")
    files = write(store, NESTED, config).files
    plan = ReadPlan(store, 0, config, live_files(files), tuple(NESTED.column_names))
    frame = SparkEngine(spark).read(plan).selectExpr("s.in.b")
    assert [row.b for row in frame.collect()].count("x") == 1
    explained = executed_plan(frame)
    read_schema = explained[explained.index("ReadSchema") :].splitlines()[0]
    assert "array" not in read_schema
    assert "bigint" not in read_schema


# -- plans ----------------------------------------------------------------------------------------


def test_reading_leaves_the_settings_of_the_session_alone(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    for start in range(40):
        table.append(pa.table({"id": [start]}))
    before = _settings(spark)
    assert table.snapshot().scan().to_spark(spark).count() == 40
    assert _settings(spark) == before


def _settings(spark: SparkSession) -> dict[str, str]:
    # delta-spark sets this one in the background, after a table of an earlier test was read.
    of_delta_spark = "spark.sql.parquet.fieldId.write.enabled"
    return {name: value for name, value in spark.conf.getAll.items() if name != of_delta_spark}


def test_a_table_without_files_is_an_empty_frame(tmp_path: Path, spark: SparkSession) -> None:
    table = DeltaTable.create(str(tmp_path), NESTED.schema)
    frame = table.snapshot().scan().to_spark(spark)
    assert frame.columns == NESTED.column_names
    assert frame.count() == 0


def test_comments_of_columns_are_kept(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"comment": "who"})])
    table = DeltaTable.create(str(tmp_path), schema)
    table.append(pa.table({"id": [1]}))
    frame = table.snapshot().scan().to_spark(spark)
    assert frame.schema["id"].metadata == {"comment": "who"}


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    table = DeltaTable("memory://spark-reading", must_exist=False)
    table.append(pa.table({"id": [1]}))
    with pytest.raises(InvalidArgument, match="cannot access a table in the memory"):
        table.snapshot().scan().to_spark(spark)


def test_errors_of_the_arrow_engine_name_the_table(
    tmp_path: Path, spark: SparkSession, by_arrow: None
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1]}))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="DataFileMissing"):
        table.snapshot().scan().to_spark(spark).collect()
    assert issubclass(DataFileMissing, DeltaError)


def test_both_engines_prune_the_same_plan(tmp_path: Path, spark: SparkSession) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    for start in range(0, 40, 10):
        table.append(pa.table({"id": range(start, start + 10)}))
    plan = table.snapshot().scan(where="id >= 35").plan()
    assert plan.files.num_rows == 1
    spark_rows = SparkEngine(spark).read(plan).toArrow()
    assert rows_of(spark_rows) == rows_of(ArrowEngine().read(plan).read_all())


# -- what must not be lost or mixed up ------------------------------------------------------------


def test_a_file_of_no_bytes_is_an_error_and_no_file_without_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    next(tmp_path.glob("*.parquet")).write_bytes(b"")
    with pytest.raises(Exception, match="InvalidTable"):
        table.snapshot().scan().to_spark(spark).count()


@pytest.mark.parametrize("deleted", [False, True], ids=["plain", "with_vectors"])
def test_a_partition_column_may_take_the_name_that_a_column_has_in_the_files(
    tmp_path: Path, spark: SparkSession, deleted: bool
) -> None:
    rows = pa.table({"a": [1, 2, 3, 4], "p": [1.5, None, 2.5, 2.5]})
    table = DeltaTable.create(str(tmp_path), rows.schema, partition_by=["p"])
    table.append(rows)
    table.set_properties(
        {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    )
    table.alter("RENAME a TO b")
    table.alter("RENAME p TO a")
    if deleted:
        table.delete("b = 3")
    scan = table.snapshot().scan(where="a > 1")
    assert rows_of(scan.to_spark(spark).toArrow()) == rows_of(scan.to_arrow())
    assert scan.count() == (2 if deleted else 3)


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_columns_may_be_called_as_the_reader_calls_its_own(
    tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    names = ["__delta_key", "__DELTA_found_key", "__delta_words", "___delta_row_index"]
    rows = pa.table({name: [n, n + 1, None] for n, name in enumerate(names)} | {"p": [0.5, 1, 1]})
    properties = {"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"}
    table = DeltaTable.create(str(tmp_path), rows.schema, partition_by=["p"], properties=properties)
    table.append(rows)
    assert rows_of(table.snapshot().scan().to_spark(spark).toArrow()) == rows_of(rows)
    table.delete("__delta_key = 1")
    kept = rows_of(rows.take([0, 2]))
    assert rows_of(table.snapshot().scan().to_spark(spark).toArrow()) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.sources.useV1SourceList", ""),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "0"),
    ],
)
def test_a_setting_that_spark_itself_trips_over_changes_nothing(
    tmp_path: Path, session: SparkSession, name: str, value: str
) -> None:
    rows = pa.table({"id": range(6), "p": [0.5, None] * 3})
    table = DeltaTable.create(
        str(tmp_path), rows.schema, partition_by=["p"],
        properties={"delta.enableDeletionVectors": "true"},
    )  # fmt: skip
    table.append(rows)
    table.delete("id = 5")
    session.set_for_test(name, value)  # type: ignore[attr-defined]
    frame = table.snapshot().scan().to_spark(session)
    assert rows_of(frame.toArrow()) == rows_of(rows.slice(0, 5))
    assert session.conf.get(name) == value


@pytest.mark.parametrize(
    ("data_type", "read"),
    [
        (PrimitiveType("string"), "string collate UTF8_LCASE"),
        (PrimitiveType("integer"), "int"),
        (ArrayType(PrimitiveType("integer"), True), "array<int>"),
        (
            MapType(PrimitiveType("string"), PrimitiveType("date"), True),
            "map<string collate UTF8_LCASE,date>",
        ),
    ],
)
def test_collations_count_where_a_column_still_has_text(data_type: Any, read: str) -> None:
    """The change of a column to another type leaves them in its metadata."""
    paths = ("s", "s.key", "s.value", "s.element")
    collations = {"__COLLATIONS": dict.fromkeys(paths, "spark.UTF8_LCASE.75.1")}
    field = StructField("s", data_type, metadata=collations)
    assert declared_spark_type(field).simpleString() == read
