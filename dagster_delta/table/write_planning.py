"""What a write does to the schema, and what its rows have to satisfy: decided before any I/O.

Spec: Column Invariants; CHECK Constraints; Consistency Between Table Metadata and Data Files.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dagster_delta.engines.engine import Constraint, WriteSpec
from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.merge_schema import check_strict, merge_schemas
from dagster_delta.evolution.table_definition import TableDefinition, define_table, with_schema
from dagster_delta.protocol.column_values import (
    NO_VALUES,
    ColumnValues,
    filled_columns,
    generated_columns,
)
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import StoreLocation
from dagster_delta.table.transaction import ApplicationProgress

__all__ = [
    "SchemaMode",
    "WriteOptions",
    "grown_configuration",
    "new_column_name",
    "plan_configuration",
    "write_spec",
]

SchemaMode = Literal["strict", "merge", "overwrite"]

_DEFAULT_FILE_SIZE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a caller wants rows to be written."""

    schema_mode: SchemaMode = "strict"
    """What may happen to the table's schema."""
    partition_by: Sequence[str] | None = None
    """Partition columns of a new table; on an existing one they must be its own."""
    idempotency: tuple[str, int] | None = None
    """Application id and version under which the write is done at most once."""
    commit_info: Mapping[str, object] | None = None
    """Recorded in the commitInfo."""
    engine: str | None = None
    """`arrow` or `spark`; None lets the data decide."""
    check: str | None = None
    """Spark SQL that every new row has to satisfy."""
    properties: Mapping[str, object] | None = None
    """Table properties, where the write creates the table."""
    progress: Sequence[ApplicationProgress] = ()
    """Applications that get on with the write, and only from where they stood."""

    def __post_init__(self) -> None:
        if self.schema_mode not in ("strict", "merge", "overwrite"):
            raise InvalidArgument(
                f"schema_mode is 'strict', 'merge' or 'overwrite', not {self.schema_mode!r}"
            )
        if isinstance(self.partition_by, str):
            raise InvalidArgument(
                f"partition_by is a list of columns; write [{self.partition_by!r}]"
            )
        match self.idempotency:
            case None | (str(), int()):
                return
            case _:
                raise InvalidArgument(
                    "idempotency is an application id and its version, as in ('nightly', 7), not "
                    f"{self.idempotency!r}"
                )


def new_column_name() -> str:
    """A physical column name that no other column ever had."""
    return f"col-{uuid.uuid4()}"


def plan_configuration(
    current: TableConfiguration | None,
    data_schema: StructType,
    options: WriteOptions,
    *,
    now_ms: int,
) -> TableConfiguration:
    """Protocol and metadata after the write: the current ones where the write changes neither.

    Args:
        current: of the table; None where the write creates it.
        data_schema: logical schema of the rows.
        options: of the caller.
        now_ms: creation time of a new table, in milliseconds since the epoch.

    Raises:
        SchemaMismatch: the rows have other columns, and the options do not allow the change.
        InvalidArgument: the partitioning or a column name makes no sense.
    """
    if current is None:
        return define_table(
            TableDefinition(data_schema, options.partition_by or (), options.properties),
            table_id=str(uuid.uuid4()),
            created_time_ms=now_ms,
            new_name=new_column_name,
        )
    if options.schema_mode == "overwrite":
        return with_schema(
            current,
            data_schema,
            partition_columns=options.partition_by,
            new_name=new_column_name,
        )
    _check_partitioning(current, options.partition_by)
    filled = filled_columns(current)
    if options.schema_mode == "strict":
        check_strict(current.schema, data_schema, option='schema_mode="merge"', filled=filled)
        return current
    return grown_configuration(current, data_schema, filled=filled)


def grown_configuration(
    current: TableConfiguration, data_schema: StructType, *, filled: Collection[str]
) -> TableConfiguration:
    """The configuration with the columns of the data that the table lacks, and with types widened
    as far as it lets us.

    Args:
        current: of the table.
        data_schema: logical schema of the rows.
        filled: logical names of columns that the rows may lack, nullable or not.

    Raises:
        SchemaMismatch: a new column has no type, or one that may not be null is lacking.
    """
    merged = merge_schemas(
        current.schema,
        data_schema,
        fixed_columns={*current.partition_columns, *_computed_with(current)},
        filled=filled,
        widen_types=current.type_widening_enabled,
        widen_dates=current.supports("timestampNtz"),
    )
    return with_schema(current, merged, new_name=new_column_name)


def _computed_with(configuration: TableConfiguration) -> Iterator[str]:
    """Logical names of the columns whose types something counts on: those that are filled, and
    those that generated columns are computed from.
    """
    yield from filled_columns(configuration)
    for each in generated_columns(configuration):
        from dagster_delta.engines.sql.expressions import parse_expression

        expression = parse_expression(each.sql, configuration.schema)
        yield from (path[0] for path in expression.references)


def _check_partitioning(current: TableConfiguration, asked: Sequence[str] | None) -> None:
    if asked is None:
        return
    own = [name.casefold() for name in current.partition_columns]
    if [name.casefold() for name in asked] != own:
        raise InvalidArgument(
            f"the table is partitioned by {list(current.partition_columns)}, not {list(asked)}; "
            "leave partition_by out, or replace the table by an overwrite with "
            'schema_mode="overwrite"'
        )


def write_spec(
    configuration: TableConfiguration,
    location: StoreLocation,
    *,
    constraints: Sequence[Constraint] = (),
    check_rows: bool = True,
    values: ColumnValues = NO_VALUES,
) -> WriteSpec:
    """How rows of a table become data files.

    Args:
        configuration: protocol and metadata the files are written under.
        location: of the table.
        constraints: checked besides those of the table.
        check_rows: whether the table's own constraints are checked; rows that stand in the table
            already have passed them.
        values: where the columns come from that the rows do not bring.
    """
    own = table_constraints(configuration) if check_rows else ()
    if values.verified:
        from dagster_delta.engines.row_completion import generation_constraints

        own = (*own, *generation_constraints(values))
    return WriteSpec(
        location=location,
        configuration=configuration,
        values=values,
        constraints=(*own, *constraints),
        target_file_size_bytes=configuration.properties.target_file_size_bytes
        or _DEFAULT_FILE_SIZE_BYTES,
    )


def table_constraints(configuration: TableConfiguration) -> tuple[Constraint, ...]:
    """What every row of a table has to satisfy."""
    not_null = (
        Constraint(f"NOT NULL {'.'.join(path)}", _not_null_sql(path))
        for path in configuration.not_null_columns
    )
    invariants = (
        Constraint(f"invariant {column}", sql) for column, sql in configuration.invariants
    )
    # Spec: CHECK constraints bind where the protocol supports them.
    checks = (
        configuration.properties.constraints if configuration.supports("checkConstraints") else {}
    )
    named = (Constraint(f"CHECK {name}", sql) for name, sql in checks.items())
    return (*not_null, *invariants, *named)


def _not_null_sql(path: tuple[str, ...]) -> str:
    required = f"{_quote(path)} IS NOT NULL"
    # A nested field binds only where the struct that holds it is there.
    return f"{_quote(path[:-1])} IS NULL OR {required}" if len(path) > 1 else required


def _quote(path: tuple[str, ...]) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)
