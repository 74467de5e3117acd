"""Tables that this library writes for others to read, one builder per thing that can go wrong."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable

import pyarrow as pa

from dagster_delta import DeltaTable

UTC = dt.UTC

EVERY_TYPE = pa.schema(
    [
        pa.field("a_string", pa.string()),
        pa.field("a_long", pa.int64()),
        pa.field("an_integer", pa.int32()),
        pa.field("a_short", pa.int16()),
        pa.field("a_byte", pa.int8()),
        pa.field("a_float", pa.float32()),
        pa.field("a_double", pa.float64()),
        pa.field("a_boolean", pa.bool_()),
        pa.field("a_binary", pa.binary()),
        pa.field("a_date", pa.date32()),
        pa.field("a_timestamp", pa.timestamp("us", "UTC")),
        pa.field("a_small_decimal", pa.decimal128(9, 2)),
        pa.field("a_big_decimal", pa.decimal128(38, 10)),
        pa.field("a_struct", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        pa.field("an_array", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float64())]))),
        pa.field("a_map", pa.map_(pa.string(), pa.int64())),
    ]
)


def every_type_rows() -> pa.Table:
    """A plain row, a row of extremes, a row of nulls."""
    big = decimal.Decimal("9999999999999999999999999999.9999999999")
    rows = [
        {
            "a_string": "fly me",
            "a_long": 1,
            "an_integer": 2,
            "a_short": 3,
            "a_byte": 4,
            "a_float": 1.5,
            "a_double": 2.25,
            "a_boolean": True,
            "a_binary": b"\x00\xff",
            "a_date": dt.date(2013, 1, 2),
            "a_timestamp": dt.datetime(2013, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            "a_small_decimal": decimal.Decimal("123.45"),
            "a_big_decimal": decimal.Decimal("1.0000000001"),
            "a_struct": {"x": 1, "y": ["a", None, ""]},
            "an_array": [{"k": "one", "v": 1.0}, None],
            "a_map": [("a", 1), ("b", None)],
        },
        {
            "a_string": "üñí ✈ \U0001f6eb" + "z" * 40,
            "a_long": -(2**63),
            "an_integer": 2**31 - 1,
            "a_short": -(2**15),
            "a_byte": 127,
            "a_float": float("inf"),
            "a_double": float("nan"),
            "a_boolean": False,
            "a_binary": b"",
            "a_date": dt.date(1582, 10, 15),
            "a_timestamp": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            "a_small_decimal": decimal.Decimal("-9999999.99"),
            "a_big_decimal": big,
            "a_struct": {"x": None, "y": []},
            "an_array": [],
            "a_map": [],
        },
        dict.fromkeys(EVERY_TYPE.names),
    ]
    return pa.Table.from_pylist(rows, schema=EVERY_TYPE)


PARTITION_ROWS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "p": ["plain", "with space", "sl/ash", "per%cent", "eq=ual", "ünï✈", None, "a:b?c#d&e"],
        "d": pa.array([dt.date(2013, 1, 1 + n % 3) for n in range(8)]),
        "n": pa.array([n % 2 for n in range(8)], pa.int32()),
    }
)


def every_type(uri: str) -> DeltaTable:
    table = DeltaTable.create(uri, EVERY_TYPE)
    table.append(every_type_rows())
    return table


def partitioned(uri: str) -> DeltaTable:
    table = DeltaTable.create(uri, PARTITION_ROWS.schema, partition_by=["p", "d"])
    table.append(PARTITION_ROWS)
    return table


def checkpointed(uri: str) -> DeltaTable:
    table = DeltaTable.create(
        uri,
        PARTITION_ROWS.schema,
        partition_by=["n"],
        properties={"delta.checkpointInterval": "3"},
    )
    for _ in range(7):
        table.append(PARTITION_ROWS)
    return table


def struct_statistics_only(uri: str) -> DeltaTable:
    table = DeltaTable.create(
        uri,
        PARTITION_ROWS.schema,
        partition_by=["d"],
        properties={
            "delta.checkpoint.writeStatsAsJson": "false",
            "delta.checkpoint.writeStatsAsStruct": "true",
        },
    )
    table.append(PARTITION_ROWS)
    table.checkpoint()
    table.append(PARTITION_ROWS)
    return table


def mapped_by_name(uri: str) -> DeltaTable:
    table = DeltaTable.create(
        uri,
        PARTITION_ROWS.schema,
        partition_by=["p"],
        properties={"delta.columnMapping.mode": "name"},
    )
    table.append(PARTITION_ROWS)
    return table


def mapped_by_id(uri: str) -> DeltaTable:
    table = DeltaTable.create(uri, EVERY_TYPE, properties={"delta.columnMapping.mode": "id"})
    table.append(every_type_rows())
    return table


def without_time_zone(uri: str) -> DeltaTable:
    rows = pa.table(
        {
            "at": pa.array(
                [dt.datetime(2013, 1, 2, 3, 4, 5, 6), None, dt.datetime(1582, 10, 15)],
                pa.timestamp("us"),
            )
        }
    )
    table = DeltaTable.create(uri, rows.schema)
    table.append(rows)
    return table


def overwritten(uri: str) -> DeltaTable:
    table = partitioned(uri)
    table.overwrite(PARTITION_ROWS.slice(0, 3))
    return table


def replaced_where(uri: str) -> DeltaTable:
    table = partitioned(uri)
    day = PARTITION_ROWS.filter(pa.compute.equal(PARTITION_ROWS["d"], dt.date(2013, 1, 2)))
    table.overwrite(day.slice(0, 1), where="d = DATE '2013-01-02'")
    return table


def replaced_dynamically(uri: str) -> DeltaTable:
    table = partitioned(uri)
    table.overwrite(PARTITION_ROWS.slice(6, 2), where="dynamic")
    return table


def merged_schema(uri: str) -> DeltaTable:
    table = partitioned(uri)
    wider = PARTITION_ROWS.append_column("added", pa.array(["new"] * 8))
    table.append(wider, schema_mode="merge")
    return table


def timed_in_commit(uri: str) -> DeltaTable:
    table = DeltaTable.create(
        uri, PARTITION_ROWS.schema, properties={"delta.enableInCommitTimestamps": "true"}
    )
    table.append(PARTITION_ROWS)
    return table


def not_null(uri: str) -> DeltaTable:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table = DeltaTable.create(uri, schema)
    table.append(pa.table({"id": [1, 2], "v": ["a", None]}))
    return table


BUILDERS: dict[str, Callable[[str], DeltaTable]] = {
    build.__name__: build
    for build in (
        every_type,
        partitioned,
        checkpointed,
        struct_statistics_only,
        mapped_by_name,
        mapped_by_id,
        without_time_zone,
        overwritten,
        replaced_where,
        replaced_dynamically,
        merged_schema,
        timed_in_commit,
        not_null,
    )
}

# What deltalake 1.6.6 does not read, and why.
BEYOND_DELTALAKE = {
    "mapped_by_id": "deltalake refuses column mapping by id",
}
