"""Table properties: every one that writers of Delta tables know, and what this library does about
it; and plans for an existing table that set and unset them, enable features and raise versions.

The plan is a configuration. Other contents of the commit (row ids for existing files, the first
version with in-commit timestamps) follow from comparing it with the configuration in force.

Spec: Table Features for New and Existing Tables; Change Metadata; Column Mapping; Row Tracking;
In-Commit Timestamps.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_rules import check_feed_names
from dagster_delta.evolution.programs import READERS_PROPERTY, known_readers
from dagster_delta.evolution.required_protocol import (
    FEATURE_PREFIX,
    required_features,
    upgrade_protocol,
    with_lists,
)
from dagster_delta.nearest_name import nearest_name
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY, COLUMN_CHANGE_SWITCH
from dagster_delta.protocol.features.column_mapping import assign_column_mapping
from dagster_delta.protocol.features.iceberg_compat import (
    check_iceberg_compat,
    iceberg_compat_version,
)
from dagster_delta.protocol.features.registry import effective_features
from dagster_delta.protocol.features.row_tracking import with_materialized_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.commit_writer import IN_COMMIT_TIMESTAMP_START_KEYS
from dagster_delta.protocol.schema import DataType, PrimitiveType, StructType
from dagster_delta.protocol.statistics.bloom_filters import check_bloom_filters
from dagster_delta.protocol.statistics.statistics import StatisticsColumn
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX, TableProperties

Treatment = Literal["honoured", "kept", "read only", "internal", "refused"]
"""`honoured`: it can be set, and reads and writes follow it. `kept`: it can be set, and has no
effect. `read only`: reads and writes of a table that has it follow it, and it cannot be set here.
`internal`: writers maintain it themselves. `refused`: it cannot be set here."""

_HONOURED = (
    *(key.removeprefix("delta.") for key in TableProperties.names() if key.startswith("delta.")),
    "autoOptimize.optimizeWrite",
    "minReaderVersion",
    "minWriterVersion",
)
"""What has no other treatment below."""
_KEPT = (
    "castIcebergTimeType",
    "checkpointRetentionDuration",
    "dropFeatureTruncateHistory.retentionDuration",
    "enableFullRetentionRollback",
    "ignoreIcebergBucketPartition",
    "ignoreProtocolDefaults",
    "sampleRetentionDuration",
    "tuneFileSizesForRewrites",
    "universalFormat.enabledFormats",
    "writePartitionColumnsToParquet",
)
_READ_ONLY = {
    "enableChangeDataCapture": "former name of `delta.enableChangeDataFeed`",
    "enableRowIds": "the draft of row tracking, on tables that have it; others take "
    "`delta.enableRowTracking`",
    "rowTrackingSuspended": "new files get no row ids while row tracking is being dropped",
}
_INTERNAL = (
    "columnMapping.maxColumnId",
    "inCommitTimestampEnablementTimestamp",
    "inCommitTimestampEnablementVersion",
    "requireCheckpointProtectionBeforeVersion",
    "rowIds.physicalColumnName",
    "rowTracking.materializedRowCommitVersionColumnName",
    "rowTracking.materializedRowIdColumnName",
)
_REFUSED = {
    "coordinatedCommits.commitCoordinator-preview": "tables with a commit coordinator are rejected",
    "coordinatedCommits.commitCoordinatorConf-preview": "tables with a commit coordinator are "
    "rejected",
    "coordinatedCommits.tableConf-preview": "tables with a commit coordinator are rejected",
    "enableIcebergCompatV3": "tables with the feature are not written",
    "redirectReaderWriter-preview": "tables that redirect their clients are rejected",
    "redirectWriterOnly-preview": "tables that redirect their writers are not written",
    "universalFormat.iceberg.atomicConversion.supported": "no Iceberg metadata is written",
}

_BY_TREATMENT: Mapping[Treatment, Iterable[str]] = {
    "honoured": _HONOURED,
    "kept": _KEPT,
    "read only": _READ_ONLY,
    "internal": _INTERNAL,
    "refused": _REFUSED,
}
KNOWN_PROPERTIES: Mapping[str, Treatment] = {
    f"delta.{name}": treatment for treatment, names in _BY_TREATMENT.items() for name in names
}
"""Properties by name; `docs/features.md` says what they mean. Those with the prefixes
`delta.constraints.` and `delta.feature.` are not listed."""

_BY_NAME = {name.lower(): name for name in KNOWN_PROPERTIES}
_REASONS = {f"delta.{name}": why for name, why in (_READ_ONLY | _REFUSED).items()}
"""Why a property cannot be set here."""
_SETTABLE = sorted(name for name, how in KNOWN_PROPERTIES.items() if how in ("honoured", "kept"))

COMMENT_KEY = "comment"
"""The property by which Spark SQL sets the description of a table."""

_RESERVED = frozenset({"provider", "location", "external", "is_managed_location", "owner"})
"""Properties that Spark SQL reserves; they are not table properties."""

_MAPPING_MODE = "delta.columnMapping.mode"
MAX_COLUMN_ID_KEY = "delta.columnMapping.maxColumnId"

_VERSION_KEYS = ("delta.minReaderVersion", "delta.minWriterVersion")
_VERSION_PAIRS = ((1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (1, 7), (3, 7))


def column_names(table_id: str, max_column_id: int) -> Callable[[], str]:
    """Gives physical names for the columns after the largest column id of a table.

    Ids are never reused, so the names are unique in the table. The same change planned twice, by
    one writer or by two, has the same names, so both can use the files written for it.
    """
    numbers, prefix = itertools.count(1), f"{table_id}/{max_column_id}"
    return lambda: f"col-{uuid.uuid5(uuid.NAMESPACE_OID, f'{prefix}/{next(numbers)}')}"


def new_column_name() -> str:
    """A name that no column of a data file ever had."""
    return f"col-{uuid.uuid4()}"


def set_properties(
    configuration: TableConfiguration, properties: Mapping[str, object]
) -> TableConfiguration:
    """The configuration with these properties, under the protocol that they need; itself if nothing
    changes.

    `delta.feature.<name> = supported`, `delta.minReaderVersion` and `delta.minWriterVersion` change
    the protocol and are not stored as properties, and `comment` becomes the description of the
    table.
    """
    given = normalize_properties(properties)
    _refuse_constraints(given)
    description = given.pop(COMMENT_KEY, None)
    kept = {key: value for key, value in given.items() if not is_protocol_property(key)}
    current = configuration.metadata.configuration
    wanted = {**current, **kept}
    features = required_features(StructType(()), given)
    protocol = upgrade_protocol(configuration.protocol, features)
    protocol = with_asked_versions(protocol, given)
    _check_mapping_change(configuration, wanted)
    finished = _complete_configuration(configuration, protocol, wanted)
    return finished if description is None else _with_description(finished, description)


def unset_properties(
    configuration: TableConfiguration, names: Iterable[str], *, if_exists: bool = False
) -> TableConfiguration:
    """The configuration without these properties; the protocol does not change."""
    wanted = dict(configuration.metadata.configuration)
    by_lower = {key.lower(): key for key in wanted}
    forgets_description = False
    for name in names:
        if name == COMMENT_KEY:
            forgets_description = True
            wanted.pop(COMMENT_KEY, None)
            continue
        key = name if name in wanted else by_lower.get(name.lower(), name)
        if key not in wanted:
            if if_exists:
                continue
            raise InvalidArgument(
                f"the table has no property {name}; it has {', '.join(sorted(wanted)) or 'none'}"
            )
        _refuse_constraints([key])
        spell_property(key, is_known=True)
        del wanted[key]
    _check_mapping_change(configuration, wanted)
    finished = _complete_configuration(configuration, configuration.protocol, wanted)
    return _with_description(finished, None) if forgets_description else finished


def _with_description(
    configuration: TableConfiguration, description: str | None
) -> TableConfiguration:
    if configuration.metadata.description == description:
        return configuration
    metadata = msgspec.structs.replace(configuration.metadata, description=description)
    return TableConfiguration(configuration.protocol, metadata)


def _complete_configuration(
    old: TableConfiguration, protocol: Protocol, properties: Mapping[str, str]
) -> TableConfiguration:
    """The new configuration, validated, with everything that its properties imply."""
    wanted = dict(properties)
    schema_string = old.metadata.schema_string
    planned = TableConfiguration(
        protocol, msgspec.structs.replace(old.metadata, configuration=wanted)
    )
    is_iceberg_v2 = iceberg_compat_version(planned) == 2
    starts_mapping = old.column_mapping_mode == "none" or (
        is_iceberg_v2 and iceberg_compat_version(old) != 2
    )
    if planned.column_mapping_mode != "none" and starts_mapping:
        # Existing data files have their columns under their logical names.
        schema = map_columns(
            planned.schema,
            wanted,
            old.metadata.id,
            nested_ids=is_iceberg_v2,
            keep_logical_names=True,
        )
        schema_string = schema.to_json()
    if planned.supports("rowTracking"):
        # Files may have the columns of an earlier time with row ids, which was ended since.
        wanted = with_materialized_columns(wanted, new_column_name)
    if not planned.in_commit_timestamps_enabled:
        # Otherwise they would name a start that is wrong after the next enabling.
        for key in IN_COMMIT_TIMESTAMP_START_KEYS:
            wanted.pop(key, None)
    if protocol == old.protocol and wanted == old.metadata.configuration:
        return old
    metadata = msgspec.structs.replace(
        old.metadata, configuration=wanted, schema_string=schema_string
    )
    finished = TableConfiguration(protocol, metadata)
    _check_state(old, finished)
    return finished


def map_columns(
    schema: StructType,
    properties: dict[str, str],
    table_id: str,
    *,
    nested_ids: bool,
    keep_logical_names: bool = False,
) -> StructType:
    """The schema with the ids and physical names that the mapping mode among the properties asks
    for; the largest id becomes one of the properties. `table_id` is empty for a new table.
    """
    parsed = TableProperties.parse(properties)
    if parsed.column_mapping_mode != "none":
        schema, highest = assign_column_mapping(
            schema,
            parsed.column_mapping_mode,
            max_column_id=parsed.column_mapping_max_column_id,
            new_name=column_names(table_id, parsed.column_mapping_max_column_id),
            keep_logical_names=keep_logical_names,
            nested_ids=nested_ids,
        )
        properties[MAX_COLUMN_ID_KEY] = str(highest)
    return schema


def _check_state(old: TableConfiguration, new: TableConfiguration) -> None:
    if new.change_data_feed_enabled and not old.change_data_feed_enabled:
        check_feed_names(new.schema)
    if new.properties.data_skipping_stats_columns != old.properties.data_skipping_stats_columns:
        check_statistics_columns(new)
    check_bloom_filters(new, old)
    check_iceberg_compat(new)


def check_statistics_columns(configuration: TableConfiguration) -> None:
    """Refuse columns with statistics that the table lacks, or whose values have no bounds, as
    delta-spark 4.4 does.
    """
    schema = configuration.schema
    for path in configuration.properties.data_skipping_stats_columns or ():
        fields, column = schema.fields_along(path), ".".join(path)
        problem = None
        if len(fields) < len(path):
            problem = f"the columns are {', '.join(schema.names)}"
        elif fields[0].name in configuration.partition_columns:
            problem = "that is a partition column: files are skipped by its values"
        elif not _may_have_bounds(fields[-1].data_type):
            problem = f"delta-spark keeps no bounds of type {fields[-1].data_type}"
        if problem is not None:
            raise InvalidArgument(
                f"delta.dataSkippingStatsColumns names {column}, and {problem}", column=column
            )


def _may_have_bounds(data_type: DataType) -> bool:
    is_known = isinstance(data_type, StructType) or StatisticsColumn((), data_type).has_bounds
    return is_known and data_type != PrimitiveType("boolean")


def _check_mapping_change(configuration: TableConfiguration, wanted: Mapping[str, str]) -> None:
    old = configuration.column_mapping_mode
    new = TableProperties.parse(wanted).column_mapping_mode
    if old == new or (old, new) == ("none", "name"):
        return
    if new == "none":
        raise InvalidArgument(
            f"{_MAPPING_MODE} cannot be changed from {old} to none directly, as the files use "
            'physical names; drop_feature("columnMapping") rewrites them'
        )
    raise InvalidArgument(
        f"{_MAPPING_MODE} cannot go from {old} to {new} on a table that exists; a table without "
        "mapping can be set to name, and id is for new tables"
    )


def _refuse_constraints(keys: Iterable[str]) -> None:
    for key in keys:
        if key.startswith(CONSTRAINT_PREFIX):
            name = key.removeprefix(CONSTRAINT_PREFIX)
            raise InvalidArgument(
                f"{key} is not a property to set or unset, as the rows of the table have to "
                f"satisfy it; use ALTER TABLE … ADD CONSTRAINT {name} CHECK (…), or DROP "
                f"CONSTRAINT {name}"
            )


def is_protocol_property(key: str) -> bool:
    """Whether a property is about the protocol, and not stored as a property."""
    return key.startswith(FEATURE_PREFIX) or key in _VERSION_KEYS


def with_asked_versions(protocol: Protocol, given: Mapping[str, str]) -> Protocol:
    """The protocol under at least the versions that properties request."""
    reader, writer = (_parse_version(given, key) for key in _VERSION_KEYS)
    if (reader, writer) == (2, 7):
        raise _invalid_pair(reader, writer)
    if reader <= protocol.min_reader_version and writer <= protocol.min_writer_version:
        return protocol
    reader = max(reader, protocol.min_reader_version)
    writer = max(writer, protocol.min_writer_version)
    if reader == 2 and writer == 7:
        # If writers with feature lists map columns, readers need a feature list too.
        reader = 3
    if (reader, writer) not in _VERSION_PAIRS:
        raise _invalid_pair(reader, writer)
    if writer < 7:
        return Protocol(min_reader_version=reader, min_writer_version=writer)
    listed = with_lists(protocol, effective_features(protocol))
    reader = max(reader, listed.min_reader_version)
    reader_features = (listed.reader_features or ()) if reader == 3 else None
    return replace(listed, min_reader_version=reader, reader_features=reader_features)


def _invalid_pair(reader: int, writer: int) -> InvalidArgument:
    pairs = ", ".join(f"{r} with {w}" for r, w in _VERSION_PAIRS)
    return InvalidArgument(
        f"delta.minReaderVersion {reader} with delta.minWriterVersion {writer} is not a valid "
        f"protocol to ask for; the valid ones are {pairs}"
    )


def _parse_version(given: Mapping[str, str], key: str) -> int:
    text = given.get(key, "1")
    if not text.isdecimal() or str(int(text)) != text:
        raise InvalidArgument(f"the table property {key} is a number such as 7, not {text!r}")
    return int(text)


def normalize_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties as text, known keys in their canonical spelling.

    Names outside `delta.` that this library does not know are user properties and stay unchanged;
    booleans and numbers are spelled as in other engines.
    """
    if any(key.lower() == COLUMN_CHANGE_KEY.lower() for key in properties):
        raise InvalidArgument(
            f"{COLUMN_CHANGE_KEY} marks a column change in progress and cannot be set; begin one "
            "by change_column"
        )
    normal = {spell_property(key): _spelled_value(key, value) for key, value in properties.items()}
    TableProperties.parse(normal).validate()
    return normal


