"""Plans of schema changes: the table after them, their steps, their description for people.

Spec: Change Metadata.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import SchemaChangeRefused
from dagster_delta.evolution.column_paths import ColumnPath, Place, dotted, find_place
from dagster_delta.evolution.plan_report import (
    ENABLE_FEATURES,
    MissingSwitch,
    SchemaChanges,
    code_span,
    compare_schemas,
    configuration_lines,
    missing_switch_lines,
    schema_lines,
    table_cell,
)
from dagster_delta.evolution.properties import set_properties
from dagster_delta.evolution.required_protocol import new_features
from dagster_delta.evolution.table_definition import with_schema
from dagster_delta.protocol.actions import DomainMetadata
from dagster_delta.protocol.features.column_change import ColumnChange
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType, StructType
from dagster_delta.sql.casts import cast_depends_on_time_zone
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.time_zone import UTC
from dagster_delta.sql.types import sql_type_name

ExistingRows = Literal["rewrite", "lazy", "null"]
"""What existing rows hold in a new column with a default: the default, by rewriting their files;
the default, filled in by readers; or null."""

StepEffect = Literal["nothing", "metadata", "validates", "rewrites", "converts"]
"""The work that a step requires: no change; only the log changes; existing rows are read and
checked; existing files are rewritten in the commit of the change; or they are rewritten in batches,
by the online change of a column."""

_EFFECTS = {
    "nothing": "no change",
    "metadata": "metadata only",
    "validates": "existing rows are read, where statistics do not prove it",
    "rewrites": "existing files are rewritten",
    "converts": "existing files are rewritten online, in batches",
}


class PlannedStep(msgspec.Struct, frozen=True):
    """One step of a change."""

    what: str
    """Text of the step: `add column c (integer)`."""
    effect: StepEffect = "metadata"


class BackfillCost(msgspec.Struct, frozen=True):
    """The rewrite of existing rows."""

    num_files: int
    size_bytes: int
    """Size of those files."""
    num_rows: int | None
    """None if a file has no row count."""
    num_batches: int
    """Commits in which the files are rewritten."""


class SchemaChangePlan(msgspec.Struct, frozen=True):
    """A planned schema change."""

    before: TableConfiguration
    """Protocol and metadata in force."""
    after: TableConfiguration
    """Protocol and metadata after the change."""
    steps: tuple[PlannedStep, ...]
    """The steps, in the requested order."""
    fills: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Spark SQL by logical name of the new columns for which existing files are rewritten."""
    existing_defaults: Mapping[ColumnPath, str] = msgspec.field(default_factory=dict)
    """Spark SQL by path of the new columns whose default existing rows get when they are read."""
    checks: tuple[Constraint, ...] = ()
    """Conditions that every existing row must satisfy, over the columns of `after`."""
    domains: Mapping[str, DomainMetadata] = msgspec.field(default_factory=dict)
    """The metadata domains that change, by name."""
    frees_files_of_feature: bool = False
    """Whether data files that use a feature are rewritten without it before the drop: they are read
    as `before` says."""
    affected_files: int = 0
    """Data files to rewrite, if known."""
    affected_bytes: int = 0
    """Size of those files in bytes."""
    missing_switches: tuple[MissingSwitch, ...] = ()
    """What must be turned on before the change; only a dry run plans without it."""
    stages: tuple[SchemaChangePlan, ...] = ()
    """The parts of a statement that changes a column online, in their order: each online change
    separately, and the actions between two of them as one commit. Empty if everything is one
    commit."""

    @classmethod
    def of_stages(
        cls,
        before: TableConfiguration,
        after: TableConfiguration,
        stages: tuple[SchemaChangePlan, ...],
    ) -> SchemaChangePlan:
        """The plan of a statement that is more than one commit."""
        missing = dict.fromkeys(switch for stage in stages for switch in stage.missing_switches)
        return cls(
            before,
            after,
            tuple(step for stage in stages for step in stage.steps),
            affected_files=sum(stage.affected_files for stage in stages),
            affected_bytes=sum(stage.affected_bytes for stage in stages),
            missing_switches=tuple(missing),
            stages=stages,
        )

    @property
    def new_features(self) -> tuple[str, ...]:
        """Names of the table features that the change needs and the table does not have yet."""
        return new_features(self.before, self.after)

    @property
    def summary(self) -> str:
        """The steps as text."""
        return ", ".join(step.what for step in self.steps)

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        return self.before != self.after or bool(self.domains)

    @property
    def rewrites_data(self) -> bool:
        """Whether existing data files must be rewritten."""
        if self.stages:
            return any(step.effect in ("rewrites", "converts") for step in self.steps)
        return bool(self.fills) or self.frees_files_of_feature

    @property
    def validates_rows(self) -> bool:
        """Whether existing rows must be checked."""
        return bool(self.checks)

    @property
    def schema_changes(self) -> SchemaChanges:
        """The difference between the two schemas; columns keep their identity when renamed."""
        return compare_schemas(self.before.schema, self.after.schema)

    def with_files(self, num_files: int, size_bytes: int) -> SchemaChangePlan:
        """The plan with the number and the size of the files to rewrite."""
        if not num_files:
            return self.without_rewrite()
        return replace(self, affected_files=num_files, affected_bytes=size_bytes)

    def without_rewrite(self) -> SchemaChangePlan:
        """The plan for a table without files, which has no rows to rewrite."""
        steps = tuple(
            replace(step, effect="metadata") if step.effect == "rewrites" else step
            for step in self.steps
        )
        return replace(self, fills={}, frees_files_of_feature=False, steps=steps)

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan for people: steps, their cost, new features and the schema diff."""
        return "\n".join(self._render_lines()) + "\n"

    def _render_lines(self) -> Iterator[str]:
        yield "| Change | Cost |"
        yield "|---|---|"
        for step in self.steps:
            yield f"| {table_cell(step.what)} | {_EFFECTS[step.effect]} |"
        yield ""
        if self.stages:
            yield from _stage_lines(self.stages)
            return
        if not self.changes_anything:
            yield "No change is needed: there is nothing to commit."
            return
        if self.rewrites_data:
            yield _rewrite_cost(self)
        yield from missing_switch_lines(self.missing_switches)
        for check in self.checks:
            name, sql = code_span(check.name), code_span(check.sql)
            yield f"- every existing row must satisfy {name}: {sql}"
        yield from configuration_lines(self.before, self.after)
        yield from schema_lines(self.before.schema, self.after.schema)


class ColumnChangePlan(SchemaChangePlan, frozen=True, kw_only=True):
    """A planned online change; `after` is the table at its end."""

    change: ColumnChange
    from_type: DataType
    to_type: DataType
    prepared: TableConfiguration
    """Protocol and metadata at its beginning."""
    cost: BackfillCost | None = None
    """None until the files are known."""

    @property
    def published(self) -> TableConfiguration:
        """Protocol and metadata at its end."""
        return self.after

    def with_cost(self, cost: BackfillCost) -> ColumnChangePlan:
        """The plan with its cost."""
        return replace(
            self, cost=cost, affected_files=cost.num_files, affected_bytes=cost.size_bytes
        )

    def _render_lines(self) -> Iterator[str]:
        change = self.change
        old, new = sql_type_name(self.from_type), sql_type_name(self.to_type)
        how = f"`{change.cast}`" if change.cast is not None else f"CAST to {new}"
        failing = (
            "becomes null"
            if change.on_error == "null"
            else "aborts the change, and the table stays as it was"
        )
        yield from (f"Column `{dotted(change.path)}` from {old} to {new}, online:", "")
        yield f"- values are converted by {how}; a value that cannot be converted {failing}"
        if change.cast is None and cast_depends_on_time_zone(self.from_type, self.to_type):
            yield "- times without a zone are those of UTC, whatever the zone of a session is"
        if change.new_name is not None:
            yield f"- its name becomes {code_span(change.new_name)}"
        for key, value in change.field_metadata:
            what = "comment" if key == "comment" else "default"
            yield f"- its {what} goes" if value is None else f"- its {what}: {code_span(value)}"
        for name, sql in change.checks:
            yield f"- every row has to satisfy {name}: {code_span(sql)}"
        if (cost := self.cost) is not None:
            rows = "" if cost.num_rows is None else f"{_format_count(cost.num_rows, 'row')} in "
            yield (
                f"- cost: {rows}{_format_size(cost.num_files, cost.size_bytes)} are rewritten, "
                f"batches: {cost.num_batches:,}, each a commit, while others read and write"
            )
            yield (
                "- steps: `prepared`, after which writers fill the new column too; `reorganising`, "
                "the batches; `public`, the commit after which readers see the new column"
            )
        yield from missing_switch_lines(self.missing_switches)
        yield from configuration_lines(self.before, self.after)
        yield from schema_lines(self.prepared.schema, self.after.schema)


def _stage_lines(stages: tuple[SchemaChangePlan, ...]) -> Iterator[str]:
    if len(stages) > 1:
        yield (
            f"**{len(stages)} parts, one after the other**: what is done when a later part fails "
            "stays done."
        )
    for number, stage in enumerate(stages, 1):
        if len(stages) > 1:
            how = "an online change" if isinstance(stage, ColumnChangePlan) else "one commit"
            yield from ("", f"### Part {number}: {how}", "")
        yield stage.to_markdown().rstrip("\n")


def _rewrite_cost(plan: SchemaChangePlan) -> str:
    size = _format_size(plan.affected_files, plan.affected_bytes)
    if plan.frees_files_of_feature:
        known = f" ({size})" if plan.affected_files else ""
        return f"**Rewrites data**: the files that use the feature{known}, in a commit of its own."
    return f"**Rewrites data**: {size}, in one commit."


def _format_size(num_files: int, size_bytes: int) -> str:
    return f"{_format_count(num_files, 'file')}, {_format_count(size_bytes, 'byte')}"


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_Work = Literal["fill", "lazy", "default", "not_null"]
"""What a column needs after the change: existing rows rewritten with its default; its default for
existing rows recorded in the log; its new default checked; existing rows checked for nulls."""


@dataclass(slots=True)
class SchemaDraft:
    """The table after the actions so far, and what the caller allows."""

    configuration: TableConfiguration
    existing_rows: ExistingRows = "rewrite"
    enable_features: bool = False
    """Whether features that affect other clients of the table may be enabled as needed."""
    dry_run: bool = False
    """Whether a feature that may not be enabled is listed in `missing_switches` instead of
    refused."""
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    """The metadata domains, by name."""
    table_version: int | None = None
    """The version that makes the change, which tables of the preview of type widening record."""
    has_rows: bool = True
    moment: dt.datetime | None = None
    """When defaults that existing rows read are computed; None: now."""
    find_zone: Callable[[], str] = lambda: UTC
    """Gives the time zone in which they are computed."""
    missing_switches: list[MissingSwitch] = field(default_factory=list, init=False)
    steps: list[PlannedStep] = field(default_factory=list, init=False)
    work: dict[tuple[_Work, ColumnPath], str] = field(default_factory=dict, init=False)
    """What columns need after the change, and the Spark SQL of their default."""
    constraints: dict[str, str] = field(default_factory=dict, init=False)
    """Spark SQL by name of the new CHECK constraints that existing rows must satisfy."""

    @property
    def schema(self) -> StructType:
        """Current logical schema."""
        return self.configuration.schema

    def column(self, path: ColumnPath, change: str) -> Place:
        """The struct field at a path; `change` is a participle for the message: `dropped`."""
        place = find_place(self.schema, path)
        if place.steps:
            raise SchemaChangeRefused(
                f"{dotted(place.path)} is part of the type of column {dotted(place.field_path)}, "
                f"and cannot be {change} by itself",
                column=dotted(place.path),
            )
        return place

    def note(self, what: str, effect: StepEffect = "metadata") -> None:
        """Record a step."""
        self.steps.append(PlannedStep(what, effect))

    def set_schema(
        self, schema: StructType, *, partition_columns: tuple[str, ...] | None = None
    ) -> None:
        """Set another logical schema. Raises InvalidArgument if it is invalid."""
        self.configuration = with_schema(
            self.configuration, schema, partition_columns=partition_columns
        )

    def set_properties(self, properties: Mapping[str, object]) -> None:
        """Set these properties, and the protocol that they need. Raises InvalidArgument."""
        self.configuration = set_properties(self.configuration, properties)

    def require_column_mapping(self, change: str) -> None:
        """Make sure that columns have physical names separate from their logical names."""
        if self.configuration.column_mapping_mode == "none":
            why = f"columns can only be {change} where the table maps them"
            self.turn_on(why, "columnMapping", "delta.columnMapping.mode", "name")
            self.note(
                "map columns by name: every column gets an id, and keeps its name in the files"
            )

    def require_type_widening(self) -> None:
        """Make sure that types may be widened."""
        if not self.configuration.type_widening_enabled:
            why = "types can only be changed where the table allows it"
            self.turn_on(why, "typeWidening", "delta.enableTypeWidening", "true")
            self.note("enable type widening")

    def turn_on(self, why: str, switch: str, key: str, value: str) -> None:
        """Set a property that a change needs, if that is allowed."""
        if not self.enable_features:
            remedy = (
                f"set the table property {key} = {value} first, in the same statement if you like, "
                f"or {ENABLE_FEATURES}"
            )
            self.miss(why, MissingSwitch(switch, remedy))
        self.set_properties({key: value})

    def miss(self, why: str, switch: MissingSwitch) -> None:
        """Refuse a change because of a switch that is off; a dry run lists the switch."""
        if not self.dry_run:
            raise SchemaChangeRefused(
                f"{why}: {switch.remedy}; readers and writers must support the feature then"
            )
        self.missing_switches.append(switch)

    def work_of(self, kind: _Work) -> dict[ColumnPath, str]:
        """Paths, and the Spark SQL of their default, of the columns that need a kind of work."""
        return {path: sql for (found, path), sql in self.work.items() if found == kind}

    def follow(self, old: ColumnPath, new: ColumnPath | None) -> None:
        """Keep the planned work for a column that is renamed, and discard it for a dropped one."""
        work, self.work = self.work, {}
        for (kind, path), sql in work.items():
            if path[: len(old)] != old:
                self.work[kind, path] = sql
            elif new is not None:
                self.work[kind, (*new, *path[len(old) :])] = sql
