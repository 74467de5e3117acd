"""Calls of a table handle that change its schema, its properties and its protocol: `alter` by SQL,
and one call for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import pyarrow as pa

from dagster_delta import evolution
from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_paths import to_path
from dagster_delta.protocol.features.column_change import Position
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULTS_FEATURE
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_schema import from_arrow_type
from dagster_delta.table import operations
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.evolution.column_change_request import ColumnChangeRequest
    from dagster_delta.evolution.plan import ColumnChangePlan, ExistingRows
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.table.operations.change_schema import SchemaChangeResult
    from dagster_delta.table.operations.column_change import (
        ColumnChangeJob,
        ColumnChangeProgress,
        ColumnChangeState,
    )

EngineName = Literal["arrow", "spark"]


class AlterOptions(TypedDict, total=False):
    """Options of every call; `SchemaChangeMethods.alter` describes them."""

    dry_run: bool
    enable_features: bool
    engine: EngineName | None
    commit_info: Mapping[str, object] | None
    on_progress: Callable[[int, int], None] | None


class SchemaChangeMethods(TableHandle):
    """Changes of the schema, properties and protocol of a table; part of `DeltaTable`.

    A column is named by its path: `a.b` is a field of a struct, `a.element` the element of an
    array, `a.key` and `a.value` those of a map; backticks quote names with special characters, and
    a list of names needs no quotes. Every call makes one commit, planned again after a conflict, or
    none if the table already has that state (`skipped` is true).
    """

    def alter(
        self,
        statement: str,
        *,
        dry_run: bool = False,
        enable_features: bool = False,
        existing_rows: ExistingRows = "rewrite",
        engine: EngineName | None = None,
        batch_bytes: int | None = None,
        on_error: OnError = "abort",
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> SchemaChangeResult:
        """Run an `ALTER TABLE` statement: as one commit, or as the online change of a column.

        It accepts the syntax of Spark, Delta, DuckDB, DuckLake, MySQL and TiDB; see
        `dagster_delta.evolution.statement`.

        `MODIFY`, `CHANGE` and `ALTER … TYPE` widen a type in the log alone. To any other atomic
        type, or with `USING`, they run the online change of `change_column`, if its switches are
        on. Its last commit includes everything that the statement says about the column: its name,
        NOT NULL, default, comment and position. Other actions are separate commits, before or after
        the change as in the statement. Everything is planned before the first commit. If an action
        fails, the actions before it remain committed, and the message names them; an online change
        that fails is rolled back.

        Args:
            statement: `ALTER TABLE t ADD COLUMN c INT DEFAULT 0`; `ALTER TABLE t` may be omitted,
                and the name is ignored.
            dry_run: True to plan the change and commit nothing: the result has the plan, which
                names the table features that it needs and what has to be enabled first.
            enable_features: whether column mapping (needed to drop and rename columns) and type
                widening may be enabled for the whole table; older clients then cannot read it.
            existing_rows: the value of existing rows in a new column with a default. `rewrite`: the
                default; their files are rewritten in this commit. `lazy`: the default, filled in by
                readers, and files are unchanged; it needs a reader feature of this library, so
                other clients refuse the table until `materialize_defaults`. With it, a field of a
                struct can also have a default, for existing rows only. `null`: null, as in Delta.
            engine: the engine that reads and writes existing rows, if needed: `arrow` (the default)
                or `spark`.
            batch_bytes: size of the data files that an online change rewrites in one commit; 1 GiB.
            on_error: whether a value that an online change cannot convert aborts the change, or
                becomes `null`.
            commit_info: recorded in the commitInfo beside this library's own fields.
            on_progress: called with the number of files rewritten so far, and of all to rewrite.

        Returns:
            Result of the last commit. The metrics of an online change are those of `change_column`.

        Raises:
            ColumnChangeFailed: values cannot be converted to the new type of a column.
            InvalidArgument: the statement does not parse (the message marks the place) or is
                invalid for this table.
            SchemaChangeRefused: something depends on a column, a type is not wider, or a feature
                would have to be enabled.
            SchemaMismatch: a column is not in the schema.
            ConstraintViolation, InvalidCast: existing rows do not allow it.
            UnsupportedExpression: only Spark evaluates an expression exactly.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            TableNotFound: the table does not exist.
            CommitConflict, CommitStateUnknown, StorageFailure: the commit failed, or may have
                failed.
        """
        return self._change_schema(
            statement,
            dry_run=dry_run,
            enable_features=enable_features,
            existing_rows=existing_rows,
            engine=engine,
            batch_bytes=batch_bytes,
            on_error=on_error,
            commit_info=commit_info,
            on_progress=on_progress,
        )

    def add_column(
        self,
        column: str | Sequence[str],
        data_type: str | DataType | pa.DataType,
        *,
        nullable: bool = True,
        default: str | None = None,
        comment: str | None = None,
        first: bool = False,
        after: str | None = None,
        if_not_exists: bool = False,
        existing_rows: ExistingRows = "rewrite",
        **options: Unpack[AlterOptions],
    ) -> SchemaChangeResult:
        """Add a column, or a field to a struct.

        Args:
            column: its path.
            data_type: SQL (`"DECIMAL(10,2)"`), a `DataType` of this library, or a pyarrow.DataType.
            nullable: False needs a default, or a table without rows.
            default: Spark SQL, for future rows and, depending on `existing_rows`, for existing
                rows. For a field of a struct: only for existing rows, with `existing_rows="lazy"`.
            comment: comment of the column.
            first: whether to place it first in its struct; by default it is last.
            after: name of the field to place it after.
            if_not_exists: whether a column of that name is no error.
            existing_rows: as for `alter`.
            **options: `dry_run`, `enable_features`, `engine`, `commit_info` and `on_progress`, as
                for `alter`.

        Raises:
            InvalidArgument, SchemaMismatch, and all that `alter` raises.
        """
        action = evolution.actions.AddColumn(
            to_path(column),
            _as_type(data_type),
            nullable=nullable,
            default=default,
            comment=comment,
            position=_position(first=first, after=after) if first or after else None,
            if_not_exists=if_not_exists,
        )
        return self._change_schema(action, existing_rows=existing_rows, **options)

    def materialize_defaults(
        self,
        *,
        truncate_history: bool = False,
        **options: Unpack[AlterOptions],
    ) -> SchemaChangeResult:
        """Write lazy defaults into the data files, after which other clients can read the table:
        the counterpart of `existing_rows="lazy"`.

        Files that already hold the columns are kept. The rewrite is one commit; further commits
        remove the feature `dagsterDelta.existingDefaults` from the protocol. A table without the
        feature is unchanged.

        Args:
            truncate_history: as for `drop_feature`.
            **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

        Raises:
            InvalidArgument: the log still holds versions that use the feature, and
            `truncate_history` is true. CommitConflict, and all that `alter` raises.
        """
        drop = evolution.actions.DropFeature(EXISTING_DEFAULTS_FEATURE, truncate_history)
        return self._change_schema(drop, **options)

    def drop_feature(
        self,
        name: str,
        truncate_history: bool = False,
        *,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Remove a table feature from the protocol, after removing all traces of it from the table.

        A writer feature is removed in one commit, together with its data: properties, row ids,
        column defaults, metadata domains. For a reader-writer feature, files are rewritten if the
        feature requires it (`deletionVectors`: those with vectors; `typeWidening`: those of old
        types; `columnMapping`, `variantShredding`: all; `dagsterDelta.existingDefaults`: those
        older than such a column), checkpoints are written before the drop, and the feature
        `checkpointProtection` keeps them: older versions stay readable for clients that know the
        feature.

        Args:
            name: name of the feature, as in `"deletionVectors"`.
            truncate_history: whether older versions are deleted instead, so that
                `checkpointProtection` is not needed. The log has to be cleaned first; if it is not,
                the table only stops using the feature, and the error says what to clean.
            commit_info: recorded in the commitInfo of the last commit beside this library's own
                fields.

        Raises:
            InvalidArgument: the table does not have the feature, another feature depends on it,
                something has to be removed first, or the log still holds versions that use it.
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`. After a conflict the call can be repeated.
        """
        drop = evolution.actions.DropFeature(name, truncate_history)
        return self._change_schema(drop, commit_info=commit_info)

    def drop_column(
        self,
        column: str | Sequence[str],
        *,
        if_exists: bool = False,
        **options: Unpack[AlterOptions],
    ) -> SchemaChangeResult:
        """Drop a column or struct field, as a metadata-only change.

        Args:
            column: its path.
            if_exists: whether a missing column is no error.
            **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

        Raises:
            SchemaChangeRefused: something depends on it, or the table has no column mapping.
            SchemaMismatch, and all that `alter` raises.
        """
        return self._change_schema(
            evolution.actions.DropColumn(to_path(column), if_exists), **options
        )

    def rename_column(
        self, column: str | Sequence[str], new_name: str, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Rename a column or struct field, as a metadata-only change.

        Args:
            column: its path.
            new_name: the name alone, without quotes.
            **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

        Raises:
            SchemaChangeRefused: an expression names it, or the table has no column mapping.
            InvalidArgument, SchemaMismatch, and all that `alter` raises.
        """
        return self._change_schema(
            evolution.actions.RenameColumn(to_path(column), new_name), **options
        )

    def widen_column(
        self,
        column: str | Sequence[str],
        data_type: str | DataType | pa.DataType,
        **options: Unpack[AlterOptions],
    ) -> SchemaChangeResult:
        """Widen the type of a column, field, array element, map key or map value, as a
        metadata-only change.

        Args:
            column: its path.
            data_type: as for `add_column`.
            **options: `dry_run`, `enable_features` and `commit_info`, as for `alter`.

        Raises:
            SchemaChangeRefused: the type is not wider, something depends on the old one, or the
                table does not have `delta.enableTypeWidening`.
            SchemaMismatch, and all that `alter` raises.
        """
        action = evolution.actions.ChangeType(to_path(column), _as_type(data_type))
        return self._change_schema(action, **options)

    def set_nullable(
        self, column: str | Sequence[str], nullable: bool = True, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Make a column nullable, or NOT NULL after validating existing rows.

        Args:
            column: its path; also of an array element or a map value, to make it nullable.
            nullable: False to set NOT NULL.
            **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

        Raises:
            ConstraintViolation: the column is null in an existing row.
            SchemaChangeRefused: the column is in an array or a map. SchemaMismatch, and all that
            `alter` raises.
        """
        action = evolution.actions.SetNullable(to_path(column), nullable)
        return self._change_schema(action, **options)

    def set_default(
        self, column: str | Sequence[str], default: str | None, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Set the default of a column for future rows; existing rows keep their values.

        Args:
            column: its path.
            default: Spark SQL without columns; None removes the default.
            **options: `dry_run` and `commit_info`, as for `alter`.

        Raises:
            SchemaChangeRefused: the column is a field of another column, or its values are
            generated. InvalidArgument, SchemaMismatch, and all that `alter` raises.
        """
        action = evolution.actions.SetDefault(to_path(column), default)
        return self._change_schema(action, **options)

    def set_comment(
        self, column: str | Sequence[str], comment: str | None, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Set or remove the comment of a column.

        Args:
            column: its path.
            comment: None removes the comment.
            **options: `dry_run` and `commit_info`, as for `alter`.

        Raises:
            SchemaMismatch, and all that `alter` raises.
        """
        return self._change_schema(
            evolution.actions.SetComment(to_path(column), comment), **options
        )

    def move_column(
        self,
        column: str | Sequence[str],
        *,
        first: bool = False,
        after: str | None = None,
        **options: Unpack[AlterOptions],
    ) -> SchemaChangeResult:
        """Move a column, or a struct field, to another position.

        Args:
            column: its path.
            first: True to put it first.
            after: name of the field to place it after; give exactly one of the two.
            **options: `dry_run` and `commit_info`, as for `alter`.

        Raises:
            InvalidArgument: both or neither are given.
            SchemaMismatch, and all that `alter` raises.
        """
        action = evolution.actions.MoveColumn(to_path(column), _position(first=first, after=after))
        return self._change_schema(action, **options)

    def add_constraint(
        self, name: str, check: str, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Add a CHECK constraint, after validating existing rows.

        Args:
            name: of the constraint; kept in lower case.
            check: Spark SQL; a row for which it is not true is rejected.
            **options: `dry_run`, `engine` and `commit_info`, as for `alter`.

        Raises:
            ConstraintViolation: an existing row breaks it; with a few such rows as examples.
            UnsupportedExpression: the embedded engine cannot evaluate it exactly.
            InvalidArgument, SchemaMismatch, and all that `alter` raises.
        """
        return self._change_schema(evolution.actions.AddConstraint(name, check), **options)

    def drop_constraint(
        self, name: str, *, if_exists: bool = False, **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Drop a CHECK constraint.

        Args:
            name: of the constraint.
            if_exists: whether a missing constraint is no error.
            **options: `dry_run` and `commit_info`, as for `alter`.

        Raises:
            InvalidArgument: no constraint has that name; and all that `alter` raises.
        """
        return self._change_schema(evolution.actions.DropConstraint(name, if_exists), **options)

    def cluster_by(
        self, *columns: str | Sequence[str], **options: Unpack[AlterOptions]
    ) -> SchemaChangeResult:
        """Change the clustering columns; existing files are unchanged until they are optimized.

        Args:
            *columns: their paths, at most four; none to end the clustering.
            **options: `dry_run` and `commit_info`, as for `alter`.

        Raises:
            SchemaChangeRefused: the table is partitioned, or a column has no statistics.
            InvalidArgument, SchemaMismatch, and all that `alter` raises.
        """
        return self._change_schema(
            evolution.actions.ClusterBy(tuple(map(to_path, columns))), **options
        )

    def plan_column_change(
        self,
        column: str | Sequence[str],
        new_type: str | DataType,
        *,
        cast: str | None = None,
        on_error: OnError = "abort",
        nullable: bool | None = None,
        position: str | None = None,
        enable_features: bool = False,
        batch_bytes: int | None = None,
    ) -> ColumnChangePlan:
        """The plan of `change_column` and its cost; nothing is written. It takes the same arguments
        and raises the same errors, but returns missing switches as `missing_switches` of the plan.
        """
        request = self._request(
            column, new_type, cast, on_error, nullable, position, enable_features
        )
        return operations.column_change.plan_for(
            self._existing(), request, batch_bytes=batch_bytes, dry_run=True
        )

    def change_column(
        self,
        column: str | Sequence[str],
        new_type: str | DataType,
        *,
        cast: str | None = None,
        on_error: OnError = "abort",
        nullable: bool | None = None,
        position: str | None = None,
        enable_features: bool = False,
        batch_bytes: int | None = None,
        engine: str | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[ColumnChangeProgress], None] | None = None,
    ) -> CommitResult:
        """Change a column to any atomic type online, while others read and write the table.

        Every data file is rewritten with both columns, batch by batch; one last commit replaces the
        old column by the new one. Before it, files that other writers added during the change are
        rewritten too. If the process ends in between, `resume_column_change` continues from the
        log.

        Args:
            column: path of the column, or of a struct field, `element` or `value` in it.
            new_type: as SQL spells it (`INT`, `DECIMAL(10,2)`, `DATE`), or a type of the schema.
            cast: Spark SQL over the row for the new value of a top-level column. It must be SQL
                that the embedded engine supports, because every writer computes the new column
                during the change. With `cast`, the type may stay the same. By default the value is
                converted as CAST does in a session in UTC.
            on_error: for a value that cannot be converted: `abort` cancels the change, which leaves
                the table unchanged; `null` stores a null.
            nullable: whether the changed column takes nulls; None keeps the present setting.
            position: `FIRST`, or the name of the column to place it after; None keeps the position.
            enable_features: whether to enable what the table lacks for this: the switch
                `dagsterDelta.enableColumnChange` and column mapping.
            batch_bytes: size of the data files that are rewritten in one commit; 1 GiB.
            engine: `arrow` in this process (the default), or `spark` on the executors of the active
                session.
            commit_info: recorded in every commit beside this library's own fields.
            on_progress: called for every commit.

        Returns:
            What the last commit did. Its metrics count the whole run: `numCopiedRows` rows
            converted, `numLateRows` of them in files that other writers added without the new
            column, `numNulledValues`, `numRemovedFiles` and `numRemovedBytes` of the files that
            were rewritten, `numAddedFiles` and `numAddedBytes` of those that replace them,
            `numBatches`, `numRetries` attempts to commit that lost to a concurrent commit, and
            `longestRetryMs`, the longest time from the first attempt at a commit to its success.

        Raises:
            ColumnChangeFailed: values cannot be converted, or rows break a constraint under the new
                type; the message counts them, with examples and their files. The change was
                cancelled.
            SchemaChangeRefused: something depends on the column in a way that the change cannot
                preserve, another change is in progress, or the table lacks what the change needs.
            SchemaMismatch, InvalidArgument: the arguments are invalid for this table.
            UnsupportedExpression: values cannot be converted exactly as Spark converts them.
            CommitConflict: others change the table faster than its files can be rewritten.
        """
        request = self._request(
            column, new_type, cast, on_error, nullable, position, enable_features
        )
        # This comes first, so that invalid arguments are refused before anything is committed.
        job = self._job(engine, batch_bytes, commit_info, on_progress)
        begun = operations.column_change.begin_column_change(
            self._existing(), request, clock=now_ms, commit_info=commit_info
        )
        return self._adopt(job.run(self._adopt(begun).snapshot))

    def column_change(self) -> ColumnChangeState | None:
        """The column change in progress at the latest version, or None.

        Raises:
            TableNotFound: the table does not exist yet.
            InvalidTable: the record of the change is damaged.
        """
        return operations.column_change.state_of(self._existing())

    def resume_column_change(
        self,
        *,
        batch_bytes: int | None = None,
        engine: str | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Callable[[ColumnChangeProgress], None] | None = None,
    ) -> CommitResult:
        """Continue the column change in progress until it is complete.

        Args:
            batch_bytes: as for `change_column`.
            engine: as for `change_column`.
            commit_info: as for `change_column`.
            on_progress: as for `change_column`.

        Returns:
            As for `change_column`; the metrics count what this run did.

        Raises:
            InvalidArgument: no change is in progress.
            ColumnChangeFailed, SchemaChangeRefused, CommitConflict: as for `change_column`.
        """
        job = self._job(engine, batch_bytes, commit_info, on_progress)
        return self._adopt(job.run(self._existing()))

    def cancel_column_change(
        self, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Cancel the column change in progress: the column stays unchanged.

        Converted values stay in the files, invisible to readers, until the files are rewritten.

        Raises:
            InvalidArgument: no change is in progress.
            ColumnChangeFailed: another process has ended it meanwhile.
            CommitConflict: others change the metadata faster than it can be cancelled.
        """
        return self._adopt(
            operations.column_change.cancel_column_change(
                self._existing(), clock=now_ms, commit_info=commit_info
            )
        )

    def set_properties(
        self,
        properties: Mapping[str, object],
        *,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Set table properties, together with the protocol changes they need, in one commit.

        If the new feature needs it, a legacy protocol is replaced by lists of features, with all
        that it implied. `delta.enableRowTracking` gives ids to existing rows,
        `delta.columnMapping.mode = name` gives ids to the columns, and
        `delta.enableInCommitTimestamps` records when the timestamps began. If the table already has
        these properties, there is no commit, and `skipped` is true.

        Args:
            properties: values by name, text, numbers or booleans; `delta.*` names are checked,
                others are the user's own. `delta.feature.<name> = supported` enables a feature.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound: the table does not exist.
            InvalidArgument: a name is unknown or not for users, a value is invalid, or the table
                cannot change from its present state to that one.
            UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written.
            CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
        """
        action = evolution.actions.SetProperties(properties)
        return self._change_schema(action, commit_info=commit_info)

    def unset_properties(
        self,
        names: Iterable[str],
        *,
        if_exists: bool = False,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Unset table properties; features that they needed stay in the protocol.

        Args:
            names: names of the properties.
            if_exists: whether a property that the table does not have is no error.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the table does not have a property, a property is not for users, or the
                table needs it.
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        action = evolution.actions.UnsetProperties(tuple(names), if_exists)
        return self._change_schema(action, commit_info=commit_info)

    def set_name(
        self, name: str | None, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Set the name of the table that catalogs and tools show; its location stays.

        Args:
            name: the new name; None for none.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        action = evolution.actions.SetTableText("name", name)
        return self._change_schema(action, commit_info=commit_info)

    def set_description(
        self, description: str | None, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Set the description of the table that catalogs and tools show.

        Args:
            description: the new description; None for none.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        action = evolution.actions.SetTableText("description", description)
        return self._change_schema(action, commit_info=commit_info)

    def enable_feature(
        self, name: str, *, commit_info: Mapping[str, object] | None = None
    ) -> CommitResult:
        """Add a table feature, and those it depends on, to the protocol.

        A feature with its own property (`delta.enableDeletionVectors`, …) is then supported but not
        yet in use: `set_properties` enables it.

        Args:
            name: name of the feature, as in `"domainMetadata"`.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the feature is unknown.
            UnsupportedFeature: this library does not write tables with it.
            TableNotFound, ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for
                `set_properties`.
        """
        return self.set_properties({f"delta.feature.{name}": "supported"}, commit_info=commit_info)

    def upgrade_protocol(
        self,
        *,
        min_reader_version: int = 1,
        min_writer_version: int = 1,
        commit_info: Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Upgrade the protocol versions; writer version 7 lists the features that the old version
        implied.

        Args:
            min_reader_version: minimum reader version; the table's own may be higher.
            min_writer_version: minimum writer version; the table's own may be higher.
            commit_info: recorded in the commitInfo beside this library's own fields.

        Raises:
            InvalidArgument: the pair of versions does not exist.
            TableNotFound, UnsupportedFeature, ConditionalPutUnsupported, CommitConflict,
            CommitStateUnknown: as for `set_properties`.
        """
        versions = {
            "delta.minReaderVersion": min_reader_version,
            "delta.minWriterVersion": min_writer_version,
        }
        return self.set_properties(versions, commit_info=commit_info)

    def _request(
        self,
        column: str | Sequence[str],
        new_type: str | DataType,
        cast: str | None,
        on_error: OnError,
        nullable: bool | None,
        position: str | None,
        enable_features: bool,
    ) -> ColumnChangeRequest:
        from dagster_delta.evolution.column_change_request import ColumnChangeRequest

        path, actions = to_path(column), evolution.actions
        also: list[evolution.actions.SchemaAction] = []
        if nullable is not None:
            also.append(actions.SetNullable(path, nullable))
        if position is not None:
            after = None if position.upper() == "FIRST" else position
            also.append(actions.MoveColumn(path, Position(after)))
        return ColumnChangeRequest(
            path,
            _as_type(new_type),
            cast,
            on_error,
            enable_features,
            self._allow_column_changes,
            tuple(also),
        )

    def _job(
        self,
        engine: str | None,
        batch_bytes: int | None,
        commit_info: Mapping[str, object] | None,
        on_progress: Callable[[ColumnChangeProgress], None] | None,
    ) -> ColumnChangeJob:
        return operations.column_change.ColumnChangeJob(
            engine_for(None, engine), now_ms, batch_bytes, commit_info, on_progress
        )

    def _change_schema(
        self,
        wanted: str | evolution.actions.SchemaAction,
        **given: Any,
    ) -> SchemaChangeResult:
        change, allowed = operations.change_schema, self._allow_column_changes
        options = change.SchemaChangeOptions(allow_column_changes=allowed, **given)
        if isinstance(wanted, str):
            result = operations.alter.alter_table(self._existing(), wanted, options, clock=now_ms)
        elif isinstance(wanted, evolution.actions.DropFeature):
            result = operations.drop_feature.drop_table_feature(
                self._existing(), wanted, options, clock=now_ms
            )
        else:
            result = change.change_schema(self._existing(), [wanted], options, clock=now_ms)
        self._adopt(result)
        return result


def _position(*, first: bool, after: str | None) -> Position:
    if first == (after is not None):
        raise InvalidArgument(
            "a column is placed first or after another: pass first=True or after=…"
        )
    return Position(after)


def _as_type(data_type: object) -> DataType:
    """The type for an argument of the caller."""
    if isinstance(data_type, str):
        from dagster_delta.evolution.type_spelling import parse_type

        return parse_type(data_type)
    if isinstance(data_type, DataType):
        return data_type
    if isinstance(data_type, pa.DataType):
        return from_arrow_type(data_type)
    raise InvalidArgument(
        f"{data_type!r} is no type of a column; write SQL such as 'BIGINT', or pass an Arrow type"
    )
