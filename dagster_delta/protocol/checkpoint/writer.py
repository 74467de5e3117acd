"""A checkpoint as Parquet bytes: one row per action, built column by column.

A large one is written action by action, so that only a few row groups are in memory.

Spec: Checkpoints (multi-part checkpoints); Checkpoint Format; Checkpoint Schema; V2 Spec
checkpoints; Sidecar Files; Per-file Statistics.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.protocol.actions import (
    CheckpointMetadata,
    DomainMetadata,
    SetTransaction,
    SidecarFile,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import ADD_SOURCES, DELETION_VECTOR_SOURCES, REMOVE_SOURCES
from dagster_delta.protocol.statistics.statistics import StatisticsColumn, plant, statistics_columns
from dagster_delta.protocol.values.arrow_columns import (
    column_of,
    integer_column,
    string_column,
    struct_column,
    whole_array,
)
from dagster_delta.protocol.values.arrow_values import every
from dagster_delta.protocol.values.partition_values import parse_partition_column

_TEXT_MAP = pa.map_(pa.string(), pa.string())
_TEXTS = pa.list_(pa.string())

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
_MAX_PENDING_BYTES = 128 * 1024 * 1024


class CheckpointState(msgspec.Struct, frozen=True):
    """A reconciled table version, ready to be written as a checkpoint."""

    version: int
    configuration: TableConfiguration
    live_files: pa.Table
    """pyarrow.Table of LIVE_FILE_SCHEMA."""
    statistics: pa.Table
    """pyarrow.Table, row by row with `live_files`, for `statistics_columns(configuration)`."""
    tombstones: pa.Table
    """pyarrow.Table of TOMBSTONE_SCHEMA: removes that have not expired."""
    transactions: Sequence[SetTransaction]
    domain_metadata: Sequence[DomainMetadata]


def encode_actions_file(actions: pa.Table) -> bytes:
    """A Parquet file that holds the rows of a `pa.Table` of actions."""
    sink = pa.BufferOutputStream()
    ActionFile(sink, actions).close()
    data: bytes = sink.getvalue().to_pybytes()
    return data


def stack_actions(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenated tables of actions; missing columns are null."""
    return pa.concat_tables(tables, promote_options="default")


def file_actions(state: CheckpointState) -> pa.Table:
    """A `pa.Table` of the adds and removes, one row each, adds first."""
    adds = _add_column(state)
    removes = _remove_column(state.tombstones)
    return stack_actions([pa.table({"add": adds}), pa.table({"remove": removes})])


def _add_column(state: CheckpointState) -> pa.StructArray:
    files, properties = state.live_files, state.configuration.properties
    indexed = statistics_columns(state.configuration)
    left_out = () if properties.write_stats_as_json else ("stats",)
    columns = _wire_columns(files, ADD_SOURCES, left_out)
    columns["dataChange"] = every(False, files.num_rows)
    # Unset means both forms: readers prefer the typed form, and older readers need the text.
    if properties.write_stats_as_struct is not False:
        if state.configuration.partition_columns:
            columns["partitionValues_parsed"] = _parsed_partition_values(
                state.configuration, files["partition_values"]
            )
        columns["stats_parsed"] = _parsed_statistics(indexed, state.statistics)
    return _to_struct(columns)


def _parsed_statistics(columns: Sequence[StatisticsColumn], statistics: pa.Table) -> pa.StructArray:
    """The `stats_parsed` column: a pa.StructArray, null if a file has no statistics."""
    groups: dict[str, Any] = {"numRecords": statistics["num_records"]}
    for index, column in enumerate(columns):
        if column.has_bounds:
            plant(groups.setdefault("minValues", {}), column.path, statistics[f"min.{index}"])
            plant(groups.setdefault("maxValues", {}), column.path, statistics[f"max.{index}"])
        plant(groups.setdefault("nullCount", {}), column.path, statistics[f"null_count.{index}"])
    groups["tightBounds"] = statistics["tight_bounds"]
    order = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
    known = {name: groups[name] for name in order if name in groups}
    return _build_tree(known, mask=whole_array(pc.is_null(statistics["num_records"])))


def _build_tree(tree: dict[str, Any], *, mask: pa.BooleanArray | None = None) -> pa.StructArray:
    arrays = [
        _build_tree(node) if isinstance(node, dict) else whole_array(node) for node in tree.values()
    ]
    if mask is None:
        return pa.StructArray.from_arrays(arrays, names=list(tree))
    types = zip(tree, (array.type for array in arrays), strict=True)
    return struct_column(arrays, pa.struct(types), mask)


