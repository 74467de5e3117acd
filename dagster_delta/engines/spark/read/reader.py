"""The rows of a planned scan as a DataFrame, read by Spark's own Parquet reader.

Partition values come from the directories, or from the name of a row's file, so that Spark skips
files by a filter that is put on the DataFrame. A broadcast join removes deleted rows. The Arrow
engine on the executors reads the files that Spark would misread or cannot read.

Spec: Deletion Vectors; Column Mapping; Partition Value Serialization.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.pandas.types import from_arrow_schema

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.engines.footers import may_lack
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.file_keys import (
    FILE_KEY,
    ROW_INDEX,
    check_distinct,
    file_keys,
    file_number,
    file_number_by_name,
    is_misread_by_spark,
    keys_of_files,
)
from dagster_delta.engines.spark.read.partition_values import (
    are_equal,
    are_in_directories,
    directory_column,
    directory_read_fields,
    partition_literal,
    partition_table,
    partition_value,
)
from dagster_delta.engines.spark.read.position_bitmaps import (
    CHUNK_ROWS,
    load_bitmaps,
    row_number,
    with_row_ids,
    without_deleted_rows,
)
from dagster_delta.engines.spark.read.read_tasks import (
    FILE_SCHEMA,
    KEY_FIELD,
    ReadTask,
    listed_files,
)
from dagster_delta.engines.spark.read.sources import SPARK_PATH, can_open, open_parquet
from dagster_delta.engines.spark.session.schema import (
    column_metadata,
    declared_column,
    has_nested_void,
    has_unreadable_widening,
    is_declared,
    logical_column,
    padded_column,
    physical_read_schema,
    sql_column,
    to_spark_schema,
)
from dagster_delta.engines.spark.session.session import (
    FIELD_ID_READ,
    frame_of,
    functions_of,
    is_apache_spark,
    session_conf,
)
from dagster_delta.errors import UnsupportedExpression
from dagster_delta.nested_arrays import index_of
from dagster_delta.protocol.features.column_mapping import field_id
from dagster_delta.protocol.features.existing_defaults import existing_default
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path, encode_uri
from dagster_delta.sql.typed import quote
from dagster_delta.storage.locations import spark_path

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyroaring import BitMap64
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as spark_types

    from dagster_delta.sql.expressions import SqlExpression

_MAX_ARROW_TASKS = 512
MAX_BROADCAST_BYTES = 256 * 1024 * 1024
"""Deletion vectors larger than this on every executor are applied file by file."""

_ROW_NUMBER = "__delta_row_number"
_LONG_DIGITS = 18


def read_frame(session: SparkSession, plan: ReadPlan, *, with_positions: bool = False) -> DataFrame:
    """The rows of the plan, lazily, with the logical schema of the table.

    Every column is nullable, and the settings of the session do not change.

    `with_positions`: whether `FILE_KEY` and `ROW_INDEX` follow the columns.
    """
    carried = carried_columns(plan.configuration)
    if carried is None or not set(carried.names).intersection(plan.columns):
        return _FrameReader(session, plan, with_positions).read()
    rows = _FrameReader(session, plan, with_positions=True).read()
    rows = with_row_ids(rows, plan, carried)
    return rows if with_positions else rows.drop(FILE_KEY, ROW_INDEX)


def _is_filled(data_type: DataType) -> bool:
    """Whether Spark fills in defaults of a type: it fails for decimals that no long holds."""
    if isinstance(data_type, DecimalType):
        return data_type.precision <= _LONG_DIGITS
    return isinstance(data_type, PrimitiveType) and data_type.name != "binary"


class _FrameReader(msgspec.Struct, frozen=True, dict=True):
    session: SparkSession
    plan: ReadPlan
    with_positions: bool

    def read(self) -> DataFrame:
        parts = list(self._read_parts())
        if not parts:
            fields = StructType(self._needed_fields)
            return self.result(self.session.createDataFrame([], self._make_read_schema(fields)))
        return self.result(reduce(lambda left, right: left.union(right), parts))

    def result(self, rows: DataFrame) -> DataFrame:
        """The rows that pass the filter, with the requested columns."""
        if any(map(is_declared, self._needed_fields)):
            rows = rows.select(
                *map(self._declare_column, self._needed_fields), *self._position_names
            )
        if self.plan.where is not None:
            rows = rows.where(sql_column(self.plan.where.sql, functions_of(rows)))
        if self.plan.schema.fields == self._needed_fields and not any(
            map(self._has_metadata, self._needed_fields)
        ):
            return rows
        results = [self._result_column(field) for field in self.plan.schema]
        return rows.select(*results, *self._position_names)

    def _read_parts(self) -> Iterator[DataFrame]:
        """The rows of all files, before the filter."""
        plain, with_vectors, by_arrow = _split_files(
            self.plan, StructType(self._unfilled_fields), native=self._is_native()
        )
        if plain.num_rows:
            yield self._read_native(plain)
        if with_vectors.num_rows:
            yield self._read_native(with_vectors, load_bitmaps(with_vectors, self.plan.store))
        if by_arrow.num_rows:
            yield self._read_by_arrow(by_arrow)

    @property
    def _position_names(self) -> tuple[str, ...]:
        return (FILE_KEY, ROW_INDEX) if self.with_positions else ()

    def _make_read_schema(self, columns: StructType) -> spark_types.StructType:
        schema = to_spark_schema(columns)
        for name in self._position_names:
            schema.add(name, "long")
        return schema

    def _with_positions(self, rows: DataFrame) -> DataFrame:
        if not self.with_positions:
            return rows
        metadata = rows.metadataColumn("_metadata")
        return rows.withColumns(
            {
                FILE_KEY: self._functions.xxhash64(metadata.getField("file_path")),
                ROW_INDEX: metadata.getField("row_index"),
            }
        )

    def _declare_column(self, field: StructField) -> Column:
        read = self._functions.col(quote(field.name))
        return declared_column(padded_column(read, field, self._functions), field)

    def _result_column(self, field: StructField) -> Column | str:
        if not self._has_metadata(field):
            return quote(field.name)
        column: Column = self._functions.col(quote(field.name))
        return column.alias(field.name, metadata=column_metadata(field))

    def _has_metadata(self, field: StructField) -> bool:
        """Whether a column has metadata in the table, or has other metadata when it is read."""
        by_id = self.plan.configuration.column_mapping_mode == "id"
        return by_id or existing_default(field) is not None or bool(column_metadata(field))

    @cached_property
    def _functions(self) -> ModuleType:
        return functions_of(self.session)

    @cached_property
    def _needed_fields(self) -> tuple[StructField, ...]:
        """Logical columns that the result or its filter needs, in schema order."""
        schema = self.plan.configuration.schema
        needed = {schema.field(name).name for name in self.plan.columns}
        if self.plan.where is not None:
            needed |= {schema.field(path[0]).name for path in self.plan.where.references}
        return tuple(field for field in schema if field.name in needed)

    @cached_property
    def _partition_fields(self) -> tuple[StructField, ...]:
        names = set(self.plan.configuration.partition_columns)
        return tuple(field for field in self._needed_fields if field.name in names)

    @cached_property
    def _data_fields(self) -> tuple[StructField, ...]:
        """The needed fields that are read from files."""
        names = set(self.plan.configuration.partition_columns)
        return tuple(field for field in self._needed_fields if field.name not in names)

    @property
    def _unfilled_fields(self) -> tuple[StructField, ...]:
        """The read fields whose defaults Spark does not fill in: some types, and fields inside."""
        return tuple(field for field in self._data_fields if not _is_filled(field.data_type))

    def _is_native(self) -> bool:
        """Whether Spark's reader can read the files of this table correctly."""
        if not self.plan.files.num_rows:
            return True
        if any(has_nested_void(field.data_type) for field in self._data_fields):
            return False
        if has_unreadable_widening(StructType(self._data_fields)):
            return False
        if self.plan.configuration.has_nanoseconds:
            return False
        # Spark reads this setting when it reads the rows, maybe long after this call: it cannot be
        # set for one read, and without it every column would silently be null.
        by_id = self.plan.configuration.column_mapping_mode == "id"
        if by_id and session_conf(self.session, FIELD_ID_READ) != "true":
            return False
        # The extra column of a change data file has no id either.
        if by_id and any(field_id(field) is None for field in self._data_fields):
            return False
        sample = decode_path(self.plan.files["path"][0].as_py())
        path = spark_path(self.plan.store.resolve_uri(sample))
        return can_open(self.session, path, location=self.plan.store.location)

    def _open_files(self, files: pa.Table, *, by_directory: bool) -> DataFrame:
        """The data columns of files, and the partition columns as read from their directories."""
        configuration = self.plan.configuration
        schema = physical_read_schema(self._data_fields, configuration.column_mapping_mode)
        if by_directory:
            for field in directory_read_fields(configuration):
                schema.add(field)
        return open_parquet(
            self.session,
            files,
            schema,
            location=self.plan.store.location,
            version=self.plan.version,
            base_path=self._root if by_directory else None,
            verifies_pages=self.plan.verifies_pages,
        )

    @cached_property
    def _root(self) -> str:
        return spark_path(self.plan.store.resolve_uri("")).rstrip("/")

    def _read_native(self, files: pa.Table, bitmaps: Sequence[BitMap64] | None = None) -> DataFrame:
        """Files that Spark reads, without the rows that their deletion vectors delete."""
        paths = files[SPARK_PATH].to_pylist()
        configuration, functions = self.plan.configuration, self._functions
        values = partition_table(files, self._partition_fields, configuration)
        is_one = are_equal(values)
        by_directory = not is_one and are_in_directories(files, paths, self._root, configuration)
        rows = self._with_positions(self._open_files(files, by_directory=by_directory))
        metadata = rows.metadataColumn("_metadata")
        if self._partition_fields and bitmaps is None and not (is_one or by_directory):
            # Spark makes all of `_metadata` for each row unless the query reads a part of it, and
            # one without a partition column reads none: TPC-H's q6 took a tenth longer.
            rows = rows.where(metadata.getField("file_size") >= 0)
        partitions: dict[str, Column] = {}
        if bitmaps is not None or not (is_one or by_directory):
            number = self._find_number(rows, paths, has_vectors=bitmaps is not None)
        for field in self._partition_fields:
            if is_one:
                value = partition_literal(values[field.name], field, functions)
            elif by_directory:
                value = directory_column(field, configuration, functions)
            else:
                value = partition_value(values[field.name], field, number, self.session)
            partitions[field.name] = value
        if bitmaps is not None:
            # The files may have a column with the current name of a partition column.
            names = {name: f"__delta_partition_{i}" for i, name in enumerate(partitions)}
            named = {names[name]: value for name, value in partitions.items()}
            named[_ROW_NUMBER] = row_number(number, metadata.getField("row_index"))
            rows = without_deleted_rows(rows.withColumns(named), _ROW_NUMBER, bitmaps)
            partitions = {name: functions.col(names[name]) for name in partitions}
        return self._select_logical(rows, partitions)

    def _find_number(self, rows: DataFrame, paths: Sequence[str], *, has_vectors: bool) -> Column:
        """The number of a row's file."""
        if has_vectors and (number := file_number_by_name(rows, paths)) is not None:
            return number
        keys = file_keys([encode_uri(path) for path in paths])
        check_distinct(keys, table=self.plan.store.location.uri, version=self.plan.version)
        key = self._functions.xxhash64(rows.metadataColumn("_metadata").getField("file_path"))
        return file_number(key, keys, self.session)

    def _select_logical(self, rows: DataFrame, partitions: dict[str, Column]) -> DataFrame:
        """The needed columns under their logical names, in schema order."""
        mode, functions = self.plan.configuration.column_mapping_mode, self._functions
        columns = [
            partitions[field.name]
            if field.name in partitions
            else logical_column(field, mode, functions)
            for field in self._needed_fields
        ]
        rows = rows.select(*columns, *self._position_names)
        names = [field.name for field in self._needed_fields]
        # Each column that is renamed on its own takes a dozen calls of the JVM.
        if [column for column in columns if isinstance(column, str)] == list(map(quote, names)):
            return rows
        return rows.toDF(*names, *self._position_names)

    def _read_by_arrow(self, files: pa.Table) -> DataFrame:
        """Files that the Arrow engine reads on the executors."""
        named, plan = listed_files(files), self.plan
        if self.with_positions:
            named = named.append_column(KEY_FIELD, index_of(keys_of_files(files, plan.store)))
        listed = frame_of(self.session, named, from_arrow_schema(named.schema))
        return self.read_spread(listed.repartition(min(files.num_rows, _MAX_ARROW_TASKS)))

    def read_spread(self, files: DataFrame) -> DataFrame:
        """Rows of files of `FILE_SCHEMA`, read on the executors; all rows of the needed columns."""
        plan = self.plan
        counts_only = not self._needed_fields and not self.with_positions
        if counts_only and not is_apache_spark(self.session):
            # Other servers refuse batches for rows without columns.
            keyed = files.withColumn(KEY_FIELD.name, self._functions.lit(0).cast("bigint"))
            return replace(self, with_positions=True).read_spread(keyed).select()
        columns = tuple(field.name for field in self._needed_fields)
        early = msgspec.structs.replace(
            plan, files=FILE_SCHEMA.empty_table(), columns=columns, where=self._early_filter()
        )
        task = ReadTask(early, self.with_positions)
        return files.mapInArrow(task, self._make_read_schema(StructType(self._needed_fields)))

    def _early_filter(self) -> SqlExpression | None:
        """The filter, if the Arrow engine evaluates it too: it saves rows."""
        where = self.plan.where
        if where is None:
            return None
        try:
            where.check_embeddable()
        except UnsupportedExpression:
            return None
        return where


