"""CONVERT: a directory of Parquet files becomes a table in place; no file is written or moved.

Spec: Add File and Remove File; Partition Value Serialization; Per-file Statistics.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from dagster_delta.clock import Clock
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.plans import WriteSpec
from dagster_delta.errors import (
    CommitConflict,
    InvalidArgument,
    InvalidTable,
    SchemaMismatch,
    TableAlreadyExists,
)
from dagster_delta.evolution.table_definition import TableDefinition, define_table
from dagster_delta.parquet.file_format import FileFormat, encode_rows
from dagster_delta.parquet.legacy_calendar import LegacyCalendar
from dagster_delta.parquet.nested_arrays import inner_fields, with_inner_fields
from dagster_delta.parquet.opened_file import naming_data_file, read_data_footer
from dagster_delta.parquet.statistics import FileStatistics
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.protocol.schema import PrimitiveType, StructField, StructType, fold_name
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.protocol.values.partition_values import (
    encode_path,
    parse_partition_value,
    serialize_partition_value,
)
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore
from dagster_delta.table.log.reader import has_log
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.parquet_format.footer import ParquetFooter

_FOOTER_READERS = 32
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = (".parquet", ".parq")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LAYOUTS = 8
"""Different layouts of files that are remembered."""
_INSTANT = pa.timestamp("us", "UTC")
_MOMENTS = ("DATE", "TIMESTAMP")

PartitionBy: TypeAlias = "Sequence[str] | pa.Schema | StructType"


@dataclass(frozen=True, slots=True)
class _File:
    meta: ObjectMeta
    texts: Mapping[str, str | None]
    """Text of each partition value in the path, unescaped; None for null."""


@dataclass(frozen=True, slots=True)
class _Footer:
    schema: StructType
    """Logical schema of the columns that the file has, all of them nullable."""
    stats: str
    """Statistics as JSON: number of rows, and bounds and null counts where the footer has them."""


def convert_directory(
    store: ObjectStore,
    partition_by: PartitionBy | None,
    properties: Mapping[str, object] | None,
    name: str | None,
    description: str | None,
    commit_info: Mapping[str, object] | None,
    *,
    clock: Clock,
) -> CommitResult:
    """Create a table over the Parquet files below the root of a store, as version 0.

    `partition_by` are the names of the partition columns, or a schema with their types too; None to
    infer both.
    """
    files = _list_files(store)
    partitions = _partition_fields(files, partition_by)
    names = [field.name for field in partitions]
    definition = TableDefinition(StructType(()), names, properties, name, description)

    def define(columns: StructType) -> TableConfiguration:
        schema = StructType((*_without(columns, partitions), *partitions))
        configuration = define_table(
            msgspec.structs.replace(definition, schema=schema),
            table_id=str(uuid.uuid4()),
            created_time_ms=clock(),
            values=EMBEDDED_VALUES,
        )
        if configuration.column_mapping_mode != "none":
            raise InvalidArgument(
                "a directory is converted without column mapping, as its files have the names of "
                "the columns: leave the property out, and set it afterwards"
            )
        return configuration

    reader = _FooterReader(store, define)
    with ThreadPoolExecutor(_FOOTER_READERS, "delta-convert") as workers:
        footers = list(workers.map(lambda file: reader.read(file.meta.path), files))
    configuration = define(_united(files, footers))
    transaction = Transaction(store, None, clock=clock)
    transaction.stage_configuration(configuration)
    # They were not made for the commit, and stay if it fails.
    transaction.stage_readded(
        _add(file, footer, partitions) for file, footer in zip(files, footers, strict=True)
    )
    try:
        return transaction.commit(
            "CONVERT",
            parameters={
                "numFiles": len(files),
                "partitionedBy": names,
                "collectStats": True,
                "sourceFormat": "parquet",
            },
            metrics={"numConvertedFiles": len(files)},
            user_info=commit_info,
        )
    except CommitConflict:
        raise _already_exists(store) from None


def _already_exists(store: ObjectStore) -> TableAlreadyExists:
    return TableAlreadyExists(
        "there is a Delta table here already, and only a directory of Parquet files is converted: "
        "open it",
        table=store.location.uri,
    )


def _list_files(store: ObjectStore) -> list[_File]:
    if has_log(store):
        raise _already_exists(store)
    found = sorted(store.list_recursive(), key=lambda meta: meta.path)
    below = next((meta.path for meta in found if f"/{LOG_DIRECTORY}/" in meta.path), None)
    if below is not None:
        raise InvalidArgument(
            "there is a Delta table below the directory, whose files alone do not say which rows "
            "live: move it away, or convert a directory without tables",
            table=store.location.uri,
            file=below,
        )
    files = [
        _File(meta, _partition_texts(meta.path)) for meta in found if not _is_hidden(meta.path)
    ]
    others = [file.meta.path for file in files if not file.meta.path.endswith(_SUFFIXES)]
    if others:
        raise InvalidArgument(
            f"{len(others)} files are not Parquet files by their name, and VACUUM of the table "
            "would delete them: move them away, or let their names begin with an underscore",
            table=store.location.uri,
            file=others[0],
        )
    if not files:
        raise InvalidArgument(
            "there is no Parquet file to convert: create the table instead",
            table=store.location.uri,
        )
    return files


def _is_hidden(path: str) -> bool:
    # A directory of a partition column may have such a name.
    *directories, name = path.split("/")
    return name[:1] in ("_", ".") or any(
        directory[:1] in ("_", ".") and "=" not in directory for directory in directories
    )


def _partition_texts(path: str) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    for directory in path.split("/")[:-1]:
        name, is_partition, text = directory.partition("=")
        if not is_partition:
            continue
        name = unquote(name)
        if name in texts:
            raise InvalidArgument(
                f"the path holds the partition column {name} twice: move the file to a directory "
                "with one value of it",
                file=path,
            )
        texts[name] = None if text == _HIVE_NULL else unquote(text)
    return texts


def _partition_fields(
    files: Sequence[_File], partition_by: PartitionBy | None
) -> tuple[StructField, ...]:
    """The partition columns in directory order, with the given types or those of their values."""
    found = list(files[0].texts)
    given: Mapping[str, StructField] = {}
    wanted = found
    if isinstance(partition_by, pa.Schema):
        partition_by = from_arrow_schema(partition_by)
    if isinstance(partition_by, StructType):
        given = {field.name: field for field in partition_by}
        wanted = list(given)
    elif partition_by is not None:
        wanted = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    for file in files:
        if list(file.texts) != wanted:
            raise InvalidArgument(
                f"the file is in directories of the partition columns {list(file.texts)}, and the "
                f"table has {wanted}: convert directories of one layout, or correct partition_by",
                file=file.meta.path,
            )
    return tuple(
        given.get(name) or _inferred(name, [file.texts[name] for file in files]) for name in wanted
    )


def _inferred(name: str, texts: Sequence[str | None]) -> StructField:
    known = {text for text in texts if text is not None}
    kind = "string"
    if known and all(_INTEGER.fullmatch(text) for text in known):
        kind = "integer" if all(-(2**31) <= int(text) < 2**31 for text in known) else "long"
    elif known and all(_DATE.fullmatch(text) for text in known) and _are_dates(known):
        kind = "date"
    return StructField(name=name, data_type=PrimitiveType(kind), nullable=True)


def _are_dates(texts: set[str]) -> bool:
    try:
        for text in texts:
            parse_partition_value(text, PrimitiveType("date"))
    except InvalidTable:
        return False
    return True


def _without(columns: StructType, partitions: Sequence[StructField]) -> list[StructField]:
    names = {fold_name(field.name) for field in partitions}
    return [field for field in columns if fold_name(field.name) not in names]


def _united(files: Sequence[_File], footers: Sequence[_Footer]) -> StructType:
    """The columns of all files, in the order in which they first occur."""
    fields: dict[str, tuple[StructField, str]] = {}
    seen: set[StructType] = set()
    for file, footer in zip(files, footers, strict=True):
        if footer.schema in seen:
            continue
        seen.add(footer.schema)
        for field in footer.schema:
            known, path = fields.setdefault(fold_name(field.name), (field, file.meta.path))
            if known.data_type != field.data_type or known.name != field.name:
                raise SchemaMismatch(
                    f"the column {field.name} is of type {field.data_type} in one file and "
                    f"{known.name} of type {known.data_type} in {path}: write one of them again "
                    "with the same name and type",
                    file=file.meta.path,
                    column=field.name,
                )
    return StructType(tuple(field for field, _ in fields.values()))


def _add(file: _File, footer: _Footer, partitions: Sequence[StructField]) -> AddFile:
    return AddFile(
        path=encode_path(file.meta.path),
        partition_values={field.name: _canonical(file, field) for field in partitions},
        size_bytes=file.meta.size_bytes,
        modification_time_ms=file.meta.modified_ms,
        data_change=True,
        stats=footer.stats,
    )


def _canonical(file: _File, field: StructField) -> str | None:
    try:
        return _spelled(file.texts[field.name], field)
    except InvalidTable as error:
        raise InvalidArgument(
            f"{file.texts[field.name]!r} in the path is no value of the partition column "
            f"{field.name} of type {field.data_type}: give another type in partition_by",
            file=file.meta.path,
            column=field.name,
        ) from error


@lru_cache(maxsize=1024)
def _spelled(text: str | None, field: StructField) -> str | None:
    value = parse_partition_value(text, field.data_type, column=field.name)
    return serialize_partition_value(value, field.data_type, column=field.name)


class _Layout(msgspec.Struct, frozen=True):
    """What files with the same columns have in common."""

    columns: pq.ParquetSchema
    arrow_schema: pa.Schema
    has_legacy_times: bool
    schema: StructType
    statistics: FileStatistics


class _FooterReader:
    """Reads footers of Parquet files; may be used by several threads.

    `define`: the configuration of a table with a schema, which says which columns are indexed.
    """

    def __init__(
        self, store: ObjectStore, define: Callable[[StructType], TableConfiguration]
    ) -> None:
        self._store, self._define = store, define
        self._layouts: deque[_Layout] = deque(maxlen=_LAYOUTS)

    def read(self, path: str) -> _Footer:
        """The columns and statistics of a file, by its decoded path."""
        with naming_data_file(self._store, path):
            with self._store.open_input(path) as source:
                footer = read_data_footer(source)
            layout = self._layout(footer)
            stats = layout.statistics.to_json(footer.metadata, footer.statistics)
        return _Footer(layout.schema, stats)

    def _layout(self, footer: ParquetFooter) -> _Layout:
        columns, found = footer.metadata.schema, footer.schema_arrow
        # Readers convert the days and times of such a file, and its bounds are not converted.
        has_legacy_times = LegacyCalendar.of(found.metadata) is not None
        for known in tuple(self._layouts):
            if (
                known.has_legacy_times == has_legacy_times
                and known.columns.equals(columns)
                and known.arrow_schema.equals(found)
            ):
                return known
        physical = iter([columns.column(i).physical_type for i in range(len(columns))])
        schema = from_arrow_schema(pa.schema([_nullable(field, physical) for field in found]))
        format_ = FileFormat.of(WriteSpec(self._store.location, self._define(schema)))
        _, model = encode_rows(format_.arrow_schema.empty_table(), format_)
        usable = {
            index: place
            for index, place in _usable(columns, model.schema).items()
            if not (has_legacy_times and columns.column(place).logical_type.type in _MOMENTS)
        }
        statistics = FileStatistics.of_foreign(format_.statistics, usable)
        layout = _Layout(columns, found, has_legacy_times, schema, statistics)
        self._layouts.appendleft(layout)
        return layout


def _usable(found: pq.ParquetSchema, model: pq.ParquetSchema) -> dict[int, int]:
    """The Parquet columns whose bounds are stored as the table's writer stores them: index in a
    file of that writer to index in the file, which may also hold partition columns, anywhere.
    """
    places = _places(found)
    return {
        index: places[path]
        for path, index in _places(model).items()
        if path in places and _storage(found.column(places[path])) == _storage(model.column(index))
    }


def _places(columns: pq.ParquetSchema) -> dict[str, int]:
    """Index by path; without a column `a.b` that has the path of a field `b` of `a`."""
    paths = [columns.column(index).path for index in range(len(columns))]
    counts = Counter(paths)
    return {path: index for index, path in enumerate(paths) if counts[path] == 1}


def _storage(column: pq.ColumnSchema) -> tuple[object, ...]:
    if column.logical_type.type == "DECIMAL":
        # Each of its physical types is compared as the number that it is.
        return (str(column.logical_type),)
    return column.physical_type, column.length, str(column.logical_type)


def _nullable(field: pa.Field, physical: Iterator[str]) -> pa.Field:
    """The field, its parts nullable, and INT96 as the instants that Spark writes them for."""
    return pa.field(field.name, _nullable_type(field.type, physical), True)


def _nullable_type(data_type: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    if not pa.types.is_nested(data_type):
        return _INSTANT if next(physical) == "INT96" else data_type
    fields = [_nullable(field, physical) for field in inner_fields(data_type)]
    return with_inner_fields(data_type, fields)
