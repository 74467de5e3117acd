"""Calls of a table handle that change rows: delete, update and merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dagster_delta.clock import now_ms
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import AppTransaction, CommitResult

if TYPE_CHECKING:
    from dagster_delta.evolution.table_definition import TableDefinition
    from dagster_delta.table.operations.merge import MergeBuilder, MergeSchemaMode
    from dagster_delta.table.transaction.retries import OnConflict

_AUTO = "delta.autoOptimize"


class RowChangeMethods(TableHandle):
    """Changes of the rows of a table; part of `DeltaTable`."""

    def _settle(self, result: CommitResult, engine: str | None, data: object) -> CommitResult:
        """Move the handle to the version of a write, or to the version of the auto compaction after
        it if the table has that property.

        Args:
            result: result of the write.
            engine: engine that the caller chose.
            data: the data that was written, or None.
        """
        self._adopt(result)
        if any(key.startswith(_AUTO) for key in result.snapshot.metadata.configuration):
            from dagster_delta.engines import engine_for
            from dagster_delta.table.operations.auto_compaction import compact_after

            compacted = compact_after(result, engine=engine_for(data, engine), clock=now_ms)
            if compacted is not None and compacted.versions:
                self._snapshot = compacted.snapshot
                return replace(result, compacted_version=compacted.versions[-1])
        return result

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
        from dagster_delta.table.operations.delete import delete_rows
        from dagster_delta.table.operations.row_changes import ChangeOptions

        options = ChangeOptions(engine, idempotency, commit_info, on_conflict)
        deleted = delete_rows(self._existing(), where, options, clock=now_ms)
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
        from dagster_delta.table.operations.row_changes import ChangeOptions
        from dagster_delta.table.operations.update import update_rows

        options = ChangeOptions(engine, idempotency, commit_info, on_conflict)
        updated = update_rows(self._existing(), set, where, options, clock=now_ms)
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
        from dagster_delta.table.operations.merge import MergeBuilder, MergeStatement, merge_rows
        from dagster_delta.table.transaction.retries import conflict_retries

        conflict_retries(on_conflict)  # raises for an invalid one
        statement = MergeStatement(
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

        def run(statement: MergeStatement) -> CommitResult:
            base = self._existing() if creates is None else self._latest()
            merged = merge_rows(self._store, base, statement, clock=now_ms)
            return self._settle(merged, engine, source)

        return MergeBuilder(statement, run)
