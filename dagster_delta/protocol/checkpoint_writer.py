"""A checkpoint as Parquet bytes: one row per action, built column by column.

Spec: Checkpoints; Checkpoint Format; Checkpoint Schema; V2 Spec checkpoints.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.protocol.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from dagster_delta.protocol.arrow_columns import nested_column
from dagster_delta.protocol.arrow_values import every
from dagster_delta.protocol.checkpoint_structs import (
    parsed_partition_values,
    parsed_statistics,
    statistics_columns,
    whole_array,
)
from dagster_delta.protocol.row_id_mark import ROW_ID_MARK, RowIdHighWaterMark, is_row_id_mark
from dagster_delta.protocol.table_configuration import TableConfiguration

__all__ = ["CheckpointState", "EncodedCheckpoint", "encode_checkpoint", "statistics_columns"]

_TEXT_MAP = pa.map_(pa.string(), pa.string())
_TEXTS = pa.list_(pa.string())

_VECTOR_NAMES = {
    "storage_type": "storageType",
    "path_or_inline_dv": "pathOrInlineDv",
    "offset": "offset",
    "size_in_bytes": "sizeInBytes",
    "cardinality": "cardinality",
}

_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _TEXTS),
        ("writerFeatures", _TEXTS),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXT_MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _TEXTS),
        ("createdTime", pa.int64()),
        ("configuration", _TEXT_MAP),
    ]
)
_TRANSACTION = pa.struct(
    [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
)
_DOMAIN = pa.struct(
    [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
)
_ROW_ID_MARK = pa.struct([("highWaterMark", pa.int64()), ("preservedRowIds", pa.bool_())])
_CHECKPOINT_METADATA = pa.struct([("version", pa.int64()), ("tags", _TEXT_MAP)])
_SIDECAR = pa.struct(
    [
        ("path", pa.string()),
        ("sizeInBytes", pa.int64()),
        ("modificationTime", pa.int64()),
        ("tags", _TEXT_MAP),
    ]
)

_ROW_GROUP_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A reconciled table version, ready to be written down."""

    version: int
    configuration: TableConfiguration
    live_files: Any
    """pyarrow.Table of LIVE_FILE_SCHEMA."""
    statistics: Any
    """pyarrow.Table, row by row with `live_files`, for `statistics_columns(configuration)`."""
    tombstones: Any
    """pyarrow.Table of TOMBSTONE_SCHEMA: removes that have not expired."""
    transactions: Sequence[SetTransaction]
    domain_metadata: Sequence[DomainMetadata]

    @property
    def num_file_actions(self) -> int:
        """Number of add and remove actions."""
        return int(self.live_files.num_rows) + int(self.tombstones.num_rows)


@dataclass(frozen=True, slots=True)
class EncodedCheckpoint:
    """The files of a checkpoint, not stored yet."""

    parts: tuple[bytes, ...]
    """Contents of each file, in order."""
    num_actions: int
    num_add_files: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(part) for part in self.parts)


