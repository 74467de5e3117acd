"""A polars LazyFrame of a table: the rows of a scan, read while a query runs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from dagster_delta import DeltaTable
from dagster_delta.engines.polars import to_condition
from dagster_delta.errors import DataFileMissing, DeltaError, InvalidTable, UnsupportedExpression
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.sql.conditions import to_sql
from dagster_delta.sql.typed import Typed
from tests.golden.answers import READABLE, table_path

MAX_ROWS = 100_000
MAX_FILTERED_COLUMNS = 3
# Its log makes up statistics for a column that its files do not have.
WRONG_STATISTICS = "krs__parsed-stats"
COMPARED = (
    pl.Boolean, pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.String, pl.Binary,
    pl.Date, pl.Datetime, pl.Decimal,
)  # fmt: skip
ROWS = pl.DataFrame(
    {
        "n": [1, 2, None, 4],
        "f": [0.1, float("nan"), None, 2.0],
        "s": ["x", "it's", None, "a\\n"],
        "d": [dt.date(2020, 1, day) for day in (1, 2, 3, 4)],
        "t": [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)],
        "ntz": [dt.datetime(2020, 1, day) for day in (1, 2, 3, 4)],
        "b": [True, False, None, True],
        "z": [{"x": 1, "y`q": 2}, {"x": None, "y`q": 3}, {"x": 5, "y`q": 2}, {"x": 7, "y`q": 2}],
        "bin": [b"a", b"'", None, b""],
    },
    schema_overrides={"n": pl.Int32, "f": pl.Float32},
).with_columns(c=pl.lit("1.50").cast(pl.Decimal(10, 2)))
n, f, s, d, b, z = (pl.col(name) for name in ("n", "f", "s", "d", "b", "z"))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(str(tmp_path / "table"), must_exist=False)
    table.append(ROWS)
    return table


def _rows_or_error(read: Any) -> pl.DataFrame | type[DeltaError]:
    try:
        rows: pl.DataFrame = read()
    except DeltaError as error:
        return type(error)
    return rows


def _predicates(frame: pl.DataFrame) -> list[pl.Expr]:
    """Comparisons of columns with one of their values."""
    found: list[pl.Expr] = []
    for name, dtype in list(frame.schema.items())[:MAX_FILTERED_COLUMNS]:
        column, values = pl.col(name), frame[name].drop_nulls()
        found += [column.is_null(), column.is_not_null()]
        if not len(values) or not isinstance(dtype, COMPARED):
            continue
        try:
            value = pl.lit(values[len(values) // 2], dtype=dtype)
        except (ValueError, OverflowError):
            continue
        found += [column == value, column < value, column >= value, column != value]
        found.append(~(column > value) | column.is_null())
        found.append(column.is_in(values.head(3).to_list()))
        if dtype == pl.String:
            found.append(column.str.starts_with(values[0][:2]))
    return found


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.usefixtures("golden_tables")
@pytest.mark.examples(8)
def test_a_lazy_frame_has_the_rows_of_the_scan(name: str) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    is_large = (snapshot.num_records or 0) > MAX_ROWS
    scan = snapshot.scan(snapshot.schema.names[:3] if is_large else None)
    rows = _rows_or_error(lambda: pl.from_arrow(scan.to_arrow()))
    lazy = scan.to_polars_lazy()
    found = _rows_or_error(lambda: lazy.collect(engine="in-memory"))
    if not isinstance(rows, pl.DataFrame):
        assert found is rows
        return
    assert isinstance(found, pl.DataFrame)
    assert lazy.collect_schema() == rows.schema
    assert_frame_equal(found, rows)
    last = rows.columns[-1:]
    assert_frame_equal(lazy.select(last).collect(engine="streaming"), rows.select(last))
    assert_frame_equal(lazy.head(2).collect(engine="streaming"), rows.head(2))
    for predicate in [] if name == WRONG_STATISTICS else _predicates(rows):
        filtered = lazy.filter(predicate).collect(engine="streaming")
        assert_frame_equal(filtered, rows.filter(predicate))


@pytest.mark.parametrize(
    ("predicate", "sql"),
    [
        (n > 1, "`n` > 1"),
        (pl.lit(3) > n, "`n` < 3"),
        (n.eq_missing(2), "`n` <=> 2"),
        (n != 2, "`n` <> 2"),
        (n > 1.5, None),
        (n.is_in([1, 2]), "`n` IN (1, 2)"),
        (n.is_in([1, None]), None),
        (f == 0.1, "`f` = 0.10000000149011612D"),
        (f.is_nan(), None),
        (f > float("nan"), None),
        (s == "it's", r"`s` = 'it\'s'"),
        (s == "a\\n", r"`s` = 'a\\n'"),
        (s.str.starts_with("i"), "startswith(`s`, 'i')"),
        (s.is_null() | (n < 3), "(`s` IS NULL) OR (`n` < 3)"),
        ((n > 1) & (s.str.len_chars() > 1), "`n` > 1"),
        (~((n > 1) & (s.str.len_chars() > 1)), None),
        ((n > 1) | (s.str.len_chars() > 1), None),
        (~b, "NOT (`b`)"),
        (b, "`b`"),
        (d.is_between(dt.date(2020, 1, 2), dt.date(2020, 1, 4), closed="left"),
         "`d` >= DATE '2020-01-02' AND `d` < DATE '2020-01-04'"),
        (pl.col("t") >= dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
         "`t` >= TIMESTAMP '2020-01-02 00:00:00Z'"),
        (pl.col("ntz") >= dt.datetime(2020, 1, 2, 0, 0, 0, 1),
         "`ntz` >= TIMESTAMP_NTZ '2020-01-02 00:00:00.000001'"),
        (pl.col("c") > 1, "`c` > 1BD"),
        (pl.col("bin") == b"'", "`bin` = X'27'"),
        (z.struct.field("y`q") == 2, "`z`.`y``q` = 2"),
    ],
)  # fmt: skip
def test_predicates_skip_files_and_choose_the_rows_that_polars_chooses(
    table: DeltaTable, predicate: pl.Expr, sql: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def spy(predicate: pl.Expr, schema: Any) -> Typed | None:
        found = to_condition(predicate, schema)
        asked.append(None if found is None else to_sql(found))
        return found

    monkeypatch.setattr("dagster_delta.engines.polars.to_condition", spy)
    lazy = table.snapshot().scan().to_polars_lazy()
    assert_frame_equal(lazy.filter(predicate).collect(), ROWS.filter(predicate))
    assert asked in ([sql], [] if sql is None else [sql])


def test_padded_texts_are_not_compared_as_spark_does(tmp_path: Path) -> None:
    table = DeltaTable.create(
        str(tmp_path / "table"),
        StructType(
            (
                StructField("c", PrimitiveType("string"), metadata={TEXT_LIMIT_KEY: "char(3)"}),
                StructField("n", PrimitiveType("integer")),
            )
        ),
    )
    table.append(pl.DataFrame({"c": ["a", "b"], "n": [1, 2]}))
    lazy = table.snapshot().scan().to_polars_lazy()
    assert lazy.filter(pl.col("c") == "a").collect().height == 0
    assert lazy.filter(pl.col("c") == "a  ").collect()["n"].to_list() == [1]


def test_files_that_hold_no_row_are_not_opened(table: DeltaTable) -> None:
    table.append(ROWS.with_columns(n=pl.lit(100, pl.Int32)))
    snapshot = table.snapshot()
    lazy = snapshot.scan().to_polars_lazy()
    store, names = snapshot.store, snapshot.scan(where="n < 50").files()["path"].to_pylist()
    store.delete(names)
    assert lazy.filter(n == 100).collect().height == 4
    with pytest.raises(DataFileMissing, match="missing"):
        lazy.collect()
    with pytest.raises(DataFileMissing):
        lazy.collect(engine="streaming")


def test_a_damaged_file_is_an_invalid_table(table: DeltaTable) -> None:
    lazy = table.snapshot().scan().to_polars_lazy()
    (path,) = Path(table.uri).glob("*.parquet")
    path.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(InvalidTable, match="damaged"):
        lazy.select("n").collect()


def test_every_query_reads_the_version_of_the_scan(table: DeltaTable) -> None:
    lazy = table.snapshot().scan().to_polars_lazy()
    table.overwrite(ROWS.head(1))
    assert_frame_equal(lazy.collect(), ROWS)
    assert lazy.join(lazy, on="n").collect().height == 3


def test_the_filter_and_the_columns_of_the_scan_hold(table: DeltaTable) -> None:
    scan = table.snapshot().scan(["s", "n"], "n > 1 -- not the first")
    lazy = scan.to_polars_lazy()
    assert lazy.collect_schema().names() == ["s", "n"]
    assert lazy.filter(n < 3).select("n").collect()["n"].to_list() == [2]
    assert lazy.select(pl.len()).collect().item() == 2
    assert lazy.head(1).filter(n > 2).collect().height == 0


def test_a_filter_that_only_spark_evaluates_is_refused_at_once(table: DeltaTable) -> None:
    with pytest.raises(UnsupportedExpression):
        table.snapshot().scan(where="hash(s) = 1").to_polars_lazy()


def test_changes_and_row_ids_are_lazy_frames_too(tmp_path: Path) -> None:
    properties = {"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true"}
    table = DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int32())]), properties=properties)
    table.append(ROWS.select("n"))
    rows = table.snapshot().scan(row_ids=True).to_polars_lazy()
    assert rows.filter(n == 4).collect().to_dicts() == [
        {"n": 4, "_row_id": 3, "_row_commit_version": 1}
    ]
    changes = table.changes(starting_version=1).to_polars_lazy()
    assert changes.filter(n > 1).select("_change_type", "n").collect().to_dicts() == [
        {"_change_type": "insert", "n": 2},
        {"_change_type": "insert", "n": 4},
    ]


def test_long_and_deep_predicates_are_left_to_polars(table: DeltaTable) -> None:
    schema = from_arrow_schema(table.snapshot().arrow_schema)
    assert to_condition(n.is_in(list(range(100_000))), schema) is None
    deep = n == 0
    for number in range(300):
        deep = (deep | (n == number)) & (n < 1000 + number)
    lazy = table.snapshot().scan().to_polars_lazy()
    assert lazy.filter(deep).collect().height == 3


def test_a_table_is_overwritten_with_its_own_rows(table: DeltaTable) -> None:
    table.overwrite(table.snapshot().scan().to_polars_lazy().filter(n > 1))
    assert table.snapshot().num_records == 2


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_a_function_of_the_user_filters_rows(table: DeltaTable) -> None:
    pytest.importorskip("cloudpickle")
    chosen = s.map_elements(lambda text: len(text) > 1, return_dtype=pl.Boolean)
    assert table.snapshot().scan().to_polars_lazy().filter(chosen).collect().height == 2
