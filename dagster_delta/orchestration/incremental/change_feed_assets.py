"""Incremental assets: functions that receive each change of another Delta table once.

What happens when:
- the first run reads every row, and creates its table from them; so does a run launched with
  `full_refresh`, and a run whose changes can no longer be read: the upstream log was cleaned up or
  restored, files with changes were vacuumed, the change data feed was off for some time, or the
  upstream table was replaced by another. The reason is in the metadata of the run;
- any other run reads the changes since the last one, and applies them and its new position in one
  commit: a crashed, repeated or concurrent run applies nothing twice;
- if no row has changed, the function is not called.

New columns of the upstream table follow the `schema_mode` of the asset. If a column was renamed
upstream (detected by its id) and has its old name in the table of the asset, the run reads every
row; so it does in mode `merge` if a column was added with a default, as older rows may have it,
which no change tells, or was dropped and added again. With the schema_mode `overwrite`, a dropped
column, or a wider type that this table cannot adopt, has the same effect. With other modes such
columns do not change, and the run reports them. To avoid the full refresh, rename or add the column
in the table of the asset too, before the next run.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
import msgspec
from msgspec.structs import replace
from pydantic import Field

from dagster_delta.engines import engine_for, is_spark_frame
from dagster_delta.errors import (
    ConcurrentTransaction,
    DataFileMissing,
    InvalidArgument,
    SchemaMismatch,
)
from dagster_delta.orchestration.incremental.consumption import (
    Consumer,
    Consumption,
    OnGap,
    plan_consumption,
)
from dagster_delta.orchestration.incremental.upstream_changes import (
    ACTION_COLUMN,
    DELETE,
    UPSERT,
    UpstreamChanges,
    last_events,
    last_events_of_frame,
    net_changes,
    net_changes_of_frame,
    remaining_events,
    remaining_events_of_frame,
)
from dagster_delta.orchestration.io.asset_options import (
    AssetOptions,
    asset_key_of,
    check_choice,
    check_keys,
    names_of,
)
from dagster_delta.orchestration.io.asset_writer import (
    AssetValue,
    AssetWrite,
    WrittenAsset,
    write_asset,
)
from dagster_delta.orchestration.io.io_manager import DeltaIOManager, delta_io_manager
from dagster_delta.orchestration.io.merge_config import (
    MergeConfig,
    MergeOperationsConfig,
    MergeType,
    OperationAllConfig,
    OperationConfig,
    change_events_config,
    match_on,
)
from dagster_delta.orchestration.io.output_metadata import INPUT_PREFIX
from dagster_delta.orchestration.io.run_facts import current_execution
from dagster_delta.orchestration.io.type_handlers import (
    OPENED_ONLY,
    SCAN_INPUT,
    TABLE_TYPES,
    TableInput,
    TypeHandler,
    annotation_of,
    type_handler_of,
)
from dagster_delta.orchestration.known_fields import KnownFieldsOnly, checked_arguments
from dagster_delta.orchestration.metadata_keys import RawMetadata
from dagster_delta.orchestration.partitions.partitions import partition_selector
from dagster_delta.orchestration.storage_options import GivenStorage, plain_options
from dagster_delta.protocol.schema import fold_name
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations.expectations import Expectation
from dagster_delta.table.operations.write_planning import columns_narrower_than
from dagster_delta.table.read.branch_tables import branch_of
from dagster_delta.table.read.change_data_feed import (
    CHANGE_COLUMNS,
    CHANGE_TYPE_COLUMN,
    COMMIT_VERSION_COLUMN,
)
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.spelling import quote

if TYPE_CHECKING:
    from dagster_delta.orchestration.io.asset_options import AssetReference

FULL_REFRESH_TAG = "delta/full_refresh"
"""Tag of a run whose incremental assets read every row, with the value `true`."""

ChangeFeedMode = Literal["merge", "auto_cdc", "append"]
"""Whether the rows are merged by key, applied as change events, or appended."""

Returns = Literal["changes", "rows"]
"""Whether the returned rows are changes, as their columns say, or rows that must all exist."""

_INPUT = "changes"

_CONTEXT_NAMES = ("context", "_context", "_")
"""Names that Dagster allows for the context parameter."""


class ChangeFeedConfig(KnownFieldsOnly, dg.Config):
    """Run config of an incremental asset; a function with its own `config` extends it."""

    full_refresh: bool = Field(
        default=False,
        description="Process every row of the upstream table, and replace everything derived from "
        "it before.",
    )


@checked_arguments(dg.asset)
def delta_change_feed_asset(
    upstream: AssetReference,
    *,
    keys: str | Sequence[str] = (),
    mode: ChangeFeedMode = "merge",
    returns: Returns = "changes",
    table: str | None = None,
    storage_options: GivenStorage | None = None,
    columns: Sequence[str] | None = None,
    upstream_partition_expr: str | Mapping[str, str] | None = None,
    on_gap: OnGap = "refresh",
    max_bytes: int | None = 1024**3,
    lineage: bool = True,
    io_manager_key: str = "io_manager",
    **asset_options: Any,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """A decorator for an asset that is updated incrementally from the changes of another table.

    The function has a parameter `changes`, whose annotation selects its type: `pa.Table`,
    `pa.RecordBatchReader`, a pandas, polars or pyspark frame, or `UpstreamChanges`, which also has
    versions. After the columns of the upstream table come `_change_type`, `_commit_version` and
    `_commit_timestamp`. The DeltaIOManager writes the returned value:

    - mode `merge`, returns `changes`: the last row of every key counts. It is inserted or updated
      or, if it was deleted upstream, deleted. The rows keep `_change_type` and `_commit_version`.
    - mode `merge`, returns `rows`: every row is inserted or updated by its key.
    - mode `append`: every row is added; a full refresh replaces all rows.
    - mode `auto_cdc`: the rows are change events, which become a history, say. The metadata
      `merge_config` has the fields of that merge type, such as `stored_as_scd_type`. By default
      the version of the upstream table orders them, its deletes are deletes, and the table has the
      other columns. The rows keep `_change_type` and `_commit_version`. A full refresh is applied
      as a snapshot: rows that are not there any more end. With `sequence_by`, the upstream table
      is a log of events, and a full refresh applies all of them again.

    The upstream table should have `delta.enableChangeDataFeed`. Without it, the changes of a
    version are found as `DeltaTable.changes` does: where files were rewritten, their rows are
    read and compared, and an updated row is a `delete` and an `insert`.

    A partitioned asset reads the changes of the partitions of the run, each from the position of
    that partition. They are the partitions of the upstream asset if it is partitioned too, else
    those of the column that `partition_expr` names in both tables.

    Args:
        upstream: asset (or its key) whose table is read.
        keys: columns that identify the rows of this asset's table; for `merge` and `auto_cdc`.
        mode: how rows are written.
        returns: kind of rows that the function returns.
        table: location of the upstream table, if no DeltaIOManager stores it.
        storage_options: storage options for `table`, or the catalog of one named
            `catalog://a.b.c`.
        columns: of the upstream table; all by default.
        upstream_partition_expr: column of the upstream table that holds the partition, if it
            differs from `partition_expr`.
        on_gap: `refresh` or `fail`, if changes can no longer be read.
        max_bytes: the most bytes of upstream data files that a run compares to find changes; a
            run that would compare more fails. None for no limit.
        lineage: whether to show columns as coming from the upstream columns of the same name,
            unless the function returns its own `dagster/column_lineage`.
        io_manager_key: a DeltaIOManager, which writes the table.
        asset_options: of `dg.asset`: name, key_prefix, partitions_def, metadata, ins, …

    Raises:
        InvalidArgument: the arguments or the function are invalid.

    Examples:
        @delta_change_feed_asset("flights", keys=["id"])
        def late_flights(changes: pa.Table) -> pa.Table:
            return changes.filter(pc.field("delay") > 15)
    """
    what = "an incremental asset"
    check_choice(what, "mode", mode, ChangeFeedMode)
    check_choice(what, "returns", returns, Returns)
    check_choice(what, "on_gap", on_gap, OnGap)
    key_names = names_of(keys)
    check_keys(what, "append" if mode == "append" else "merge", key_names)
    declared = functools.partial(
        _IncrementalAsset,
        upstream=upstream,
        keys=key_names,
        mode=mode,
        returns=returns,
        table=table,
        storage_options=storage_options,
        columns=None if columns is None else names_of(columns),
        partition_expr=upstream_partition_expr,
        on_gap=on_gap,
        max_bytes=max_bytes,
        lineage=lineage,
        io_manager_key=io_manager_key,
    )
    return lambda function: declared(function).define(asset_options)


class _IncrementalAsset(msgspec.Struct, frozen=True):
    """A function and the arguments of its decorator, before it runs."""

    function: Callable[..., object]
    upstream: AssetReference
    keys: tuple[str, ...]
    mode: ChangeFeedMode
    returns: Returns
    table: str | None
    storage_options: GivenStorage | None
    columns: Sequence[str] | None
    partition_expr: str | Mapping[str, str] | None
    on_gap: OnGap
    max_bytes: int | None
    lineage: bool
    io_manager_key: str

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @property
    def hints(self) -> Mapping[str, object]:
        return _type_hints(self.function)

    def define(self, options: Mapping[str, Any]) -> dg.AssetsDefinition:
        self._check_function()
        options = {"kinds": {"deltalake"}, **options}
        if self.table is None:
            upstream_options = dict(options.pop("ins", None) or {})
            given = upstream_options.pop(_INPUT, dg.AssetIn())
            metadata = dict(given.metadata or {})
            if self.columns is not None:
                metadata["columns"] = list(self.columns)
            options["ins"] = upstream_options | {
                _INPUT: given._replace(
                    key=asset_key_of(self.upstream), metadata=metadata, dagster_type=SCAN_INPUT
                )
            }
        else:
            options["deps"] = [*(options.get("deps") or ()), self.upstream]
        define = dg.asset(io_manager_key=self.io_manager_key, **options)
        return typing.cast("dg.AssetsDefinition", define(self._make_compute()))

    def _check_function(self) -> None:
        name = self.function.__name__
        if _INPUT not in self.parameters:
            raise InvalidArgument(
                f"{name} is an incremental asset and has no parameter {_INPUT!r}, which is what it "
                "is given"
            )
        function = self.function
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{name} is an incremental asset, and has to return its rows")
        config = self.hints.get("config", ChangeFeedConfig)
        if not (isinstance(config, type) and issubclass(config, ChangeFeedConfig)):
            raise InvalidArgument(
                f"the config of {name} has to extend ChangeFeedConfig, so that a run can ask for a "
                "full refresh"
            )
        hint = self.hints.get(_INPUT, Any)
        if hint is not Any:
            _load_type(hint, None)

    def _make_compute(self) -> Callable[..., Any]:
        """The compute function for Dagster: it takes a config, and a scan for changes. Called in a
        unit test, it is the function itself.
        """
        own = self.parameters
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        hints = {**self.hints, **dict.fromkeys(_CONTEXT_NAMES, dg.AssetExecutionContext)}
        # Dagster wants the context first.
        parameters = {
            name: own[name].replace(annotation=hints.get(name, own[name].annotation))
            for name in sorted(own, key=lambda name: name not in _CONTEXT_NAMES)
        }
        parameters[_INPUT] = inspect.Parameter(_INPUT, kind)
        if self.table is not None:
            del parameters[_INPUT]
        parameters.setdefault(
            "config", inspect.Parameter("config", kind, annotation=ChangeFeedConfig)
        )

        @functools.wraps(self.function)
        def compute(*context: Any, **arguments: Any) -> Any:  # noqa: ANN401
            execution = current_execution()
            if execution is not None:
                return self._consume_changes(execution, arguments)
            arguments |= {name: value for name in _CONTEXT_NAMES for value in context}
            return self.function(**{name: arguments[name] for name in own})

        signature = inspect.Signature(list(parameters.values()))
        compute.__signature__ = signature  # type: ignore[attr-defined]
        compute.__annotations__ = {
            parameter.name: parameter.annotation
            for parameter in signature.parameters.values()
            if parameter.annotation is not inspect.Parameter.empty
        }
        # Dagster resolves annotations in the wrapped function, if it finds one.
        del compute.__wrapped__
        return compute

    def _consume_changes(
        self, context: dg.AssetExecutionContext, arguments: dict[str, Any]
    ) -> object:
        name = context.asset_key.to_user_string()
        manager = delta_io_manager(context.resources, self.io_manager_key, asset=name)
        upstream = arguments.pop(_INPUT, None)
        if upstream is None:
            given = DeltaTable(str(self.table), storage_options=plain_options(self.storage_options))
            upstream = given.snapshot().scan(self.columns)
        metadata: Mapping[str, Any] = context.assets_def.metadata_by_key[context.asset_key]
        options = manager.asset_options(context.asset_key, metadata)
        table = manager.written_table_of(context.asset_key, metadata)
        target = None if table is None else table.snapshot()
        # Another run may have read further since the input was opened. Read the position in the
        # target first, so that the upstream table never seems to have been restored.
        upstream = Scan(
            upstream.snapshot.update(),
            upstream.columns,
            None if upstream.where is None else upstream.where.sql,
        )
        consumer = self._make_consumer(context, arguments["config"], options, upstream)
        consumption = plan_consumption(consumer, target)
        if consumption.is_nothing_new or consumption.changes.is_empty:
            _report_changes(context, consumption)
            return self._make_output(consumption, dg.Output(None))
        consumption, changes = self._load_changes(consumption, manager)
        _report_changes(context, consumption)
        arguments |= {_INPUT: changes, **dict.fromkeys(_CONTEXT_NAMES, context)}
        result = self.function(**{name: arguments[name] for name in self.parameters})
        output = result if isinstance(result, dg.Output) else dg.Output(result)
        if output.value is None:
            raise InvalidArgument(
                f"{self.function.__name__} is an incremental asset and returned None: return "
                "the rows to write, or an empty table if there are none"
            )
        return self._make_output(consumption, output)

    def _make_output(
        self, consumption: Consumption, output: dg.Output[Any]
    ) -> dg.Output[AppliedChanges]:
        has_lineage = "dagster/column_lineage" in (output.metadata or {})
        upstream_key = asset_key_of(self.upstream) if self.lineage and not has_lineage else None
        applied = AppliedChanges(consumption, output.value, self, upstream_key)
        return dg.Output(applied, metadata=output.metadata, tags=output.tags)

    def _load_changes(
        self, consumption: Consumption, manager: DeltaIOManager
    ) -> tuple[Consumption, object]:
        load_type = _load_type(self.hints.get(_INPUT, Any), manager.default_load_type)

        def read(changes: UpstreamChanges) -> object:
            if load_type is None:
                return changes
            scan = typing.cast("Scan", changes)
            return load_type.load(TableInput(None, scan, lambda: manager.spark_session))

        try:
            return consumption, read(consumption.changes)
        except DataFileMissing as error:
            if consumption.changes.is_full_refresh:
                raise
            consumption = consumption.without_changes(error)
            return consumption, read(consumption.changes)

    def _make_consumer(
        self,
        context: dg.AssetExecutionContext,
        config: ChangeFeedConfig,
        options: AssetOptions,
        upstream: Scan,
    ) -> Consumer:
        keys = (
            tuple(context.partition_keys)
            if context.has_partition_key_range or context.has_partition_key
            else ()
        )
        asked = None
        if config.full_refresh:
            asked = "the run config asked for it"
        elif context.run.tags.get(FULL_REFRESH_TAG, "").lower() == "true":
            asked = f"the run tag {FULL_REFRESH_TAG} asked for it"
        name, partitions_def = context.asset_key.to_user_string(), context.assets_def.partitions_def
        select = None
        if keys and partitions_def is not None:
            expression = self.partition_expr or options.partition_expr
            select = partition_selector(partitions_def, expression, asset=name)
        return Consumer(
            name=name,
            upstream=upstream,
            partition_keys=keys,
            selection=select,
            has_partitions=self.table is None and _is_input_partitioned(context),
            on_gap=self.on_gap,
            full_refresh=asked,
            max_bytes=self.max_bytes,
            updates_rows=self.mode != "append",
            replaces_schema=(
                self.mode == "merge" and options.schema_mode == "overwrite" and not keys
            ),
        )


class AppliedChanges(AssetValue, frozen=True):
    """The output of an incremental asset for its IO manager."""

    consumption: Consumption
    rows: object
    """The value that its function returned; None if it was not called, because nothing had
    changed."""
    declared: _IncrementalAsset
    upstream_key: dg.AssetKey | None
    """Key of the asset that its columns of the same name come from; None if not declared."""

    has_own_mode = True

    def converted(self, convert: Callable[[object], object]) -> AppliedChanges:
        """The changes with their rows in a form that can be written."""
        return replace(self, rows=convert(self.rows))

    def write(self, write: AssetWrite) -> WrittenAsset:
        """Apply the rows and record the progress, as one commit."""
        # The progress identifies a repeated attempt, so no identifier per run is needed.
        write = replace(write, idempotency=None, progress=self.consumption.progress)
        changes = self.consumption.changes
        try:
            written = (
                _only_progress(write, self) if self.rows is None else _write_changes(write, self)
            )
        except ConcurrentTransaction as conflict:
            conflict.message = (
                f"another run of {write.name} applied changes of its upstream table meanwhile, so "
                "this run wrote nothing: launch it again for the changes that remain. With the "
                "pool delta_table_pool(…) of the table on the asset, and a limit of 1, its runs "
                "wait for each other"
            )
            raise
        except SchemaMismatch as error:
            if write.within is None:
                error.message += (
                    f'\nWith the metadata {{"schema_mode": "overwrite"}} on {write.name}, and '
                    "full_refresh in its run config, its table takes the columns of the rows"
                )
            raise
        lineage = None
        if self.upstream_key is not None:
            upstream = changes.snapshot.schema
            lineage = dg.TableColumnLineage(
                {
                    name: [dg.TableColumnDep(self.upstream_key, field.name)]
                    for name in written.snapshot.schema.names
                    if (field := upstream.get(name)) is not None
                }
            )
        metadata = {
            "delta/full_refresh": changes.is_full_refresh,
            "delta/full_refresh_because": changes.refresh_reason,
            "delta/columns_not_followed": self.consumption.columns_not_followed,
            "delta/compared_bytes": changes.compared_bytes or None,
        }
        return replace(written, column_lineage=lineage, metadata=metadata)


def _write_changes(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    rows, is_refresh = applied.rows, applied.consumption.changes.is_full_refresh
    has_actions = applied.declared.mode == "merge" and applied.declared.returns == "changes"
    if has_actions:
        net: Callable[..., object] = net_changes
        if is_spark_frame(rows):
            net = net_changes_of_frame
        rows = net(rows, applied.declared.keys, asset=write.name, deletes=not is_refresh)
    if applied.declared.mode == "auto_cdc":
        return _apply_events(write, applied)
    if is_refresh:
        return write_asset(
            replace(write, options=write.options.with_values(mode="overwrite")), rows
        )
    _check_types(write, applied)
    options = write.options
    if options.schema_mode == "overwrite":
        # Existing rows keep their columns: a full refresh alone replaces the schema.
        options = options.with_values(schema_mode="merge")
    if applied.declared.mode == "append":
        return write_asset(replace(write, options=options.with_values(mode="append")), rows)
    merge = _merge_config(applied.declared.keys, has_actions=has_actions)
    options = options.with_values(mode="merge", merge_config=merge)
    if has_actions:
        options = options.with_values(expectations=_of_upserts(options.expectations))
    controls = (ACTION_COLUMN,) if has_actions else ()
    return write_asset(replace(write, options=options, control_columns=controls), rows)


def _of_upserts(expectations: Sequence[Expectation]) -> tuple[Expectation, ...]:
    """The expectations, which a row that deletes satisfies in any case."""
    return tuple(
        replace(known, condition=f"{ACTION_COLUMN} <> '{UPSERT}' OR ({known.condition}\n)")
        for known in expectations
    )


def _apply_events(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    """Apply the rows as events, and record the progress. They are ordered by the versions of the
    upstream table, where all rows are a snapshot; or, if the asset names a sequence, the upstream
    table is a log of events, whose rows are applied as they are.
    """
    rows, keys, options = applied.rows, applied.declared.keys, write.options
    given = (
        {}
        if options.merge_config is None
        else options.merge_config.model_dump(exclude_unset=True, by_alias=True)
    )
    is_log = [*map(fold_name, given.get("sequence_by") or ())] not in ([], [COMMIT_VERSION_COLUMN])
    upstream = applied.consumption.changes.snapshot
    if not is_log and (branch := branch_of(upstream)) is not None:
        raise InvalidArgument(
            f"{write.name} orders changes by the versions of its upstream table, and that of the "
            f"branch {branch!r} counts its own, from 0: they would be taken for older ones than "
            "production's. Name a column of the rows as sequence_by; or leave the asset out of the "
            "branch, and materialize it in production once the upstream table is published",
            table=upstream.store.location.uri,
            version=upstream.version,
        )
    remaining: Callable[..., object] = remaining_events
    last: Callable[..., object] = last_events
    if is_spark_frame(rows):
        remaining, last = remaining_events_of_frame, last_events_of_frame
    rows = remaining(rows) if is_log else last(rows, keys, asset=write.name)
    names = engine_for(rows).schema_of(rows)
    known = [name for name in CHANGE_COLUMNS if names.get(name) is not None]
    defaults: dict[str, Any] = {"keys": list(keys), "sequence_by": COMMIT_VERSION_COLUMN}
    if CHANGE_TYPE_COLUMN in known:
        defaults["apply_as_deletes"] = f"{CHANGE_TYPE_COLUMN} = 'delete'"
    if not given.get("column_list"):
        excepted = given.pop("except_column_list", None) or []
        folded = {*map(fold_name, excepted)}
        given["except_column_list"] = [
            *excepted,
            *(name for name in known if fold_name(name) not in folded),
        ]
    if applied.consumption.changes.is_full_refresh and not is_log:
        given |= {"apply_as_deletes": None, "from_snapshots": True}
    fields = {**defaults, **given}
    merge = change_events_config({"merge_config": fields}, asset=write.name)
    mode = "merge" if options.schema_mode == "overwrite" else options.schema_mode
    options = options.with_values(mode="merge", merge_config=merge, schema_mode=mode)
    return write_asset(replace(write, options=options), rows)


def _check_types(write: AssetWrite, applied: AppliedChanges) -> None:
    """Refuse columns of the upstream table that would be cast to their older type, if the asset
    requires them unchanged.
    """
    target = applied.consumption.target
    if target is None or write.options.schema_mode != "overwrite":
        return
    upstream = applied.consumption.changes.snapshot.schema
    rows = engine_for(applied.rows).schema_of(applied.rows)
    for column in columns_narrower_than(rows, target.configuration):
        name = column.path[0]
        field, copied = upstream.get(name), rows.field(name)
        if field is not None and field.data_type == copied.data_type:
            raise SchemaMismatch(
                f"{column}: its values would be cast. To process every row, launch {write.name} "
                "with full_refresh in its config; to keep those that it has, widen the column "
                "with delta_schema_change_job or DeltaTable.alter",
                table=write.uri,
                column=".".join(column.path),
            )


def _only_progress(write: AssetWrite, applied: AppliedChanges) -> WrittenAsset:
    """The result of a run that found no changed rows: any progress is recorded, so that the older
    log of the upstream table may be cleaned up.
    """
    table = DeltaTable(write.uri, storage_options=write.storage_options)
    consumption = applied.consumption
    reason = f"no row has changed up to version {consumption.changes.to_version}"
    if consumption.is_nothing_new:
        return WrittenAsset(write, table.snapshot(), skipped_because=reason)
    transaction = table.transaction()
    for application in write.progress:
        transaction.advance_application(application)
    committed = transaction.commit(
        "WRITE", parameters={"mode": "Append"}, user_info=write.commit_info
    )
    return WrittenAsset(write, committed.snapshot, skipped_because=reason)


def _merge_config(keys: Sequence[str], *, has_actions: bool) -> MergeConfig:
    """A merge by the keys: changes delete and upsert, rows upsert."""
    on = match_on(keys)
    if not has_actions:
        return MergeConfig(merge_type=MergeType.upsert, predicate=on)
    action, control = f"s.{quote(ACTION_COLUMN)}", [ACTION_COLUMN]
    clauses = MergeOperationsConfig(
        when_matched_delete=[OperationConfig(predicate=f"{action} = '{DELETE}'")],
        when_matched_update_all=[OperationAllConfig(except_cols=control)],
        when_not_matched_insert_all=[
            OperationAllConfig(predicate=f"{action} = '{UPSERT}'", except_cols=control)
        ],
    )
    return MergeConfig(merge_type=MergeType.custom, predicate=on, merge_operations_config=clauses)


def _is_input_partitioned(context: dg.AssetExecutionContext) -> bool:
    """Whether the upstream asset is partitioned, so that its scan has the partitions of the run."""
    try:
        return context.asset_partitions_def_for_input(_INPUT) is not None
    except dg.DagsterInvariantViolationError:
        return False


def _load_type(hint: object, default: str | None) -> TypeHandler[Any] | None:
    """The handler that loads changes; None for `UpstreamChanges` itself."""
    if hint is UpstreamChanges:
        return None
    load_type = type_handler_of(hint, default, name=_INPUT)
    allowed = [handler for handler in TABLE_TYPES if handler.name not in OPENED_ONLY]
    if load_type not in allowed:
        raise InvalidArgument(
            f"the parameter {_INPUT!r} is annotated with {annotation_of(load_type)}, and changes "
            f"come as {', '.join(map(annotation_of, allowed))} or dagster_delta.UpstreamChanges"
        )
    return load_type


def _type_hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        # A name that only a type checker imports; Dagster ignores it too.
        return {
            name: hint
            for name, hint in inspect.get_annotations(function).items()
            if not isinstance(hint, str)
        }


def _report_changes(context: dg.AssetExecutionContext, consumption: Consumption) -> None:
    """Report which changes were read; this replaces the metadata of the opened input."""
    changes = consumption.changes
    where = changes.snapshot.store.location.uri
    facts: RawMetadata = {
        "table": where,
        "table_id": changes.snapshot.metadata.id,
        "version": changes.to_version,
        "full_refresh": changes.is_full_refresh,
    }
    if changes.from_version is not None:
        facts["from_version"] = changes.from_version
    context.add_asset_metadata({f"{INPUT_PREFIX}{_INPUT}": dg.MetadataValue.json(facts)})
    if changes.is_full_refresh:
        context.log.info(
            f"Full refresh from {where} at version {changes.to_version}: {changes.refresh_reason}"
        )
    elif not consumption.is_nothing_new:
        context.log.info(
            f"Reading the changes of {where} from version {changes.from_version} to "
            f"{changes.to_version}"
        )
    if consumption.columns_not_followed is not None:
        context.log.warning(
            f"The table of {context.asset_key.to_user_string()} has not followed a change of "
            f"{where}: {consumption.columns_not_followed}. To follow it, change the columns with "
            "delta_schema_change_job or DeltaTable.alter, or set the metadata "
            '{"schema_mode": "overwrite"} and launch the asset with full_refresh in its config'
        )
