"""Changes of a table prepared from the rows of a DataFrame: new values, old values, checks.

The query decides the action on each row; the tasks write it. Rows never reach the driver, and
the DataFrame is evaluated once, or again if a row is long.

Assigned values are cast to the type of their column, fields by name. A cast never fails in the
query: a value that does not fit becomes null with a flag beside it, and the task that writes the
row refuses it. The result does not depend on ANSI mode. Given columns are cast by the task.

Spec: Add File and Remove File; Change Data Files; Generated Columns; Identity Columns; Default
Columns; Column Invariants; CHECK Constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from dagster_delta.cached_property import cached_property
from dagster_delta.engines.plans import Assignment, WriteSpec
from dagster_delta.engines.spark.executor_reports import REPORT_SCHEMA, settle_reports
from dagster_delta.engines.spark.read.file_keys import FILE_KEY, ROW_INDEX
from dagster_delta.engines.spark.session.errors import spark_failures
from dagster_delta.engines.spark.session.schema import (
    declared_column,
    from_spark_schema,
    sql_column,
    to_spark_type,
)
from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.engines.spark.write.arrow_batches import collect_counted
from dagster_delta.engines.spark.write.tasks import (
    ChangeDetail,
    ChangeTask,
    RowAction,
    WrittenChanges,
    changes_of,
)
from dagster_delta.engines.statements.assignments import refuse_lacking_fields, source_structs
from dagster_delta.engines.statements.constraint_check import generation_constraints
from dagster_delta.engines.statements.expectations import delete_rows_aside
from dagster_delta.engines.statements.row_tracking import CarriedIds
from dagster_delta.errors import SchemaMismatch
from dagster_delta.protocol.features.column_values import (
    LONG_MAX,
    LONG_MIN,
    NO_VALUES,
    ColumnExpression,
    ColumnValues,
    IdentityColumn,
)
from dagster_delta.protocol.schema import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expressions import parse_expression
from dagster_delta.sql.types import VOID
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_ACTION = "__delta_action"
_NOTHING = -1


class RowChange(msgspec.Struct, frozen=True):
    """The action on rows for which its condition is true and all earlier ones are not."""

    action: RowAction
    applies: Column | None = None
    """None is always true."""
    assignments: tuple[Assignment, ...] = ()
    """Over the frame; an update keeps the other columns, an insert makes them null."""
    completion: ColumnValues = NO_VALUES
    """How columns that the change does not name get their values."""
    fills: bool = False
    """Whether fields of structs that a value lacks become null."""
    given: Mapping[str, Column] | None = None
    """Columns of an insert by logical name, in a type that the task casts; None for no columns."""


class ChangingRows(msgspec.Struct, frozen=True, dict=True):
    """A DataFrame, and the changes of its rows."""

    frame: DataFrame
    changes: Sequence[RowChange]
    data: WriteSpec
    """Its constraints apply to the rows that are inserted or updated."""
    change_data: WriteSpec | None
    """How changes are recorded; None if they are not."""
    old: Callable[[str], Column]
    """Columns of the row before the change, by logical name; inserts do not use them."""
    with_positions: bool = False
    """Whether to report which rows of the table change."""
    source_number: str | None = None
    """Column of row numbers; those that are not null are reported as matched."""
    conditions: tuple[str, ...] = ()
    """Columns that say whether a row satisfies each expectation of `data`."""
    shown: tuple[str, ...] = ()
    """Logical names of the columns that are shown of a row that violates one."""
    is_gathered: bool = True
    """Whether the rows of a partition are brought together, in few tasks. Adaptive execution splits
    a partition that is too big for a task."""

    @cached_property
    def _functions(self) -> ModuleType:
        return functions_of(self.frame)

    @property
    def _fields(self) -> tuple[StructField, ...]:
        return self.data.configuration.schema.fields

    @property
    def _with_old(self) -> bool:
        return self.change_data is not None and any(e.action == "update" for e in self.changes)

    @cached_property
    def _values(self) -> list[dict[tuple[str, ...], _Stored]]:
        """For each change the values that it assigns, as their columns store them, and the text of
        those that do not fit: null for the others.
        """
        functions, schema = self._functions, self.data.configuration.schema
        texts = [
            (index, path, sql)
            for index, change in enumerate(self.changes)
            for path, sql in _list_assignments(change)
        ]
        if not texts:
            return [{} for _ in self.changes]
        columns = [sql_column(sql, functions) for *_, sql in texts]
        typed = self.frame.select(*[column.alias(f"_{i}") for i, column in enumerate(columns)])
        types = from_spark_schema(typed.schema, with_collations=True)
        values: list[dict[tuple[str, ...], _Stored]] = [{} for _ in self.changes]
        for (index, path, _), column, field in zip(texts, columns, types, strict=True):
            change, target = self.changes[index], schema.fields_along(path)[-1].data_type
            assigned = {each.column: each.is_exact for each in change.assignments}
            if path in assigned and not change.fills:
                refuse_lacking_fields(path, field.data_type, target)
            is_exact = assigned.get(path, False)
            storage = _Storage(functions, ".".join(path), is_exact=is_exact)
            stored, fits = storage.stored(column, field.data_type, target)
            text = _show_value(column, field.data_type, functions)
            misfit = None if fits is None else functions.when(~fits, text)
            values[index][path] = stored, misfit
        return values

    @cached_property
    def constraints(self) -> tuple[tuple[Constraint, frozenset[int]], ...]:
        """The constraints to check, and for the rows of which changes."""
        writing = frozenset(
            index
            for index, change in enumerate(self.changes)
            if change.action in ("insert", "update")
        )
        found = [(constraint, writing) for constraint in self.data.constraints]
        for index, change in enumerate(self.changes):
            verified = generation_constraints(change.completion)
            found += [(constraint, frozenset((index,))) for constraint in verified]
        return tuple(found)

    def task(self) -> ChangeTask:
        """The task that writes the rows of `columns`."""
        constraints = tuple(constraint for constraint, _ in self.constraints)
        return ChangeTask(
            data=replace(self.data, constraints=constraints),
            change_data=self.change_data,
            actions=tuple(change.action for change in self.changes),
            with_positions=self.with_positions,
            with_sources=self.source_number is not None,
            with_old=self._with_old,
            casts=tuple((name, data_type) for name, data_type, _ in self._list_misfits()),
            numbered=tuple(change.completion.identities for change in self.changes),
            shown=self.shown,
        )

    def columns(self) -> DataFrame:
        """The rows in the form that the task takes.

        Rows are numbered last, in the stage that writes them: if Spark retries a task, only the
        files of one attempt count. So the shuffle comes before.
        """
        functions = self._functions
        rows = self.frame.withColumn(_ACTION, self._choose_action())
        if self.source_number is None:
            rows = rows.where(functions.col(_ACTION) >= 0)
        else:
            known = functions.col(self.source_number).isNotNull()
            rows = rows.where((functions.col(_ACTION) >= 0) | known)
        leading: list[Column | str] = [_ACTION]
        if self.with_positions:
            leading += [FILE_KEY, ROW_INDEX]
        if self.source_number is not None:
            leading.append(functions.col(self.source_number).alias("__source"))
        old = [self.old(field.name) for field in self._fields] if self._with_old else []
        rows = rows.select(
            *leading,
            *[
                self._compute_new_value(field).alias(f"__new_{i}")
                for i, field in enumerate(self._fields)
            ],
            *[column.alias(f"__old_{i}") for i, column in enumerate(old)],
            *[text.alias(f"__misfit_{i}") for i, (_, _, text) in enumerate(self._list_misfits())],
            *self.conditions,
        )
        early, late = self._by_need()
        rows = self._complete_rows(rows, early)
        if self.data.leaves_out is not None:
            inside = sql_column(f"coalesce({self.data.leaves_out}, false)", functions)
            rows = self._add_logical_names(rows).where(~inside).select(*rows.columns)
        if self.is_gathered:
            keys = map(self._new_name, self.data.configuration.partition_columns)
            rows = rows.hint("rebalance", *[functions.col(key) for key in keys])
        return self._add_checks(
            self._complete_rows(self._complete_rows(rows, self._identities), late)
        )

    def _choose_action(self) -> Column:
        """Index of the first change that applies: later conditions are not evaluated, as they could
        fail on this row.
        """
        functions = self._functions
        action: Column = functions.lit(_NOTHING)
        for index, change in reversed(list(enumerate(self.changes))):
            chosen = functions.lit(index)
            if change.applies is None:
                action = chosen
            else:
                action = functions.when(change.applies, chosen).otherwise(action)
        return action

    def _compute_new_value(self, field: StructField) -> Column:
        functions = self._functions
        null = functions.lit(None).cast(to_spark_type(field.data_type))
        cases = [
            (index, self._new_value(index, change, field))
            for index, change in enumerate(self.changes)
        ]
        return self._by_action(
            [(index, value) for index, value in cases if value is not None], null
        )

    def _new_value(self, index: int, change: RowChange, field: StructField) -> Column | None:
        """The column after one change; None for null."""
        if change.action == "copy":
            return self.old(field.name)
        if change.action == "delete":
            # The old row is recorded; these columns have it if there is no separate copy.
            is_recorded = self.change_data is not None and not self._with_old
            return self.old(field.name) if is_recorded else None
        if change.given is not None and field.name in change.given:
            return change.given[field.name]
        own = {
            path[1:]: stored
            for path, (stored, _) in self._values[index].items()
            if path[0] == field.name
        }
        if field.name == CarriedIds.of(self.data.configuration).version_column:
            # The version of a row that changes is that of the commit.
            return None
        if () in own:
            return own[()]
        if own:
            assert isinstance(field.data_type, StructType)  # noqa: S101  paths lead through structs
            structs = source_structs(change.assignments, field.name).items()
            sources = {path: sql_column(struct.sql, self._functions) for path, struct in structs}
            return with_fields(self.old(field.name), field.data_type, own, self._functions, sources)
        return self.old(field.name) if change.action == "update" else None

    def _list_misfits(self) -> Iterator[tuple[str, DataType, Column]]:
        """The columns with values that may not fit, their types, and the text of those that do not
        fit: null for the others.
        """
        schema, null = self.data.configuration.schema, self._functions.lit(None).cast("string")
        found: dict[tuple[str, ...], list[tuple[int, Column]]] = {}
        for index, values in enumerate(self._values):
            for path, (_, misfit) in values.items():
                if misfit is not None:
                    found.setdefault(path, []).append((index, misfit))
        for path, cases in found.items():
            target = schema.fields_along(path)[-1].data_type
            yield ".".join(path), target, self._by_action(cases, null)

    def _by_action(self, cases: Sequence[tuple[int, Column]], other: Column) -> Column:
        functions = self._functions
        if len(cases) == 1 and self._is_single:
            # Only rows to which the change applies remain; on others it could fail.
            return cases[0][1]
        result = other
        for index, value in reversed(cases):
            result = functions.when(functions.col(_ACTION) == index, value).otherwise(result)
        return result

    def _in_rows_of(self, indexes: frozenset[int], value: Column, other: Column) -> Column:
        """A value for the rows of some changes, another one for the rest."""
        if indexes and self._is_single:
            return value
        functions = self._functions
        return functions.when(functions.col(_ACTION).isin(*indexes), value).otherwise(other)

    @property
    def _is_single(self) -> bool:
        """Whether every row changes in one way."""
        return len(self.changes) == 1 and self.source_number is None

    def _by_need(self) -> tuple[list[ColumnExpression], list[ColumnExpression]]:
        """The generated columns that can be computed before rows are numbered, and the others."""
        numbered = {identity.column for identity in self._identities}
        generated = dict.fromkeys(c for change in self.changes for c in change.completion.generated)
        if not numbered:
            return list(generated), []
        early: list[ColumnExpression] = []
        late: list[ColumnExpression] = []
        for column in generated:
            expression = parse_expression(column.sql, self.data.configuration.schema)
            bases = {path[0] for path in expression.references}
            (late if bases & numbered else early).append(column)
        return early, late

    @property
    def _identities(self) -> list[IdentityColumn]:
        found = (i for change in self.changes for i in change.completion.identities)
        return list(dict.fromkeys(found))

    def _complete_rows(
        self, rows: DataFrame, columns: Sequence[ColumnExpression | IdentityColumn]
    ) -> DataFrame:
        """The rows with generated columns, which are computed from the new values, or numbers."""
        if not columns:
            return rows
        functions, computed = self._functions, {}
        for column in columns:
            field = self.data.configuration.schema.field(column.column)
            if isinstance(column, IdentityColumn):
                value = identity_value(column, functions)
            elif self._is_single:
                value = sql_column(column.sql, functions)
            else:
                value = sql_column(column.sql, functions).try_cast(to_spark_type(field.data_type))
            indexes = frozenset(
                index
                for index, change in enumerate(self.changes)
                if column in (*change.completion.generated, *change.completion.identities)
            )
            name = self._new_name(field.name)
            computed[name] = self._in_rows_of(indexes, value, functions.col(name)).alias(name)
        return self._add_logical_names(rows).select(
            *[computed.get(name, name) for name in rows.columns]
        )

    def _add_checks(self, rows: DataFrame) -> DataFrame:
        if not self.constraints:
            return rows
        functions, always = self._functions, self._functions.lit(True)
        checks = []
        for index, (constraint, indexes) in enumerate(self.constraints):
            check = sql_column(constraint.sql, functions).cast("boolean")
            checks.append(self._in_rows_of(indexes, check, always).alias(f"__check_{index}"))
        return self._add_logical_names(rows).select(*rows.columns, *checks)

    def _add_logical_names(self, rows: DataFrame) -> DataFrame:
        """The rows, and the new columns a second time under their logical names and as stored: null
        if a value does not fit, which the task refuses before it checks the constraints.
        """
        functions, named = self._functions, []
        found = {field.name: field.dataType for field in rows.schema.fields}
        for field in self._fields:
            name, target = self._new_name(field.name), to_spark_type(field.data_type)
            column = functions.col(name)
            if found[name] != target and not _is_nested(field.data_type):
                column = column.try_cast(target)
            named.append(declared_column(column, field))
        return rows.select("*", *named)

    def _new_name(self, column: str) -> str:
        return f"__new_{self.data.configuration.schema.names.index(column)}"


def _list_assignments(change: RowChange) -> Iterator[tuple[tuple[str, ...], str]]:
    for assignment in change.assignments:
        yield assignment.column, assignment.value.sql
    for default in change.completion.defaults:
        yield (default.column,), default.sql


def _show_value(value: Column, data_type: DataType, functions: ModuleType) -> Column:
    """A value as shown in errors: texts in quotes."""
    text = value.cast("string")
    if data_type != PrimitiveType("string"):
        return text
    return functions.concat(functions.lit("'"), text, functions.lit("'"))


def write_changes(
    rows: ChangingRows, store: ObjectStore, *, in_query: bool = True
) -> WrittenChanges:
    """Write the changed rows.

    Only the files of tasks whose reports arrived are in the result; those of a speculative or
    repeated attempt stay unreferenced until VACUUM removes them.

    `in_query`: see `spark_failures`.
    """
    with spark_failures(table=store.location.uri, in_query=in_query):
        frame, task = rows.columns(), rows.task()
        reports = collect_counted(
            frame, lambda frame: frame.mapInArrow(task, REPORT_SCHEMA), table=store.location.uri
        )
    rules = rows.data.rules
    return changes_of(
        settle_reports(
            reports,
            ChangeDetail,
            store,
            discard=lambda detail: delete_rows_aside(rules, detail.observed),
        )
    )


class _Storage:
    """How values are stored in one column of the table: by type, fields of structs by name."""

    def __init__(self, functions: ModuleType, name: str, *, is_exact: bool) -> None:
        self._functions, self._name = functions, name
        self._is_exact = is_exact

    def stored(self, value: Column, source: DataType, target: DataType) -> _Stored:
        """The value as the column holds it; null, at its depth, where it does not fit, and whether
        all of it fits; None if it always does.
        """
        functions = self._functions
        match source, target:
            case _ if source == target:
                return value, None
            case _ if source == VOID:
                return functions.lit(None).cast(to_spark_type(target)), None
            case StructType(), StructType():
                return self._store_struct(value, source, target)
            case ArrayType(element_type=held), ArrayType(element_type=wanted):
                return self._store_elements(value, held, wanted)
            case MapType(), MapType():
                keys, values = functions.map_keys(value), functions.map_values(value)
                new_keys, keys_fit = self._store_elements(keys, source.key_type, target.key_type)
                new_values, fit = self._store_elements(values, source.value_type, target.value_type)
                return functions.map_from_arrays(new_keys, new_values), _combine_conditions(
                    keys_fit, fit
                )
            case _ if _is_nested(source) or _is_nested(target):
                raise SchemaMismatch(
                    f"a value of type {_spell_type(source)} cannot be stored in column "
                    f"{self._name} of type {_spell_type(target)}",
                    column=self._name,
                )
        new = value.try_cast(to_spark_type(target))
        fits = value.isNull() | new.isNotNull()
        if self._is_exact and (isinstance(target, DecimalType) or target in _ROUNDING):
            fits = fits & new.cast(to_spark_type(source)).eqNullSafe(value)
        return new, fits

    def _store_struct(self, value: Column, source: StructType, target: StructType) -> _Stored:
        functions, fields, all_fit = self._functions, [], None
        unknown = [field.name for field in source if target.get(field.name) is None]
        if unknown:
            raise SchemaMismatch(
                f"column {self._name} has no field {unknown[0]}: leave it out of the value, or add "
                "the field to the table first",
                column=f"{self._name}.{unknown[0]}",
            )
        for wanted in target:
            held = source.get(wanted.name) or StructField(wanted.name, VOID)
            name = f"{self._name}.{wanted.name}"
            inner = _Storage(functions, name, is_exact=self._is_exact)
            new, fits = inner.stored(value.getField(held.name), held.data_type, wanted.data_type)
            fields.append(new.alias(wanted.name))
            all_fit = _combine_conditions(all_fit, fits)
        return functions.when(value.isNotNull(), functions.struct(*fields)), all_fit

    def _store_elements(self, values: Column, source: DataType, target: DataType) -> _Stored:
        functions = self._functions
        if source == target:
            return values, None
        always: Column = functions.lit(True)

        def stored(value: Column) -> _Stored:
            return self.stored(value, source, target)

        new = functions.transform(values, lambda value: stored(value)[0])
        fit = functions.forall(values, lambda value: _combine_conditions(stored(value)[1], always))
        return new, functions.coalesce(fit, always)


_ROUNDING = (*map(PrimitiveType, ("byte", "short", "integer", "long", "date")),)
"""Types in which a value may lose a part; decimals as well."""

_Stored: TypeAlias = "tuple[Column, Column | None]"


def _combine_conditions(left: Column | None, right: Column | None) -> Column | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _is_nested(data_type: DataType) -> bool:
    return isinstance(data_type, (StructType, ArrayType, MapType))


def _spell_type(data_type: DataType) -> str:
    return to_spark_type(data_type).simpleString()


def with_fields(
    struct: Column,
    data_type: StructType,
    values: dict[tuple[str, ...], Column],
    functions: ModuleType,
    sources: Mapping[tuple[str, ...], Column] = MappingProxyType({}),
) -> Column:
    """A struct with new values of some fields, by their path inside it.

    As in Spark, a null struct becomes a struct of nulls with these fields. It stays null if
    `sources` has its source struct at the same path and that is null as well.
    """
    fields = []
    for part in data_type:
        below = {path[1:]: value for path, value in values.items() if path[0] == part.name}
        field = struct.getField(part.name)
        if () in below:
            field = below[()]
        elif below:
            assert isinstance(part.data_type, StructType)  # noqa: S101  paths lead through structs
            inner = {path[1:]: held for path, held in sources.items() if path[:1] == (part.name,)}
            field = with_fields(field, part.data_type, below, functions, inner)
        fields.append(field.alias(part.name))
    made: Column = functions.struct(*fields)
    if () in sources:
        made = functions.when(struct.isNotNull() | sources[()].isNotNull(), made)
    return made


_ROW_BITS = 33
"""Spark numbers the rows of a task with this many low bits; the task's number is above them."""


