"""Data files read by polars itself, where this gives the rows that the embedded engine gives.

polars reads a file if the footer shows that each column is stored in the type that the table has,
under its own name. The embedded engine reads the others, and again what polars fails on, so that
its errors are raised. Damage that polars does not notice is not reported, and over some damaged
page headers polars aborts the process.

Spec: Data Files; Partition Values; Column Mapping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines.plans import ReadPlan
from dagster_delta.parquet.opened_file import (
    DataFile,
    data_files,
    naming_data_file,
    read_data_footer,
)
from dagster_delta.parquet.projection import FileProjection
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.text_limits import padded_type
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.partition_values import parse_partition_column

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FILES_AT_ONCE = 64
"""Files of one query of polars, whose footers are read before it starts."""
_MAX_RUNS = 8
"""Where the readers take more turns among those files, the embedded engine reads them all."""

_BATCH_ROWS = 131_072
"""Rows of a frame: by default polars collects four times as many, in more memory."""

_PATH = "\0path"
"""The column with the path of the row's file."""
_IS_END = "\0end"
"""The column that is true in a row after all rows of a filtered read."""

_STORED_AS = {
    "string": ("BYTE_ARRAY", "STRING"),
    "binary": ("BYTE_ARRAY", "NONE"),
    "byte": ("INT32", "INT"),
    "short": ("INT32", "INT"),
    "integer": ("INT32", None),
    "long": ("INT64", None),
    "float": ("FLOAT", "NONE"),
    "double": ("DOUBLE", "NONE"),
    "boolean": ("BOOLEAN", "NONE"),
    "date": ("INT32", "DATE"),
    # Never INT96, which polars reads as nanoseconds.
    "timestamp": ("INT64", "TIMESTAMP"),
    "timestamp_ntz": ("INT64", "TIMESTAMP"),
}
"""The physical type of a column that polars reads, and the logical one; None for any."""
_DECIMAL_BYTES = 16
_DECIMALS = ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
_TEXTS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""Types that differ in Arrow only."""

_Collect = Callable[[pl.LazyFrame], Iterable[pl.DataFrame]]


def is_readable(plan: ReadPlan) -> bool:
    """Whether polars may read some files of a plan: the table is on a local disk, and no row or
    column needs the embedded engine.
    """
    schema = plan.schema
    return (
        plan.where is None
        and not plan.verifies_pages
        and len(schema) > 0
        and plan.store.local_path("") is not None
        and all(_is_flat(field.data_type) and padded_type(field) is None for field in schema)
        and not any(_is_pattern(name) for name in (*schema.names, *_stored_names(plan)))
    )


def _stored_names(plan: ReadPlan) -> Iterator[str]:
    mode = plan.configuration.column_mapping_mode
    return (physical_name(field, mode) for field in plan.schema)


def _is_pattern(name: str) -> bool:
    """Whether polars takes a name for a pattern of names, or Arrow hands it over cut at a NUL."""
    return "*" in name or "\0" in name or (name.startswith("^") and name.endswith("$"))


def _is_flat(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or (
        isinstance(data_type, PrimitiveType) and data_type.name in _STORED_AS
    )


class _NativeFile(msgspec.Struct, frozen=True):
    """A data file that polars reads."""

    local_path: str
    num_rows: int


class FileFrames:
    """The rows of a plan as polars frames, in file order.

    Args:
        plan: one that `is_readable`.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        configuration = plan.configuration
        partitioned = set(configuration.partition_columns)
        self._mode = configuration.column_mapping_mode
        fields = plan.schema
        self._polars_schema = pl.Schema(to_arrow_schema(fields))
        self._stored = StructType(tuple(f for f in fields if f.name not in partitioned))
        self._constants = [field for field in fields if field.name in partitioned]
        self._stored_names = [physical_name(field, self._mode) for field in self._stored]
        self._leaves: list[tuple[pa.Schema, list[int | None] | None]] = []
        self._values: dict[tuple[str, str | None], pl.Series] = {}

    def batches(self, predicate: pl.Expr | None, n_rows: int | None) -> Iterator[pl.DataFrame]:
        """The rows in bounded memory.

        Args:
            predicate: filter of the rows; None for all.
            n_rows: number of rows to filter, from the first; None for all.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure.
        """
        if n_rows is None:
            for files in self._segments(_FILES_AT_ONCE):
                yield from self._read(files, predicate, None, _in_batches)
            return
        for files in self._segments(1) if n_rows else ():
            for frame in self._read(files, None, n_rows, _in_batches):
                first = frame.head(n_rows)
                n_rows -= first.height
                yield first if predicate is None else first.filter(predicate)
                if not n_rows:
                    return

    def frame(self) -> pl.DataFrame:
        """All rows. Raises as `batches` does."""
        empty = pl.DataFrame(schema=self._polars_schema)
        segments = self._segments(_FILES_AT_ONCE, at_most=self._plan.files.num_rows)
        read = (self._read(files, None, None, _whole) for files in segments)
        found = [frame for frames in read for frame in frames if frame.height]
        return pl.concat(found or [empty], rechunk=False)

    def _segments(
        self, count: int, at_most: int = _FILES_AT_ONCE
    ) -> Iterator[list[tuple[DataFile, _NativeFile | None]]]:
        """Neighbouring files that one reader reads, `count` files at first and more each time."""
        files = data_files(self._plan.files)
        while some := list(islice(files, count)):
            known = [(file, self._native(file)) for file in some]
            if not any(native for _, native in known):
                # The files of a table are mostly alike.
                yield [*known, *((file, None) for file in files)]
                return
            runs = [list(run) for _, run in groupby(known, lambda pair: pair[1] is None)]
            if len(runs) > _MAX_RUNS:
                runs = [[(file, None) for file, _ in known]]
            yield from runs
            count = min(4 * count, max(count, at_most))

    def _read(
        self,
        files: list[tuple[DataFile, _NativeFile | None]],
        predicate: pl.Expr | None,
        n_rows: int | None,
        collect: _Collect,
    ) -> Iterator[pl.DataFrame]:
        """The rows of a segment. A limit may be exceeded."""
        done = 0
        native = [(file, found) for file, found in files if found is not None]
        if native:
            query = self._query(native)
            query = query if n_rows is None else query.head(n_rows)
            with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
                for frame in collect(query) if predicate is None else _filtered(query, predicate):
                    done += frame.height
                    yield frame
                expected = sum(found.num_rows for _, found in native)
                if predicate is not None or done == min(expected, n_rows or expected):
                    return
        # The embedded engine raises its own error for what polars cannot read, or reads it.
        for frame in self._by_arrow(files):
            rows = frame if predicate is None else frame.filter(predicate)
            yield rows.slice(done)
            done = max(0, done - rows.height)

    def _by_arrow(self, files: list[tuple[DataFile, _NativeFile | None]]) -> Iterator[pl.DataFrame]:
        # It loads what decodes files, which polars does for most tables.
        from dagster_delta.parquet.reader import read_files

        plan = self._plan
        chosen = plan.files.slice(files[0][0].ordinal, len(files))
        return (pl.DataFrame(batch) for batch in read_files(replace(plan, files=chosen)))

    def _query(self, files: list[tuple[DataFile, _NativeFile]]) -> pl.LazyFrame:
        """The rows of files that polars reads, under logical names."""
        names = dict(zip(self._stored.names, self._stored_names, strict=True))
        columns = {name: pl.col(stored).alias(name) for name, stored in names.items()}
        paths = [native.local_path for _, native in files]
        for field in self._constants:
            values = [self._partition_value(field, file) for file, _ in files]
            columns[field.name] = _by_path(paths, values).alias(field.name)
        rows = pl.scan_parquet(
            paths,
            schema={stored: self._polars_schema[name] for name, stored in names.items()},
            include_file_paths=_PATH if self._constants else None,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            hive_partitioning=False,
        )
        return rows.select(columns[name] for name in self._plan.columns)

    def _partition_value(self, field: StructField, file: DataFile) -> pl.Series:
        """The value of a file, alone in a series. Raises InvalidTable if it is none of the type."""
        text = file.partition_values.get(physical_name(field, self._mode))
        value = self._values.get((field.name, text))
        if value is None:
            texts = string_column([text])
            parsed = parse_partition_column(texts, field.data_type, column=field.name)
            # A series of an array alone would load all of `pyarrow.compute`.
            row = pl.Series(pa.RecordBatch.from_arrays([parsed], [""]))
            value = self._values[field.name, text] = row.struct.field("")
        return value

    def _native(self, file: DataFile) -> _NativeFile | None:
        """None if polars does not read the file. Raises as `batches` does."""
        store = self._plan.store
        if file.deletion_vector is not None or not len(self._stored):
            return None
        with naming_data_file(store, file.path):
            path = store.local_path(file.path)
            if path is None:
                return None
            with store.open_input(file.path) as handle:
                footer = read_data_footer(handle)
            leaves = self._leaves_of(footer.schema_arrow)
            for field in self._constants:
                self._partition_value(field, file)
        if leaves is None or not self._are_proven(footer.metadata.schema, leaves):
            return None
        return _NativeFile(path, footer.metadata.num_rows)

    def _leaves_of(self, file_schema: pa.Schema) -> list[int | None] | None:
        """The Parquet column of each stored column, None for one that the file lacks; None if a
        column has to be converted.
        """
        for schema, leaves in self._leaves:
            if schema.equals(file_schema, check_metadata=True):
                return leaves
        fields = [field.with_type(_TEXTS.get(field.type, field.type)) for field in file_schema]
        plain = pa.schema(fields, file_schema.metadata)
        found = FileProjection.plan(plain, self._stored, self._mode).unconverted()
        self._leaves = [(file_schema, found), *self._leaves[:3]]
        return found

    def _are_proven(self, schema: pq.ParquetSchema, leaves: list[int | None]) -> bool:
        """Whether each column has the name and the form in which polars reads it."""
        columns = [schema.column(index) for index in range(len(schema))]
        names = Counter(column.path for column in columns)
        for field, name, leaf in zip(self._stored, self._stored_names, leaves, strict=True):
            if names[name] != (leaf is not None):
                return False
            if leaf is None:
                continue
            if columns[leaf].path != name or not _is_stored_plainly(columns[leaf], field.data_type):
                return False
        return True