def encode_checkpoint(
    state: CheckpointState, *, max_actions_per_part: int | None = None, as_v2: bool = False
) -> EncodedCheckpoint:
    """The checkpoint of a table version.

    Args:
        state: what stands in it.
        max_actions_per_part: file actions beyond which it is split into several files; None to
            never split it.
        as_v2: whether it is a V2 checkpoint: one that says so in a checkpointMetadata action. All
            its actions stand in the one file, without sidecars.
    """
    files = _file_actions(state)
    num_parts = 1
    if max_actions_per_part is not None and not as_v2:
        num_parts = max(1, -(-files.num_rows // max_actions_per_part))
    others = _other_actions(state, as_v2=as_v2)
    if num_parts == 1:
        tables = [_stack(others, files)]
    else:
        # Spec: the parts of a checkpoint MUST be clustered by path, null otherwise.
        part_of = _part_numbers(state, num_parts)
        tables = [files.filter(pc.equal(part_of, part)) for part in range(num_parts)]
        tables[0] = _stack(others, tables[0])
    return EncodedCheckpoint(
        parts=tuple(_encode_parquet(table) for table in tables),
        num_actions=others.num_rows + files.num_rows,
        num_add_files=state.live_files.num_rows,
    )


def _encode_parquet(table: Any) -> bytes:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="snappy",
        row_group_size=_ROW_GROUP_ROWS,
        store_decimal_as_integer=True,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _stack(first: Any, second: Any) -> Any:
    """Two tables of actions as one, a column that only one of them has null in the other."""
    return pa.concat_tables([first, second], promote_options="default")


def _part_numbers(state: CheckpointState, num_parts: int) -> Any:
    # A stable hash: several attempts at one checkpoint must agree about the contents of a part.
    paths = pa.chunked_array(
        [*state.live_files["path"].chunks, *state.tombstones["path"].chunks], pa.string()
    )
    return pa.array(
        [zlib.crc32(path.encode()) % num_parts for path in paths.to_pylist()], pa.int32()
    )


def _file_actions(state: CheckpointState) -> Any:
    adds = _add_column(state)
    removes = _remove_column(state.tombstones)
    return _stack(pa.table({"add": adds}), pa.table({"remove": removes}))


def _add_column(state: CheckpointState) -> Any:
    files, properties = state.live_files, state.configuration.properties
    indexed = statistics_columns(state.configuration)
    columns: dict[str, Any] = {
        "path": files["path"],
        "partitionValues": files["partition_values"],
        "size": files["size_bytes"],
        "modificationTime": files["modification_time_ms"],
        "dataChange": every(False, files.num_rows),
    }
    if properties.write_stats_as_json:
        columns["stats"] = files["stats"]
    columns |= {
        "tags": files["tags"],
        "deletionVector": _vectors(files["deletion_vector"]),
        "baseRowId": files["base_row_id"],
        "defaultRowCommitVersion": files["default_row_commit_version"],
        "clusteringProvider": files["clustering_provider"],
    }
    # Unset means both forms: readers take the typed one, and older ones need the text.
    if properties.write_stats_as_struct is not False:
        if state.configuration.partition_columns:
            columns["partitionValues_parsed"] = parsed_partition_values(
                state.configuration, files["partition_values"]
            )
        columns["stats_parsed"] = parsed_statistics(indexed, state.statistics)
    return _struct(columns)


def _remove_column(tombstones: Any) -> Any:
    return _struct(
        {
            "path": tombstones["path"],
            "deletionTimestamp": tombstones["deletion_timestamp_ms"],
            "dataChange": every(False, tombstones.num_rows),
            "extendedFileMetadata": tombstones["extended_file_metadata"],
            "partitionValues": tombstones["partition_values"],
            "size": tombstones["size_bytes"],
            "deletionVector": _vectors(tombstones["deletion_vector"]),
            "baseRowId": tombstones["base_row_id"],
            "defaultRowCommitVersion": tombstones["default_row_commit_version"],
        }
    )


def _vectors(column: Any) -> Any:
    """Deletion vector descriptors under their wire names."""
    whole = whole_array(column)
    # `field` of a sliced or filtered struct ignores the parent's offset; `flatten` does not.
    return pa.StructArray.from_arrays(
        whole.flatten(), names=list(_VECTOR_NAMES.values()), mask=whole.is_null()
    )


def _struct(columns: dict[str, Any]) -> Any:
    return pa.StructArray.from_arrays(
        [whole_array(column) for column in columns.values()], names=list(columns)
    )


def _other_actions(state: CheckpointState, *, as_v2: bool) -> Any:
    """A pyarrow.Table of every action that is not about a file, one row each."""
    domains = [each for each in state.domain_metadata if not is_row_id_mark(each)]
    rows: list[tuple[str, Any, list[object]]] = [
        ("protocol", _PROTOCOL, [_protocol_row(state.configuration.protocol)]),
        ("metaData", _METADATA, [_metadata_row(state.configuration.metadata)]),
        ("txn", _TRANSACTION, [_transaction_row(each) for each in state.transactions]),
        ("domainMetadata", _DOMAIN, [_domain_row(each) for each in domains]),
    ]
    if len(domains) < len(state.domain_metadata):
        marks = map(RowIdHighWaterMark.of_domain, filter(is_row_id_mark, state.domain_metadata))
        rows.append((ROW_ID_MARK, _ROW_ID_MARK, [_mark_row(each) for each in marks]))
    if as_v2:
        rows.insert(
            0,
            ("checkpointMetadata", _CHECKPOINT_METADATA, [{"version": state.version}]),
        )
        rows.append(("sidecar", _SIDECAR, []))
    tables = [pa.table({name: nested_column(values, kind)}) for name, kind, values in rows]
    return pa.concat_tables(tables, promote_options="default")


def _protocol_row(protocol: Protocol) -> dict[str, object]:
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }


def _metadata_row(metadata: Metadata) -> dict[str, object]:
    return {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {
            "provider": metadata.format.provider,
            "options": metadata.format.options,
        },
        "schemaString": metadata.schema_string,
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time_ms,
        "configuration": metadata.configuration,
    }


def _transaction_row(transaction: SetTransaction) -> dict[str, object]:
    return {
        "appId": transaction.app_id,
        "version": transaction.version,
        "lastUpdated": transaction.last_updated_ms,
    }


def _mark_row(mark: RowIdHighWaterMark) -> dict[str, object]:
    return {"highWaterMark": mark.high_water_mark, "preservedRowIds": mark.preserved_row_ids}


def _domain_row(domain: DomainMetadata) -> dict[str, object]:
    return {
        "domain": domain.domain,
        "configuration": domain.configuration,
        "removed": domain.removed,
    }
