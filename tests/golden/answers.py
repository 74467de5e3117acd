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
import pytest

from tests.conftest import GOLDEN_TABLES

NAMES = sorted(path.parent.name for path in GOLDEN_TABLES.glob("*/expected.json"))

_WIDENED_FLOAT = re.compile(r"(\S+)f as double")
_EXPONENT = re.compile(r"-?\d+(\.\d+)?E[+-]\d+")

_PROVEN_OTHERWISE = {
    # The log's own statistics say 9999; the stored answer wrapped INT96 in 64-bit nanoseconds.
    ("rs__table_with_edge_timestamps", "BIG_DATE"): {
        "1816-03-28T05:56:08.066278+00:00": "9999-12-30T00:00:00+00:00",
        "1816-03-29T05:56:08.066278+00:00": "9999-12-31T00:00:00+00:00",
    },
}

_READ_BY_NOW = {"krs__table-with-geo": {"expected_error": None, "version": 0, "row_count": 0}}
"""Tables that stored answers say to refuse unless their feature is implemented."""


def table_path(name: str) -> str:
    """Where a golden table is, or a skip that says what to set."""
    if not GOLDEN_TABLES.is_dir():
        pytest.skip(f"no golden tables at {GOLDEN_TABLES}: set GOLDEN_TABLES to their directory")
    return str(GOLDEN_TABLES / name / "table")


def answer(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((GOLDEN_TABLES / name / "expected.json").read_text())
    parsed |= _READ_BY_NOW.get(name, {})
    for (table, column), truth in _PROVEN_OTHERWISE.items():
        if table == name:
            for values in (*parsed["rows"], parsed["column_stats"]):
                values[column] = _replaced(values[column], truth)
    return parsed


def _replaced(value: Any, truth: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, truth) for key, each in value.items()}
    return truth.get(value, value) if isinstance(value, str) else value


def answered_by_file(name: str) -> dict[int | None, list[Path]]:
    """Parquet files with expected rows by version; None is the latest."""
    root = GOLDEN_TABLES / name / "expected"
    directories = {path.name: path for path in root.glob("*") if path.is_dir()}
    if "latest" not in directories:
        found: dict[int | None, list[Path]] = {None: sorted(root.glob("**/*.parquet"))}
    else:
        found = {
            None if label == "latest" else int(label.removeprefix("v")): sorted(
                path.glob("**/*.parquet")
            )
            for label, path in directories.items()
        }
    return {version: files for version, files in found.items() if files}


READABLE = [name for name in NAMES if answer(name)["expected_error"] is None]
# Its log is a template that has to be told where it lies.
TEMPLATE = "spark__table-with-dv-special-char"
QUERIES = [(name, query) for name in NAMES for query in answer(name).get("cdf") or ()]
"""Tables by name, and a question to their change feed with its answer."""


def query_id(query: tuple[str, dict[str, Any]]) -> str:
    name, asked = query
    return f"{name}-{asked['start']}-{asked['end']}-{asked['by'].split()[0]}"


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
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return f"{decimal.Decimal(value):f}"
    if isinstance(value, dict):
        return {key: wanted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [wanted(each) for each in value]
    return value


def printed(value: object) -> str:
    """A value as the printed answers spell it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {printed(each)}" for key, each in value.items()) + "}"
    return "" if value is None else str(value)


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
        exact = column.cast(pa.decimal128(38, 0)) if pa.types.is_integer(column.type) else column
        total = pc.sum(exact).as_py()
        found["sum"] = total if total is None or pa.types.is_floating(column.type) else int(total)
    return {key: found[key] for key in asked}
