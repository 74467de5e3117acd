"""Protocol and metadata of one table version, and everything that follows from them.

Spec: Change Metadata; Protocol Evolution; Column Invariants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from dagster_delta.cached_property import cached_property
from dagster_delta.errors import InvalidTable, UnsupportedFeature
from dagster_delta.protocol.actions import Metadata, Protocol
from dagster_delta.protocol.features import registry as table_features
from dagster_delta.protocol.features import type_widening
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.existing_defaults import (
    EXISTING_DEFAULT_KEY,
    EXISTING_DEFAULTS_FEATURE,
    check_existing_defaults,
    with_existing_defaults_of,
)
from dagster_delta.protocol.schema import (
    DataType,
    PrimitiveType,
    StructField,
    StructType,
    fold_name,
    has_nanoseconds,
    walk_fields,
    walk_types,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode, TableProperties
from dagster_delta.protocol.values.partition_values import check_partition_type
from dagster_delta.protocol.wire_values import DECODING_ERRORS

INVARIANTS_KEY = "delta.invariants"
TRUNCATION_VARIABLE = "DAGSTER_DELTA_ALLOW_TRUNCATED_TIMESTAMPS"
"""If `false`, tables with timestamps in nanoseconds are refused; otherwise they are read without
their last three digits."""
_READ_ONLY_TYPES = ('"geometry(', '"geography(', '"interval ')


class TableConfiguration(msgspec.Struct, frozen=True, dict=True):
    """Protocol and metadata of a table version: immutable, picklable, parsed on demand."""

    protocol: Protocol
    metadata: Metadata

    def __getstate__(self) -> dict[str, object]:
        # Parsed values are cheap to rebuild and would enlarge every Spark task.
        return {"protocol": self.protocol, "metadata": self.metadata}

    @cached_property
    def schema(self) -> StructType:
        """Logical schema, partition columns included."""
        schema = StructType.from_json(self.metadata.schema_string)
        _check_unique_names(schema)
        return schema

    @cached_property
    def properties(self) -> TableProperties:
        """The table properties."""
        return TableProperties.parse(self.metadata.configuration)

    @cached_property
    def features(self) -> frozenset[str]:
        """Names of the supported features: listed, or implied by a legacy version."""
        return table_features.effective_features(self.protocol)

    def supports(self, feature: str) -> bool:
        """Whether the protocol lists or implies the feature (by name or alias)."""
        row = table_features.find_feature(feature)
        return (row.name if row else feature) in self.features

    @cached_property
    def partition_columns(self) -> tuple[str, ...]:
        """Logical names of the partition columns as the schema spells them, in directory order."""
        return self.partition_schema.names

    @cached_property
    def partition_schema(self) -> StructType:
        """The partition columns, in directory order."""
        fields = []
        for name in self.metadata.partition_columns:
            field = self.schema.get(name)
            if field is None:
                raise InvalidTable(
                    f"the table is partitioned by {name}, and its schema has no such column; "
                    "restore an older version of the table",
                    column=name,
                )
            fields.append(field)
        return StructType(tuple(fields))

    @cached_property
    def data_schema(self) -> StructType:
        """The columns that data files hold: all except the partition columns."""
        partitioned = set(self.partition_columns)
        return StructType(tuple(field for field in self.schema if field.name not in partitioned))

    @cached_property
    def column_mapping_mode(self) -> ColumnMappingMode:
        """The mapping mode in force: `none` unless the protocol supports column mapping."""
        if not self.supports("columnMapping"):
            return "none"
        return self.properties.column_mapping_mode

    def physical_name(self, column: str) -> str:
        """The name of a top-level column in data files, statistics and partition values."""
        return physical_name(self.schema.field(column), self.column_mapping_mode)

    @cached_property
    def physical_partition_columns(self) -> tuple[str, ...]:
        """Names of the partition columns as in `partitionValues`, in directory order."""
        return tuple(
            physical_name(field, self.column_mapping_mode) for field in self.partition_schema
        )

    @property
    def partition_types(self) -> tuple[tuple[str, DataType], ...]:
        """Physical name and type of each partition column, in directory order."""
        types = (field.data_type for field in self.partition_schema)
        return tuple(zip(self.physical_partition_columns, types, strict=True))

    @cached_property
    def invariants(self) -> tuple[tuple[str, str], ...]:
        """SQL that every written row satisfies: (dotted logical column, Spark SQL)."""
        if not self.supports("invariants"):
            return ()
        return tuple(
            (".".join(path), _invariant_sql(field, ".".join(path)))
            for path, field in walk_fields(self.schema)
            if INVARIANTS_KEY in field.metadata
        )

    @cached_property
    def not_null_columns(self) -> tuple[tuple[str, ...], ...]:
        """Logical paths of fields that must not be null, through structs only.

        A nested field must not be null if its parent is not null. Fields below arrays and maps are
        excluded: their nullability is part of the column's type.
        """
        return tuple(not_null_paths(self.schema))

    @property
    def deletion_vectors_enabled(self) -> bool:
        """Whether writers may write new deletion vectors."""
        return self.supports("deletionVectors") and self.properties.enable_deletion_vectors

    @property
    def change_data_feed_enabled(self) -> bool:
        """Whether writers record row-level changes."""
        return self.supports("changeDataFeed") and self.properties.enable_change_data_feed

    @property
    def assigns_row_ids(self) -> bool:
        """Whether new files get row ids by row tracking."""
        return self.supports("rowTracking") and not self.properties.row_tracking_suspended

    @property
    def type_widening_enabled(self) -> bool:
        """Whether column types may be widened."""
        return self.supports("typeWidening") and self.properties.enable_type_widening

    @property
    def in_commit_timestamps_enabled(self) -> bool:
        """Whether commits carry their own timestamp."""
        return self.supports("inCommitTimestamp") and self.properties.enable_in_commit_timestamps

    @property
    def draft_row_ids_enabled(self) -> bool:
        """Whether row ids are complete, by the draft of row tracking."""
        return self.supports("rowIds") and self.properties.enable_row_ids

    @property
    def row_tracking_enabled(self) -> bool:
        """Whether row ids are complete."""
        return self.supports("rowTracking") and self.properties.enable_row_tracking

    @property
    def append_only(self) -> bool:
        """Whether rows may never be deleted or changed."""
        return self.supports("appendOnly") and self.properties.append_only

    def after(self, protocol: Protocol | None, metadata: Metadata | None) -> TableConfiguration:
        """The configuration after a commit with these actions, each None if it has no such one;
        itself if it has neither. Raises nothing.
        """
        if protocol is None and metadata is None:
            return self
        return TableConfiguration(protocol or self.protocol, metadata or self.metadata)

    def with_properties(self, properties: Mapping[str, str]) -> TableConfiguration:
        """The configuration with other table properties. Raises nothing."""
        metadata = msgspec.structs.replace(self.metadata, configuration=dict(properties))
        return TableConfiguration(self.protocol, metadata)

    def with_schema(self, schema: StructType) -> TableConfiguration:
        """The configuration with another schema; itself if the schema is the same. Raises
        nothing.
        """
        if schema == self.schema:
            return self
        metadata = msgspec.structs.replace(self.metadata, schema_string=schema.to_json())
        return TableConfiguration(self.protocol, metadata)

    def with_existing_defaults_of(self, older: TableConfiguration) -> TableConfiguration:
        """The configuration, extended to read files that were live under an older one.

        When every file holds a column, its field loses the value for files without it. The change
        feed still reads such older files.
        """
        if self is older or EXISTING_DEFAULT_KEY not in older.metadata.schema_string:
            return self
        # Columns that existed before the mapping keep their name as the physical name.
        modes = (self.column_mapping_mode, older.column_mapping_mode)
        return self.with_schema(with_existing_defaults_of(self.schema, older.schema, *modes))

    def check_readable(self, *, table: str, version: int, in_catalog: bool = False) -> None:
        """Refuse a table that this library might read wrongly. `in_catalog` says that it was opened
        through the catalog that manages it.
        """
        # Check the protocol first: an unknown feature may use types that the parser does not know.
        table_features.check_readable(
            self.protocol, table=table, version=version, in_catalog=in_catalog
        )
        try:
            self._check_schema()
        except (InvalidTable, UnsupportedFeature) as error:
            error.table, error.version = table, version
            raise

    def _check_schema(self) -> None:
        _ = self.schema
        if self.has_nanoseconds and os.environ.get(TRUNCATION_VARIABLE, "").lower() == "false":
            raise UnsupportedFeature(
                f"the table has timestamps in nanoseconds, and {TRUNCATION_VARIABLE} is false: "
                "remove the variable to read them without their last three digits"
            )
        for field in self.partition_schema:
            check_partition_type(field.data_type, column=field.name)
        if self.supports("typeWidening"):
            type_widening.check_type_changes(self.schema)
        if EXISTING_DEFAULT_KEY in self.metadata.schema_string:
            self._check_existing_defaults()
        if self.column_mapping_mode != "none":
            for _, field in walk_fields(self.schema):
                physical_name(field, self.column_mapping_mode)
        elif self.properties.column_mapping_mode != "none":
            raise InvalidTable(
                "the table has delta.columnMapping.mode, and the protocol lacks the feature "
                "columnMapping, so that readers disagree about the names in its files; restore an "
                "older version, or add the feature with the engine that set the mode"
            )

    def _check_existing_defaults(self) -> None:
        check_existing_defaults(self.schema)
        if not self.supports(EXISTING_DEFAULTS_FEATURE):
            raise InvalidTable(
                f"the schema has {EXISTING_DEFAULT_KEY}, and the protocol does not list "
                f"{EXISTING_DEFAULTS_FEATURE}: others would read nulls instead; restore an older "
                "version of the table"
            )

    @cached_property
    def has_nanoseconds(self) -> bool:
        """Whether columns are timestamps in nanoseconds, which are read in microseconds."""
        return has_nanoseconds(self.metadata.schema_string)

    def check_writable(self, *, table: str, version: int, in_catalog: bool = False) -> None:
        """Refuse a table that this library might write wrongly."""
        self.check_readable(table=table, version=version, in_catalog=in_catalog)
        table_features.check_writable(
            self.protocol, table=table, version=version, in_catalog=in_catalog
        )
        if self.has_nanoseconds:
            raise UnsupportedFeature(
                "the table has timestamps in nanoseconds, which dagster_delta reads in "
                "microseconds and does not write; write them with deltalake, after "
                "enable_nanosecond_timestamps()",
                table=table,
                version=version,
            )
        # Also without a feature. The text is searched first, because it is there for every commit.
        if not any(text in self.metadata.schema_string for text in _READ_ONLY_TYPES):
            return
        for kind in walk_types(self.schema):
            if isinstance(kind, PrimitiveType) and kind.is_read_only:
                raise UnsupportedFeature(
                    f"the table has columns of type {kind}, which dagster_delta does not write; "
                    "write them with Spark",
                    table=table,
                    version=version,
                )


def _check_unique_names(schema: StructType) -> None:
    for data_type in walk_types(schema):
        if not isinstance(data_type, StructType):
            continue
        seen: set[str] = set()
        for field in data_type:
            if fold_name(field.name) in seen:
                raise InvalidTable(
                    f"the schema has two columns called {field.name} (names are compared without "
                    "regard to case); restore an older version of the table",
                    column=field.name,
                )
            seen.add(fold_name(field.name))


def _invariant_sql(field: StructField, column: str) -> str:
    # Spec: Column Invariants. The SQL is at `expression.expression` in a JSON string.
    text = field.metadata[INVARIANTS_KEY]
    try:
        return msgspec.json.decode(str(text), type=_Invariant).expression.expression
    except DECODING_ERRORS as error:
        raise InvalidTable(
            f"the invariant of column {column} cannot be parsed ({error}): the schema is damaged; "
            "restore an older version of the table",
            column=column,
        ) from error


class _InvariantExpression(msgspec.Struct, frozen=True):
    expression: str


class _Invariant(msgspec.Struct, frozen=True):
    expression: _InvariantExpression


def not_null_paths(schema: StructType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Logical paths of the fields that must not be null, through structs only."""
    for field in schema:
        here = (*path, field.name)
        if not field.nullable:
            yield here
        if isinstance(field.data_type, StructType):
            yield from not_null_paths(field.data_type, here)
