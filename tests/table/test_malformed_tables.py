"""Whatever bytes a table holds, its errors are DeltaErrors that name table and file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_delta.errors import (
    CorruptDeletionVector,
    CorruptLog,
    DeltaError,
    InvalidArgument,
    InvalidTable,
    StorageFailure,
)
from dagster_delta.protocol.features.deletion_vectors import (
    encode_deletion_vector_file,
)
from dagster_delta.protocol.log.paths import checkpoint_path, checksum_path, commit_path
from dagster_delta.table.delta_table import DeltaTable
from tests.inline_vectors import encode_inline
from tests.table.logs import (
    ADD_TYPE,
    CHECKPOINT_TYPES,
    PROTOCOL,
    Action,
    add_file,
    checkpoint_bytes,
    encode,
    features,
    remove_file,
)

DEEP = 100_000
ONE_COLUMN = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]


def schema_of(*fields: Any) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


def column(data_type: Any, name: Any = "id", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": True, "metadata": metadata}


def nested(depth: int) -> Any:
    text = '{"type":"array","containsNull":true,"elementType":' * depth + '"long"' + "}" * depth
    return json.loads(text) if depth < 200 else text


def metadata_of(schema: str, partition_columns: tuple[str, ...] = ()) -> Action:
    return {
        "metaData": {
            "id": "x",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": list(partition_columns),
            "configuration": {},
        }
    }


METADATA = metadata_of(schema_of(column("long")))
ADD = add_file("a.parquet", size=1)


def table_of(root: Path, *actions: Action | bytes) -> str:
    (root / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2, 3]}), root / "a.parquet")
    lines = [each if isinstance(each, bytes) else encode(each).strip() for each in actions]
    (root / commit_path(0)).write_bytes(b"\n".join(lines))
    return str(root)


def row_count(uri: str) -> int:
    return int(DeltaTable(uri).snapshot().scan().to_arrow().num_rows)


def read_everything(uri: str) -> None:
    DeltaTable(uri).snapshot().live_files()
    DeltaTable(uri).snapshot().tombstones(now_ms=0)
    list(DeltaTable(uri).snapshot().file_batches(["path", "size_bytes", "stats"]))


def add_with(**fields: Any) -> Action:
    return {"add": {**ADD["add"], **fields}}


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(b'{"commitInfo":{"a":%s%s}}' % (b"[" * DEEP, b"]" * DEEP), id="deep"),
        pytest.param(b'{"commitInfo":{"a":%s%s}}' % (b"[" * 990, b"]" * 990), id="rather deep"),
        pytest.param(add_with(size=2**64), id="size"),
        pytest.param(add_with(size=None), id="no size"),
        pytest.param(add_with(modificationTime=2**63), id="modificationTime"),
        pytest.param(add_with(baseRowId=2**70), id="baseRowId"),
        pytest.param({"txn": {"appId": "x", "version": 2**70}}, id="txn"),
        pytest.param(remove_file("b", deletionTimestamp=2**70), id="deletionTimestamp"),
        pytest.param(
            remove_file("b", deletionTimestamp=2**53, size=-(2**63) - 1), id="size of a remove"
        ),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        row_count,
        lambda uri: DeltaTable(uri).snapshot().num_records,
        lambda uri: DeltaTable(uri).snapshot().live_files(),
        lambda uri: DeltaTable(uri).snapshot().tombstones(now_ms=0),
        lambda uri: DeltaTable(uri).checkpoint(),
        lambda uri: DeltaTable(uri).vacuum(0, enforce_retention=False),
    ],
    ids=["scan", "count", "files", "tombstones", "checkpoint", "vacuum"],
)
def test_a_commit_beyond_the_bounds_of_the_protocol_is_corrupt(
    tmp_path: Path, action: Action | bytes, use: Callable[[str], object]
) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, ADD, action)
    # What is not asked for is not decoded.
    with suppress(CorruptLog):
        use(uri)
    with pytest.raises(CorruptLog) as caught:
        read_everything(uri)
    assert caught.value.table == uri
    assert caught.value.file == commit_path(0)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "null",
        "[]",
        '{"type":"struct"}',
        '{"type":"struct","fields":[1]}',
        schema_of(column("long", None)),
        schema_of(column("long", 5)),
        schema_of({"name": "id", "type": "long", "nullable": "yes"}),
        schema_of({"name": "id", "type": "long", "metadata": ["a"]}),
        schema_of(column(None)),
        schema_of(column({"type": "array", "elementType": "long", "containsNull": None})),
        schema_of(column({"type": "map", "keyType": "void", "valueType": "long"})),
        schema_of(column("decimal(40,2)")),
        schema_of(column("decimal(0,0)")),
        schema_of(column("decimal(5,-2)")),
        schema_of(column("decimal(5,6)")),
        schema_of(column(f"decimal({'9' * 21},5)")),
        schema_of(column(f"decimal({'9' * 5000},5)")),
        '{"type":"struct","fields":[{"name":"id","type":' + nested(900) + "}]}",
        '{"type":"struct","fields":[{"name":"id","type":' + nested(DEEP) + "}]}",
    ],
)
def test_a_text_that_is_no_schema_is_refused(tmp_path: Path, schema: str) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, metadata_of(schema), ADD)
    with pytest.raises(DeltaError) as caught:
        row_count(uri)
    assert caught.value.table == uri


def test_a_table_without_a_schema_text_has_no_columns(tmp_path: Path) -> None:
    action = metadata_of("")
    action["metaData"]["schemaString"] = None
    uri = table_of(tmp_path / "t", PROTOCOL, action)
    assert DeltaTable(uri).schema().names == ()


@pytest.mark.parametrize(
    "data_type",
    [{"type": "struct", "fields": ONE_COLUMN}, nested(1), "variant", "void"],
)
def test_a_table_partitioned_by_a_nested_column_is_refused(tmp_path: Path, data_type: Any) -> None:
    schema = schema_of(column("long"), column(data_type, "p"))
    uri = table_of(tmp_path / "t", PROTOCOL, metadata_of(schema, ("p",)), ADD)
    with pytest.raises(DeltaError) as caught:
        row_count(uri)
    assert caught.value.table == uri


def test_a_column_without_type_that_must_not_be_null_reads_as_nulls(tmp_path: Path) -> None:
    void = {**column("void", "v"), "nullable": False}
    uri = table_of(tmp_path / "t", PROTOCOL, metadata_of(schema_of(column("long"), void)), ADD)
    assert DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist() == [None] * 3


def test_a_restore_names_a_highest_column_id_that_is_no_number(tmp_path: Path) -> None:
    damaged = {"delta.columnMapping.maxColumnId": "NULL"}
    action = metadata_of(schema_of(column("long")))
    action["metaData"]["configuration"] = damaged
    uri = table_of(tmp_path / "t", PROTOCOL, action)
    table = DeltaTable(uri)
    table.append(pa.table({"id": [1]}))
    with pytest.raises(InvalidTable, match="maxColumnId cannot be used"):
        table.restore(version=0)


# Checkpoints


def checkpointed(
    root: Path, types: dict[str, Any] | None = None, *, keep_commits: bool = False
) -> str:
    """A table whose checkpoint has columns of other types, with a row for each kind of action."""
    actions = [PROTOCOL, METADATA, ADD, remove_file("b", deletionTimestamp=1)]
    actions.append({"txn": {"appId": "x", "version": 1}})
    uri = table_of(root, *actions)
    (root / checkpoint_path(0)).write_bytes(checkpoint_bytes(actions, types))
    if not keep_commits:
        (root / commit_path(0)).unlink()
    return uri


def retyped(root: Path, kind: str, field: str, values: pa.Array) -> None:
    """Replace a column of the checkpoint."""
    file = root / checkpoint_path(0)
    found = pq.read_table(io.BytesIO(file.read_bytes())).combine_chunks()
    structs = found[kind].chunk(0)
    children = {
        item.name: child for item, child in zip(structs.type, structs.flatten(), strict=True)
    }
    children[field] = values
    made = pa.StructArray.from_arrays(
        list(children.values()), names=list(children), mask=structs.is_null()
    )
    position = found.schema.get_field_index(kind)
    pq.write_table(found.set_column(position, kind, made), file)


STRINGS = pa.array(["x"] * 5)
NUMBERS = pa.array([7] * 5, pa.int64())
STRUCTS = pa.array([{"a": 1}] * 5)
NULLS = pa.nulls(5, pa.int64())
LISTS = pa.array([["x"]] * 5)


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        ("add", "path", STRUCTS),
        ("add", "path", LISTS),
        ("add", "size", STRINGS),
        ("add", "size", NULLS),
        ("add", "size", pa.array([2**64 - 1] * 5, pa.uint64())),
        ("add", "partitionValues", STRINGS),
        ("add", "partitionValues", STRUCTS),
        ("add", "deletionVector", STRINGS),
        ("add", "deletionVector", pa.array([{"storageType": "i", "sizeInBytes": 4}] * 5)),
        ("add", "stats", STRUCTS),
        ("remove", "path", STRUCTS),
        ("remove", "deletionTimestamp", STRINGS),
        ("metaData", "id", STRUCTS),
        ("metaData", "schemaString", NUMBERS),
        (
            "metaData",
            "configuration",
            pa.array([[({"a": 1}, "x")]] * 5, pa.map_(STRUCTS.type, pa.string())),
        ),
        ("protocol", "minReaderVersion", STRINGS),
        ("protocol", "minReaderVersion", STRUCTS),
        ("txn", "version", STRINGS),
    ],
)
def test_a_checkpoint_with_columns_of_other_types_is_corrupt(
    tmp_path: Path, kind: str, field: str, values: pa.Array
) -> None:
    root = tmp_path / "t"
    uri = checkpointed(root)
    retyped(root, kind, field, values)
    with pytest.raises(CorruptLog) as caught:
        read_everything(uri)
    assert caught.value.file == checkpoint_path(0)
    assert caught.value.table == uri


def test_commits_serve_where_a_checkpoint_has_columns_of_other_types(tmp_path: Path) -> None:
    root = tmp_path / "t"
    uri = checkpointed(root, keep_commits=True)
    retyped(root, "add", "size", STRINGS)
    assert DeltaTable(uri).snapshot().live_files()["size_bytes"].to_pylist() == [1]


def test_a_checkpoint_without_the_sizes_of_files_is_corrupt(tmp_path: Path) -> None:
    without = pa.struct([each for each in ADD_TYPE if each.name != "size"])
    uri = checkpointed(tmp_path / "t", {**CHECKPOINT_TYPES, "add": without})
    with pytest.raises(CorruptLog, match="size"):
        DeltaTable(uri).snapshot().live_files()


@pytest.mark.parametrize(
    "checksum", [b"{", b'{"a":' * DEEP, b'{"tableSizeBytes":%d,"numFiles":1}' % 2**70]
)
def test_a_damaged_version_checksum_reads_as_absence(tmp_path: Path, checksum: bytes) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, ADD)
    (tmp_path / "t" / checksum_path(0)).write_bytes(checksum)
    assert row_count(uri) == 3


# Deletion vectors


def vector_table(root: Path, vector: Action, *, stats: str | None = None) -> str:
    add = add_with(deletionVector=vector, **({} if stats is None else {"stats": stats}))
    return table_of(root, features("deletionVectors"), METADATA, add)


def stored_vector(root: Path, deleted: list[int], kind: str) -> Action:
    """The descriptor of a vector that is inline, or in a file by a relative or an absolute path."""
    from uuid import UUID

    import msgspec
    from pyroaring import BitMap64

    bitmap = BitMap64(deleted)
    if kind == "i":
        return dict(msgspec.to_builtins(encode_inline(bitmap)))
    name = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    data, (descriptor,) = encode_deletion_vector_file([bitmap], file_id=name)
    file = root / f"deletion_vector_{name}.bin"
    root.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    found = dict(msgspec.to_builtins(descriptor))
    return found if kind == "u" else {**found, "storageType": "p", "pathOrInlineDv": str(file)}


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_a_vector_that_removes_rows_beyond_its_file_is_corrupt(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "t"
    uri = vector_table(root, stored_vector(root, [0, 3], kind))
    with pytest.raises(CorruptDeletionVector, match="row 3, counted from 0") as caught:
        row_count(uri)
    assert caught.value.table == uri
    assert caught.value.file == "a.parquet"


@pytest.mark.parametrize("kind", ["i", "u", "p"])
@pytest.mark.parametrize("cardinality", [1, 65536])
def test_a_cardinality_that_is_not_that_of_the_vector_is_corrupt(
    tmp_path: Path, kind: str, cardinality: int
) -> None:
    root = tmp_path / "t"
    vector = {**stored_vector(root, [0, 2], kind), "cardinality": cardinality}
    uri = vector_table(root, vector, stats='{"numRecords":3}')
    with pytest.raises(CorruptDeletionVector, match=f"the log says {cardinality}") as caught:
        row_count(uri)
    assert caught.value.table == uri
    assert caught.value.file is not None


@pytest.mark.parametrize("where", [None, "id is null or id is not null"])
def test_a_file_with_more_deleted_rows_than_rows_is_not_counted(
    tmp_path: Path, where: str | None
) -> None:
    root = tmp_path / "t"
    vector = {**stored_vector(root, [0], "i"), "cardinality": 65536}
    uri = vector_table(root, vector, stats='{"numRecords":3}')
    with pytest.raises(InvalidTable, match="65536") as caught:
        DeltaTable(uri).snapshot().scan(where=where).count()
    assert caught.value.table == uri
    assert caught.value.file == "a.parquet"
    with pytest.raises(CorruptLog):
        _ = DeltaTable(uri).snapshot().num_records


def test_a_negative_number_of_rows_is_not_counted(tmp_path: Path) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, add_with(stats='{"numRecords":-3}'))
    with pytest.raises(CorruptLog, match="-3 rows"):
        DeltaTable(uri).snapshot().scan().count()


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizeInBytes": -1},
        {"sizeInBytes": 2**31},
        {"sizeInBytes": 2**62},
        {"offset": -1},
        {"offset": 2**40},
        {"cardinality": -1},
        {"cardinality": 2**70},
        {"cardinality": None},
        {"sizeInBytes": None},
    ],
)
def test_a_vector_with_impossible_numbers_is_corrupt(tmp_path: Path, wrong: Action) -> None:
    root = tmp_path / "t"
    uri = vector_table(root, {**stored_vector(root, [0], "u"), **wrong})
    with pytest.raises(CorruptLog, match="deletionVector") as caught:
        row_count(uri)
    assert caught.value.file == commit_path(0)


# What is not a regular file


def fifo(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize("place", ["data", "vector", "commit", "checksum"])
def test_a_named_pipe_is_not_read(tmp_path: Path, place: str) -> None:
    root = tmp_path / "t"
    vector = stored_vector(root, [0], "u")
    uri = vector_table(root, vector)
    DeltaTable(uri).checkpoint()
    files = {
        "data": root / "a.parquet",
        "vector": next(root.glob("deletion_vector_*")),
        "commit": root / commit_path(0),
        "checkpoint": root / checkpoint_path(0),
        "checksum": root / checksum_path(0),
    }
    if place == "commit":
        files["checkpoint"].unlink()
    fifo(files[place])
    with pytest.raises(StorageFailure, match="not a regular file") as caught:
        row_count(uri)
    assert caught.value.table == uri
    assert caught.value.file == str(files[place].relative_to(root))


def test_a_checkpoint_that_is_a_named_pipe_is_passed_over_as_an_empty_one(tmp_path: Path) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, ADD)
    fifo(tmp_path / "t" / checkpoint_path(0))
    assert row_count(uri) == 3


@pytest.mark.parametrize("path", ["/a%00b", "file:///a%00b", "a%00b", "/" + "a" * 5000])
def test_a_path_that_no_file_system_takes_is_refused(tmp_path: Path, path: str) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, add_with(path=path))
    with pytest.raises(DeltaError) as caught:
        row_count(uri)
    assert caught.value.table == uri


def test_a_device_is_not_cloned(tmp_path: Path) -> None:
    uri = table_of(tmp_path / "t", PROTOCOL, METADATA, add_with(path="/dev/zero"))
    with pytest.raises(StorageFailure, match="not a regular file"):
        row_count(uri)
    with pytest.raises(StorageFailure, match="not a regular file"):
        DeltaTable(uri).clone(str(tmp_path / "c"), deep=True)


def test_a_struct_without_fields_is_refused_by_name(tmp_path: Path) -> None:
    empty = {"type": "struct", "fields": []}
    schema = schema_of(column("long"), column(empty, "e"))
    uri = table_of(tmp_path / "t", PROTOCOL, metadata_of(schema), ADD)
    with pytest.raises(InvalidArgument, match="column e is a struct without fields"):
        DeltaTable(uri).append(pa.table({"id": [4]}))
    with pytest.raises(InvalidArgument, match="column e is a struct without fields"):
        DeltaTable.create(str(tmp_path / "u"), pa.schema([("e", pa.struct([]))]))


def test_a_default_that_is_no_text_is_refused(tmp_path: Path) -> None:
    properties = {"delta.feature.allowColumnDefaults": "supported"}
    schema = pa.schema([("s", pa.string())])
    table = DeltaTable.create(str(tmp_path / "t"), schema, properties=properties)
    with pytest.raises(InvalidArgument, match="surrogate"):
        table.set_default("s", "'\ud800'")
