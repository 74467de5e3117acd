"""Asset checks on a Delta table: its own declarations, and its users' expectations."""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument, TableNotFound, UnsupportedExpression
from dagster_delta.orchestration.checks.anomalies import check_anomalies, check_anomaly_limits
from dagster_delta.orchestration.checks.table_checks import (
    Finding,
    check_audit,
    check_declared,
    check_expectation,
    check_freshness,
    check_health,
    check_health_limits,
    check_row_count,
    check_schema,
    check_unique,
    spell_age,
)
from dagster_delta.orchestration.io.asset_options import (
    AssetOptions,
    AssetReference,
    asset_key_of,
    names_of,
    read_asset_options,
)
from dagster_delta.orchestration.known_fields import checked_arguments
from dagster_delta.orchestration.maintenance.maintained_tables import (
    Asset,
    MaintainedTable,
    tables_of_asset,
)
from dagster_delta.orchestration.metadata_keys import DETAILS, shown
from dagster_delta.orchestration.partitions.partitions import partition_selector
from dagster_delta.orchestration.partitions.predicates import partition_slice
from dagster_delta.orchestration.row_tables import check_masked_columns, row_table
from dagster_delta.orchestration.storage_options import GivenStorage
from dagster_delta.orchestration.table_metadata import op_name
from dagster_delta.protocol.schema import StructType
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.slices import Slice
from dagster_delta.table.spelling import schema_of

if TYPE_CHECKING:
    import pyarrow as pa


class Rule(msgspec.Struct, frozen=True):
    """One check of a table."""

    description: str
    evaluate: Callable[[Snapshot, int | None, Slice | None], Finding]
    """From a version, the one at which the rule last held, and the rows of the partitions of the
    run, to the result of the rule."""
    is_of_rows: bool = False
    """Whether the rule can be evaluated on the rows of some partitions."""
    is_of_write: bool = False
    """Whether each write of the asset reports the result, too."""


class _Options(msgspec.Struct, frozen=True):
    """What the checks of a table have in common."""

    waited_for: Collection[str]
    severity: dg.AssetCheckSeverity
    masked: Collection[str]
    condition: dg.AutomationCondition[Any] | None


_VERSION_KEY = "delta/version"
_ROWS_KEY = "delta/failing_rows"
_ID = "table_id"
"""Detail that identifies the table."""
_HISTORY = 10
"""Number of evaluations to search for the last one with a result; if there is none, all rows are
checked."""


