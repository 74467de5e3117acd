"""CONVERT: a directory of Parquet files becomes a table in place; no file is written or moved.

Spec: Add File and Remove File; Partition Value Serialization; Per-file Statistics.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from dagster_delta.clock import now_ms
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.foreign_footers import ForeignFooter, ForeignFooterReader
from dagster_delta.errors import (
    CommitConflict,
    InvalidArgument,
    InvalidTable,
    SchemaMismatch,
    TableAlreadyExists,
    UnsupportedFeature,
)
from dagster_delta.evolution.table_definition import TableDefinition, define_table
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
from dagster_delta.storage.object_store import ObjectMeta, ObjectStore, is_in_catalog
from dagster_delta.table.log.reader import has_log
from dagster_delta.table.programs import lines_about_properties
from dagster_delta.table.transaction.transaction import Transaction

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

_LOG = logging.getLogger(__name__)

_FOOTER_READERS = 32
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = (".parquet", ".parq")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_Table = TypeVar("_Table", bound="TableHandle")
PartitionBy: TypeAlias = "Sequence[str] | pa.Schema | StructType"


def convert(
    cls: type[_Table],
    /,
    uri: str | os.PathLike[str],
    *,
    partition_by: Sequence[str] | pa.Schema | StructType | None = None,
    properties: Mapping[str, object] | None = None,
    name: str | None = None,
    description: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    store: ObjectStore | None = None,
    commit_info: Mapping[str, object] | None = None,
) -> _Table:
    """Make a table of a directory of Parquet files, in place: only a log is written.

    Columns and statistics are read from the footers, several files at once. Partition columns
    are those of directories like `day=2026-01-01`, of type integer, long, date or string.

    Args:
        uri: path or URI of the directory.
        partition_by: names of the partition columns, in directory order, to be checked against
            the directories; or a schema of them, if their types are others.
        properties: table properties.
        name: shown by catalogs and tools.
        description: shown by catalogs and tools.
        storage_options: credentials and settings of the storage.
        store: an opened store instead of `uri`'s own.
        commit_info: recorded in the commitInfo beside this library's own fields.

    Raises:
        TableAlreadyExists: the directory already is a table.
        InvalidArgument: there is no Parquet file, or a file of another kind; directories are
            not those of the partition columns.
        SchemaMismatch: files have different types in one column, or a type that no Delta type
            holds.
        InvalidTable, StorageFailure: a file cannot be read.
        UnsupportedFeature: a catalog manages the table; or as for `create`.
        ConditionalPutUnsupported, CommitStateUnknown: as for `create`.
    """
    table = cls(uri, storage_options=storage_options, store=store, must_exist=False)
    opened = table.store
    if is_in_catalog(opened):
        raise UnsupportedFeature(
            "a catalog that manages a table says where its files are, so that a directory cannot "
            "become one: name its location when you ask the catalog for the new table, which is "
            "an external one then, or append the rows of the files to a managed table",
            table=table.uri,
        )
    files = _list_files(opened)
    partitions = _partition_fields(files, partition_by)
    names = [field.name for field in partitions]
    definition = TableDefinition(StructType(()), names, properties, name, description)

    def define(columns: StructType) -> TableConfiguration:
        schema = StructType((*_leave_out(columns, partitions), *partitions))
        configuration = define_table(
            msgspec.structs.replace(definition, schema=schema),
            table_id=str(uuid.uuid4()),
            created_time_ms=now_ms(),
            values=EMBEDDED_VALUES,
        )
        if configuration.column_mapping_mode != "none":
            raise InvalidArgument(
                "a directory is converted without column mapping, as its files have the names of "
                "the columns: leave the property out, and set it afterwards"
            )
        return configuration

    reader = ForeignFooterReader(opened, define)
    with ThreadPoolExecutor(_FOOTER_READERS, "delta-convert") as workers:
        footers = list(workers.map(lambda file: reader.read(file.meta.path), files))
    configuration = define(_unite_schemas(files, footers))
    transaction = Transaction(opened, None)
    transaction.stage_configuration(configuration)
    # They were not made for the commit, and stay if it fails.
    transaction.stage_readded(
        _make_add(file, footer, partitions) for file, footer in zip(files, footers, strict=True)
    )
    try:
        converted = transaction.commit(
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
        raise _already_exists(opened) from None
    table._adopt(converted)
    texts = {key: str(value) for key, value in (properties or {}).items()}
    if lines := lines_about_properties(converted.snapshot, texts):
        _LOG.warning("the new table %s:\n%s", opened.location.uri, "\n".join(lines))
    return table


class _File(msgspec.Struct, frozen=True):
    meta: ObjectMeta
    texts: Mapping[str, str | None]
    """Text of each partition value in the path, unescaped; None for null."""


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
        given.get(name) or _infer_field(name, [file.texts[name] for file in files])
        for name in wanted
    )


def _infer_field(name: str, texts: Sequence[str | None]) -> StructField:
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


def _leave_out(columns: StructType, partitions: Sequence[StructField]) -> list[StructField]:
    names = {fold_name(field.name) for field in partitions}
    return [field for field in columns if fold_name(field.name) not in names]


def _unite_schemas(files: Sequence[_File], footers: Sequence[ForeignFooter]) -> StructType:
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


def _make_add(file: _File, footer: ForeignFooter, partitions: Sequence[StructField]) -> AddFile:
    return AddFile(
        path=encode_path(file.meta.path),
        partition_values={field.name: _spell_canonically(file, field) for field in partitions},
        size_bytes=file.meta.size_bytes,
        modification_time_ms=file.meta.modified_ms,
        data_change=True,
        stats=footer.stats,
    )


def _spell_canonically(file: _File, field: StructField) -> str | None:
    try:
        return _spell_value(file.texts[field.name], field)
    except InvalidTable as error:
        raise InvalidArgument(
            f"{file.texts[field.name]!r} in the path is not a value of the partition column "
            f"{field.name} of type {field.data_type}: give another type in partition_by",
            file=file.meta.path,
            column=field.name,
        ) from error


@lru_cache(maxsize=1024)
def _spell_value(text: str | None, field: StructField) -> str | None:
    value = parse_partition_value(text, field.data_type, column=field.name)
    return serialize_partition_value(value, field.data_type, column=field.name)
