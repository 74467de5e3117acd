"""Checkpoints as bytes: their columns, their rows, their parts."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.protocol.actions import (
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    SetTransaction,
)
from dagster_delta.protocol.checkpoint.writer import (
    CheckpointState,
    encode_actions_file,
    file_actions,
    other_actions,
    stack_actions,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA, TOMBSTONE_SCHEMA
from dagster_delta.protocol.schema import (
    ArrayType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
)
from dagster_delta.protocol.statistics.statistics import parse_statistics_json, statistics_columns

SCHEMA = StructType(
    (
        StructField("p", PrimitiveType("date")),
        StructField("id", PrimitiveType("long")),
        StructField("s", StructType((StructField("x", PrimitiveType("string")),))),
        StructField("d", DecimalType(9, 2)),
        StructField("at", PrimitiveType("timestamp")),
        StructField("tags", ArrayType(PrimitiveType("string"))),
    )
)
STATS = {
    "numRecords": 3,
    "minValues": {"id": 1, "s": {"x": "a"}, "d": 1.25, "at": "2024-01-01T00:00:00.123Z"},
    "maxValues": {"id": 9, "s": {"x": "z"}, "d": 2.5, "at": "2024-01-02T00:00:00.000Z"},
    "nullCount": {"id": 0, "s": {"x": 1}, "d": 0, "at": 0, "tags": 2},
}
VECTOR = {
    "storage_type": "u",
    "path_or_inline_dv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 1,
    "size_in_bytes": 40,
    "cardinality": 6,
}


def configuration(**properties: str) -> TableConfiguration:
    return TableConfiguration(
        Protocol(min_reader_version=1, min_writer_version=2),
        Metadata(
            id="table-id",
            name="n",
            format=Format(),
            schema_string=SCHEMA.to_json(),
            partition_columns=("p",),
            created_time_ms=7,
            configuration={
                f"delta.{key.replace('__', '.')}": value for key, value in properties.items()
            },
        ),
    )


def live_files(count: int) -> pa.Table:
    rows = [
        {
            "path": f"p=2024-01-01/f{index}.parquet",
            "partition_values": [("p", "2024-01-01" if index % 2 else None)],
            "size_bytes": 100 + index,
            "modification_time_ms": 5,
            "stats": json.dumps(STATS) if index != 2 else None,
            "deletion_vector": VECTOR if index == 1 else None,
            "tags": [("k", None)] if index == 0 else None,
        }
        for index in range(count)
    ]
    return pa.Table.from_pylist(rows, LIVE_FILE_SCHEMA)


TOMBSTONES = pa.Table.from_pylist(
    [
        {
            "path": "gone.parquet",
            "deletion_timestamp_ms": 9,
            "data_change": True,
            "extended_file_metadata": True,
            "partition_values": [("p", None)],
            "size_bytes": 11,
            "deletion_vector": VECTOR,
        }
    ],
    TOMBSTONE_SCHEMA,
)


def state(
    files: int = 4,
    *,
    tombstones: pa.Table = TOMBSTONES,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> CheckpointState:
    config = configuration(**properties)
    live = live_files(files)
    return CheckpointState(
        version=12,
        configuration=config,
        live_files=live,
        statistics=parse_statistics_json(live["stats"], statistics_columns(config)),
        tombstones=tombstones,
        transactions=(SetTransaction(app_id="app", version=3, last_updated_ms=4),),
        domain_metadata=(DomainMetadata(domain="dom", configuration="{}", removed=False),),
    )


def table_of(state: CheckpointState, *, as_v2: bool = False) -> pa.Table:
    """The rows of a checkpoint in one file."""
    actions = stack_actions([other_actions(state, as_v2=as_v2), file_actions(state)])
    return pq.read_table(io.BytesIO(encode_actions_file(actions)))


def rows_of(table: pa.Table, kind: str) -> list[dict[str, Any]]:
    return [row for row in table[kind].to_pylist() if row is not None]


def test_every_action_stands_in_a_row_of_its_own() -> None:
    table = table_of(state())
    filled = [sum(value is not None for value in row.values()) for row in table.to_pylist()]
    assert filled == [1] * table.num_rows
    assert table.num_rows == 4 + 4 + 1
    assert rows_of(table, "protocol") == [
        {
            "minReaderVersion": 1,
            "minWriterVersion": 2,
            "readerFeatures": None,
            "writerFeatures": None,
        }
    ]
    assert rows_of(table, "txn") == [{"appId": "app", "version": 3, "lastUpdated": 4}]
    assert rows_of(table, "domainMetadata") == [
        {"domain": "dom", "configuration": "{}", "removed": False}
    ]
    (metadata,) = rows_of(table, "metaData")
    assert metadata["schemaString"] == SCHEMA.to_json()
    assert metadata["partitionColumns"] == ["p"]


def test_an_add_carries_all_it_had_and_changes_no_data() -> None:
    table = table_of(state())
    second = rows_of(table, "add")[1]
    assert second["path"] == "p=2024-01-01/f1.parquet"
    assert second["partitionValues"] == [("p", "2024-01-01")]
    assert second["size"] == 101
    assert second["dataChange"] is False
    assert json.loads(second["stats"]) == STATS
    assert second["deletionVector"] == {
        "storageType": "u",
        "pathOrInlineDv": VECTOR["path_or_inline_dv"],
        "offset": 1,
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    assert rows_of(table, "add")[0]["deletionVector"] is None
    assert rows_of(table, "add")[0]["tags"] == [("k", None)]


def test_a_remove_stays_a_tombstone() -> None:
    table = table_of(state())
    (remove,) = rows_of(table, "remove")
    assert remove["path"] == "gone.parquet"
    assert remove["deletionTimestamp"] == 9
    assert remove["dataChange"] is False
    assert remove["size"] == 11
    assert remove["deletionVector"]["cardinality"] == 6


def test_statistics_and_partition_values_stand_in_their_types() -> None:
    table = table_of(state())
    adds = rows_of(table, "add")
    parsed = adds[0]["stats_parsed"]
    assert parsed["numRecords"] == 3
    assert parsed["minValues"] == {
        "id": 1,
        "s": {"x": "a"},
        "d": decimal.Decimal("1.25"),
        "at": dt.datetime(2024, 1, 1, 0, 0, 0, 123000, tzinfo=dt.UTC),
    }
    assert parsed["nullCount"]["tags"] == 2
    assert "tags" not in parsed["maxValues"]
    assert adds[2]["stats_parsed"] is None
    assert [add["partitionValues_parsed"]["p"] for add in adds] == [
        None,
        dt.date(2024, 1, 1),
        None,
        dt.date(2024, 1, 1),
    ]


@pytest.mark.parametrize(
    ("properties", "has_json", "has_struct"),
    [
        ({}, True, True),
        ({"checkpoint__writeStatsAsStruct": "false"}, True, False),
        ({"checkpoint__writeStatsAsJson": "false"}, False, True),
        (
            {"checkpoint__writeStatsAsJson": "false", "checkpoint__writeStatsAsStruct": "false"},
            False,
            False,
        ),
    ],
)
def test_statistics_take_the_forms_that_the_table_asks_for(
    properties: dict[str, str], has_json: bool, has_struct: bool
) -> None:
    table = table_of(state(properties=properties))
    names = {field.name for field in table.schema.field("add").type}
    assert ("stats" in names) is has_json
    assert ("stats_parsed" in names) is has_struct
    assert ("partitionValues_parsed" in names) is has_struct


def test_only_indexed_columns_have_typed_statistics() -> None:
    assert [c.path for c in statistics_columns(configuration())] == [
        ("id",),
        ("s", "x"),
        ("d",),
        ("at",),
        ("tags",),
    ]
    limited = configuration(dataSkippingNumIndexedCols="2")
    assert [c.path for c in statistics_columns(limited)] == [("id",), ("s", "x")]
    named = configuration(dataSkippingStatsColumns="S,at")
    assert [c.path for c in statistics_columns(named)] == [("s", "x"), ("at",)]
    assert statistics_columns(configuration(dataSkippingNumIndexedCols="0")) == ()


def test_a_table_without_statistics_still_counts_its_rows() -> None:
    table = table_of(state(properties={"dataSkippingNumIndexedCols": "0"}))
    assert rows_of(table, "add")[0]["stats_parsed"]["numRecords"] == 3


def test_an_empty_table_has_a_checkpoint() -> None:
    assert table_of(state(0, tombstones=TOMBSTONE_SCHEMA.empty_table())).num_rows == 4


def test_a_v2_checkpoint_says_so() -> None:
    table = table_of(state(50), as_v2=True)
    assert rows_of(table, "checkpointMetadata") == [{"version": 12, "tags": None}]
    assert "sidecar" in table.column_names
    assert len(rows_of(table, "add")) == 50
