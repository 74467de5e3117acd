"""A schema change as one commit, with what it requires of existing files and rows: planned on the
latest version, and planned again after a conflict.

Spec: Change Metadata; Protocol Evolution; Row Tracking; Default Columns; Column Mapping.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.footers import count_file_rows, map_footers, num_steps_found
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution import actions
from dagster_delta.evolution.actions import SchemaAction
from dagster_delta.evolution.plan import ExistingRows, SchemaChangePlan, SchemaDraft
from dagster_delta.evolution.planning import plan_schema_changes
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.iceberg_compat import iceberg_compat_version
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, with_record_count
from dagster_delta.protocol.values.arrow_schema import from_arrow_type
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.rewrite_files import FileRewrite
from dagster_delta.table.operations.validate import RowValidation
from dagster_delta.table.transaction.file_actions import added_again
from dagster_delta.table.transaction.retries import (
    ConflictRetries,
    StatementOptions,
    run_with_retries,
)
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.protocol.features.column_change import OnError
    from dagster_delta.protocol.features.table_configuration import TableConfiguration
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle

EngineName = Literal["arrow", "spark"]
RETRIES = StatementOptions(on_conflict=ConflictRetries(attempts=20, seconds=math.inf))
"""How often a commit of a schema change is planned again after a conflict: it may rewrite files for
hours, and the next attempt reuses them."""


class AlterOptions(TypedDict, total=False):
    """Options of every call that changes a schema; `alter` describes them."""

    dry_run: bool
    enable_features: bool
    force: bool
    engine: EngineName | None
    commit_info: Mapping[str, object] | None
    on_progress: Callable[[int, int], None] | None


class _AllOptions(AlterOptions, total=False):
    existing_rows: ExistingRows


class SchemaChangeOptions(msgspec.Struct, frozen=True):
    """Options of a schema change."""

    existing_rows: ExistingRows = "rewrite"
    enable_features: bool = False
    force: bool = False
    engine: Literal["arrow", "spark"] | None = None
    dry_run: bool = False
    commit_info: Mapping[str, object] | None = None
    on_progress: Callable[[int, int], None] | None = None
    allow_column_changes: bool = True
    """Whether the caller's handle allows online column changes."""
    batch_bytes: int | None = None
    """Size of the data files that an online change rewrites in one commit; None: 1 GiB."""
    on_error: OnError = "abort"
    """What an online change does with a value that cannot be converted."""


