"""Every table property that writers of Delta tables know, and what this library does about it.

Spec: Change Metadata (configuration).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Treatment = Literal["honoured", "kept", "read only", "internal", "refused"]
"""`honoured`: it can be set, and reads and writes follow it. `kept`: it can be set, and has no
effect. `read only`: reads and writes of a table that has it follow it, and it cannot be set here.
`internal`: writers maintain it themselves. `refused`: it cannot be set here."""


class KnownProperty(msgspec.Struct, frozen=True):
    """One table property."""

    name: str
    treatment: Treatment
    what: str
    """What it means, or why it has no effect."""

    @property
    def can_be_set(self) -> bool:
        """Whether callers may set it on a table."""
        return self.treatment in ("honoured", "kept")


def _rows(treatment: Treatment, rows: dict[str, str]) -> tuple[KnownProperty, ...]:
    return tuple(KnownProperty(f"delta.{name}", treatment, what) for name, what in rows.items())


_HONOURED = {
    "appendOnly": "rows are neither deleted nor changed",
    "autoOptimize": "former name of `delta.autoOptimize.autoCompact`",
    "autoOptimize.autoCompact": "small files are compacted after writes that leave 50 of them in "
    "one partition",
    "autoOptimize.optimizeWrite": "`false`: Spark does not bring the rows of a partition together "
    "before it writes them",
    "checkpoint.writeStatsAsJson": "statistics in checkpoints as text",
    "checkpoint.writeStatsAsStruct": "statistics in checkpoints as columns",
    "checkpointInterval": "commits between two checkpoints; if not set, 10 for tables of up to "
    "5,000 files, 20 up to 10,000, 50 up to 25,000, and 100 for larger ones",
    "checkpointPolicy": "`classic` or `v2` checkpoints",
    "compatibility.symlinkFormatManifest.enabled": "each commit writes the symlink manifests of "
    "the partitions that it changes",
    "columnMapping.mode": "how columns are found in data files",
    "dataSkippingNumIndexedCols": "leading columns with statistics",
    "dataSkippingStatsColumns": "columns with statistics, in place of the leading ones",
    "dataSkippingStringPrefixLength": "characters of a string that statistics keep",
    "deletedFileRetentionDuration": "how long VACUUM keeps removed files",
    "enableChangeDataFeed": "row-level changes are recorded",
    "enableDeletionVectors": "rows are deleted by marking them",
    "enableExpiredLogCleanup": "the log is cleaned up after checkpoints",
    "enableIcebergCompatV1": "the table stays readable as Iceberg v1",
    "enableIcebergCompatV2": "the table stays readable as Iceberg v2",
    "enableInCommitTimestamps": "commits carry their own timestamp",
    "enableMaterializePartitionColumnsFeature": "data files hold the partition columns too",
    "enableRowTracking": "rows keep an id",
    "enableTypeWidening": "columns may take wider types",
    "enableVariantShredding": "other writers may split variants into typed columns; new files of "
    "this library hold them whole",
    "isolationLevel": "how strictly concurrent commits are ordered",
    "logRetentionDuration": "how long log clean-up keeps versions",
    "minReaderVersion": "least reader version of the protocol",
    "minWriterVersion": "least writer version of the protocol",
    "parquet.compression.codec": "codec of new data files",
    "parquet.format.version": "`1.0.0`: new data files use no encodings that came later",
    "randomPrefixLength": "characters of a random prefix",
    "randomizeFilePrefixes": "new data files go below random prefixes",
    "setTransactionRetentionDuration": "how long transaction identifiers count",
    "targetFileSize": "size of new data files",
}
_KEPT = {
    "castIcebergTimeType": "concerns the conversion of Iceberg tables",
    "checkpointRetentionDuration": "no writer goes by it, delta-spark neither",
    "dropFeatureTruncateHistory.retentionDuration": "`truncate_history` asks for a clean log "
    "whatever its age",
    "enableFullRetentionRollback": "no writer goes by it, delta-spark neither",
    "ignoreIcebergBucketPartition": "concerns the conversion of Iceberg tables",
    "ignoreProtocolDefaults": "concerns defaults of Spark sessions, which do not count here",
    "sampleRetentionDuration": "no writer goes by it, delta-spark neither",
    "tuneFileSizesForRewrites": "concerns Databricks; see `delta.targetFileSize`",
    "universalFormat.enabledFormats": "no Iceberg metadata is written here, and VACUUM keeps that "
    "of others",
    "writePartitionColumnsToParquet": "files hold partition columns only where a feature asks for "
    "it",
}
_READ_ONLY = {
    "enableChangeDataCapture": "former name of `delta.enableChangeDataFeed`",
    "enableRowIds": "the draft of row tracking, on tables that have it; others take "
    "`delta.enableRowTracking`",
    "rowTrackingSuspended": "new files get no row ids while row tracking is being dropped",
}
_INTERNAL = {
    "columnMapping.maxColumnId": "highest column id ever assigned",
    "inCommitTimestampEnablementTimestamp": "when commits began to carry timestamps",
    "inCommitTimestampEnablementVersion": "version at which they did",
    "requireCheckpointProtectionBeforeVersion": "version before which checkpoints are protected",
    "rowIds.physicalColumnName": "column of the ids, in the draft of row tracking",
    "rowTracking.materializedRowCommitVersionColumnName": "column of the versions of rows",
    "rowTracking.materializedRowIdColumnName": "column of the ids of rows",
}
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

KNOWN_PROPERTIES: tuple[KnownProperty, ...] = tuple(
    sorted(
        (
            *_rows("honoured", _HONOURED),
            *_rows("kept", _KEPT),
            *_rows("read only", _READ_ONLY),
            *_rows("internal", _INTERNAL),
            *_rows("refused", _REFUSED),
        ),
        key=lambda known: known.name.lower(),
    )
)
"""Properties by name. Properties with the prefixes `delta.constraints.` and `delta.feature.` are
not listed."""

_BY_NAME = {known.name.lower(): known for known in KNOWN_PROPERTIES}


def find_property(name: str) -> KnownProperty | None:
    """The property with this name, case-insensitive; None if it is unknown."""
    return _BY_NAME.get(name.lower())
