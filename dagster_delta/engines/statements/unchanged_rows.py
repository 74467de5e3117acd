"""Rows that an UPDATE of a MERGE would leave as they are: their new values equal the old ones.

Values are equal as by `<=>` in Spark SQL: null equals null, NaN equals NaN, and -0.0 equals 0.0, so
the sign of a zero does not change a row. Structs and arrays are compared part by part. Values of
maps, variants and texts with a collation have no such equality, nor have values of two types of
which one loses a part in the other: a clause that assigns one updates all its rows, and so does one
that computes a value which differs from call to call, such as `rand()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.statements.merge_clauses import (
    TARGET,
    MergeClause,
    MergeNames,
)
from dagster_delta.errors import InvalidArgument, UnsupportedExpression
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    StructType,
    as_nullable,
    inner_types,
)
from dagster_delta.sql.typed import Column, Typed, quote, quote_path, walk
from dagster_delta.sql.types import (
    DATE,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    collation_of,
    common_type,
    is_integral,
    is_numeric,
    sql_type_name,
)


class UnchangedRows(msgspec.Struct, frozen=True):
    """The test whether a clause would leave a row as it is."""

    sql: str
    """Over both sides."""
    typed: tuple[Typed, ...]
    """The same, as conditions that all have to hold; paths start with `TARGET` or `SOURCE`."""

    @classmethod
    def of(cls, clause: MergeClause, names: MergeNames) -> UnchangedRows | None:
        """The test for a clause; None if its new values cannot be compared with the old ones."""
        if clause.text.action != "update" or not clause.assignments:
            return None
        texts: list[str] = []
        for assignment in clause.assignments:
            text = _equality_of(assignment, names)
            if text is None:
                return None
            texts.append(text)
        try:
            typed = tuple(names.condition(text, clause.text.kind) for text in texts)
        except (InvalidArgument, UnsupportedExpression):
            return None
        return cls(" AND ".join(f"({text})" for text in texts), typed)

    def paths_of(self, side: str) -> Iterator[tuple[str, ...]]:
        """The columns of a side that the test reads."""
        for condition in self.typed:
            for node in walk(condition):
                if isinstance(node, Column) and node.path[0] == side:
                    yield node.path


def _equality_of(assignment: Assignment, names: MergeNames) -> str | None:
    """The condition that a new value equals the old one; None if it cannot be told."""
    if assignment.structs:
        return None
    value = assignment.uncast or assignment.value
    if names.target.get(assignment.column[0]) is None:
        # A column that the merge adds is null in the row.
        return f"({value.sql}\n) IS NULL"
    stored = names.target.fields_along(assignment.column)
    if len(stored) < len(assignment.column):
        return None
    if collation_of(names.target.field(assignment.column[0])) is not None:
        # Texts that a collation takes for equal are not the same.
        return None
    target, given = stored[-1].data_type, value.data_type
    grown = names.assigned.fields_along(assignment.column)[-1].data_type
    if given is None or not (_is_comparable(target) and _is_comparable(given, of_value=True)):
        return None
    old, new = quote_path((names.alias(TARGET), *assignment.column)), f"({value.sql}\n)"
    if isinstance(target, StructType):
        is_same_type = as_nullable(target) == as_nullable(given) == as_nullable(grown)
        is_column = is_same_type and isinstance(value.typed, Column)
        return equality_of_structs(old, value.sql, target) if is_column else None
    if as_nullable(target) == as_nullable(given) == as_nullable(grown) or given == VOID:
        return f"{old} <=> {new}"
    if is_numeric(target) and is_numeric(given) and is_numeric(grown):
        # Without a cast, so that a value which loses a part is not taken for the old one.
        return f"{old} <=> {new}" if _compares_exactly(target, given) else None
    keeps_all = target == STRING or (given in _TIMES and target in _TIMES[1:])
    if inner_types(target) or inner_types(given) or not keeps_all:
        return None
    return f"{old} <=> CAST({new} AS {sql_type_name(target)})"


_TIMES = (DATE, TIMESTAMP_NTZ, TIMESTAMP)


def _compares_exactly(left: DataType, right: DataType) -> bool:
    """Whether two numbers are only equal if both are the same in the type of either. Decimals are
    compared with floats as doubles, and with each other in at most 38 digits.
    """
    is_decimal = isinstance(left, DecimalType)
    if is_decimal != isinstance(right, DecimalType) or is_integral(left) != is_integral(right):
        return False
    return common_type((left, right)) is not None


def equality_of_structs(left: str, right: str, data_type: DataType) -> str:
    """Spark SQL: two columns or fields of one type are equal as by `<=>`; structs field by field,
    which both engines compute.
    """
    if not isinstance(data_type, StructType):
        return f"{left} <=> {right}"
    fields = [
        equality_of_structs(f"{left}.{quote(field.name)}", f"{right}.{quote(field.name)}", kind)
        for field, kind in ((field, field.data_type) for field in data_type)
    ]
    return " AND ".join((f"({left} IS NULL) <=> ({right} IS NULL)", *fields))


def _is_comparable(data_type: DataType, *, of_value: bool = False) -> bool:
    if data_type == VOID:
        return of_value
    if data_type == VARIANT or hasattr(data_type, "key_type"):
        return False
    return all(map(_is_comparable, inner_types(data_type)))
