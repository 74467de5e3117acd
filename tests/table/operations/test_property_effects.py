"""Table properties that writers go by: what each of them changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.properties import KNOWN_PROPERTIES
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.table_properties import TableProperties
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.table.operations import optimize
from dagster_delta.table.operations.optimize import MIN_FILES
from dagster_delta.table.read.watch import read_new_commits, start_cursor

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])


def rows(*ids: int, p: str = "x") -> pa.Table:
    return pa.table({"id": ids, "p": [p] * len(ids)}, SCHEMA)


def make(properties: dict[str, Any], **options: Any) -> DeltaTable:
    options = {"store": MemoryStore(), **options}
    return DeltaTable.create("", SCHEMA, properties=properties, **options)


def force(table: DeltaTable, **properties: str) -> None:
    """Give the table properties that only others set."""
    configuration = table.snapshot().configuration
    known = {**configuration.metadata.configuration, **properties}
    metadata = msgspec.structs.replace(configuration.metadata, configuration=known)
    transaction = table.transaction()
    transaction.stage_configuration(TableConfiguration(configuration.protocol, metadata))
    transaction.commit("SET TBLPROPERTIES")
    table.refresh()


def file_counts(table: DeltaTable) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for values in table.snapshot().files()["partition_values"].to_pylist():
        key = dict(values or ()).get("p")
        counts[key] = counts.get(key, 0) + 1
    return counts


def fill(table: DeltaTable, num_files: int, p: str = "x") -> None:
    for each in range(num_files):
        table.append(rows(each, p=p))


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.autoOptimize.autoCompact": "true"},
        {"delta.autoOptimize": "true"},
        {"delta.autoOptimize.autoCompact": "auto"},
    ],
)
def test_small_files_are_compacted_once_there_are_enough(properties: dict[str, str]) -> None:
    table = make(properties)
    fill(table, MIN_FILES - 1)
    assert table.snapshot().num_files == MIN_FILES - 1
    result = table.append(rows(MIN_FILES - 1))
    assert result.version == MIN_FILES
    assert result.compacted_version == table.version() == MIN_FILES + 1
    assert table.snapshot().num_files == 1
    newest = table.history(limit=1)[0]
    assert (newest.operation, newest.operation_parameters["auto"]) == ("OPTIMIZE", "true")
    ids = table.snapshot().scan().to_arrow().sort_by("id")["id"].to_pylist()
    assert ids == list(range(MIN_FILES))


def test_partitions_with_few_small_files_are_left_alone() -> None:
    table = make({"delta.autoOptimize.autoCompact": "true"}, partition_by=["p"])
    fill(table, MIN_FILES - 1, "y")
    fill(table, MIN_FILES)
    assert file_counts(table) == {"x": 1, "y": MIN_FILES - 1}


def test_nothing_is_compacted_where_nobody_asks() -> None:
    table = make({"delta.autoOptimize.optimizeWrite": "true"})
    fill(table, MIN_FILES)
    assert table.snapshot().num_files == MIN_FILES


def test_a_compaction_that_fails_leaves_the_write_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(optimize, "optimize_table", fail)
    table = make({"delta.autoOptimize.autoCompact": "true"})
    fill(table, MIN_FILES)
    assert (table.version(), table.snapshot().num_files) == (MIN_FILES, MIN_FILES)
    assert "not compacted: no space left" in caplog.text


def test_statistics_keep_as_many_characters_as_the_table_says() -> None:
    table = make({"delta.dataSkippingStringPrefixLength": 4})
    table.append(rows(1, p="a long text"))
    stats = json.loads(table.snapshot().files()["stats"][0].as_py())
    assert (stats["minValues"]["p"], stats["maxValues"]["p"]) == ("a lo", "a lo\x7f")
    for where, count in (("p = 'a long text'", 1), ("p > 'a lp'", 0), ("p LIKE 'a lon%'", 1)):
        assert table.snapshot().scan(where=where).files().num_rows == count


@pytest.mark.parametrize(("version", "packed"), [(None, True), ("2.12.0", True), ("1.0.0", False)])
def test_files_use_the_encodings_of_a_format_version(
    version: str | None, packed: bool, tmp_path: Path
) -> None:
    properties = {} if version is None else {"delta.parquet.format.version": version}
    table = DeltaTable.create(str(tmp_path), SCHEMA, properties=properties)
    table.append(rows(*range(1000)))
    (path,) = table.snapshot().files()["path"].to_pylist()
    encodings = pq.ParquetFile(tmp_path / path).metadata.row_group(0).column(0).encodings
    assert ("DELTA_BINARY_PACKED" in encodings) == packed


def test_transactions_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make({"delta.setTransactionRetentionDuration": "interval 1 day"})
    table.append(rows(1), idempotency=("job", 1))
    assert table.append(rows(1), idempotency=("job", 1)).skipped
    assert [each.app_id for each in table.snapshot().transactions()] == ["job"]
    later = table.snapshot().transactions(now_ms=2**42)
    assert later == ()
    monkeypatch.setattr("time.time_ns", lambda: 2**42 * 1_000_000)
    assert not table.append(rows(1), idempotency=("job", 1)).skipped


def test_a_checkpoint_leaves_expired_transactions_out() -> None:
    table = make({"delta.setTransactionRetentionDuration": "interval 1 day"})
    transaction = table.transaction()
    transaction.clock = lambda: 1
    transaction.record_application("old", 1)
    transaction.commit("WRITE")
    table.refresh()
    table.append(rows(1), idempotency=("new", 1))
    table.checkpoint()
    checkpoint = table.store.read(f"_delta_log/{table.version():020}.checkpoint.parquet")
    found = pq.read_table(pa.BufferReader(checkpoint))["txn"].drop_null().to_pylist()
    assert [each["appId"] for each in found] == ["new"]
    # Which have expired hangs on the clock, so that no checksum tells them.
    checksum = json.loads(table.store.read(f"_delta_log/{1:020}.crc"))
    assert "setTransactions" not in checksum


def test_partition_columns_stand_in_the_files_too(tmp_path: Path) -> None:
    properties = {"delta.enableMaterializePartitionColumnsFeature": True}
    table = DeltaTable.create(str(tmp_path), SCHEMA, partition_by=["p"], properties=properties)
    assert table.snapshot().configuration.supports("materializePartitionColumns")
    table.append(rows(1))
    (path,) = table.snapshot().files()["path"].to_pylist()
    assert pq.read_schema(tmp_path / path).names == ["id", "p"]


def test_the_former_name_of_the_change_data_feed_counts() -> None:
    table = make({"delta.feature.changeDataFeed": "supported"})
    force(table, **{"delta.enableChangeDataCapture": "true"})
    table.append(rows(1, 2))
    table.delete("id = 1")
    kinds = table.changes(starting_version=3).to_arrow()["_change_type"].to_pylist()
    assert kinds == ["delete"]
    _, (deleted,) = read_new_commits(table.store, start_cursor(table.store, 3))
    assert deleted.change_feed_enabled
    both = {"delta.enableChangeDataCapture": "true", "delta.enableChangeDataFeed": "false"}
    assert not TableProperties.parse(both).enable_change_data_feed


def test_no_row_gets_an_id_while_row_tracking_is_suspended() -> None:
    table = make({"delta.feature.rowTracking": "supported"})
    table.append(rows(1))
    force(table, **{"delta.rowTrackingSuspended": "true"})
    table.append(rows(2))
    ids = table.snapshot().live_files()["base_row_id"].to_pylist()
    assert sorted(ids, key=str) == [0, None]


def test_what_would_have_no_effect_cannot_be_set() -> None:
    table = make({})
    refused = [name for name, how in KNOWN_PROPERTIES.items() if how not in {"honoured", "kept"}]
    assert len(refused) > 10
    for name in refused:
        with pytest.raises(InvalidArgument, match="cannot be set"):
            table.set_properties({name: "true"})
