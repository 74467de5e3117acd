"""VALIDATE: whether rows satisfy what their table declares about them, or what a change asks.

Other writers may violate a table's declarations; this finds the violating rows.

Spec: Column Invariants; CHECK Constraints; Generated Columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.statements.constraint_check import generation_constraints
from dagster_delta.errors import (
    MAX_EXAMPLES,
    ConstraintViolation,
    InvalidArgument,
    LogGap,
    SchemaMismatch,
    UnsupportedExpression,
    VersionNotFound,
)
from dagster_delta.evolution.merge_schema import diff_schemas
from dagster_delta.protocol.features.column_values import ColumnValues, generated_columns
from dagster_delta.protocol.log.replay import keys_of
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.python_values import python_rows
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.table.log.commit_range import read_commit_range
from dagster_delta.table.operations.write_planning import table_constraints
from dagster_delta.table.read.file_planner import CandidateFiles, read_plan
from dagster_delta.table.read.scan import Scan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.slices import Slice

if TYPE_CHECKING:
    from dagster_delta.evolution.merge_schema import SchemaDiff
    from dagster_delta.evolution.plan import SchemaChangePlan
    from dagster_delta.protocol.schema import StructType
    from dagster_delta.table.table_handle import TableHandle


class ValidationResult(msgspec.Struct, frozen=True):
    """Which rows violate what their table declares about them."""

    num_rules: int
    """Constraints, invariants, NOT NULL columns and generated columns that the table declares."""
    violations: Mapping[str, int]
    """Number of violating rows by rule, as `name (condition)`; without those that hold."""
    unknown: Mapping[str, str]
    """Why a rule could not be evaluated, by its name."""
    examples: tuple[Mapping[str, Any], ...]
    """A few violating rows."""

    @property
    def is_valid(self) -> bool:
        """Whether every rule was evaluated and holds."""
        return not (self.violations or self.unknown)


def validate(
    table: TableHandle, /, *, since: int | None = None, max_examples: int = MAX_EXAMPLES
) -> ValidationResult:
    """Check that the rows of this handle's version satisfy what the table declares about them: NOT
    NULL, CHECK constraints, invariants and generation expressions. Nothing is written.

    The embedded engine evaluates the rules; `unknown` of the result names those that it cannot, or
    that fail on a value. NOT NULL inside arrays and maps is a part of their types, and no rule.

    Args:
        since: only the rows that were added after this version; all rows if the log no longer
            tells which they are, or if the declarations have changed since.
        max_examples: number of violating rows to return.

    Raises:
        TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
    """
    return validate_rows(rows_since(table._known(), since), max_examples=max_examples)


class NewRows(msgspec.Struct, frozen=True):
    """Rows of a version that rules are evaluated on."""

    snapshot: Snapshot
    since: int | None
    """Version after which rows are new; None for all rows."""
    paths: frozenset[str] | None
    """Files that hold the new rows, with paths as in the log; None for all files."""
    within: Slice | None = None
    """Only rows of a part of the table."""

    @property
    def scope(self) -> str:
        """Description of these rows."""
        whole = "all rows" if self.since is None else f"rows since version {self.since}"
        return whole if self.within is None else f"{whole} of {self.within.name}"

    def batches(self, where: str, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows for which a condition is true, as a `pa.RecordBatchReader`."""
        if self.within is None:
            scan = Scan(self.snapshot, columns, where)
        else:
            scan = self.within.scan(self.snapshot, columns, where)
        if self.paths is None:
            return scan.to_batches()
        if scan.where is not None:
            scan.where.check_embeddable()
        plan = scan.plan()
        wanted = pc.is_in(plan.files["path"], value_set=string_column(sorted(self.paths)))
        return embedded_engine().read(replace(plan, files=plan.files.filter(wanted)))


