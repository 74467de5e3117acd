"""What is wrong with data has one class and one message, whichever engine meets it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    ConstraintViolation,
    DeltaError,
    InvalidArgument,
    InvalidCast,
    InvalidTable,
    PartitionMismatch,
    SchemaMismatch,
)
from tests.conformance.engines import Engine, refusal

SCHEMA = pa.schema([pa.field("i", pa.int32()), pa.field("s", pa.string(), nullable=False)])
CHECKED = {"delta.constraints.positive": "i > 0", "delta.enableDeletionVectors": "true"}
GOOD = pa.table({"i": pa.array([1, 2], pa.int32()), "s": ["a", "b"]})

Change = Callable[[DeltaTable, Engine], object]


def append(**columns: pa.Array) -> Change:
    return lambda table, engine: table.append(engine.rows(pa.table(columns)))


def merge(value: str) -> Change:
    def run(table: DeltaTable, engine: Engine) -> object:
        source = engine.rows(pa.table({"k": [2, 9], "w": ["7", "many"]}))
        builder = table.merge(source, "t.i = s.k")
        return builder.when_not_matched_insert({"i": value, "s": "s.w"}).execute()

    return run


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


ERRORS: dict[str, tuple[type[DeltaError], str | None, Change]] = {
    "overflow": (InvalidCast, "i", append(i=pa.array([1, 3_000_000_000]), s=pa.array(["x", "y"]))),
    "null": (ConstraintViolation, "s", append(i=ints(1, 1), s=pa.array(["x", None]))),
    "missing": (SchemaMismatch, "s", append(i=ints(1))),
    "type": (SchemaMismatch, "i", append(i=pa.array([dt.date(2020, 1, 1)]), s=pa.array(["x"]))),
    "unknown": (SchemaMismatch, "z", append(i=ints(1), s=pa.array(["x"]), z=ints(2))),
    "check": (ConstraintViolation, None, append(i=ints(5, -1), s=pa.array(["x", "x"]))),
    "replace_where": (
        PartitionMismatch,
        None,
        lambda table, engine: table.overwrite(
            engine.rows(pa.table({"i": ints(7), "s": ["x"]})), where="i = 1"
        ),
    ),
    "update_cast": (
        InvalidCast,
        "i",
        lambda table, engine: table.update({"i": "'many'"}, "i = 1", engine=engine.name),
    ),
    "update_check": (
        ConstraintViolation,
        None,
        lambda table, engine: table.update({"i": "i - 2"}, engine=engine.name),
    ),
    "update_null": (
        ConstraintViolation,
        "s",
        lambda table, engine: table.update({"s": "NULL"}, "i = 1", engine=engine.name),
    ),
    "update_value": (
        InvalidArgument,
        None,
        lambda table, engine: table.update({"i": "1 / (i - 1)"}, engine=engine.name),
    ),
    "delete_type": (
        InvalidArgument,
        None,
        lambda table, engine: table.delete("s", engine=engine.name),
    ),
    "delete_column": (
        SchemaMismatch,
        "nothing",
        lambda table, engine: table.delete("nothing = 1", engine=engine.name),
    ),
    "merge_cast": (SchemaMismatch, "i", merge("s.w")),
    "merge_check": (ConstraintViolation, None, merge("-1")),
    "constraint": (
        ConstraintViolation,
        None,
        lambda table, engine: table.alter("ADD CONSTRAINT few CHECK (i < 2)", engine=engine.name),
    ),
}


# Of what an expression fails on, every engine has its own words.
WORDED_BY_ENGINE = ["update_value"]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_the_data_is_the_same_on_every_engine(
    name: str, engine: Engine, table: DeltaTable
) -> None:
    kind, column, change = ERRORS[name]
    found = []
    for each in {engine.label: engine, "arrow": Engine("arrow")}.values():
        made = DeltaTable.create(f"{table.uri}-{each.label}", SCHEMA, properties=CHECKED)
        made.append(GOOD)
        error = refusal(kind, ".", made, lambda made=made, each=each: change(made, each))  # type: ignore[misc]
        assert error.column == column
        found.append((error.message.replace(made.uri, ""), sorted(error.examples)))
    assert found[0] == found[-1] or name in WORDED_BY_ENGINE


def test_a_value_that_does_not_fit_is_shown_with_the_type_it_does_not_fit(
    engine: Engine, table: DeltaTable
) -> None:
    made = DeltaTable.create(f"{table.uri}-values", SCHEMA)
    made.append(GOOD)
    with pytest.raises(InvalidCast, match="column i do not fit its type int") as caught:
        made.update({"i": "concat('many ', s)"}, "i = 1", engine=engine.name)
    assert caught.value.examples == ("'many a'",)


def test_a_file_with_two_columns_of_one_name_is_refused(engine: Engine, table: DeltaTable) -> None:
    DeltaTable.create(table.uri, pa.schema([("id", pa.int64())]))
    file = Path(table.uri) / "f.parquet"
    pq.write_table(pa.table({"Id": [1, 2], "ID": [30, 40]}), file)
    add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size}
    action = {"add": {**add, "modificationTime": 0, "dataChange": True}}
    (Path(table.uri) / "_delta_log" / f"{1:020}.json").write_text(json.dumps(action))
    with pytest.raises(Exception, match=r"several columns called id|duplicate field") as caught:
        engine.read(DeltaTable(table.uri))
    # Spark's own reader raises within a task.
    assert engine.session is not None or isinstance(caught.value, InvalidTable)
