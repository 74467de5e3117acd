"""Parts of an expression that name no column, such as `upper('de')`, as the values that they have.

Bounds of files compare with values only.
"""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import DeltaError
from dagster_delta.protocol.schema import DecimalType, PrimitiveType
from dagster_delta.sql.skipping import depends_on_time_zone
from dagster_delta.sql.typed import Call, Cast, Column, Literal, Refused, Typed, walk

__all__ = ["with_constants"]


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
    data_type = expression.data_type
    if not isinstance(data_type, PrimitiveType | DecimalType) or depends_on_time_zone(expression):
        return expression
    from dagster_delta.engines.expressions.evaluation import evaluate_tree

    row = pa.table({"row": pa.array([0])})
    try:
        value = evaluate_tree(expression, row)[0].as_py()
    except (DeltaError, OverflowError, ValueError):
        # It may be in a part of the filter that is not evaluated; dates of Python end in 9999.
        return expression
    return Literal(value, data_type, is_written=False)
