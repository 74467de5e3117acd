"""Parts of filters that are computed while files are found.

Conditions on partition columns alone, such as `upper(country) = 'DE'`, are computed once for each
file instead of its rows, and parts without columns, such as `upper('de')`, once for all.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import DecimalType, PrimitiveType
from dagster_delta.protocol.statistics.predicates import Computed
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Refused, Typed, walk
from dagster_delta.sql.types import BOOLEAN


def with_constants(expression: Typed) -> Typed:
    """The expression, in which the parts without columns are literals, as far as they can be
    computed and do not depend on the session's time zone.

    Raises:
        Nothing: a part that fails stays as it is.
    """
    if not isinstance(expression, Call | Cast):
        return expression
    if not any(isinstance(node, Column | Refused) for node in walk(expression)):
        return _computed(expression)
    if isinstance(expression, Cast):
        return replace(expression, child=with_constants(expression.child))
    return replace(expression, arguments=tuple(map(with_constants, expression.arguments)))


def _computed(expression: Call | Cast) -> Typed:
    # Few filters have such a part.
    from dagster_delta.sql.evaluation import evaluate_tree
    from dagster_delta.sql.functions.dates import depends_on_time_zone

    data_type = expression.data_type
    if not isinstance(data_type, PrimitiveType | DecimalType) or depends_on_time_zone(expression):
        return expression
    row = pa.table({"row": pa.array([0])})
    try:
        value = evaluate_tree(expression, row)[0].as_py()
    except (DeltaError, OverflowError, ValueError):
        # It may be in a part of the filter that is not evaluated; dates of Python end in 9999.
        return expression
    return Literal(value, data_type, is_written=False)


def computed_filter(partition_columns: Collection[str], condition: Typed) -> Computed | None:
    """The predicate of a condition on partition columns alone; None for any other condition.

    Raises:
        Nothing.
    """
    nodes = list(walk(condition))
    paths = [node.path for node in nodes if isinstance(node, Column)]
    if condition.data_type != BOOLEAN or not paths:
        return None
    if any(isinstance(node, Refused) for node in nodes):
        return None
    if any(len(path) > 1 or path[0] not in partition_columns for path in paths):
        return None
    return Computed(frozenset(path[0] for path in paths), partial(_values, condition))


def _values(condition: Typed, partitions: pa.Table) -> pa.BooleanArray | None:
    from dagster_delta.sql.evaluation import evaluate_tree

    try:
        return evaluate_tree(condition, partitions)
    except DeltaError:
        # It may fail on a partition whose rows another part of the filter leaves out.
        return None
