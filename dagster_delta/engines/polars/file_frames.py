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
from itertools import islice
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
"""Files of one query of polars, whose footers are read before it starts. If polars cannot read one
of them, the embedded engine reads them all."""

_BATCH_ROWS = 131_072
"""Rows of a frame: by default polars collects four times as many, in more memory."""

_PATH = "\0path"
"""The column with the path of the row's file."""
_IS_END = "\0end"
"""The column that is true in a row after all rows of a filtered read."""

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
        isinstance(data_type, PrimitiveType) and data_type.name not in ("variant", "void")
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

    def batches(self, predicate: pl.Expr | None) -> Iterator[pl.DataFrame]:
        """The rows in bounded memory.

        Args:
            predicate: filter of the rows; None for all.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure.
        """
        return self._frames(predicate, _in_batches)

    def frame(self) -> pl.DataFrame:
        """All rows. Raises as `batches` does."""
        found = [frame for frame in self._frames(None, _whole) if frame.height]
        return pl.concat(found or [pl.DataFrame(schema=self._polars_schema)], rechunk=False)

    def _frames(self, predicate: pl.Expr | None, collect: _Collect) -> Iterator[pl.DataFrame]:
        files = data_files(self._plan.files)
        while some := list(islice(files, _FILES_AT_ONCE)):
            yield from self._read(some, predicate, collect)

    def _read(
        self, files: list[DataFile], predicate: pl.Expr | None, collect: _Collect
    ) -> Iterator[pl.DataFrame]:
        done = 0
        native: list[_NativeFile] = []
        for file in files:
            found = self._native_file(file)
            if found is None:
                break
            native.append(found)
        if len(native) == len(files):
            query = self._query(files, [file.local_path for file in native])
            with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
                for frame in collect(query) if predicate is None else _filtered(query, predicate):
                    done += frame.height
                    yield frame
                if predicate is not None or done == sum(file.num_rows for file in native):
                    return
        # The embedded engine raises its own error for what polars cannot read, or reads it.
        for frame in self._by_arrow(files):
            rows = frame if predicate is None else frame.filter(predicate)
            yield rows.slice(done)
            done = max(0, done - rows.height)

    def _by_arrow(self, files: list[DataFile]) -> Iterator[pl.DataFrame]:
        # It loads what decodes files, which polars does for most tables.
        from dagster_delta.parquet.reader import read_files

        plan = self._plan
        chosen = plan.files.slice(files[0].ordinal, len(files))
        return (pl.DataFrame(batch) for batch in read_files(replace(plan, files=chosen)))

    def _query(self, files: list[DataFile], paths: list[str]) -> pl.LazyFrame:
        """The rows of files that polars reads, under logical names."""
        names = dict(zip(self._stored.names, self._stored_names, strict=True))
        columns = {name: pl.col(stored).alias(name) for name, stored in names.items()}
        for field in self._constants:
            values = [self._partition_value(field, file) for file in files]
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

    def _native_file(self, file: DataFile) -> _NativeFile | None:
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
        """Whether polars finds each column by its name, and reads its physical type."""
        columns = [schema.column(index) for index in range(len(schema))]
        names = Counter(column.path for column in columns)
        return all(
            names[name] == (leaf is not None)
            and (leaf is None or (columns[leaf].path == name and _is_read_alike(columns[leaf])))
            for name, leaf in zip(self._stored_names, leaves, strict=True)
        )


def _is_read_alike(column: pq.ColumnSchema) -> bool:
    """Whether polars reads the values of a column as Arrow does."""
    if column.logical_type.type == "DECIMAL":
        is_wide = column.physical_type == "FIXED_LEN_BYTE_ARRAY" and column.length > _DECIMAL_BYTES
        return column.physical_type in _DECIMALS and not is_wide
    # polars reads INT96 as nanoseconds.
    return bool(column.physical_type != "INT96")


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
