"""Logs written line by line, for tests of what reads them."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_delta.protocol.log.commit_file import CHECKSUM_KEY
from dagster_delta.protocol.log.paths import (
    LAST_CHECKPOINT_PATH,
    LOG_DIRECTORY,
    checkpoint_path,
    commit_path,
)
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable

Action = dict[str, Any]

PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "day", "type": "date", "nullable": True, "metadata": {}},
    ],
}

_MAP = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
ADD_TYPE = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", _MAP),
        ("deletionVector", _VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", pa.string()),
    ]
)
REMOVE_TYPE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
    ]
)
CHECKPOINT_TYPES = {
    "txn": pa.struct(
        [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
    ),
    "add": ADD_TYPE,
    "remove": REMOVE_TYPE,
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _MAP),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "domainMetadata": pa.struct(
        [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
    ),
    "sidecar": pa.struct(
        [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]
    ),
}


def compacted_path(start: int, end: int) -> str:
    """Path of the compacted commits `start` to `end`, both included."""
    return f"{LOG_DIRECTORY}/{start:020d}.{end:020d}.compacted.json"


def edited(commit: bytes, old: bytes, new: bytes) -> bytes:
    """A commit with something else in it, and without the checksum of what it was."""
    changed = commit.replace(old, new)
    assert changed != commit
    return changed.replace(CHECKSUM_KEY.encode(), b"before")


def add_file(path: str, **fields: Any) -> Action:
    defaults = {"partitionValues": {}, "size": 10, "modificationTime": 1, "dataChange": True}
    return {"add": {"path": path, **defaults, **fields}}


def remove_file(path: str, **fields: Any) -> Action:
    return {"remove": {"path": path, "dataChange": True, **fields}}


def vector(name: str, *, offset: int | None = 1, cardinality: int = 2) -> Action:
    descriptor = {
        "storageType": "u",
        "pathOrInlineDv": name,
        "sizeInBytes": 10,
        "cardinality": cardinality,
    }
    return descriptor if offset is None else {**descriptor, "offset": offset}


EVERY_FIELD: Action = {
    "partitionValues": {"p": "1", "q": None},
    "size": 3,
    "modificationTime": 4,
    "stats": '{"numRecords":1}',
    "tags": {"t": "u"},
    "deletionVector": vector("v"),
    "baseRowId": 5,
    "defaultRowCommitVersion": 6,
    "clusteringProvider": "c",
}
"""Every field of an add action besides the path."""
EVERY_COLUMN = {
    "partition_values": [("p", "1"), ("q", None)],
    "size_bytes": 3,
    "modification_time_ms": 4,
    "stats": '{"numRecords":1}',
    "deletion_vector": {
        "storage_type": "u",
        "path_or_inline_dv": "v",
        "offset": 1,
        "size_in_bytes": 10,
        "cardinality": 2,
    },
    "base_row_id": 5,
    "default_row_commit_version": 6,
    "tags": [("t", "u")],
    "clustering_provider": "c",
}
"""The same as columns of a live file."""


def metadata(
    configuration: Mapping[str, str] | None = None, partition_columns: Sequence[str] = ()
) -> Action:
    return {
        "metaData": {
            "id": "table-id",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration or {}),
            "createdTime": 1,
        }
    }


def features(*names: str) -> Action:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [name for name in names if name in {"deletionVectors"}],
            "writerFeatures": list(names),
        }
    }


def encode(*actions: Mapping[str, Any]) -> bytes:
    # A file without any action is a damaged one: writers at least say who they are.
    lines = actions or ({"commitInfo": {"operation": "TEST"}},)
    return b"".join(json.dumps(action).encode() + b"\n" for action in lines)


def commit(store: ObjectStore, version: int, *actions: Action) -> None:
    store.put_if_absent(commit_path(version), encode(*actions))


def actions(table: DeltaTable, version: int | None = None) -> dict[str, list[Action]]:
    """The actions of a commit, by default of the last one, by their name; [] for other names."""
    found: dict[str, list[Action]] = defaultdict(list)
    data = table.store.read(commit_path(table.version() if version is None else version))
    for line in data.splitlines():
        for name, action in json.loads(line).items():
            found[name].append(action)
    return found


def new_table(*actions: Action) -> MemoryStore:
    """A store with version 0: protocol and metadata, unless given, and these actions."""
    store = MemoryStore()
    kinds = {kind for action in actions for kind in action}
    first = [each for each in (PROTOCOL, metadata()) if not kinds & each.keys()]
    commit(store, 0, *first, *actions)
    return store


def checkpoint_bytes(actions: Sequence[Action], types: Mapping[str, Any] | None = None) -> bytes:
    """A checkpoint file: one row per action.

    Args:
        types: Arrow type per kind of action; a kind that is left out has no column.
    """
    types = CHECKPOINT_TYPES if types is None else types
    columns = {
        kind: pa.array([_pairs(action.get(kind), data_type) for action in actions], data_type)
        for kind, data_type in types.items()
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def checkpoint(
    store: ObjectStore, version: int, actions: Sequence[Action], *, hint: bool = True
) -> None:
    store.put(checkpoint_path(version), checkpoint_bytes(actions))
    if hint:
        store.put(LAST_CHECKPOINT_PATH, json.dumps({"version": version, "size": 1}).encode())


def _pairs(value: Any, data_type: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return list(value.items())
    if pa.types.is_struct(data_type):
        return {item.name: _pairs(value.get(item.name), item.type) for item in data_type}
    return value


def known_statistics(stats: Any) -> Any:
    """Statistics without the places where nothing is known: `{}` says no more than absence."""
    if not isinstance(stats, dict):
        return stats
    items = {key: known_statistics(value) for key, value in stats.items()}
    return {key: value for key, value in items.items() if value not in ({}, None)}
