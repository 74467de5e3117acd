"""`docs/readers.md` says which other readers read a table with a feature."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.evolution.plan_report import READERS_WITHOUT

PAGE = (Path(__file__).parents[2] / "docs" / "readers.md").read_text()
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", "c"]})


def plain(uri: str) -> None:
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
    }
    table = DeltaTable.create(uri, ROWS.schema, properties=properties, cluster_by=["id"])
    table.append(ROWS)
    table.alter("ALTER TABLE t ADD CONSTRAINT positive CHECK (id > 0)")
    table.delete("id = 2")


def timestamps(uri: str) -> None:
    times = pa.array([1, 2], pa.timestamp("us"))
    table = DeltaTable.create(uri, pa.schema({"at": pa.timestamp("us")}))
    table.append(pa.table({"at": times}))


def deletion_vectors(uri: str) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    table = DeltaTable.create(uri, ROWS.schema, properties=properties)
    table.append(ROWS)
    table.delete("id = 2")


def column_mapping(uri: str) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    table = DeltaTable.create(uri, ROWS.schema, properties=properties)
    table.append(ROWS)
    table.alter("ALTER TABLE t RENAME COLUMN name TO label")


def v2_checkpoints(uri: str) -> None:
    table = DeltaTable.create(uri, ROWS.schema, properties={"delta.checkpointPolicy": "v2"})
    table.append(ROWS)
    table.checkpoint()


def type_widening(uri: str) -> None:
    properties = {"delta.enableTypeWidening": "true"}
    table = DeltaTable.create(uri, ROWS.schema, properties=properties)
    table.append(ROWS)
    table.alter("ALTER TABLE t ALTER COLUMN id TYPE bigint")


def vacuum_protocol_check(uri: str) -> None:
    properties = {"delta.feature.vacuumProtocolCheck": "supported"}
    DeltaTable.create(uri, ROWS.schema, properties=properties).append(ROWS)


def by_query(uri: str) -> pa.Table:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(uri))
    return pa.table(query.execute("SELECT * FROM t").read_all())


def reads(read: Callable[[str], pa.Table], uri: str) -> bool:
    try:
        rows = read(uri)
    except Exception as error:  # noqa: BLE001  each reader has errors of its own
        assert re.search(r"feature|reader version", str(error)), error  # noqa: PT017
        return False
    expected = DeltaTable(uri).snapshot().scan().to_arrow().to_pylist()
    assert sorted(map(str, rows.to_pylist())) == sorted(map(str, expected))
    return True


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (plain, "none: partitions"),
        (timestamps, "`timestamp_ntz`"),
        (deletion_vectors, "deletion vectors"),
        (column_mapping, "column mapping"),
        (v2_checkpoints, "V2 checkpoints"),
        (type_widening, "type widening"),
        (vacuum_protocol_check, "vacuum protocol check"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_of_readers_says_who_reads_a_table(
    make: Callable[[str], None], row: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    make(uri)
    (cells,) = re.findall(rf"(?m)^\| {re.escape(row)}.*?\| yes \| (.*?) \| (.*?) \|$", PAGE)
    by_deltalake, by_polars = cells
    assert reads(by_query, uri) == (by_deltalake != "no")
    assert reads(lambda uri: pl.read_delta(uri).to_arrow(), uri) == (by_polars == "yes")
    if make is column_mapping:
        assert deltalake.DeltaTable(uri).to_pyarrow_table()["label"].null_count == 3
    elif by_deltalake != "no":
        to_arrow = reads(lambda uri: deltalake.DeltaTable(uri).to_pyarrow_table(), uri)
        assert to_arrow == (by_deltalake == "yes")


def test_the_plan_of_a_change_names_the_readers_that_the_page_names() -> None:
    rows = {
        "columnMapping": "column mapping",
        "deletionVectors": "deletion vectors",
        "typeWidening": "type widening",
        "v2Checkpoint": "V2 checkpoints",
        "vacuumProtocolCheck": "vacuum protocol check",
    }
    words = {
        ("no", "no"): "deltalake 1.6 and polars 2.1 cannot read it",
        ("by `QueryBuilder`", "no"): (
            "polars 2.1 cannot read it, and deltalake 1.6 only by `QueryBuilder`"
        ),
        ("by `QueryBuilder`", "yes"): "deltalake 1.6 reads it only by `QueryBuilder`",
    }
    assert "| deltalake 1.6 | polars 2.1 `read_delta` |" in PAGE
    assert rows.keys() == READERS_WITHOUT.keys()
    for feature, row in rows.items():
        (cells,) = re.findall(rf"(?m)^\| {row}.*?\| yes \| (.*?) \| (.*?) \|$", PAGE)
        nulls = ": `to_pyarrow_table` shows nulls" if feature == "columnMapping" else ""
        assert READERS_WITHOUT[feature] == words[cells] + nulls