def rows_since(snapshot: Snapshot, version: int | None) -> NewRows:
    """The rows that were added after a version; all rows if they are unknown, or if the table's
    declarations have changed since.
    """
    everything = NewRows(snapshot, None, None)
    if version is None or version > snapshot.version:
        return everything
    paths: set[str] = set()
    if version < snapshot.version:
        try:
            for commit in read_commit_range(snapshot.store, version + 1, snapshot.version):
                actions = commit.actions
                if actions.metadata is not None or actions.protocol is not None:
                    return everything
                # Compaction moves new rows to files of its own.
                moves_new = not paths.isdisjoint(remove.path for remove in actions.removes)
                paths.update(add.path for add in actions.adds if add.data_change or moves_new)
        except (VersionNotFound, LogGap):
            return everything
    return NewRows(snapshot, version, frozenset(paths))


def validate_rows(rows: NewRows, *, max_examples: int = MAX_EXAMPLES) -> ValidationResult:
    """Whether rows satisfy what their table declares about them."""
    configuration = rows.snapshot.configuration
    generated = ColumnValues(verified=generated_columns(configuration))
    constraints = [*table_constraints(configuration), *generation_constraints(generated)]
    violations: dict[str, int] = {}
    unknown: dict[str, str] = {}
    examples: list[Mapping[str, Any]] = []
    for constraint in constraints:
        broken = _negate(constraint.sql)
        try:
            count = sum(batch.num_rows for batch in rows.batches(broken, ()))
        except (InvalidArgument, SchemaMismatch, UnsupportedExpression) as error:
            # Others wrote the rule, and the rows.
            unknown[constraint.name] = str(error)
            continue
        if count:
            violations[f"{constraint.name} ({constraint.sql})"] = count
            examples += _take_rows(rows.batches(broken), max_examples - len(examples))
    return ValidationResult(len(constraints), violations, unknown, tuple(examples))


def _take_rows(batches: pa.RecordBatchReader, most: int) -> Iterator[Mapping[str, Any]]:
    for batch in batches:
        if most <= 0:
            return
        yield from python_rows(batch.slice(0, most))
        most -= batch.num_rows


def _negate(condition: str) -> str:
    # The newline ends a comment at the end of the text.
    return f"({condition}\n) IS NOT TRUE"


def differing_columns(declared: StructType, snapshot: Snapshot) -> SchemaDiff:
    """How the columns of a version differ from those that were declared."""
    return diff_schemas(declared, snapshot.schema)


class RowValidation(msgspec.Struct):
    """Checks for existing rows that a change would not allow; caches its results."""

    engine: Engine
    _seen: dict[tuple[str, str], set[str]] = msgspec.field(default_factory=dict)
    """Keys of the files whose rows satisfy a constraint, by constraint."""

    def run(self, snapshot: Snapshot, plan: SchemaChangePlan) -> None:
        """Check that every row of a version satisfies every constraint of a plan.

        Files whose statistics prove it are not read. A broken constraint is a ConstraintViolation
        with a few such rows as examples.
        """
        files = snapshot.live_files()
        keys = keys_of(files["path"], files["deletion_vector"])
        for check in plan.checks:
            sql = _negate(check.sql)
            broken = parse_expression(sql, plan.after.schema, self.engine.time_zone)
            seen = self._seen.setdefault((check.name, check.sql), set())
            new = files.filter(pc.invert(pc.is_in(keys, value_set=string_column(sorted(seen)))))
            suspicious = CandidateFiles.among(new, plan.after, broken.typed).files
            read = read_plan(snapshot, suspicious, broken, plan.after)
            examples = self.engine.first_rows(read, MAX_EXAMPLES) if suspicious.num_rows else ()
            if examples:
                raise ConstraintViolation(
                    f"the table holds rows that break {check.name} ({check.sql}): correct or "
                    "delete them first",
                    table=snapshot.store.location.uri,
                    version=snapshot.version,
                    examples=tuple(map(repr, examples)),
                )
            seen.update(keys.to_pylist())
