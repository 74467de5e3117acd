"""Rows of tables as polars frames, read by polars itself where this gives the same rows.

polars reads a file if the footer shows that each column is stored in the type that the table has,
under its own name. The embedded engine reads the others, and again what polars fails on, so that
its errors are raised. Damage that polars does not notice is not reported, and over some damaged
page headers polars aborts the process.

A LazyFrame reads its rows while a query runs. The part of a predicate that has an equivalent in
Spark SQL skips files. polars applies the whole predicate itself, so unsupported parts are omitted.

Spec: Data Files; Partition Values; Column Mapping.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from msgspec.structs import replace
from polars.io.plugins import register_io_source

from dagster_delta.engines.data_input import collected_frames
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.errors import InvalidTable
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
from dagster_delta.protocol.statistics.bounds import values_of_partition
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.sql.conditions import (
    NoConditionError,
    all_of,
    any_of,
    compare,
    constant,
    exact_column,
    is_in,
    is_null,
    negate,
    starts_with,
)
from dagster_delta.sql.typed import Column, Literal, Typed, is_too_deep
from dagster_delta.sql.types import BOOLEAN, is_integral

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.protocol.table_properties import ColumnMappingMode

_FILES_AT_ONCE = 64
"""Files of one query of polars, whose footers are read before it starts. If polars cannot read one
of them, the embedded engine reads them all."""

_BATCH_ROWS = 131_072
"""Rows of a frame."""

_PATH = "\0path"
"""The column with the path of the row's file."""

_NOT_FLAT = ("variant", "void")
_DECIMAL_BYTES = 16
_DECIMALS = ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
_TEXTS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""Types that differ in Arrow only."""

_FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, InvalidTable)
"""After these the embedded engine reads the files, or raises its own error."""

_Collect = Callable[[pl.LazyFrame], Iterable[pl.DataFrame]]
_in_batches = partial(collected_frames, chunk_rows=_BATCH_ROWS)


def is_readable(plan: ReadPlan) -> bool:
    """Whether polars may read some files of a plan: the table is on a local disk, and no row or
    column needs the embedded engine.
    """
    mode = plan.configuration.column_mapping_mode
    return (
        plan.where is None
        and not plan.verifies_pages
        and len(plan.schema) > 0
        and plan.store.local_path("") is not None
        and all(_is_plain(field, mode) for field in plan.schema)
    )


def _is_plain(field: StructField, mode: ColumnMappingMode) -> bool:
    is_flat = isinstance(field.data_type, DecimalType) or (
        isinstance(field.data_type, PrimitiveType) and field.data_type.name not in _NOT_FLAT
    )
    # polars takes some names for patterns of names, and Arrow hands one over cut at a NUL.
    is_name = not any(
        "*" in name or "\0" in name or (name.startswith("^") and name.endswith("$"))
        for name in (field.name, physical_name(field, mode))
    )
    return is_flat and is_name and padded_type(field) is None


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
        self._polars_schema = pl.Schema(to_arrow_schema(plan.schema))
        self._stored = StructType(tuple(f for f in plan.schema if f.name not in partitioned))
        self._constants = [field for field in plan.schema if field.name in partitioned]
        self._stored_names = [physical_name(field, self._mode) for field in self._stored]
        self._leaves: list[tuple[pa.Schema, list[int | None] | None]] = []

    def batches(self, predicate: pl.Expr | None) -> Iterator[pl.DataFrame]:
        """The rows in bounded memory.

        Args:
            predicate: filter of the rows; None for all.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure.
        """
        return self._read_frames(predicate, _in_batches)

    def frame(self) -> pl.DataFrame:
        """All rows. Raises as `batches` does."""
        found = [frame for frame in self._read_frames(None, _collect_whole) if frame.height]
        return pl.concat(found or [pl.DataFrame(schema=self._polars_schema)], rechunk=False)

    def _read_frames(self, predicate: pl.Expr | None, collect: _Collect) -> Iterator[pl.DataFrame]:
        files = data_files(self._plan.files)
        while some := list(islice(files, _FILES_AT_ONCE)):
            yield from self._read_some_files(some, predicate, collect)

    def _read_some_files(
        self, files: list[DataFile], predicate: pl.Expr | None, collect: _Collect
    ) -> Iterator[pl.DataFrame]:
        done, expected = 0, 0
        for file in files:
            num_rows = self._native_rows(file)
            if num_rows is None:
                break
            expected += num_rows
        else:
            with suppress(*_FAILURES):
                query = self._build_query(files)
                for frame in collect(query if predicate is None else query.filter(predicate)):
                    done += frame.height
                    yield frame
                if predicate is not None or done == expected:
                    return
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

    def _build_query(self, files: list[DataFile]) -> pl.LazyFrame:
        """The rows of files that polars reads, under logical names."""
        paths = [str(self._plan.store.local_path(file.path)) for file in files]
        names = dict(zip(self._stored.names, self._stored_names, strict=True))
        columns = {name: pl.col(stored).alias(name) for name, stored in names.items()}
        columns |= self._partition_columns(files, paths)
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

    def _partition_columns(
        self, files: Sequence[DataFile], paths: Sequence[str]
    ) -> Iterator[tuple[str, pl.Expr]]:
        """Raises InvalidTable if a value is none of its column's type."""
        for field in self._constants:
            name = physical_name(field, self._mode)
            texts = [file.partition_values.get(name) for file in files]
            parsed = values_of_partition(string_column(texts), field)
            # A series of an array alone would load all of `pyarrow.compute`.
            values = pl.DataFrame(pa.RecordBatch.from_arrays([parsed], [""])).to_series()
            if len(set(texts)) == 1:
                found = _to_literal(values)
            else:
                # It fails for a path that polars writes differently.
                found = pl.col(_PATH).replace_strict(pl.Series(paths), values)
            yield field.name, found.alias(field.name)

    def _native_rows(self, file: DataFile) -> int | None:
        """Number of rows of a file that polars reads; None if it does not. Raises as `batches`
        does.
        """
        store = self._plan.store
        is_local = store.local_path(file.path) is not None
        if file.deletion_vector is not None or not len(self._stored) or not is_local:
            return None
        with naming_data_file(store, file.path):
            with store.open_input(file.path) as handle:
                footer = read_data_footer(handle, file.num_records)
            leaves = self._leaves_of(footer.schema_arrow)
        is_native = leaves is not None and self._are_proven(footer.metadata.schema, leaves)
        return footer.metadata.num_rows if is_native else None

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