class SchemaChangeResult(CommitResult, frozen=True, kw_only=True):
    """Result of a schema change; `skipped` if it was a dry run, or nothing changed."""

    plan: SchemaChangePlan
    """The plan that was carried out, or would be."""

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan as text for people: steps, their cost, new features and the schema diff."""
        return self.plan.to_markdown()


def change_table(
    table: TableHandle, action: SchemaAction, **given: Unpack[_AllOptions]
) -> SchemaChangeResult:
    """Change the latest version of a table by one action, and move the handle there."""
    options = SchemaChangeOptions(allow_column_changes=table._allow_column_changes, **given)
    result = change_schema(table._existing(), [action], options, clock=now_ms)
    table._adopt(result)
    return result


def change_schema(
    snapshot: Snapshot,
    wanted: Sequence[SchemaAction],
    options: SchemaChangeOptions,
    *,
    clock: Clock,
) -> SchemaChangeResult:
    """Change the schema as one commit, planned again after a conflict."""
    return SchemaChange(wanted, options, clock).run(snapshot)


class SchemaChange:
    """Actions that are one commit."""

    def __init__(
        self, wanted: Sequence[SchemaAction], options: SchemaChangeOptions, clock: Clock
    ) -> None:
        self._wanted, self._options, self._clock = wanted, options, clock
        self._engine = engine_for(None, options.engine)
        self._validation = RowValidation(self._engine)
        self._started = time.perf_counter()
        self._rewrite: FileRewrite
        self._files: pa.Table | None = None
        """`pa.Table` of the files that the plan rewrites."""
        self._planned: SchemaChangePlan
        """The plan of the latest attempt."""
        self._depends_on_files = False
        """Whether the plan is valid only for the present files."""

    def run(self, snapshot: Snapshot) -> SchemaChangeResult:
        """Plan and commit until there is no conflict."""
        store, on_progress = snapshot.store, self._options.on_progress
        with FileRewrite(self._engine, store, on_progress) as self._rewrite:
            done = run_with_retries(self._try_change, store, snapshot, RETRIES)
        return SchemaChangeResult(**msgspec.structs.asdict(done), plan=self._planned)

    def _try_change(self, snapshot: Snapshot) -> CommitResult:
        plan = self.plan(snapshot, snapshot.configuration, snapshot.domain_metadata())
        self._planned = plan
        if self._options.dry_run or not plan.changes_anything:
            return CommitResult(snapshot.version, {}, snapshot, skipped=True)
        return self._commit_plan(snapshot, plan)

    def plan(
        self,
        snapshot: Snapshot,
        configuration: TableConfiguration,
        domains: Mapping[str, DomainMetadata],
    ) -> SchemaChangePlan:
        """What the actions do under a configuration and its domains, to the files of a snapshot."""
        options = self._options
        draft = SchemaDraft(
            configuration,
            existing_rows=options.existing_rows,
            enable_features=options.enable_features,
            dry_run=options.dry_run,
            domains=domains,
            table_version=snapshot.version + 1,
            # Only defaults that are kept in the log need to know, and a large log is not counted.
            has_rows=options.existing_rows != "lazy" or snapshot.num_files > 0,
            moment=dt.datetime.fromtimestamp(self._clock() / 1000, dt.UTC),
            find_zone=lambda: self._engine.time_zone,
        )
        plan = plan_schema_changes(draft, self._wanted, EMBEDDED_VALUES)
        # A plan for a table without rows is wrong once the table has rows.
        self._depends_on_files = (
            any(
                isinstance(action, actions.AddColumn) and action.default is not None
                for action in self._wanted
            )
            and not snapshot.num_files
        )
        if plan.existing_defaults and configuration.column_mapping_mode == "none":
            check_unknown_to_files(snapshot, plan.after, tuple(plan.existing_defaults))
            self._depends_on_files = True
        if not plan.rewrites_data:
            return plan
        self._files = snapshot.live_files()
        return plan.with_files(self._files.num_rows, total_bytes(self._files))

    def _commit_plan(self, snapshot: Snapshot, plan: SchemaChangePlan) -> CommitResult:
        tracks = plan.after.row_tracking_enabled and not plan.before.row_tracking_enabled
        if plan.rewrites_data and tracks:
            raise InvalidArgument(
                "existing files cannot get row ids and the default of a new column in one commit; "
                "set delta.enableRowTracking in a statement of its own",
                table=snapshot.store.location.uri,
            )
        transaction = Transaction(snapshot.store, snapshot, clock=self._clock)
        stage_configuration_change(transaction, plan.after, force=self._options.force)
        transaction.stage_domain(*plan.domains.values())
        metrics: dict[str, int | str] = {}
        if plan.rewrites_data:
            self._rewrite.stage(transaction, snapshot, plan, self._files)
            metrics |= self._rewrite.metrics()
        elif plan.validates_rows:
            self._validation.run(snapshot, plan)
        # The preview of type widening records the version of the change.
        names_version = "tableVersion" in plan.after.metadata.schema_string
        if plan.rewrites_data or plan.validates_rows or self._depends_on_files or names_version:
            # Rows that concurrent commits add have not been checked.
            transaction.depend_on(ReadScope(whole_table=True))
        metrics["executionTimeMs"] = round((time.perf_counter() - self._started) * 1000)
        operations = {action.operation for action in self._wanted}
        of_action = self._wanted[0].parameters if len(self._wanted) == 1 else {}
        return transaction.commit(
            operations.pop() if len(operations) == 1 else "ALTER TABLE",
            parameters={"changes": [step.what for step in plan.steps], **of_action},
            metrics=metrics,
            user_info=self._options.commit_info,
            keeps_files=True,
        )


def check_unknown_to_files(
    snapshot: Snapshot, after: TableConfiguration, columns: Sequence[tuple[str, ...]]
) -> None:
    """Check that no file has a column with the name of a new one.

    Under column mapping this is impossible, because the column gets a new name in files. Without
    it, a file may have columns that were never in the schema. `after` is the configuration with
    them.
    """
    paths = snapshot.live_files(["path"])["path"].to_pylist()
    schema, mode = after.schema, after.column_mapping_mode

    def holds(found: pa.Schema) -> bool:
        return any(num_steps_found(found, schema, path, mode) == len(path) for path in columns)

    found = map_footers(snapshot.store, paths, holds)
    holding = [path for path, has in zip(paths, found, strict=True) if has]
    if holding:
        names = ", ".join(".".join(path) for path in columns)
        raise InvalidArgument(
            f"{len(holding)} data files have a column called {names} that the table does not know, "
            'and would show its values instead of the default; pass existing_rows="rewrite", or '
            "set delta.columnMapping.mode = name first",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=names,
            file=decode_path(holding[0]),
        )


def stage_configuration_change(
    transaction: Transaction, configuration: TableConfiguration, *, force: bool = False
) -> None:
    """Stage a configuration on an existing table, and the changes that its files need for it.

    Files get row ids if row tracking begins with it. The transaction then depends on every file.
    """
    snapshot = transaction.snapshot
    assert snapshot is not None  # noqa: S101  the configuration was planned on one
    old = snapshot.configuration
    transaction.stage_configuration(configuration, force=force)
    if iceberg_compat_version(configuration) not in (None, iceberg_compat_version(old)):
        _check_files_for_iceberg(snapshot, configuration)
        transaction.depend_on(ReadScope(whole_table=True))
    if configuration.row_tracking_enabled and not old.row_tracking_enabled:
        # A file that a concurrent commit adds would have no ids.
        transaction.depend_on(ReadScope(whole_table=True))
        transaction.stage_readded(_without_row_ids(snapshot))


def _without_row_ids(snapshot: Snapshot) -> list[AddFile]:
    """The files whose rows have no ids yet; adding them again gives them ids."""
    files = snapshot.live_files()
    lacking = pc.or_(
        pc.is_null(files["base_row_id"]), pc.is_null(files["default_row_commit_version"])
    )
    files = files.filter(lacking)
    counts = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    adds = []
    for add, count in zip(added_again(files, data_change=False), counts, strict=True):
        if count is None:
            counted = count_file_rows(snapshot.store, decode_path(add.path))
            stats = with_record_count(add.stats, counted)
            add = msgspec.structs.replace(add, stats=stats)
        adds.append(add)
    return adds


def _check_files_for_iceberg(snapshot: Snapshot, configuration: TableConfiguration) -> None:
    files = snapshot.live_files(["path", "deletion_vector", "stats"])
    version = iceberg_compat_version(configuration)
    what = f"delta.enableIcebergCompatV{version}"
    if not files.num_rows:
        return
    if files["deletion_vector"].null_count < files.num_rows:
        raise InvalidArgument(
            f"{what} allows no deletion vectors, and files of the table have some; "
            'drop_feature("deletionVectors") first',
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    if version == 2 or configuration.partition_columns:
        lacking = ["the ids of array elements and map entries"] if version == 2 else []
        lacking += ["their partition values"] if configuration.partition_columns else []
        raise InvalidArgument(
            f"{what} asks for files that hold {' and '.join(lacking)}, and those of the table do "
            "not; create a new table with the property and copy the rows",
            table=snapshot.store.location.uri,
            version=snapshot.version,
        )
    counts = parse_statistics_json(files["stats"], ())["num_records"]
    if counts.null_count:
        path = files["path"].filter(pc.is_null(counts))[0].as_py()
        raise InvalidArgument(
            f"{what} asks for the number of rows of every file, and {counts.null_count} files of "
            "the table do not have it; rewrite them",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            file=path,
        )


def parse_column_type(data_type: object) -> DataType:
    """The type for an argument of the caller."""
    if isinstance(data_type, str):
        from dagster_delta.evolution.type_spelling import parse_type

        return parse_type(data_type)
    if isinstance(data_type, DataType):
        return data_type
    if isinstance(data_type, pa.DataType):
        return from_arrow_type(data_type)
    raise InvalidArgument(
        f"{data_type!r} is not a type of a column; write SQL such as 'BIGINT', or pass an Arrow "
        "type"
    )
