"""Everything a caller may hand in becomes the same stream of rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta.engines import engine_for
from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.data_input import to_reader
from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable

TABLE = pa.table({"a": [1, 2, None], "s": ["x", None, "z"]})


def _pandas(table: pa.Table) -> Any:
    return table.to_pandas(types_mapper=pytest.importorskip("pandas").ArrowDtype)


def _polars(table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


class _Stream:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


class _Array:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def _dataset(table: pa.Table) -> Any:
    import pyarrow.dataset as ds

    return ds.dataset(table)


@pytest.mark.parametrize(
    "convert",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: table.to_reader(),
        _dataset,
        lambda table: _dataset(table).scanner(),
        _pandas,
        _polars,
        lambda table: _polars(table).lazy(),
        lambda _: _Stream(),
        lambda _: _Array(),
    ],
)
def test_tabular_values_give_their_rows(convert: Callable[[pa.Table], Any]) -> None:
    reader = to_reader(convert(TABLE))
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all().to_pylist() == TABLE.to_pylist()


def test_a_large_table_comes_in_bounded_batches() -> None:
    sizes = [each.num_rows for each in to_reader(pa.table({"a": range(300_000)}))]
    assert sum(sizes) == 300_000
    assert max(sizes) <= 131_072


def test_named_index_levels_of_a_pandas_frame_become_columns() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"v": [1.5, float("nan")]}, index=pd.Index(["x", "y"], name="k"))
    assert to_reader(frame).read_all().to_pylist() == [{"k": "x", "v": 1.5}, {"k": "y", "v": None}]


def test_an_unnamed_index_of_a_pandas_frame_is_dropped() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"v": [1, 2]}, index=[7, 8])
    assert to_reader(frame).schema.names == ["v"]


def test_pandas_times_keep_their_zone() -> None:
    pd = pytest.importorskip("pandas")
    moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    frame = pd.DataFrame({"t": pd.to_datetime([moment])})
    assert to_reader(frame).read_all().column("t").to_pylist() == [moment]


def test_a_subclass_of_a_pandas_frame_is_one() -> None:
    class Frame(pd.DataFrame):
        pass

    Frame.__module__ = "geopandas.geodataframe"
    frame = Frame({"v": [1]}, index=pd.Index(["x"], name="k"))
    assert to_reader(frame).read_all().to_pylist() == [{"k": "x", "v": 1}]


def test_geometries_are_refused_with_the_way_to_store_them() -> None:
    geopandas = pytest.importorskip("geopandas", reason="geometries need geopandas")
    frame = geopandas.GeoDataFrame({"id": [1]}, geometry=geopandas.points_from_xy([1], [2]))
    with pytest.raises(InvalidArgument, match=r"column geometry .*\.to_wkb\(\)\. A TypeHandler"):
        to_reader(frame)
    stored = to_reader(frame.to_wkb()).read_all()
    assert stored.schema.field("geometry").type == pa.binary()


def test_a_pandas_frame_of_mixed_objects_is_refused() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgument, match="no Arrow form"):
        to_reader(pd.DataFrame({"v": [1, "a"]}))


def test_an_index_level_named_like_a_column_is_refused() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgument, match="index"):
        to_reader(pd.DataFrame({"v": [1]}, index=pd.Index([2], name="v")))


@pytest.mark.parametrize("value", [None, [{"a": 1}], {"a": [1]}, "text", Path()])
def test_other_values_are_refused_by_their_type(value: object) -> None:
    with pytest.raises(InvalidArgument, match=type(value).__qualname__):
        to_reader(value)


@pytest.mark.parametrize("value", [TABLE, _Stream()])
def test_arrow_values_are_written_by_the_arrow_engine(value: object) -> None:
    assert isinstance(engine_for(value), ArrowEngine)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="duck"):
        engine_for(TABLE, "duck")


def test_the_engine_can_be_chosen_by_name() -> None:
    assert isinstance(engine_for(object(), "arrow"), ArrowEngine)


def test_a_pandas_frame_with_one_name_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Duplicate column names found"):
        to_reader(pd.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_polars_type_that_arrow_does_not_have_is_refused(lazy: bool) -> None:
    frame = pl.DataFrame({"a": pl.Series([1], dtype=pl.Int128)})
    with pytest.raises(InvalidArgument, match=r"a type that Arrow does not have.*Decimal\(38, 0\)"):
        to_reader(frame.lazy() if lazy else frame)


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["x", "y"])])
def test_polars_categories_are_texts(dtype: Any) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pl.DataFrame({"a": pl.Series(["y", None, "x"], dtype=dtype)}))
    assert table.snapshot().scan().to_arrow()["a"].to_pylist() == ["y", None, "x"]


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (lambda: pl.DataFrame({"v": pl.Series([object()], dtype=pl.Object)}), "column v.*objects"),
        (lambda: pl.DataFrame({"v": pl.Series([1], dtype=pl.Int128)}), "in column v: cast it"),
        (lambda: pl.Series("v", [1]), "to_frame"),
        (lambda: pd.DataFrame({"v": [2**70]}), "too large"),
        (lambda: pd.DataFrame({"v": [1, "x"]}), "column v.*values of one type"),
        (
            lambda: pd.DataFrame({"v": pd.period_range("2020", periods=1, freq="M")}),
            "column v.*per",
        ),
        (
            lambda: pd.DataFrame(
                {"v": [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]},
                dtype=object,
            ),
            "column v mixes",
        ),
        (
            lambda: pd.DataFrame(
                {"v": [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)]}, dtype=object
            ),
            "column v mixes",
        ),
    ],
)
def test_values_without_a_faithful_arrow_form_are_refused(
    frame: Callable[[], Any], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        to_reader(frame())


def test_a_struct_field_may_be_called_like_a_type_of_polars() -> None:
    frame = pl.DataFrame({"v": [{"Object": 1, "Int128": 2}]})
    assert to_reader(frame).read_all().to_pylist() == [{"v": {"Object": 1, "Int128": 2}}]


def test_dates_of_pandas_with_gaps_are_dates() -> None:
    frame = pd.DataFrame({"v": [dt.date(2020, 1, 1), None]})
    assert to_reader(frame).schema.field("v").type == pa.date32()


_BOOL8 = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))


@pytest.mark.parametrize(
    ("values", "data_type", "stored"),
    [
        (_BOOL8, "boolean", [True, False, None]),
        (pa.StructArray.from_arrays([_BOOL8], ["b"]), "struct<b:boolean>", [{"b": True}, {"b": False}, {"b": None}]),
        (pa.array(["{}"], pa.json_()), "string", ["{}"]),
        (pa.array([b"0123456789abcdef"], pa.uuid()), "binary", [b"0123456789abcdef"]),
        (pa.ListArray.from_arrays([0, 1], pa.array(["x"]).dictionary_encode()), "array<string>", [["x"]]),
        (pa.StructArray.from_arrays([pa.array(["x"]).dictionary_encode()], ["a"]), "struct<a:string>", [{"a": "x"}]),
        (pa.array([[1]], pa.large_list_view(pa.int8())), "array<byte>", [[1]]),
        (pa.array([2**32 - 1], pa.uint32()), "long", [2**32 - 1]),
        (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", [Decimal(2**64 - 1)]),
    ],
)  # fmt: skip
def test_odd_arrow_types_are_stored_as_what_they_mean(
    values: Any, data_type: str, stored: list[object]
) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    table.append(pa.table({"v": values}))
    assert str(table.schema().field("v").data_type) == data_type
    assert table.snapshot().scan().to_arrow()["v"].to_pylist() == stored


@pytest.mark.parametrize(
    "data_type",
    [
        pa.decimal256(50, 2), pa.duration("us"), pa.month_day_nano_interval(), pa.time64("us"), pa.null(),
        pa.struct([]), pa.list_(pa.null()), pa.struct([("a", pa.null())]), pa.decimal128(5, -2),
    ],
)  # fmt: skip
def test_types_that_no_column_has_are_refused_by_column(data_type: Any) -> None:
    table = DeltaTable("", store=MemoryStore(), must_exist=False)
    with pytest.raises(DeltaError, match=r"column v\b.*(cast|give)"):
        table.append(pa.table({"v": pa.nulls(1, data_type)}))
