"""Scans: the columns and rows asked for, from no more files than need be."""

from __future__ import annotations

import builtins
import datetime as dt
import math
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import DataType, DecimalType, PrimitiveType, StructType
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.read.snapshot import Snapshot
from tests.golden.answers import NAMES, answer, table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = [dt.date(2024, 1, day) for day in (1, 2, 3)]


@pytest.fixture
def snapshot() -> Snapshot:
    """Three partitions of two files each; `id` grows from file to file."""
    table = DeltaTable("memory:///scan", store=MemoryStore(), must_exist=False)
    for n in range(6):
        data = pa.table(
            {
                "id": pa.array([10 * n, 10 * n + 9], pa.int64()),
                "day": pa.array([DAYS[n // 2]] * 2),
                "name": [f"n{n}", None],
                "nested": [{"x": n}, {"x": None}],
            }
        )
        table.append(data, partition_by=["day"])
    return table.snapshot()


def ids(scan: Scan) -> list[int]:
    return sorted(scan.to_arrow()["id"].to_pylist())


# Columns


def test_all_columns_come_in_the_order_of_the_schema(snapshot: Snapshot) -> None:
    assert snapshot.scan().to_arrow().column_names == ["id", "day", "name", "nested"]


def test_columns_come_in_the_order_asked_for_under_their_own_names(snapshot: Snapshot) -> None:
    scan = snapshot.scan(columns=["NAME", "id"])
    assert scan.schema.names == ("name", "id")
    assert scan.to_arrow().column_names == ["name", "id"]


def test_unknown_columns_are_refused_and_the_known_ones_named(snapshot: Snapshot) -> None:
    with pytest.raises(SchemaMismatch, match="the columns are id, day, name, nested"):
        snapshot.scan(columns=["id", "price"])


def test_a_column_asked_for_twice_is_refused(snapshot: Snapshot) -> None:
    with pytest.raises(InvalidArgument, match="id is named twice"):
        snapshot.scan(columns=["id", "name", "ID"])


def test_a_bare_name_is_no_list_of_columns(snapshot: Snapshot) -> None:
    with pytest.raises(InvalidArgument, match="is a list of names"):
        snapshot.scan(columns="id")


# Rows and files


@pytest.mark.parametrize(
    ("where", "files", "rows"),
    [
        ("day = DATE '2024-01-02'", 2, [20, 29, 30, 39]),
        ("day = '2024-01-02' AND id < 25", 1, [20]),
        ("id BETWEEN 9 AND 10", 2, [9, 10]),
        ("id IN (0, 59)", 2, [0, 59]),
        ("id > 100", 0, []),
        ("day IS NULL", 0, []),
        ("nested.x = 3", 1, [30]),
        ("nested.x IS NULL", 6, [9, 19, 29, 39, 49, 59]),
        ("name = 'n4' OR id = 0", 2, [0, 40]),
        ("name LIKE 'n5%'", 1, [50]),
        ("NOT (id < 50)", 1, [50, 59]),
        ("id % 10 = 9 AND day = '2024-01-03'", 2, [49, 59]),
        ("FALSE", 0, []),
        ("NULL", 0, []),
        ("TRUE", 6, [0, 9, 10, 19, 20, 29, 30, 39, 40, 49, 50, 59]),
    ],
)
def test_filters_prune_files_and_then_rows(
    snapshot: Snapshot, where: str, files: int, rows: list[int]
) -> None:
    scan = snapshot.scan(where=where)
    assert scan.files().num_rows == files
    assert ids(scan) == rows
    assert scan.count() == len(rows)


def test_the_filter_may_use_columns_that_are_not_read(snapshot: Snapshot) -> None:
    table = snapshot.scan(columns=["name"], where="id = 30").to_arrow()
    assert table.to_pydict() == {"name": ["n3"]}


def test_an_expression_parsed_already_is_taken(snapshot: Snapshot) -> None:
    where = parse_expression("id = 30", snapshot.schema)
    assert ids(Scan(snapshot, where=where)) == [30]


def test_partition_values_that_decide_leave_no_filter_to_the_engine(snapshot: Snapshot) -> None:
    assert snapshot.scan(where="day >= '2024-01-02'").plan().where is None
    assert snapshot.scan(where="day >= '2024-01-02' AND id > 0").plan().where is not None


def test_statistics_are_not_read_where_partition_values_rule_everything_out(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("statistics were read")

    monkeypatch.setattr(Snapshot, "statistics", refuse)
    assert snapshot.scan(where="day = '2030-01-01' AND id = 5").files().num_rows == 0


def test_the_files_of_a_scan_have_the_columns_of_live_files(snapshot: Snapshot) -> None:
    assert snapshot.scan(where="id = 0").files().schema.equals(LIVE_FILE_SCHEMA)
    assert snapshot.scan().plan().files.schema.equals(LIVE_FILE_SCHEMA)


def test_a_filter_has_to_be_a_condition(snapshot: Snapshot) -> None:
    with pytest.raises(InvalidArgument, match="a value of type bigint"):
        snapshot.scan(where="id")


def test_what_only_spark_evaluates_still_prunes(snapshot: Snapshot) -> None:
    scan = snapshot.scan(where="soundex(name) = 'x' AND id = 30")
    assert scan.files().num_rows == 1
    with pytest.raises(UnsupportedExpression, match="use the Spark engine"):
        scan.to_batches()


# Counting and conversions


def test_rows_are_counted_from_the_log(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a data file was opened")

    for opening in ("open_input", "read_range"):
        monkeypatch.setattr(MemoryStore, opening, refuse)
    assert snapshot.scan().count() == 12
    assert snapshot.scan(where="day = '2024-01-02'").count() == 4
    assert snapshot.scan(where="day = '2030-01-02'").count() == 0


def test_batches_come_as_a_reader(snapshot: Snapshot) -> None:
    reader = snapshot.scan(columns=["id"], where="id > 30").to_batches()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == ["id"]
    assert sum(batch.num_rows for batch in reader) == 5


def test_frames_hold_the_same_rows(snapshot: Snapshot) -> None:
    scan = snapshot.scan(columns=["id"], where="id > 50")
    assert scan.to_polars()["id"].to_list() == [59]
    assert scan.to_pandas()["id"].tolist() == [59]


def test_a_missing_extra_is_named(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def hide(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "polars":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", hide)
    with pytest.raises(InvalidArgument, match=r"dagster-delta-protocol\[polars\]"):
        snapshot.scan().to_polars()


def _table_of_instants(directory: Path) -> DeltaTable:
    table = DeltaTable(str(directory), must_exist=False)
    for hour in range(0, 24, 6):
        moment = dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC)
        table.append(
            pa.table({"hour": [hour], "at": pa.array([moment], pa.timestamp("us", "UTC"))})
        )
    return table


@pytest.mark.parametrize(
    ("zone", "hours"), [("UTC", [12, 18]), ("America/Los_Angeles", []), ("Asia/Tokyo", [6, 12, 18])]
)
def test_spark_reads_a_filter_in_the_zone_of_its_session(
    spark: SparkSession, tmp_path: Path, zone: str, hours: list[int]
) -> None:
    snapshot = _table_of_instants(tmp_path).snapshot()
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = snapshot.scan(where="at >= TIMESTAMP '2024-01-01 12:00:00'").to_spark(spark)
        assert sorted(row["hour"] for row in frame.collect()) == hours
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_spark_evaluates_what_the_embedded_engine_refuses(
    spark: SparkSession, tmp_path: Path
) -> None:
    snapshot = _table_of_instants(tmp_path).snapshot()
    scan = snapshot.scan(columns=["at"], where="hour & 4 = 4 AND hour < 20")
    frame = scan.to_spark(spark)
    assert frame.columns == ["at"]
    assert sorted(row["at"].hour for row in frame.collect()) == [6, 12]


@pytest.mark.usefixtures("golden_tables")
def test_a_scan_loads_neither_pandas_nor_an_sql_engine() -> None:
    code = (
        "import sys\n"
        "from dagster_delta import DeltaTable\n"
        "scan = DeltaTable(sys.argv[1]).snapshot().scan(where=\"city = 'sh' AND cnt > 0\")\n"
        "assert scan.to_arrow().num_rows == 1\n"
        "assert not {'pandas', 'duckdb', 'sqlglot', 'polars', 'pyspark'} & set(sys.modules)\n"
    )
    table = table_path("golden__hive__deltatbl-partition-prune")
    subprocess.run([sys.executable, "-c", code, table], check=True)


# Real tables: a pruned read is the whole read, filtered

READABLE = [
    name
    for name in NAMES
    if answer(name)["expected_error"] is None
    and not answer(name).get("missing_data_files")
    and (answer(name)["row_count"] or 0) <= 5_000
    # Its log is a template.
    and name != "spark__table-with-dv-special-char"
    # Its log makes up statistics for a column that its files do not have.
    and name != "krs__parsed-stats"
    and "canonicalized-paths" not in name
]


def _two_of_each_type(schema: StructType) -> list[tuple[str, ...]]:
    """Paths of up to two leaves of each type, top-level and nested ones apart."""
    alike: dict[tuple[str, bool], list[tuple[str, ...]]] = {}
    for path, data_type in _leaves(schema):
        alike.setdefault((str(data_type), len(path) > 1), []).append(path)
    return [path for paths in alike.values() for path in paths[:2]]


def _leaves(
    schema: StructType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    for field in schema:
        here = (*path, field.name)
        if isinstance(field.data_type, StructType):
            yield from _leaves(field.data_type, here)
        elif field.metadata.get("__COLLATIONS"):
            continue
        elif isinstance(field.data_type, DecimalType) or (
            isinstance(field.data_type, PrimitiveType)
            and field.data_type.name not in ("variant", "void")
        ):
            yield here, field.data_type


def _literal(value: object) -> str | None:
    match value:
        case bool():
            return str(value)
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}BD"
        case float():
            return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime() if value.year > 1:
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} '{value.replace(tzinfo=None).isoformat(' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
    return None


def _filters(path: tuple[str, ...], values: list[Any]) -> list[str]:
    column = ".".join(f"`{each.replace('`', '``')}`" for each in path)
    known = [each for each in values if each is not None and each == each]
    filters = [f"{column} IS NULL", f"{column} IS NOT NULL"]
    for value in dict.fromkeys([*known[:1], *([min(known), max(known)] if known else [])]):
        literal = _literal(value)
        if literal is None or "double(" in literal:
            continue
        filters += [
            f"{column} {each} {literal}" for each in ("=", "<>", "<", "<=", ">", ">=", "<=>")
        ]
        filters += [f"{column} IN ({literal}, NULL)", f"NOT coalesce({column} = {literal}, FALSE)"]
        if isinstance(value, str):
            filters.append(f"startswith({column}, {_literal(value[:2])})")
    return filters


@pytest.mark.usefixtures("golden_tables")
@pytest.mark.parametrize("name", READABLE)
@pytest.mark.examples(16)
def test_a_pruned_scan_of_a_real_table_loses_no_row(name: str) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    leaves = _two_of_each_type(snapshot.schema)
    if not leaves:
        pytest.skip("no column that a filter could compare")
    whole = snapshot.scan(columns=list(dict.fromkeys(path[0] for path in leaves))).to_arrow()
    for path in leaves:
        column = whole.select([path[0]])
        values = whole.column(path[0]).to_pylist()
        for step in path[1:]:
            values = [None if each is None else each[step] for each in values]
        for where in _filters(path, values):
            expression = parse_expression(where, snapshot.schema)
            expected = column.filter(expression.evaluate_filter(column))
            scan = snapshot.scan(columns=[path[0]], where=where)
            assert repr(scan.to_arrow().to_pylist()) == repr(expected.to_pylist()), where
