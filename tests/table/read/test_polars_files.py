"""Data files that polars reads itself: the rows, the types and the errors of the embedded engine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from dagster_delta import DeltaTable
from dagster_delta.engines import polars as polars_rows
from dagster_delta.errors import DataFileMissing, DeltaError, InvalidTable
from dagster_delta.protocol.features.text_limits import TEXT_LIMIT_KEY
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType
from dagster_delta.table.read.scan import Scan
from tests.golden.answers import READABLE, table_path
from tests.parquet.delta_values import PRIMITIVES, tables

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "f": [0.0, -0.0, float("nan"), None],
        "s": ["x", "", None, "ä"],
        "d": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1970, 1, 1)],
        "t": pa.array([-62135596800000000, 253402300799999999, None, 0], pa.timestamp("us", "UTC")),
        "c": pa.array([Decimal("1.50"), None, Decimal("-0.01"), None], pa.decimal128(30, 2)),
        "p": ["a", "a", "b", None],
    }
)
MAX_ROWS = 100_000
FLOATS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}

Collect = Callable[[Scan], pl.DataFrame]
COLLECTS: list[Collect] = [
    Scan.to_polars,
    lambda scan: scan.to_polars_lazy().collect(engine="streaming"),
    lambda scan: scan.to_polars_lazy().collect(engine="in-memory"),
]


def _assert_same(found: pl.DataFrame, rows: pl.DataFrame) -> None:
    """The same types, and the same values bit by bit."""
    assert found.schema == rows.schema
    assert_frame_equal(found, rows, check_exact=True)
    for mine, theirs in zip(found.to_arrow().columns, rows.to_arrow().columns, strict=True):
        bits = FLOATS.get(mine.type)
        if bits is not None:
            mine, theirs = mine.combine_chunks(), theirs.combine_chunks()
            assert mine.view(bits).equals(theirs.view(bits))


def _by_arrow(scan: Scan) -> pl.DataFrame:
    rows = pl.from_arrow(scan.to_arrow())
    assert isinstance(rows, pl.DataFrame)
    return rows


def _rows_or_error(read: Callable[[], pl.DataFrame]) -> pl.DataFrame | str:
    try:
        return read()
    except DeltaError as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def num_read_by_arrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of files that the embedded engine reads for polars."""
    counts: list[int] = []

    by_arrow = polars_rows.FileFrames._by_arrow

    def spy(frames: polars_rows.FileFrames, files: list[Any]) -> Iterator[pl.DataFrame]:
        counts.append(len(files))
        return by_arrow(frames, files)

    monkeypatch.setattr(polars_rows.FileFrames, "_by_arrow", spy)
    return counts