def spell_property(key: str, *, is_known: bool = False) -> str:
    """The name of a property in its canonical spelling. `is_known` accepts an unknown `delta.`
    name, for example because the table already has it.
    """
    lowered = key.lower()
    for own in (COLUMN_CHANGE_SWITCH, READERS_PROPERTY):
        if lowered == own.lower():
            return own
    if not lowered.startswith("delta."):
        if lowered in _RESERVED and not is_known:
            raise InvalidArgument(
                f"{key} cannot be set as a property: Spark reserves the name; leave it out"
            )
        return COMMENT_KEY if lowered == COMMENT_KEY else key
    for prefix in (CONSTRAINT_PREFIX, FEATURE_PREFIX):
        if lowered.startswith(prefix):
            return prefix + key[len(prefix) :]
    spelling = _BY_NAME.get(lowered)
    if spelling is not None and KNOWN_PROPERTIES[spelling] == "internal":
        raise InvalidArgument(
            f"the table property {key} is maintained by writers and cannot be set; omit it"
        )
    if spelling in _REASONS and not is_known:
        raise InvalidArgument(
            f"the table property {key} cannot be set by this library ({_REASONS[spelling]}); leave "
            "it out"
        )
    if spelling is None and not is_known:
        near = nearest_name(key, _SETTABLE)
        hint = (
            f"did you mean {near}?"
            if near
            else f"the properties are {', '.join(_SETTABLE)}, {CONSTRAINT_PREFIX}<name> and "
            f"{FEATURE_PREFIX}<name>"
        )
        raise InvalidArgument(f"there is no table property {key}; {hint}")
    return spelling or key


def _spelled_value(key: str, value: object) -> str:
    if key.lower() == READERS_PROPERTY.lower():
        return ",".join(known_readers(filter(str.strip, str(value).split(","))))
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case _:
            raise InvalidArgument(
                f"the table property {key} is text, a number or a boolean, not {value!r}"
            )
