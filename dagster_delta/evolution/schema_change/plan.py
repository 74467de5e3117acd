"""The plan of a schema change: its steps, and its description for people.

Spec: Change Metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dagster_delta.engines.plans import Constraint
from dagster_delta.evolution.column_paths import ColumnPath
from dagster_delta.evolution.plan_report import (
    MissingSwitch,
    code_span,
    configuration_lines,
    missing_switch_lines,
    table_cell,
)
from dagster_delta.evolution.properties.required_protocol import new_features
from dagster_delta.evolution.schema_change.draft import PlannedStep
from dagster_delta.evolution.schema_history import SchemaChanges, compare_schemas
from dagster_delta.protocol.features.table_configuration import TableConfiguration

if TYPE_CHECKING:
    from dagster_delta.evolution.column_change.plan import ColumnChangePlan

_EFFECTS = {
    "nothing": "no change",
    "metadata": "metadata only",
    "validates": "metadata only, after existing rows are validated",
    "rewrites": "existing files are rewritten",
    "converts": "existing files are rewritten online, in batches",
}

ExistingRows = Literal["rewrite", "lazy", "null"]
"""What existing rows hold in a new column with a default: the default, by rewriting their files;
the default, filled in by readers; or null."""


@dataclass(frozen=True, slots=True)
class SchemaChangePlan:
    """A planned schema change."""

    before: TableConfiguration
    """Protocol and metadata in force."""
    after: TableConfiguration
    """Protocol and metadata after the change."""
    steps: tuple[PlannedStep, ...]
    """The steps, in the requested order."""
    fills: Mapping[str, str] = field(default_factory=dict)
    """Spark SQL by logical name of the new columns for which existing files are rewritten."""
    existing_defaults: Mapping[ColumnPath, str] = field(default_factory=dict)
    """Spark SQL by path of the new columns whose default existing rows get when they are read."""
    materializes_defaults: bool = False
    """Whether files are rewritten that lack columns whose default they are read with."""
    checks: tuple[Constraint, ...] = ()
    """Conditions that every existing row must satisfy, over the columns of `after`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """New configuration by name of the metadata domains that change."""
    frees_files_of_feature: bool = False
    """Whether data files that use a feature are rewritten without it before the drop."""
    affected_files: int = 0
    """Data files to rewrite, if known."""
    affected_bytes: int = 0
    """Size of those files in bytes."""
    missing_switches: tuple[MissingSwitch, ...] = ()
    """What must be turned on before the change; only a dry run plans without it."""
    stages: tuple[SchemaChangePlan | ColumnChangePlan, ...] = ()
    """The parts of a statement that changes a column online, in their order: each online change
    separately, and the actions between two of them as one commit. Empty if everything is one
    commit."""

    @property
    def new_features(self) -> tuple[str, ...]:
        """Names of the table features that the change needs and the table does not have yet."""
        return new_features(self.before, self.after)

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        return self.before != self.after or bool(self.domains)

    @property
    def rewrites_data(self) -> bool:
        """Whether existing data files must be rewritten."""
        if self.stages:
            return any(step.effect in ("rewrites", "converts") for step in self.steps)
        return bool(self.fills) or self.materializes_defaults or self.frees_files_of_feature

    @property
    def validates_rows(self) -> bool:
        """Whether existing rows must be checked."""
        return bool(self.checks)

    @property
    def schema_changes(self) -> SchemaChanges:
        """The difference between the two schemas; columns keep their identity when renamed."""
        return compare_schemas(self.before.schema, self.after.schema)

    def __str__(self) -> str:
        return self.to_markdown()

    def to_markdown(self) -> str:
        """The plan for people: steps, their cost, the protocol and the schema diff."""
        return "\n".join(_lines(self)) + "\n"


def _lines(plan: SchemaChangePlan) -> Iterator[str]:
    yield "| Change | Cost |"
    yield "|---|---|"
    for step in plan.steps:
        yield f"| {table_cell(step.what)} | {_EFFECTS[step.effect]} |"
    yield ""
    if plan.stages:
        yield from _stage_lines(plan.stages)
        return
    if not plan.changes_anything:
        yield "No change is needed: there is nothing to commit."
        return
    yield _cost(plan)
    yield from missing_switch_lines(plan.missing_switches)
    for check in plan.checks:
        yield f"- every existing row must satisfy {code_span(check.name)}: {code_span(check.sql)}"
    yield from configuration_lines(plan.before, plan.after)
    if changes := plan.schema_changes:
        yield ""
        yield "```diff"
        yield from changes.lines
        yield "```"


def _stage_lines(stages: tuple[SchemaChangePlan | ColumnChangePlan, ...]) -> Iterator[str]:
    if len(stages) > 1:
        yield (
            f"**{len(stages)} parts, one after the other**: what is done when a later part fails "
            "stays done."
        )
    for number, stage in enumerate(stages, 1):
        if len(stages) > 1:
            how = "one commit" if isinstance(stage, SchemaChangePlan) else "an online change"
            yield from ("", f"### Part {number}: {how}", "")
        yield stage.to_markdown().rstrip("\n")


def _cost(plan: SchemaChangePlan) -> str:
    if plan.frees_files_of_feature:
        known = f" ({_size(plan)})" if plan.affected_files else ""
        return f"**Rewrites data**: the files that use the feature{known}, in a commit of its own."
    if plan.rewrites_data:
        return f"**Rewrites data**: {_size(plan)}, in one commit."
    if plan.validates_rows:
        return "**Reads data** where statistics do not prove the constraint; rewrites none."
    if plan.existing_defaults:
        return "**Metadata only**: no row is read, and no data file is written."
    return "**Metadata only**: no data file is read or written."


def _size(plan: SchemaChangePlan) -> str:
    return f"{plan.affected_files} files, {plan.affected_bytes} bytes"