def identity_value(identity: IdentityColumn, functions: ModuleType) -> Column:
    """The unique value of an identity column for each row of a query; null if it does not
    fit a 64-bit integer.

    The number of tasks is unknown when rows are numbered. So row `k` of task `t` takes
    the number whose low bits are the Elias gamma code of `t + 1`, and whose high bits are `k`: no
    such code is a prefix of another, so tasks never collide, and few tasks leave small gaps.
    """

    def long(value: int) -> Column:
        return functions.lit(value).cast("bigint")

    number = functions.monotonically_increasing_id()
    row = number.bitwiseAND(long((1 << _ROW_BITS) - 1))
    task = functions.shiftright(number, _ROW_BITS) + long(1)
    # The length of the binary form minus one: logarithms would be rounded.
    width = functions.length(functions.bin(task)) - functions.lit(1)
    power = _shift_left(long(1), width, functions)
    code = power + _shift_left(task - power, width + functions.lit(1), functions)
    stride = _shift_left(long(1), width * functions.lit(2) + functions.lit(1), functions)
    index = functions.try_add(functions.try_multiply(row, stride), code)
    first = identity.next_value
    if not LONG_MIN <= first <= LONG_MAX:
        return functions.lit(None).cast("bigint")
    # The lowest of all codes is 1.
    distance = functions.try_multiply(index - long(1), long(identity.step))
    return functions.try_add(long(first), distance)


def _shift_left(value: Column, bits: Column, functions: ModuleType) -> Column:
    # The function of that name takes no column of bits.
    return functions.call_function("shiftleft", value, bits.cast("int"))
