"""The actions of the transaction log, one struct each, in their wire form.

Spec: Actions.
"""

from __future__ import annotations

import msgspec

from dagster_delta.protocol.wire_values import DECODING_ERRORS, Int64, RowCount, SmallCount


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Immutable, camelCase on the wire, absent when it holds its default."""


class DeletionVectorDescriptor(_Wire, frozen=True, kw_only=True):
    """Where a deletion vector is stored and what it holds.

    Spec: Deletion Vector Descriptor Schema.
    """

    storage_type: str
    """`u` relative path, `i` inline, `p` absolute path."""
    path_or_inline_dv: str
    """Z85 text (`u`: random prefix + UUID; `i`: the vector itself) or an absolute path (`p`)."""
    offset: SmallCount | None = None
    """Byte offset of the vector's `dataSize` field in its file; None when inline."""
    size_in_bytes: SmallCount
    """Serialised size of the vector (magic included, size and checksum not)."""
    cardinality: RowCount
    """Number of rows the vector removes."""
    max_row_index: Int64 | None = None
    """Largest row index in the vector, if the writer recorded it."""

    @property
    def unique_id(self) -> str:
        """The id that, with the path, is the key of a logical file. Spec: Derived Fields."""
        text = self.storage_type + self.path_or_inline_dv
        return text if self.offset is None else f"{text}@{self.offset}"


class AddFile(_Wire, frozen=True, kw_only=True):
    """A logical file that becomes part of the table. Spec: Add File and Remove File."""

    path: str
    """URI of the data file, percent-encoded, relative to the table root or absolute."""
    partition_values: dict[str, str | None]
    """Serialised partition values by physical column name; null is None or ''."""
    size_bytes: Int64 = msgspec.field(name="size")
    """Size of the data file in bytes."""
    modification_time_ms: Int64 = msgspec.field(name="modificationTime")
    """Creation time of the file in milliseconds since the epoch."""
    data_change: bool
    """False if the rows were already in the table in other files."""
    stats: str | None = None
    """Per-file statistics as JSON text."""
    tags: dict[str, str | None] | None = None
    """Free-form metadata about the file."""
    deletion_vector: DeletionVectorDescriptor | None = None
    """Rows of the file that are not part of the table."""
    base_row_id: Int64 | None = None
    """Row id of the file's first row, under row tracking."""
    default_row_commit_version: Int64 | None = None
    """Commit version of rows without their own commit version, under row tracking."""
    clustering_provider: str | None = None
    """Name of the clustering implementation that wrote the file."""

    @property
    def num_records(self) -> int | None:
        """Rows of the data file by its statistics, deleted ones included; None if unknown."""
        try:
            return _RECORDS.decode(self.stats).num_records if self.stats else None
        except DECODING_ERRORS:
            return None


class _Records(msgspec.Struct, rename="camel"):
    num_records: Int64 | None = None


_RECORDS = msgspec.json.Decoder(_Records)


class RemoveFile(_Wire, frozen=True, kw_only=True):
    """A tombstone: a logical file that leaves the table. Spec: Add File and Remove File."""

    path: str
    """URI, spelled exactly as in the add."""
    deletion_timestamp_ms: Int64 | None = msgspec.field(name="deletionTimestamp", default=None)
    """Time of the removal in milliseconds since the epoch."""
    data_change: bool
    """False if the rows stay in the table in other files."""
    extended_file_metadata: bool | None = None
    """True when partitionValues, size and tags are present."""
    partition_values: dict[str, str | None] | None = None
    """Serialised partition values of the removed file."""
    size_bytes: Int64 | None = msgspec.field(name="size", default=None)
    """Size of the removed file in bytes."""
    stats: str | None = None
    """Statistics copied from the add, if the writer kept them."""
    tags: dict[str, str | None] | None = None
    """Tags of the removed file."""
    deletion_vector: DeletionVectorDescriptor | None = None
    """Deletion vector of the removed logical file."""
    base_row_id: Int64 | None = None
    """Row id of the file's first row, under row tracking."""
    default_row_commit_version: Int64 | None = None
    """Default commit version of the file's rows, under row tracking."""


