"""A Delta table at a location: opening, creating, writing.

Spec: Delta Table Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.data_input import is_in_memory
from dagster_delta.errors import (
    CommitConflict,
    ConstraintViolation,
    InvalidArgument,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table import operations
from dagster_delta.table.log.reader import has_log
from dagster_delta.table.maintenance_methods import MaintenanceMethods
from dagster_delta.table.schema_change_methods import SchemaChangeMethods
from dagster_delta.table.transaction.commit_result import AppTransaction, CommitResult
from dagster_delta.table.transaction.retries import StatementOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_delta.evolution.column_definition import Column
    from dagster_delta.evolution.table_definition import TableDefinition
    from dagster_delta.table.operations.create import CreateMode
    from dagster_delta.table.operations.merge import MergeBuilder, MergeSchemaMode
    from dagster_delta.table.operations.write_planning import SchemaMode
    from dagster_delta.table.read.change_data_feed import ChangeDataFeed
    from dagster_delta.table.transaction.retries import OnConflict


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
    def create(
        cls,
        uri: str | os.PathLike[str],
        schema: StructType | pa.Schema | Sequence[Column | StructField],
        *,
        partition_by: Sequence[str] | None = None,
        cluster_by: Sequence[str] | None = None,
        properties: Mapping[str, object] | None = None,
        name: str | None = None,
        description: str | None = None,
        mode: CreateMode = "error",
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
        allow_column_changes: bool = True,
    ) -> DeltaTable:
        """Create an empty table with the lowest protocol that its schema and properties need.

        Args:
            uri: path or URI of the table's root.
            schema: logical schema, partition columns included: a `StructType`, a
                `pyarrow.Schema`, or a list of `Column`s, which may have defaults, generation
                expressions or identity values.
            partition_by: partition columns, in directory order.
            cluster_by: columns that OPTIMIZE clusters rows by; not with partition columns.
            properties: table properties; `delta.*` names are checked.
            name: shown by catalogs and tools.
            description: shown by catalogs and tools.
            mode: what to do if a table exists: `error`, `ignore` (open it), or `replace` (a new
                version without rows; older versions stay readable).
            storage_options: credentials and settings of the storage.
            store: an opened store instead of `uri`'s own.
            allow_column_changes: as for the constructor.

        Raises:
            TableAlreadyExists: a table exists, and the mode is `error`.
            InvalidArgument: a column, a property or the mode is invalid.
            UnsupportedFeature: the table would need a feature that this library does not write.
            CommitConflict: a concurrent commit changed the table that is replaced.
        """
        table = cls(
            uri,
            storage_options=storage_options,
            store=store,
            must_exist=False,
            allow_column_changes=allow_column_changes,
        )
        definition = operations.create.definition_of(
            schema, partition_by, properties, name, description, cluster_by
        )
        table._snapshot = operations.create.create_table(
            table.store, table._snapshot, definition, mode
        )
        return table

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

    def append(
        self,
        data: object,
        *,
        schema_mode: SchemaMode = "strict",
        partition_by: Sequence[str] | None = None,
        idempotency: tuple[str, int] | None = None,
        commit_info: Mapping[str, object] | None = None,
        engine: str | None = None,
        check: str | None = None,
        properties: Mapping[str, object] | None = None,
        progress: Sequence[AppTransaction] = (),
        description: str | None = None,
        sort_by: Sequence[str] = (),
        cluster_by: Sequence[str] | None = None,
        absent: str | None = None,
    ) -> CommitResult:
        """Append rows as one commit, creating the table if it does not exist.

        Args:
            data: pyarrow Table, RecordBatchReader or Dataset, pandas or polars frame, Spark
                DataFrame.
            schema_mode: `strict`: the table's columns and no others, and no values that an integer,
                decimal or date column would store without a part, while the other modes cast as
                Spark does: 1.5 to 1. `widen`: columns take the wider types of the data (an integer
                never becomes a decimal or a double) if the table has `delta.enableTypeWidening`;
                `merge`: new columns are added as well, and types are widened if the table has
                that property.
            partition_by: partition columns of a new table.
            idempotency: application id and version; a version that was already committed is not
                written again.
            commit_info: recorded in the commitInfo beside this library's own fields.
            engine: `arrow` or `spark`; chosen by the data by default.
            check: Spark SQL that every row has to satisfy.
            properties: table properties of a new table.
            progress: `txn` actions to record with this commit, each only if the application's
                version in the table is the expected one.
            description: description of a new table; shown by catalogs and tools.
            sort_by: columns that the rows of each file are sorted by, nulls last.
            cluster_by: clustering columns of a new table; see `create`.
            absent: Spark SQL that no row of the table may satisfy before this commit. An append
                without it that commits meanwhile counts as later, unless `delta.isolationLevel` is
                `Serializable`.

        Raises:
            SchemaMismatch, InvalidCast: the rows do not fit the table.
            ConstraintViolation: a row breaks NOT NULL, an invariant or a CHECK.
            PartitionMismatch: a row does not satisfy `check`.
            TableAlreadyExists: the table has rows that satisfy `absent`.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
            InvalidArgument: the arguments contradict each other, or the table that another writer
                has created.
        """
        options = operations.write_planning.WriteOptions(
            schema_mode=schema_mode,
            partition_by=partition_by,
            idempotency=idempotency,
            commit_info=commit_info,
            engine=engine,
            check=check,
            properties=properties,
            progress=progress,
            description=description,
            sort_by=sort_by,
            cluster_by=cluster_by,
            absent=absent,
        )
        append, write = operations.row_write.append_rows, operations.row_write.RowWrite
        recent = self._recent()
        if recent is not None and is_in_memory(data):
            try:
                appended = append(write(self._store, data, options, now_ms), recent)
            except _NOT_COMMITTED:
                if self._latest() is recent:
                    raise
            else:
                return self._settle(appended, engine, data)
        appended = append(write(self._store, data, options, now_ms), self._latest())
        return self._settle(appended, engine, data)

    def overwrite(
        self,
        data: object,
        *,
        where: str | None = None,
        schema_mode: SchemaMode = "strict",
        partition_by: Sequence[str] | None = None,
        idempotency: tuple[str, int] | None = None,
        commit_info: Mapping[str, object] | None = None,
        engine: str | None = None,
        properties: Mapping[str, object] | None = None,
        progress: Sequence[AppTransaction] = (),
        description: str | None = None,
        sort_by: Sequence[str] = (),
        cluster_by: Sequence[str] | None = None,
        on_conflict: OnConflict = "retry",
    ) -> CommitResult:
        """Replace rows as one commit, creating the table if it does not exist.

        Args:
            data: as for `append`.
            where: None replaces every row; Spark SQL replaces the rows that satisfy it, and every
                new row must satisfy it; `dynamic` replaces the partitions of the new rows.
            schema_mode: as for `append`; `overwrite` gives the table the schema of the data, and
                needs `where` to be None.
            partition_by: partition columns of a new table, or of a new schema.
            idempotency: as for `append`.
            commit_info: as for `append`.
            engine: as for `append`.
            properties: table properties of a new table.
            progress: as for `append`.
            description: as for `append`.
            sort_by: as for `append`.
            cluster_by: as for `append`.
            on_conflict: as for `delete`. After a concurrent commit that changed the schema or the
                properties, rows in memory and Spark frames are written again; rows that can be
                read once cannot, which is the conflict.

        Raises:
            PartitionMismatch: a new row does not satisfy `where`.
            SchemaMismatch, InvalidCast, ConstraintViolation, UnsupportedFeature,
            ConditionalPutUnsupported, CommitConflict, CommitStateUnknown, InvalidArgument: as for
                `append`; an append-only table is refused as an UnsupportedFeature.
        """
        options = operations.write_planning.WriteOptions(
            where=where,
            schema_mode=schema_mode,
            partition_by=partition_by,
            idempotency=idempotency,
            commit_info=commit_info,
            engine=engine,
            properties=properties,
            progress=progress,
            description=description,
            sort_by=sort_by,
            cluster_by=cluster_by,
            on_conflict=on_conflict,
        )
        write = operations.row_write.RowWrite(self._store, data, options, now_ms)
        written = operations.overwrite.overwrite_rows(write, self._latest())
        return self._settle(written, engine, data)

    def delete(
        self,
        where: str | None = None,
        *,
        engine: str | None = None,
        idempotency: tuple[str, int] | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_conflict: OnConflict = "retry",
    ) -> CommitResult:
        """Delete rows as one commit. If no row matches, nothing is committed and `skipped` is true.

        Only the columns of the predicate are read, in files that may hold a match. With deletion
        vectors (`delta.enableDeletionVectors`) no row is written; else the files with matches are
        rewritten without them. Files that lose all rows are removed.

        Args:
            where: Spark SQL; rows that satisfy it are deleted. None deletes every row, through the
                log alone.
            engine: `arrow` or `spark`; by default Arrow, or Spark if only Spark evaluates the SQL
                exactly and a session is active.
            idempotency: application id and version; a version that was already committed does
                nothing; the version is recorded even if no row matches.
            commit_info: recorded in the commitInfo beside this library's own fields.
            on_conflict: after a conflict with a concurrent commit, `retry` plans the statement
                again on the newest version, up to 100 times within half an hour, or as
                `ConflictRetries(attempts=…, seconds=…)` says; `fail` raises the conflict.

        Raises:
            TableNotFound: the table does not exist.
            SchemaMismatch: the predicate names a column that is not in the schema.
            InvalidArgument: the predicate is not a boolean expression, or fails on a value.
            UnsupportedExpression: the embedded engine cannot evaluate it exactly as Spark would,
                and there is no Spark session.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
                append-only.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        """
        options = StatementOptions(
            engine=engine,
            idempotency=idempotency,
            commit_info=commit_info,
            on_conflict=on_conflict,
        )
        deleted = operations.row_statements.delete_rows(
            self._existing(), where, options, clock=now_ms
        )
        return self._settle(deleted, engine, None)

    def update(
        self,
        set: Mapping[str, str],  # noqa: A002  as SQL calls it
        where: str | None = None,
        *,
        engine: str | None = None,
        idempotency: tuple[str, int] | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_conflict: OnConflict = "retry",
    ) -> CommitResult:
        """Update rows as one commit. If no row matches, nothing is committed and `skipped` is true.

        Args:
            set: Spark SQL by column: `{"price": "price * 1.1"}`. All expressions are computed from
                the old row and cast to the column's type; `a.b` is a field of a struct. Text needs
                its own quotes: `{"state": "'open'"}`. `DEFAULT` is the column's default, or null.
            where: Spark SQL; rows that satisfy it are changed. None changes every row.
            engine: as for `delete`.
            idempotency: as for `delete`.
            commit_info: recorded in the commitInfo beside this library's own fields.
            on_conflict: as for `delete`.

        Raises:
            InvalidCast: a new value does not fit the type of its column.
            ConstraintViolation: a new row breaks NOT NULL, an invariant or a CHECK.
            InvalidArgument: nothing is set, or a column is set twice; an expression fails on a
                value.
            TableNotFound, SchemaMismatch, UnsupportedExpression, UnsupportedFeature,
            ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for `delete`.
        """
        options = StatementOptions(
            engine=engine,
            idempotency=idempotency,
            commit_info=commit_info,
            on_conflict=on_conflict,
        )
        updated = operations.row_statements.update_rows(
            self._existing(), set, where, options, clock=now_ms
        )
        return self._settle(updated, engine, None)

    def merge(
        self,
        source: object,
        on: str,
        *,
        source_alias: str = "s",
        target_alias: str = "t",
        commit_info: Mapping[str, object] | None = None,
        idempotency: tuple[str, int] | None = None,
        check: str | None = None,
        progress: Sequence[AppTransaction] = (),
        engine: str | None = None,
        schema_mode: MergeSchemaMode = "strict",
        on_conflict: OnConflict = "retry",
        memory_limit: int | str | None = None,
        creates: TableDefinition | None = None,
    ) -> MergeBuilder:
        """Merge a source into the table: add clauses, then call `execute`.

        Only files that may hold a match are read, by partition values and statistics, and of them
        only the columns of the conditions; unchanged rows are rewritten only if the table has no
        deletion vectors.

        Args:
            source: pyarrow Table, RecordBatchReader or Dataset, pandas or polars frame, Spark
                DataFrame.
            on: Spark SQL condition for a row of the table and a row of the source to match, as in
                `"t.id = s.id"`. With `=` a null equals nothing; with `<=>` null equals null.
            source_alias: name of the source in expressions.
            target_alias: name of the table in expressions.
            commit_info: recorded in the commitInfo beside this library's own fields.
            idempotency: application id and version; a version that was already committed is not
                merged again.
            check: Spark SQL over the table that every inserted or updated row must satisfy.
            progress: `txn` actions to record with this commit, each only if the application's
                version in the table is the expected one; with any of them there is a commit even if
                no row changes.
            engine: `arrow` or `spark`; by default Spark for its own frames, or if only Spark
                evaluates the SQL exactly and a session is active.
            schema_mode: `strict`: only the table's columns, other columns of the source are
                ignored; `merge`: columns that clauses take from the source, by name or all of them,
                are added to the table.
            on_conflict: as for `delete`; the source is read once.
            memory_limit: as for `optimize`: a larger source, and a larger join, go to temporary
                files. The embedded engine keeps 24 bytes per row that changes besides.
            creates: the table that the same commit creates if there is none; its columns are those
                of the source.

        Raises:
            InvalidArgument: an option is invalid; `MergeBuilder.execute` raises other errors.
        """
        statement = operations.merge.MergeStatement(
            source,
            on,
            target_alias,
            source_alias,
            commit_info=commit_info,
            idempotency=idempotency,
            check=check,
            progress=tuple(progress),
            engine=engine,
            schema_mode=schema_mode,
            on_conflict=on_conflict,
            memory_limit=memory_limit,
            creates=creates,
        )

        def run(statement: operations.merge.MergeStatement) -> CommitResult:
            base = self._existing() if creates is None else self._latest()
            merged = operations.merge.merge_rows(self._store, base, statement, clock=now_ms)
            return self._settle(merged, engine, source)

        return operations.merge.MergeBuilder(statement, run)

    def _settle(self, result: CommitResult, engine: str | None, data: object) -> CommitResult:
        """Move the handle to the version of a write, or to the version of the auto compaction after
        it if the table has that property.
        """
        self._adopt(result)
        if any(key.startswith(_AUTO) for key in result.snapshot.metadata.configuration):
            compacted = operations.optimize.compact_after(
                result, engine=engine_for(data, engine), clock=now_ms
            )
            if compacted is not None and compacted.versions:
                self._snapshot = compacted.snapshot
                return replace(result, compacted_version=compacted.versions[-1])
        return result
