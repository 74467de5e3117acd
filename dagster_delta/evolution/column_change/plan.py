"""An online change of a column: the request, its effect and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster_delta.evolution.column_paths import dotted
from dagster_delta.evolution.plan_report import (
    MissingSwitch,
    code_span,
    configuration_lines,
    missing_switch_lines,
)
from dagster_delta.evolution.properties.required_protocol import new_features
from dagster_delta.evolution.schema_history import compare_schemas
from dagster_delta.protocol.features.column_change import ColumnChange, OnError, Position
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import DataType
from dagster_delta.sql.casts import cast_depends_on_time_zone
from dagster_delta.sql.types import sql_type_name


@dataclass(frozen=True, slots=True)
class ColumnChangeRequest:
    """The request of a caller."""

    column: str | Sequence[str]
    """Path of the column, or of a field, `element` or `value` in it."""
    new_type: str | DataType
    """Any atomic type, as SQL or as a type of the schema."""
    cast: str | None = None
    """Spark SQL over the row for the new value of a top-level column; None: CAST."""
    on_error: OnError = "abort"
    nullable: bool | None = None
    """Whether the changed column is nullable; None: unchanged."""
    position: str | Position | None = None
    """`FIRST`, the name of the previous column, or a `Position`; None: unchanged."""
    enable_features: bool = False
    """Whether missing features and properties may be turned on for the change."""
    is_allowed: bool = True
    """Whether the table handle allows online column changes."""
    new_name: str | None = None
    """Name of the column, or struct field, after the change; None: unchanged."""
    field_metadata: tuple[tuple[str, str | None], ...] = ()
    """Field metadata to set with the change; None removes a key."""


@dataclass(frozen=True, slots=True)
class BackfillCost:
    """The rewrite of existing rows."""

    num_files: int
    size_bytes: int
    """Size of those files."""
    num_rows: int | None
    """None if a file has no row count."""
    num_batches: int
    """Commits in which the files are rewritten."""


@dataclass(frozen=True, slots=True)
class ColumnChangePlan:
    """A planned online change."""

    change: ColumnChange
    from_type: DataType
    to_type: DataType
    before: TableConfiguration
    """Protocol and metadata in force."""
    prepared: TableConfiguration
    """Protocol and metadata at its beginning."""
    published: TableConfiguration
    """Protocol and metadata at its end."""
    missing_switches: tuple[MissingSwitch, ...] = ()
    """What must be turned on before the change begins."""
    cost: BackfillCost | None = None
    """None until the files are known."""

    @property
    def new_features(self) -> tuple[str, ...]:
        """Names of the table features that the change needs and the table does not have yet."""
        return new_features(self.before, self.published)

    def __str__(self) -> str:
        return self.to_markdown()

    @property
    def summary(self) -> str:
        """The change as text: `change column v from string to int online`."""
        change = self.change
        old, new = sql_type_name(self.from_type), sql_type_name(self.to_type)
        renamed = f", renamed to {dotted((change.new_name,))}" if change.new_name else ""
        return f"change column {dotted(change.path)} from {old} to {new} online{renamed}"

    def to_markdown(self) -> str:
        """The plan for people: the change, the conditions on rows, the features and properties it
        sets, the commits and their cost, the schema diff. Raises nothing.
        """
        change = self.change
        old, new = sql_type_name(self.from_type), sql_type_name(self.to_type)
        how = f"`{change.cast}`" if change.cast is not None else f"CAST to {new}"
        failing = (
            "a value that cannot be converted becomes null"
            if change.on_error == "null"
            else "a value that cannot be converted aborts the change, and the table stays as it was"
        )
        lines = [
            f"Column `{dotted(change.path)}` from {old} to {new}, online:",
            "",
            f"- values are converted by {how}; {failing}",
            *self._zone(),
            *self._redefinition(),
            *(
                f"- every row has to satisfy {name}: {code_span(sql)}"
                for name, sql in change.checks
            ),
            *self._commits(),
            *missing_switch_lines(self.missing_switches),
            *configuration_lines(self.before, self.published),
            "",
            "```diff",
            *compare_schemas(self.prepared.schema, self.published.schema).lines,
            "```",
        ]
        return "\n".join(lines) + "\n"

    def _zone(self) -> list[str]:
        if self.change.cast is None and cast_depends_on_time_zone(self.from_type, self.to_type):
            return ["- times without a zone are those of UTC, whatever the zone of a session is"]
        return []

    def _redefinition(self) -> Iterator[str]:
        if self.change.new_name is not None:
            yield f"- its name becomes {code_span(self.change.new_name)}"
        for key, value in self.change.field_metadata:
            what = "comment" if key == "comment" else "default"
            yield f"- its {what} goes" if value is None else f"- its {what}: {code_span(value)}"

    def _commits(self) -> Iterator[str]:
        cost = self.cost
        if cost is None:
            return
        rows = "" if cost.num_rows is None else f"{cost.num_rows:,} rows in "
        yield (
            f"- cost: {rows}{cost.num_files:,} files, {cost.size_bytes:,} bytes are rewritten, "
            f"batches: {cost.num_batches:,}, each a commit, while others read and write"
        )
        yield (
            "- steps: `prepared`, after which writers fill the new column too; `reorganising`, in "
            "which the batches are rewritten; `public`, the commit after which readers see the new "
            "column"
        )
