"""What Spark pushes down to a source by name, as Spark SQL: files are skipped by it.

Spark filters the rows itself, so that a filter which is left out here costs time and no row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

__all__ = ["filters_as_sql"]

_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def filters_as_sql(filters: Iterable[Any]) -> str | None:
    """The filters that can be said in SQL, as one condition; None where there are none.

    Args:
        filters: `pyspark.sql.datasource.Filter`s, all of which hold for a row of the result.
    """
    found = [each for each in map(_sql, filters) if each is not None]
    return " AND ".join(f"({each})" for each in found) or None


def _sql(pushed: Any) -> str | None:
    # By name: the classes are there from Spark 4.1 on.
    kind = type(pushed).__name__
    if kind == "Not":
        negated = _sql(pushed.child)
        return None if negated is None else f"NOT ({negated})"
    column = ".".join("`" + each.replace("`", "``") + "`" for each in pushed.attribute)
    if kind == "IsNull":
        return f"{column} IS NULL"
    if kind == "IsNotNull":
        return f"{column} IS NOT NULL"
    if kind == "In":
        literals = [_literal(each) for each in pushed.value]
        texts = [each for each in literals if each is not None]
        return f"{column} IN ({', '.join(texts)})" if len(texts) == len(literals) else None
    literal = _literal(getattr(pushed, "value", None))
    if literal is None:
        return None
    if kind == "StringStartsWith":
        return f"startswith({column}, {literal})"
    operator = _COMPARISONS.get(kind)
    return None if operator is None else f"{column} {operator} {literal}"


def _literal(value: object) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case int():
            return str(value)
        case Decimal() if value.is_finite():
            return f"{value:f}BD"
        case dt.datetime() if value.tzinfo is not None:
            instant = value.astimezone(dt.UTC).replace(tzinfo=None)
            return f"TIMESTAMP '{instant.isoformat(sep=' ')}Z'"
        case dt.datetime():
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case _:
            # Floating-point values among them: -0.0 and NaN have an order of their own in Spark.
            return None
