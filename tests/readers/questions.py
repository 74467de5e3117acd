"""What is asked of a table: questions, and the rows that are right."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
import pyarrow as pa

Kind = Literal["rows", "count", "changes", "append"]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of a column, or of a field of a struct, with a constant."""

    column: tuple[str, ...]
    op: str
    type: str = ""
    """Type of the constant: `int`, `double`, `decimal(p,s)`, `date`, `timestamp` (in UTC), …"""
    value: str = ""

    def spell(self) -> str:
        """In Spark SQL, as this library takes it."""
        column = ".".join(f"`{name}`" for name in self.column)
        return f"{column} {self.op} {self._constant()}".rstrip()

    def _constant(self) -> str:
        if not self.type or self.type in {"int", "boolean"} or self.type.startswith("decimal"):
            return self.value
        if self.type == "double":
            return f"CAST('{self.value}' AS DOUBLE)"
        if self.type == "binary":
            return f"X'{self.value}'"
        words = {"date": "DATE ", "timestamp": "TIMESTAMP ", "timestamp_ntz": "TIMESTAMP_NTZ "}
        zone = "+00:00" if self.type == "timestamp" else ""
        quoted = self.value.replace("'", "''")
        return f"{words.get(self.type, '')}'{quoted}{zone}'"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is asked of one table."""

    name: str
    """Of the question within its table, such as `filter: n > 5`."""
    kind: Kind = "rows"
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    version: int | None = None
    timestamp: str | None = None
    """ISO 8601, in UTC."""


def where(column: str, op: str, kind: str = "", value: str = "") -> Question:
    """A filter; `a.b` is a field of a struct, `a\\.b` a column of that name."""
    names = tuple(part.replace("\0", ".") for part in column.replace("\\.", "\0").split("."))
    condition = Filter(column=names, op=op, type=kind, value=value)
    return Question(name=f"filter: {condition.spell()}", filter=condition)


def compare_rows(found: pa.Table, expected: pa.Table) -> str:
    """What differs, in one line; empty if the rows and the names of columns are equal.

    The order of rows and columns does not count, nor do types that hold the same values.
    """
    if missing := set(expected.column_names) - set(found.column_names):
        return f"columns {sorted(missing)} are missing"
    if more := set(found.column_names) - set(expected.column_names):
        return f"columns {sorted(more)} are too many"
    names = expected.column_names
    right, given = (Counter(_rows(table, names)) for table in (expected, found))
    lost, added = right - given, given - right
    if not lost and not added:
        return ""
    parts = [
        f"{sum(rows.values())} of {sum(right.values())} rows {verb}: {next(iter(rows))[:120]}"
        for verb, rows in (("missing", lost), ("too many", added))
        if rows
    ]
    return "; ".join(parts)


def _rows(table: pa.Table, names: Iterable[str]) -> Iterable[str]:
    columns = [table.column(name).to_pylist() for name in names]
    return (repr(tuple(map(_plain, row))) for row in zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    """The value without its type: 1, 1.0 and Decimal('1.00') are one value."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        # A map comes as pairs, or as structs of a key and a value.
        if value and all(
            isinstance(item, dict) and set(item) == {"key", "value"} for item in value
        ):
            value = [(item["key"], item["value"]) for item in value]
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value) if math.isinf(value) else _number(value)
    if isinstance(value, int | decimal.Decimal):
        return _number(value)
    if isinstance(value, dt.datetime):
        # With and without a zone are different values.
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")  # some have one type for text and bytes
    return str(value)


def _number(value: float | decimal.Decimal) -> str:
    exact = decimal.Decimal(value)
    return str(exact.normalize(decimal.Context(prec=60)))