def _replace_file(table: DeltaTable, rows: pa.Table, **options: Any) -> Path:
    """The one data file of a table, written by another writer."""
    (path,) = Path(table.uri).rglob("*.parquet")
    pq.write_table(rows, path, **options)
    return path


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.usefixtures("golden_tables")
@pytest.mark.examples(3)
def test_polars_reads_the_rows_of_golden_tables(name: str) -> None:
    snapshot = DeltaTable(table_path(name)).snapshot()
    is_large = (snapshot.num_records or 0) > MAX_ROWS
    names = snapshot.schema.names[:3] if is_large else snapshot.schema.names
    # Columns of one file may be read by different readers.
    for columns in [names, *([each] for each in names[:20])]:
        scan = snapshot.scan(columns)
        rows, found = _rows_or_error(partial(_by_arrow, scan)), _rows_or_error(scan.to_polars)
        if isinstance(rows, pl.DataFrame) and isinstance(found, pl.DataFrame):
            _assert_same(found, rows)
        else:
            assert found == rows


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    drawn=tables(PRIMITIVES),
    mode=st.sampled_from(["none", "name"]),
    is_partitioned=st.booleans(),
    num_deleted=st.integers(0, 1),
    literal=st.integers(0, 7),
)
def test_random_tables_are_the_same_by_polars_and_by_arrow(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[StructType, pa.Table],
    mode: str,
    is_partitioned: bool,
    num_deleted: int,
    literal: int,
) -> None:
    rows = drawn[1].rename_columns([f"c{index}" for index in range(drawn[1].num_columns)])
    # Bytes that are no text cannot be partition values, and long texts no directories.
    partition_by = [
        field.name
        for field in list(rows.schema)[1:2]
        if is_partitioned and field.type not in (pa.binary(), pa.string())
    ]
    table = DeltaTable.create(
        str(tmp_path_factory.mktemp("table")),
        rows.schema,
        partition_by=partition_by,
        properties={"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "true"},
    )
    table.append(rows)
    table.append(rows.slice(1))
    if num_deleted:
        table.delete("c0 IS NULL")
        table.add_column("later", "INT")
    table.append(rows.slice(0, 0))
    scan = table.snapshot().scan()
    expected = _by_arrow(scan)
    for collect in COLLECTS:
        _assert_same(collect(scan), expected)
    lazy, first = scan.to_polars_lazy(), expected.columns[0]
    _assert_same(lazy.head(3).collect(), expected.head(3))
    _assert_same(lazy.select(first).collect(), expected.select(first))
    value = expected[literal : literal + 1].to_series(0)
    if value.null_count() == 0 and value.len():
        for predicate in (
            pl.col(first) == pl.lit(value).first(),
            pl.col(first) >= pl.lit(value).first(),
            pl.col(first).is_null(),
        ):
            _assert_same(lazy.filter(predicate).collect(), expected.filter(predicate))


def _plain(table: DeltaTable) -> None:
    table.append(ROWS)


def _later_column(table: DeltaTable) -> None:
    table.append(ROWS)
    table.add_column("later", "DATE")


def _other_writer(table: DeltaTable) -> None:
    table.append(ROWS)
    large = [
        pa.field(f.name, pa.large_string() if f.type == pa.string() else f.type)
        for f in ROWS.schema
    ]
    _replace_file(table, ROWS.cast(pa.schema(large)), compression="snappy")


@pytest.mark.parametrize(
    ("prepare", "partition_by", "mode"),
    [
        *product([_plain, _later_column], [[], ["p"]], ["none", "name", "id"]),
        (_other_writer, [], "none"),
    ],
)
def test_polars_reads_plain_columns_itself(
    tmp_path: Path,
    prepare: Callable[[DeltaTable], None],
    partition_by: list[str],
    mode: str,
    num_read_by_arrow: list[int],
) -> None:
    properties = {"delta.columnMapping.mode": mode}
    table = DeltaTable.create(
        str(tmp_path / "a b%20[0]"), ROWS.schema, partition_by=partition_by, properties=properties
    )
    prepare(table)
    scan = table.snapshot().scan()
    rows = _by_arrow(scan)
    for collect in COLLECTS:
        _assert_same(collect(scan), rows)
    lazy = scan.to_polars_lazy()
    for predicate in (
        pl.col("f").is_nan(),
        pl.col("f") > 1,
        pl.col("p") == "a",
        pl.col("p").is_null(),
        pl.col("d") > dt.date(1969, 1, 1),
        (pl.col("p") == "b") | (pl.col("n") == 1),
    ):
        _assert_same(lazy.filter(predicate).collect(), rows.filter(predicate))
    _assert_same(
        lazy.head(3).filter(pl.col("n") > 1).collect(), rows.head(3).filter(pl.col("n") > 1)
    )
    if partition_by:
        where = table.snapshot().scan(["n", "p"], "p = 'a'")
        _assert_same(where.to_polars(), _by_arrow(where))
    assert num_read_by_arrow == []


def _int96(table: DeltaTable) -> None:
    table.append(ROWS)
    _replace_file(table, ROWS, use_deprecated_int96_timestamps=True)


def _other_case(table: DeltaTable) -> None:
    table.append(ROWS)
    _replace_file(table, ROWS.rename_columns([name.upper() for name in ROWS.column_names]))


def _nanoseconds(table: DeltaTable) -> None:
    rows = ROWS.slice(3)
    table.append(rows)
    times = rows["t"].cast(pa.timestamp("ns", "UTC"))
    _replace_file(table, rows.set_column(4, "t", times))


def _dictionaries(table: DeltaTable) -> None:
    table.append(ROWS)
    _replace_file(table, ROWS.set_column(2, "s", ROWS["s"].dictionary_encode()))


def _wide_integers(table: DeltaTable) -> None:
    table.append(ROWS)
    _replace_file(table, ROWS.set_column(0, "n", ROWS["n"].cast(pa.int64())))


def _widened(table: DeltaTable) -> None:
    table.set_properties({"delta.enableTypeWidening": "true"})
    table.append(ROWS)
    table.widen_column("n", "BIGINT")


def _legacy_calendar(table: DeltaTable) -> None:
    table.append(ROWS)
    written = {"org.apache.spark.version": "2.4.0"}
    _replace_file(table, ROWS.replace_schema_metadata(written))


def _vectors(table: DeltaTable) -> None:
    table.set_properties({"delta.enableDeletionVectors": "true"})
    table.append(ROWS)
    table.delete("n = 2")


def _nested(table: DeltaTable) -> None:
    table.append(ROWS)
    table.add_column("z", "ARRAY<INT>")


@pytest.mark.parametrize(
    "prepare",
    [
        _int96, _other_case, _nanoseconds, _dictionaries, _wide_integers, _widened,
        _legacy_calendar, _vectors, _nested,
    ],
)  # fmt: skip
def test_the_embedded_engine_reads_other_columns(
    tmp_path: Path,
    prepare: Callable[[DeltaTable], None],
    num_read_by_arrow: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = DeltaTable.create(str(tmp_path), ROWS.schema)
    prepare(table)
    scan = table.snapshot().scan()
    rows = _by_arrow(scan)
    monkeypatch.delattr(pl, "scan_parquet")
    for collect in COLLECTS:
        _assert_same(collect(scan), rows)
    # Arrays are excluded before a file is opened.
    assert num_read_by_arrow == ([] if prepare is _nested else [1, 1, 1])


def test_padded_texts_are_read_by_the_embedded_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = StructField("c", PrimitiveType("string"), metadata={TEXT_LIMIT_KEY: "char(3)"})
    table = DeltaTable.create(str(tmp_path), StructType((field,)))
    table.append(pa.table({"c": ["a", None]}))
    monkeypatch.delattr(pl, "scan_parquet")
    assert table.snapshot().scan().to_polars()["c"].to_list() == ["a  ", None]


def test_a_default_for_existing_rows_is_read_by_the_embedded_engine(tmp_path: Path) -> None:
    properties = {"delta.feature.allowColumnDefaults": "supported"}
    table = DeltaTable.create(str(tmp_path), ROWS.schema, properties=properties)
    table.append(ROWS)
    table.add_column("later", "INT", default="7")
    table.append(ROWS.append_column("later", pa.array([1, 2, 3, None], pa.int32())))
    scan = table.snapshot().scan()
    for collect in COLLECTS:
        _assert_same(collect(scan), _by_arrow(scan))


@pytest.mark.parametrize("name", ["^x$", "^.*$", "*", "a*"])
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_a_name_that_is_a_pattern_to_polars_names_one_column(
    tmp_path: Path, name: str, mapping: str
) -> None:
    schema = pa.schema([(name, pa.string()), ("x", pa.string())])
    properties = {"delta.columnMapping.mode": mapping}
    table = DeltaTable.create(str(tmp_path), schema, properties=properties)
    table.append(pa.table({name: ["right"], "x": ["wrong"]}))
    scan = table.snapshot().scan()
    for collect in COLLECTS:
        assert collect(scan).to_dicts() == [{name: "right", "x": "wrong"}]


def test_a_name_with_nul_is_read_by_the_embedded_engine(tmp_path: Path) -> None:
    rows = pa.table({"a\0b": [1, 2]})
    table = DeltaTable.create(
        str(tmp_path), rows.schema, properties={"delta.columnMapping.mode": "name"}
    )
    table.append(rows)
    assert table.snapshot().scan().to_polars().to_series().to_list() == [1, 2]


def test_files_of_both_readers_keep_their_order(
    tmp_path: Path, num_read_by_arrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polars_rows, "_FILES_AT_ONCE", 1)
    vectors = {"delta.enableDeletionVectors": "true"}
    table = DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int64())]), properties=vectors)
    for start in range(0, 60, 10):
        table.append(pa.table({"n": range(start, start + 10)}))
    table.delete("n IN (15, 25, 55)")
    scan = table.snapshot().scan()
    for collect in COLLECTS:
        _assert_same(collect(scan), _by_arrow(scan))
    lazy = scan.to_polars_lazy()
    for count in (0, 1, 10, 23, 70):
        _assert_same(lazy.head(count).collect(), _by_arrow(scan).head(count))
    assert 0 < max(num_read_by_arrow) < scan.num_files