def _to_literal(values: pl.Series) -> pl.Expr:
    """The one value of a series: times are numbers, as Python has fewer years."""
    if isinstance(values.dtype, pl.Decimal):
        return pl.lit(values[0], dtype=values.dtype)
    physical = values.to_physical()
    return pl.lit(physical[0], dtype=physical.dtype).cast(values.dtype)


def _collect_whole(query: pl.LazyFrame) -> Iterable[pl.DataFrame]:
    return [query.collect()]


_MAX_PREDICATE_BYTES = 65_536
"""Larger predicates have long lists, whose translation takes longer than it saves."""
_MAX_LIST_VALUES = 1000

_COMPARISONS = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "EqValidity": "<=>",
}
_AND = ("And", "LogicalAnd")
_OR = ("Or", "LogicalOr")
_BOUNDS = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}


def to_condition(predicate: pl.Expr | None, schema: StructType) -> Typed | None:
    """A condition that is true for every row for which the predicate is; None if none is found.

    Args:
        predicate: as polars gives it to a source of rows, with literals of the columns' types; None
            for all rows.
        schema: the columns that the condition may use, without texts that Spark pads.

    Raises:
        Nothing: an unsupported predicate skips no files.
    """
    if predicate is None or len(predicate.meta.serialize()) > _MAX_PREDICATE_BYTES:
        return None
    known = []
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        for part in _split_conjuncts(tree):
            with suppress(NoConditionError):
                known.append(_to_condition(part, schema))
    except (RecursionError, pl.exceptions.PolarsError):
        # Too deep, or in a form of another polars version.
        return None
    found = all_of(known) if known else None
    return None if found is None or is_too_deep(found) else found


def _split_conjuncts(node: object) -> Iterator[object]:
    match node:
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _AND:
            yield from _split_conjuncts(left)
            yield from _split_conjuncts(right)
        case _:
            yield node


def _to_condition(node: object, schema: StructType) -> Typed:
    """The same condition in Spark SQL. Raises NoConditionError."""
    match node:
        case {"Column": str()} if (
            column := exact_column(_to_path(node), schema)
        ).data_type == BOOLEAN:
            return column
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in (*_AND, *_OR):
            both = [_to_condition(left, schema), _to_condition(right, schema)]
            return all_of(both) if op in _AND else any_of(both)
        case {"BinaryExpr": {"op": op, "left": left, "right": right}} if op in _COMPARISONS:
            if isinstance(left, dict) and "Literal" in left:
                column = exact_column(_to_path(right), schema)
                return compare(_to_one_literal(left, column), _COMPARISONS[op], column)
            column = exact_column(_to_path(left), schema)
            return compare(column, _COMPARISONS[op], _to_one_literal(right, column))
        case {"Function": {"function": {"Boolean": "Not"}, "input": [operand]}}:
            return negate(_to_condition(operand, schema))
        case {"Function": {"function": {"Boolean": function}, "input": [operand, *others]}}:
            return _of_column(function, exact_column(_to_path(operand), schema), others)
        case {"Function": {"function": {"StringExpr": "StartsWith"}, "input": [operand, prefix]}}:
            column = exact_column(_to_path(operand), schema)
            return starts_with(column, _to_one_literal(prefix, column))
    raise NoConditionError


