"""Files are written together: the same rows in fewer files, sorted where asked, and no new change."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta import DeltaTable
from tests.conformance.engines import Engine, files_of
from tests.sample_tables import VECTORS, numbered_with_nulls

SHAPES = {
    "plain": ((), VECTORS),
    "partitioned": (("p",), VECTORS),
    "mapped": (("p",), VECTORS | {"delta.columnMapping.mode": "id"}),
    "tracked": ((), VECTORS | {"delta.enableRowTracking": "true"}),
}


@pytest.mark.parametrize("zorder_by", [[], ["v", "id"]], ids=["packed", "zorder"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.examples(3, on_spark=True)
def test_small_files_become_one_and_no_row_changes(
    shape: str, zorder_by: list[str], engine: Engine, table: DeltaTable
) -> None:
    partition_by, properties = SHAPES[shape]
    for part in range(4):
        ids = range(10 * part, 10 * part + 10)
        feed = {"delta.enableChangeDataFeed": "true"}
        table.append(
            numbered_with_nulls(*ids), partition_by=partition_by, properties=properties | feed
        )
    table.delete("id % 10 = 4", engine=engine.name)
    before, version = engine.counted(table), table.version()
    assert sum(before.values()) == 36
    result = table.optimize(engine=engine.name, zorder_by=zorder_by)
    files = table.snapshot().files()
    assert files.num_rows == (3 if partition_by else 1)
    assert files["has_deletion_vector"].to_pylist() == [False] * files.num_rows
    assert engine.counted(table) == before
    assert table.snapshot().num_records == 36
    assert result.metrics["numAddedFiles"] == files.num_rows
    assert engine.changes(table, version + 1, "id") == []
    if shape == "tracked":
        numbered, earlier = (
            engine.counted(table.snapshot(version=each).scan(row_ids=True))
            for each in (None, version)
        )
        assert numbered == earlier
    if not zorder_by:
        assert table.optimize(engine=engine.name).skipped


def test_rows_are_sorted_beside_columns_with_any_name(engine: Engine, table: DeltaTable) -> None:
    for part in range(2):
        ids = [part, part + 2]
        odd = {"g`h": ["x", "y"], "x.y": [1, 2], "_0": ids, "st": [{"a.b": each} for each in ids]}
        table.append(pa.table({"id": ids, **odd}), partition_by=["g`h"])
    before = engine.counted(table)
    for columns in (["id", "`x.y`"], ["st.`a.b`"]):
        assert not table.optimize(engine=engine.name, zorder_by=columns).skipped
        assert engine.counted(table) == before
        assert table.snapshot().num_files == 2


def test_only_files_that_may_hold_matching_rows_are_looked_at(
    engine: Engine, table: DeltaTable
) -> None:
    for part in range(4):
        table.append(numbered_with_nulls(*range(10 * part, 10 * part + 10)))
    untouched = set(table.snapshot().scan(where="id >= 20").files()["path"].to_pylist())
    result = table.optimize("id < 20", engine=engine.name)
    assert result.metrics["numRemovedFiles"] == 2
    assert untouched < set(table.snapshot().files()["path"].to_pylist())
    assert len(engine.tuples(table)) == 40


def test_a_dry_run_counts_what_is_then_rewritten(engine: Engine, table: DeltaTable) -> None:
    for part in range(3):
        table.append(numbered_with_nulls(part, part + 10), properties=VECTORS)
    for where, zorder_by in ((None, ["id"]), ("id < 2", []), (None, [])):
        table.append(numbered_with_nulls(20))
        planned = table.optimize(where, zorder_by=zorder_by, engine=engine.name, dry_run=True)
        assert planned.skipped
        assert table.refresh().version == planned.version
        done = table.optimize(where, zorder_by=zorder_by, engine=engine.name)
        assert planned.metrics == {name: done.metrics[name] for name in planned.metrics}
    table.delete("id = 0")
    planned = table.reorg(engine=engine.name, dry_run=True)
    assert table.refresh().version == planned.version
    assert planned.metrics["numRemovedFiles"] == 1
    done = table.reorg(engine=engine.name)
    assert done.metrics["numRemovedBytes"] == planned.metrics["numRemovedBytes"]


def test_a_clustered_table_is_laid_out_and_keeps_its_rows(
    engine: Engine, table: DeltaTable
) -> None:
    created = DeltaTable.create(
        table.uri, numbered_with_nulls().schema, cluster_by=["v", "id"], properties=VECTORS
    )
    for part in range(3):
        created.append(engine.rows(numbered_with_nulls(*range(10 * part, 10 * part + 10))))
    created.delete("id % 10 = 4", engine=engine.name)
    before = engine.counted(created)
    assert not created.optimize(engine=engine.name).skipped
    files = created.snapshot().files()
    assert files["has_deletion_vector"].to_pylist() == [False]
    assert engine.counted(created) == before
    created.append(engine.rows(numbered_with_nulls(100)))
    created.optimize(engine=engine.name, full=True)
    assert created.snapshot().num_files == 1
    assert engine.tuples(created, "id", where="v = 'v3' OR v = 'v100'") == [(3,), (100,)]
    assert created.snapshot().num_records == 28


def test_a_table_is_restored_cloned_and_read(engine: Engine, table: DeltaTable) -> None:
    table.append(engine.rows(numbered_with_nulls(1, 2, 3)), properties=VECTORS)
    table.delete("id = 2", engine=engine.name)
    table.restore(version=0)
    table.update({"v": "'new'"}, "id = 3", engine=engine.name)
    table.clone(f"{table.uri}-clone", deep=False)
    clone = DeltaTable(f"{table.uri}-clone")
    clone.append(engine.rows(numbered_with_nulls(4)))
    clone.delete("id = 1", engine=engine.name)
    assert engine.tuples(clone, "id", "v") == [(2, "v2"), (3, "new"), (4, "v4")]
    assert engine.tuples(table, "id", "v") == [(1, "v1"), (2, "v2"), (3, "new")]
    clone.checkpoint()
    assert engine.tuples(DeltaTable(clone.uri), "id") == [(2,), (3,), (4,)]


@pytest.mark.parametrize("zorder_by", [[], ["key"]], ids=["packed", "zorder"])
@pytest.mark.examples(1, on_spark=True)
def test_files_that_are_written_together_have_their_bloom_filters(
    zorder_by: list[str], engine: Engine, table: DeltaTable
) -> None:
    keys = [number * 7919 % 100_003 for number in range(2000)]
    asked = {"parquet.bloom.filter.enabled#key": "true"}
    for part in range(2):
        rows = pa.table({"key": keys[part::2], "v": range(1000)})
        table.append(engine.rows(rows), properties=asked)
    table.optimize(engine=engine.name, zorder_by=zorder_by)
    live = table.snapshot().files()["path"].to_pylist()
    files = [path for path in files_of(table) if path.name in live]
    assert len(files) == len(live)
    for path in files:
        group = pq.ParquetFile(path).metadata.row_group(0)
        filters = [group.column(index).bloom_filter_length for index in range(2)]
        assert [length is not None for length in filters] == [True, False]
