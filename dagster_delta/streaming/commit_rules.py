"""Which rows a stream takes from a commit, and which commits stop it.

Spec: Add File and Remove File; Change Data Files; Schema Evolution.
"""

from __future__ import annotations

from dagster_delta.errors import (
    ChangeDataNotRecorded,
    SchemaMismatch,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.change_data import FileChange, file_changes
from dagster_delta.protocol.log.commit_file import CommitActions
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.streaming.options import SourceOptions
from dagster_delta.table.read.snapshot import Snapshot

_REMEMBERED_VERSIONS = 1000


class CommitRules:
    """The rules of one run of a query."""

    def __init__(self, store: ObjectStore, options: SourceOptions, latest: Snapshot) -> None:
        self._store = store
        self._options = options
        self._latest = latest
        self._known = {latest.version: latest.configuration}

    def changes_of(self, actions: CommitActions) -> tuple[FileChange, ...]:
        """The files whose rows the stream takes from a commit, in a stable order.

        A schema change for which the query has to be restarted is a SchemaMismatch; deleted or
        changed rows that no option allows are an UnsupportedFeature.
        """
        self._check_configuration(actions)
        if self._options.read_change_feed:
            is_partitioned = bool(self._latest.configuration.partition_columns)
            return file_changes(actions, partitioned=is_partitioned)
        adds = [add for add in actions.adds if add.data_change]
        if any(remove.data_change for remove in actions.removes):
            if self._options.skip_change_commits:
                return ()
            self._check_allowed(actions, has_new_rows=bool(adds))
        return tuple(
            FileChange(
                path=add.path,
                partition_values=add.partition_values,
                size_bytes=add.size_bytes,
                change_type="insert",
                deletion_vector=add.deletion_vector,
            )
            for add in adds
        )

    def _check_allowed(self, actions: CommitActions, *, has_new_rows: bool) -> None:
        operation = (actions.commit_info or {}).get("operation") or "a commit"
        if has_new_rows and not self._options.allows_changes:
            raise UnsupportedFeature(
                f"The stream cannot show that rows were changed, as version {actions.version} "
                f"({operation}) did: pass skipChangeCommits to leave such commits out, "
                "ignoreChanges to read all rows of the files they rewrote, or readChangeFeed to "
                "read the changes",
                table=self._store.location.uri,
                version=actions.version,
            )
        if not has_new_rows and not self._options.allows_deletes:
            raise UnsupportedFeature(
                f"The stream cannot show that rows were deleted, as version {actions.version} "
                f"({operation}) did: pass ignoreDeletes or skipChangeCommits to go on without it, "
                "or readChangeFeed to read the changes",
                table=self._store.location.uri,
                version=actions.version,
            )

    def _check_configuration(self, actions: CommitActions) -> None:
        configuration = self.configuration_at(actions)
        version = actions.version
        if configuration is not self._latest.configuration:
            self.check_schema(configuration, version)
        is_recorded = configuration.properties.enable_change_data_feed
        if self._options.read_change_feed and not is_recorded:
            raise ChangeDataNotRecorded(
                f"The change data feed was off at version {version} (delta.enableChangeDataFeed), "
                "so that its changes are not recorded: start a new query from a version after "
                "which it is on",
                table=self._store.location.uri,
                version=version,
            )

    def configuration_at(self, actions: CommitActions) -> TableConfiguration:
        """The configuration of the version of a commit."""
        version = actions.version
        if version in self._known:
            return self._known[version]
        before = self._known.get(version - 1)
        if before is not None:
            found = before
            if actions.protocol is not None or actions.metadata is not None:
                found = TableConfiguration(
                    actions.protocol or before.protocol, actions.metadata or before.metadata
                )
                found.check_readable(table=self._store.location.uri, version=version)
        else:
            found = self._load(version)
        if len(self._known) > _REMEMBERED_VERSIONS:
            self._known = {self._latest.version: self._latest.configuration}
        self._known[version] = found
        return found

    def _load(self, version: int) -> TableConfiguration:
        try:
            found = Snapshot.load(self._store, version=version).configuration
        except VersionNotFound as error:
            raise VersionNotFound(
                f"The log does not have the schema that version {version} was written with, as the "
                "checkpoint before it was cleaned up: start a new query from a later version",
                table=self._store.location.uri,
                version=version,
            ) from error
        latest = self._latest.configuration
        # If nothing changed, return the same object, so that later comparisons are fast.
        is_same = found.metadata == latest.metadata and found.protocol == latest.protocol
        return latest if is_same else found

    def check_schema(self, configuration: TableConfiguration, version: int) -> None:
        """Raises SchemaMismatch if the query cannot show rows of a version with its schema."""
        latest, table = self._latest, self._store.location.uri
        if configuration.metadata.id != latest.metadata.id:
            raise SchemaMismatch(
                f"Version {version} made another table of it: start a new query, with a "
                "checkpoint location of its own",
                table=table,
                version=version,
            )
        problem = find_incompatibility(configuration, latest.configuration)
        if version > latest.version:
            # A new column would be lost, so the schemas must fit in both directions.
            problem = problem or find_incompatibility(latest.configuration, configuration)
            if problem is not None:
                raise SchemaMismatch(
                    f"The schema of the table changed at version {version}: start the query again, "
                    "and it continues with the new schema from its position",
                    table=table,
                    version=version,
                )
        elif problem is not None:
            raise SchemaMismatch(
                f"The rows of version {version} cannot be shown with the schema of version "
                f"{latest.version}, with which the stream is read: {problem}. Start a new query, "
                "with a checkpoint location of its own, from a version after that change",
                table=table,
                version=version,
            )
