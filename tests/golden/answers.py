"""The golden tables and their answers, and a form in which rows compare."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.conftest import GOLDEN_TABLES

NAMES = sorted(path.parent.name for path in GOLDEN_TABLES.glob("*/expected.json"))

_WIDENED_FLOAT = re.compile(r"(\S+)f as double")


def table_path(name: str) -> str:
    return str(GOLDEN_TABLES / name / "table")


def answer(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((GOLDEN_TABLES / name / "expected.json").read_text())
    return parsed


def answered_by_file(name: str) -> dict[str, Path]:
    """Directories of Parquet files with expected rows: `latest`, `v0`, …"""
    return {path.name: path for path in sorted((GOLDEN_TABLES / name / "expected").glob("*"))}


def spelled(value: object) -> object:
    """A value as expected.json spells it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return str(value) if math.isnan(value) or math.isinf(value) else value
        case bytes():
            return f"hex:{value.hex()}"
        case decimal.Decimal():
            return f"{value:f}"
        case dt.datetime() | dt.date():
            return value.isoformat()
        case dict():
            return {key: spelled(each) for key, each in value.items()}
        case list() | tuple():
            return [spelled(each) for each in value]
        case _:
            raise TypeError(f"no spelling for {type(value)}")


def wanted(value: object) -> object:
    """An expected value, with the few that are spelled in words resolved."""
    if isinstance(value, str) and (match := _WIDENED_FLOAT.fullmatch(value)):
        return struct.unpack("f", struct.pack("f", float(match[1])))[0]
    if isinstance(value, dict):
        return {key: wanted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [wanted(each) for each in value]
    return value


def row_counts(rows: list[dict[str, object]]) -> Counter[str]:
    """Rows as a multiset: tables have no order."""
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows)


def rows_of(table: pa.Table) -> Counter[str]:
    return row_counts([{k: spelled(v) for k, v in row.items()} for row in table.to_pylist()])


def column_statistics(column: pa.ChunkedArray, *, asked: dict[str, object]) -> dict[str, object]:
    """The statistics of a column that the answer asks for."""
    found: dict[str, object] = {}
    if "null_count" in asked:
        found["null_count"] = column.null_count
    if "min" in asked or "max" in asked:
        values = [value for value in column.to_pylist() if value is not None]
        found["min"] = spelled(min(values)) if values else None
        found["max"] = spelled(max(values)) if values else None
    if "sum" in asked:
        found["sum"] = spelled(
            pc.sum(
                column.cast(pa.decimal128(38, 0)) if pa.types.is_integer(column.type) else column
            ).as_py()
        )
        if isinstance(found["sum"], str) and isinstance(asked["sum"], int):
            found["sum"] = int(found["sum"])
    return {key: found[key] for key in asked}
