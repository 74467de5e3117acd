"""AUTO CDC against Apache Spark 4.3.0, which was asked what 320 random logs of change events become:
16 kinds of flows, 20 keys each, with the rows after every run (`spark_auto_cdc.json`).

Events of one key and sequence do not differ there: Spark leaves open what becomes of these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_delta import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("spark_auto_cdc.json").read_text(encoding="utf-8")
)
TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "struct<a int, b int>": pa.struct([("a", pa.int32()), ("b", pa.int32())]),
    "struct<x int, y string>": pa.struct([("x", pa.int32()), ("y", pa.string())]),
}


def value_of(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON, where NaN and infinity are texts and fields of structs may be missing."""
    if pa.types.is_floating(kind) and value is not None:
        return float(str(value).replace("Infinity", "inf"))
    if isinstance(value, dict):
        return {field.name: value_of(value.get(field.name), field.type) for field in kind}
    return value


def as_text(value: Any) -> str:
    """A value to compare: NaN equals itself, and 0.0 equals -0.0. Of such a pair of neighbours,
    Spark shows the spelling of the later one; here, the row is left as it is.
    """
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def check_log(log: dict[str, Any], uri: Path, engine: str | None = None) -> None:
    table = DeltaTable(str(uri), must_exist=False)
    names, schema = log["columns"], log["schema"]
    for number, run in enumerate(log["runs"]):
        schema = run.get("schema", schema)
        kinds = {name: TYPES[text] for name, text in schema.items()}
        columns = zip(*run["events"], strict=True)
        events = pa.table(
            {
                name: pa.array([value_of(value, kind) for value in values], kind)
                for (name, kind), values in zip(kinds.items(), columns, strict=True)
            }
        )
        table.apply_changes(events, schema_mode="merge", engine=engine, **log["flow"])
        found = table.snapshot().scan().to_arrow()
        of_table = {field.name: field.type for field in found.schema}
        expected = [
            [as_text(value_of(value, of_table.get(name, pa.null()))) for name, value in known]
            for known in (list(zip(names, row, strict=True)) for row in run["rows"])
        ]
        rows = [[as_text(row.get(name)) for name in names] for row in found.to_pylist()]
        assert sorted(rows) == sorted(expected), number


def identify(log: dict[str, Any]) -> str:
    return str(log["name"])


@pytest.mark.parametrize("log", LOGS, ids=identify)
def test_events_become_the_rows_that_spark_makes_of_them(
    tmp_path: Path, log: dict[str, Any]
) -> None:
    check_log(log, tmp_path / "t")


@pytest.mark.exhaustive
@pytest.mark.parametrize("log", LOGS, ids=identify)
def test_events_become_these_rows_on_the_spark_engine(
    tmp_path: Path, spark: SparkSession, log: dict[str, Any]
) -> None:
    del spark
    check_log(log, tmp_path / "t", engine="spark")