class AddCDCFile(_Wire, frozen=True, kw_only=True):
    """A file of row changes for the change data feed. Spec: Add CDC File."""

    path: str
    """URI of the change data file, under `_change_data`."""
    partition_values: dict[str, str | None]
    """Serialised partition values by physical column name."""
    size_bytes: Int64 = msgspec.field(name="size")
    """Size of the file in bytes."""
    # The specification requires this field; msgspec would omit a plain default.
    data_change: bool = msgspec.field(default_factory=bool)
    """Always false: the rows themselves are in add and remove actions."""
    tags: dict[str, str | None] | None = None
    """Free-form metadata about the file."""


class Format(_Wire, frozen=True, kw_only=True, omit_defaults=False):
    """How data files are encoded. Spec: Format Specification."""

    provider: str = "parquet"
    """Always `parquet`."""
    options: dict[str, str] = {}
    """Options of the format; writers leave it empty."""


class Metadata(_Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Schema, partitioning and properties of the table. Spec: Change Metadata."""

    id: str
    """UUID of the table."""
    name: str | None = None
    """Name a user gave the table."""
    description: str | None = None
    """Description a user gave the table."""
    format: Format
    """Encoding of the data files."""
    schema_string: str = '{"type":"struct","fields":[]}'
    """Schema as JSON; some tables without columns omit it. Spec: Schema Serialization Format."""
    partition_columns: tuple[str, ...]
    """Logical names of the partition columns, in directory order."""
    created_time_ms: Int64 | None = msgspec.field(name="createdTime", default=None)
    """Creation time in milliseconds since the epoch."""
    configuration: dict[str, str]
    """Table properties."""

    def without(self, *keys: str) -> Metadata:
        """The metadata without some properties."""
        kept = {key: value for key, value in self.configuration.items() if key not in keys}
        return msgspec.structs.replace(self, configuration=kept)


class Protocol(_Wire, frozen=True, kw_only=True):
    """What a client must support to read or write the table. Spec: Protocol Evolution."""

    min_reader_version: int
    """Lowest reader version that may read the table."""
    min_writer_version: int
    """Lowest writer version that may write it."""
    reader_features: tuple[str, ...] | None = None
    """Features a reader must support; present if and only if minReaderVersion is 3."""
    writer_features: tuple[str, ...] | None = None
    """Features a writer must support; present if and only if minWriterVersion is 7."""


class SetTransaction(_Wire, frozen=True, kw_only=True):
    """The latest version an application has committed. Spec: Transaction Identifiers."""

    app_id: str
    """Unique id of the application."""
    version: Int64
    """The application's own version, which increases."""
    last_updated_ms: Int64 | None = msgspec.field(name="lastUpdated", default=None)
    """Time of the commit in milliseconds since the epoch."""


class DomainMetadata(_Wire, frozen=True, kw_only=True):
    """Named configuration of a feature or a user. Spec: Domain Metadata."""

    domain: str
    """Name of the domain; `delta.` is reserved for the protocol."""
    configuration: str
    """Contents, JSON text by convention."""
    removed: bool
    """True if the domain is deleted."""


class CheckpointMetadata(_Wire, frozen=True, kw_only=True):
    """First action of a V2 checkpoint."""

    version: int
    """Version of the table that the checkpoint holds."""
    tags: dict[str, str | None] | None = None
    """Free-form metadata about the checkpoint."""


class SidecarFile(_Wire, frozen=True, kw_only=True):
    """A file in `_delta_log/_sidecars` that holds file actions of a V2 checkpoint."""

    path: str
    """Name of the file, or an absolute URI."""
    size_in_bytes: Int64
    """Size of the file in bytes."""
    modification_time_ms: Int64 = msgspec.field(name="modificationTime")
    """Creation time in milliseconds since the epoch."""
    tags: dict[str, str | None] | None = None
    """Free-form metadata about the file."""
