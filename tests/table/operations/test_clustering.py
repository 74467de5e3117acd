"""Clustered tables: created so, and laid out along a curve by what OPTIMIZE finds new."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_delta import DeltaTable
from dagster_delta.errors import (
    InvalidArgument,
    InvalidTable,
    SchemaChangeRefused,
    SchemaMismatch,
)
from dagster_delta.table.operations.clustering import table_clustering
from tests.table.bounded_writes import sort_bounded

SCHEMA = pa.schema(
    [("a", pa.int64()), ("s", pa.struct([("b", pa.int64())])), ("text", pa.string())]
)


def rows(count: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    a, b = (random.permutation(count).tolist() for _ in range(2))
    return pa.table({"a": a, "s": [{"b": each} for each in b], "text": ["x"] * count}, SCHEMA)


def create(name: str, **options: Any) -> DeltaTable:
    return DeltaTable.create(f"memory://{name}", SCHEMA, cluster_by=["a", "s.b"], **options)


def cubes(table: DeltaTable) -> Counter[str | None]:
    """Number of live files by the cube they are in."""
    tags = table.snapshot().files()["tags"].to_pylist()
    return Counter(dict(each or {}).get("ZCUBE_ID") for each in tags)


def ids(table: DeltaTable) -> list[tuple[int, int]]:
    found = table.snapshot().scan().to_arrow()
    return sorted((each["a"], each["s"]["b"]) for each in found.to_pylist())


def test_a_table_is_created_clustered() -> None:
    table = create("clustered-from-the-start")
    domain = table.snapshot().domain_metadata()["delta.clustering"]
    assert json.loads(domain.configuration)["clusteringColumns"] == [["a"], ["s", "b"]]
    assert {"clustering", "domainMetadata"} <= set(table.protocol().writer_features or ())


@pytest.mark.parametrize(
    ("columns", "partition_by", "error"),
    [
        (["nothing"], [], SchemaMismatch),
        (["a", "a"], [], InvalidArgument),
        (["a"], ["text"], SchemaChangeRefused),
    ],
)
def test_what_cannot_be_clustered_makes_no_table(
    columns: list[str], partition_by: list[str], error: type[Exception]
) -> None:
    uri = "memory://not-clustered"
    with pytest.raises(error):
        DeltaTable.create(uri, SCHEMA, cluster_by=columns, partition_by=partition_by)
    assert not DeltaTable.is_delta_table(uri)


def test_a_table_that_replaces_a_clustered_one_is_not_clustered() -> None:
    table = create("replaced-clustered")
    schema = pa.schema([("other", pa.int64())])
    replaced = DeltaTable.create(table.uri, schema, mode="replace", store=table.store)
    assert "delta.clustering" not in replaced.snapshot().domain_metadata()
    replaced.append(pa.table({"other": [1]}))
    assert replaced.optimize().skipped


def test_all_files_are_laid_out_along_one_curve() -> None:
    table, twin = create("clustered-at-once"), create("sorted-at-once")
    for seed in range(4):
        table.append(rows(2_000, seed))
        twin.append(rows(2_000, seed))
    before = ids(table)
    table.optimize()
    assert ids(table) == before
    sort_bounded(twin, [("a",), ("s", "b")], is_hilbert=True)
    assert table.snapshot().scan().to_arrow() == twin.snapshot().scan().to_arrow()
    providers = table.snapshot().live_files()["clustering_provider"].to_pylist()
    assert set(providers) == {"liquid"}
    assert len(cubes(table)) == 1


def test_only_what_is_new_and_small_cubes_are_clustered_again() -> None:
    table = create("clustered-step-by-step")
    table.append(rows(1_000))
    table.append(rows(1_000, 1))
    assert not table.optimize().skipped
    (large,) = cubes(table)
    most = int(table.snapshot().size_bytes * 1.2)
    # One cube that is alone, and full, is left alone.
    assert table.optimize(max_commit_bytes=most).skipped
    table.append(rows(50, 2))
    table.optimize(max_commit_bytes=most)
    (small,) = cubes(table).keys() - {large}
    assert large in cubes(table)
    assert table.optimize(max_commit_bytes=most).skipped
    table.append(rows(50, 3))
    table.optimize(max_commit_bytes=most)
    assert large in cubes(table)
    assert small not in cubes(table)
    assert None not in cubes(table)
    assert len(ids(table)) == 2_100


def test_other_clustering_columns_are_taken_over_by_full() -> None:
    table = create("clustered-otherwise")
    table.append(rows(100))
    table.optimize()
    (before,) = cubes(table)
    table.alter("CLUSTER BY (text)")
    assert table.optimize().skipped
    assert not table.optimize(full=True).skipped
    assert before not in cubes(table)
    assert table.optimize(full=True).skipped
    with pytest.raises(InvalidArgument, match="clustering columns"):
        table.optimize(zorder_by=["a"])


def test_deleted_rows_are_purged_from_clustered_files() -> None:
    table = create("clustered-and-purged", properties={"delta.enableDeletionVectors": "true"})
    table.append(rows(100))
    table.optimize()
    table.delete("a < 50")
    assert table.optimize().metrics["numDeletionVectorsRemoved"] == 1
    assert len(ids(table)) == 50
    assert table.optimize().skipped


def test_full_is_for_clustered_tables() -> None:
    table = DeltaTable.create("memory://not-clustered-at-all", SCHEMA)
    with pytest.raises(InvalidArgument, match="full"):
        table.optimize(full=True)


@pytest.mark.parametrize("write", ["append", "overwrite"])
def test_a_write_that_creates_the_table_clusters_it(write: str) -> None:
    table = DeltaTable(f"memory://clustered-by-{write}", must_exist=False)
    getattr(table, write)(rows(10), cluster_by=["a", "s.b"])
    assert table.version() == 0
    assert table_clustering(table.snapshot()) == (("a",), ("s", "b"))
    getattr(table, write)(rows(10), cluster_by=["A", "s.b"])
    for columns in (["s.b", "a"], []):
        with pytest.raises(InvalidArgument, match="is clustered by"):
            getattr(table, write)(rows(10), cluster_by=columns)
    with pytest.raises(InvalidArgument, match="list of columns"):
        getattr(table, write)(rows(10), cluster_by="a")
    assert not table.optimize().skipped


def test_a_new_table_is_not_both_clustered_and_partitioned() -> None:
    table = DeltaTable("memory://clustered-and-partitioned", must_exist=False)
    with pytest.raises(SchemaChangeRefused, match="either partitioned or clustered"):
        table.append(rows(10), cluster_by=["a"], partition_by=["text"])


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_a_table_stays_clustered_when_its_schema_is_replaced(mapping: str) -> None:
    properties = {"delta.columnMapping.mode": mapping}
    table = create(f"clustered-and-replaced-{mapping}", properties=properties)
    table.append(rows(10))
    table.overwrite(rows(20).drop(["text"]), schema_mode="overwrite")
    assert table_clustering(table.snapshot()) == (("a",), ("s", "b"))
    renamed = rows(20).rename_columns(["A", "s", "text"])
    table.overwrite(renamed, schema_mode="overwrite")
    assert table_clustering(table.snapshot()) == (("A",), ("s", "b"))
    table.append(renamed)
    assert not table.optimize().skipped


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        ({"a": [True], "s": [{"b": 1}]}, {}, "column a: values of type boolean"),
        ({"a": [[1]], "s": [{"b": 1}]}, {}, "column a: values of type array"),
        ({"a": [1], "s": [{"b": 1}], "p": [1]}, {"partition_by": ["p"]}, "either partitioned or"),
        ({"a": [1], "s": [{"c": 1}]}, {}, "the new schema does not have"),
    ],
)
def test_a_new_schema_that_cannot_be_clustered_so_is_refused(
    data: dict[str, Any], options: dict[str, Any], match: str
) -> None:
    table = create("clustered-and-refused", mode="replace")
    table.append(rows(10))
    with pytest.raises(SchemaChangeRefused, match=match):
        table.overwrite(pa.table(data), schema_mode="overwrite", **options)
    assert len(ids(table)) == 10


@pytest.mark.parametrize(
    ("statement", "columns"), [("CLUSTER BY (text)", (("text",),)), ("CLUSTER BY NONE", ())]
)
def test_a_clustering_by_a_column_that_is_gone_is_mended(
    statement: str, columns: tuple[tuple[str, ...], ...]
) -> None:
    # The reference implementation drops the struct that holds a clustering column.
    table = create("clustered-by-nothing", mode="replace")
    table.append(rows(10))
    path = f"_delta_log/{table.version() + 1:020}.json"
    domain = {"clusteringColumns": [["gone"]], "domainName": "delta.clustering"}
    action = {"domain": "delta.clustering", "configuration": json.dumps(domain), "removed": False}
    table.store.put_if_absent(path, json.dumps({"domainMetadata": action}).encode())
    with pytest.raises(InvalidTable, match="clustered by gone"):
        DeltaTable(table.uri, store=table.store).optimize()
    table.alter(statement)
    table.append(rows(10))
    assert not table.optimize().skipped
    assert table_clustering(table.snapshot()) == columns