def _parsed_partition_values(
    configuration: TableConfiguration, partition_values: pa.ChunkedArray
) -> pa.StructArray:
    """The `partitionValues_parsed` column of a partitioned table: a pa.StructArray."""
    names = configuration.physical_partition_columns
    columns = [
        parse_partition_column(
            pc.map_lookup(partition_values, string_column([name])[0], "last"), field.data_type
        )
        for name, field in zip(names, configuration.partition_schema, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, names=list(names))


def _remove_column(tombstones: pa.Table) -> pa.StructArray:
    columns = _wire_columns(tombstones, REMOVE_SOURCES, ("stats", "tags"))
    columns["dataChange"] = every(False, tombstones.num_rows)
    return _to_struct(columns)


def _wire_columns(
    files: pa.Table, sources: Mapping[str, str], left_out: Sequence[str]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    return {
        source: _build_vectors(files[name]) if name == "deletion_vector" else files[name]
        for name, source in sources.items()
        if name not in left_out
    }


def _build_vectors(column: pa.ChunkedArray) -> pa.StructArray:
    whole = whole_array(column)
    # `field` of a sliced or filtered struct ignores the parent's offset; `flatten` does not.
    children = whole.flatten()
    types = zip(DELETION_VECTOR_SOURCES.values(), (child.type for child in children), strict=True)
    return struct_column(children, pa.struct(types), pc.is_null(whole))


def _to_struct(columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [whole_array(column) for column in columns.values()], names=list(columns)
    )


def other_actions(
    state: CheckpointState, *, as_v2: bool, sidecars: Sequence[SidecarFile] = ()
) -> pa.Table:
    """A `pa.Table` of every action that is not about a file, one row each.

    The files of the state are ignored; `sidecars` hold the file actions of a V2 checkpoint.
    """
    rows: list[tuple[str, pa.DataType, Sequence[msgspec.Struct]]] = [
        ("protocol", _PROTOCOL, [state.configuration.protocol]),
        ("metaData", _METADATA, [state.configuration.metadata]),
        ("txn", _TRANSACTION, state.transactions),
        ("domainMetadata", _DOMAIN, state.domain_metadata),
    ]
    if as_v2:
        manifest = CheckpointMetadata(version=state.version)
        rows.insert(0, ("checkpointMetadata", _CHECKPOINT_METADATA, [manifest]))
        rows.append(("sidecar", _SIDECAR, sidecars))
    tables = [
        pa.table({name: column_of([msgspec.to_builtins(action) for action in actions], kind)})
        for name, kind, actions in rows
    ]
    return pa.concat_tables(tables, promote_options="default")


class ActionFile:
    """One Parquet file of a checkpoint while it is written.

    `sink` is the path of a local file, or a `pa.NativeFile`; `first` is a `pa.Table` with the first
    actions, which has every column of later tables.
    """

    def __init__(self, sink: str | pa.NativeFile, first: pa.Table) -> None:
        # `pyarrow.parquet` wraps the same writer, and loads every file system that Arrow knows
        # first.
        from pyarrow._parquet import ParquetWriter

        self._empty = first.slice(0, 0)
        self._writer = ParquetWriter(
            sink,
            first.schema,
            version="2.6",
            data_page_version="1.0",
            writer_engine_version="V2",
            compression="snappy",
            use_dictionary=True,
            store_decimal_as_integer=True,
            store_schema=False,
            # Only the log says which files are live: a damaged byte must be detected.
            write_page_checksum=True,
        )
        self._pending = [first]
        self.num_actions = 0
        """Rows so far."""
        self.pending_bytes = 0
        """Bytes of the rows that are not written yet."""
        self._count_actions(first)

    def add(self, actions: pa.Table) -> None:
        """Add the rows of a `pa.Table`; they are written once there are enough."""
        if not actions.num_rows:
            return
        self._pending.append(actions)
        self._count_actions(actions)
        if self.pending_bytes > _MAX_PENDING_BYTES:
            self.flush()

    def _count_actions(self, actions: pa.Table) -> None:
        self.num_actions += actions.num_rows
        self.pending_bytes += actions.nbytes

    def flush(self) -> None:
        """Write the buffered rows."""
        rows = stack_actions([self._empty, *self._pending])
        if rows.num_rows:
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        self._pending, self.pending_bytes = [], 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self._writer.close()


def add_clustered(parts: Sequence[ActionFile], actions: pa.Table, paths: pa.ChunkedArray) -> None:
    """Add file actions to the files of a checkpoint: all actions of a path to one file."""
    if len(parts) == 1:
        parts[0].add(actions)
        return
    # Spec: the parts MUST be clustered by path. The hash is stable, because several attempts at one
    # checkpoint must agree on the contents of a part.
    numbers = [zlib.crc32(path.encode()) % len(parts) for path in paths.to_pylist()]
    # All rows are copied once for all parts together.
    ordered = actions.take(pc.sort_indices(integer_column(numbers)))
    counts, start = Counter(numbers), 0
    for number, part in enumerate(parts):
        part.add(ordered.slice(start, counts[number]))
        start += counts[number]
    if sum(part.pending_bytes for part in parts) > _MAX_PENDING_BYTES:
        for part in parts:
            part.flush()
