"""Facts about commits for the runs that a sensor requests, and for the event log."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import dagster as dg
from pydantic import Field

from dagster_delta.orchestration.known_fields import KnownFieldsOnly
from dagster_delta.orchestration.metadata_keys import DETAILS, RawMetadata, shown
from dagster_delta.orchestration.sensors.table_watcher import CommitRange, WaitingChanges
from dagster_delta.orchestration.table_metadata import DATA_VERSION_TAG
from dagster_delta.table.log.commit_summary import CommitSummary
from dagster_delta.table.read.watch import data_version

AssetEventKind = Literal["materialization", "observation"]

# More are only counted, so that the size of an event is bounded.
_MAX_NAMED_FILES = 100

_DIGEST_LENGTH = 8


class DeltaCommitRange(KnownFieldsOnly, dg.Config):
    """Config of an asset or op: the range of commits that its run processes.

    Examples:
        @dg.asset
        def report(config: DeltaCommitRange) -> None:
            changed = range(config.from_version, config.to_version + 1)
    """

    table_uri: str = Field(description="Location of the table.")
    table_id: str = Field(description="UUID of the table.")
    from_version: int = Field(description="The first commit.")
    to_version: int = Field(description="The last commit, included.")


class TableChanges(CommitRange, frozen=True, kw_only=True):
    """The range of commits that a run is requested for."""

    table_uri: str
    partition_key: str | None
    """The partition of the run; some commits of the range belong to it."""

    @classmethod
    def of(cls, uri: str, waiting: WaitingChanges, partition_key: str | None) -> TableChanges:
        """Commits that wait for a run, for one partition or for the whole table."""
        shared = {name: getattr(waiting, name) for name in CommitRange.__struct_fields__}
        return cls(table_uri=uri, partition_key=partition_key, **shared)

    @property
    def run_key(self) -> str:
        """`table_id:version:digest[:partition]`: Dagster starts only one run per key. The digest of
        the location and the commit distinguishes copies of a table, and the versions of a log that
        was set back.
        """
        digest = None
        if self.commit_digest is not None:
            identity = f"{self.table_uri} {self.commit_digest}"
            digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_LENGTH]
        parts = (self.table_id, str(self.to_version), digest, self.partition_key)
        return ":".join(part for part in parts if part is not None)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run."""
        tags = {
            "delta/table_uri": self.table_uri,
            "delta/table_id": self.table_id,
            "delta/from_version": str(self.from_version),
            "delta/to_version": str(self.to_version),
            "delta/operations": ", ".join(self.operations),
        }
        if self.rows is not None:
            tags["delta/rows"] = str(self.rows)
        return {key: value for key, value in tags.items() if value}

    def commit_range(self) -> DeltaCommitRange:
        """The range, as config of an asset or op."""
        names = DeltaCommitRange.model_fields
        return DeltaCommitRange(**{name: getattr(self, name) for name in names})


def commit_facts(commit: CommitSummary, uri: str) -> RawMetadata:
    """Metadata of a commit for the UI."""
    time_ms, run_id, files = commit.timestamp_ms, commit.run_id, commit.change_files
    return shown(
        {
            "delta/version": commit.version,
            "delta/operation": commit.operation,
            "delta/rows": commit.rows,
            "delta/files_added": commit.files_added,
            "delta/files_removed": commit.files_removed,
            "delta/committer": commit.committer,
            "delta/run": None if run_id is None else dg.MetadataValue.dagster_run(run_id),
            "delta/change_files": list(files[:_MAX_NAMED_FILES]) or None,
            "dagster/last_updated_timestamp": None
            if time_ms is None
            else dg.MetadataValue.timestamp(time_ms / 1000),
            "dagster/uri": uri,
            DETAILS: {
                "table_id": commit.table_id,
                "last_change": commit.version,
                "change_files": len(files) or None,
            },
        }
    )


def commit_event(
    commit: CommitSummary,
    uri: str,
    asset_key: dg.AssetKey,
    kind: AssetEventKind,
    partition_keys: Sequence[str | None],
) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """The Dagster events for a commit to an external table, one per partition key."""
    event = dg.AssetMaterialization if kind == "materialization" else dg.AssetObservation
    return [
        event(
            asset_key=asset_key,
            description=f"{commit.operation or 'Commit'} by {commit.committer or 'somebody'}",
            metadata=commit_facts(commit, uri),
            partition=key,
            tags={DATA_VERSION_TAG: data_version(commit.table_id, commit.version)},
        )
        for key in partition_keys
    ]
