"""The least protocol that a schema and a set of properties need.

Spec: Table Features for New and Existing Tables; Writer Version Requirements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dagster_delta.errors import InvalidArgument
from dagster_delta.evolution.column_rules import types_outside_structs
from dagster_delta.protocol.actions import Protocol
from dagster_delta.protocol.features.existing_defaults import (
    EXISTING_DEFAULT_KEY,
    EXISTING_DEFAULTS_FEATURE,
)
from dagster_delta.protocol.features.registry import (
    TABLE_FEATURES,
    TABLE_FEATURES_READER_VERSION,
    TABLE_FEATURES_WRITER_VERSION,
    TableFeature,
    effective_features,
    find_feature,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration, not_null_paths
from dagster_delta.protocol.schema import PrimitiveType, StructType, walk_fields
from dagster_delta.protocol.table_properties import CONSTRAINT_PREFIX, TableProperties

FEATURE_PREFIX = "delta.feature."
"""`delta.feature.<name> = supported` lists a feature explicitly."""

_BY_TYPE = {
    "timestamp_ntz": "timestampNtz",
    "variant": "variantType",
    "geometry": "geospatial",
    "geography": "geospatial",
}

_BY_FIELD_METADATA = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    "delta.typeChanges": "typeWidening",
    EXISTING_DEFAULT_KEY: EXISTING_DEFAULTS_FEATURE,
}

_NEEDED_BY = {row.name: row.requires for row in TABLE_FEATURES if row.requires is not None}

_LEGACY_VERSIONS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6))


def required_features(schema: StructType, properties: Mapping[str, str]) -> frozenset[str]:
    """Names of the features that a table with this schema and these properties uses,
    `delta.feature.<name>` among them, as it is spelled there.
    """
    names = {*_by_schema(schema), *_by_properties(properties), *_by_hand(properties)}
    names |= {_NEEDED_BY[row] for row in map(_row_name, names) if row in _NEEDED_BY}
    return frozenset(names)


def _by_schema(schema: StructType) -> Iterable[str]:
    if any(not_null_paths(schema)):
        # The reference implementation treats NOT NULL as an invariant, and refuses to open a table
        # that has it without the feature.
        yield "invariants"
    for _, field in walk_fields(schema):
        for struct in types_outside_structs(field.data_type):
            if isinstance(struct, PrimitiveType):
                feature = _BY_TYPE.get(struct.name.partition("(")[0])
                if feature is not None:
                    yield feature
        for prefix, feature in _BY_FIELD_METADATA.items():
            if any(key.startswith(prefix) for key in field.metadata):
                yield feature


def _by_properties(configuration: Mapping[str, str]) -> Iterable[str]:
    properties = TableProperties.parse(configuration)
    uses = {
        "appendOnly": properties.append_only,
        "checkConstraints": any(key.startswith(CONSTRAINT_PREFIX) for key in configuration),
        "changeDataFeed": properties.enable_change_data_feed,
        "columnMapping": properties.column_mapping_mode != "none",
        "deletionVectors": properties.enable_deletion_vectors,
        "typeWidening": properties.enable_type_widening,
        "materializePartitionColumns": properties.enable_materialized_partition_columns,
        "variantShredding": properties.enable_variant_shredding,
        "rowTracking": properties.enable_row_tracking,
        "inCommitTimestamp": properties.enable_in_commit_timestamps,
        "v2Checkpoint": properties.checkpoint_policy == "v2",
        "icebergCompatV1": properties.enable_iceberg_compat_v1,
        "icebergCompatV2": properties.enable_iceberg_compat_v2,
    }
    return (name for name, used in uses.items() if used)


def _by_hand(configuration: Mapping[str, str]) -> Iterable[str]:
    for key, value in configuration.items():
        if not key.startswith(FEATURE_PREFIX):
            continue
        name = key.removeprefix(FEATURE_PREFIX)
        if find_feature(name) is None:
            known = ", ".join(row.name for row in TABLE_FEATURES if row.can_write)
            raise InvalidArgument(
                f"there is no table feature {name}, or this library does not know it; the "
                f"supported ones are {known}"
            )
        if value not in ("supported", "enabled"):
            raise InvalidArgument(f"{key} is 'supported' or absent, not {value!r}")
        yield name


def minimal_protocol(features: Iterable[str]) -> Protocol:
    """The lowest protocol under which a table may use these features.

    Legacy versions if they suffice, since the oldest clients support them; else feature lists with
    exactly these features.
    """
    rows = _find_feature_rows(features)
    if all(row.legacy_writer_version is not None for row in rows):
        return Protocol(
            min_reader_version=max((row.legacy_reader_version or 1 for row in rows), default=1),
            # Every current writer starts from version 2.
            min_writer_version=max((row.legacy_writer_version or 2 for row in rows), default=2),
        )
    return _listed_protocol(rows)


def upgrade_protocol(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """The protocol that also supports these features; itself if it already does.

    Features that a legacy version implied are listed after the upgrade. Spec: the client must
    assume that a feature has been used.
    """
    supported = effective_features(protocol)
    missing = frozenset(name for name in features if _row_name(name) not in supported)
    if not missing:
        return protocol
    uses_lists = protocol.min_writer_version >= TABLE_FEATURES_WRITER_VERSION
    if not uses_lists and all(
        r.legacy_writer_version is not None for r in _find_feature_rows(missing)
    ):
        least = minimal_protocol(missing)
        return Protocol(
            min_reader_version=max(protocol.min_reader_version, least.min_reader_version),
            min_writer_version=max(protocol.min_writer_version, least.min_writer_version),
        )
    return with_lists(protocol, supported | missing)


def with_lists(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """The protocol with lists of these features beside those that it lists already."""
    listed = _listed_protocol(_find_feature_rows(features))
    return Protocol(
        min_reader_version=max(protocol.min_reader_version, listed.min_reader_version),
        min_writer_version=TABLE_FEATURES_WRITER_VERSION,
        # Keep the table's spelling of a feature; otherwise an alias would be listed twice.
        reader_features=_extend_features(protocol.reader_features, listed.reader_features),
        writer_features=_extend_features(protocol.writer_features, listed.writer_features),
    )


def downgrade_protocol(protocol: Protocol, feature: str) -> Protocol:
    """The protocol without one feature.

    A legacy version if it implies exactly the remaining features, since the oldest clients support
    it; else feature lists.
    """
    kept = effective_features(protocol) - {feature}
    for reader, writer in _LEGACY_VERSIONS:
        legacy = Protocol(min_reader_version=reader, min_writer_version=writer)
        if effective_features(legacy) == kept:
            return legacy
    # Keep the table's spelling of a feature.
    listed = (*(protocol.reader_features or ()), *(protocol.writer_features or ()))
    return _listed_protocol(
        _find_feature_rows({*kept, *(name for name in listed if _row_name(name) in kept)})
    )


def dependent_features(feature: str) -> frozenset[str]:
    """Names of the features that depend on a feature."""
    return frozenset(name for name, needed in _NEEDED_BY.items() if needed == feature)


def new_features(before: TableConfiguration, after: TableConfiguration) -> tuple[str, ...]:
    """Names of the features that one configuration needs and an earlier one does not have, sorted.

    Features that only a legacy version implies do not count.
    """
    added = _find_feature_rows(
        effective_features(after.protocol) - effective_features(before.protocol)
    )
    used = required_features(after.schema, after.metadata.configuration)
    return tuple(row.name for row in added if row.legacy_writer_version is None or row.name in used)


def _row_name(name: str) -> str:
    row = find_feature(name)
    return row.name if row else name


def _find_feature_rows(features: Iterable[str]) -> tuple[TableFeature, ...]:
    """The rows of features by name, under an alias that is among the names."""
    found: dict[str, TableFeature] = {}
    for name in sorted(features):
        row = find_feature(name)
        if row is not None and (name != row.name or row.name not in found):
            found[row.name] = replace(row, name=name)
    return tuple(found.values())


def _listed_protocol(rows: Iterable[TableFeature]) -> Protocol:
    rows = tuple(rows)
    reader = tuple(row.name for row in rows if row.is_reader_feature)
    return Protocol(
        min_reader_version=TABLE_FEATURES_READER_VERSION if reader else 1,
        min_writer_version=TABLE_FEATURES_WRITER_VERSION,
        reader_features=reader or None,
        writer_features=tuple(row.name for row in rows),
    )


def _extend_features(
    listed: tuple[str, ...] | None, wanted: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if wanted is None:
        return listed
    present = {_row_name(name) for name in listed or ()}
    return (*(listed or ()), *(name for name in wanted if name not in present))
