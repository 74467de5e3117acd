"""REORG: files with deleted rows, dropped columns or old types are rewritten, and no others."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.table.delta_table import DeltaTable
from tests.sample_tables import MAPPED, VECTORS, numbered
from tests.table.logs import actions
from tests.table.operations.test_optimize import content, make

WIDENING = {"delta.enableTypeWidening": "true"}


def schemas(table: DeltaTable) -> list[pa.Schema]:
    paths = table.snapshot().files()["path"].to_pylist()
    return [pq.read_schema(io.BytesIO(table.store.read(path))) for path in paths]


def test_deleted_rows_are_purged_and_other_files_stay() -> None:
    table = make(3, VECTORS)
    table.delete("id = 5")
    kept = set(table.snapshot().files()["path"].to_pylist()[:3])
    before = content(table)
    result = table.reorg(purge=["deletion_vectors"])
    assert result.metrics["numRemovedFiles"] == 1
    assert content(table) == before
    assert not any(table.snapshot().files()["has_deletion_vector"].to_pylist())
    assert len(kept & set(table.snapshot().files()["path"].to_pylist())) == 2
    info = actions(table)["commitInfo"][0]
    assert (info["operation"], info["operationParameters"]["applyPurge"]) == ("REORG", "true")
    assert not any(each["dataChange"] for each in actions(table)["add"] + actions(table)["remove"])
    assert table.reorg().skipped


def test_dropped_columns_leave_the_files() -> None:
    table = make(2, MAPPED)
    table.drop_column("v")
    table.append(numbered(100).drop_columns(["v"]))
    before = content(table)
    assert sorted(len(each) for each in schemas(table)) == [2, 3, 3]
    result = table.reorg(purge=["dropped_columns"])
    assert result.metrics["numRemovedFiles"] == 2
    assert {len(each) for each in schemas(table)} == {2}
    assert content(table) == before


def test_a_dropped_field_of_a_struct_in_an_array_leaves_the_files() -> None:
    table = make(0)
    rows: Any = pa.table({"id": [1], "a": [[{"x": 1, "y": "secret"}]]})
    table.append(rows, properties=MAPPED)
    table.drop_column("a.element.y")
    table.reorg()
    ((_, column),) = [(each, each.field(1)) for each in schemas(table)]
    assert column.type.value_type.num_fields == 1
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "a": [{"x": 1}]}]


def test_values_get_the_widened_type() -> None:
    table = make(2, WIDENING)
    table.widen_column("p", "long")
    table.append(numbered(100))
    before = content(table)
    assert table.reorg(purge=["widened_types"]).metrics["numRemovedFiles"] == 2
    assert {each.field("p").type for each in schemas(table)} == {pa.int64()}
    assert content(table) == before
    assert table.reorg().skipped


def test_what_is_purged_must_be_known() -> None:
    table = make(1)
    for purge in (["rows"], [], "deletion_vectors"):
        with pytest.raises(InvalidArgument, match="purge lists what is purged"):
            table.reorg(purge=purge)  # type: ignore[arg-type]


def test_row_ids_survive_a_reorg() -> None:
    table = make(2, VECTORS | {"delta.enableRowTracking": "true"})
    table.delete("id = 5")
    scan = table.snapshot().scan(["id"], row_ids=True).to_arrow().sort_by("id")
    table.reorg()
    assert table.snapshot().scan(["id"], row_ids=True).to_arrow().sort_by("id") == scan


def test_optimize_sorts_the_rows_over_all_files_of_a_partition() -> None:
    table = make(0)
    count = 160_000
    ids = np.arange(count) * 7919 % count
    for some in np.split(ids, 4):
        table.append(pa.table({"id": some, "g": some % 3}))
    table.optimize(sort_by=["g", "id"], target_file_size=500_000)
    ranges, found = [], []
    for path in table.snapshot().files()["path"].to_pylist():
        rows = pq.read_table(io.BytesIO(table.store.read(path)))
        assert rows.sort_by([("g", "ascending"), ("id", "ascending")]) == rows
        ranges.append((rows["g"][0].as_py(), rows["g"][-1].as_py()))
        found.extend(rows["id"].to_pylist())
    assert len(ranges) > 2
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert sorted(found) == list(range(count))
    info = actions(table)["commitInfo"][0]
    assert info["operationParameters"]["sortBy"] == '["g","id"]'


def test_what_cannot_be_sorted_by_is_refused() -> None:
    table = make(1, partition_by=("p",))
    with pytest.raises(InvalidArgument, match="sort_by or by zorder_by"):
        table.optimize(sort_by=["id"], zorder_by=["id"])
    with pytest.raises(InvalidArgument, match="partition column"):
        table.optimize(sort_by=["p"])
    with pytest.raises(InvalidArgument, match="twice"):
        table.optimize(sort_by=["id", "ID"])
    with pytest.raises((InvalidArgument, SchemaMismatch)):
        table.optimize(sort_by=["nothing"])


def test_name_and_description_are_set_after_creation() -> None:
    table = make(1)
    assert table.set_name("flights").version == 1
    assert table.set_description("From New York").version == 2
    assert (table.metadata().name, table.metadata().description) == ("flights", "From New York")
    assert table.set_name("flights").skipped
    table.set_description(None)
    reopened = DeltaTable("", store=table.store).metadata()
    assert (reopened.name, reopened.description) == ("flights", None)
