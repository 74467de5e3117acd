"""Deletes a whole table: the one operation that deletes files which a table refers to.

Only a table with a given property is deleted: a mark that who created the table has set.
"""

from __future__ import annotations

import os
from contextlib import suppress

from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.log.paths import LOG_DIRECTORY, LogFileKind, parse_log_file_name
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import delete_with_checksums
from dagster_delta.table.read.snapshot import Snapshot


def drop_table(store: ObjectStore, mark: str, value: str) -> int:
    """Delete every file of a table whose latest version has a table property with this value.

    Returns the number of files. The commits go last, from the newest to the first: a table that was
    deleted in part is still found with its properties, and is deleted by the next call.

    Raises:
        InvalidArgument: the table has no such property, or another table is below it.
        TableNotFound, InvalidTable, UnsupportedFeature, StorageFailure.
    """
    snapshot = Snapshot.load(store)
    if snapshot.metadata.configuration.get(mark) != value:
        raise InvalidArgument(
            f"the table has not the property {mark} = {value}, and is not deleted",
            table=store.location.uri,
            version=snapshot.version,
        )
    paths = sorted((meta.path for meta in store.list_recursive()), reverse=True)
    if nested := [path for path in paths if f"/{LOG_DIRECTORY}/" in path]:
        raise InvalidArgument(
            f"another table is below the table, with {nested[-1]}: it is not deleted; move the "
            "other one away first",
            table=store.location.uri,
            version=snapshot.version,
        )
    delete_with_checksums(store, [path for path in paths if not _is_commit(path)])
    for path in filter(_is_commit, paths):
        delete_with_checksums(store, [path])
    remove_empty_directories(store.local_path(""))
    return len(paths)


def _is_commit(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    found = parse_log_file_name(name) if directory == LOG_DIRECTORY else None
    return found is not None and found.kind is LogFileKind.COMMIT


def remove_empty_directories(local: str | None) -> None:
    """Remove a local directory and those below it, if they are empty: an empty directory of a log
    would be found as that of a table.
    """
    for directory, _, _ in os.walk(local or "", topdown=False):
        with suppress(OSError):
            os.rmdir(directory)  # noqa: PTH106
