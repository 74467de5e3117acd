"""What a publication records for the change data feed of production: the net of what the branch has
changed in its rows.

Without it, readers would take all rows of the files that the publication removes and adds as
deleted and inserted, also those that the branch only moved to other files.

Spec: Change Data Files; Add CDC File; Row Tracking.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.engines import embedded_engine, net_changes
from dagster_delta.errors import (
    ChangeDataNotRecorded,
    DataFileMissing,
    SchemaMismatch,
    VersionNotFound,
)
from dagster_delta.protocol.actions import AddCDCFile
from dagster_delta.protocol.features.change_data import (
    CHANGE_TYPE_COLUMN,
    COMMIT_VERSION_COLUMN,
    change_data_configuration,
)
from dagster_delta.protocol.features.row_tracking import (
    ROW_IDS_KEPT_TAG,
    materialized_columns,
    tracked_configuration,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.change_data import FileChange, file_changes, may_have_moved
from dagster_delta.protocol.log.commit_file import CommitActions, decode_commit
from dagster_delta.protocol.log.replay import ROW_ID_COLUMNS
from dagster_delta.protocol.schema import StructType, nullable_field
from dagster_delta.protocol.schema_compatibility import find_incompatibility
from dagster_delta.protocol.values.arrow_columns import column_of
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.log.reader import read_commit
from dagster_delta.table.operations.version_difference import VersionDifference
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.branch_tables import BranchBase
from dagster_delta.table.read.change_data_feed import ChangeDataFeed
from dagster_delta.table.read.change_feed_plan import FeedFiles
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import added_again, tombstones


class BranchCommits(msgspec.Struct, frozen=True):
    """What the commits of a branch's table have done since it began."""

    changes_rows: bool = True
    """False if they only moved rows to other files."""
    records_changes: bool = True
    """Whether one of them recorded changes of rows, as updates do."""
    keeps_row_ids: bool = False
    """Whether each of them kept the ids of the rows that it moved."""

    @classmethod
    def of(cls, head: Snapshot) -> BranchCommits:
        """Reads the log of the branch. Where a clean-up has deleted a commit, nothing is known."""
        changes_rows, records_changes, keeps_row_ids = False, False, True
        try:
            for version in range(first_version(head), head.version + 1):
                actions = decode_commit(read_commit(head.store, version), version=version)
                changes_rows |= actions.removes_data or any(add.data_change for add in actions.adds)
                records_changes |= bool(actions.cdc)
                tags = (actions.commit_info or {}).get("tags") or {}
                keeps_row_ids &= tags.get(ROW_IDS_KEPT_TAG) != "false"
        except VersionNotFound:
            return cls()
        return cls(changes_rows, records_changes, keeps_row_ids)


def first_version(head: Snapshot) -> int:
    """The first version of a branch's table that is the branch's own."""
    base = BranchBase.of(head)
    return 0 if base is None else base.clone_version + 1


class RecordedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of rows to record with a publication."""

    head: Snapshot
    """The branch's table."""
    configuration: TableConfiguration
    """Protocol and metadata of production afterwards."""
    changes: tuple[FileChange, ...]
    """The files that leave production, and those that it gets, under its names."""
    row_ids: tuple[int | None, ...] | None
    """The first row id of each; None if rows have no ids."""

    @classmethod
    def plan(cls, planned: VersionDifference) -> RecordedChanges | None:
        """What may have to be recorded with a publication; None if readers of production find the
        changes of rows without it, or could not show them with its new schema.
        """
        base, configuration = planned.before, planned.configuration
        if base is None or not configuration.change_data_feed_enabled:
            return None
        adds = tuple(added_again(planned.files.entering))
        removes = tombstones(planned.files.leaving, 0)
        actions = CommitActions(version=base.version + 1, adds=adds, removes=removes)
        changes = file_changes(actions, partitioned=bool(configuration.partition_columns))
        if len({change.change_type for change in changes}) < 2:
            return None
        if find_incompatibility(base.configuration, configuration, keeps_columns=False) is not None:
            return None
        row_ids = None
        columns = materialized_columns(configuration)
        if columns is not None and columns == materialized_columns(base.configuration):
            came = {add.path: add.base_row_id for add in adds}
            gone = {remove.path: remove.base_row_id for remove in removes}
            row_ids = tuple(
                (came if change.change_type == "insert" else gone)[change.path]
                for change in changes
            )
        return cls(
            head=planned.target, configuration=configuration, changes=changes, row_ids=row_ids
        )

    @property
    def compared_bytes(self) -> int:
        """Bytes of the files whose rows may have to be compared."""
        return sum(change.size_bytes for change in self.changes)

    def is_needed(self, commits: BranchCommits, max_bytes: int | None) -> bool:
        """Whether readers of the feed would otherwise get other changes than those of the branch's
        commits: rows that did not change, or no images of updates.

        Raises:
            ChangeDataNotRecorded: files of more than `max_bytes` would have to be compared.
        """
        moved = may_have_moved(self.changes, self.configuration.partition_types)
        if not commits.records_changes and not any(moved):
            return False
        if max_bytes is not None and self.compared_bytes > max_bytes:
            raise ChangeDataNotRecorded(
                "production has a change data feed (delta.enableChangeDataFeed); to find the rows "
                f"that the branch has changed, {len(self.changes)} files of "
                f"{self.compared_bytes:,} bytes are compared, and max_bytes is {max_bytes:,}: pass "
                "a larger one, or None for no limit",
                table=self.head.store.location.uri,
                version=self.head.version,
            )
        return True

    def write(self, store: ObjectStore) -> tuple[AddCDCFile, ...]:
        """Write the change data files below production's table; none if no row has changed. The
        files of the publication must be there.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, StorageFailure: of a file; files
                already written are deleted if the store allows it.
        """
        rows = self._find_net(store)
        if (first := next(rows, None)) is None:
            return ()
        names = [*self.configuration.schema.names, CHANGE_TYPE_COLUMN]
        batches = (batch.select(names) for batch in chain([first], rows))
        reader = pa.RecordBatchReader.from_batches(first.select(names).schema, batches)
        # A row as it was need not satisfy what is required today.
        fields = StructType(tuple(map(nullable_field, self.configuration.schema)))
        spec = replace(
            write_spec(self.configuration, store.location, check_rows=False),
            configuration=change_data_configuration(self.configuration.with_schema(fields)),
            is_change_data=True,
        )
        return tuple(
            AddCDCFile(
                path=file.path, partition_values=file.partition_values, size_bytes=file.size_bytes
            )
            for file in embedded_engine().write(reader, spec, store=store).files
        )

    def _find_net(self, store: ObjectStore) -> Iterator[pa.RecordBatch]:
        if self.row_ids is not None:
            return self._compare_files(store)
        names = self.configuration.schema.names
        columns = [*names, CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN]
        feed = ChangeDataFeed(self.head, first_version(self.head), columns, max_bytes=None)
        try:
            rows = net_changes(feed.to_batches(), feed.schema, names, has_updates=True)
            # All of the feed is read for the first batch.
            return chain(list(islice(rows, 1)), rows)
        except (VersionNotFound, DataFileMissing, SchemaMismatch):
            # Without the images of updates, the files have the same net.
            return self._compare_files(store)

    def _compare_files(self, store: ObjectStore) -> Iterator[pa.RecordBatch]:
        files = FeedFiles()
        types = self.configuration.partition_types
        files.add_commit(self.head.version, 0, self.changes, types)
        _, found = files.sets(self.configuration)
        names, row_id = self.configuration.schema.names, None
        columns = [*names, CHANGE_TYPE_COLUMN, COMMIT_VERSION_COLUMN]
        carried = materialized_columns(self.configuration)
        if self.row_ids is not None and carried is not None:
            row_id = carried.row_id
            columns.append(row_id)
            first_ids = pa.chunked_array([column_of(list(self.row_ids), pa.int64())])
            found = replace(
                found,
                configuration=tracked_configuration(found.configuration),
                files=found.files.append_column(ROW_ID_COLUMNS[0], first_ids),
            )
        schema = found.read_plan(store, columns).schema
        rows = embedded_engine().read_changes(store, [found], columns)
        return net_changes(rows, schema, names, row_id=row_id)
