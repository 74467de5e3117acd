"""A Delta table at a location: opening, creating, writing.

Spec: Delta Table Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.errors import (
    CommitConflict,
    ConstraintViolation,
    InvalidArgument,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table import operations
from dagster_delta.table.log.reader import has_log
from dagster_delta.table.maintenance_methods import MaintenanceMethods
from dagster_delta.table.schema_change_methods import SchemaChangeMethods
from dagster_delta.table.statement import Factory, Statement
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.table.read.change_data_feed import ChangeDataFeed


__all__ = ["CommitResult", "DeltaTable"]

_AUTO = "delta.autoOptimize"

_NOT_COMMITTED = (
    CommitConflict,
    ConstraintViolation,
    InvalidArgument,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
"""Errors of an append that is surely not in the log, and that another version may not raise."""


class DeltaTable(SchemaChangeMethods, MaintenanceMethods):
    """A handle on a Delta table and the latest version it has seen.

    Read calls use the version that was opened or last written by this handle; `refresh` moves to
    the latest. Every write starts from the latest version. An append of rows in memory is first
    tried on the version of this handle, and on the latest one only if that fails.

    Args:
        uri: path or URI of the table's root.
        version: version to open instead of the latest; such a handle is read-only.
        storage_options: credentials and settings of the storage.
        store: an opened store instead of `uri`'s own.
        must_exist: If False, the table need not exist yet: read calls then raise TableNotFound, and
            the first append or overwrite creates the table.
        allow_column_changes: If False, this handle refuses to start online column changes.

    Raises:
        TableNotFound: the table does not exist, and `must_exist` is true.
        VersionNotFound: there is no such version.
        InvalidTable: the log is damaged.
        UnsupportedFeature, CatalogRequired: the table cannot be read by this library.
    """

    create = Factory(lambda: operations.create.create)
    append = Statement(lambda: operations.append.append)
    overwrite = Statement(lambda: operations.overwrite.overwrite)
    delete = Statement(lambda: operations.delete.delete)
    update = Statement(lambda: operations.update.update)
    merge = Statement(lambda: operations.merge.merge)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):
                # A property raised AttributeError itself: that error is the one to show.
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"'DeltaTable' object has no attribute {name!r}; docs/migration.md lists the calls "
                "of other packages, and what to write instead",
                name=name,
                obj=self,
            )

    @classmethod
    def convert(
        cls,
        uri: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] | pa.Schema | StructType | None = None,
        properties: Mapping[str, object] | None = None,
        name: str | None = None,
        description: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
        commit_info: Mapping[str, object] | None = None,
    ) -> DeltaTable:
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
            UnsupportedFeature, ConditionalPutUnsupported, CommitStateUnknown: as for `create`.
        """
        table = cls(uri, storage_options=storage_options, store=store, must_exist=False)
        converted = operations.convert.convert_directory(
            table.store, partition_by, properties, name, description, commit_info, clock=now_ms
        )
        table._adopt(converted)
        return table

    @staticmethod
    def is_delta_table(
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
    ) -> bool:
        """Whether a table exists at the location. Does not check whether it can be read.

        Args:
            uri: path or URI of the table's root.
            storage_options: credentials and settings of the storage.
            store: an opened store instead of `uri`'s own.

        Raises:
            StorageFailure: the store refused or failed.
        """
        return has_log(store if store is not None else open_store(uri, storage_options))

    def changes(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        *,
        starting_timestamp: datetime | str | int | None = None,
        ending_timestamp: datetime | str | int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> ChangeDataFeed:
        """The row-level changes of a range of versions, both ends included.

        The table must have `delta.enableChangeDataFeed` at every version of the range.

        Args:
            starting_version: first version.
            ending_version: last version; by default, or if the table has no such version yet, the
                latest version that this handle knows. If the start is after that, the latest
                version of the table.
            starting_timestamp: instead: the first version committed at or after it, spelled as for
                `snapshot`.
            ending_timestamp: instead: the last version committed at or before it.
            columns: names of the columns to read, including those of the feed; all by default.
            where: Spark SQL over the columns of the table and of the feed.

        Raises:
            InvalidArgument: there is no start, or two starts or ends, or the end is before the
                start; a column is named twice, or the filter is not a boolean expression.
            VersionNotFound: nothing was committed since the start, or the end is outside the log.
            SchemaMismatch: a column, or a name in the filter, is not in the schema.
            TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
        """
        from dagster_delta.table.read.change_data_feed import ChangeDataFeed, find_range

        start, end = find_range(
            self._store,
            self._known(),
            starting_version=starting_version,
            ending_version=ending_version,
            starting_timestamp=starting_timestamp,
            ending_timestamp=ending_timestamp,
        )
        return ChangeDataFeed(end, start, columns, where)