@checked_arguments()
def delta_asset_checks(
    asset: AssetReference,
    *,
    table: str | None = None,
    storage_options: GivenStorage | None = None,
    constraints: bool = True,
    expectations: bool = True,
    unique: str | Sequence[str] | None = None,
    row_count: tuple[int | None, int | None] | None = None,
    freshness: dt.timedelta | None = None,
    schema: "StructType | pa.Schema | None" = None,
    allow_more_columns: bool = False,
    health: Mapping[str, float] | None = None,
    anomalies: Mapping[str, float] | None = None,
    training_commits: int = 10,
    all_rows: bool = False,
    partitioned: bool = False,
    cron: str | None = None,
    cron_timezone: str = "UTC",
    masked_columns: Sequence[str] = (),
    blocking: bool | Collection[str] = False,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> list[dg.AssetChecksDefinition]:
    """Asset checks for the table of an asset, written by any tool.

    Names: `delta_constraints`, `delta_unique`, `delta_row_count`, `delta_freshness`,
    `delta_schema`, `delta_health` and `delta_anomalies`. The first is one check for all that the
    table declares, of the rows that were added since it last passed, unless the declarations have
    changed. If the table declares nothing, it says so and passes. A few failing rows are shown as a
    table. A rule that the embedded engine cannot evaluate like Spark is a warning, never a pass.

    Each of the asset's `expectations` is a check of its name besides: its result is what the latest
    write has counted, from the log. In a run that also writes the asset the write has reported it,
    and the check adds no second result.

    Args:
        asset: the asset, its spec, or its key if `table` is given.
        table: location of the table, if no DeltaIOManager stores it, and the metadata of the asset
            have no `dagster/uri`.
        storage_options: storage options for `table`, and for an asset with a `dagster/uri`; or the
            catalog of a table named `catalog://a.b.c`.
        constraints: whether to check NOT NULL, CHECK constraints, invariants and generated columns.
        expectations: whether the expectations and audits in the metadata of the asset are checks
            too.
        unique: columns whose combined values are unique, such as the keys of a merge.
        row_count: minimum and maximum number of rows; None for no bound.
        freshness: maximum age of the last change of rows.
        schema: columns that the table should have: a `pa.Schema`, or a `StructType` of this
            library.
        allow_more_columns: whether the table may have other columns too.
        health: largest allowed values, by a name of `TableHealth`: `{"small_file_share": 0.5}`.
        anomalies: largest distance of the newest commit from the mean of earlier commits of the
            same weekday (UTC), in standard deviations, of `rows` (written, or changed by a MERGE),
            `bytes` (of new files) and `age` (time since the commit, against the time to the next
            one): `{"rows": 3, "age": 3}`. Only the log is read.
        training_commits: number of earlier commits of the weekday to compare with. With fewer than
            3 in the log the check passes and says so.
        all_rows: check all rows in every check.
        partitioned: whether `delta_constraints`, `delta_unique` and `delta_row_count` have the
            partitions of the asset: each has a result for each partition, of its rows alone. The
            other checks are of the table. The interface of Dagster for it is a preview.
        cron: when the checks run besides the runs of the asset, as a cron schedule: their
            automation condition, also if the asset has no new rows. With `partitioned`, for the
            latest time window.
        cron_timezone: time zone of `cron`.
        masked_columns: columns whose values are hidden where failing rows are shown, in addition
            to the `masked_columns` of the asset.
        blocking: whether downstream assets wait for the checks; or the names of those they wait
            for.
        severity: of a check that fails.

    Raises:
        InvalidArgument: the arguments are inconsistent.

    Examples:
        checks = delta_asset_checks(orders, unique=["id"], freshness=dt.timedelta(days=1))
        dg.Definitions(assets=[orders], asset_checks=checks, resources=…)
    """
    key = asset_key_of(asset)
    rules: dict[str, Rule] = {}
    if constraints:
        rules["delta_constraints"] = Rule(
            "Rows satisfy what the table declares: NOT NULL, constraints, generated columns.",
            partial(check_declared, all_rows=all_rows),
            is_of_rows=True,
        )
    rules |= _expectation_rules(unique, row_count, freshness, health)
    if anomalies:
        check_anomaly_limits(anomalies, training_commits)
        rules["delta_anomalies"] = Rule(
            "The newest commit is like those before it of the same weekday.",
            lambda s, *_: check_anomalies(s, anomalies, training_commits, dt.datetime.now(dt.UTC)),
        )
    if schema is not None:
        declared = schema_of(schema)
        rules["delta_schema"] = Rule(
            "The columns and their types match the declaration.",
            lambda s, *_: check_schema(s, declared, allow_more=allow_more_columns),
        )
    source = _find_table(asset, key, table, storage_options)
    options = read_asset_options(source.metadata, AssetOptions(), asset=source.name)
    if expectations:
        rules |= {
            known.name: Rule(
                f"{known.condition} holds for each row that is written.",
                lambda s, *_, known=known: check_expectation(s, known),
                is_of_write=True,
            )
            for known in options.expectations
        }
        rules |= {
            audit.check_name: Rule(
                "The audit of each write passes.",
                lambda s, *_, name=audit.check_name: check_audit(s, name),
                is_of_write=True,
            )
            for audit in options.audits
        }
    if not rules:
        raise InvalidArgument(
            f"the checks of {key.to_user_string()} are empty: enable at least one"
        )
    waited_for = set(rules if blocking is True else names_of(blocking or ()))
    if unknown := sorted(waited_for - set(rules)):
        raise InvalidArgument(
            f"there is no check {', '.join(unknown)} to wait for; there are {', '.join(rules)}"
        )
    masked = {*names_of(masked_columns), *options.masked_columns}
    condition = None if cron is None else _make_cron_condition(cron, cron_timezone)
    common = _Options(waited_for, severity, masked, condition)
    if not partitioned:
        return [_define_checks(key, source, rules, common)]
    of_rows = {name: rule for name, rule in rules.items() if rule.is_of_rows}
    of_table = {name: rule for name, rule in rules.items() if not rule.is_of_rows}
    partitions = _find_partitions(asset, key, options, of_rows)
    definitions = [_define_checks(key, source, of_rows, common, partitions)]
    return (
        [*definitions, _define_checks(key, source, of_table, common)] if of_table else definitions
    )


def _make_cron_condition(cron: str, timezone: str) -> dg.AutomationCondition[Any]:
    """The condition of checks that run by the clock.

    `AutomationCondition.on_cron` waits until the asset was updated since the tick: it would never
    find an asset that is not.
    """
    try:
        # The condition would fail at its first tick only.
        dg.ScheduleDefinition(
            name="cron", cron_schedule=cron, execution_timezone=timezone, job_name="checks"
        )
    except dg.DagsterInvalidDefinitionError as error:
        raise InvalidArgument(f"cron, such as '0 * * * *', or its time zone: {error}") from error
    # Dagster types it for assets alone, and its own `on_cron` is made of it for checks.
    tick: dg.AutomationCondition[Any] = dg.AutomationCondition.cron_tick_passed(cron, timezone)
    return dg.AutomationCondition.in_latest_time_window() & tick.since_last_handled()


class _Partitions(msgspec.Struct, frozen=True):
    """The partitions of an asset, and which rows they are."""

    definition: dg.PartitionsDefinition[Any]
    find_slice: Callable[[Sequence[str]], Slice]


def _find_partitions(
    asset: AssetReference, key: dg.AssetKey, options: AssetOptions, rules: Mapping[str, Rule]
) -> _Partitions:
    name = key.to_user_string()
    spec = asset.get_asset_spec(key) if isinstance(asset, dg.AssetsDefinition) else asset
    definition = spec.partitions_def if isinstance(spec, dg.AssetSpec | dg.SourceAsset) else None
    if definition is None or options.partition_expr is None:
        raise InvalidArgument(
            f"the checks of {name} cannot be partitioned: pass an asset with a partitions_def and "
            "with partition_expr in its metadata, or leave partitioned out"
        )
    if not rules:
        raise InvalidArgument(
            f"the checks of {name} have none that is partitioned: enable constraints, unique or "
            "row_count, or leave partitioned out"
        )
    select = partition_selector(
        definition, options.partition_expr, asset=name, owned_rows=options.owned_rows
    )
    return _Partitions(definition, lambda keys: partition_slice(select, keys, asset=name))


def _define_checks(
    key: dg.AssetKey,
    source: MaintainedTable,
    rules: Mapping[str, Rule],
    options: _Options,
    partitions: _Partitions | None = None,
) -> dg.AssetChecksDefinition:
    @dg.op(
        name=op_name(key, "delta_checks_" if partitions is None else "delta_partition_checks_"),
        ins={"table": dg.In(dg.Nothing)},
        out={name: dg.Out(is_required=False) for name in rules},
        required_resource_keys={source.io_manager_key} if source.io_manager_key else set(),
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Any:  # noqa: ANN401
        table = source.open(context.resources)
        if table is None:
            raise TableNotFound(f"{source.name} has no Delta table yet: materialize it first")
        snapshot = table.snapshot()
        has_partition = context.has_partition_key or context.has_partition_key_range
        within = None
        if partitions is not None and has_partition:
            within = partitions.find_slice(context.partition_keys)
        for check_key in context.selected_asset_check_keys:
            if rules[check_key.name].is_of_write and _was_reported(context, check_key):
                # Assets that wait for the check wait for its output.
                yield dg.Output(None, check_key.name)
                continue
            last = None
            if partitions is None:
                last = _passed_at(context.instance, check_key, snapshot)
            try:
                finding = rules[check_key.name].evaluate(snapshot, last, within)
            except UnsupportedExpression as error:
                described = f"Not evaluated: {error}"
                finding = Finding(passed=False, description=described, is_warning=True)
            failed = dg.AssetCheckSeverity.WARN if finding.is_warning else options.severity
            yield _make_result(check_key, snapshot, finding, failed, options.masked)

    specs = {
        name: dg.AssetCheckSpec(
            name,
            asset=key,
            description=rule.description,
            blocking=name in options.waited_for,
            automation_condition=options.condition,
            partitions_def=None if partitions is None else partitions.definition,
        )
        for name, rule in rules.items()
    }
    # `multi_asset_check` names inputs and outputs by the key, which may hold what no name does.
    definition: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={"table": key},
        node_def=checks,
        resource_defs={},
        check_specs_by_output_name=specs,
        can_subset=True,
    )
    return definition


def _find_table(
    asset: AssetReference,
    key: dg.AssetKey,
    uri: str | None,
    storage_options: GivenStorage | None,
) -> MaintainedTable:
    table = MaintainedTable(key.to_user_string(), key)
    if isinstance(asset, Asset):
        (table,) = tables_of_asset(asset, storage_options)
    elif uri is None:
        raise InvalidArgument(
            f"the checks of {key.to_user_string()} do not know its table: pass the asset itself, "
            "or the location as table"
        )
    if uri is None:
        return table
    return replace(table, uri=uri, io_manager_key=None, storage_options=storage_options)


def _expectation_rules(
    unique: str | Sequence[str] | None,
    row_count: tuple[int | None, int | None] | None,
    freshness: dt.timedelta | None,
    health: Mapping[str, float] | None,
) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    if unique is not None:
        columns = names_of(unique)
        if not columns:
            raise InvalidArgument("unique names no column: name those of the key, or leave it out")
        rules["delta_unique"] = Rule(
            f"No two rows have the same {', '.join(columns)}.",
            lambda s, _, within: check_unique(s, columns, within),
            is_of_rows=True,
        )
    if row_count is not None:
        pair = tuple(row_count) if isinstance(row_count, tuple | list) else ()
        bounds = [bound for bound in pair if bound is not None]
        if len(pair) != 2 or not bounds or bounds != sorted(bounds):
            raise InvalidArgument(
                f"row_count is {row_count!r}, and takes the minimum and the maximum, of which one "
                "may be None: (1, None)"
            )
        least, most = pair
        rules["delta_row_count"] = Rule(
            "The number of rows is within bounds.",
            lambda s, _, within: check_row_count(s, least, most, within),
            is_of_rows=True,
        )
    if freshness is not None:
        if not isinstance(freshness, dt.timedelta):
            raise InvalidArgument(
                f"freshness is {freshness!r}, and takes a time: dt.timedelta(hours=1)"
            )
        rules["delta_freshness"] = Rule(
            f"Rows have changed within the last {spell_age(freshness)}.",
            lambda s, *_: check_freshness(s, freshness, dt.datetime.now(dt.UTC)),
        )
    if health:
        check_health_limits(health)
        rules["delta_health"] = Rule(
            "The health measures of the table are within bounds.",
            lambda s, *_: check_health(s, health),
        )
    return rules


def _make_result(
    key: dg.AssetCheckKey,
    snapshot: Snapshot,
    finding: Finding,
    severity: dg.AssetCheckSeverity,
    masked: Collection[str],
) -> dg.AssetCheckResult:
    metadata: dict[str, object] = {
        _VERSION_KEY: snapshot.version,
        **{f"delta/{name}": value for name, value in finding.facts.items()},
        DETAILS: {_ID: snapshot.metadata.id, **finding.details},
    }
    if finding.examples:
        try:
            check_masked_columns(masked, snapshot.schema)
            metadata[_ROWS_KEY] = row_table(finding.examples, masked)
        except InvalidArgument as error:
            metadata[_ROWS_KEY] = str(error)
    return dg.AssetCheckResult(
        passed=finding.passed,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=severity,
        description=finding.description,
        metadata=shown(metadata),
    )


def _was_reported(context: dg.AssetCheckExecutionContext, key: dg.AssetCheckKey) -> bool:
    """Whether a check has a result in this run already."""
    history = context.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    return any(
        record.run_id == context.run.run_id
        and record.event is not None
        and record.event.dagster_event is not None
        and record.event.dagster_event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
        for record in history
    )


def _passed_at(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, snapshot: Snapshot
) -> int | None:
    """The version of this table at which the check passed, if its last result is a pass."""
    # The latest record is of the running evaluation itself, which has no result yet.
    history = instance.event_log_storage.get_asset_check_execution_history(key, limit=_HISTORY)
    for record in history:
        event = None if record.event is None else record.event.dagster_event
        if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        evaluation = event.asset_check_evaluation_data
        known = {name: value.value for name, value in evaluation.metadata.items()}
        details, version = known.get(DETAILS), known.get(_VERSION_KEY)
        is_of_table = isinstance(details, Mapping) and details.get(_ID) == snapshot.metadata.id
        return version if evaluation.passed and is_of_table and isinstance(version, int) else None
    return None
