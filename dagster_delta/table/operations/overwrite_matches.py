"""OVERWRITE of the rows that match new rows, by columns or by a condition over both.

Answers are those of delta-spark 4.4 for its options `replaceUsing` and `replaceOn`.

Spec: Add File and Remove File; Deletion Vectors; Add CDC File.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for, universal_engine
from dagster_delta.engines.data_input import without_made_up_types
from dagster_delta.engines.statements.merge_clauses import ClauseText
from dagster_delta.engines.statements.merge_plan import MergedRows, MergeSource
from dagster_delta.errors import SchemaMismatch, UnsupportedExpression
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.scratch import scratch_directory
from dagster_delta.table.operations.merge import stage_merge
from dagster_delta.table.operations.merge_statement import MergeStatement
from dagster_delta.table.operations.replaced_files import (
    removal_metrics,
    remove_partitions,
    stage_inserted_changes,
)
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.operations.write_rows import RowWrite, write_metrics
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.spelling import quote
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from collections.abc import Mapping


def overwrite_matches(
    store: ObjectStore, data: object, options: WriteOptions, snapshot: Snapshot | None
) -> CommitResult:
    """Replace the rows that match new rows, and add the new rows, as one commit.

    Without new rows, and without `txn` actions to record, there is no commit.
    """
    engine = engine_for(data, options.engine)
    with scratch_directory("overwrite-") as directory:
        known = StructType(()) if snapshot is None else snapshot.schema
        # Read once: the rows are compared with those of the table, and written.
        rows = without_made_up_types(data, known)
        source = engine.merge_source(rows, directory, store=store)
        write = RowWrite(store, source.rows(), options, now_ms)
        overwrite = _MatchingOverwrite(write, source, directory)
        return write.run(overwrite.attempt, snapshot)


class _MatchingOverwrite:
    def __init__(self, write: RowWrite, source: MergeSource, directory: str) -> None:
        self._write, self._source, self._directory = write, source, directory

    def attempt(self) -> CommitResult:
        """One attempt from top to bottom."""
        write, options = self._write, self._write.options
        snapshot = write.transaction.snapshot
        if snapshot is not None:
            _check_columns(options.replace_using or (), snapshot.schema, "the table")
        _check_columns(options.replace_using or (), write.data_schema, "the rows")
        configuration = write.stage_configuration()
        written = write.write_rows(configuration)
        if snapshot is not None and not written.num_rows and options.records_nothing:
            # As in the reference implementation, what changes nothing makes no version.
            return CommitResult(snapshot.version, write_metrics(written), snapshot, skipped=True)
        metrics = write_metrics(written)
        if snapshot is None:
            metrics |= removal_metrics(())
        elif (names := self._partition_names(snapshot)) is not None:
            removes = remove_partitions(write, snapshot, written.files, columns=names)
            metrics |= removal_metrics(removes)
        else:
            metrics |= self._delete_matches(configuration)
        return write.commit(configuration, self._parameters, metrics)

    @property
    def _parameters(self) -> Mapping[str, object]:
        options = self._write.options
        if options.replace_using is not None:
            # As the reference implementation spells it.
            columns = f"({', '.join(options.replace_using)})"
            return {"mode": "Overwrite", "replaceUsingCols": columns}
        return {"mode": "Overwrite", "replaceOnCond": options.replace_on}

    def _partition_names(self, snapshot: Snapshot) -> Sequence[str] | None:
        """The partition columns that alone decide what is replaced; None where rows are compared.

        A slice may be less than the partitions that it touches.
        """
        options = self._write.options
        if options.replace_using is None or options.within is not None:
            return None
        names = [snapshot.schema.field(name).name for name in options.replace_using]
        is_decided = set(names) <= set(snapshot.configuration.partition_columns)
        return names if is_decided else None

    def _delete_matches(self, configuration: TableConfiguration) -> dict[str, int | str]:
        """Stage that the rows leave which match a new one."""
        write = self._write
        written = write.written
        assert written is not None  # noqa: S101  the caller has written the rows
        merged, counts = self._stage_merge(configuration)
        num_change_files = len(merged.change_files)
        if num_change_files:
            num_change_files += stage_inserted_changes(write, configuration, written)
        return {
            "numRemovedFiles": counts["numRemovedFiles"],
            "numRemovedBytes": counts["numRemovedBytes"],
            "numDeletedRows": sum(merged.num_changed_rows.values()),
            "numCopiedRows": merged.num_copied_rows,
            "numAddedChangeFiles": num_change_files,
        }

    def _stage_merge(
        self, configuration: TableConfiguration
    ) -> tuple[MergedRows, Mapping[str, int]]:
        write, options = self._write, self._write.options
        using = (f"t.{name} = s.{name}" for name in map(quote, options.replace_using or ()))
        statement = MergeStatement(
            source=None,
            on=options.replace_on or " AND ".join(using),
            clauses=(ClauseText("matched", "delete"),),
            within=write.within,
        )
        engine, transaction = write.engine, write.transaction
        try:
            return stage_merge(transaction, statement, self._source, configuration, engine)
        except UnsupportedExpression:
            chosen = options.engine is not None or engine.casts_values
            able = None if chosen else universal_engine(write.store)
            if able is None:
                raise
            source = able.merge_source(self._source, self._directory, store=write.store)
            return stage_merge(transaction, statement, source, configuration, able)


def _check_columns(names: Sequence[str], schema: StructType, owner: str) -> None:
    for name in names:
        if schema.get(name) is None:
            raise SchemaMismatch(
                f"replace_using names {name!r}, which is not a column of {owner}: "
                f"{', '.join(schema.names)}",
                column=name,
            )
