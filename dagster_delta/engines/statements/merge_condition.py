"""Splits the ON of a MERGE: join keys, conditions on one side alone, and the rest."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.engines.statements.merge_clauses import SOURCE, TARGET
from dagster_delta.protocol.schema import DataType, PrimitiveType
from dagster_delta.protocol.statistics.predicates import (
    And,
    Comparison,
    Constant,
    In,
    IsNull,
    Or,
    Predicate,
    Unknown,
)
from dagster_delta.sql.typed import Call, Cast, Column, Typed, walk, with_paths

_MAX_LISTED_VALUES = 2_000
_FLOATS = (PrimitiveType("float"), PrimitiveType("double"))


class JoinKey(msgspec.Struct, frozen=True):
    """Two values of one type that must be equal."""

    target: Typed
    """Over the target alone."""
    source: Typed
    """Over the source alone."""
    data_type: DataType
    nulls_match: bool
    """Whether it is a `<=>`."""


class MergeCondition(msgspec.Struct, frozen=True):
    """A conjunction, split by the columns that its parts read."""

    keys: tuple[JoinKey, ...]
    target_only: tuple[Typed, ...]
    source_only: tuple[Typed, ...]
    rest: tuple[Typed, ...]
    """Parts that need a pair of rows."""

    @property
    def source_names(self) -> tuple[str, ...]:
        """Columns of the source from which the keys are computed."""
        nodes = (node for key in self.keys for node in walk(key.source))
        return tuple(dict.fromkeys(node.path[1] for node in nodes if isinstance(node, Column)))


def split_condition(condition: Typed) -> MergeCondition:
    """The parts of a condition whose paths start with `TARGET` or `SOURCE`."""
    keys: list[JoinKey] = []
    parts: dict[str, list[Typed]] = {TARGET: [], SOURCE: [], "rest": []}
    for conjunct in _conjuncts(condition):
        key = _join_key(conjunct)
        if key is not None:
            keys.append(key)
            continue
        sides = _sides(conjunct)
        # A part that is the same for every row is evaluated once, over the source.
        place = "rest" if len(sides) > 1 else TARGET if TARGET in sides else SOURCE
        parts[place].append(conjunct)
    return MergeCondition(
        tuple(keys), tuple(parts[TARGET]), tuple(parts[SOURCE]), tuple(parts["rest"])
    )


def _conjuncts(node: Typed) -> Iterator[Typed]:
    match node:
        case Call("and", arguments):
            for argument in arguments:
                yield from _conjuncts(argument)
        case _:
            yield node


def _join_key(node: Typed) -> JoinKey | None:
    match node:
        case Call("=" | "<=>" as name, (left, right)):
            if _sides(left) == {SOURCE}:
                left, right = right, left
            data_type = left.data_type
            if _sides(left) == {TARGET} and _sides(right) == {SOURCE} and data_type is not None:
                return JoinKey(left, right, data_type, nulls_match=name == "<=>")
    return None


def _sides(node: Typed) -> set[str]:
    return {column.path[0] for column in walk(node) if isinstance(column, Column)}


def in_table(node: Typed) -> Typed:
    """A condition over the target alone, with the names that the table gives its columns."""
    return with_paths(node, lambda path: path[1:])


def key_predicate(key: JoinKey, values: pa.ChunkedArray, *, are_bounds: bool = False) -> Predicate:
    """The predicate for the target's side of a key to be equal to one of many values.

    `are_bounds`: whether the values are only the least and the greatest ones, and null if there is
    one.
    """
    known = pc.drop_null(values)
    predicate = _equal_to_any(key, known, are_bounds=are_bounds)
    if key.nulls_match and len(known) < len(values):
        column = _key_column(key)
        return Unknown("a computed key") if column is None else Or((predicate, IsNull(column)))
    return predicate


def _key_column(key: JoinKey) -> tuple[str, ...] | None:
    """Logical path of the table's column that the key compares, if it is one."""
    match key.target:
        case Column(path) | Cast(Column(path)):
            return path[1:]
    return None


def _equal_to_any(key: JoinKey, known: pa.ChunkedArray, *, are_bounds: bool) -> Predicate:
    if not len(known):
        return Constant(False)
    column, data_type = _key_column(key), key.data_type
    if column is None:
        return Unknown("a computed key")
    if data_type in _FLOATS and pc.any(pc.is_nan(known)).as_py():
        return Unknown("NaN as a key")
    try:
        # If there are many keys, the first of them already show that they are too many to list: a
        # table of all of them takes more memory than the keys.
        distinct = pc.unique(known.slice(0, _MAX_LISTED_VALUES + 1))
        if len(distinct) <= _MAX_LISTED_VALUES:
            distinct = pc.unique(known)
        if len(distinct) <= _MAX_LISTED_VALUES and not are_bounds:
            return In(column, tuple(distinct.to_pylist()), data_type)
        bounds = pc.min_max(known).as_py()
    except (ValueError, OverflowError, pa.ArrowNotImplementedError):
        # For example, dates outside the years of Python's datetime.
        return Unknown("keys without bounds")
    return And(
        (
            Comparison(column, ">=", bounds["min"], data_type),
            Comparison(column, "<=", bounds["max"], data_type),
        )
    )
