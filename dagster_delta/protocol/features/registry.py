"""Which table features this library reads and writes: one table of rows, and the two gates.

Spec: Table Features; Writer Version Requirements; Reader Version Requirements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from dagster_delta._version import __version__
from dagster_delta.errors import (
    CatalogRequired,
    InvalidTable,
    UnsupportedFeature,
    UnsupportedReaderVersion,
    UnsupportedWriterVersion,
)
from dagster_delta.protocol.actions import Protocol

TABLE_FEATURES_READER_VERSION = 3
"""The highest reader version; its tables list their reader features."""

TABLE_FEATURES_WRITER_VERSION = 7
"""The highest writer version; its tables list their writer features."""


class TableFeature(msgspec.Struct, frozen=True):
    """One feature of the protocol and what this library does about it."""

    name: str
    """Name as in shipped tables."""
    description: str
    """What the feature is, in one line."""
    aliases: tuple[str, ...] = ()
    """Other names of the same feature: drafts, previews, spellings of the specification."""
    is_reader_feature: bool = False
    """Whether readers must support it too."""
    legacy_reader_version: int | None = None
    """Lowest reader version that implies it in tables without feature lists."""
    legacy_writer_version: int | None = None
    """Lowest writer version that implies it in tables without feature lists."""
    can_read: bool = True
    """Whether tables with the feature are read."""
    can_write: bool = True
    """Whether tables with the feature are written."""
    requires: str | None = None
    """The feature that it depends on; a protocol lists both."""
    needs_catalog: bool = False
    """Whether the table belongs to a catalog, and is refused where it is opened by path."""


TABLE_FEATURES: tuple[TableFeature, ...] = (
    TableFeature(
        "appendOnly",
        "rows may be added but not removed while delta.appendOnly is true",
        legacy_writer_version=2,
    ),
    TableFeature(
        "invariants",
        "columns have SQL conditions that every row must satisfy",
        aliases=("columnInvariants",),
        legacy_writer_version=2,
    ),
    TableFeature(
        "checkConstraints",
        "the table has SQL conditions that every row must satisfy",
        legacy_writer_version=3,
    ),
    TableFeature("changeDataFeed", "row-level changes are recorded", legacy_writer_version=4),
    TableFeature(
        "generatedColumns", "columns are computed from other columns", legacy_writer_version=4
    ),
    TableFeature(
        "columnMapping",
        "columns have physical names and ids independent of their logical names",
        is_reader_feature=True,
        legacy_reader_version=2,
        legacy_writer_version=5,
    ),
    TableFeature("identityColumns", "writers number the rows in a column", legacy_writer_version=6),
    TableFeature(
        "deletionVectors", "bitmaps mark rows of data files as deleted", is_reader_feature=True
    ),
    TableFeature(
        "rowTracking",
        "rows have a stable id and the version of their last change",
        requires="domainMetadata",
    ),
    TableFeature("rowIds", "rows have a stable id (the draft of rowTracking)", can_write=False),
    TableFeature("domainMetadata", "features and users store named configuration in the log"),
    TableFeature(
        "timestampNtz",
        "columns hold timestamps without a time zone",
        aliases=("timestampNTZ", "timestampWithoutTimezone"),
        is_reader_feature=True,
    ),
    TableFeature(
        "typeWidening",
        "column types were widened without rewriting files",
        aliases=("typeWidening-preview", "enableTypeWidening"),
        is_reader_feature=True,
    ),
    TableFeature(
        "v2Checkpoint", "checkpoints may be manifests with sidecar files", is_reader_feature=True
    ),
    TableFeature(
        "vacuumProtocolCheck",
        "VACUUM checks the writer protocol before it deletes files",
        is_reader_feature=True,
    ),
    TableFeature(
        "inCommitTimestamp",
        "commits record their own, strictly increasing timestamp",
        aliases=("inCommitTimestamp-preview",),
    ),
    TableFeature(
        "clustering",
        "rows are clustered by columns on which every file has statistics",
        requires="domainMetadata",
    ),
    TableFeature("allowColumnDefaults", "columns have a default for writes that omit them"),
    TableFeature(
        "icebergCompatV1",
        "data files stay readable as an Iceberg v1 table",
        requires="columnMapping",
    ),
    TableFeature(
        "icebergCompatV2",
        "data files stay readable as an Iceberg v2 table",
        requires="columnMapping",
    ),
    TableFeature(
        "icebergCompatV3",
        "data files stay readable as an Iceberg v3 table",
        requires="columnMapping",
        can_write=False,
    ),
    TableFeature(
        "icebergWriterCompatV1",
        "Iceberg writers may write the table, under the rules of Iceberg v2",
        can_write=False,
    ),
    TableFeature(
        "icebergWriterCompatV3",
        "Iceberg writers may write the table, under the rules of Iceberg v3",
        can_write=False,
    ),
    TableFeature(
        "variantType",
        "columns hold semi-structured variants",
        aliases=("variantType-preview",),
        is_reader_feature=True,
    ),
    TableFeature(
        "variantShredding",
        "data files may hold variants split into typed columns",
        requires="variantType",
        aliases=("variantShredding-preview",),
        is_reader_feature=True,
    ),
    TableFeature("checkpointProtection", "old checkpoints outlive log clean-up"),
    TableFeature(
        "dagsterDelta.existingDefaults",
        "rows written before a column existed have a default in it",
        is_reader_feature=True,
    ),
    TableFeature("materializePartitionColumns", "data files also contain the partition columns"),
    TableFeature(
        "collations",
        "strings are compared under a collation",
        aliases=("collations-preview",),
        can_write=False,
    ),
    TableFeature(
        "geospatial",
        "columns hold geometries or geographies",
        aliases=("geospatial-preview", "geospatial-dev"),
        is_reader_feature=True,
        can_write=False,
    ),
    TableFeature(
        "timestampNanos",
        "columns hold timestamps in nanoseconds",
        is_reader_feature=True,
        can_write=False,
    ),
    TableFeature(
        "fileType",
        "columns hold references to files, or the bytes of small ones",
        is_reader_feature=True,
        can_read=False,
        can_write=False,
    ),
    TableFeature(
        "columnUpdates",
        "values of some columns are in files of their own beside the data files",
        is_reader_feature=True,
        can_read=False,
        can_write=False,
    ),
    TableFeature(
        "concurrentIdentityColumns",
        "a service of the catalog reserves the values of identity columns",
        can_write=False,
    ),
    TableFeature(
        "multiTableTransaction",
        "a catalog commits several tables at once",
        aliases=("multiTableTransaction-dev",),
        can_write=False,
    ),
    TableFeature(
        "columnMappingUsageTracking",
        "writers note whether a column was dropped or renamed",
        can_write=False,
    ),
    TableFeature(
        "tableBranching",
        "branches of the table are logs below its own, and need its older files",
        aliases=("tableBranching-dev",),
        can_write=False,
    ),
    TableFeature(
        "adaptiveMetadata",
        "the list of files is a tree of manifests as in Iceberg V4 (RFC iceberg-v4-metadata)",
        aliases=("adaptiveMetadata-preview",),
        is_reader_feature=True,
        can_read=False,
        can_write=False,
    ),
    TableFeature(
        "catalogManaged",
        "commits go through the table's catalog",
        aliases=("catalogOwned", "catalogOwned-preview"),
        is_reader_feature=True,
        needs_catalog=True,
    ),
)
"""Every feature this library knows. A listed name without a row is unknown and refused."""

_BY_NAME = {
    name: feature for feature in TABLE_FEATURES for name in (feature.name, *feature.aliases)
}


def find_feature(name: str) -> TableFeature | None:
    """The row of a feature by its name or one of its aliases, or None if it is unknown."""
    return _BY_NAME.get(name)


def effective_features(protocol: Protocol) -> frozenset[str]:
    """Names of the features the table supports: listed, or implied by a legacy version.

    Aliases are replaced by the name of their row, unknown names are unchanged.
    """
    listed = {*_reader_list(protocol), *_writer_list(protocol)}
    names = {feature.name if (feature := find_feature(name)) else name for name in listed}
    return frozenset(
        names | {feature.name for feature in TABLE_FEATURES if _is_implied(feature, protocol)}
    )


def _reader_list(protocol: Protocol) -> tuple[str, ...]:
    listed = protocol.min_reader_version >= TABLE_FEATURES_READER_VERSION
    return protocol.reader_features or () if listed else ()


def _writer_list(protocol: Protocol) -> tuple[str, ...]:
    listed = protocol.min_writer_version >= TABLE_FEATURES_WRITER_VERSION
    return protocol.writer_features or () if listed else ()


def _is_implied(feature: TableFeature, protocol: Protocol) -> bool:
    # Spec: Column Mapping. The reader version alone decides about a reader/writer feature: if
    # readers use logical names, writers must not write physical names.
    if feature.is_reader_feature:
        floor, version = feature.legacy_reader_version, protocol.min_reader_version
        return floor is not None and floor <= version < TABLE_FEATURES_READER_VERSION
    floor, version = feature.legacy_writer_version, protocol.min_writer_version
    return floor is not None and floor <= version < TABLE_FEATURES_WRITER_VERSION


def check_readable(
    protocol: Protocol, *, table: str, version: int, in_catalog: bool = False
) -> None:
    """Refuse a table that this library might read wrongly.

    Args:
        protocol: of the table.
        table: URI of the table, without credentials, for the message.
        version: table version of the protocol.
        in_catalog: whether the table was opened through the catalog that manages it.

    Raises:
        UnsupportedReaderVersion: minReaderVersion is not 1, 2 or 3.
        CatalogRequired: the table belongs to a catalog, and was opened by path.
        UnsupportedFeature: a listed reader feature is unknown, not implemented, or only for
            writers.
        InvalidTable: the versions and the lists of features contradict each other.
    """
    if not 1 <= protocol.min_reader_version <= TABLE_FEATURES_READER_VERSION:
        raise UnsupportedReaderVersion(
            f"the table needs reader version {protocol.min_reader_version}, and dagster_delta "
            f"{__version__} reads versions 1 to {TABLE_FEATURES_READER_VERSION}; upgrade the "
            "library, or read the table with the engine that wrote it",
            table=table,
            version=version,
        )
    problem = next(_find_contradictions(protocol), None)
    if problem is not None:
        raise InvalidTable(
            f"the protocol {problem}; commit a corrected protocol action with the engine that "
            "wrote it",
            table=table,
            version=version,
        )
    unreadable = [
        name
        for name in _reader_list(protocol)
        if (feature := find_feature(name)) is None
        or not (feature.can_read and feature.is_reader_feature)
        or (feature.needs_catalog and not in_catalog)
    ]
    if unreadable:
        raise _describe_refusal("read", unreadable, table=table, version=version)


def _find_contradictions(protocol: Protocol) -> Iterator[str]:
    """How versions and lists of features contradict each other. delta-spark opens no such table,
    except that it allows a feature in the readers' list only.
    """
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    # Spec: Reader Version 3 requires writer version 7 and a list of reader features.
    if reader == TABLE_FEATURES_READER_VERSION and writer < TABLE_FEATURES_WRITER_VERSION:
        yield (
            f"asks for reader version {reader} with writer version {writer}, and reader version "
            f"{reader} needs writer version {TABLE_FEATURES_WRITER_VERSION}"
        )
    lists = (
        ("reader", reader, TABLE_FEATURES_READER_VERSION, protocol.reader_features),
        ("writer", writer, TABLE_FEATURES_WRITER_VERSION, protocol.writer_features),
    )
    for side, version, lists_from, features in lists:
        if features is None and version == lists_from:
            yield f"asks for {side} version {version} and has no {side}Features"
        if features is not None and version < lists_from:
            yield f"has {side}Features, which {side} version {version} does not know"
    listed = _writer_list(protocol)
    # Spec: a reader feature is in both lists, or the table is invalid.
    for name in _reader_list(protocol):
        if name not in listed:
            yield f"lists {name} for readers and not for writers"
    for name in listed:
        feature = find_feature(name)
        # Tables of previews are older than the rule.
        if feature is None or feature.name != name or feature.requires is None:
            continue
        if feature.requires not in listed:
            yield f"lists {name} without {feature.requires}, which it is built on"


def _describe_refusal(
    verb: str, names: Iterable[str], *, table: str, version: int
) -> UnsupportedFeature | CatalogRequired:
    rows = {name: find_feature(name) for name in names}
    if owned := [name for name, row in rows.items() if row is not None and row.needs_catalog]:
        return CatalogRequired(
            f"the table belongs to a catalog (feature {', '.join(owned)}), which has its newest "
            "commits, and was opened by path; open it by its name: "
            'UnityCatalog(uri).resolve("catalog.schema.table") gives the location and the options',
            table=table,
            version=version,
        )
    listed = ", ".join(
        f"{name} ({row.description if row else 'unknown to this version'})"
        for name, row in rows.items()
    )
    return UnsupportedFeature(
        f"dagster_delta {__version__} cannot {verb} a table with the feature {listed}; upgrade the "
        f"library, or {verb} the table with an engine that supports the feature",
        table=table,
        version=version,
    )


def check_writable(
    protocol: Protocol, *, table: str, version: int, in_catalog: bool = False
) -> None:
    """Refuse a table that this library might write wrongly, before anything is written.

    Args:
        protocol: of the table.
        table: URI of the table, without credentials, for the message.
        version: table version of the protocol.
        in_catalog: as for `check_readable`.

    Raises:
        UnsupportedWriterVersion: minWriterVersion is not 1 to 7.
        UnsupportedFeature: a feature is unknown, or used and not implemented; also everything that
            `check_readable` raises, since a writer must read the table first.
        InvalidTable: the versions and the lists of features contradict each other.
    """
    check_readable(protocol, table=table, version=version, in_catalog=in_catalog)
    if not 1 <= protocol.min_writer_version <= TABLE_FEATURES_WRITER_VERSION:
        raise UnsupportedWriterVersion(
            f"the table needs writer version {protocol.min_writer_version}, and dagster_delta "
            f"{__version__} writes versions 1 to {TABLE_FEATURES_WRITER_VERSION}; upgrade the "
            "library, or write the table with the engine that created it",
            table=table,
            version=version,
        )
    unwritable = [
        name
        for name in sorted(effective_features(protocol))
        if (row := find_feature(name)) is None or not row.can_write
    ]
    if unwritable:
        raise _describe_refusal("write", unwritable, table=table, version=version)
