"""The calls of a table handle that change rows: delete, update and merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.table.peer_names import renamed
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.write.transaction import AppTransaction, CommitResult

if TYPE_CHECKING:
    from dagster_delta.engines.statements.merge_clauses import ClauseText
    from dagster_delta.table.write.conflict_retries import OnConflict
    from dagster_delta.table.write.merge.builder import MergeBuilder
    from dagster_delta.table.write.merge.statement import MergeSchemaMode

__all__ = ["RowChangeMethods"]


_AUTO = "delta.autoOptimize"


class RowChangeMethods(TableHandle):
    """What changes rows of a table; part of `DeltaTable`."""

    def _settle(self, result: CommitResult, engine: str | None, data: object) -> CommitResult:
        """Move the handle to the version that a write made, or to the one that its small files are
        compacted in where the table asks for that.

        Args:
            result: of the write.
            engine: of the caller.
            data: that was written; None where there was none.
        """
        self._adopt(result)
        if any(key.startswith(_AUTO) for key in result.snapshot.metadata.configuration):
            from dagster_delta.engines import engine_for
            from dagster_delta.table.maintenance.auto_compaction import compact_after

            compacted = compact_after(result, engine=engine_for(data, engine), clock=now_ms)
            if compacted is not None and compacted.versions:
                self._snapshot = compacted.snapshot
                return replace(result, compacted_version=compacted.versions[-1])
        return result

    @renamed({"predicate": "where"})
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
        written again without them. Files that lose all rows are dropped.

        Args:
            where: Spark SQL; rows for which it is true are removed. None removes every row, by the
                log alone.
            engine: `arrow` or `spark`; by default Arrow, but Spark where it alone evaluates the SQL
                exactly and a session is active.
            idempotency: application id and version; a version that was committed before does
                nothing, and is recorded even where no row matches.
            commit_info: recorded in the commitInfo beside ours.
            on_conflict: after a conflict with another writer, `retry` plans the statement again on
                the newest version, up to 100 times within half an hour, or as
                `ConflictRetries(attempts=…, seconds=…)` says; `fail` raises the conflict.

        Raises:
            TableNotFound: there is no table.
            SchemaMismatch: the predicate names a column that is not there.
            InvalidArgument: the predicate is none, or fails on a value.
            UnsupportedExpression: the embedded engine cannot evaluate it exactly as Spark would,
                and there is no Spark session.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
                append-only.
            CommitConflict, CommitStateUnknown: the commit did not, or may not have, landed.
        """
        from dagster_delta.engines import change_engine
        from dagster_delta.table.write.app_transactions import ApplicationRecord
        from dagster_delta.table.write.conflict_retries import conflict_retries
        from dagster_delta.table.write.row_operations import delete_rows

        deleted = delete_rows(
            self._store,
            self._existing(),
            where,
            change_engine(engine),
            clock=now_ms,
            commit_info=commit_info,
            record=ApplicationRecord(idempotency),
            retries=conflict_retries(on_conflict),
        )
        return self._settle(deleted, engine, None)

    @renamed(
        {"updates": "set", "new_values": "set, whose values are Spark SQL", "predicate": "where"}
    )
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
            set: Spark SQL by column: `{"price": "price * 1.1"}`. All of it is computed from the row
                as it was and cast to the column's type; `a.b` is a field of a struct. Text needs
                quotes of its own: `{"state": "'open'"}`. `DEFAULT` is the column's default, or
                null.
            where: Spark SQL; rows for which it is true are changed. None changes every row.
            engine: as for `delete`.
            idempotency: as for `delete`.
            commit_info: recorded in the commitInfo beside ours.
            on_conflict: as for `delete`.

        Raises:
            InvalidCast: a new value does not fit the type of its column.
            ConstraintViolation: a new row breaks NOT NULL, an invariant or a CHECK.
            InvalidArgument: nothing is set, or a column twice; an expression fails on a value.
            TableNotFound, SchemaMismatch, UnsupportedExpression, UnsupportedFeature,
            ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for `delete`.
        """
        from dagster_delta.engines import change_engine
        from dagster_delta.table.write.app_transactions import ApplicationRecord
        from dagster_delta.table.write.conflict_retries import conflict_retries
        from dagster_delta.table.write.row_operations import update_rows

        updated = update_rows(
            self._store,
            self._existing(),
            set,
            where,
            change_engine(engine),
            clock=now_ms,
            commit_info=commit_info,
            record=ApplicationRecord(idempotency),
            retries=conflict_retries(on_conflict),
        )
        return self._settle(updated, engine, None)

    @renamed({"predicate": "on", "merge_schema": 'schema_mode="merge"'})
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
    ) -> MergeBuilder:
        """Merge a source into the table: add clauses, then call `execute`.

        Only files that may hold a match are read, by partition values and statistics, and of them
        only the columns of the conditions; rows that do not change are written again only where
        the table has no deletion vectors.

        Args:
            source: pyarrow Table, RecordBatchReader or Dataset, pandas or polars frame, Spark
                DataFrame.
            on: Spark SQL: when a row of the table and one of the source match, as in
                `"t.id = s.id"`. A null equals nothing, but `<=>` takes it for equal to itself.
            source_alias: what expressions call the source.
            target_alias: what expressions call the table.
            commit_info: recorded in the commitInfo beside ours.
            idempotency: application id and version; a version that was committed before is not
                merged again.
            check: Spark SQL over the table that every new row, inserted or updated, has to satisfy.
            progress: applications that the commit moves on, each only from where it stood; with
                any of them there is a commit even where no row changes.
            engine: `arrow` or `spark`; by default Spark for its own frames, and where it alone
                evaluates the SQL exactly and a session is active.
            schema_mode: `strict`: the table's columns and no others, those of the source that it
                lacks are left alone; `merge`: columns that are taken from the source, by name or
                all of them, are added to the table.
            on_conflict: as for `delete`; the source is read once.

        Raises:
            Nothing yet; see `MergeBuilder.execute`.
        """
        from dagster_delta.table.write.conflict_retries import conflict_retries
        from dagster_delta.table.write.merge.builder import MergeBuilder

        retries = conflict_retries(on_conflict)

        def execute(clauses: tuple[ClauseText, ...]) -> CommitResult:
            from dagster_delta.table.write.merge.operation import MergeStatement, merge_rows

            statement = MergeStatement(
                source,
                on,
                target_alias,
                source_alias,
                clauses,
                commit_info,
                idempotency,
                check,
                tuple(progress),
                engine,
                schema_mode,
                retries,
            )
            merged = merge_rows(self._store, self._existing(), statement, clock=now_ms)
            return self._settle(merged, engine, source)

        return MergeBuilder(execute)