def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema([("s", pa.string())]))
    table.append(pa.table({"s": ["x"]}))
    scan = table.snapshot().scan()
    rows = pa.table({"s": [str(number) for number in range(1000)]})
    path = _replace_file(table, rows, row_group_size=500, compression="none")
    data = bytearray(path.read_bytes())
    second = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[second : second + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(InvalidTable) as expected:
        scan.to_arrow()
    for collect in COLLECTS:
        with pytest.raises(InvalidTable, match=path.name) as found:
            collect(scan)
        assert str(found.value) == str(expected.value)


def test_a_file_that_vanishes_while_polars_reads_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable.create(str(tmp_path), ROWS.schema)
    table.append(ROWS)
    scan = table.snapshot().scan()
    (path,) = tmp_path.glob("*.parquet")
    scan_parquet = pl.scan_parquet

    def vanish(*args: Any, **options: Any) -> pl.LazyFrame:
        path.unlink(missing_ok=True)
        return scan_parquet(*args, **options)

    monkeypatch.setattr(pl, "scan_parquet", vanish)
    for collect in COLLECTS:
        with pytest.raises(DataFileMissing, match=path.name):
            collect(scan)
        path.touch()
        pq.write_table(ROWS, path)


@pytest.mark.parametrize(
    "error", [pl.exceptions.PanicException("panic"), pl.exceptions.ComputeError("error")]
)
@pytest.mark.parametrize("predicate", [None, pl.col("n") % 3 == 0])
def test_rows_that_polars_fails_on_are_read_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    predicate: pl.Expr | None,
) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int64())]))
    for start in (0, 1000):
        table.append(pa.table({"n": range(start, start + 1000)}))
    lazy = table.snapshot().scan().to_polars_lazy()
    lazy = lazy if predicate is None else lazy.filter(predicate)
    rows = lazy.collect()

    def fails(query: pl.LazyFrame) -> Iterator[pl.DataFrame]:
        yield from islice(query.collect(engine="in-memory").iter_slices(100), 3)
        raise error

    monkeypatch.setattr(polars_rows, "_in_batches", fails)
    assert_frame_equal(lazy.collect(), rows)