def _of_column(function: object, column: Column, others: Sequence[object]) -> Typed:
    match function:
        case "IsNull":
            return is_null(column)
        case "IsNotNull":
            return negate(is_null(column))
        case {"IsIn": {"nulls_equal": False}}:
            return is_in(column, _to_literals(others[0], column))
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            bounds = zip(_BOUNDS[closed], others, strict=True)
            return all_of(
                compare(column, sign, _to_one_literal(bound, column)) for sign, bound in bounds
            )
    raise NoConditionError


def _to_path(node: object) -> tuple[str, ...]:
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {"Function": {"function": {"StructExpr": {"FieldByName": name}}, "input": [parent]}}:
            return (*_to_path(parent), name)
    raise NoConditionError


def _to_one_literal(node: object, column: Column) -> Literal:
    (literal, *others) = _to_literals(node, column)
    if others:
        raise NoConditionError
    return literal


def _to_literals(node: object, column: Column) -> list[Literal]:
    """The values of a literal, or of the list that it is, as constants of the column's type; at
    least one.
    """
    if not isinstance(node, dict) or set(node) != {"Literal"}:
        raise NoConditionError
    # polars evaluates it, as its form depends on the version.
    expression = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    series = pl.select(expression).to_series()
    if isinstance(series.dtype, pl.List | pl.Array) and len(series) == 1:
        series = series.explode()
    # If the list has a null, a value that is not in it gives null in SQL and false in polars.
    # Python drops nanoseconds.
    is_nanoseconds = getattr(series.dtype, "time_unit", "us") == "ns"
    if series.null_count() or len(series) > _MAX_LIST_VALUES or is_nanoseconds:
        raise NoConditionError
    try:
        literals = [constant(value) for value in series]
    except (ValueError, OverflowError):
        # The year is outside Python's range.
        raise NoConditionError from None
    if {_type_family_of(literal.data_type) for literal in literals} != {
        _type_family_of(column.data_type)
    }:
        raise NoConditionError
    return literals


def _type_family_of(data_type: DataType) -> str:
    """A name for types of which one constant may be."""
    if isinstance(data_type, DecimalType):
        return "decimal"
    if is_integral(data_type):
        return "integral"
    return "double" if data_type == PrimitiveType("float") else str(data_type)


_ReadRows = Callable[["Sequence[str]", "Typed | None"], "pa.RecordBatchReader"]
"""Reads at least these columns of at least the rows for which this condition is true."""
_PlanRows = Callable[["Sequence[str]", "Typed | None"], "ReadPlan | None"]
"""Plans such a read of exactly these columns; None if only `_ReadRows` can do it."""


def lazy_frame(
    schema: pa.Schema, fields: StructType, read: _ReadRows, plan: _PlanRows
) -> pl.LazyFrame:
    """A LazyFrame whose rows are read when a query runs, by each query again.

    Args:
        schema: schema of all columns.
        fields: the columns that conditions may use.
        read: called for a query if there is no plan that polars can read.
        plan: called for every query.

    Raises:
        Nothing here; the method that runs the query raises the errors of `read`.
    """

    def frames(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        names = schema.names if columns is None else columns
        # A limit applies to the rows before the filter.
        where = None if n_rows is not None else to_condition(predicate, fields)
        planned = plan(names, where) if n_rows is None else None
        if planned is not None and is_readable(planned):
            yield from FileFrames(planned).batches(predicate)
            return
        found = (pl.DataFrame(batch.select(names)) for batch in read(names, where))
        for frame in found if n_rows is None else _first_rows(found, n_rows):
            yield frame if predicate is None else frame.filter(predicate)

    polars_schema = pl.Schema(schema)
    # Two reads of one version are the same, so a self-join may read once.
    return register_io_source(frames, schema=polars_schema, is_pure=True)


def _first_rows(frames: Iterator[pl.DataFrame], count: int) -> Iterator[pl.DataFrame]:
    if count == 0:
        return
    for frame in frames:
        yield frame.head(count)
        count -= frame.height
        if count <= 0:
            return
