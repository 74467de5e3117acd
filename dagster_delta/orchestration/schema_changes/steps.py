"""Schema changes of one opened table, reported in the run's log and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import Logger
from typing import TYPE_CHECKING, Any

from dagster_delta.errors import DeltaError, InvalidArgument
from dagster_delta.orchestration.maintenance.steps import spell_bytes
from dagster_delta.orchestration.schema_changes.config import (
    DeltaSchemaChangeConfig,
    SchemaChangeKind,
)

if TYPE_CHECKING:
    from dagster_delta.table.delta_table import DeltaTable
    from dagster_delta.table.operations.column_change_progress import (
        ColumnChangeProgress,
        ColumnChangeState,
    )

_OPTION = re.compile(
    rf"(?:\bpass )?\b({'|'.join(DeltaSchemaChangeConfig.model_fields)})=(True|False|\"[^\"]*\")"
)
_CALL = re.compile(r"(?<![\w.`])change_column(?![\w(`])")


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """A change that was made or planned."""

    title: str
    """One line, for the log."""
    markdown: str
    columns: tuple[str, ...]
    """Top-level columns of the earlier schema that changed or were dropped."""
    is_dry_run: bool
    metrics: Mapping[str, int | str] = field(default_factory=dict)
    """Of an online column change; see `DeltaTable.change_column`."""
    adds_columns: bool = False
    """Whether top-level columns were added."""
    columns_before: tuple[str, ...] = ()
    """All top-level columns of the earlier schema."""


def change_schema_step(
    table: DeltaTable,
    config: DeltaSchemaChangeConfig,
    log: Logger,
    commit_info: Mapping[str, object],
) -> ChangeReport:
    """Make the change of the config, or plan it. Errors name options as in the Launchpad."""
    _check(config)
    before = table.schema().names
    try:
        report = _STEPS[config.kind](table, config, log, commit_info)
    except DeltaError as error:
        error.message = in_launchpad_words(error.message)
        raise
    markdown = in_launchpad_words(report.markdown)
    return replace(report, markdown=markdown, columns_before=before)


_Step = Callable[
    ["DeltaTable", DeltaSchemaChangeConfig, Logger, Mapping[str, object]], ChangeReport
]


def _check(config: DeltaSchemaChangeConfig) -> None:
    needs = {
        SchemaChangeKind.ALTER: ("statement",),
        SchemaChangeKind.CHANGE_COLUMN: ("column", "new_type"),
    }
    for kind, names in needs.items():
        for name in names:
            given = bool(getattr(config, name).strip())
            if given != (kind is config.kind):
                verb = "needs" if kind is config.kind else "takes no"
                raise InvalidArgument(
                    f"kind {config.kind.name} {verb} `{name}`: "
                    f"{'set it' if kind is config.kind else f'it is for {kind.name}'}"
                )
    for kind, names in _OPTIONS.items():
        for name in names:
            default = DeltaSchemaChangeConfig.model_fields[name].default
            if kind is not config.kind and getattr(config, name) != default:
                raise InvalidArgument(
                    f"kind {config.kind.name} takes no `{name}`: it is for {kind.name}"
                )


_OPTIONS = {
    SchemaChangeKind.ALTER: ("existing_rows",),
    SchemaChangeKind.CHANGE_COLUMN: ("cast", "on_error", "nullable", "position"),
}
"""Options of one kind only."""


def _alter(
    table: DeltaTable, config: DeltaSchemaChangeConfig, log: Logger, info: Mapping[str, object]
) -> ChangeReport:
    result = table.alter(
        config.statement,
        dry_run=config.dry_run,
        enable_features=config.enable_features,
        existing_rows=config.existing_rows,
        engine=config.engine,
        batch_bytes=config.batch_bytes,
        commit_info=info,
        on_progress=_rewrite_teller(log),
    )
    changes = result.plan.schema_changes
    fields = (path for path in changes.added if len(path) > 1)
    columns = dict.fromkeys(path[0] for path in (*changes.dropped, *changes.changed, *fields))
    adds_columns = any(len(path) == 1 for path in changes.added)
    done = "no change is needed" if result.skipped else f"version {result.version}"
    return ChangeReport(
        f"{'dry run' if config.dry_run else done}: {config.statement}",
        result.to_markdown(),
        tuple(columns),
        config.dry_run,
        result.metrics,
        adds_columns,
    )


def _rewrite_teller(log: Logger) -> Callable[[int, int], None]:
    return lambda done, of: log.info(f"{done:,} of {of:,} files rewritten")


def _materialize_defaults(
    table: DeltaTable, config: DeltaSchemaChangeConfig, log: Logger, info: Mapping[str, object]
) -> ChangeReport:
    result = table.materialize_defaults(
        dry_run=config.dry_run,
        engine=config.engine,
        commit_info=info,
        on_progress=_rewrite_teller(log),
    )
    cost = f"{result.plan.affected_files:,} files, {spell_bytes(result.plan.affected_bytes)}"
    title = f"version {result.version}: {cost} were rewritten with their defaults"
    if config.dry_run:
        title = f"dry run: {cost} would be rewritten"
    elif result.skipped:
        title = "the table has no lazy defaults"
    return ChangeReport(title, result.to_markdown(), (), config.dry_run)


def _change_column(
    table: DeltaTable, config: DeltaSchemaChangeConfig, log: Logger, info: Mapping[str, object]
) -> ChangeReport:
    asked: dict[str, Any] = {
        "column": config.column,
        "new_type": config.new_type,
        "cast": config.cast,
        "on_error": config.on_error,
        "nullable": config.nullable,
        "position": config.position,
        "enable_features": config.enable_features,
        "batch_bytes": config.batch_bytes,
    }
    plan = table.plan_column_change(**asked)
    markdown = plan.to_markdown()
    columns = (plan.change.path[0],)
    if config.dry_run:
        return ChangeReport(f"dry run: {plan.summary}", markdown, columns, is_dry_run=True)
    progress_log = _ProgressLog(log)
    result = table.change_column(
        **asked, engine=config.engine, commit_info=info, on_progress=progress_log
    )
    report = f"{markdown}\n{progress_log.markdown()}"
    title = f"version {result.version}: {plan.summary}"
    return ChangeReport(title, report, columns, is_dry_run=False, metrics=result.metrics)


def _resume(
    table: DeltaTable, config: DeltaSchemaChangeConfig, log: Logger, info: Mapping[str, object]
) -> ChangeReport:
    state = _require(table)
    if config.dry_run:
        return _in_progress(state)
    progress_log = _ProgressLog(log)
    result = table.resume_column_change(
        batch_bytes=config.batch_bytes,
        engine=config.engine,
        commit_info=info,
        on_progress=progress_log,
    )
    return ChangeReport(
        f"version {result.version}: the change of column {state.column} is complete",
        progress_log.markdown(),
        (state.column,),
        is_dry_run=False,
        metrics=result.metrics,
    )


def _cancel(
    table: DeltaTable, config: DeltaSchemaChangeConfig, _log: Logger, info: Mapping[str, object]
) -> ChangeReport:
    state = _require(table)
    if config.dry_run:
        return _in_progress(state)
    version = table.cancel_column_change(commit_info=info).version
    text = f"The change of `{state.column}` to {state.to_type} was cancelled in version {version}."
    return ChangeReport(f"version {version}", text, (), is_dry_run=False)


def _require(table: DeltaTable) -> ColumnChangeState:
    state = table.column_change()
    if state is None:
        raise InvalidArgument("no column of the table is being changed", table=table.uri)
    return state


def _in_progress(state: ColumnChangeState) -> ChangeReport:
    return ChangeReport("dry run", _spell(state), (state.column,), is_dry_run=True)


def _spell(state: ColumnChangeState) -> str:
    return (
        f"column {state.column} from {state.from_type} to {state.to_type}: {state.state}, "
        f"{state.num_files_left:,} of {state.num_files:,} files "
        f"({spell_bytes(state.bytes_left)}) remain"
    )


class _ProgressLog:
    """Logs every commit of a column change, and sums them up."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._last: ColumnChangeProgress | None = None

    def __call__(self, progress: ColumnChangeProgress) -> None:
        self._last = progress
        what = "the change is published" if progress.state is None else _spell(progress.state)
        self._log.info(f"version {progress.version}: {what}")

    def markdown(self) -> str:
        if self._last is None:
            return "Another process finished the change."
        return (
            f"| version | rows rewritten | bytes written | values that became null |\n"
            f"|---:|---:|---:|---:|\n"
            f"| {self._last.version} | {self._last.num_rows:,} "
            f"| {spell_bytes(self._last.bytes_written)} | {self._last.num_nulled:,} |"
        )


_STEPS: Mapping[SchemaChangeKind, _Step] = {
    SchemaChangeKind.ALTER: _alter,
    SchemaChangeKind.CHANGE_COLUMN: _change_column,
    SchemaChangeKind.RESUME_COLUMN_CHANGE: _resume,
    SchemaChangeKind.CANCEL_COLUMN_CHANGE: _cancel,
    SchemaChangeKind.MATERIALIZE_DEFAULTS: _materialize_defaults,
}


def in_launchpad_words(text: str) -> str:
    """The text with `pass enable_features=True` as `set enable_features: true`, likewise for every
    option of the config, and `change_column` as the kind of that name.
    """
    return _CALL.sub("kind CHANGE_COLUMN", _OPTION.sub(_as_config, text))


def _as_config(option: re.Match[str]) -> str:
    verb = "set " if option[0].startswith("pass ") else ""
    value = option[2] if option[2].startswith('"') else option[2].lower()
    return f"{verb}{option[1]}: {value}"