@pytest.mark.parametrize(
    ("values", "wanted"), [(["a", "b", "c", "d"], ["x", "a", None]), ([5, 6, 7, 8], [9, 5, None])]
)
def test_a_filter_that_polars_ends_early_on_loses_no_rows(
    tmp_path: Path, values: list[Any], wanted: list[Any]
) -> None:
    frame = pl.DataFrame({"value": values})
    table = DeltaTable(str(tmp_path), must_exist=False)
    table.append(frame)
    (file,) = tmp_path.glob("*.parquet")
    # polars panics in a thread that compares null with the values of a page without a dictionary.
    pq.write_table(frame.to_arrow().cast(pq.read_schema(file)), file, use_dictionary=False)
    is_wanted = pl.col("value").is_in(wanted, nulls_equal=True)
    rows = table.snapshot().scan().to_polars_lazy()
    assert rows.filter(is_wanted).collect().equals(frame.head(1))
    assert rows.filter(~is_wanted).collect().equals(frame.tail(3))


def test_rows_that_polars_does_not_find_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_read_by_arrow: list[int]
) -> None:
    table = DeltaTable.create(str(tmp_path), ROWS.schema)
    table.append(ROWS)
    monkeypatch.setattr(polars_rows, "_collect_whole", lambda query: [query.head(3).collect()])
    assert table.snapshot().scan().to_polars().height == ROWS.num_rows
    assert num_read_by_arrow == [1]


def test_queries_of_many_tables_end(tmp_path: Path) -> None:
    """Each table is a query of polars within the query, on the same threads."""
    lazies = []
    for number in range(8):
        table = DeltaTable.create(str(tmp_path / str(number)), pa.schema([("n", pa.int64())]))
        for start in (0, 50_000):
            table.append(pa.table({"n": range(start, start + 50_000)}))
        lazies.append(table.snapshot().scan().to_polars_lazy())
    joined = lazies[0].join(lazies[0], on="n")
    for lazy in lazies[1:]:
        joined = joined.join(lazy.filter(pl.col("n") > 10), on="n")

    def height(query: pl.LazyFrame) -> int:
        return query.collect(engine="streaming").height

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(height, [joined, pl.concat(lazies), *lazies]))
    assert found == [99_989, 800_000, *([100_000] * 8)]
    assert joined.collect(engine="in-memory").height == 99_989
