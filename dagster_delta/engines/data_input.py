"""Converts the data of a caller to one stream of Arrow record batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

_MAX_WAITING_FRAMES = 1


def collected_frames(query: pl.LazyFrame, chunk_rows: int) -> Iterator[pl.DataFrame]:
    """The rows of a query of polars in order, in bounded memory if the query itself needs no more.

    polars itself is not imported here. Its `collect_batches` ends without an error where one of
    its threads panics.
    """
    waiting: Queue[pl.DataFrame | _End] = Queue(_MAX_WAITING_FRAMES)
    is_abandoned = Event()

    def take(frame: pl.DataFrame) -> bool:
        waiting.put(frame)
        return is_abandoned.is_set()

    def run() -> None:
        error: BaseException | None = None
        try:
            query.sink_batches(take, chunk_size=chunk_rows, maintain_order=True, engine="streaming")
        except BaseException as raised:  # noqa: BLE001  panics of polars are no `Exception`s
            error = raised
        waiting.put(_End(error))

    thread = Thread(target=run, name="polars-query", daemon=True)
    thread.start()
    frame = None
    try:
        while not isinstance(frame := waiting.get(), _End):
            yield frame
        if frame.error is not None:
            raise frame.error
    finally:
        is_abandoned.set()
        while not isinstance(frame, _End):
            frame = waiting.get()
        thread.join()


class _End:
    """The marker after the last frame."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


_CHUNK_ROWS = 131_072
_LAZY_CHUNK_ROWS = 65_536
"""For queries of polars: with smaller batches, query and writer wait less for each other."""


class RepeatableRows(msgspec.Struct, frozen=True):
    """Rows in memory that are converted while they are read, each time they are."""

    schema: pa.Schema
    open: Callable[[], pa.RecordBatchReader]


def is_in_memory(data: object) -> bool:
    """Whether the rows can be read again without being computed again."""
    if isinstance(data, RepeatableRows):
        return True
    package, name = type(data).__module__.partition(".")[0], type(data).__name__
    return (package, name) in {
        ("pyarrow", "Table"),
        ("pyarrow", "RecordBatch"),
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
    }


def to_rows(data: object) -> object:
    """The rows with a schema that can be asked for without reading them: rows in memory stay there,
    and can be read again; others become a `pyarrow.RecordBatchReader`. Raises as `to_reader`.
    """
    if not is_in_memory(data):
        return to_reader(data)
    # The schema of a pandas frame is known when all its values are converted.
    is_pandas = type(data).__module__.partition(".")[0] == "pandas"
    return to_reader(data).read_all() if is_pandas else data


_MADE_UP = b"dagster_delta.made_up"
"""Metadata of a field: pandas has no values for the column, and calls it float64."""


def without_made_up_types(data: object, table: StructType) -> object:
    """The rows, in which columns of the table for which a pandas frame has no value are of the type
    null, which fits each of them. New columns keep their type. Other values are returned unchanged.
    """
    if type(data).__module__.partition(".")[0] == "pandas":
        data = to_rows(data)
    if not isinstance(data, pa.Table):
        return data
    rows: pa.Table = data
    for place, field in enumerate(rows.schema):
        if _MADE_UP in (field.metadata or {}) and table.get(field.name) is not None:
            rows = rows.set_column(place, field.name, pa.nulls(rows.num_rows))
    return rows


