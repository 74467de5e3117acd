"""Parquet checkpoints, as many writers spell them. Spec: Checkpoints; Checkpoint Schema."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import CorruptLog, MemoryExhausted
from dagster_delta.protocol.checkpoint.batches import read_adds, read_removes
from dagster_delta.protocol.checkpoint.reader import CheckpointPart, corruption_named
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from tests.table.logs import (
    CHECKPOINT_TYPES,
    EVERY_COLUMN,
    EVERY_FIELD,
    PROTOCOL,
    Action,
    add_file,
    checkpoint_bytes,
    metadata,
    remove_file,
    vector,
)


def _part(data: bytes) -> CheckpointPart:
    return CheckpointPart(lambda: pa.BufferReader(data), "_delta_log/checkpoint")


def _part_of(actions: Sequence[Action], types: Mapping[str, Any] | None = None) -> CheckpointPart:
    return _part(checkpoint_bytes(actions, types))


def _part_with(add: Any) -> CheckpointPart:
    sink = io.BytesIO()
    pq.write_table(pa.table({"add": add}), sink)
    return _part(sink.getvalue())


def _adds(part: CheckpointPart, *columns: str) -> list[dict[str, Any]]:
    mask, paths = part.add_rows()
    table = read_adds(part, columns or LIVE_FILE_SCHEMA.names, mask)
    table.validate(full=True)
    assert sum(map(len, paths)) == table.num_rows
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_actions_about_the_table_are_found_among_files() -> None:
    part = _part_of(
        [
            add_file("a"),
            {"txn": {"appId": "x", "version": 3}},
            PROTOCOL,
            add_file("b"),
            metadata({"k": "v"}, ["day"]),
            {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
            {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 2}},
        ]
    )
    found = part.read_table_actions()
    assert found.protocol is not None
    assert found.protocol.reader_features is None
    assert found.metadata is not None
    assert found.metadata.configuration == {"k": "v"}
    assert found.metadata.partition_columns == ("day",)
    assert found.metadata.format.options == {}
    assert found.txns["x"].version == 3
    assert found.txns["x"].last_updated_ms is None
    assert found.domain_metadata["d"].configuration == "{}"
    assert [each.path for each in found.sidecars] == ["s.parquet"]


def test_actions_about_the_table_are_found_behind_many_files() -> None:
    adds = [add_file(f"f{number}") for number in range(40_000)]
    found = _part_of([*adds, PROTOCOL, metadata()]).read_table_actions()
    assert found.protocol is not None
    assert found.metadata is not None


def test_actions_about_the_table_are_found_without_footer_statistics() -> None:
    table = pq.read_table(io.BytesIO(checkpoint_bytes([add_file("a"), PROTOCOL, metadata()])))
    sink = io.BytesIO()
    pq.write_table(table, sink, write_statistics=False)
    found = _part(sink.getvalue()).read_table_actions()
    assert found.protocol is not None
    assert found.metadata is not None


def test_every_field_of_an_add_reaches_its_column() -> None:
    add = add_file("a", **EVERY_FIELD)
    assert _adds(_part_of([PROTOCOL, add])) == [{"path": "a", **EVERY_COLUMN}]


def test_only_the_chosen_files_are_read() -> None:
    part = _part_of([add_file("a"), PROTOCOL, add_file("b"), add_file("c")])
    keep = pa.array([False, False, True, True])
    assert read_adds(part, ["path"], keep)["path"].to_pylist() == ["b", "c"]
    nothing = pa.array([False] * 4)
    assert read_adds(part, ["path", "tags"], nothing)["tags"].to_pylist() == []


def test_columns_that_a_writer_left_out_read_as_null() -> None:
    maps = pa.map_("string", "string")
    minimal = pa.struct([("path", pa.string()), ("partitionValues", maps), ("size", pa.int64())])
    rows = _adds(_part_of([add_file("a", partitionValues={"p": "1"})], {"add": minimal}))
    assert rows[0]["partition_values"] == [("p", "1")]
    assert rows[0]["size_bytes"] == 10
    others = set(LIVE_FILE_SCHEMA.names) - {"path", "partition_values", "size_bytes"}
    assert {name: rows[0][name] for name in others} == dict.fromkeys(others)


def test_a_struct_of_nulls_is_no_deletion_vector() -> None:
    vectors = pa.StructArray.from_arrays(
        [pa.array([None, "u"]), pa.array([None, "v"]), pa.array([None, 34]), pa.array([None, 2])],
        names=["storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"],
    )
    add = pa.StructArray.from_arrays(
        [pa.array(["a", "b"]), vectors], names=["path", "deletionVector"]
    )
    first, second = _adds(_part_with(add), "deletion_vector")
    assert first["deletion_vector"] is None
    assert second["deletion_vector"]["path_or_inline_dv"] == "v"
    assert second["deletion_vector"]["offset"] is None


def test_other_spellings_of_types_read_alike() -> None:
    maps = pa.array([[("p", "1")], None, []], pa.map_(pa.large_string(), pa.large_string()))
    add = pa.StructArray.from_arrays(
        [
            pa.array(["a", "b", "a"]).dictionary_encode(),
            maps,
            pa.array([1, 2, 3], pa.int32()),
            pa.array(["{}", None, "{}"], pa.large_string()),
        ],
        names=["path", "partitionValues", "size", "stats"],
    )
    rows = _adds(_part_with(add), "path", "partition_values", "size_bytes", "stats")
    assert [row["path"] for row in rows] == ["a", "b", "a"]
    assert [row["partition_values"] for row in rows] == [[("p", "1")], None, []]
    assert [row["size_bytes"] for row in rows] == [1, 2, 3]
    assert [row["stats"] for row in rows] == ["{}", None, "{}"]


def test_adds_that_are_structs_of_nulls_are_no_files() -> None:
    # Some writers make every action column required and leave its fields null.
    add = pa.StructArray.from_arrays(
        [pa.array(["a", None, "b"]), pa.array([1, None, 2])], names=["path", "size"]
    )
    assert [row["path"] for row in _adds(_part_with(add), "path")] == ["a", "b"]


def test_a_required_path_in_a_missing_add_is_no_file() -> None:
    fields = [pa.field("path", pa.string(), nullable=False), pa.field("size", pa.int64())]
    add = pa.array([{"path": "a", "size": 1}, None], pa.struct(fields))
    assert [row["path"] for row in _adds(_part_with(add), "path")] == ["a"]


def test_a_part_without_adds_holds_no_files() -> None:
    types = {kind: CHECKPOINT_TYPES[kind] for kind in ("protocol", "metaData")}
    part = _part_of([PROTOCOL, metadata()], types)
    assert _adds(part, "path", "size_bytes") == []
    assert read_removes(part).num_rows == 0


def test_an_empty_part_holds_nothing() -> None:
    part = _part_of([])
    assert _adds(part, "path") == []
    assert read_removes(part).num_rows == 0
    assert part.read_table_actions().protocol is None


def test_removes_are_read_as_tombstones() -> None:
    part = _part_of(
        [
            remove_file("a", deletionTimestamp=5, size=3),
            add_file("b"),
            remove_file("c", deletionVector=vector("v")),
        ]
    )
    removes = read_removes(part)
    removes.validate(full=True)
    rows = removes.to_pylist()
    assert [(row["path"], row["deletion_timestamp_ms"]) for row in rows] == [("a", 5), ("c", None)]
    assert [row["size_bytes"] for row in rows] == [3, None]
    assert rows[1]["deletion_vector"]["path_or_inline_dv"] == "v"


def test_several_batches_and_row_groups_read_like_one() -> None:
    actions = [add_file(f"f{n}", partitionValues={"p": str(n)}) for n in range(5000)]
    table = pq.read_table(io.BytesIO(checkpoint_bytes([PROTOCOL, *actions, metadata()])))
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=700)
    rows = _adds(_part(sink.getvalue()), "path", "partition_values")
    assert [row["path"] for row in rows] == [f"f{n}" for n in range(5000)]
    assert [row["partition_values"] for row in rows] == [[("p", str(n))] for n in range(5000)]


class _CountedFile(io.BytesIO):
    """Counts the bytes that are read."""

    num_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


def test_a_large_remote_file_is_fetched_some_row_groups_at_a_time() -> None:
    table = pq.read_table(io.BytesIO(checkpoint_bytes([add_file(f"f{n}") for n in range(5000)])))
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=500, compression="none")
    source = _CountedFile(sink.getvalue())
    size = len(sink.getvalue())
    part = CheckpointPart(
        lambda: pa.PythonFile(source, mode="r"),
        "_delta_log/checkpoint",
        is_remote=True,
        fetched_bytes=size // 5,
    )
    assert part.num_rows == 5000
    source = _CountedFile(sink.getvalue())
    batches = part.batches(["add"])
    first = next(batches)
    # Columns that hold nothing but nulls take no bytes to speak of.
    assert 0 < source.num_read < size // 2
    found = [first, *batches]
    paths = [row["path"] for batch in found for row in batch.column("add").to_pylist()]
    assert paths == [f"f{n}" for n in range(5000)]


@pytest.mark.parametrize("cut", [0, 10, 200, -4])
def test_a_damaged_file_is_refused_by_name(cut: int) -> None:
    data = checkpoint_bytes([add_file("a"), PROTOCOL])
    with pytest.raises(CorruptLog) as raised:
        _part(data[:cut]).read_table_actions()
    assert raised.value.file == "_delta_log/checkpoint"


def test_an_action_that_lacks_what_it_must_have_is_refused() -> None:
    types = {"protocol": pa.struct([("minReaderVersion", pa.int32())])}
    with pytest.raises(CorruptLog, match="minWriterVersion"):
        _part_of([PROTOCOL], types).read_table_actions()


def test_a_lack_of_memory_is_not_taken_for_damage() -> None:
    path = "_delta_log/a.checkpoint.parquet"
    with pytest.raises(MemoryExhausted, match="malloc failed") as caught, corruption_named(path):
        raise pa.ArrowMemoryError("malloc failed")
    assert caught.value.file == path


def test_a_footer_that_contradicts_itself_about_a_type_is_damage() -> None:
    data = checkpoint_bytes([PROTOCOL, metadata(), add_file("a"), add_file("b")])
    # Thrift of the metadata of a column: BYTE_ARRAY becomes FLOAT. Arrow ends the process over it.
    damaged = data.replace(b"\x15\x0c\x19", b"\x15\x08\x19")
    assert damaged != data
    part = CheckpointPart(lambda: pa.BufferReader(damaged), "_delta_log/a.checkpoint.parquet")
    with pytest.raises(CorruptLog, match="holds BYTE_ARRAY, and that it holds FLOAT"):
        part.read_table_actions()
    with pytest.raises(CorruptLog, match="holds BYTE_ARRAY, and that it holds FLOAT"):
        _ = part.num_adds
