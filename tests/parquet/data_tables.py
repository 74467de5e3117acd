"""What the tests of the engines share: configurations, plans, and a log that others can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.protocol.actions import AddFile, Format, Metadata, Protocol
from dagster_delta.protocol.features.column_mapping import assign_column_mapping
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import StructType
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_schema import from_arrow_schema
from dagster_delta.sql.constraint import Constraint
from dagster_delta.storage.object_store import ObjectStore

LEGACY = Protocol(min_reader_version=1, min_writer_version=2)


def featured(*features: str) -> Protocol:
    """A protocol that lists features, those of them that readers must know on both sides."""
    reader = tuple(
        each for each in features if each in ("columnMapping", "deletionVectors", "timestampNtz")
    )
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=reader,
        writer_features=features,
    )


def configuration(
    schema: StructType,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    protocol: Protocol | None = None,
) -> TableConfiguration:
    """The configuration of a table of that schema."""
    return TableConfiguration(
        protocol or featured("timestampNtz", "invariants"),
        Metadata(
            id="00000000-0000-4000-8000-000000000000",
            format=Format(),
            schema_string=schema.to_json(),
            partition_columns=tuple(partition_by),
            created_time_ms=0,
            configuration=dict(properties or {}),
        ),
    )


def mapped_configuration(
    schema: StructType, mode: ColumnMappingMode, partition_by: Sequence[str] = ()
) -> TableConfiguration:
    """The same with column mapping: physical names that have nothing to do with the logical."""
    numbers = iter(range(1, 1000))
    mapped, last_id = assign_column_mapping(
        schema, mode, max_column_id=0, new_name=lambda: f"col-{next(numbers)}"
    )
    return configuration(
        mapped,
        partition_by,
        {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": str(last_id)},
        featured("columnMapping", "timestampNtz"),
    )


def write(
    store: ObjectStore,
    data: object,
    config: TableConfiguration,
    *,
    constraints: tuple[Constraint, ...] = (),
    **options: Any,
) -> WriteResult:
    """Write through the Arrow engine."""
    spec = WriteSpec(
        location=store.location, configuration=config, constraints=constraints, **options
    )
    return ArrowEngine().write(data, spec, store=store)


def live_files(files: Sequence[AddFile]) -> pa.Table:
    """The files as a snapshot lists them."""
    rows = [
        {
            "path": each.path,
            "partition_values": list(each.partition_values.items()),
            "size_bytes": each.size_bytes,
            "modification_time_ms": each.modification_time_ms,
            "stats": each.stats,
            "deletion_vector": None
            if each.deletion_vector is None
            else {
                "storage_type": each.deletion_vector.storage_type,
                "path_or_inline_dv": each.deletion_vector.path_or_inline_dv,
                "offset": each.deletion_vector.offset,
                "size_in_bytes": each.deletion_vector.size_in_bytes,
                "cardinality": each.deletion_vector.cardinality,
            },
        }
        for each in files
    ]
    return pa.Table.from_pylist(rows, schema=LIVE_FILE_SCHEMA)


def plan_of(
    store: ObjectStore,
    files: Sequence[AddFile],
    config: TableConfiguration,
    columns: Sequence[str],
    **options: Any,
) -> ReadPlan:
    """The plan that reads these files."""
    return ReadPlan(store, 0, config, live_files(files), tuple(columns), **options)


def read(
    store: ObjectStore,
    files: Sequence[AddFile],
    config: TableConfiguration,
    columns: Sequence[str] | None = None,
    where: Any = None,
) -> pa.Table:
    """Read through the Arrow engine."""
    names = config.schema.names if columns is None else columns
    return ArrowEngine().read(plan_of(store, files, config, names, where=where)).read_all()


def commit(store: ObjectStore, config: TableConfiguration, files: Sequence[AddFile]) -> None:
    """A log of one version, so that another implementation can open the table."""
    actions: list[dict[str, Any]] = [{"protocol": config.protocol}, {"metaData": config.metadata}]
    actions += [{"add": each} for each in files]
    lines = b"\n".join(msgspec.json.encode(each) for each in actions)
    store.put_if_absent("_delta_log/00000000000000000000.json", lines)


def schema_of(table: pa.Table) -> StructType:
    """The Delta schema of an Arrow table."""
    return from_arrow_schema(table.schema)
