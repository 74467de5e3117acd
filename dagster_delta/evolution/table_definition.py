"""Protocol and metadata of a table that a write creates, replaces or evolves.

Spec: Change Metadata; Column Mapping (writer requirements); Table Features for New and Existing
Tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_rules import (
    check_column_names,
    check_column_types,
    check_feed_names,
    check_nesting,
    resolve_partition_columns,
)
from dagster_delta.evolution.properties import (
    COMMENT_KEY,
    MAX_COLUMN_ID_KEY,
    check_statistics_columns,
    is_protocol_property,
    map_columns,
    new_column_name,
    normalize_properties,
    with_asked_versions,
)
from dagster_delta.evolution.required_protocol import (
    minimal_protocol,
    required_features,
    upgrade_protocol,
)
from dagster_delta.protocol.actions import Format, Metadata, Protocol
from dagster_delta.protocol.features.column_mapping import map_fields
from dagster_delta.protocol.features.column_values import (
    COLUMN_VALUE_FEATURES,
    HIGH_WATER_MARK_KEY,
    START_KEY,
)
from dagster_delta.protocol.features.existing_defaults import EXISTING_DEFAULT_KEY
from dagster_delta.protocol.features.iceberg_compat import (
    check_iceberg_compat,
    iceberg_compat_version,
)
from dagster_delta.protocol.features.registry import effective_features
from dagster_delta.protocol.features.row_tracking import (
    ROW_COMMIT_VERSION_COLUMN_KEY,
    ROW_ID_COLUMN_KEY,
    with_materialized_columns,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import with_followed_limits
from dagster_delta.protocol.log.commit_writer import (
    CHECKPOINT_PROTECTION_KEY,
    IN_COMMIT_TIMESTAMP_START_KEYS,
)
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.statistics.bloom_filters import check_bloom_filters
from dagster_delta.protocol.table_properties import BRANCH_PROPERTIES, TableProperties

if TYPE_CHECKING:
    from dagster_delta.evolution.value_engine import ValueEngine

_TABLE_LOCAL_METADATA = (
    "delta.columnMapping.",
    "delta.typeChanges",
    "parquet.field.",
    HIGH_WATER_MARK_KEY,
    EXISTING_DEFAULT_KEY,
)


class TableDefinition(msgspec.Struct, frozen=True):
    """A table as defined by a user."""

    schema: StructType
    """Logical schema, partition columns included."""
    partition_by: Sequence[str] = ()
    """Logical names of the partition columns, in directory order."""
    properties: Mapping[str, object] | None = None
    """Table properties."""
    name: str | None = None
    description: str | None = None
    cluster_by: Sequence[str] = ()
    """Paths of the clustering columns."""


def define_table(
    definition: TableDefinition,
    *,
    table_id: str,
    created_time_ms: int,
    values: ValueEngine,
    new_name: Callable[[], str] = new_column_name,
    replaces: TableConfiguration | None = None,
) -> TableConfiguration:
    """The configuration of a new table, under the lowest protocol that it needs.

    A replaced table keeps its id, its creation time and at least its protocol: older versions stay
    readable by time travel. `new_name` makes names for the columns with row ids, which no file of
    the table may have.
    """
    properties = _with_implied(normalize_properties(definition.properties or {}))
    comment = properties.pop(COMMENT_KEY, None)
    description = comment if definition.description is None else definition.description
    check_nesting(definition.schema)
    # Ids and the history of types are those of its source table.
    schema = without_metadata(definition.schema, _TABLE_LOCAL_METADATA)
    protocol = _choose_protocol(schema, properties, replaces)
    configuration = {key: properties[key] for key in properties if not is_protocol_property(key)}
    is_mapped = TableProperties.parse(configuration).column_mapping_mode != "none"
    if is_mapped and replaces is not None:
        # Spec: an id is never used again.
        highest = replaces.properties.column_mapping_max_column_id
        configuration[MAX_COLUMN_ID_KEY] = str(highest)
    old = replaces.metadata if replaces else None
    configuration |= _in_commit_timestamp_start(configuration, replaces)
    configuration |= _keep_properties(replaces, CHECKPOINT_PROTECTION_KEY, *BRANCH_PROPERTIES)
    if "rowTracking" in effective_features(protocol):
        kept = _keep_properties(replaces, ROW_ID_COLUMN_KEY, ROW_COMMIT_VERSION_COLUMN_KEY)
        configuration = with_materialized_columns(kept | configuration, new_name)
    empty = Metadata(
        # The names of its columns in files depend on it, and are the same in the next attempt.
        id=old.id if old else "",
        name=definition.name,
        description=description,
        format=Format(),
        schema_string=StructType(()).to_json(),
        partition_columns=(),
        created_time_ms=old.created_time_ms if old else created_time_ms,
        configuration=configuration,
    )
    without_columns = TableConfiguration(protocol, empty)
    defined = with_schema(without_columns, schema, partition_columns=definition.partition_by)
    if required_features(schema, {}) & COLUMN_VALUE_FEATURES:
        # Import late: it loads the SQL parser, which other tables do not need.
        from dagster_delta.evolution.column_definition import check_column_values

        check_column_values(schema, values)
    _refuse_partitions_of_one_row(defined)
    _check_iceberg_compat(defined, replaces)
    check_statistics_columns(defined)
    check_bloom_filters(defined)
    metadata = msgspec.structs.replace(defined.metadata, id=old.id if old else table_id)
    return TableConfiguration(defined.protocol, metadata)


def _refuse_partitions_of_one_row(configuration: TableConfiguration) -> None:
    for field in configuration.partition_schema:
        if START_KEY in field.metadata:
            raise InvalidArgument(
                f"{field.name} is an identity column, so each row would be a partition of its own: "
                "leave it out of partition_by",
                column=field.name,
            )


def with_schema(
    configuration: TableConfiguration,
    schema: StructType,
    *,
    partition_columns: Sequence[str] | None = None,
) -> TableConfiguration:
    """The configuration of a table under another logical schema; itself if nothing changes.

    New fields of a mapped table get ids and physical names; the protocol gains the features that
    new types need. `partition_columns` are given if the partitioning changes too.
    """
    mode = configuration.column_mapping_mode
    metadata = configuration.metadata
    properties = dict(metadata.configuration)
    check_nesting(schema, known=configuration.schema)
    check_column_types(schema, known=configuration.schema)
    check_column_names(schema, mode, known=configuration.schema)
    if configuration.change_data_feed_enabled:
        check_feed_names(schema, known=configuration.schema)
    if mode != "none":
        nested_ids = iceberg_compat_version(configuration) == 2
        schema = map_columns(schema, properties, metadata.id, nested_ids=nested_ids)
    schema = with_followed_limits(schema, configuration.schema)
    names = resolve_partition_columns(
        schema, metadata.partition_columns if partition_columns is None else partition_columns
    )
    if schema == configuration.schema and names == tuple(metadata.partition_columns):
        return configuration
    evolved = TableConfiguration(
        upgrade_protocol(configuration.protocol, required_features(schema, {})),
        msgspec.structs.replace(
            metadata,
            schema_string=schema.to_json(),
            partition_columns=names,
            configuration=properties,
        ),
    )
    _check_iceberg_compat(evolved, configuration)
    return evolved


def _with_implied(properties: dict[str, str]) -> dict[str, str]:
    """The properties of a new table, plus the properties that they require."""
    asked = TableProperties.parse(properties)
    is_mapped = asked.enable_iceberg_compat_v1 or asked.enable_iceberg_compat_v2
    return {"delta.columnMapping.mode": "name", **properties} if is_mapped else properties


def _check_iceberg_compat(new: TableConfiguration, old: TableConfiguration | None) -> None:
    check_iceberg_compat(new)
    if old is None or not old.schema.fields or iceberg_compat_version(new) is None:
        return
    if old.metadata.partition_columns != new.metadata.partition_columns:
        # Spec: writers MUST block replacing a partitioned table by one with other partitioning.
        raise InvalidArgument(
            "a table that stays readable as Iceberg keeps its partition columns "
            f"({', '.join(old.metadata.partition_columns) or 'none'}); create another table"
        )


def _in_commit_timestamp_start(
    configuration: Mapping[str, str], replaces: TableConfiguration | None
) -> dict[str, str]:
    """The start of in-commit timestamps, which a replaced table must keep."""
    wanted = TableProperties.parse(configuration).enable_in_commit_timestamps
    if replaces is None or not wanted:
        return {}
    if not replaces.in_commit_timestamps_enabled:
        raise InvalidArgument(
            "delta.enableInCommitTimestamps cannot be turned on while a table is replaced; leave "
            "it out, or create the table elsewhere"
        )
    return _keep_properties(replaces, *IN_COMMIT_TIMESTAMP_START_KEYS)


def _keep_properties(replaces: TableConfiguration | None, *keys: str) -> dict[str, str]:
    """Properties of a replaced table that its older versions need."""
    old = replaces.metadata.configuration if replaces else {}
    return {key: old[key] for key in keys if key in old}


def without_metadata(schema: StructType, prefixes: tuple[str, ...]) -> StructType:
    """The schema without the metadata of fields, at any depth, whose keys begin with a prefix."""

    def strip(field: StructField) -> StructField:
        return field.without(*(key for key in field.metadata if key.startswith(prefixes)))

    return map_fields(schema, strip)


def _choose_protocol(
    schema: StructType, properties: Mapping[str, str], replaces: TableConfiguration | None
) -> Protocol:
    features = required_features(schema, properties)
    if replaces is not None:
        upgraded = upgrade_protocol(replaces.protocol, features)
        return with_asked_versions(upgraded, properties)
    protocol = minimal_protocol(features)
    if properties.get("delta.minWriterVersion") == "7":
        # It lists what the table uses, and nothing that older protocols imply.
        bare = Protocol(min_reader_version=1, min_writer_version=7, writer_features=())
        protocol = upgrade_protocol(bare, features)
    return with_asked_versions(protocol, properties)