def _is_stored_plainly(column: pq.ColumnSchema, data_type: DataType) -> bool:
    if isinstance(data_type, DecimalType):
        is_wide = column.physical_type == "FIXED_LEN_BYTE_ARRAY" and column.length > _DECIMAL_BYTES
        return column.physical_type in _DECIMALS and not is_wide
    assert isinstance(data_type, PrimitiveType)  # noqa: S101  see `is_readable`
    physical, logical = _STORED_AS[data_type.name]
    return column.physical_type == physical and logical in (None, column.logical_type.type)


def _by_path(paths: list[str], values: list[pl.Series]) -> pl.Expr:
    """The value of the file of each row."""
    if all(value is values[0] for value in values):
        return _constant(values[0])
    # It fails for a path that polars writes differently.
    return pl.col(_PATH).replace_strict(pl.Series(paths), pl.concat(values))


def _constant(value: pl.Series) -> pl.Expr:
    """The one value of a series: times are numbers, as Python has fewer years."""
    dtype = value.dtype
    if isinstance(dtype, pl.Decimal):
        return pl.lit(value[0], dtype=dtype)
    physical = value.to_physical()
    return pl.lit(physical[0], dtype=physical.dtype).cast(dtype)


def _in_batches(query: pl.LazyFrame) -> Iterable[pl.DataFrame]:
    return query.collect_batches(lazy=True, engine="streaming", chunk_size=_BATCH_ROWS)


def _filtered(query: pl.LazyFrame, predicate: pl.Expr) -> Iterator[pl.DataFrame]:
    """The rows that satisfy a predicate. Raises ComputeError if some may be missing: batches end
    without an error where a thread of polars panics, and nothing says how many rows to expect.
    """
    schema = query.collect_schema()
    end = pl.DataFrame({name: [None] for name in schema}, schema=schema).lazy()
    parts = [query.filter(predicate).with_columns(pl.lit(False).alias(_IS_END))]
    parts.append(end.with_columns(pl.lit(True).alias(_IS_END)))
    is_whole = False
    for frame in _in_batches(pl.concat(parts)):
        rows = frame.drop(_IS_END)
        if frame.height and frame[_IS_END][-1]:
            is_whole, rows = True, rows.head(-1)
        yield rows
    if not is_whole:
        raise pl.exceptions.ComputeError("polars ended before the last row")


def _whole(query: pl.LazyFrame) -> Iterable[pl.DataFrame]:
    return [query.collect()]
