"""A Delta table at a location: opening, creating, writing.

Spec: Delta Table Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_delta.errors import TableNotFound
from dagster_delta.storage import open_store
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table import operations
from dagster_delta.table.log.reader import has_log
from dagster_delta.table.statement import Factory, Statement
from dagster_delta.table.table_handle import TableHandle
from dagster_delta.table.transaction.commit_result import CommitResult

if TYPE_CHECKING:
    from dagster_delta.table.read.change_data_feed import ChangeDataFeed


__all__ = ["CommitResult", "DeltaTable"]


class DeltaTable(TableHandle):
    """A handle on a Delta table and the latest version it has seen.

    Read calls use the version that was opened or last written by this handle; `refresh` moves to
    the latest. Every write starts from the latest version. An append of rows in memory is first
    tried on the version of this handle, and on the latest one only if that fails.

    Args:
        uri: path or URI of the table's root.
        version: version to open instead of the latest; such a handle is read-only.
        storage_options: credentials and settings of the storage.
        store: an opened store instead of `uri`'s own.
        must_exist: If False, the table need not exist yet: read calls then raise TableNotFound, and
            the first append or overwrite creates the table.
        allow_column_changes: If False, this handle refuses to start online column changes.

    Raises:
        TableNotFound: the table does not exist, and `must_exist` is true.
        VersionNotFound: there is no such version.
        InvalidTable: the log is damaged.
        UnsupportedFeature, CatalogRequired: the table cannot be read by this library.
    """

    create = Factory(lambda: operations.create.create)
    convert = Factory(lambda: operations.convert.convert)
    append = Statement(lambda: operations.append.append)
    overwrite = Statement(lambda: operations.overwrite.overwrite)
    delete = Statement(lambda: operations.delete.delete)
    update = Statement(lambda: operations.update.update)
    merge = Statement(lambda: operations.merge.merge)
    keep_latest = Statement(lambda: operations.keep_latest.keep_latest)
    apply_changes = Statement(lambda: operations.apply_changes.apply_changes)

    optimize = Statement(lambda: operations.optimize.optimize)
    reorg = Statement(lambda: operations.reorg.reorg)
    validate = Statement(lambda: operations.validate.validate)
    vacuum = Statement(lambda: operations.vacuum.vacuum)
    unreferenced_files = Statement(lambda: operations.unreferenced_files.unreferenced_files)
    fsck = Statement(lambda: operations.fsck.fsck)
    checkpoint = Statement(lambda: operations.checkpoint.checkpoint)
    clean_log = Statement(lambda: operations.clean_log.clean_log)
    restore = Statement(lambda: operations.restore.restore)
    plan_restore = Statement(lambda: operations.restore.plan_restore)
    clone = Statement(lambda: operations.clone.clone)
    health = Statement(lambda: operations.health.health)
    generate_symlink_manifests = Statement(
        lambda: operations.generate_symlink_manifests.generate_symlink_manifests
    )

    alter = Statement(lambda: operations.alter.alter)
    add_column = Statement(lambda: operations.columns.add_column)
    drop_column = Statement(lambda: operations.columns.drop_column)
    rename_column = Statement(lambda: operations.columns.rename_column)
    widen_column = Statement(lambda: operations.columns.widen_column)
    set_nullable = Statement(lambda: operations.columns.set_nullable)
    set_default = Statement(lambda: operations.columns.set_default)
    set_comment = Statement(lambda: operations.columns.set_comment)
    move_column = Statement(lambda: operations.columns.move_column)
    add_constraint = Statement(lambda: operations.columns.add_constraint)
    drop_constraint = Statement(lambda: operations.columns.drop_constraint)
    cluster_by = Statement(lambda: operations.columns.cluster_by)
    plan_column_change = Statement(lambda: operations.column_change.plan_column_change)
    change_column = Statement(lambda: operations.column_change.change_column)
    column_change = Statement(lambda: operations.column_change.column_change)
    resume_column_change = Statement(lambda: operations.column_change.resume_column_change)
    cancel_column_change = Statement(lambda: operations.column_change.cancel_column_change)
    drop_feature = Statement(lambda: operations.drop_feature.drop_feature)
    materialize_defaults = Statement(lambda: operations.drop_feature.materialize_defaults)
    set_properties = Statement(lambda: operations.properties.set_properties)
    unset_properties = Statement(lambda: operations.properties.unset_properties)
    set_name = Statement(lambda: operations.properties.set_name)
    set_description = Statement(lambda: operations.properties.set_description)
    enable_feature = Statement(lambda: operations.properties.enable_feature)
    upgrade_protocol = Statement(lambda: operations.properties.upgrade_protocol)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):
                # A property raised AttributeError itself: that error is the one to show.
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"'DeltaTable' object has no attribute {name!r}; docs/migration.md lists the calls "
                "of other packages, and what to write instead",
                name=name,
                obj=self,
            )

    @staticmethod
    def is_delta_table(
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        store: ObjectStore | None = None,
    ) -> bool:
        """Whether a table exists at the location. Does not check whether it can be read.

        Args:
            uri: path or URI of the table's root.
            storage_options: credentials and settings of the storage.
            store: an opened store instead of `uri`'s own.

        Raises:
            StorageFailure: the store refused or failed.
        """
        try:
            return has_log(store if store is not None else open_store(uri, storage_options))
        except TableNotFound:
            # A catalog does not know the name.
            return False

    def changes(
        self,
        starting_version: int | None = None,
        ending_version: int | None = None,
        *,
        starting_timestamp: datetime | str | int | None = None,
        ending_timestamp: datetime | str | int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        max_bytes: int | None = 1024**3,
    ) -> ChangeDataFeed:
        """The row-level changes of a range of versions, both ends included.

        Where the table did not have `delta.enableChangeDataFeed`, its versions are read from the
        files that they removed and added. That is exact and costs nothing more for appended and
        deleted files and for deletion vectors. Where a version has removed and added files of one
        partition, as UPDATE and MERGE do without deletion vectors, all rows of these files are
        read and compared, and rows that only moved are dropped; an updated row is a `delete` and
        an `insert`.

        Args:
            starting_version: first version.
            ending_version: last version; by default, or if the table has no such version yet, the
                latest version that this handle knows. If the start is after that, the latest
                version of the table.
            starting_timestamp: instead: the first version committed at or after it, spelled as for
                `snapshot`.
            ending_timestamp: instead: the last version committed at or before it.
            columns: names of the columns to read, including those of the feed; all by default.
            where: Spark SQL over the columns of the table and of the feed.
            max_bytes: the most bytes of data files to compare; None for no limit.

        Raises:
            InvalidArgument: there is no start, or two starts or ends, or the end is before the
                start; a column is named twice, or the filter is not a boolean expression.
            VersionNotFound: nothing was committed since the start, or the end is outside the log.
            SchemaMismatch: a column, or a name in the filter, is not in the schema.
            TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
        """
        from dagster_delta.table.read.change_data_feed import ChangeDataFeed, find_range

        start, end = find_range(
            self._store,
            self._known(),
            starting_version=starting_version,
            ending_version=ending_version,
            starting_timestamp=starting_timestamp,
            ending_timestamp=ending_timestamp,
        )
        return ChangeDataFeed(end, start, columns, where, max_bytes=max_bytes)