def _split_files(
    plan: ReadPlan, columns: StructType, *, native: bool
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The files of a plan, with `SPARK_PATH`, by the way they are read: by Spark alone, by Spark
    with their deletion vectors beside it, and by the Arrow engine.

    `columns`: those whose defaults Spark does not fill in where a file lacks them.
    `native`: whether Spark can read the table's files at all.
    """
    files, mode = plan.files, plan.configuration.column_mapping_mode
    paths = np.array(
        [
            spark_path(plan.store.resolve_uri(decode_path(file)))
            for file in files["path"].to_pylist()
        ],
        dtype=object,
    )
    vectors = _has_vector(files)
    by_arrow = np.ones(len(paths), bool)
    if native:
        lacking = may_lack(files, columns, mode).to_numpy(zero_copy_only=False)
        by_arrow = _find_misread(paths) | _without_bytes(paths) | lacking
        if "selection" in files.column_names:
            by_arrow |= pc.is_valid(files["selection"]).to_numpy()
    if _broadcast_bytes(files.filter(pa.array(vectors & ~by_arrow))) > MAX_BROADCAST_BYTES:
        by_arrow |= vectors
    files = files.append_column(SPARK_PATH, pa.array(paths, pa.string()))
    plain, with_vectors, rest = (
        files.filter(pa.array(mask))
        for mask in (~vectors & ~by_arrow, vectors & ~by_arrow, by_arrow)
    )
    return plain, with_vectors, rest


def _has_vector(files: pa.Table) -> NDArray[np.bool_]:
    vectors = files["deletion_vector"].combine_chunks()
    present = pc.and_(pc.is_valid(vectors), pc.is_valid(pc.struct_field(vectors, "storage_type")))
    flags: NDArray[np.bool_] = present.to_numpy(zero_copy_only=False).astype(bool)
    return flags


def _find_misread(paths: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Files whose name Spark misreads, and repeated files, which it would read twice."""
    seen: set[str] = set()
    flags = np.zeros(len(paths), bool)
    for index, path in enumerate(paths):
        flags[index] = path in seen or is_misread_by_spark(path)
        seen.add(path)
    return flags


def _without_bytes(paths: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Empty local files, as left by a machine that crashed before syncing them to disk.

    Spark would silently return no rows for them; the Arrow engine refuses them.
    """
    return np.array([path.startswith("file:") and _is_empty(path[5:]) for path in paths], bool)


def _is_empty(path: str) -> bool:
    try:
        # Tables have many files, and creating a `Path` costs as much as the lookup.
        return os.stat(path).st_size == 0  # noqa: PTH116
    except OSError:
        # Spark reports a missing file itself.
        return False


def _broadcast_bytes(files: pa.Table) -> int:
    """The most that the deletion vectors of files take when they are broadcast."""
    vectors = files["deletion_vector"].combine_chunks()
    deleted = pc.struct_field(vectors, "cardinality").to_pylist()
    num_rows = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    return sum(
        min(count, count if rows is None else -(-rows // CHUNK_ROWS)) * CHUNK_ROWS // 8
        for count, rows in zip(deleted, num_rows, strict=True)
    )
