"""What the properties of a table require of its readers and writers.

Spec: Change Metadata (configuration).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Generic, Literal, TypeVar, cast, overload

import msgspec

from dagster_delta.errors import InvalidArgument, InvalidTable

ColumnMappingMode = Literal["none", "name", "id"]

CONSTRAINT_PREFIX = "delta.constraints."
"""Properties with this prefix hold CHECK constraints. Spec: CHECK Constraints."""

BRANCH_PROPERTY = "dagsterDelta.branch"
"""Table property: the branch that the table belongs to."""
BRANCH_OF_PROPERTY = "dagsterDelta.branchOf"
"""Table property: the table of production."""
BRANCH_BASE_PROPERTY = "dagsterDelta.branchBase"
"""Table property: `<table id>:<version>:<version of the clone>` of what it began with; empty if
production had no table."""
BRANCH_PROPERTIES = (BRANCH_PROPERTY, BRANCH_OF_PROPERTY, BRANCH_BASE_PROPERTY)
"""A table that is replaced keeps them."""

_DAY_MS = 24 * 60 * 60 * 1000

_UNIT_MS = {
    "week": Decimal(7 * _DAY_MS),
    "day": Decimal(_DAY_MS),
    "hour": Decimal(60 * 60 * 1000),
    "minute": Decimal(60 * 1000),
    "second": Decimal(1000),
    "millisecond": Decimal(1),
    "microsecond": Decimal("0.001"),
}

_INTERVAL_PART = re.compile(r"'?([+-]?\d+(?:\.\d+)?)'?\s+([a-z]+)\s*")
_CHECKPOINT_INTERVALS = (10, 20, 50, 100)
_FILES_PER_COMMIT = 500
"""Files in a checkpoint for each commit that may follow it."""
_BYTES = re.compile(r"(\d+)\s*([kmgtp]?)i?b?")
_BYTES_FACTOR = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_COLUMN_PART = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^`.,\s][^`.,]*))\s*")

T = TypeVar("T")


# Sums with this value must stay within 64 bits.
_LONGEST_MS = 2**53


def parse_interval_ms(text: str) -> int:
    """The length in milliseconds of an interval such as `interval 30 days` or `2 hours 30 minutes`.

    Longer intervals are cut to `_LONGEST_MS`. Months and years have no fixed length, so they are
    refused.
    """
    rest = text.strip().lower().removeprefix("interval").strip()
    total = Decimal(0)
    if not rest:
        raise InvalidArgument(f"{text!r} is not an interval; write for example 'interval 30 days'")
    while rest:
        part = _INTERVAL_PART.match(rest)
        unit = _UNIT_MS.get(part[2].removesuffix("s")) if part else None
        if part is None or unit is None:
            raise InvalidArgument(
                f"{text!r} is not an interval of weeks, days, hours, minutes, seconds, "
                "milliseconds or microseconds; write for example 'interval 30 days'"
            )
        total += Decimal(part[1]) * unit
        rest = rest[part.end() :]
    return min(int(total), _LONGEST_MS)


def parse_column_paths(text: str) -> tuple[tuple[str, ...], ...]:
    """The logical paths in a comma-separated list of columns, where backticks quote a name."""
    paths: list[tuple[str, ...]] = []
    parts: list[str] = []
    position = 0
    while text.strip():
        match = _COLUMN_PART.match(text, position)
        if match is None:
            raise InvalidArgument(
                f"{text!r} is not a list of columns; separate names by commas, nested ones by dots "
                "and quote names that hold either with backticks"
            )
        quoted, bare = match.groups()
        parts.append(bare.strip() if quoted is None else quoted.replace("``", "`"))
        position = match.end()
        separator = text[position : position + 1]
        position += 1
        if separator != ".":
            paths.append(tuple(parts))
            parts = []
        if not separator:
            break
    return tuple(paths)


def _parse_boolean(text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidArgument(f"{text!r} is neither 'true' nor 'false'")
    return value


def _parse_integer(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InvalidArgument(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise InvalidArgument(f"{value} is below the minimum of {minimum}")
        return value

    return parse


def _parse_bytes(text: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    if match is None or (size := int(match[1]) * _BYTES_FACTOR[match[2]]) <= 0:
        raise InvalidArgument(f"{text!r} is not a size; write bytes, or for example '128mb'")
    return size


def _parse_choice(*choices: str) -> Callable[[str], str]:
    spelling = {choice.lower(): choice for choice in choices}

    def parse(text: str) -> str:
        value = spelling.get(text.strip().lower())
        if value is None:
            raise InvalidArgument(f"{text!r} is not one of {', '.join(choices)}")
        return value

    return parse


def _parse_mapping_mode(text: str) -> ColumnMappingMode:
    return cast("ColumnMappingMode", _parse_choice("none", "name", "id")(text))


class _Property(Generic[T]):
    def __init__(
        self, key: str, parse: Callable[[str], T], default: T, *, former_key: str = ""
    ) -> None:
        self.key = key
        self._former_key = former_key
        self._parse = parse
        self._default = default

    def value(self, configuration: Mapping[str, str]) -> T:
        text = configuration.get(self.key, configuration.get(self._former_key))
        return self._default if text is None else self._parse(text)

    @overload
    def __get__(self, instance: None, owner: type) -> _Property[T]: ...
    @overload
    def __get__(self, instance: TableProperties, owner: type) -> T: ...
    def __get__(self, instance: TableProperties | None, owner: type) -> T | _Property[T]:
        if instance is None:
            return self
        try:
            return self.value(instance.configuration)
        except InvalidArgument as error:
            raise InvalidTable(
                f"the table property {self.key} cannot be used: {error}; set it to a valid value "
                "or unset it"
            ) from error


def _declare_flag(key: str, *, default: bool = False) -> _Property[bool]:
    return _Property(key, _parse_boolean, default=default)


class TableProperties(msgspec.Struct, frozen=True):
    """The properties of a table, each parsed when it is read.

    A table with an invalid property that matters only to writers stays readable. Reading an
    attribute raises `InvalidTable` with the key if the text is invalid.
    """

    configuration: Mapping[str, str]
    """All properties as in the log, unknown ones included."""

    append_only = _declare_flag("delta.appendOnly")
    """Whether rows may never be deleted or changed."""
    checkpoint_interval = _Property[int | None]("delta.checkpointInterval", _parse_integer(1), None)
    """Commits between two checkpoints; None to choose by the size of the table."""
    checkpoint_policy = _Property(
        "delta.checkpointPolicy", _parse_choice("classic", "v2"), "classic"
    )
    """Kind of checkpoint that writers produce: `classic` or `v2`."""
    write_stats_as_json = _declare_flag("delta.checkpoint.writeStatsAsJson", default=True)
    """Whether checkpoints hold statistics as JSON text."""
    write_stats_as_struct = _Property[bool | None](
        "delta.checkpoint.writeStatsAsStruct", _parse_boolean, None
    )
    """Whether checkpoints hold statistics as typed columns; None if not set."""
    data_skipping_num_indexed_cols = _Property(
        "delta.dataSkippingNumIndexedCols", _parse_integer(-1), 32
    )
    """Leading leaf columns that get statistics; -1 for all."""
    data_skipping_stats_columns = _Property[tuple[tuple[str, ...], ...] | None](
        "delta.dataSkippingStatsColumns", parse_column_paths, None
    )
    """Logical paths that get statistics instead of the leading ones."""
    data_skipping_string_prefix_length = _Property(
        "delta.dataSkippingStringPrefixLength", _parse_integer(0), 32
    )
    """Characters of a string that statistics keep."""
    log_retention_ms = _Property("delta.logRetentionDuration", parse_interval_ms, 30 * _DAY_MS)
    """How long log files are kept, in milliseconds."""
    enable_expired_log_cleanup = _declare_flag("delta.enableExpiredLogCleanup", default=True)
    """Whether writers may delete expired log files."""
    deleted_file_retention_ms = _Property(
        "delta.deletedFileRetentionDuration", parse_interval_ms, 7 * _DAY_MS
    )
    """How long tombstones and the files they name are kept, in milliseconds."""
    set_transaction_retention_ms = _Property[int | None](
        "delta.setTransactionRetentionDuration", parse_interval_ms, None
    )
    """How long transaction identifiers are kept, in milliseconds; None means no limit."""
    enable_change_data_feed = _Property(
        "delta.enableChangeDataFeed",
        _parse_boolean,
        default=False,
        former_key="delta.enableChangeDataCapture",
    )
    """Whether writers record row-level changes."""
    enable_deletion_vectors = _declare_flag("delta.enableDeletionVectors")
    """Whether writers may write new deletion vectors."""
    enable_type_widening = _declare_flag("delta.enableTypeWidening")
    """Whether column types may be widened."""
    enable_variant_shredding = _declare_flag("delta.enableVariantShredding")
    """Whether writers may split variants into typed columns."""
    enable_column_change = _Property[bool | None](
        "dagsterDelta.enableColumnChange", _parse_boolean, None
    )
    """Whether columns may change their type online, a property that this library defines; None if
    not set, which means no."""
    branch_retention_ms = _Property("dagsterDelta.branchRetention", parse_interval_ms, 14 * _DAY_MS)
    """How long VACUUM keeps files for a branch after that began, in milliseconds; a property that
    this library defines."""
    enable_row_ids = _declare_flag("delta.enableRowIds")
    """Whether row ids are complete, in the draft of row tracking."""
    row_tracking_suspended = _declare_flag("delta.rowTrackingSuspended")
    """Whether new rows get no ids, because row tracking is being dropped."""
    enable_materialized_partition_columns = _declare_flag(
        "delta.enableMaterializePartitionColumnsFeature"
    )
    """Whether data files hold the partition columns too."""
    symlink_manifests = _declare_flag("delta.compatibility.symlinkFormatManifest.enabled")
    """Whether writers maintain lists of the live files for engines that do not read the log."""
    auto_optimize = _declare_flag("delta.autoOptimize")
    """The former name of `auto_compact`; it has effect only if true."""
    auto_compact = _Property(
        "delta.autoOptimize.autoCompact", _parse_choice("true", "false", "auto", "legacy"), "false"
    )
    """Whether writers compact small files after a write; every value except `false` means yes."""
    enable_row_tracking = _declare_flag("delta.enableRowTracking")
    """Whether row ids are complete."""
    enable_iceberg_compat_v1 = _declare_flag("delta.enableIcebergCompatV1")
    """Whether data files must stay readable as an Iceberg v1 table."""
    enable_iceberg_compat_v2 = _declare_flag("delta.enableIcebergCompatV2")
    """Whether data files must stay readable as an Iceberg v2 table."""
    enable_in_commit_timestamps = _declare_flag("delta.enableInCommitTimestamps")
    """Whether commits carry their own timestamp."""
    in_commit_timestamp_enablement_version = _Property[int | None](
        "delta.inCommitTimestampEnablementVersion", _parse_integer(0), None
    )
    """First version with an in-commit timestamp; None if version 0 already has one."""
    column_mapping_mode = _Property[ColumnMappingMode](
        "delta.columnMapping.mode", _parse_mapping_mode, "none"
    )
    """Mode as written; it has effect only if the protocol supports column mapping."""
    column_mapping_max_column_id = _Property(
        "delta.columnMapping.maxColumnId", _parse_integer(0), 0
    )
    """Largest column id ever assigned in the table."""
    checkpoint_protection_before_version = _Property(
        "delta.requireCheckpointProtectionBeforeVersion", _parse_integer(0), 0
    )
    """Log clean-up deletes either all versions before this one or none of them, because a feature
    that they use was dropped at this version."""
    isolation_level = _Property(
        "delta.isolationLevel",
        _parse_choice("Serializable", "WriteSerializable", "SnapshotIsolation"),
        "Serializable",
    )
    """How strictly concurrent commits are ordered."""
    target_file_size_bytes = _Property[int | None]("delta.targetFileSize", _parse_bytes, None)
    """Target size of data files, in bytes; None if not set."""
    randomize_file_prefixes = _declare_flag("delta.randomizeFilePrefixes")
    """Whether data files go below random prefixes instead of partition directories."""
    random_prefix_length = _Property("delta.randomPrefixLength", _parse_integer(1), 2)
    """Number of characters of a random prefix."""
    parquet_compression_codec = _Property[str | None](
        "delta.parquet.compression.codec",
        _parse_choice("uncompressed", "none", "snappy", "gzip", "lz4", "brotli", "zstd", "lz4_raw"),
        None,
    )
    """Codec of new data files; None if not set."""
    parquet_format_version = _Property[str | None](
        "delta.parquet.format.version", _parse_choice("1.0.0", "2.12.0"), None
    )
    """Version of the Parquet format whose encodings new data files may use; None if not set."""

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> TableProperties:
        """The properties in a `metaData.configuration`."""
        return cls(dict(configuration))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Keys of the properties that it parses."""
        return tuple(var.key for var in vars(cls).values() if isinstance(var, _Property))

    def commits_between_checkpoints(self, num_files: int) -> int:
        """`delta.checkpointInterval`, or an interval that suits the size of the table.

        A checkpoint costs its writer and each reader a time in proportion to the files, and each
        commit after it costs readers about as much as 50 files. So the commits may cost up to about
        a quarter of the checkpoint. Every interval divides the longest: a table whose size
        varies has no more commits than that after a checkpoint.
        """
        if self.checkpoint_interval is not None:
            return self.checkpoint_interval
        *shorter, longest = _CHECKPOINT_INTERVALS
        suiting = (interval for interval in shorter if num_files <= interval * _FILES_PER_COMMIT)
        return next(suiting, longest)

    @property
    def constraints(self) -> Mapping[str, str]:
        """CHECK constraints: name to Spark SQL."""
        return MappingProxyType(
            {
                key.removeprefix(CONSTRAINT_PREFIX): sql
                for key, sql in self.configuration.items()
                if key.startswith(CONSTRAINT_PREFIX)
            }
        )

    def validate(self) -> None:
        """Check every known property. Call it before a caller's properties are committed."""
        for var in vars(type(self)).values():
            if isinstance(var, _Property):
                try:
                    var.value(self.configuration)
                except InvalidArgument as error:
                    raise InvalidArgument(
                        f"the table property {var.key} cannot be set: {error}"
                    ) from error
