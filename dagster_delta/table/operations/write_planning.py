"""How a write changes the schema, and what its rows must satisfy: decided before any I/O.

Spec: Column Invariants; CHECK Constraints; Consistency Between Table Metadata and Data Files.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, get_args

from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.plans import RowRules, WriteSpec
from dagster_delta.engines.statements.constraint_check import generation_constraints
from dagster_delta.errors import InvalidArgument, SchemaChangeRefused
from dagster_delta.evolution import column_history
from dagster_delta.evolution.column_history import ColumnDivergence as ColumnDivergence
from dagster_delta.evolution.column_paths import dotted, not_null_sql
from dagster_delta.evolution.column_rules import (
    check_fields_of_structs,
    check_file_columns,
    check_nesting,
)
from dagster_delta.evolution.dependants import (
    columns_of_expressions,
    declared_conditions,
)
from dagster_delta.evolution.merge_schema import (
    check_strict,
    merge_schemas,
    records_versions,
    widenable_columns,
)
from dagster_delta.protocol.features.column_values import (
    NO_VALUES,
    ColumnValues,
    column_defaults,
    filled_columns,
    generated_columns,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import text_limits
from dagster_delta.protocol.schema import DecimalType, PrimitiveType, StructType, fold_name
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.table_expressions import check_table_expression
from dagster_delta.sql.typed import quote, quote_path
from dagster_delta.storage.object_store import StoreLocation
from dagster_delta.table.slices import IfPresent
from dagster_delta.table.transaction.retries import StatementOptions

SchemaMode = Literal["strict", "widen", "merge", "overwrite"]

_DEFAULT_FILE_SIZE_BYTES = 128 * 1024 * 1024

_SORTABLE = (PrimitiveType, DecimalType)
_VARIANT = PrimitiveType("variant")
_STRING = PrimitiveType("string")


class WriteOptions(StatementOptions, frozen=True, kw_only=True):
    """Options of an append or an overwrite."""

    schema_mode: SchemaMode = "strict"
    """How the write may change the table's schema."""
    partition_by: Sequence[str] | None = None
    """Partition columns of a new table; on an existing one they must be its own."""
    properties: Mapping[str, object] | None = None
    """Table properties, if the write creates the table."""
    description: str | None = None
    """Description of the table for catalogs and tools, if the write creates the table."""
    sort_by: Sequence[str] = ()
    """Columns that the rows of each file are sorted by."""
    cluster_by: Sequence[str] | None = None
    """Clustering columns of a new table; on an existing one they must be its own."""
    merge_option: str = 'schema_mode="merge"'
    """The option that lets a write add columns, as the caller spells it, for messages."""
    absent: str | None = None
    """Spark SQL that no row of the table may satisfy before an append."""
    where: str | None = None
    """What an overwrite replaces: Spark SQL, or `dynamic` for the partitions of the new rows; None
    for all rows, or those of the slice."""
    replace_using: Sequence[str] | None = None
    """Columns: an overwrite replaces the rows that equal a new row in them."""
    replace_on: str | None = None
    """Spark SQL over the table `t` and the new rows `s`: an overwrite replaces the rows that
    satisfy it with a new row."""
    if_present: IfPresent | None = None
    """What the parts of the slice get that have rows, or the table that exists; None: more rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema_mode not in get_args(SchemaMode):
            raise InvalidArgument(
                "schema_mode is 'strict', 'widen', 'merge' or 'overwrite', not "
                f"{self.schema_mode!r}"
            )
        if self.if_present not in (None, *get_args(IfPresent)):
            raise InvalidArgument(
                f"if_present is 'replace', 'skip' or 'fail', not {self.if_present!r}"
            )
        if self.within is not None and self.where is not None:
            raise InvalidArgument("an overwrite takes where or within, not both")
        if self.where is not None and self.if_present in ("skip", "fail"):
            raise InvalidArgument(
                f"if_present={self.if_present!r} is for the parts of a slice, or for the table: "
                "name the rows by within instead of where"
            )
        self._check_matching()
        if self.absent is not None and self.if_present is not None:
            raise InvalidArgument("an append takes absent or if_present, not both")
        # A text is a sequence of texts for mypy.
        for option in ("partition_by", "sort_by", "cluster_by", "replace_using"):
            if isinstance(columns := getattr(self, option), str):
                raise InvalidArgument(f"{option} is a list of columns; write [{columns!r}]")

    @property
    def replaces_matches(self) -> bool:
        """Whether an overwrite compares the rows of the table with the new ones."""
        return self.replace_using is not None or self.replace_on is not None

    def _check_matching(self) -> None:
        names = ("where", "replace_using", "replace_on")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"an overwrite takes {' or '.join(given)}, one of them")
        if not self.replaces_matches:
            return
        if self.replace_using is not None and not self.replace_using:
            raise InvalidArgument("replace_using names no column, so that nothing is replaced")
        if self.schema_mode == "overwrite":
            raise InvalidArgument(
                f"{given[0]} replaces a part of the rows, and the schema can only be replaced "
                'together with all of them: use schema_mode="merge"'
            )
        if self.if_present in ("skip", "fail"):
            raise InvalidArgument(f"an overwrite takes if_present or {given[0]}, not both")


def plan_configuration(
    current: TableConfiguration | None,
    data_schema: StructType,
    options: WriteOptions,
    *,
    now_ms: int,
    next_version: int | None = None,
) -> TableConfiguration:
    """Protocol and metadata after the write: unchanged if the write changes neither.

    `current` is None if the write creates the table; `next_version` is the version of the write.
    """
    if current is None:
        # Imported late, as in the functions below: most writes change no schema.
        from dagster_delta.evolution.properties import column_names
        from dagster_delta.evolution.table_definition import TableDefinition, define_table

        return define_table(
            TableDefinition(
                data_schema,
                _new_partition_columns(data_schema, options),
                options.properties,
                description=options.description,
            ),
            table_id=str(uuid.uuid4()),
            created_time_ms=now_ms,
            values=EMBEDDED_VALUES,
            # Two writers that create one table give its columns the same names.
            new_name=column_names("", 0),
        )
    if options.schema_mode == "overwrite":
        from dagster_delta.evolution.table_definition import with_schema

        return with_schema(current, data_schema, partition_columns=options.partition_by)
    _check_partitioning(current, options.partition_by)
    filled = filled_columns(current)
    if options.schema_mode != "merge":
        check_strict(current.schema, data_schema, option=options.merge_option, filled=filled)
    if options.schema_mode == "strict":
        return current
    if options.schema_mode == "widen":
        check_widening(current, data_schema)
    return grown_configuration(current, data_schema, filled=filled, next_version=next_version)


def _new_partition_columns(schema: StructType, options: WriteOptions) -> Sequence[str]:
    """The partition columns of a new table."""
    # A table is clustered or partitioned, not both.
    if options.within is None or options.cluster_by or options.partition_by is not None:
        return options.partition_by or ()
    return options.within.key_columns(schema)


def check_widening(current: TableConfiguration, data_schema: StructType) -> None:
    """Refuse wider types of the data if the table does not allow type changes."""
    wider = widenable_columns(current.schema, data_schema)
    if wider and not current.type_widening_enabled:
        raise SchemaChangeRefused(
            'schema_mode="widen" changes types only where the table allows it: set the property '
            "delta.enableTypeWidening = true first. The data are wider in\n"
            + "\n".join(map(str, wider)),
            column=wider[0].column,
        )


def cast_remedy(current: TableConfiguration, data_schema: StructType) -> str:
    """Advice on values that are too wide for their columns, as the end of a message; empty if the
    types of the data are not wider.
    """
    wider = widenable_columns(current.schema, data_schema)
    if not wider:
        return ""
    fixed = _fixed_columns(current)
    option = 'schema_mode="widen" (or "merge")'
    if not current.type_widening_enabled:
        option += " once the table has the property delta.enableTypeWidening = true"
    if any(widening.path[0] in fixed for widening in wider):
        option = "ALTER TABLE … ALTER COLUMN … TYPE"
    return f". {option} gives the columns the wider types of the data:\n" + "\n".join(
        map(str, wider)
    )


def grown_configuration(
    current: TableConfiguration,
    data_schema: StructType,
    *,
    filled: Collection[str],
    next_version: int | None = None,
) -> TableConfiguration:
    """The configuration with the columns of the data that the table lacks, and with types widened
    as far as the table allows.

    The rows may lack the columns in `filled`, nullable or not; `next_version` is the version of the
    write.
    """
    from dagster_delta.evolution.table_definition import with_schema

    merged = grown_schema(current, data_schema, filled=filled, next_version=next_version)
    return with_schema(current, merged)


def grown_schema(
    current: TableConfiguration,
    data_schema: StructType,
    *,
    filled: Collection[str],
    next_version: int | None = None,
) -> StructType:
    """The schema of `grown_configuration`, before new columns have ids."""
    return merge_schemas(
        current.schema,
        data_schema,
        fixed_columns=_fixed_columns(current),
        filled=filled,
        widen_types=current.type_widening_enabled,
        widen_dates=current.supports("timestampNtz"),
        table_version=next_version if records_versions(current) else None,
    )


def find_divergences(
    before: TableConfiguration,
    now: TableConfiguration,
    target: TableConfiguration,
    *,
    columns: tuple[str, ...],
) -> list[ColumnDivergence]:
    """Changes of columns of a table that another one follows, and has not adopted; see
    `column_history`.
    """
    grown = grown_schema(target, now.schema, filled=target.schema.names)
    return column_history.find_divergences(before, now, target, columns=columns, grown=grown)


def columns_narrower_than(rows: StructType, target: TableConfiguration) -> list[ColumnDivergence]:
    """The columns whose type is narrower than in the rows to write, and which a write does not
    widen automatically.
    """
    grown = grown_schema(target, rows, filled=target.schema.names)
    return column_history.columns_narrower_than(rows, grown)


def _fixed_columns(configuration: TableConfiguration) -> frozenset[str]:
    """Logical names of the columns whose types are never widened automatically: rows are laid out
    or filled by them, or an expression uses them.
    """
    fixed = {*configuration.partition_columns, *filled_columns(configuration)}
    if any(map(configuration.supports, ("checkConstraints", "invariants", "generatedColumns"))):
        # Legacy protocols imply all of these.
        has_expressions = (
            configuration.properties.constraints
            or configuration.invariants
            or generated_columns(configuration)
        )
        if has_expressions:
            fixed |= columns_of_expressions(configuration)
    return frozenset(fixed)


def _check_partitioning(current: TableConfiguration, asked: Sequence[str] | None) -> None:
    if asked is None:
        return
    own = [fold_name(name) for name in current.partition_columns]
    if [fold_name(name) for name in asked] != own:
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
    leaves_out: str | None = None,
    values: ColumnValues = NO_VALUES,
    sort_by: Sequence[str] = (),
    is_exact: bool = False,
    rules: RowRules | None = None,
) -> WriteSpec:
    """How rows of a table are written to data files.

    `constraints` are checked in addition to those of the table. Rows that are already in the table
    have passed these, so `check_rows` is False for them. `values` is the source of columns that the
    rows lack; `is_exact` refuses values that lose a part in the type of their column; `rules` is
    what is expected of the rows.
    """
    check_fields_of_structs(configuration.schema)
    check_file_columns(configuration.schema, configuration.partition_columns)
    check_nesting(configuration.schema)
    own = table_constraints(configuration) if check_rows else ()
    if check_rows:
        _check_own_expressions(configuration, location.uri)
    constraints = (*constraints, *_stored_as_given(configuration, (*own, *constraints)))
    own = (*own, *(_text_limits(configuration) if check_rows else ()))
    if values.verified:
        own = (*own, *generation_constraints(values))
    return WriteSpec(
        location=location,
        configuration=configuration,
        values=values,
        constraints=(*own, *constraints),
        rules=rules,
        leaves_out=leaves_out,
        target_file_size_bytes=target_file_size(configuration),
        sort_by=_sort_columns(configuration, sort_by),
        is_exact=is_exact,
    )


def target_file_size(configuration: TableConfiguration) -> int:
    """The size that new files should have, in bytes."""
    return configuration.properties.target_file_size_bytes or _DEFAULT_FILE_SIZE_BYTES


def _check_own_expressions(configuration: TableConfiguration, table: str) -> None:
    """Refuse table expressions that do more than compute, before any engine evaluates them."""
    schema = configuration.schema
    for name, sql in declared_conditions(configuration):
        check_table_expression(sql, schema, name, table=table)
    for column in generated_columns(configuration):
        what = f"generated column {column.column}"
        check_table_expression(column.sql, schema, what, table=table)
    for column in column_defaults(configuration):
        what = f"the default of column {column.column}"
        nothing = StructType(())
        check_table_expression(column.sql, nothing, what, table=table, is_default=True)


def _text_limits(configuration: TableConfiguration) -> Iterator[Constraint]:
    """The lengths of VARCHAR(n) and CHAR(n) columns, which Spark declares beside their type."""
    for limit in text_limits(configuration.schema):
        name = f"{limit.declared.upper()} of column {dotted(limit.path)}"
        sql = f"length({quote_path(limit.path)}) <= {limit.length}"
        yield Constraint(name, sql, null_passes=True)


def _stored_as_given(
    configuration: TableConfiguration, constraints: Sequence[Constraint]
) -> Iterator[Constraint]:
    """Constraints that keep conditions on partition columns true for the stored rows.

    Spec: an empty string is a null partition value.
    """
    texts = [field.name for field in configuration.partition_schema if field.data_type == _STRING]
    if not texts or not constraints:
        return
    parsed = (parse_expression(constraint.sql, configuration.schema) for constraint in constraints)
    named = {fold_name(path[0]) for expression in parsed for path in expression.references}
    for name in texts:
        if fold_name(name) in named:
            what = f"a constraint on partition column {name}, where an empty string becomes null"
            yield Constraint(what, f"{quote(name)} <> ''", null_passes=True)


def _sort_columns(configuration: TableConfiguration, asked: Sequence[str]) -> tuple[str, ...]:
    found = []
    for name in asked:
        field = configuration.schema.get(name)
        if field is None:
            raise InvalidArgument(
                f"sort_by names {name!r}; the columns are {', '.join(configuration.schema.names)}"
            )
        if field.name in configuration.partition_columns:
            raise InvalidArgument(
                f"sort_by names the partition column {field.name!r}, which has one value in every "
                "file; leave it out"
            )
        if not isinstance(field.data_type, _SORTABLE) or field.data_type == _VARIANT:
            raise InvalidArgument(
                f"sort_by names {field.name!r}, whose values have no order; rows are sorted by "
                "columns of atomic types"
            )
        found.append(field.name)
    return tuple(found)


def table_constraints(configuration: TableConfiguration) -> tuple[Constraint, ...]:
    """Constraints that every row of a table must satisfy."""
    not_null = (
        Constraint(f"NOT NULL {'.'.join(path)}", not_null_sql(path))
        for path in configuration.not_null_columns
    )
    declared = (Constraint(name, sql) for name, sql in declared_conditions(configuration))
    return (*not_null, *declared)