def to_reader(data: object) -> pa.RecordBatchReader:
    """A `pyarrow.RecordBatchReader` over the rows of `data`, copying as little as possible.

    Args:
        data: a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner; a pandas
            DataFrame (named index levels become columns, an unnamed index is dropped, NaN is null);
            a polars DataFrame, or a LazyFrame, whose query runs while the reader is consumed; a
            DuckDB relation, whose HUGEINT columns, such as the sums of integers, become BIGINT; or
            anything that exports the Arrow C stream.

    Raises:
        InvalidArgument: `data` is none of these, or pandas values that no Arrow type holds.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader(max_chunksize=_CHUNK_ROWS)
    if isinstance(data, RepeatableRows):
        return data.open()
    # A frame of geopandas is one of pandas.
    packages = [parent.__module__.partition(".")[0] for parent in type(data).__mro__]
    convert = next((_CONVERTERS[name] for name in packages if name in _CONVERTERS), None)
    reader = convert(data) if convert is not None else None
    if reader is not None:
        return reader
    if hasattr(data, "__arrow_c_stream__"):
        return _from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        batch = pa.record_batch(data)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    raise InvalidArgument(
        f"cannot write a {type(data).__module__}.{type(data).__qualname__}: pass a pyarrow table, "
        "batch, reader or dataset, a pandas, polars or Spark frame, a DuckDB relation, or any "
        "object with __arrow_c_stream__; pyarrow.table and pyarrow.Table.from_pylist make tables "
        "of plain values"
    )


def to_table_types(data: object, *, name: str) -> pa.RecordBatchReader:
    """A `pyarrow.RecordBatchReader` over the rows in the types of a table that is made for them.

    Raises:
        As `to_reader` does, and while the rows are read.
        SchemaMismatch: a column has a type that no Delta type holds; `name` is that of the rows.
    """
    # Imported late: most data is converted when files of a known schema are written.
    from dagster_delta.parquet.store_assignment import assign_batches
    from dagster_delta.protocol.values.arrow_schema import from_arrow_schema, to_arrow_schema

    reader = to_reader(data)
    schema = from_arrow_schema(reader.schema)
    batches = assign_batches(reader, schema, table=name)
    return pa.RecordBatchReader.from_batches(to_arrow_schema(schema), batches)


_Foreign: TypeAlias = Any
"""A value of a library that may not be installed, known by its methods."""


def _from_pyarrow(data: _Foreign) -> pa.RecordBatchReader | None:
    """The rows of a Dataset or a Scanner, found by their methods: the module is slow to load."""
    if hasattr(data, "scanner"):
        data = data.scanner()
    return data.to_reader() if hasattr(data, "to_reader") else None


def _from_stream(data: _Foreign) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid as error:
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        if not hasattr(data, "columns"):
            raise InvalidArgument(
                f"the {kind} is a single column ({error}): make a frame of it, with to_frame() for "
                "a series"
            ) from error
        raise InvalidArgument(
            f"the {kind} has a column of a type that Arrow does not have ({error})"
            f"{_odd_columns(data)}: cast it first; the 128-bit integers of polars, for example, to "
            "Decimal(38, 0)"
        ) from error


def _odd_columns(data: _Foreign) -> str:
    """The columns of a polars frame that hold 128-bit integers, at any depth."""
    types = getattr(data, "schema", {})
    found = [str(name) for name in types if "Int128" in str(types[name])]
    return f" in column {', '.join(found)}" if found else ""


def _from_pandas(data: _Foreign) -> pa.RecordBatchReader | None:
    if not hasattr(data, "columns"):
        return None
    named = [name for name in data.index.names if name is not None]
    taken = sorted(str(name) for name in named if name in data.columns)
    if taken:
        raise InvalidArgument(
            f"the index of the pandas frame is called {', '.join(taken)} like a column of it: "
            "rename one, or drop the index with reset_index(drop=True)"
        )
    frame = data.reset_index(level=named) if named else data
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        problem = "; ".join(map(str, error.args)) if error.args else str(error)
        raise InvalidArgument(
            f"the pandas frame has no Arrow form: {problem}. Give every column a name of its own "
            'and values of one type, as in frame.astype({"column": "string"}); geometries as '
            "bytes, as in frame.to_wkb(). A TypeHandler of the IO manager can do it (docs/types.md)"
        ) from error
    for place, field in enumerate(table.schema):
        column, values = frame.iloc[:, place], table.column(place)
        _check_pandas_column(column, field)
        if column.dtype == "float64" and values.null_count == len(values):
            marked = field.with_metadata({_MADE_UP: b"float64"})
            table = table.set_column(place, marked, values)
    if not len(frame) and {str(dtype) for dtype in frame.dtypes} <= {"float64", "object"}:
        # These are the types of columns that were made without any value.
        table = pa.table({name: pa.nulls(0) for name in table.column_names})
    return table.replace_schema_metadata(None).to_reader(max_chunksize=_CHUNK_ROWS)


def _check_pandas_column(column: pd.Series, field: pa.Field) -> None:
    """Refuse values that Arrow misreads: mixed with and without a zone, times mixed with dates."""
    if isinstance(field.type, pa.BaseExtensionType):
        if field.type.extension_name == "pandas.period":
            raise InvalidArgument(
                f"column {field.name} holds periods of pandas: convert it with dt.to_timestamp() "
                "or to text",
                column=field.name,
            )
        return
    if column.dtype != object or not pa.types.is_temporal(field.type):
        return
    values = column.dropna().to_numpy()
    # Columns of dates are common and long: only the classes of their values are checked.
    are_times = {issubclass(kind, dt.datetime) for kind in set(map(type, values))}
    if len(are_times) > 1 or (
        are_times == {True} and len({value.tzinfo is None for value in values}) > 1
    ):
        raise InvalidArgument(
            f"column {field.name} mixes dates, times with a zone and times without one: convert it "
            "with pandas.to_datetime(…, utc=True), or its dates apart from its times",
            column=field.name,
        )


def _check_polars_types(schema: pl.Schema) -> None:
    """Refuse Python objects, of which polars only exports addresses."""
    for name, data_type in schema.items():
        if str(data_type) == "Object":
            raise InvalidArgument(
                f"column {name} holds Python objects, which have no Arrow form: convert them to "
                "text or to another type of polars",
                column=str(name),
            )


def _from_polars(data: _Foreign) -> pa.RecordBatchReader | None:
    if hasattr(data, "collect_schema"):
        _check_polars_types(data.collect_schema())
    # Only a LazyFrame is collected.
    if not hasattr(data, "collect"):
        return None

    # The plan gives the schema; it does not run before the first row is read.
    schema = _from_stream(data.clear().collect()).schema
    frames = collected_frames(data, _LAZY_CHUNK_ROWS)
    batches = (
        batch for frame in frames for batch in pa.RecordBatchReader.from_stream(frame).cast(schema)
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def _from_duckdb(data: _Foreign) -> pa.RecordBatchReader | None:
    """The rows of a relation, computed while they are read."""
    if not hasattr(data, "to_arrow_reader"):
        return None
    if "HUGEINT" in map(str, data.types):
        data = data.select(*map(_duckdb_column, data.columns, map(str, data.types)))
    schema = data.limit(0).to_arrow_table().schema

    def batches() -> Iterator[pa.RecordBatch]:
        # A connection computes one relation at a time, so a relation starts only when it is read.
        yield from data.to_arrow_reader(_CHUNK_ROWS)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _duckdb_column(name: str, data_type: str) -> duckdb.Expression:
    import duckdb

    column = duckdb.ColumnExpression(name)
    return column.cast("BIGINT").alias(name) if data_type == "HUGEINT" else column


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "pyarrow": _from_pyarrow,
    "pandas": _from_pandas,
    "polars": _from_polars,
    "duckdb": _from_duckdb,
}
